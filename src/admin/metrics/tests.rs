//! The text of `/metrics` for counters with known values.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tributary_event::{Kind, Reason};
use tributary_pipeline::accounting::{ListenerTotals, QueueCapacity, SinkTotals, StreamTotals, Totals};
use tributary_protocol::Protocol;
use tributary_select::Rule;
use tributary_sink::{DestinationState, FileTotals, RemoteState, UploadTotals};
use tributary_system::counters::Counted as _;
use tributary_system::histogram::{DurationTotals, Durations};

use super::*;

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
        name: name.to_owned(),
        protocol,
        bytes_in: 10_000,
        bytes_decoded: 9_000,
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
        events_found: 301,
        stream,
    }
}

/// A sink, whose counters are all different.
pub(in crate::admin) fn sink(name: &str) -> SinkTotals {
    SinkTotals {
        name: name.to_owned(),
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
        is_shedding: false,
        is_retrying: false,
        fault: None,
        is_closed: false,
        is_dead: false,
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
    let listeners = Protocol::ALL.into_iter().map(|protocol| listener(protocol.as_str(), protocol));
    let closed =
        ListenerTotals { connections_open: 0, bytes_in: 0, ..listener("a \"quoted\" \\ name\n", Protocol::Zico) };
    let sinks = [
        SinkTotals { is_shedding: true, ..sink("archive") },
        SinkTotals { is_retrying: true, ..sink("stream") },
        SinkTotals { filtered: Default::default(), fault: Some("no".to_owned()), ..sink("http") },
        sink("unable"),
    ];
    Reading {
        totals: Totals { listeners: listeners.chain([closed]).collect(), sinks: sinks.into() },
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
        sinks: vec![("archive".to_owned(), "parquet"), ("stream".to_owned(), "nats"), ("http".to_owned(), "http")],
        reloads: Reloads { loaded: 91, rejected: 92, is_last_rejected: false, loaded_at: 1_795_000_000 },
        certificates: vec![("admin".to_owned(), 1_800_000_000), ("listeners.old".to_owned(), -1)],
        memory: (93, 94),
        taps: 2,
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
    let text = open_metrics(reading()).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION");
    let golden = |name: &str| {
        let path = format!("{}/src/admin/metrics/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    assert_eq!(text, golden("golden.openmetrics.txt"));
    assert_eq!(Exposition::Plain.of(text), golden("golden.plain.txt"));
}
