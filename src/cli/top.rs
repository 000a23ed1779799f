//! `tributary top`: a live table of the listeners, sinks and agents of a running daemon.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use tributary_codec::terminal::shown;

use super::endpoint::{Endpoint, EndpointArguments};
use super::{CommandLineError, block_on, duration, printed, table};

/// Clears the screen and moves the cursor to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Show the listeners, sinks and agents of a running daemon, again and again
///
/// On a terminal the table replaces the one before; elsewhere tables follow each other. Rates are of the last seconds, agents with the
/// highest rates come first. Ctrl-C ends it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary top
  tributary top --interval 10s --agents 50
  tributary top --once")]
pub(super) struct Arguments {
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Time between two tables
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    interval: Duration,
    /// The most agents
    #[arg(long, value_name = "NUMBER", default_value_t = 15)]
    agents: usize,
    /// Show one table and end
    #[arg(long)]
    once: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    block_on(follow(&arguments.endpoint.endpoint()?, arguments))?
}

async fn follow(endpoint: &Endpoint, arguments: &Arguments) -> Result<(), CommandLineError> {
    let mut stdout = io::stdout();
    let replaces = stdout.is_terminal() && !arguments.once;
    loop {
        let overview = endpoint.json("/api/v1/overview").await?;
        let agents = endpoint.json("/api/v1/agents").await?;
        let mut lines = if replaces { CLEAR.as_bytes().to_vec() } else { Vec::new() };
        push_tables(&mut lines, &overview, &agents, arguments.agents);
        if !replaces && !arguments.once {
            lines.push(b'\n');
        }
        if let Err(error) = stdout.write_all(&lines).and_then(|()| stdout.flush()) {
            return printed(Err(error));
        }
        if arguments.once {
            return Ok(());
        }
        sleep(arguments.interval).await;
    }
}

fn push_tables(lines: &mut Vec<u8>, overview: &Value, agents: &Value, most_agents: usize) {
    let resident = overview["memory"]["resident"].as_f64().unwrap_or(0.0) / f64::from(1 << 20);
    let state = format!(
        "tributary {}, pid {}, up {}, {}: {resident:.0} MiB of {:.0} MiB, {:.1} CPU seconds\n",
        text(overview, "version"),
        overview["pid"],
        tributary_options::units::format_duration(Duration::from_secs(
            overview["uptime_ms"].as_u64().unwrap_or(0) / 1000
        )),
        text(&overview["ready"], "text"),
        overview["memory"]["limit"].as_f64().unwrap_or(0.0) / f64::from(1 << 20),
        overview["cpu_seconds"].as_f64().unwrap_or(0.0),
    );
    lines.extend_from_slice(state.as_bytes());
    let mut part = |headings: &[&str], first_number, rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            lines.push(b'\n');
            table::push(lines, headings, first_number, &rows);
        }
    };
    let number = |row: &Value, name: &str| row[name].as_u64().unwrap_or(0).to_string();
    let rate = |row: &Value, name: &str| format!("{:.1}", row[name].as_f64().unwrap_or(0.0));
    let listener = |row: &Value| {
        let kibibytes = row["bytes_per_second"].as_f64().unwrap_or(0.0) / 1024.0;
        let mut cells = vec![text(row, "name"), text(row, "protocol"), rate(row, "events_per_second")];
        cells.push(format!("{kibibytes:.1}"));
        cells.extend(["events", "losses", "connections_open"].map(|name| number(row, name)));
        cells
    };
    let headings = ["LISTENER", "PROTOCOL", "EVENTS/S", "KIB/S", "EVENTS", "LOSSES", "CONNECTIONS"];
    part(&headings, 2, list(overview, "listeners").iter().map(listener).collect());
    let sink = |row: &Value| {
        let mut cells = vec![text(row, "name"), text(row, "type"), text(row, "state"), rate(row, "events_per_second")];
        cells.extend(["written", "failed", "shed", "queue_batches"].map(|name| number(row, name)));
        cells.push(number(&row["spool"], "events"));
        cells
    };
    let headings =
        ["SINK", "TYPE", "STATE", "EVENTS/S", "WRITTEN", "FAILED", "SHED", "QUEUED BATCHES", "SPOOLED EVENTS"];
    part(&headings, 3, list(overview, "sinks").iter().map(sink).collect());
    let mut agents: Vec<&Value> = list(agents, "agents").iter().collect();
    let by_rate = |row: &Value| row["events_per_second"].as_f64().unwrap_or(0.0);
    agents.sort_by(|a, b| by_rate(b).total_cmp(&by_rate(a)));
    let total = agents.len();
    agents.truncate(most_agents);
    let agent = |row: &&Value| {
        let mut cells = ["name", "protocol", "listener", "state"].map(|name| text(row, name)).to_vec();
        cells.push(rate(row, "events_per_second"));
        cells.extend(["events", "losses"].map(|name| number(row, name)));
        cells
    };
    let headings = ["AGENT", "PROTOCOL", "LISTENER", "STATE", "EVENTS/S", "EVENTS", "LOSSES"];
    part(&headings, 4, agents.iter().map(agent).collect());
    if total > most_agents {
        lines.extend_from_slice(format!("{} more agents\n", total - most_agents).as_bytes());
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(row: &Value, name: &str) -> String {
    shown(row[name].as_str().unwrap_or("")).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_busiest_agents_are_first_and_the_others_are_counted() {
        let overview = json!({
            "version": "0.1.0", "pid": 7, "uptime_ms": 65_000, "ready": { "text": "ready" }, "cpu_seconds": 1.25,
            "memory": { "resident": 48 << 20, "limit": 256 << 20 },
            "listeners": [{ "name": "spans", "protocol": "otlp", "events_per_second": 12.0, "bytes_per_second": 2048.0,
                "events": 99, "losses": 1, "connections_open": 3 }],
            "sinks": [{ "name": "out", "type": "file", "state": "ok", "events_per_second": 12.0, "written": 99,
                "failed": 0, "shed": 0, "queue_batches": 2, "spool": { "events": 5 } }],
        });
        let agent = |name: &str, rate: f64| {
            json!({ "name": name, "protocol": "otlp", "listener": "spans",
            "state": "active", "events_per_second": rate, "events": 9, "losses": 0 })
        };
        let agents = json!({ "agents": [agent("quiet", 0.1), agent("busy\u{1b}[2J", 9.0), agent("other", 1.0)] });
        let mut lines = Vec::new();
        push_tables(&mut lines, &overview, &agents, 2);
        let shown = String::from_utf8(lines).unwrap();
        assert!(
            shown.starts_with("tributary 0.1.0, pid 7, up 1m5s, ready: 48 MiB of 256 MiB, 1.2 CPU seconds\n"),
            "{shown}"
        );
        assert!(shown.contains("spans     otlp          12.0    2.0      99       1            3\n"), "{shown}");
        assert!(
            shown.contains("out   file  ok         12.0       99       0     0               2               5\n"),
            "{shown}"
        );
        let (busy, other) = (shown.find(r"busy\u{1b}[2J").unwrap(), shown.find("other").unwrap());
        assert!(busy < other && !shown.contains("quiet") && shown.ends_with("1 more agents\n"), "{shown}");
    }
}
