//! Tests that take long by nature: the gate runs them, `cargo test` does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod attacks;
mod fleet;
mod transcripts;

use tributary_testing::{live, marked_upload, nats_server, rbkit_law as rbkit_law_support, zico as zico_support};
