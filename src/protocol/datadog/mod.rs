//! Datadog-style binary spans: big-endian structs over TCP or TLS, strings sent once and referred to by id.
//!
//! "Reading" and "rule" numbers in comments are those of the protocol notes, which `docs/protocols/datadog.md` retells
//! for operators: a *reading* settles what the specification leaves open, a *rule* is what a collector must do.

mod assembler;
mod explain;
mod normalize;
mod options;
mod record;
mod session;
mod strings;
mod traces;
mod waiting;
pub mod wire;

pub use explain::Explainer;
pub use options::*;
pub use session::DatadogSession;
