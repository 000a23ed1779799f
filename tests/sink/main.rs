//! Sinks, encoders and the pipeline in front of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/sink_file/mod.rs"]
mod sink_file_support;

mod contained;
mod encode;
mod file;
mod full_disk;
mod pipeline;
mod stdout;
mod tcp;
