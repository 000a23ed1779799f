//! `/agents`: the recently seen agents, those that take commands, and the commands.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::commands::{BytefrogAgents, Processes};
use tributary_bytefrog as bytefrog;
use tributary_event::{
    AgentFacts, AgentIdentity, AgentName, EventView, Name, Origin, Resource, ResourceValue, UnixNanos, semconv,
};
use tributary_pipeline::Agent;
use tributary_protocol::Protocol;
use tributary_rbkit as rbkit;

use super::Subject;
use super::response::{self, AdminResponse, text};

/// An agent that was seen recently or takes commands.
#[derive(Debug)]
pub(super) struct AgentEntry {
    pub(super) id: String,
    pub(super) protocol: Protocol,
    pub(super) listener: String,
    pub(super) status: Status,
    /// What its events say of it.
    pub(super) entry: Option<Agent>,
}

/// The state of an agent that takes commands.
#[derive(Debug)]
pub(super) enum Status {
    Bytefrog(bytefrog::AgentStatus),
    Rbkit(rbkit::AgentStatus),
    /// Its protocol has no commands.
    Other,
}

impl AgentEntry {
    /// What is known for naming it: by its events, and by its connection.
    pub(super) fn facts(&self) -> AgentFacts<'_> {
        let mut facts = self.entry.as_ref().map(|entry| AgentFacts::of(&entry.resource)).unwrap_or_default();
        let service = self.entry.as_ref().and_then(|entry| entry.service.as_deref());
        facts.service = facts.service.filter(|service| !service.is_empty()).or(service);
        match &self.status {
            Status::Bytefrog(agent) => {
                facts.run = Some(u64::from(agent.run));
                facts.project = facts.project.or(agent.project.map(i64::from));
            }
            Status::Rbkit(agent) => {
                facts.pid = agent.pid.or(facts.pid);
                facts.program = facts.program.or(agent.process.as_deref());
            }
            Status::Other => {}
        }
        facts
    }

    /// The address of its peer.
    pub(super) fn peer(&self) -> Option<String> {
        let connected = || match &self.status {
            Status::Bytefrog(agent) => agent.address.map(|address| address.to_string()),
            Status::Rbkit(agent) => agent.publish.clone().or(agent.request.clone()),
            Status::Other => None,
        };
        self.entry.as_ref().map(|entry| entry.origin.peer.to_string()).or_else(connected)
    }

    /// What it is called.
    pub(super) fn name(&self) -> AgentName {
        self.facts().name(self.protocol.as_str(), &self.listener, self.peer().as_deref().unwrap_or_default())
    }
}

/// Names agents by their events, as the list of agents names them.
#[derive(Debug)]
pub(super) struct Names {
    /// By the listener and the fingerprint.
    known: HashMap<(String, u32), String>,
    /// The last connection and resource, and the name of their agent.
    last: Option<(Arc<Origin>, Arc<Resource>, String)>,
}

impl Names {
    /// The names of all recently seen agents.
    pub(super) fn of(subject: &Subject) -> Names {
        let named = |known: AgentEntry| {
            let fingerprint = known.entry.as_ref()?.fingerprint;
            let name = known.name().into_text();
            Some(((known.listener, fingerprint), name))
        };
        Names { known: all(subject).into_iter().filter_map(named).collect(), last: None }
    }

    /// What the agent of an event is called.
    pub(super) fn name(&mut self, event: EventView<'_>) -> &str {
        let (origin, resource) = (event.origin(), event.resource());
        let is_last = |(of, known, _): &&(Arc<Origin>, Arc<Resource>, String)| {
            Arc::ptr_eq(of, origin) && Arc::ptr_eq(known, resource)
        };
        if self.last.as_ref().filter(is_last).is_none() {
            let agent = resource.agent();
            let own = AgentFacts::of(agent.attributes()).name(origin.protocol, &origin.listener, &origin.peer);
            let name = match own {
                AgentName::Own(name) => name,
                AgentName::Address(address) => {
                    let key = (origin.listener.to_string(), AgentIdentity::of(origin, agent).fingerprint());
                    self.known.get(&key).cloned().unwrap_or(address)
                }
            };
            self.last = Some((origin.clone(), resource.clone(), name));
        }
        self.last.as_ref().map_or("", |(_, _, name)| name)
    }
}

