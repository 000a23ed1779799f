//! The text of `/metrics` for counters with known values.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tributary_event::{Kind, Reason};
use tributary_pipeline::accounting::{ListenerCounters, QueueCapacity, SinkCounters, StreamTotals};
use tributary_protocol::Protocol;
use tributary_select::Rule;
use tributary_sink::{DestinationState, FileTotals, RemoteState, UploadTotals};
use tributary_system::counters::Counted as _;
use tributary_system::histogram::{DurationTotals, Durations};

use super::*;

/// Where the table of metrics in docs/admin.md begins and ends.
const BEGIN: &str =
    "<!-- metrics: TRIBUTARY_UPDATE_DOCS=1 cargo test -p tributary --lib admin::metrics writes this table -->\n";
const END: &str = "<!-- metrics end -->\n";

/// A listener, whose counters are all different.
pub(in crate::admin) fn listener(name: &str, protocol: Protocol) -> ListenerTotals {
    let stream = StreamTotals {
        fault: None,
        pending: 51,
        unacknowledged: 52,
        redelivered: 53,
        redelivered_events: 54,
        quarantined: 55,
    };
    ListenerTotals {
        bytes_in: 10_000,
        bytes_decoded: 8_000,
        bytes_ignored: BTreeMap::from([("telemetry", 1_000)]),
        bytes_lost: Reason::ALL.map(|reason| reason.index() as u64),
        events: Kind::ALL.map(|kind| 100 + kind.index() as u64),
        losses: Reason::ALL.map(|reason| 200 + reason.index() as u64),
        events_lost: Reason::ALL.map(|reason| 300 + reason.index() as u64),
        connections: 41,
        connections_open: 3,
        refused: 42,
        acknowledged: [43, 44],
        acknowledgement_times: durations(),
        responses: BTreeMap::from([(200, 46), (503, 47)]),
        warnings: BTreeMap::from([("late_list", 48), ("odd", 49)]),
        repeats: [56, 57],
        early_answers: 58,
        dropped_datagrams: 59,
        events_found: 301,
        stream,
        ..ListenerCounters::new(name.into(), protocol).totals()
    }
}

/// A sink, whose counters are all different.
pub(in crate::admin) fn sink(name: &str) -> SinkTotals {
    SinkTotals {
        events: 1000,
        written: 900,
        shed: 11,
        failed: 12,
        filtered: [(Rule::Where, 13), (Rule::Unless(2), 14), (Rule::Sample, 0)].into_iter().collect(),
        resumed: 15,
        waiting: 16,
        retries: 17,
        duplicates: 18,
        uncertain_duplicates: 19,
        queue_batches: 20,
        queue_bytes: 21,
        queue_capacity: QueueCapacity { batches: 22, bytes: 23 },
        ..SinkCounters::new(name.into()).totals()
    }
}

/// A sink that sends requests.
pub(in crate::admin) fn remote(is_spooled: bool, destination: DestinationState) -> RemoteState {
    RemoteState {
        is_spooled,
        requests: 61,
        events: 62,
        bytes: 63,
        oldest: None,
        retries: 64,
        refused: 65,
        refused_heap_profiles: 66,
        destination,
        ..RemoteState::default()
    }
}

fn durations() -> DurationTotals {
    let durations = Durations::default();
    for micros in [90, 1_500, 12_345_678, 40_000_000] {
        durations.add(Duration::from_micros(micros));
    }
    durations.value()
}

