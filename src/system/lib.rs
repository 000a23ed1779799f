//! What the operating system gives to the other packages: threads that may block, directories, locked files, the wall clock, measured times.
#![forbid(unsafe_code)]

pub mod blocking;
pub mod counters;
pub mod directories;
pub mod histogram;
pub mod kept_files;
pub mod locked_file;
pub mod wall_clock;
