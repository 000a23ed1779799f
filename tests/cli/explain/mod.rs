//! `tributary decode --explain`: every byte is shown once with its meaning, and every loss at its offset. The recordings of
//! rbkit, endless and zico are tested in `formats.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed; the lint knows only test functions")]

mod command;
mod formats;
mod golden;
mod law;
mod recordings;
mod shown;
