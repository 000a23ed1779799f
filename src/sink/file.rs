//! file sink.

mod options;

pub use options::{Compression, Fsync, Options};
