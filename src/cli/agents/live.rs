//! The agents of a running daemon, and commands for them.

use hyper::Method;
use serde_json::Value;

use super::{shown, table};
use crate::cli::endpoint::EndpointArguments;
use crate::cli::{CommandLineError, OutputFormat, block_on, print, push_json, say};
use tributary_event::peer_address;

const HEADINGS: [&str; 8] = ["ID", "PROTOCOL", "NAME", "PEER", "STATE", "LAST SEEN", "EVENTS", "LOSSES"];
/// The first column with a number.
const FIRST_NUMBER: usize = 6;

/// Prints the agents that the daemon has seen.
pub(super) fn list(endpoint: &EndpointArguments, format: OutputFormat) -> Result<(), CommandLineError> {
    let answer = block_on(endpoint.endpoint()?.json("/agents"))??;
    let agents = answer.as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = Vec::new();
    match format {
        OutputFormat::Json => {
            agents.iter().for_each(|agent| push_json(&mut lines, agent));
        }
        OutputFormat::Text if agents.is_empty() => say("the daemon has seen no agents since it was started"),
        OutputFormat::Text => {
            let rows: Vec<Vec<String>> = agents.iter().map(row).collect();
            table::push(&mut lines, &HEADINGS, FIRST_NUMBER, &rows);
        }
    }
    print(&lines)
}

/// Sends a command to an agent, and prints what the daemon has answered.
pub(super) fn send_command(endpoint: &EndpointArguments, id: &str, command: &str) -> Result<(), CommandLineError> {
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_:".contains(&byte));
    if !is_plain(id) || !is_plain(command) {
        return Err(CommandLineError::Failed(
            "no such agent or command; `tributary agents` lists the agents".to_owned(),
        ));
    }
    let endpoint = endpoint.endpoint()?;
    let (status, body) = block_on(endpoint.ask(Method::POST, &format!("/agents/{id}/commands/{command}")))??;
    if !status.is_success() {
        return Err(endpoint.refused(status, &body));
    }
    say(format_args!("{id}: {command}: {}", String::from_utf8_lossy(&body).trim_end()));
    Ok(())
}

fn row(agent: &Value) -> Vec<String> {
    let text = |key: &str| match &agent[key] {
        Value::Null => "-".to_owned(),
        Value::String(text) => shown(text),
        value => value.to_string(),
    };
    let seen = agent["last_seen"].as_str().and_then(|time| time.get(.."2026-11-20T12:15:00".len()));
    let seen = seen.map_or_else(|| "-".to_owned(), |time| format!("{time}Z"));
    // An agent that is called by its address has it once.
    let peer = match agent["peer"].as_str().map(peer_address) {
        Some((address, port)) if agent["name"] == address => port.map_or("-".to_owned(), |port| format!(":{port}")),
        _ => text("peer"),
    };
    vec![text("id"), text("protocol"), text("name"), peer, state(agent), seen, text("events"), text("losses")]
}

/// What it does, as far as its protocol says.
fn state(agent: &Value) -> String {
    let is = |key: &str| agent[key].as_bool();
    let mut words: Vec<&str> = Vec::new();
    words.extend(agent["mode"].as_str());
    words.extend((is("memory_profile") == Some(true)).then_some("memory profile"));
    words.extend((is("cpu_profile") == Some(true)).then_some("CPU profile"));
    words.extend((is("healthy") == Some(false)).then_some("unhealthy"));
    words.extend((is("reachable") == Some(false)).then_some("unreachable"));
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_says_what_the_protocol_knows() {
        let ruby = json!({
            "id": "ruby:0", "protocol": "rbkit", "peer": "127.0.0.1:5555", "name": "puma\u{1b}", "cpu_profile": true,
            "healthy": false, "reachable": true, "last_seen": "2026-11-20T12:15:00.123456Z", "events": 3, "losses": 0,
        });
        let expected = [
            "ruby:0",
            "rbkit",
            "\"puma\\u{1b}\"",
            "127.0.0.1:5555",
            "CPU profile, unhealthy",
            "2026-11-20T12:15:00Z",
            "3",
            "0",
        ];
        assert_eq!(row(&ruby), expected);
        let java = json!({ "id": "java:1", "protocol": "bytefrog", "mode": "tracing", "name": "java:1", "peer": null });
        assert_eq!(row(&java), ["java:1", "bytefrog", "java:1", "-", "tracing", "-", "-", "-"]);
        let span = json!({ "id": "a:1", "protocol": "datadog", "name": "192.0.2.7", "peer": "192.0.2.7:4711" });
        assert_eq!(row(&span)[2..4], ["192.0.2.7", ":4711"]);
    }
}
