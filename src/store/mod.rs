//! FLOOR 3 — what must be known again after a restart.

mod options;

pub use options::StoreOptions;
