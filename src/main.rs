//! The `tributary` binary: a thin door to the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tributary::cli::main()
}
