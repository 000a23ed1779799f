//! What several test programs use: the daemon in this process or as a program, simulated peers, recorded conversations and the
//! readers of their expected events, servers, and the laws that every protocol keeps.
#![allow(missing_docs, clippy::new_without_default, reason = "it has one reader: the tests")]
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print figures, and what they skip")]

pub mod bytefrog;
pub mod bytefrog_law;
pub mod common;
pub mod endless;
pub mod forward_proxy;
pub mod growth;
pub mod hostile;
pub mod http_server;
pub mod live;
pub mod marked_upload;
pub mod nats_server;
pub mod otlp;
pub mod rbkit;
pub mod rbkit_law;
pub mod sink_file;
pub mod small_disk;
pub mod tls;
pub mod wait;
pub mod zico;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The directory of the project.
pub fn project() -> &'static Path {
    static PROJECT: LazyLock<PathBuf> =
        LazyLock::new(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap());
    &PROJECT
}

/// The program `tributary`, which cargo builds before the tests of its package, beside the directory of their programs.
pub fn program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| {
        let test = std::env::current_exe().unwrap();
        let program = test.parent().unwrap().parent().unwrap().join("tributary");
        assert!(
            program.is_file(),
            "{} is missing: it is built with the tests of the package tributary",
            program.display()
        );
        program.to_str().unwrap().to_owned()
    });
    &PROGRAM
}
