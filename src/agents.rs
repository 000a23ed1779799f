//! What can be asked of connected agents, and told them, while the daemon runs.

use crate::protocol::bytefrog::{AgentStatus, Command, Hq, Refusal};
use crate::transport::clock::Clock;

/// The agents of one `bytefrog` listener.
#[derive(Clone, Debug)]
pub struct Headquarters {
    hq: Hq,
    clock: Clock,
}

impl Headquarters {
    pub(crate) fn new(hq: Hq, clock: Clock) -> Self {
        Headquarters { hq, clock }
    }

    /// The agents of all live runs, by run id.
    pub fn agents(&self) -> Vec<AgentStatus> {
        self.hq.agents()
    }

    /// Sends a command to the agent of a run.
    ///
    /// # Errors
    /// It would harm the traced program in the agent's present state, or nobody would hear it; the refusal says which.
    pub fn command(&self, run: u8, command: Command) -> Result<(), Refusal> {
        self.hq.command(run, command, self.clock.now().elapsed)
    }
}
