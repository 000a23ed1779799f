//! Agents, and the commands that they take.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::agents::{AgentEntry, CommandError, Sent, Status, all, attributes, send};
use super::super::response::{self, AdminResponse};
use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::events::{ShownEvent, newest};
use tributary_bytefrog as bytefrog;
use tributary_event::{AgentIdentity, EventView, Kind, Origin, Resource, ResourceValue, semconv};
use tributary_protocol::Protocol;
use tributary_rbkit as rbkit;
use tributary_sink_view::Class;
use tributary_system::wall_clock;

/// An agent that has sent no events for this time is silent.
const SILENT_MS: u64 = 60_000;
/// The last events of an agent that are shown.
const EVENTS: usize = 50;

#[derive(Debug, Serialize)]
struct ShownAgent {
    id: String,
    protocol: &'static str,
    listener: String,
    name: String,
    process: String,
    peer: Option<String>,
    since_ms: Option<u64>,
    last_seen_ms: Option<u64>,
    events: u64,
    losses: u64,
    events_per_second: f64,
    state: &'static str,
    state_text: String,
    is_healthy: bool,
    commands: Vec<&'static str>,
}

#[derive(Serialize)]
struct ShownCommand {
    name: &'static str,
    text: &'static str,
    is_possible: bool,
}

/// The agent with this id.
pub(super) fn find(context: &ApiContext, id: &str) -> Result<AgentEntry, ApiError> {
    all(&context.subject).into_iter().find(|agent| agent.id == id).ok_or_else(|| ApiError::gone("agent"))
}

fn shown(agent: &AgentEntry) -> ShownAgent {
    let entry = agent.entry.as_ref();
    let last_seen_ms = entry.map(|entry| entry.last_seen.0 / 1_000_000);
    let is_silent = last_seen_ms.is_none_or(|at| at + SILENT_MS < wall_clock::now().0 / 1_000_000);
    let (state, state_text, is_healthy) = match &agent.status {
        Status::Bytefrog(status) => {
            let parts = [
                status.mode.as_str(),
                if status.is_started { "started" } else { "not started" },
                if status.is_unhealthy { "heartbeats are late" } else { "healthy" },
                if status.has_control { "takes commands" } else { "not reachable" },
            ];
            (status.mode.as_str(), parts.join("; "), !status.is_unhealthy && status.has_control)
        }
        Status::Rbkit(status) => {
            let state = match status {
                status if !status.is_reachable => "unreachable",
                status if !status.is_healthy => "unhealthy",
                status if status.is_subscribed => "subscribed",
                _ => "connected",
            };
            let on = |profile: Option<bool>| match profile {
                Some(true) => "on",
                Some(false) => "off",
                None => "unknown",
            };
            let text = format!(
                "{state}; memory profile {}; CPU profile {}",
                on(status.memory_profile),
                on(status.cpu_profile)
            );
            (state, text, status.is_healthy && status.is_reachable)
        }
        Status::Other if is_silent => ("silent", "no event for a minute".to_owned(), true),
        Status::Other => ("active", "sends events".to_owned(), true),
    };
    ShownAgent {
        id: agent.id.clone(),
        protocol: agent.protocol.as_str(),
        listener: agent.listener.clone(),
        name: agent.name().into_text(),
        process: agent.facts().process(),
        peer: agent.peer(),
        since_ms: entry.map(|entry| entry.since.0 / 1_000_000),
        last_seen_ms,
        events: entry.map_or(0, |entry| entry.events),
        losses: entry.map_or(0, |entry| entry.losses),
        events_per_second: entry.map_or(0.0, |entry| entry.recent.per_second(wall_clock::now())),
        state,
        state_text,
        is_healthy,
        commands: commands(agent)
            .into_iter()
            .filter(|command| command.is_possible)
            .map(|command| command.name)
            .collect(),
    }
}

