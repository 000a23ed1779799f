//! Two oracles for the sink `otlp`, both with the structs of `opentelemetry-proto`: events mapped to records, and JSON lines
//! mapped to records; and requests decoded for a comparison.

pub mod lines;
pub mod mapping;
mod points;
pub mod profiles;
pub mod records;

pub use mapping::{Requests, requests};
pub use records::{Decoded, records, sorted};
