//! Tests that take long by nature: the gate runs them, `cargo test` does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print figures, and what they skip")]

mod attacks;
mod fleet;
mod transcripts;
mod zico;

use tributary_testing::{
    hostile as hostile_support, live, marked_upload, nats_server, rbkit_law as rbkit_law_support, zico as zico_support,
};
