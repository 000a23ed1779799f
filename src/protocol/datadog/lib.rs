//! Datadog-style binary spans: big-endian structs over TCP or TLS, strings sent once and referred to by id.
//!
//! Comments cite readings and rules by their numbers in `docs/protocols/datadog.md`: a *reading* decides a question that the
//! specification leaves open, a *rule* states what a collector must do.
#![forbid(unsafe_code)]

mod assembler;
mod explain;
mod normalize;
mod options;
mod record;
mod services;
mod session;
mod strings;
mod traces;
mod waiting;
pub mod wire;

pub use explain::Explainer;
pub use options::*;
pub use session::DatadogSession;
