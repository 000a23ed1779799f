//! The overview: rates of listeners and sinks, queued events, and whether the daemon is ready.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::history::{CounterSample, POINTS, STEP_MS, increments, now_ms, rate};
use crate::admin::metrics::{LISTENERS, ProcessUsage, SINKS, SinkReading};
use crate::admin::{LayoutListener, LayoutSink};
use tributary_pipeline::accounting::{ListenerTotals, SinkTotals};
use tributary_sink::UploadTotals;
use tributary_sink::{DestinationState, RemoteState};

#[derive(Serialize)]
struct Overview {
    version: &'static str,
    now_ms: u64,
    uptime_ms: u64,
    pid: u32,
    /// Another one after each start.
    instance: String,
    ready: Value,
    memory: Value,
    cpu_seconds: f64,
    view: Value,
    history: Value,
    listeners: Vec<ShownListener>,
    sinks: Vec<ShownSink>,
}

#[derive(Serialize)]
struct ShownListener {
    name: String,
    protocol: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(flatten)]
    counters: Map<String, Value>,
    bytes_per_second: f64,
    events_per_second: f64,
    history: Value,
}

#[derive(Serialize)]
struct ShownSink {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
    #[serde(flatten)]
    counters: Map<String, Value>,
    state: &'static str,
    state_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    spool: Option<Value>,
    takes: Vec<String>,
    events_per_second: f64,
    history: Value,
}

/// `GET /overview`.
pub(super) fn make(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let subject = &context.subject;
    let (totals, layout) = (subject.accounting.totals(), subject.layout.get());
    let samples = context.shared.history.with_present(&totals);
    let (remotes, files) = (subject.accounting.remotes(), subject.accounting.files());
    let remote = |name: &str| remotes.iter().find(|(of, ..)| of == name).map(|(_, state, _)| state);
    let uploads = |name: &str| files.iter().find(|(of, _)| of == name).and_then(|(_, files)| files.uploads.as_ref());
    // Listeners and sinks that a reload has removed have counters, and are not shown.
    let listeners = layout.listeners.iter().filter_map(|known| {
        let totals = totals.listeners.iter().find(|totals| totals.name == known.name)?;
        Some(listener(known, totals, &samples))
    });
    let sinks = totals.sinks.iter().filter_map(|totals| {
        let known = layout.sinks.iter().find(|known| known.name == totals.name);
        let is_added = !layout.sinks.iter().any(|known| known.name == totals.name) && totals.events > 0;
        (known.is_some() || is_added)
            .then(|| sink(known, totals, (remote(&totals.name), uploads(&totals.name)), &samples))
    });
    let not_ready = subject.health.not_ready();
    let process = ProcessUsage::read();
    let view = match &subject.view {
        None => json!({ "is_on": false }),
        Some(view) => {
            let numbers = view.numbers();
            json!({
                "is_on": true, "memory": view.options().memory, "used": numbers.memory_bytes, "seen": numbers.seen,
                "kept": numbers.kept, "skipped": numbers.skipped, "cpu_percent": view.options().cpu_percent,
                "window_ms": u64::try_from(view.options().window.as_millis()).unwrap_or(u64::MAX),
            })
        }
    };
    let now_ms = now_ms();
    let (uptime, start_ticks) = process.as_ref().map_or_else(Default::default, |of| (of.uptime, of.start_ticks));
    let overview = Overview {
        version: env!("CARGO_PKG_VERSION"),
        now_ms,
        uptime_ms: uptime.as_millis() as u64,
        pid: std::process::id(),
        instance: format!("{}-{start_ticks}", std::process::id()),
        ready: json!({
            "is_ready": not_ready.is_none(),
            "text": not_ready.unwrap_or_else(|| "ready".to_owned()),
            "notes": subject.health.notes(),
        }),
        memory: json!({
            "limit": layout.memory_limit, "reserved": layout.memory_reserved,
            "shared_used": subject.memory.used(), "shared_limit": subject.memory.limit(),
            "resident": process.as_ref().map(|process| process.resident_bytes),
        }),
        cpu_seconds: process.as_ref().map_or(0.0, |process| process.cpu_seconds),
        view,
        history: json!({
            "step_ms": STEP_MS, "points": POINTS, "from_ms": samples.first().map_or(now_ms, |sample| sample.at_ms),
        }),
        listeners: listeners.collect(),
        sinks: sinks.collect(),
    };
    context.json(&overview)
}

