//! Sinks, encoders and the pipeline in front of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod compact;
mod contained;
mod damaged;
mod encode;
mod file;
mod full_disk;
mod http;
mod nats;
mod otlp;
mod packed;
mod parquet;
mod pipeline;
mod select;
mod sending;
mod stdout;
mod stored_lines;
mod tcp;
mod upload;

use tributary_testing::{
    bytefrog as bytefrog_support, endless as endless_support, forward_proxy, http_server, live, nats_server,
    otlp as otlp_support, rbkit as rbkit_support, sink_file as sink_file_support, tls as tls_support,
    zico as zico_support,
};
