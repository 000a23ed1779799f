//! Limits that all sessions share: the memory of the process and what the system allows, and how much output a peer may cause.
#![forbid(unsafe_code)]

mod address;
mod allowance;
mod budget;
pub mod log_throttle;
mod system;

pub use address::address_group;
pub use allowance::{Allowance, Amplification, Credit};
pub use budget::{MemoryBudget, MemoryLease};
pub use system::{MemoryLimit, SystemMemory};
