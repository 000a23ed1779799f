//! Protocol `datadog`: recorded and damaged conversations, hostile peers, and the growth of work.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod growth;
mod hostile_input;
mod law;
mod memory;
mod recordings;
mod services;

use tributary_testing::{common, growth as growth_support, hostile as hostile_support};
