//! `tributary services` and `tributary traces`: what a running daemon knows of services.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use tributary_codec::terminal::shown;

use super::endpoint::EndpointArguments;
use super::{CommandLineError, OutputFormat, block_on, print, push_json, say, table};

/// List the services of a running daemon: rate, errors, durations
///
/// The sums are of every span of the last 15 minutes, not of a sample. A service counts its entries: requests that come from
/// elsewhere. With a name: its operations, and who calls it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary services
  tributary services shop
  tributary services --format json | jq '.services[] | select(.error_share > 0.01) | .name'")]
pub(super) struct Arguments {
    /// A service
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: OutputFormat,
}

/// List traces of a running daemon, the latest first
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary traces --service shop --slowest
  tributary traces --errors --limit 20
  tributary traces --format json | jq -r '.traces[].trace_id'")]
pub(super) struct TracesArguments {
    /// Only those with a span of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only those with a span that has failed
    #[arg(long)]
    errors: bool,
    /// The slowest first
    #[arg(long)]
    slowest: bool,
    /// The most traces
    #[arg(long, value_name = "NUMBER", default_value_t = 50)]
    limit: u64,
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Format
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: OutputFormat,
}

const HEADINGS: [&str; 7] = ["SERVICE", "PER SECOND", "ERRORS", "P50", "P95", "P99", "COUNT"];

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let path = match &arguments.name {
        None => "/api/v1/services".to_owned(),
        Some(name) => format!("/api/v1/services/{}", encoded(name)),
    };
    let answer = block_on(arguments.endpoint.endpoint()?.json(&path))??;
    let mut lines = Vec::new();
    match (arguments.format, &arguments.name) {
        (OutputFormat::Json, _) => push_json(&mut lines, &answer),
        (OutputFormat::Text, None) => {
            let services = list(&answer, "services");
            if services.is_empty() {
                say("the daemon has received no spans within the last 15 minutes");
            } else {
                table::push(
                    &mut lines,
                    &HEADINGS,
                    1,
                    &services.iter().map(|row| cells(text(row, "name"), row)).collect::<Vec<_>>(),
                );
            }
        }
        (OutputFormat::Text, Some(_)) => push_service(&mut lines, &answer),
    }
    print(&lines)
}

pub(super) fn run_traces(arguments: &TracesArguments) -> Result<(), CommandLineError> {
    let mut path = format!("/api/v1/traces?limit={}", arguments.limit);
    if let Some(service) = &arguments.service {
        let _ = write!(path, "&service={}", encoded(service));
    }
    path += if arguments.errors { "&status=error" } else { "" };
    path += if arguments.slowest { "&order=slowest" } else { "" };
    let answer = block_on(arguments.endpoint.endpoint()?.json(&path))??;
    let mut lines = Vec::new();
    match arguments.format {
        OutputFormat::Json => push_json(&mut lines, &answer),
        OutputFormat::Text if list(&answer, "traces").is_empty() => say("the daemon keeps no such traces now"),
        OutputFormat::Text => {
            let row = |trace: &Value| {
                let spans = trace["spans"].as_u64().unwrap_or(0).to_string();
                let state = if trace["is_complete"] == true { "complete" } else { "incomplete" };
                vec![
                    text(trace, "trace_id"),
                    text(trace, "service"),
                    text(trace, "name"),
                    state.to_owned(),
                    duration(&trace["duration_ns"]),
                    spans,
                    trace["errors"].as_u64().unwrap_or(0).to_string(),
                ]
            };
            let rows: Vec<_> = list(&answer, "traces").iter().map(row).collect();
            table::push(&mut lines, &["TRACE", "SERVICE", "NAME", "STATE", "DURATION", "SPANS", "ERRORS"], 4, &rows);
            if let Some(coverage) = answer["coverage"]["text"].as_str() {
                say(format_args!("from {}", shown(coverage)));
            }
        }
    }
    print(&lines)
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Operations, and the services on both sides.
fn push_service(lines: &mut Vec<u8>, answer: &Value) {
    let mut headings = HEADINGS;
    let mut part = |heading, rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            headings[0] = heading;
            if !lines.is_empty() {
                lines.push(b'\n');
            }
            table::push(lines, &headings, 1, &rows);
        }
    };
    let operation = |row: &Value| {
        let parts = [text(row, "kind"), text(row, "name"), text(row, "detail")];
        cells(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "), row)
    };
    part("ENTRIES", vec![cells(text(&answer["service"], "name"), &answer["service"])]);
    part("OPERATION", list(answer, "operations").iter().map(operation).collect());
    let side = |list_name, key| -> Vec<Vec<String>> {
        let name = |row: &Value| if row[key].is_null() { "(unknown)".to_owned() } else { text(row, key) };
        list(answer, list_name).iter().map(|row| cells(name(row), row)).collect()
    };
    part("CALLED BY", side("callers", "caller"));
    part("CALLS", side("callees", "callee"));
    let errors = list(answer, "errors").iter();
    let errors: Vec<_> = errors.map(|error| vec![text(error, "type"), error["count"].to_string()]).collect();
    if !errors.is_empty() {
        lines.push(b'\n');
        table::push(lines, &["ERROR", "COUNT"], 1, &errors);
    }
}

fn list<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn text(row: &Value, name: &str) -> String {
    shown(row[name].as_str().unwrap_or("")).into_owned()
}

fn cells(name: String, row: &Value) -> Vec<String> {
    let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
    vec![
        name,
        format!("{:.2}", number("per_second")),
        format!("{:.2} %", number("error_share") * 100.0),
        duration(&row["p50_ns"]),
        duration(&row["p95_ns"]),
        duration(&row["p99_ns"]),
        row["count"].to_string(),
    ]
}

/// Nanoseconds with three digits or so.
fn duration(nanos: &Value) -> String {
    let Some(nanos) = nanos.as_f64() else { return "-".to_owned() };
    let (value, unit) = match nanos {
        1e9.. => (nanos / 1e9, "s"),
        1e6.. => (nanos / 1e6, "ms"),
        1e3.. => (nanos / 1e3, "µs"),
        _ => (nanos, "ns"),
    };
    if value >= 100.0 || unit == "ns" { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_service_is_shown_with_its_operations_and_both_sides() {
        let row = |name: &str| {
            json!({ "name": name, "per_second": 12.345, "error_share": 0.0125, "p50_ns": 950, "p95_ns": 1_500_000,
                "p99_ns": 2.5e9, "count": 99, "kind": "server", "caller": null, "callee": "pay" })
        };
        let answer = json!({
            "service": row("shop"), "operations": [row("GET \u{1b}[31m")], "callers": [row("")], "callees": [row("")],
            "errors": [{ "type": "TimeoutError", "count": 3 }],
        });
        let mut lines = Vec::new();
        push_service(&mut lines, &answer);
        let shown = String::from_utf8(lines).unwrap();
        let first = "ENTRIES  PER SECOND  ERRORS     P50     P95    P99  COUNT\n\
                     shop          12.35  1.25 %  950 ns  1.5 ms  2.5 s     99\n\nOPERATION";
        assert!(shown.starts_with(first), "{shown}");
        assert!(shown.contains(r"server GET \u{1b}[31m") && shown.contains("(unknown)") && shown.contains("\npay "));
        assert!(shown.ends_with("ERROR         COUNT\nTimeoutError      3\n"), "{shown}");
    }
}
