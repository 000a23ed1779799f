//! Commands of operators to connected agents and about quarantined requests, and the agents' status, while the daemon runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::quarantine::Quarantined;
use tributary_bytefrog::{AgentStatus, BytefrogCommand, BytefrogCommandError, Hq, Mode};
use tributary_rbkit as rbkit;
use tributary_transport::clock::Clock;

/// The agents of one `bytefrog` listener.
#[derive(Clone, Debug)]
pub struct BytefrogAgents {
    hq: Hq,
    clock: Clock,
}

impl BytefrogAgents {
    pub(crate) fn new(hq: Hq, clock: Clock) -> Self {
        BytefrogAgents { hq, clock }
    }

    /// The agents of all live runs, by run id.
    pub fn agents(&self) -> Vec<AgentStatus> {
        self.hq.agents()
    }

    /// Sends a command to the agent of a run.
    ///
    /// # Errors
    /// The command would harm the traced program in the agent's present state, or no agent would receive it; the refusal says
    /// which.
    pub fn command(&self, run: u8, command: BytefrogCommand) -> Result<(), BytefrogCommandError> {
        self.hq.command(run, command, self.clock.now().elapsed)
    }
}

/// The processes of one `rbkit` listener.
#[derive(Clone, Debug)]
pub struct Processes {
    agents: Vec<rbkit::RbkitAgent>,
}

impl Processes {
    pub(crate) fn new(agents: Vec<rbkit::RbkitAgent>) -> Self {
        Processes { agents }
    }

    /// The processes, in the order of the configuration.
    pub fn agents(&self) -> Vec<rbkit::AgentStatus> {
        self.agents.iter().map(rbkit::RbkitAgent::status).collect()
    }

    /// Sends a command to the process with this number in the configuration, from 0, and waits for the reply. The reply proves
    /// only that the command was received; after a command for a profile the status of the process shows its effect.
    ///
    /// # Errors
    /// There is no such process, it does not answer, or it does not know the command; the refusal says which.
    pub async fn command(&self, number: usize, command: rbkit::RbkitCommand) -> Result<(), rbkit::RbkitCommandError> {
        let agent = self.agents.get(number).ok_or(rbkit::RbkitCommandError::NotConnected)?;
        let (answer, answered) = oneshot::channel();
        // The caller may have stopped waiting.
        agent.command(
            command,
            Box::new(|result| {
                let _ = answer.send(result);
            }),
        );
        answered.await.unwrap_or(Err(rbkit::RbkitCommandError::NotAnswered))
    }
}

/// The agents of all listeners. A clone is the same directory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Arc<Mutex<Entries>>);

#[derive(Debug, Default)]
struct Entries {
    bytefrog: Vec<(String, BytefrogAgents)>,
    rbkit: Vec<(String, Processes)>,
    quarantines: Vec<(String, Arc<Quarantined>)>,
}

impl Directory {
    pub(crate) fn add_bytefrog(&self, listener: &str, agents: BytefrogAgents) {
        self.entries().bytefrog.push((listener.to_owned(), agents));
    }

    pub(crate) fn add_rbkit(&self, listener: &str, processes: Processes) {
        self.entries().rbkit.push((listener.to_owned(), processes));
    }

    pub(crate) fn add_quarantine(&self, listener: &str, quarantined: Arc<Quarantined>) {
        self.entries().quarantines.push((listener.to_owned(), quarantined));
    }

    /// The quarantines of listeners that serve, by their names.
    pub(crate) fn quarantines(&self) -> Vec<(String, Arc<Quarantined>)> {
        self.entries().quarantines.clone()
    }

    /// The daemon stops: no request is tried again, and nothing here can send events any more.
    pub(crate) fn close_quarantines(&self) {
        self.entries().quarantines.clear();
    }

    /// The number of programs whose `bytefrog` agent is connected and does not end by itself.
    pub(crate) fn traced_programs(&self) -> usize {
        let listeners = self.entries().bytefrog.clone();
        let is_traced = |agent: &AgentStatus| agent.has_control && agent.mode != Mode::ShuttingDown;
        listeners.iter().map(|(_, agents)| agents.agents().iter().filter(|agent| is_traced(agent)).count()).sum()
    }

    /// Removes a listener that has ended.
    pub(crate) fn remove(&self, listener: &str) {
        let mut entries = self.entries();
        entries.bytefrog.retain(|(name, _)| name != listener);
        entries.rbkit.retain(|(name, _)| name != listener);
        entries.quarantines.retain(|(name, _)| name != listener);
    }

    pub(crate) fn bytefrog(&self, listener: &str) -> Option<BytefrogAgents> {
        self.entries().bytefrog.iter().find(|(name, _)| name == listener).map(|(_, agents)| agents.clone())
    }

    pub(crate) fn rbkit(&self, listener: &str) -> Option<Processes> {
        self.entries().rbkit.iter().find(|(name, _)| name == listener).map(|(_, processes)| processes.clone())
    }

    /// The processes of every `rbkit` listener, by its name.
    pub(crate) fn processes(&self) -> Vec<(String, Processes)> {
        self.entries().rbkit.clone()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
