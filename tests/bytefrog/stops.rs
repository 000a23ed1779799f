//! How a daemon stops that traces Java programs. Agents have seconds for their end, so these tests have a program of their own: others
//! that need much of the processor do not run at the same time.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod hurry;
mod log;
mod shutdown;

use tributary_testing::{bytefrog as bytefrog_support, live};