fn listener(known: &LayoutListener, totals: &ListenerTotals, samples: &[CounterSample]) -> ShownListener {
    let name = &totals.name;
    let events = |sample: &CounterSample| sample.listener(name).events.iter().sum::<u64>();
    let connections: Vec<u64> = samples.iter().skip(1).map(|sample| sample.listener(name).connections_open).collect();
    ShownListener {
        name: name.clone(),
        protocol: totals.protocol.as_str(),
        address: known.address.map(|address| address.to_string()),
        counters: LISTENERS.json(totals),
        bytes_per_second: rate(samples, |sample| sample.listener(name).bytes),
        events_per_second: rate(samples, events),
        history: json!({
            "bytes": increments(samples, |sample| sample.listener(name).bytes),
            "events": increments(samples, events),
            "losses": increments(samples, |sample| sample.listener(name).losses),
            "connections_open": connections,
        }),
    }
}

/// The state of a sink whose store takes no files.
fn outage(uploads: &UploadTotals) -> Option<(&'static str, String)> {
    let UploadTotals { store, waiting, fault, .. } = uploads;
    let fault = fault.as_ref().filter(|_| *store != DestinationState::Ready)?;
    Some((store.as_str(), format!("{waiting} files wait to be uploaded; last error: {fault}")))
}

fn sink(
    known: Option<&LayoutSink>,
    totals: &SinkTotals,
    (remote, uploads): (Option<&RemoteState>, Option<&UploadTotals>),
    samples: &[CounterSample],
) -> ShownSink {
    let name = &totals.name;
    let (state, state_text) = match (totals, remote) {
        (SinkTotals { is_dead: true, fault, .. }, _) => {
            let why = fault.as_ref().map_or_else(String::new, |fault| format!(": {fault}"));
            ("dead", format!("it has failed and is not started again{why}"))
        }
        (SinkTotals { is_closed: true, .. }, _) => ("closed", "its reader has closed it".to_owned()),
        (_, Some(remote)) if remote.destination == DestinationState::Refusing => ("refusing", remote.to_string()),
        (SinkTotals { is_retrying: true, .. }, Some(remote)) => ("retrying", remote.to_string()),
        (SinkTotals { is_retrying: true, fault, .. }, None) => {
            ("retrying", fault.clone().unwrap_or_else(|| "cannot write; buffering and retrying".to_owned()))
        }
        (SinkTotals { fault: Some(fault), .. }, _) => ("failing", fault.clone()),
        (SinkTotals { is_shedding: true, .. }, _) => ("shedding", "it is full and sheds events".to_owned()),
        (_, Some(remote)) if remote.fault.is_some() || remote.cannot_start.is_some() => ("away", remote.to_string()),
        _ => uploads.and_then(outage).unwrap_or_else(|| ("ok", "writes".to_owned())),
    };
    let millis = |remote: &RemoteState| {
        let since = remote.oldest?.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    let spool = remote.map(|remote| {
        json!({
            "is_on_disk": remote.is_spooled, "requests": remote.requests, "events": remote.events,
            "bytes": remote.bytes, "oldest_ms": millis(remote),
        })
    });
    let reading = SinkReading {
        totals: totals.clone(),
        kind: known.map(|known| known.kind),
        cannot_start: remote.is_some_and(|remote| remote.cannot_start.is_some()),
    };
    ShownSink {
        name: name.clone(),
        kind: known.map_or("other", |known| known.kind),
        text: known.map_or_else(String::new, |known| known.text.clone()),
        counters: SINKS.json(&reading),
        state,
        state_text,
        spool,
        takes: known.map_or_else(Vec::new, |known| known.takes.clone()),
        events_per_second: rate(samples, |sample| sample.sink(name).written),
        history: json!({
            "written": increments(samples, |sample| sample.sink(name).written),
            "failed": increments(samples, |sample| sample.sink(name).failed),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tributary_protocol::Protocol;

    use super::*;
    use crate::admin::metrics::tests;

    #[test]
    fn a_listener_and_a_sink_have_their_counters() {
        let known = LayoutListener { name: "spans".to_owned(), address: None };
        let listener = listener(&known, &tests::listener("spans", Protocol::Datadog), &[]);
        let remote = tests::remote(true, DestinationState::Ready);
        let sink = sink(None, &tests::sink("http"), (Some(&remote), None), &[]);
        let shown = serde_json::to_string_pretty(&json!([listener, sink])).unwrap();
        tests::compare("src/admin/metrics/golden.overview.json", |_| shown + "\n");
    }
}
