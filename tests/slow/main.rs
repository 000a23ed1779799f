//! Tests that take long by nature: the gate runs them, `cargo test` does not.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/marked_upload.rs"]
mod marked_upload;
#[path = "../support/nats_server.rs"]
mod nats_server;
#[path = "../support/rbkit_law/mod.rs"]
mod rbkit_law_support;
#[path = "../support/zico/mod.rs"]
mod zico_support;

mod attacks;
mod fleet;
mod transcripts;
