//! The command line and the configuration.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/common/mod.rs"]
mod common;
#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/zico/mod.rs"]
mod zico_support;

mod commands;
mod config;
mod config_errors;
mod coverage;
mod explain;
mod files;
mod profiles;
mod rules;
mod run;
mod simulate;
mod spool;
mod stored;
