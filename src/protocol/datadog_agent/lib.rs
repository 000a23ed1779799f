//! What released Datadog tracers send to "the agent" on port 8126: traces as MessagePack or JSON over HTTP.
//!
//! Sections and points in comments are those of the notes of what real clients send; rules of the contract are named as such.
#![forbid(unsafe_code)]

mod body;
mod cursor;
mod dogstatsd;
mod exchange;
pub mod explain;
mod facts;
mod json_body;
mod json_tags;
mod keys;
mod maps;
mod normalize;
mod options;
mod process;
mod profile;
mod profile_samples;
mod read_spans;
mod resources;
mod route;
mod seen_once;
mod semantics;
mod shared;
mod sketch;
mod span;
mod span_keys;
mod stats;
mod streaming;
mod structs;
mod table;
mod telemetry;
mod text_cache;
mod trace_ids;
mod trace_writer;
mod upload;
mod work;

pub use dogstatsd::DogStatsD;
pub use exchange::DatadogAgentExchange;
pub use options::{DogStatsDOptions, KeepProfiles, Options, ProfileMode, SampleRates, Semantics};
pub use profile::{KeepingFile, ProfileFiles};
pub use work::DatadogAgentWork;
