//! file sink.

pub mod options;
