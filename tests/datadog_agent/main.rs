//! Protocol `datadog_agent`: bodies of released tracers, without and with HTTP.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod dogstatsd;
mod expected;
mod growth;
mod hostile;
mod http;
mod offline;
mod profiles;
mod recorded;
mod repeats;
mod semantics;
mod stats;

use tributary_testing::{growth as growth_support, live};
