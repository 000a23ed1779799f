//! What the log says of agents: when they connect and end, and what a stop does to their programs.

use tracing::{info, warn};

use tributary_memory::log_throttle::LogThrottle;

use super::normalize::RunEnd;
use super::run::Run;

/// Agents whose connection or end is logged in one minute; the others are counted. Every peer that reaches the port can open runs.
const LINES: u64 = 64;

/// The log of the agents of one listener.
#[derive(Debug)]
pub(super) struct AgentLog {
    connecting: LogThrottle,
    ending: LogThrottle,
}

impl AgentLog {
    pub(super) const fn new() -> Self {
        AgentLog { connecting: LogThrottle::of(LINES), ending: LogThrottle::of(LINES) }
    }

    /// An agent has sent its hello.
    pub(super) fn connected(&self, run: &Run) {
        if let Some(suppressed) = self.connecting.permit() {
            let (agent, id, version) = (run.address.map(tracing::field::display), run.id, run.version.number());
            let listener = run.listener();
            info!(listener, agent, run = id, version, project = run.project, suppressed, "a Java agent has connected");
        }
    }

    /// All connections of an agent have ended.
    pub(super) fn ended(&self, run: &Run, end: &RunEnd) {
        if let Some(suppressed) = self.ending.permit() {
            let (agent, id, version) = (run.address.map(tracing::field::display), run.id, run.version.number());
            let (listener, seconds) = (run.listener(), end.duration.as_secs());
            let RunEnd { events, gaps, outcome, .. } = *end;
            info!(
                listener,
                agent,
                run = id,
                version,
                outcome,
                events,
                gaps,
                seconds,
                suppressed,
                "a Java agent has ended"
            );
        }
    }
}

/// The collector stops, and waits for an agent.
pub(super) fn stopping(run: &Run) {
    let agent = run.address.map(tracing::field::display);
    info!(
        listener = run.listener(),
        agent,
        run = run.id,
        "a traced Java program is stopped; waiting until its agent has sent its events"
    );
}

/// An agent was stopped before it had sent all its events.
pub(super) fn events_left(run: &Run) {
    let (listener, agent, run_id) = (run.listener(), run.address.map(tracing::field::display), run.id);
    if run.agent.is_hurried() {
        warn!(
            listener,
            agent,
            run = run_id,
            "a second signal: a traced Java program was stopped before its agent had sent all its events; these are lost, and \
             the program continues"
        );
    } else {
        warn!(
            listener,
            agent,
            run = run_id,
            "a traced Java program was stopped before its agent had sent all its events: these are lost, and the program \
             continues; stop_wait gives it more time"
        );
    }
}

/// The collector ends before an agent has closed its connections.
pub(super) fn abandoned(run: &Run) {
    let (listener, agent, run_id) = (run.listener(), run.address.map(tracing::field::display), run.id);
    let (version, mode) = (run.version.number(), run.agent.mode().as_str());
    if run.agent.is_hurried() {
        warn!(
            listener,
            agent,
            run = run_id,
            version,
            mode,
            "a further signal ended the stop before the agent of a traced Java program had closed its connections: its events \
             are lost, its threads can block at their next traced call, and the program may not exit"
        );
    } else {
        warn!(
            listener,
            agent,
            run = run_id,
            version,
            mode,
            "the grace period is over before a traced Java program has sent its events: these are lost, its threads can \
             block at their next traced call, and the program may not exit; limits.shutdown_grace gives it more time"
        );
    }
}
