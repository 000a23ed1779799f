//! The `tributary` binary: a thin door to the library.

use std::process::ExitCode;

/// Batches are made by one thread and let go by another, for months. See docs/decisions/0025.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    tributary::cli::main()
}
