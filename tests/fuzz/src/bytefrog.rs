//! The checks of Bytefrog runs, shared with the tests, and their input.

#[path = "../../support/bytefrog_law/law.rs"]
pub mod law;

use tributary::pipeline::accounting::ListenerTotals;

/// A finished run: its lines, and the counters of each connection.
#[derive(Debug)]
pub struct Finished {
    pub text: String,
    pub totals: Vec<ListenerTotals>,
}
