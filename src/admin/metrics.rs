//! `/metrics`: the counters and the process, in the text formats of Prometheus. No label has a value from a
//! peer, so the number of series depends on the configuration only.

mod row;
mod tables;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;

use crate::health::Reloads;
use tributary_pipeline::accounting::{ListenerTotals, SinkTotals, Totals};
use tributary_sink::FileTotals;
use tributary_system::wall_clock;

use super::Subject;
use super::exposition::{Exposition, Writer};
use super::response::{AdminResponse, response};
use tables::{DaemonReading, RemoteReading};
pub(super) use tables::{LISTENERS, SINKS, SinkReading};

/// The values of one scrape.
#[derive(Debug)]
struct Reading {
    listeners: Vec<ListenerTotals>,
    sinks: Vec<SinkTotals>,
    remotes: Vec<RemoteReading>,
    files: Vec<(String, FileTotals)>,
    /// The sinks of the configuration, with their types.
    types: Vec<(String, &'static str)>,
    reloads: Reloads,
    certificates: Vec<(String, i64)>,
    daemon: DaemonReading,
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

/// The answer to a scrape, in a format.
pub(super) fn respond(subject: &Subject, exposition: Exposition) -> AdminResponse {
    let Totals { listeners, sinks } = subject.accounting.totals();
    let reading = Reading {
        listeners,
        sinks,
        remotes: subject.accounting.remotes(),
        files: subject.accounting.files(),
        types: subject.layout.get().sinks.iter().map(|sink| (sink.name.clone(), sink.kind)).collect(),
        reloads: subject.health.reloads(),
        certificates: subject.certificates.expiries(),
        daemon: DaemonReading {
            taps: subject.taps.count() as u64,
            memory_used: subject.memory.used(),
            memory_limit: subject.memory.limit(),
            sums_seconds: subject.view.as_ref().map_or(0.0, |view| view.sums_time().as_secs_f64()),
        },
        process: ProcessUsage::read(),
    };
    response(StatusCode::OK, exposition.content_type(), reading.text(exposition))
}

impl Reading {
    fn text(self, exposition: Exposition) -> String {
        let Reading { listeners, sinks, remotes, files, types, reloads, certificates, daemon, process } = self;
        let sinks: Vec<_> = sinks.into_iter().map(|totals| SinkReading::new(totals, &types, &remotes)).collect();
        let with_uploads = files.iter().filter_map(|(name, of)| Some((name.clone(), of.uploads.clone()?)));
        let uploads: Vec<_> = with_uploads.collect();
        let stores = uploads.iter().map(|(name, uploads)| (name.clone(), uploads.store));
        let receivers = remotes.iter().map(|(name, remote, _)| (name.clone(), remote.destination));
        let destinations: Vec<_> = receivers.chain(stores).collect();
        let with_spool = remotes.iter().filter(|(_, remote, _)| remote.is_spooled);
        let spools: Vec<_> = with_spool.map(|(name, remote, _)| (name.clone(), remote.clone())).collect();

        let mut out = Writer::new(exposition);
        LISTENERS.write(&listeners, &mut out);
        SINKS.write(&sinks, &mut out);
        tables::SINK_TYPES.write(&types, &mut out);
        tables::SPOOLS.write(&spools, &mut out);
        tables::DESTINATIONS.write(&destinations, &mut out);
        tables::REMOTES.write(&remotes, &mut out);
        tables::FILES.write(&files, &mut out);
        tables::UPLOADS.write(&uploads, &mut out);
        tables::RELOADS.write(&[reloads], &mut out);
        tables::CERTIFICATES.write(&certificates, &mut out);
        tables::DAEMON.write(&[daemon], &mut out);
        // Where the system has no such files, there are no such metrics.
        process.into_iter().for_each(|process| tables::PROCESS.write(&[process], &mut out));
        out.finish()
    }
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