fn commands(agent: &AgentEntry) -> Vec<ShownCommand> {
    match &agent.status {
        Status::Bytefrog(status) => bytefrog::BytefrogCommand::ALL.map(|command| of_program(command, status)).into(),
        Status::Rbkit(status) => rbkit::RbkitCommand::ALL.map(|command| of_process(command, status)).into(),
        Status::Other => Vec::new(),
    }
}

fn of_program(command: bytefrog::BytefrogCommand, status: &bytefrog::AgentStatus) -> ShownCommand {
    use bytefrog::{BytefrogCommand, Mode};
    let (text, fits) = match command {
        BytefrogCommand::Start => ("The program begins to run, and is traced.", !status.is_started),
        BytefrogCommand::Stop => ("Tracing ends for good; the program continues.", status.is_started),
        BytefrogCommand::Pause => {
            ("The program stops at its next traced call, until it is unpaused.", status.mode == Mode::Tracing)
        }
        BytefrogCommand::Unpause => ("The program continues.", status.mode == Mode::Paused),
        BytefrogCommand::Suspend => {
            ("The agent drops its events; the program continues.", status.mode == Mode::Tracing)
        }
        BytefrogCommand::Unsuspend => ("The agent sends its events again.", status.mode == Mode::Suspended),
    };
    ShownCommand { name: command.as_str(), text, is_possible: fits && status.has_control }
}

fn of_process(command: rbkit::RbkitCommand, status: &rbkit::AgentStatus) -> ShownCommand {
    use rbkit::RbkitCommand;
    let (text, fits) = match command {
        RbkitCommand::Handshake => ("Asks the process which profiles are on.", true),
        RbkitCommand::StartMemoryProfile => (
            "Each created and destroyed object is sent; the program becomes slower.",
            status.memory_profile != Some(true),
        ),
        RbkitCommand::StopMemoryProfile => ("Objects are not sent any more.", status.memory_profile != Some(false)),
        RbkitCommand::StartCpuProfiling => ("A stack is sent every millisecond.", status.cpu_profile != Some(true)),
        RbkitCommand::StopCpuProfiling => ("Stacks are not sent any more.", status.cpu_profile != Some(false)),
        RbkitCommand::UseCpuTime => ("The CPU profile counts the time for which the process runs.", true),
        RbkitCommand::UseWallTime => ("The CPU profile counts all time, also while the process waits.", true),
        RbkitCommand::TriggerGc => ("Collects garbage; the program stops meanwhile.", true),
        RbkitCommand::ObjectspaceSnapshot => ("Sends every object of the heap; the program stops meanwhile.", true),
    };
    ShownCommand { name: command.as_str(), text, is_possible: fits && status.is_reachable }
}

#[derive(Serialize)]
struct AgentList {
    agents: Vec<ShownAgent>,
    total: usize,
}

/// `GET /agents`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["protocol", "text"])?;
    let protocol = context.query.text("protocol");
    let text = context.query.text("text").map(str::to_lowercase);
    let is_wanted = |agent: &ShownAgent| {
        let texts = [&agent.id, &agent.name, &agent.process, &agent.state_text];
        let mut texts = texts.into_iter().chain(&agent.peer);
        protocol.is_none_or(|protocol| protocol == agent.protocol)
            && text.as_ref().is_none_or(|text| texts.any(|shown| shown.to_lowercase().contains(text)))
    };
    // Each is dropped as soon as it is shown.
    let agents: Vec<ShownAgent> =
        all(&context.subject).into_iter().map(|agent| shown(&agent)).filter(is_wanted).collect();
    let total = agents.len();
    context.json(&AgentList { agents, total })
}

#[derive(Serialize)]
struct AgentDetails {
    window: Window,
    coverage: Coverage,
    agent: Value,
    commands: Vec<ShownCommand>,
    events: Vec<ShownEvent>,
}

