//! Protocol `otlp`: requests of SDKs and Collectors, without and with HTTP, against `opentelemetry-proto` and our own sink.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod growth;
mod grpc;
mod hostile;
mod http;
mod json;
mod law;
mod offline;
mod profiles;
mod records;

use tributary_testing::{growth as growth_support, live};
