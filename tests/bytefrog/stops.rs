//! How a daemon stops that traces Java programs. Agents have seconds for their end, so these tests have a program of their own: others
//! that need much of the processor do not run at the same time.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/bytefrog/mod.rs"]
mod bytefrog_support;
#[path = "../support/live/mod.rs"]
mod live;

mod hurry;
mod log;
mod shutdown;
