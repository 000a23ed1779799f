//! Protocol `endless`: uploads with and without HTTP, delivery, limits, and GVariant against GLib.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print figures, and what they skip")]

mod delivery;
mod durable;
mod growth;
mod gvariant_oracle;
mod hostile;
mod http;
mod http_requests;
mod law;
mod memory;
mod quarantine;
mod registry;
mod simulate;
mod uploads;

use tributary_testing::{endless as endless_support, growth as growth_support, hostile as hostile_support, live};
