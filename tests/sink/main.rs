//! Sinks, encoders and the pipeline in front of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/bytefrog/mod.rs"]
mod bytefrog_support;
#[path = "../support/endless/mod.rs"]
mod endless_support;
#[path = "../support/forward_proxy/mod.rs"]
mod forward_proxy;
#[path = "../support/http_server/mod.rs"]
mod http_server;
#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/nats_server.rs"]
mod nats_server;
#[path = "../support/otlp/mod.rs"]
mod otlp_support;
#[path = "../support/rbkit/mod.rs"]
mod rbkit_support;
#[path = "../support/sink_file/mod.rs"]
mod sink_file_support;
#[path = "../support/tls/mod.rs"]
mod tls_support;
#[path = "../../benches/workloads/mod.rs"]
mod workloads;
#[path = "../support/zico/mod.rs"]
mod zico_support;

mod compact;
mod contained;
mod damaged;
mod encode;
mod file;
mod full_disk;
mod http;
mod nats;
mod otlp;
mod parquet;
mod pipeline;
mod select;
mod sending;
mod stdout;
mod tcp;
mod upload;
