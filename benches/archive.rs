//! What an archive costs: the events of each protocol as JSON lines, the same compressed with gzip and zstd, and as Parquet.
//!
//! `cargo bench --bench archive [-- [REPETITIONS]]` prints a table: bytes per event on the disk, and CPU time of the process per
//! event, everything included that is done until the files are finished. All forms are written in turn in one process.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::fs;
use std::path::Path;

use daemon::process::Process;
use daemon::table::{self, fixed, head, median, row};
use tributary::event::Batch;
use tributary::sink::file::{self, File};
use tributary::sink::parquet::{self, Parquet};
use tributary::sink::{Kinds, Selection, Sink};

/// The forms of the same events.
const FORMS: [&str; 4] = ["JSON lines", "gzip", "zstd", "Parquet"];

/// What one form of a workload takes.
#[derive(Default)]
struct Cost {
    /// Bytes and nanoseconds of an event.
    bytes: f64,
    nanos: f64,
}

fn main() {
    let repetitions = table::arguments().0.first().copied().unwrap_or(5).max(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("medians of {repetitions} interleaved repetitions; bytes and CPU nanoseconds per event\n");
    let columns =
        ["events", "JSON", "gzip", "zstd", "Parquet", "JSON ns", "gzip ns", "zstd ns", "Parquet ns", "× JSON"];
    head(&columns);
    for workload in tributary_workloads::all() {
        let batches = workload.batches();
        let mut costs: [Vec<Cost>; FORMS.len()] = Default::default();
        for _ in 0..repetitions {
            for (form, costs) in costs.iter_mut().enumerate() {
                costs.push(runtime.block_on(cost(form, &batches)));
            }
        }
        let bytes = costs.iter().map(|costs| fixed(median(costs, |cost| cost.bytes)));
        let nanos: Vec<f64> = costs.iter().map(|costs| median(costs, |cost| cost.nanos)).collect();
        let ratio = fixed(nanos[3] / nanos[0]);
        let events = [table::count(batches.iter().map(Batch::len).sum::<usize>() as u64)].into_iter();
        let cells: Vec<String> =
            events.chain(bytes).chain(nanos.iter().map(|nanos| fixed(*nanos))).chain([ratio]).collect();
        row(workload.name, &cells);
    }
}

async fn cost(form: usize, batches: &[Batch]) -> Cost {
    let directory = tempfile::tempdir().unwrap();
    let process = Process { id: std::process::id() };
    let before = process.cpu_seconds();
    let base = directory.path().display();
    if form == 3 {
        let options = parquet::Options { path: format!("{base}/{{kind}}"), ..parquet::Options::default() };
        write(Parquet::new(options).unwrap(), batches).await;
    } else {
        let lines =
            file::Options { path: format!("{base}/events.ndjson"), rotate_bytes: 0, ..file::Options::default() };
        write(File::new(lines.clone()).unwrap(), batches).await;
        match form {
            1 => compress(file::Options { compression: file::Compression::Gzip, ..lines }).await,
            2 => compress(file::Options { compression: file::Compression::Zstd, ..lines }).await,
            _ => {}
        }
    }
    let events = batches.iter().map(Batch::len).sum::<usize>() as f64;
    Cost { bytes: size(directory.path()) as f64 / events, nanos: (process.cpu_seconds() - before) * 1e9 / events }
}

async fn write(mut sink: impl Sink, batches: &[Batch]) {
    for batch in batches {
        sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
        sink.flush().await.unwrap();
    }
    sink.close().await.unwrap();
}

/// Compresses the file of lines, as a sink does with a finished one.
async fn compress(options: file::Options) {
    let finished = options.path.replace("events.ndjson", "events.20010101T000000.000.ndjson");
    fs::rename(&options.path, finished).unwrap();
    let mut sink = File::new(options).unwrap();
    sink.tick().await.unwrap();
    sink.wait_for_compression().await;
}

/// The size of all files below a directory.
fn size(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => size(&entry.path()),
            false => entry.metadata().unwrap().len(),
        })
        .sum()
}
