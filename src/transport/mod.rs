//! FLOOR 4 — the only files that touch sockets, tasks and clocks.

pub mod options;
