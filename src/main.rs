//! The `tributary` binary.

use std::process::ExitCode;

/// One thread makes a batch and another frees it, for months. See docs/decisions/0025.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The allocator's configuration, which it reads when the process starts: one arena for all threads, so that one thread
/// uses again what another has freed. With an arena for each thread, a third more memory is resident at full rate. What is
/// free goes back to the system after a second, and not after ten.
#[allow(unsafe_code, reason = "the allocator finds its configuration by the name of the symbol; no code runs here")]
#[unsafe(export_name = "_rjem_malloc_conf")]
#[used]
static ALLOCATOR_CONFIGURATION: &[u8; 30] = b"narenas:1,dirty_decay_ms:1000\0";

fn main() -> ExitCode {
    tributary::cli::main()
}
