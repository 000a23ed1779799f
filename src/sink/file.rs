//! file sink.