fn reading() -> Reading {
    let uploads = UploadTotals {
        uploaded: 71,
        uploaded_bytes: 72,
        failed: 73,
        discarded: 74,
        waiting: 75,
        waiting_bytes: 76,
        fault: None,
        store: DestinationState::Away,
    };
    let files = FileTotals {
        bytes: 81,
        finished: 82,
        removed: 83,
        removed_bytes: 84,
        repeats: 85,
        of_others: 86,
        uploads: None,
    };
    let uploading = FileTotals { uploads: Some(uploads), ..files.clone() };
    let cannot_start = RemoteState { cannot_start: Some("no spool".to_owned()), ..RemoteState::default() };
    let listeners =
        [Protocol::Datadog, Protocol::Endless, Protocol::Nats].map(|protocol| listener(protocol.as_str(), protocol));
    let closed =
        ListenerTotals { connections_open: 0, bytes_in: 0, ..listener("a \"quoted\" \\ name\n", Protocol::Zico) };
    let sinks = [
        SinkTotals { is_shedding: true, ..sink("archive") },
        SinkTotals { is_retrying: true, ..sink("stream") },
        SinkTotals { filtered: Default::default(), fault: Some("no".to_owned()), ..sink("http") },
        sink("unable"),
    ];
    Reading {
        listeners: listeners.into_iter().chain([closed]).collect(),
        sinks: sinks.into(),
        remotes: vec![
            ("stream".to_owned(), remote(false, DestinationState::Refusing), DurationTotals::default()),
            (
                "http".to_owned(),
                RemoteState {
                    oldest: Some(SystemTime::now() + Duration::from_secs(60)),
                    ..remote(true, DestinationState::Ready)
                },
                durations(),
            ),
            ("unable".to_owned(), cannot_start, DurationTotals::default()),
        ],
        files: vec![("archive".to_owned(), uploading), ("other".to_owned(), files)],
        types: vec![("archive".to_owned(), "parquet"), ("stream".to_owned(), "nats"), ("http".to_owned(), "http")],
        reloads: Reloads { loaded: 91, rejected: 92, is_last_rejected: false, loaded_at: 1_795_000_000 },
        certificates: vec![("admin".to_owned(), 1_800_000_000), ("listeners.old".to_owned(), -1)],
        daemon: DaemonReading { taps: 2, memory_used: 93, memory_limit: 94, sums_seconds: 0.5 },
        process: Some(ProcessUsage {
            cpu_seconds: 12.5,
            resident_bytes: 95,
            started: 1_795_000_000.25,
            start_ticks: 96,
            uptime: Duration::from_secs(97),
            open_files: 98,
        }),
    }
}

#[test]
fn the_text_has_every_metric_of_every_component() {
    let text = reading().text(Exposition::OpenMetrics).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    compare("src/admin/metrics/golden.openmetrics.txt", |_| text.clone());
}

#[test]
fn the_documentation_has_every_metric() {
    use tables::{CERTIFICATES, DAEMON, DESTINATIONS, FILES, PROCESS, RELOADS, REMOTES, SINK_TYPES, SPOOLS, UPLOADS};
    let lines = [
        LISTENERS.documentation(),
        SINKS.documentation(),
        SINK_TYPES.documentation(),
        SPOOLS.documentation(),
        DESTINATIONS.documentation(),
        REMOTES.documentation(),
        FILES.documentation(),
        UPLOADS.documentation(),
        RELOADS.documentation(),
        CERTIFICATES.documentation(),
        DAEMON.documentation(),
        PROCESS.documentation(),
    ];
    let lines = lines.concat();
    assert_eq!(lines.lines().count(), reading().text(Exposition::Plain).matches("# TYPE ").count());
    compare("docs/admin.md", |page| {
        let (before, rest) = page.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        format!("{before}{BEGIN}\n| metric | labels | means |\n|---|---|---|\n{lines}\n{END}{after}")
    });
}

/// Compares a file with what it should be, or writes that.
pub(in crate::admin) fn compare(path: &str, expected: impl FnOnce(&str) -> String) {
    let file = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
    let found = std::fs::read_to_string(&file).unwrap();
    let expected = expected(&found);
    if std::env::var_os("TRIBUTARY_UPDATE_DOCS").is_some() {
        std::fs::write(file, expected).unwrap();
    } else if let Some((found, expected)) = found.lines().zip(expected.lines()).find(|(found, wanted)| found != wanted)
    {
        panic!("{path} has\n{found}\nand not\n{expected}\nTRIBUTARY_UPDATE_DOCS=1 writes it");
    } else {
        assert_eq!(found.len(), expected.len(), "{path}: TRIBUTARY_UPDATE_DOCS=1 writes it");
    }
}
