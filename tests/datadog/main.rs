//! Protocol `datadog`: recorded and damaged conversations, hostile peers, and the growth of work.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/common/mod.rs"]
mod common;
#[path = "../support/growth/mod.rs"]
mod growth_support;
#[path = "../support/hostile/mod.rs"]
mod hostile_support;

mod growth;
mod hostile_input;
mod law;
mod memory;
mod recordings;
mod services;