/// Every recently seen agent and every agent that takes commands, by listener.
pub(super) fn all(subject: &Subject) -> Vec<AgentEntry> {
    let mut all = Vec::new();
    for counters in subject.accounting.listeners() {
        let (name, protocol, mut seen) = (counters.name(), counters.protocol(), counters.agents());
        let known = |id: String, status, entry| AgentEntry { id, protocol, listener: name.to_owned(), status, entry };
        for agent in subject.directory.bytefrog(name).iter().flat_map(BytefrogAgents::agents) {
            let entry = take(&mut seen, semconv::BYTEFROG_RUN_ID, u64::from(agent.run));
            all.push(known(format!("{name}:{}", agent.run), Status::Bytefrog(agent), entry));
        }
        for (number, agent) in subject.directory.rbkit(name).iter().flat_map(Processes::agents).enumerate() {
            let entry = agent.pid.and_then(|pid| take(&mut seen, semconv::PROCESS_PID, pid));
            all.push(known(format!("{name}:{number}"), Status::Rbkit(agent), entry));
        }
        // A Java agent that has ended keeps its id until another one has its run. The one that was seen last is the first here.
        seen.sort_by_key(|agent| Reverse(agent.last_seen));
        let mut taken: HashSet<String> = all.iter().map(|known| known.id.clone()).collect();
        let mut others = Vec::new();
        for agent in seen {
            let of_run = run_of(&agent).map(|run| format!("{name}:{run}"));
            let free = of_run.filter(|id| taken.insert(id.clone()));
            let id = free.unwrap_or_else(|| format!("{name}:{:08x}", agent.fingerprint));
            others.push(known(id, Status::Other, Some(agent)));
        }
        others.sort_by_key(|other: &AgentEntry| other.entry.as_ref().map(|entry| entry.since));
        all.append(&mut others);
    }
    all
}

/// All of them as JSON.
pub(super) fn list(subject: &Subject) -> AdminResponse {
    let agents = all(subject).into_iter().map(|known| {
        let name = known.name().into_text();
        let AgentEntry { id, protocol, listener, status, entry } = known;
        let fields = match &status {
            Status::Bytefrog(agent) => program(&listener, agent),
            Status::Rbkit(agent) => process(&listener, &id, agent),
            Status::Other => json!({ "id": id, "protocol": protocol.as_str(), "listener": listener }),
        };
        merge(fields, &name, entry)
    });
    response::json(StatusCode::OK, &Value::Array(agents.collect()))
}

fn program(listener: &str, agent: &bytefrog::AgentStatus) -> Value {
    json!({
        "id": format!("{listener}:{}", agent.run),
        "protocol": "bytefrog",
        "listener": listener,
        "run": agent.run,
        "version": agent.version,
        "project": agent.project,
        "peer": agent.address.map(|address| address.to_string()),
        "mode": agent.mode.as_str(),
        "started": agent.is_started,
        "healthy": !agent.is_unhealthy,
        "reachable": agent.has_control,
    })
}

fn process(listener: &str, id: &str, agent: &rbkit::AgentStatus) -> Value {
    json!({
        "id": id,
        "protocol": "rbkit",
        "listener": listener,
        "publish": agent.publish,
        "request": agent.request,
        "pid": agent.pid,
        "process": agent.process,
        "memory_profile": agent.memory_profile,
        "cpu_profile": agent.cpu_profile,
        "subscribed": agent.is_subscribed,
        "healthy": agent.is_healthy,
        "reachable": agent.is_reachable,
    })
}

/// The run of a Java agent.
fn run_of(agent: &Agent) -> Option<u64> {
    agent.resource.iter().find_map(|(key, value)| match value {
        ResourceValue::U64(run) if key == semconv::BYTEFROG_RUN_ID.as_str() => Some(*run),
        _ => None,
    })
}

/// Removes the agent that was seen last of those with this attribute.
fn take(seen: &mut Vec<Agent>, name: Name, number: u64) -> Option<Agent> {
    let has_number = |agent: &Agent| {
        agent.resource.iter().any(|(key, value)| key == name.as_str() && *value == ResourceValue::U64(number))
    };
    let (index, _) =
        seen.iter().enumerate().filter(|(_, agent)| has_number(agent)).max_by_key(|(_, agent)| agent.last_seen)?;
    Some(seen.remove(index))
}

