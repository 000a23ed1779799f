//! The command line and the configuration.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod commands;
mod config;
mod config_errors;
mod coverage;
mod explain;
mod files;
mod option_docs;
mod profiles;
mod rules;
mod run;
mod schema;
mod simulate;
mod spool;
mod stored;
mod words;

use tributary_testing::{common, live, zico as zico_support};
