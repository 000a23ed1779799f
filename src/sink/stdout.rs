//! stdout sink.