/// Adds the name and the registry entry of an agent to its other fields.
fn merge(mut known: Value, name: &str, entry: Option<Agent>) -> Value {
    known["name"] = name.into();
    let (Some(agent), Some(fields)) = (entry, known.as_object_mut()) else { return known };
    let Agent { origin, resource, since, last_seen, events, losses, .. } = agent;
    fields.entry("peer").or_insert_with(|| (*origin.peer).into());
    fields.insert("since".to_owned(), moment(since));
    fields.insert("last_seen".to_owned(), moment(last_seen));
    fields.insert("events".to_owned(), events.into());
    fields.insert("losses".to_owned(), losses.into());
    fields.insert("resource".to_owned(), attributes(&resource));
    known
}

/// The attributes of a resource as an object.
pub(super) fn attributes(resource: &[(String, ResourceValue)]) -> Value {
    let attribute = |(key, value): &(String, ResourceValue)| {
        let value = match value {
            ResourceValue::Bool(value) => (*value).into(),
            ResourceValue::I64(value) => (*value).into(),
            ResourceValue::U64(value) => (*value).into(),
            ResourceValue::F64(value) => (*value).into(),
            ResourceValue::Text(text) => Value::String(text.clone()),
        };
        (key.clone(), value)
    };
    Value::Object(resource.iter().map(attribute).collect())
}

/// A time in RFC 3339.
fn moment(at: UnixNanos) -> Value {
    Timestamp::from_nanosecond(i128::from(at.0)).map_or(Value::Null, |time| time.to_string().into())
}

/// Why a command was not sent, or had no effect.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) status: StatusCode,
    pub(super) line: String,
}

/// What became of a command that was not refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// It was sent; the agent does not answer commands.
    Sent,
    /// The agent has confirmed that it has it.
    Received,
}

/// Sends a command to an agent, and responds with what became of it.
pub(super) async fn command(subject: &Subject, id: &str, command: &str) -> AdminResponse {
    match send(subject, id, command).await {
        Ok(Sent::Sent) => text(StatusCode::ACCEPTED, "sent"),
        Ok(Sent::Received) => text(StatusCode::OK, "received"),
        Err(CommandError { status, line }) => text(status, &line),
    }
}

/// Sends a command to an agent.
///
/// # Errors
/// It is refused, with the reason, when it would harm the program or cannot be delivered.
pub(super) async fn send(subject: &Subject, id: &str, command: &str) -> Result<Sent, CommandError> {
    let error = |status, line: String| CommandError { status, line };
    let unknown = || error(StatusCode::NOT_FOUND, "no such agent; GET /agents lists their ids".to_owned());
    let (listener, number) = id.rsplit_once(':').ok_or_else(unknown)?;
    if let Some(agents) = subject.directory.bytefrog(listener) {
        let known = bytefrog::BytefrogCommand::ALL.into_iter().find(|known| known.as_str() == command);
        let known =
            known.ok_or_else(|| no_command(bytefrog::BytefrogCommand::ALL.map(bytefrog::BytefrogCommand::as_str)))?;
        let run = number.parse().map_err(|_| unknown())?;
        return match agents.command(run, known) {
            Ok(()) => Ok(Sent::Sent),
            Err(bytefrog::BytefrogCommandError::NoSuchRun) => Err(unknown()),
            Err(refusal) => Err(error(StatusCode::CONFLICT, refusal.to_string())),
        };
    }
    let processes = subject.directory.rbkit(listener).ok_or_else(unknown)?;
    let known = rbkit::RbkitCommand::ALL.into_iter().find(|known| known.as_str() == command);
    let known = known.ok_or_else(|| no_command(rbkit::RbkitCommand::ALL.map(rbkit::RbkitCommand::as_str)))?;
    let number = number.parse().ok().filter(|number| *number < processes.agents().len());
    match processes.command(number.ok_or_else(unknown)?, known).await {
        Ok(()) => Ok(Sent::Received),
        Err(rbkit::RbkitCommandError::NotAnswered) => {
            let line = "the process did not reply in time (request_timeout)".to_owned();
            Err(error(StatusCode::GATEWAY_TIMEOUT, line))
        }
        Err(refusal) => Err(error(StatusCode::CONFLICT, refusal.to_string())),
    }
}

fn no_command<const N: usize>(commands: [&str; N]) -> CommandError {
    let line = format!("no such command; the commands are {}", commands.join(", "));
    CommandError { status: StatusCode::NOT_FOUND, line }
}
