//! Sinks, encoders and the pipeline in front of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/http_server/mod.rs"]
mod http_server;
#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/otlp/mod.rs"]
mod otlp_support;
#[path = "../support/sink_file/mod.rs"]
mod sink_file_support;
#[path = "../../benches/workloads/mod.rs"]
mod workloads;

mod contained;
mod encode;
mod file;
mod full_disk;
mod http;
mod otlp;
mod otlp_encoding;
mod otlp_protocols;
mod pipeline;
mod stdout;
mod tcp;
