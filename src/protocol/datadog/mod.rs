//! Datadog-style binary spans.

mod options;

pub use options::*;
