//! `/metrics`: the counters and the process, in the text formats of Prometheus. No label has a value from a
//! peer, so the number of series depends on the configuration only.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::health::Reloads;
use tributary_event::{Kind, Reason};
use tributary_pipeline::accounting::{ListenerTotals, SinkTotals, StreamTotals, Totals};
use tributary_protocol::Protocol;
use tributary_select::Rule;
use tributary_sink::FileTotals;
use tributary_sink::{AckLevel, DestinationState, RemoteState};
use tributary_system::histogram::DurationTotals;
use tributary_system::wall_clock;

use super::Subject;
use super::exposition::Exposition;
use super::response::{AdminResponse, response, text};

/// The values of one scrape.
#[derive(Debug)]
struct Reading {
    totals: Totals,
    remotes: Vec<(String, RemoteState, DurationTotals)>,
    files: Vec<(String, FileTotals)>,
    /// The sinks of the configuration, with their types.
    sinks: Vec<(String, &'static str)>,
    reloads: Reloads,
    certificates: Vec<(String, i64)>,
    memory: (u64, u64),
    taps: u64,
    process: Option<ProcessUsage>,
}

/// Resource usage of this process.
#[derive(Debug)]
pub(super) struct ProcessUsage {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    /// In seconds since 1970.
    pub(super) started: f64,
    /// When it was started, in hundredths of a second since the start of the machine: the same in its whole life.
    pub(super) start_ticks: u64,
    pub(super) uptime: Duration,
    open_files: u64,
}

/// A name, its help, and its value.
type StreamCounter = (&'static str, &'static str, fn(&StreamTotals) -> u64);

/// Counters of listeners that receive from a stream.
const STREAM_COUNTERS: [StreamCounter; 3] = [
    (
        "tributary_redelivered_messages",
        "Messages that were delivered before, to this daemon or another one",
        |stream| stream.redelivered,
    ),
    ("tributary_redelivered_events", "Events of such messages", |stream| stream.redelivered_events),
    (
        "tributary_quarantined_messages",
        "Messages that could not be read or delivered, and are in the quarantine",
        |stream| stream.quarantined,
    ),
];

type Labels<const N: usize> = [(&'static str, String); N];

fn body(subject: &Subject) -> Result<String, fmt::Error> {
    let reading = Reading {
        totals: subject.accounting.totals(),
        remotes: subject.accounting.remotes(),
        files: subject.accounting.files(),
        sinks: subject.layout.get().sinks.iter().map(|sink| (sink.name.clone(), sink.kind)).collect(),
        reloads: subject.health.reloads(),
        certificates: subject.certificates.expiries(),
        memory: (subject.memory.used(), subject.memory.limit()),
        taps: subject.taps.count() as u64,
        process: ProcessUsage::read(),
    };
    open_metrics(reading)
}

fn open_metrics(reading: Reading) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(reading));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

pub(super) fn respond(subject: &Subject, exposition: Exposition) -> AdminResponse {
    match body(subject) {
        Ok(body) => response(StatusCode::OK, exposition.content_type(), exposition.of(body)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("cannot write the metrics: {error}")),
    }
}

impl Collector for Reading {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Totals { listeners, sinks } = &self.totals;
        let of = |listener: &ListenerTotals| -> Labels<2> {
            [("listener", listener.name.clone()), ("protocol", listener.protocol.as_str().to_owned())]
        };
        counters(
            &mut encoder,
            "tributary_received_bytes",
            "Bytes received, of HTTP bodies after decompression",
            listeners.iter().map(|one| (of(one), one.bytes_in)),
        )?;
        counters(
            &mut encoder,
            "tributary_decoded_bytes",
            "Bytes that were decoded to events or to the state of a protocol",
            listeners.iter().map(|one| (of(one), one.bytes_decoded)),
        )?;
        let lost = listeners.iter().flat_map(|one| {
            Reason::ALL.map(|reason| {
                let [listener, protocol] = of(one);
                ([listener, protocol, ("reason", reason.as_str().to_owned())], one.bytes_lost[reason.index()])
            })
        });
        counters(&mut encoder, "tributary_lost_bytes", "Bytes that could not be decoded, by reason", lost)?;
        let by_reason = |counts: fn(&ListenerTotals) -> [u64; Reason::ALL.len()]| {
            listeners.iter().flat_map(move |one| {
                Reason::ALL.map(|reason| {
                    let [listener, protocol] = of(one);
                    ([listener, protocol, ("reason", reason.as_str().to_owned())], counts(one)[reason.index()])
                })
            })
        };
        counters(&mut encoder, "tributary_losses", "Loss events, by reason", by_reason(|one| one.losses))?;
        counters(
            &mut encoder,
            "tributary_lost_events",
            "Events that are missing according to loss events, by reason",
            by_reason(|one| one.events_lost),
        )?;
        let events = listeners.iter().flat_map(|one| {
            Kind::ALL.map(|kind| {
                let [listener, protocol] = of(one);
                ([listener, protocol, ("kind", kind.as_str().to_owned())], one.count(kind))
            })
        });
        counters(&mut encoder, "tributary_events", "Events handed to the sinks", events)?;
        counters(
            &mut encoder,
            "tributary_accepted_connections",
            "Connections accepted or opened",
            listeners.iter().map(|one| (of(one), one.connections)),
        )?;
        counters(
            &mut encoder,
            "tributary_refused_connections",
            "Connections refused",
            listeners.iter().map(|one| (of(one), one.refused)),
        )?;
        let answering = || listeners.iter().filter(|one| one.protocol.acknowledges());
        let acknowledged = answering().flat_map(|one| {
            AckLevel::ALL.map(|level| {
                let labels = [("listener", one.name.clone()), ("level", level.as_str().to_owned())];
                (labels, one.acknowledged[level as usize])
            })
        });
        counters(
            &mut encoder,
            "tributary_acknowledged_requests",
            "Requests answered with a success, by the level that their events had reached at every sink",
            acknowledged,
        )?;
        let help = "Time from a complete request to its acknowledgement";
        let name = "tributary_acknowledgement_seconds";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for one in answering() {
            let times = &one.acknowledgement_times;
            let labels: Labels<1> = [("listener", one.name.clone())];
            let mut series = family.encode_family(&labels)?;
            series.encode_histogram::<NoLabelSet>(times.sum_seconds(), times.count(), &times.buckets(), None)?;
        }
        let responses = listeners.iter().flat_map(|one| {
            one.responses.iter().map(|(status, count)| {
                let [listener, protocol] = of(one);
                ([listener, protocol, ("status", status.to_string())], *count)
            })
        });
        counters(
            &mut encoder,
            "tributary_http_responses",
            "Responses to requests of agents over HTTP, by status",
            responses,
        )?;
        let warnings = listeners.iter().flat_map(|one| {
            one.warnings.iter().map(|(code, count)| {
                let [listener, protocol] = of(one);
                ([listener, protocol, ("code", (*code).to_owned())], *count)
            })
        });
        let streams = || listeners.iter().filter(|one| one.protocol == Protocol::Nats);
        let label = |one: &ListenerTotals| -> Labels<1> { [("listener", one.name.clone())] };
        for (name, help, count) in STREAM_COUNTERS {
            counters(&mut encoder, name, help, streams().map(|one| (label(one), count(&one.stream))))?;
        }
        gauges(
            &mut encoder,
            "tributary_stream_pending_messages",
            "Messages of the stream that were not delivered to a daemon yet, when the server was asked last",
            streams().map(|one| (label(one), one.stream.pending as i64)),
        )?;
        gauges(
            &mut encoder,
            "tributary_stream_unacknowledged_messages",
            "Messages that were delivered to a daemon and are not acknowledged, when the server was asked last",
            streams().map(|one| (label(one), one.stream.unacknowledged as i64)),
        )?;
        counters(&mut encoder, "tributary_warnings", "Unusual input that caused no loss", warnings)?;
        let recognizing = listeners.iter().filter(|one| one.protocol.recognizes_repeats());
        let repeats = recognizing.flat_map(|one| {
            ["local", "shared"].map(|known| {
                let [listener, protocol] = of(one);
                ([listener, protocol, ("known", known.to_owned())], one.repeats[usize::from(known == "shared")])
            })
        });
        counters(
            &mut encoder,
            "tributary_repeats",
            "Events left out because this daemon (local) or another one (shared) has delivered them before",
            repeats,
        )?;
        gauges(
            &mut encoder,
            "tributary_connections",
            "Open connections",
            listeners.iter().map(|one| (of(one), one.connections_open as i64)),
        )?;
        let unaccounted = |one: &ListenerTotals| i64::try_from(one.buffered()).unwrap_or(i64::MAX);
        gauges(
            &mut encoder,
            "tributary_buffered_bytes",
            "Bytes received, and neither decoded nor lost yet",
            listeners.iter().map(|one| (of(one), unaccounted(one))),
        )?;
        // A negative number was counted twice, and a positive one without open connections was not counted: both are bugs.
        let unaccounted = listeners.iter().map(|one| {
            let bytes = unaccounted(one);
            (of(one), if bytes < 0 || one.connections_open == 0 { bytes } else { 0 })
        });
        gauges(
            &mut encoder,
            "tributary_unaccounted_bytes",
            "Bytes that are missing in the counters: must be 0",
            unaccounted,
        )?;
        let outcomes = sinks.iter().flat_map(|sink| {
            let filtered = sink.filtered();
            [("written", sink.written), ("shed", sink.shed), ("failed", sink.failed), ("filtered", filtered)]
                .map(|(outcome, events)| ([("sink", sink.name.clone()), ("outcome", outcome.to_owned())], events))
        });
        counters(&mut encoder, "tributary_sink_events", "Events by sink and outcome", outcomes)?;
        let is_stream =
            |sink: &&SinkTotals| self.sinks.iter().any(|(name, kind)| *name == sink.name && *kind == "nats");
        let duplicates = sinks.iter().filter(is_stream).flat_map(|sink| {
            [("first", sink.duplicates), ("repeated", sink.uncertain_duplicates)]
                .map(|(attempt, events)| ([("sink", sink.name.clone()), ("attempt", attempt.to_owned())], events))
        });
        counters(
            &mut encoder,
            "tributary_duplicate_events",
            "Events written that the stream had before, by the attempt to send them",
            duplicates,
        )?;
        let filtered = sinks.iter().flat_map(|sink| {
            let of = |rule: &Rule| [("sink", sink.name.clone()), ("rule", rule.to_string())];
            sink.filtered.iter().map(move |(rule, events)| (of(rule), *events))
        });
        counters(
            &mut encoder,
            "tributary_filtered_events",
            "Events left out by the rules of a sink, by rule",
            filtered,
        )?;
        let in_flight = sinks
            .iter()
            .map(|sink| ([("sink", sink.name.clone())], i64::try_from(sink.in_flight()).unwrap_or(i64::MAX)));
        gauges(
            &mut encoder,
            "tributary_sink_events_in_flight",
            "Events that are queued for a sink or being written",
            in_flight,
        )?;
        let queues = |value: fn(&SinkTotals) -> u64| {
            let shown = move |sink: &SinkTotals| i64::try_from(value(sink)).unwrap_or(i64::MAX);
            sinks.iter().map(move |sink| ([("sink", sink.name.clone())], shown(sink)))
        };
        let help = "Batches in the queue of a sink, and those that it writes";
        gauges(&mut encoder, "tributary_sink_queue_batches", help, queues(|sink| sink.queue_batches))?;
        let help = "Memory of the batches in the queue of a sink, and of those that it writes";
        gauges(&mut encoder, "tributary_sink_queue_bytes", help, queues(|sink| sink.queue_bytes))?;
        let help = "Batches that the queue of a sink takes: buffer_batches";
        let capacity = queues(|sink| sink.queue_capacity.batches);
        gauges(&mut encoder, "tributary_sink_queue_capacity_batches", help, capacity)?;
        let help = "Bytes of batches that the queue of a sink takes: buffer_bytes";
        let capacity = queues(|sink| sink.queue_capacity.bytes);
        gauges(&mut encoder, "tributary_sink_queue_capacity_bytes", help, capacity)?;
        let cannot_start =
            |name: &str| self.remotes.iter().any(|(remote, state, _)| remote == name && state.cannot_start.is_some());
        let is_up =
            |sink: &SinkTotals| sink.fault.is_none() && !sink.is_retrying && !sink.is_dead && !cannot_start(&sink.name);
        let up = sinks.iter().map(|sink| ([("sink", sink.name.clone())], i64::from(is_up(sink))));
        gauges(
            &mut encoder,
            "tributary_sink_up",
            "Whether the last write of a sink to each destination has succeeded",
            up,
        )?;
        let shedding = sinks.iter().map(|sink| ([("sink", sink.name.clone())], i64::from(sink.is_shedding)));
        let help = "Whether a sink has shed events in the last 10 seconds";
        gauges(&mut encoder, "tributary_sink_shedding", help, shedding)?;
        let kinds = self.sinks.iter().map(|(name, kind)| ([("sink", name.clone()), ("type", (*kind).to_owned())], 1));
        gauges(&mut encoder, "tributary_sink_info", "The type of a sink", kinds)?;
        remotes(&mut encoder, &self.remotes, &self.files)?;
        files(&mut encoder, &self.files)?;
        reloads(&mut encoder, self.reloads)?;
        gauges(
            &mut encoder,
            "tributary_certificate_expiry_timestamp_seconds",
            "When the certificate of a section of the configuration expires, in seconds since 1970",
            self.certificates.iter().map(|(section, expires)| ([("section", section.clone())], *expires)),
        )?;
        gauge(&mut encoder, "tributary_taps", "Open taps", self.taps)?;
        gauge(
            &mut encoder,
            "tributary_memory_bytes",
            "Memory used by peers: connections, messages, and state that is kept for them",
            self.memory.0,
        )?;
        gauge(
            &mut encoder,
            "tributary_memory_limit_bytes",
            "Memory that peers can use: the rest of limits.memory_bytes",
            self.memory.1,
        )?;
        let version: Labels<1> = [("version", env!("CARGO_PKG_VERSION").to_owned())];
        gauges(&mut encoder, "tributary_build_info", "The version of the daemon", [(version, 1)])?;
        if let Some(process) = &self.process {
            let cpu = ConstCounter::new(process.cpu_seconds);
            let name = "process_cpu_seconds";
            cpu.encode(encoder.encode_descriptor(name, "Processor time, user and system", None, cpu.metric_type())?)?;
            gauge(&mut encoder, "process_resident_memory_bytes", "Resident memory", process.resident_bytes)?;
            gauge(&mut encoder, "process_open_fds", "Open file descriptors", process.open_files)?;
            let name = "process_start_time_seconds";
            let started = ConstGauge::new(process.started);
            let help = "When the process was started, in seconds since 1970";
            started.encode(encoder.encode_descriptor(name, help, None, started.metric_type())?)?;
        }
        Ok(())
    }
}

/// The sinks that send requests over a network.
fn remotes(
    encoder: &mut DescriptorEncoder<'_>,
    remotes: &[(String, RemoteState, DurationTotals)],
    files: &[(String, FileTotals)],
) -> Result<(), fmt::Error> {
    let of = |name: &str| -> Labels<1> { [("sink", name.to_owned())] };
    let all = |value: fn(&RemoteState) -> u64| remotes.iter().map(move |(name, state, _)| (of(name), value(state)));
    let spooled = |value: fn(&RemoteState) -> u64| {
        let spools = remotes.iter().filter(|(_, state, _)| state.is_spooled);
        spools.map(move |(name, state, _)| (of(name), i64::try_from(value(state)).unwrap_or(i64::MAX)))
    };
    gauges(encoder, "tributary_spool_events", "Events that wait in a spool", spooled(|state| state.events))?;
    gauges(encoder, "tributary_spool_requests", "Requests that wait in a spool", spooled(|state| state.requests))?;
    gauges(encoder, "tributary_spool_bytes", "The size of a spool on the disk", spooled(|state| state.bytes))?;
    let help = "For how long the oldest request of a spool has waited";
    let oldest = spooled(|state| state.age().map_or(0, |age| age.as_secs()));
    gauges(encoder, "tributary_spool_oldest_seconds", help, oldest)?;
    let stores = files.iter().filter_map(|(name, files)| Some((name, files.uploads.as_ref()?.store)));
    let destinations = remotes.iter().map(|(name, remote, _)| (name, remote.destination)).chain(stores);
    let states = destinations.flat_map(|(name, present)| {
        DestinationState::ALL.map(|state| {
            let labels: Labels<2> = [("sink", name.clone()), ("state", state.as_str().to_owned())];
            (labels, i64::from(present == state))
        })
    });
    let help = "Whether a destination is in this state: it takes what is sent, it is away, or it refuses everything";
    gauges(encoder, "tributary_destination_state", help, states)?;
    let help = "Attempts to send that failed and were repeated";
    counters(encoder, "tributary_retries", help, all(|state| state.retries))?;
    let help = "Requests that a destination has refused for good";
    counters(encoder, "tributary_refused_requests", help, all(|state| state.refused))?;
    let help = "Requests with the profiles of heap dumps that a destination has not taken";
    counters(encoder, "tributary_refused_heap_profiles", help, all(|state| state.refused_heap_profiles))?;
    let help = "Time of one attempt to send a request";
    let mut family = encoder.encode_descriptor("tributary_request_seconds", help, None, MetricType::Histogram)?;
    for (name, _, times) in remotes {
        let labels = of(name);
        let mut series = family.encode_family(&labels)?;
        series.encode_histogram::<NoLabelSet>(times.sum_seconds(), times.count(), &times.buckets(), None)?;
    }
    Ok(())
}

/// The sinks that write files.
fn files(encoder: &mut DescriptorEncoder<'_>, files: &[(String, FileTotals)]) -> Result<(), fmt::Error> {
    let all = |value: fn(&FileTotals) -> u64| {
        files.iter().map(move |(name, totals)| -> (Labels<1>, u64) { ([("sink", name.clone())], value(totals)) })
    };
    counters(encoder, "tributary_file_bytes", "Bytes written to files, before compression", all(|of| of.bytes))?;
    let help = "Events of messages that were delivered again and are in the files already";
    counters(encoder, "tributary_repeated_events", help, all(|of| of.repeats))?;
    let help =
        "Events of streams in the files of the listener others, because there are more listeners than max_listeners";
    counters(encoder, "tributary_other_listeners_events", help, all(|of| of.of_others))?;
    counters(encoder, "tributary_files_finished", "Files finished by size, time or date", all(|of| of.finished))?;
    let help = "Finished files removed, as keep_files, keep_bytes and keep_time say";
    counters(encoder, "tributary_files_removed", help, all(|of| of.removed))?;
    let help = "The size on the disk of the finished files removed";
    counters(encoder, "tributary_files_removed_bytes", help, all(|of| of.removed_bytes))?;
    let uploads = || files.iter().filter_map(|(name, totals)| Some((name, totals.uploads.as_ref()?)));
    let outcomes = uploads().flat_map(|(name, uploads)| {
        let outcomes = [("uploaded", uploads.uploaded), ("failed", uploads.failed), ("discarded", uploads.discarded)];
        outcomes.map(|(outcome, count)| ([("sink", name.clone()), ("outcome", outcome.to_owned())], count))
    });
    let help = "Finished files uploaded, attempts that failed, and files removed by limits before they were uploaded";
    counters(encoder, "tributary_uploads", help, outcomes)?;
    let of = |name: &String| [("sink", name.clone())];
    let sizes = uploads().map(|(name, uploads)| (of(name), uploads.uploaded_bytes));
    counters(encoder, "tributary_uploaded_bytes", "The size of the files uploaded", sizes)?;
    let waiting = uploads().map(|(name, uploads)| (of(name), uploads.waiting as i64));
    gauges(encoder, "tributary_upload_waiting_files", "Finished files that are not uploaded yet", waiting)?;
    let waiting = uploads().map(|(name, uploads)| (of(name), uploads.waiting_bytes as i64));
    gauges(encoder, "tributary_upload_waiting_bytes", "Their size", waiting)
}

/// The attempts to load another configuration.
fn reloads(encoder: &mut DescriptorEncoder<'_>, reloads: Reloads) -> Result<(), fmt::Error> {
    let counts = [("loaded", reloads.loaded), ("rejected", reloads.rejected)];
    let series = counts.map(|(outcome, count)| ([("outcome", outcome.to_owned())], count));
    counters(encoder, "tributary_config_reloads", "Attempts to load another configuration", series)?;
    let help = "Whether the last attempt to load another configuration succeeded";
    gauge(encoder, "tributary_config_last_reload_successful", help, u64::from(!reloads.is_last_rejected))?;
    let help = "When the running configuration was loaded, in seconds since 1970";
    gauge(encoder, "tributary_config_last_reload_success_timestamp_seconds", help, reloads.loaded_at)
}

fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (Labels<N>, u64)>,
) -> Result<(), fmt::Error> {
    let kind = ConstCounter::new(0u64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    series.into_iter().try_for_each(|(labels, value)| ConstCounter::new(value).encode(family.encode_family(&labels)?))
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn gauges<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (Labels<N>, i64)>,
) -> Result<(), fmt::Error> {
    let kind = ConstGauge::new(0i64).metric_type();
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    series.into_iter().try_for_each(|(labels, value)| ConstGauge::new(value).encode(family.encode_family(&labels)?))
}

/// When a process was started that has run for this long, in seconds since 1970: the same at every call, until the wall clock
/// steps.
fn started(uptime: Duration) -> f64 {
    static STARTED: Mutex<Option<f64>> = Mutex::new(None);
    let now = wall_clock::now().0 as f64 / 1e9 - uptime.as_secs_f64();
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    match *started {
        Some(known) if (known - now).abs() < 1.0 => known,
        _ => *started.insert(now),
    }
}

impl ProcessUsage {
    /// None: the system has no such file, or it has another format.
    pub(super) fn read() -> Option<ProcessUsage> {
        /// Clock ticks per second, and bytes of a page, on all supported Linux systems.
        const TICKS: f64 = 100.0;
        const PAGE_BYTES: u64 = 4096;
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        // The process name, in brackets, can have any characters.
        let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        let pages: u64 = fields.get(21)?.parse().ok()?;
        let start_ticks = fields.get(19)?.parse::<u64>().ok()?;
        let uptime = wall_clock::since_boot().saturating_sub(Duration::from_millis(start_ticks * 1000 / TICKS as u64));
        Some(ProcessUsage {
            cpu_seconds: ticks / TICKS,
            resident_bytes: pages * PAGE_BYTES,
            started: started(uptime),
            start_ticks,
            uptime,
            open_files: std::fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        })
    }
}

#[cfg(test)]
pub(super) mod tests;
