//! The page, in a real Chromium, against a real daemon with simulated agents. Where Chromium is not installed, each test
//! prints a line that says so, and passes.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]
#![allow(clippy::print_stdout, reason = "tests print what they skip and what they measure")]

mod access;
mod browser;
mod commands;
mod connection;
mod hostile;
mod keys;
mod large;
mod layout;
mod modules;
mod traces;
mod views;
mod wire;
mod world;

use tributary_testing::{live, rbkit as rbkit_support};
