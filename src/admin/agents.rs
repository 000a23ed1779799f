//! `/agents`: the agents that can be told something, and telling them.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::protocol::{bytefrog, rbkit};

use super::{Answer, Subject, text};

/// Every agent of a listener that commands agents.
pub(super) fn list(subject: &Subject) -> Answer {
    let programs = subject.directory.headquarters().into_iter().flat_map(|(listener, headquarters)| {
        headquarters.agents().into_iter().map(move |agent| {
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
        })
    });
    let processes = subject.directory.processes().into_iter().flat_map(|(listener, processes)| {
        processes.agents().into_iter().enumerate().map(move |(number, agent)| {
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
        })
    });
    super::json(StatusCode::OK, &Value::Array(programs.chain(processes).collect()))
}

/// Tells an agent something. Refused, with the reason, where it would harm the program or nobody would hear it.
pub(super) async fn command(subject: &Subject, id: &str, command: &str) -> Answer {
    let unknown = || text(StatusCode::NOT_FOUND, "no such agent; GET /agents lists their ids");
    let Some((listener, number)) = id.rsplit_once(':') else { return unknown() };
    if let Some(headquarters) = subject.directory.bytefrog(listener) {
        let known = bytefrog::Command::ALL.into_iter().find(|known| known.as_str() == command);
        let Some(known) = known else { return no_command(bytefrog::Command::ALL.map(bytefrog::Command::as_str)) };
        let Ok(run) = number.parse() else { return unknown() };
        return match headquarters.command(run, known) {
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
            Err(rbkit::Refusal::NotAnswered) => text(StatusCode::GATEWAY_TIMEOUT, "the process has not answered"),
            Err(refusal) => text(StatusCode::CONFLICT, &refusal.to_string()),
        };
    }
    unknown()
}

fn no_command<const N: usize>(commands: [&str; N]) -> Answer {
    text(StatusCode::NOT_FOUND, &format!("no such command; it takes {}", commands.join(", ")))
}