/// `GET /agents/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let known = find(context, id)?;
    let window = Window::whole(context)?;
    let snapshot = snapshot(context, window, &Class::ALL, |_, listener| listener == known.listener)?;
    let mut matcher = Matcher::new(&known);
    let (events, _) = newest(context, &snapshot, EVENTS, |event, _| matcher.is_of(event))?;
    let is_its = |name: &str, _: Protocol| name == known.listener;
    let coverage = Coverage::of(context, window, &Kind::ALL, is_its, kept(&snapshot));
    let mut agent = serde_json::to_value(shown(&known)).map_err(|_| ApiError::failed())?;
    agent["resource"] = attributes(known.entry.as_ref().map(|entry| &entry.resource[..]).unwrap_or_default());
    agent["details"] = match &known.status {
        Status::Bytefrog(status) => json!({
            "run": status.run, "version": status.version, "project": status.project, "mode": status.mode.as_str(),
            "started": status.is_started, "healthy": !status.is_unhealthy, "reachable": status.has_control,
        }),
        Status::Rbkit(status) => json!({
            "publish": status.publish, "request": status.request, "pid": status.pid,
            "memory_profile": status.memory_profile, "cpu_profile": status.cpu_profile,
            "subscribed": status.is_subscribed, "healthy": status.is_healthy, "reachable": status.is_reachable,
        }),
        Status::Other => json!({}),
    };
    context.json(&AgentDetails { window, coverage, agent, commands: commands(&known), events })
}

/// `POST /agents/ID/commands/COMMAND`.
pub(super) async fn command(context: &ApiContext, id: &str, command: &str) -> Result<AdminResponse, ApiError> {
    context.query.only(&[])?;
    let (status, word, text) = match send(&context.subject, id, command).await {
        Ok(Sent::Sent) => (StatusCode::ACCEPTED, "sent", "sent: the agent acts on it when it reads it"),
        Ok(Sent::Received) => (StatusCode::OK, "received", "received: the agent has confirmed that it has the command"),
        Err(CommandError { status, line }) => return Err(ApiError::new(status, line)),
    };
    Ok(response::json(status, &json!({ "status": word, "text": text })))
}

/// Finds the events of an agent.
pub(super) struct Matcher<'a> {
    agent: &'a AgentEntry,
    /// The last connection and resource, and whether they are those of the agent.
    last: Option<(Arc<Origin>, Arc<Resource>, bool)>,
}

impl<'a> Matcher<'a> {
    pub(super) fn new(agent: &'a AgentEntry) -> Self {
        Matcher { agent, last: None }
    }

    /// Whether it is an event of the agent.
    pub(super) fn is_of(&mut self, event: EventView<'_>) -> bool {
        let (origin, resource) = (event.origin(), event.resource());
        if let Some((known_origin, known_resource, is_its)) = &self.last
            && Arc::ptr_eq(known_origin, origin)
            && Arc::ptr_eq(known_resource, resource)
        {
            return *is_its;
        }
        let is_its = self.fits(origin, resource.agent());
        self.last = Some((origin.clone(), resource.clone(), is_its));
        is_its
    }

    fn fits(&self, origin: &Origin, resource: &Resource) -> bool {
        let number = |name: &str| {
            resource.attributes().iter().find_map(|(key, value)| match value {
                ResourceValue::U64(number) if key == name => Some(*number),
                ResourceValue::I64(number) if key == name => u64::try_from(*number).ok(),
                _ => None,
            })
        };
        if *origin.listener != *self.agent.listener {
            return false;
        }
        match &self.agent.status {
            Status::Bytefrog(status) => number(semconv::BYTEFROG_RUN_ID.as_str()) == Some(u64::from(status.run)),
            Status::Rbkit(status) => {
                let addresses = [&status.publish, &status.request];
                addresses.into_iter().flatten().any(|address| origin.peer.contains(address.as_str()))
                    || (status.pid.is_some() && number(semconv::PROCESS_PID.as_str()) == status.pid)
            }
            Status::Other => {
                let fingerprint = self.agent.entry.as_ref().map(|entry| entry.fingerprint);
                fingerprint == Some(AgentIdentity::of(origin, resource).fingerprint())
            }
        }
    }
}
