//! What the operating system gives to the other packages: threads that may block, directories, the wall clock, measured times.
#![forbid(unsafe_code)]

pub mod blocking;
pub mod counters;
pub mod directories;
pub mod histogram;
pub mod wall_clock;
