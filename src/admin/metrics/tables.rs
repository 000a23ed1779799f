//! Every counter of the daemon: a table for each kind of component. A row has two or three lines: what the metric is
//! called, and how it is read; rustfmt would give it six.

use std::collections::BTreeMap;

use tributary_event::{Kind, Reason};
use tributary_pipeline::accounting::{ListenerTotals, SinkTotals};
use tributary_protocol::Protocol;
use tributary_sink::{AckLevel, DestinationState, FileTotals, RemoteState, UploadTotals};
use tributary_system::histogram::DurationTotals;

use super::ProcessUsage;
use super::row::Key::{Labels, Number, Object};
use super::row::Value::{Each, One, Seconds};
use super::row::{Labelled, Row, Series, Table, api, counter, gauge, histogram, only, unexported};
use crate::health::Reloads;

/// A sink, as far as its own counters go.
#[derive(Clone, Debug)]
pub(in crate::admin) struct SinkReading {
    pub(in crate::admin) totals: SinkTotals,
    /// Its type, if it is in the configuration.
    pub(in crate::admin) kind: Option<&'static str>,
    /// Its spool or its TLS files cannot be opened.
    pub(in crate::admin) cannot_start: bool,
}

impl SinkReading {
    pub(super) fn new(totals: SinkTotals, types: &[(String, &'static str)], remotes: &[RemoteReading]) -> SinkReading {
        let kind = types.iter().find(|(name, _)| *name == totals.name).map(|(_, kind)| *kind);
        let cannot_start = remotes.iter().any(|(name, of, _)| *name == totals.name && of.cannot_start.is_some());
        SinkReading { totals, kind, cannot_start }
    }
}

/// A sink that sends requests: its state, and how long its attempts took.
pub(super) type RemoteReading = (String, RemoteState, DurationTotals);

/// What the whole daemon counts.
#[derive(Debug)]
pub(super) struct DaemonReading {
    pub(super) taps: u64,
    pub(super) memory_used: u64,
    pub(super) sums_seconds: f64,
    pub(super) memory_limit: u64,
}

#[rustfmt::skip]
pub(in crate::admin) const LISTENERS: Table<ListenerTotals> = Table {
    labels: &["listener", "protocol"],
    rows: &[
        api(&[Number("bytes")], counter("tributary_received_bytes",
            "Bytes received, of HTTP bodies after decompression",
            One(|of| of.bytes_in.into()))),
        counter("tributary_decoded_bytes", "Bytes that were decoded to events or to the state of a protocol",
            One(|of| of.bytes_decoded.into())),
        counter("tributary_ignored_bytes", "Bytes of requests that are answered and not kept, by endpoint",
            Each("endpoint", |of| of_map(&of.bytes_ignored))),
        api(&[Number("bytes_lost")], counter("tributary_lost_bytes", "Bytes that could not be decoded, by reason",
            Each("reason", |of| by_reason(of.bytes_lost)))),
        api(&[Number("losses")], counter("tributary_losses", "Loss events, by reason",
            Each("reason", |of| by_reason(of.losses)))),
        counter("tributary_lost_events", "Events that are missing according to loss events, by reason",
            Each("reason", |of| by_reason(of.events_lost))),
        unexported(&[Number("events_lost")], |of| of.missing().iter().map(|events| i128::from(*events)).sum()),
        api(&[Number("events"), Object("events_by_kind")], counter("tributary_events", "Events handed to the sinks",
            Each("kind", |of| series(Kind::ALL.map(|kind| (kind.as_str(), of.count(kind))))))),
        api(&[Number("connections")], counter("tributary_accepted_connections", "Connections accepted or opened",
            One(|of| of.connections.into()))),
        api(&[Number("refused")], counter("tributary_refused_connections", "Connections refused",
            One(|of| of.refused.into()))),
        of_requests(counter("tributary_acknowledged_requests",
            "Requests answered with a success, by the level that their events had reached at every sink",
            Each("level", |of| series(AckLevel::ALL.map(|level| (level.as_str(), of.acknowledged[level as usize])))))),
        of_requests(histogram("tributary_acknowledgement_seconds",
            "Time from a complete request to its acknowledgement",
            |of| of.acknowledgement_times)),
        counter("tributary_http_responses", "Responses to requests of agents over HTTP, by status",
            Each("status", |of| of_map(&of.responses))),
        of_streams(counter("tributary_redelivered_messages",
            "Messages that were delivered before, to this daemon or another one",
            One(|of| of.stream.redelivered.into()))),
        of_streams(counter("tributary_redelivered_events", "Events of such messages",
            One(|of| of.stream.redelivered_events.into()))),
        of_streams(counter("tributary_quarantined_messages",
            "Messages that could not be read or delivered, and are in the quarantine",
            One(|of| of.stream.quarantined.into()))),
        of_streams(gauge("tributary_stream_pending_messages",
            "Messages of the stream that were not delivered to a daemon yet, when the server was asked last",
            One(|of| of.stream.pending.into()))),
        of_streams(gauge("tributary_stream_unacknowledged_messages",
            "Messages that were delivered to a daemon and are not acknowledged, when the server was asked last",
            One(|of| of.stream.unacknowledged.into()))),
        api(&[Object("warnings")], counter("tributary_warnings", "Unusual input that caused no loss",
            Each("code", |of| of_map(&of.warnings)))),
        of_requests(counter("tributary_early_answers",
            "Requests answered before their events were delivered (answer_within)",
            One(|of| of.early_answers.into()))),
        only(|of| of.protocol == Protocol::DatadogAgent, &["listener"], counter("tributary_udp_dropped",
            "Datagrams that the kernel has dropped because they arrived faster than they could be read",
            One(|of| of.dropped_datagrams.into()))),
        only(|of| of.protocol.recognizes_repeats(), &["listener", "protocol"], counter("tributary_repeats",
            "Events left out because this daemon (local) or another one (shared) has delivered them before",
            Each("known", |of| series([("local", of.repeats[0]), ("shared", of.repeats[1])])))),
        api(&[Number("connections_open")], gauge("tributary_connections", "Open connections",
            One(|of| of.connections_open.into()))),
        gauge("tributary_buffered_bytes", "Bytes received, and neither decoded, ignored nor lost yet",
            One(ListenerTotals::buffered)),
        // A negative number was counted twice, and a positive one without open connections was not counted: both are bugs.
        gauge("tributary_unaccounted_bytes", "Bytes that are missing in the counters: must be 0",
            One(|of| if of.buffered() < 0 || of.connections_open == 0 { of.buffered() } else { 0 })),
    ],
};

#[rustfmt::skip]
pub(in crate::admin) const SINKS: Table<SinkReading> = Table {
    labels: &["sink"],
    rows: &[
        unexported(&[Number("events")], |of| of.totals.events.into()),
        api(&[Labels], counter("tributary_sink_events", "Events by sink and outcome",
            Each("outcome", |SinkReading { totals: of, .. }| series([
                ("written", of.written), ("shed", of.shed), ("failed", of.failed), ("filtered", of.filtered()),
            ])))),
        only(|of| of.kind == Some("nats"), &["sink"], counter("tributary_duplicate_events",
            "Events written that the stream had before, by the attempt to send them",
            Each("attempt", |SinkReading { totals: of, .. }| series([
                ("first", of.duplicates), ("repeated", of.uncertain_duplicates),
            ])))),
        counter("tributary_filtered_events", "Events left out by the rules of a sink, by rule",
            Each("rule", |of| of_map(&of.totals.filtered))),
        api(&[Number("in_flight")], gauge("tributary_sink_events_in_flight",
            "Events that are queued for a sink or being written",
            One(|of| of.totals.in_flight()))),
        api(&[Number("queue_batches")], gauge("tributary_sink_queue_batches",
            "Batches in the queue of a sink, and those that it writes",
            One(|of| of.totals.queue_batches.into()))),
        unexported(&[Number("waiting")], |of| of.totals.waiting.into()),
        unexported(&[Number("retries")], |of| of.totals.retries.into()),
        gauge("tributary_sink_queue_bytes", "Memory of the batches in the queue of a sink, and of those that it writes",
            One(|of| of.totals.queue_bytes.into())),
        gauge("tributary_sink_queue_capacity_batches", "Batches that the queue of a sink takes: buffer_batches",
            One(|of| of.totals.queue_capacity.batches.into())),
        gauge("tributary_sink_queue_capacity_bytes", "Bytes of batches that the queue of a sink takes: buffer_bytes",
            One(|of| of.totals.queue_capacity.bytes.into())),
        gauge("tributary_sink_up", "Whether the last write of a sink to each destination has succeeded",
            One(|SinkReading { totals: of, cannot_start, .. }| {
                (of.fault.is_none() && !of.is_retrying && !of.is_dead && !cannot_start).into()
            })),
        gauge("tributary_sink_shedding", "Whether a sink has shed events in the last 10 seconds",
            One(|of| of.totals.is_shedding.into())),
    ],
};

/// The sinks of the configuration, with their types.
#[rustfmt::skip]
pub(super) const SINK_TYPES: Table<(String, &'static str)> = Table {
    labels: &["sink"],
    rows: &[
        gauge("tributary_sink_info", "The type of a sink", Each("type", |(_, kind)| series([(*kind, 1)]))),
    ],
};

/// The sinks that send requests and have a spool.
#[rustfmt::skip]
pub(super) const SPOOLS: Table<(String, RemoteState)> = Table {
    labels: &["sink"],
    rows: &[
        gauge("tributary_spool_events", "Events that wait in a spool", One(|(_, of)| of.events.into())),
        gauge("tributary_spool_requests", "Requests that wait in a spool", One(|(_, of)| of.requests.into())),
        gauge("tributary_spool_bytes", "The size of a spool on the disk", One(|(_, of)| of.bytes.into())),
        gauge("tributary_spool_oldest_seconds", "For how long the oldest request of a spool has waited",
            One(|(_, of)| of.age().map_or(0, |age| age.as_secs().into()))),
    ],
};

/// The destinations of requests and of finished files.
#[rustfmt::skip]
pub(super) const DESTINATIONS: Table<(String, DestinationState)> = Table {
    labels: &["sink"],
    rows: &[
        gauge("tributary_destination_state",
            "Whether a destination is in this state: it takes what is sent, it is away, or it refuses everything",
            Each("state", |(_, present)| series(
                DestinationState::ALL.map(|state| (state.as_str(), u64::from(*present == state))),
            ))),
    ],
};

/// The sinks that send requests.
#[rustfmt::skip]
pub(super) const REMOTES: Table<RemoteReading> = Table {
    labels: &["sink"],
    rows: &[
        counter("tributary_retries", "Attempts to send that failed and were repeated",
            One(|(_, of, _)| of.retries.into())),
        counter("tributary_refused_requests", "Requests that a destination has refused for good",
            One(|(_, of, _)| of.refused.into())),
        counter("tributary_refused_heap_profiles",
            "Requests with the profiles of heap dumps that a destination has not taken",
            One(|(_, of, _)| of.refused_heap_profiles.into())),
        histogram("tributary_request_seconds", "Time of one attempt to send a request", |(_, _, times)| *times),
    ],
};

/// The sinks that write files.
#[rustfmt::skip]
pub(super) const FILES: Table<(String, FileTotals)> = Table {
    labels: &["sink"],
    rows: &[
        counter("tributary_file_bytes", "Bytes written to files, before compression", One(|(_, of)| of.bytes.into())),
        counter("tributary_repeated_events",
            "Events of messages that were delivered again and are in the files already",
            One(|(_, of)| of.repeats.into())),
        counter("tributary_other_listeners_events",
            "Events of streams in the files of the listener others, because there are more listeners than max_listeners",
            One(|(_, of)| of.of_others.into())),
        counter("tributary_files_finished", "Files finished by size, time or date", One(|(_, of)| of.finished.into())),
        counter("tributary_files_removed", "Finished files removed, as keep_files, keep_bytes and keep_time say",
            One(|(_, of)| of.removed.into())),
        counter("tributary_files_removed_bytes", "The size on the disk of the finished files removed",
            One(|(_, of)| of.removed_bytes.into())),
    ],
};

/// The sinks that upload their finished files.
#[rustfmt::skip]
pub(super) const UPLOADS: Table<(String, UploadTotals)> = Table {
    labels: &["sink"],
    rows: &[
        counter("tributary_uploads",
            "Finished files uploaded, attempts that failed, and files removed by limits before they were uploaded",
            Each("outcome", |(_, of)| series([
                ("uploaded", of.uploaded), ("failed", of.failed), ("discarded", of.discarded),
            ]))),
        counter("tributary_uploaded_bytes", "The size of the files uploaded", One(|(_, of)| of.uploaded_bytes.into())),
        gauge("tributary_upload_waiting_files", "Finished files that are not uploaded yet",
            One(|(_, of)| of.waiting.into())),
        gauge("tributary_upload_waiting_bytes", "Their size", One(|(_, of)| of.waiting_bytes.into())),
    ],
};

/// The attempts to load another configuration.
#[rustfmt::skip]
pub(super) const RELOADS: Table<Reloads> = Table {
    labels: &[],
    rows: &[
        counter("tributary_config_reloads", "Attempts to load another configuration",
            Each("outcome", |of| series([("loaded", of.loaded), ("rejected", of.rejected)]))),
        gauge("tributary_config_last_reload_successful",
            "Whether the last attempt to load another configuration succeeded",
            One(|of| (!of.is_last_rejected).into())),
        gauge("tributary_config_last_reload_success_timestamp_seconds",
            "When the running configuration was loaded, in seconds since 1970",
            One(|of| of.loaded_at.into())),
    ],
};

/// The sections of the configuration that have a certificate.
#[rustfmt::skip]
pub(super) const CERTIFICATES: Table<(String, i64)> = Table {
    labels: &["section"],
    rows: &[
        gauge("tributary_certificate_expiry_timestamp_seconds",
            "When the certificate of a section of the configuration expires, in seconds since 1970",
            One(|(_, expires)| (*expires).into())),
    ],
};

#[rustfmt::skip]
pub(super) const DAEMON: Table<DaemonReading> = Table {
    labels: &[],
    rows: &[
        gauge("tributary_taps", "Open taps", One(|of| of.taps.into())),
        gauge("tributary_memory_bytes", "Memory used by peers: connections, messages, and state that is kept for them",
            One(|of| of.memory_used.into())),
        gauge("tributary_memory_limit_bytes", "Memory that peers can use: the rest of limits.memory_bytes",
            One(|of| of.memory_limit.into())),
        counter("tributary_view_sums_seconds", "Time that the sums of services and profiles took, which connections wait for",
            Seconds(|of| of.sums_seconds)),
        gauge("tributary_build_info", "The version of the daemon",
            Each("version", |_| series([(env!("CARGO_PKG_VERSION"), 1)]))),
    ],
};

#[rustfmt::skip]
pub(super) const PROCESS: Table<ProcessUsage> = Table {
    labels: &[],
    rows: &[
        counter("process_cpu_seconds", "Processor time, user and system", Seconds(|of| of.cpu_seconds)),
        gauge("process_resident_memory_bytes", "Resident memory", One(|of| of.resident_bytes.into())),
        gauge("process_open_fds", "Open file descriptors", One(|of| of.open_files.into())),
        gauge("process_start_time_seconds", "When the process was started, in seconds since 1970",
            Seconds(|of| of.started)),
    ],
};

impl Labelled for ListenerTotals {
    fn label(&self, name: &str) -> &str {
        if name == "protocol" { self.protocol.as_str() } else { &self.name }
    }
}

impl Labelled for SinkReading {
    fn label(&self, _: &str) -> &str {
        &self.totals.name
    }
}

impl Labelled for RemoteReading {
    fn label(&self, _: &str) -> &str {
        &self.0
    }
}

impl<T> Labelled for (String, T) {
    fn label(&self, _: &str) -> &str {
        &self.0
    }
}

impl Labelled for Reloads {}
impl Labelled for DaemonReading {}
impl Labelled for ProcessUsage {}

/// A row of listeners whose agents get an acknowledgement.
const fn of_requests(row: Row<ListenerTotals>) -> Row<ListenerTotals> {
    only(|of| of.protocol.acknowledges(), &["listener"], row)
}

/// A row of listeners that receive from a stream.
const fn of_streams(row: Row<ListenerTotals>) -> Row<ListenerTotals> {
    only(|of| of.protocol == Protocol::Nats, &["listener"], row)
}

fn by_reason(counts: [u64; Reason::ALL.len()]) -> Series {
    series(Reason::ALL.map(|reason| (reason.as_str(), counts[reason.index()])))
}

/// A number for each value of a label.
fn series(counts: impl IntoIterator<Item = (impl ToString, u64)>) -> Series {
    counts.into_iter().map(|(label, count)| (label.to_string(), count.into())).collect()
}

fn of_map(counts: &BTreeMap<impl ToString, u64>) -> Series {
    series(counts.iter().map(|(label, count)| (label.to_string(), *count)))
}
