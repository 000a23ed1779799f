//! memory sink.
