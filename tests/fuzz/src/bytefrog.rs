//! The law of Bytefrog runs, as the tests have it, and what it reads.

#[path = "../../support/bytefrog_law/law.rs"]
pub mod law;

use tributary::pipeline::accounting::ListenerTotals;

/// What is left of a run: its lines, and the counters of each connection.
#[derive(Debug)]
pub struct Finished {
    pub text: String,
    pub totals: Vec<ListenerTotals>,
}
