//! `tributary decode --explain`: every byte shown once and named as it is, every loss at its place. The recordings of rbkit,
//! endless and zico are those of `explain_formats.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed; the lint knows only test functions")]

mod command;
mod formats;
mod golden;
mod law;
mod recordings;
mod shown;
