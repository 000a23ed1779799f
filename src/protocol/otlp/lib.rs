//! What OpenTelemetry SDKs and Collectors send: OTLP 1.10 over HTTP and gRPC, as protobuf and JSON.
#![forbid(unsafe_code)]

mod answer;
mod check;
mod distribution;
mod exchange;
pub mod explain;
mod json;
mod listener;
mod log;
mod metric;
mod options;
mod profile;
mod profile_dictionary;
mod record;
mod record_places;
mod resource;
mod route;
mod schema;
mod span;
mod value;
mod work;
mod writer;

pub use exchange::OtlpExchange;
pub use options::Options;
pub use route::Signal;
pub use work::OtlpWork;
