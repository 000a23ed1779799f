//! tributary: a telemetry collector for agents whose own collectors are discontinued.
//!
//! This package is the program: commands, configuration, the server, the admin endpoint. Everything else is in packages below
//! `src/`, which are re-exported here under the names of their folders, for tests and benches. docs/architecture.md shows how they
//! depend on each other.
#![forbid(unsafe_code)]

pub mod admin;
pub mod cli;
pub mod commands;
pub mod config;
pub mod endless_store;
pub mod health;
#[cfg(not(feature = "archive"))]
#[doc(hidden)]
pub mod no_archive;
mod profile_files;
pub mod quarantine;
pub mod rbkit_store;
pub mod server;

pub use tributary_codec as codec;
pub use tributary_driver as driver;
pub use tributary_driver::{capture, decode};
pub use tributary_event as event;
pub use tributary_explain as explain;
pub use tributary_memory as memory;
pub use tributary_nats as nats;
pub use tributary_options as options;
pub use tributary_pipeline as pipeline;
pub use tributary_profile as profile;
pub use tributary_select as select;
pub use tributary_simulate as simulate;
pub use tributary_spool as spool;
pub use tributary_stored as stored;
pub use tributary_system::histogram;
pub use tributary_transport as transport;
pub use tributary_zico_store as zico_store;

/// The protocols.
pub mod protocol {
    pub use tributary_protocol::*;
    pub use {
        tributary_bytefrog as bytefrog, tributary_datadog as datadog, tributary_datadog_agent as datadog_agent,
        tributary_endless as endless, tributary_otlp as otlp, tributary_rbkit as rbkit, tributary_zico as zico,
    };
}

/// The sinks.
pub mod sink {
    #[cfg(not(feature = "archive"))]
    pub use crate::no_archive as parquet;
    pub use tributary_sink::*;
    #[cfg(feature = "archive")]
    pub use tributary_sink_parquet as parquet;
    pub use {
        tributary_sink_file as file, tributary_sink_http as http, tributary_sink_nats as nats,
        tributary_sink_otlp as otlp, tributary_sink_view as view,
    };
}
