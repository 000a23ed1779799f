//! `/agents`: the recently seen agents, those that take commands, and the commands.

use hyper::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::commands::{BytefrogAgents, Processes};
use crate::event::{Name, ResourceValue, UnixNanos, semconv};
use crate::pipeline::Agent;
use crate::protocol::{bytefrog, rbkit};

use super::Subject;
use super::response::{self, AdminResponse, text};

/// Every recently seen agent and every agent that takes commands, by listener.
pub(super) fn list(subject: &Subject) -> AdminResponse {
    let agents = subject.accounting.listeners().into_iter().flat_map(|counters| {
        let (name, mut seen) = (counters.name(), counters.agents());
        let mut commanded = Vec::new();
        for agent in subject.directory.bytefrog(name).iter().flat_map(BytefrogAgents::agents) {
            let entry = take(&mut seen, semconv::BYTEFROG_RUN_ID, u64::from(agent.run));
            commanded.push(merge(program(name, &agent), entry));
        }
        for (number, agent) in subject.directory.rbkit(name).iter().flat_map(Processes::agents).enumerate() {
            let entry = agent.pid.and_then(|pid| take(&mut seen, semconv::PROCESS_PID, pid));
            commanded.push(merge(process(name, number, &agent), entry));
        }
        let other = |agent: &Agent| {
            let id = format!("{name}:{:08x}", fingerprint(agent));
            json!({ "id": id, "protocol": counters.protocol().as_str(), "listener": name })
        };
        let others = seen.into_iter().map(|agent| merge(other(&agent), Some(agent)));
        commanded.into_iter().chain(others).collect::<Vec<_>>()
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

fn process(listener: &str, number: usize, agent: &rbkit::AgentStatus) -> Value {
    json!({
        "id": format!("{listener}:{number}"),
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

/// A number by which an agent without a number of its own is known: of its address, without the port, and its resource. The
/// same after a restart.
fn fingerprint(agent: &Agent) -> u32 {
    let peer = &*agent.origin.peer;
    let address = peer.rsplit_once(':').map_or(peer, |(address, _)| address);
    crc32c::crc32c(format!("{address} {:?}", agent.resource).as_bytes())
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

/// Adds the registry entry of an agent to its other fields.
fn merge(mut known: Value, entry: Option<Agent>) -> Value {
    let (Some(agent), Some(fields)) = (entry, known.as_object_mut()) else { return known };
    let Agent { origin, resource, since, last_seen, events, losses } = agent;
    fields.entry("peer").or_insert_with(|| (*origin.peer).into());
    fields.insert("since".to_owned(), moment(since));
    fields.insert("last_seen".to_owned(), moment(last_seen));
    fields.insert("events".to_owned(), events.into());
    fields.insert("losses".to_owned(), losses.into());
    let resource = resource.into_iter().map(|(key, value)| {
        let value = match value {
            ResourceValue::Bool(value) => value.into(),
            ResourceValue::I64(value) => value.into(),
            ResourceValue::U64(value) => value.into(),
            ResourceValue::F64(value) => value.into(),
            ResourceValue::Text(text) => Value::String(text),
        };
        (key, value)
    });
    fields.insert("resource".to_owned(), Value::Object(resource.collect()));
    known
}

/// A time in RFC 3339.
fn moment(at: UnixNanos) -> Value {
    Timestamp::from_nanosecond(i128::from(at.0)).map_or(Value::Null, |time| time.to_string().into())
}

/// Sends a command to an agent. It is refused, with the reason, when it would harm the program or cannot be delivered.
pub(super) async fn command(subject: &Subject, id: &str, command: &str) -> AdminResponse {
    let unknown = || text(StatusCode::NOT_FOUND, "no such agent; GET /agents lists their ids");
    let Some((listener, number)) = id.rsplit_once(':') else { return unknown() };
    if let Some(agents) = subject.directory.bytefrog(listener) {
        let known = bytefrog::Command::ALL.into_iter().find(|known| known.as_str() == command);
        let Some(known) = known else { return no_command(bytefrog::Command::ALL.map(bytefrog::Command::as_str)) };
        let Ok(run) = number.parse() else { return unknown() };
        return match agents.command(run, known) {
            Ok(()) => text(StatusCode::ACCEPTED, "sent"),
            Err(bytefrog::Refusal::NoSuchRun) => unknown(),
            Err(refusal) => text(StatusCode::CONFLICT, &refusal.to_string()),
        };
    }
    if let Some(processes) = subject.directory.rbkit(listener) {
        let known = rbkit::Command::ALL.into_iter().find(|known| known.as_str() == command);
        let Some(known) = known else { return no_command(rbkit::Command::ALL.map(rbkit::Command::as_str)) };
        let number = number.parse().ok().filter(|number| *number < processes.agents().len());
        let Some(number) = number else { return unknown() };
        return match processes.command(number, known).await {
            Ok(()) => text(StatusCode::OK, "received"),
            Err(rbkit::Refusal::NotAnswered) => {
                text(StatusCode::GATEWAY_TIMEOUT, "the process did not reply in time (request_timeout)")
            }
            Err(refusal) => text(StatusCode::CONFLICT, &refusal.to_string()),
        };
    }
    unknown()
}

fn no_command<const N: usize>(commands: [&str; N]) -> AdminResponse {
    text(StatusCode::NOT_FOUND, &format!("no such command; the commands are {}", commands.join(", ")))
}
