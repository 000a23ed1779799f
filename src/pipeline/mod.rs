//! FLOOR 3 — batches in motion: the lanes between connections and sinks.

pub mod options;
