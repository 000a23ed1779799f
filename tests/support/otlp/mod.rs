//! Two oracles for the sink `otlp`, both with the structs of `opentelemetry-proto`: events mapped to records, and JSON lines
//! mapped to records; and requests decoded for a comparison.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "no test file uses all of it")]

pub(crate) mod lines;
pub(crate) mod mapping;
pub(crate) mod profiles;
pub(crate) mod records;

pub(crate) use mapping::{Requests, requests};
pub(crate) use records::{Decoded, records, sorted};
