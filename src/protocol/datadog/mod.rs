//! Datadog-style binary spans.
