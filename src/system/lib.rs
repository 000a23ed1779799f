//! What the operating system gives to the other packages: processors, threads that may block, directories, locked files, the wall clock, measured times.
#![forbid(unsafe_code)]

pub mod blocking;
pub mod counters;
pub mod directories;
pub mod histogram;
pub mod kept_files;
pub mod locked_file;
pub mod wall_clock;

/// The number of processors that the process may use; 1 if it is not known.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
