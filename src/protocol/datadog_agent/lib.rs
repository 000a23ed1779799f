//! What released Datadog tracers send to "the agent" on port 8126: traces as MessagePack or JSON over HTTP.
//!
//! Sections and points in comments are those of the notes of what real clients send; rules of the contract are named as such.
#![forbid(unsafe_code)]

mod body;
mod cursor;
mod exchange;
pub mod explain;
mod facts;
mod json_body;
mod json_tags;
mod keys;
mod maps;
mod normalize;
mod options;
mod repeats;
mod resources;
mod route;
mod shared;
mod sketch;
mod span;
mod span_keys;
mod stats;
mod streaming;
mod structs;
mod table;
mod trace_ids;
mod work;

pub use exchange::DatadogAgentExchange;
pub use options::{Options, SampleRates};
pub use work::DatadogAgentWork;
