//! The whole daemon: `simulate` → `run` → a sink, compared with a raw TCP → file copy of as many bytes in the same run, and
//! with the generator alone.
//!
//! `cargo bench --bench end_to_end [-- [PROTOCOL...] EVENTS [REPETITIONS]]` prints tables; `profile` instead of a protocol: that
//! of calls that are summed up. CPU seconds are user + system
//! time of the daemon's own process; machines differ, so compare the ratios to the raw copy. The only assertion is
//! that every event arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use daemon::loads::{DISCARD, FILE, FILE_BY_DEFAULT, LOADS, Load};
use daemon::table::{self, fixed, head, median, rate, row, spread};
use daemon::{Cost, ceiling, peer, raw};

fn main() {
    let (numbers, words) = table::arguments();
    let events = numbers.first().copied().unwrap_or(1_000_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let named = |load: &&Load| words.is_empty() || words.iter().any(|word| load.name.starts_with(word.as_str()));
    println!("{repetitions} interleaved repetitions; medians (lowest–highest); CPU in seconds per million events\n");
    head(&["events/s", "MB/s in", "MB/s out", "CPU", "× raw copy", "peak MiB", "sent = written + lost"]);
    LOADS.iter().filter(named).for_each(|load| measure(load, load.events(events), repetitions));
    if words.is_empty() || words.iter().any(|word| word == "profile") {
        measure_sums(events, repetitions);
    }
    if words.is_empty() || words.iter().any(|word| word == "rsyslog") {
        compare_rsyslog((events / 4).max(1), repetitions);
    }
}

/// Prints the rows of a load.
fn measure(load: &Load, events: u64, repetitions: u64) {
    let (mut discarded, mut filed, mut copied, mut alone) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut by_default, mut unviewed) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        discarded.push(Cost::of_load(load, events, "", &[DISCARD], &[]).0);
        // A virtual machine may have to request every page that it has not used lately from its host, at several times the
        // cost of the copy. A raw copy before each run that writes frees the same amount of memory for each of them.
        raw::copy(events * load.bytes_per_event);
        let (to_file, counters) = Cost::of_load(load, events, "", &[FILE], &[]);
        drop(counters);
        raw::copy(events * load.bytes_per_event);
        by_default.push(Cost::of_load(load, events, "", &[FILE_BY_DEFAULT], &[]).0);
        raw::copy(events * load.bytes_per_event);
        // Without what the page can look back on.
        let sink = format!("{FILE}\n[view]\nenabled = false\n");
        unviewed.push(Cost::of_load(load, events, "", &[&sink], &[]).0);
        raw::copy(events * load.bytes_per_event);
        copied.push(raw::copy(to_file.bytes_out));
        filed.push(to_file);
        alone.push(ceiling::run(load, events));
    }
    let name = load.name;
    let ratios: Vec<f64> = filed.iter().zip(&copied).map(|(file, copy)| file.cpu_seconds / copy.cpu_seconds).collect();
    print_runs(&format!("{name} → discard"), &discarded, "");
    print_runs(&format!("{name} → file"), &filed, &spread(&ratios, |ratio| *ratio));
    print_runs(&format!("{name} → file, rotated and synced by default"), &by_default, "");
    print_runs(&format!("{name} → file, without the view"), &unviewed, "");
    let (events, bytes) = (filed[0].events as f64, filed[0].bytes_out as f64);
    let per_second = rate(median(&copied, |copy| events / copy.seconds));
    let megabytes = fixed(median(&copied, |copy| bytes / 1e6 / copy.seconds));
    let cpu = spread(&copied, |copy| copy.cpu_seconds / events * 1e6);
    let none = String::new;
    row("raw copy of the same bytes out", &[per_second, none(), megabytes, cpu, "1".into(), none(), none()]);
    let per_second = rate(median(&alone, |sent| sent.events as f64 / sent.seconds));
    let megabytes = fixed(median(&alone, |sent| sent.bytes as f64 / 1e6 / sent.seconds));
    row("generator alone", &[per_second, megabytes, none(), none(), none(), none(), none()]);
}

/// Prints the cost of calls that are summed up, beside that of events and of a raw copy of the events.
fn measure_sums(events: u64, repetitions: u64) {
    println!("\nCalls as events and as a profile (`calls`), to a file:\n");
    head(&["CPU", "MB out", "CPU of a raw copy of the events", "bytes, events / profile"]);
    for name in ["bytefrog v1", "bytefrog v4"] {
        let load = Load::named(name);
        let events = load.events(events);
        let (mut singly, mut copied, mut summed) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repetitions {
            let (run, counters) = Cost::of_load(load, events, "", &[FILE], &[]);
            drop(counters);
            copied.push(raw::copy(run.bytes_out));
            singly.push(run);
            summed.push(Cost::of_sums(load, events, "calls = \"profile\"", &[FILE]));
        }
        let megabytes = |runs: &[Cost]| fixed(median(runs, |run| run.bytes_out as f64 / 1e6));
        let copy = spread(&copied, |copy| copy.cpu_seconds / events as f64 * 1e6);
        row(&format!("{name}, events"), &[spread(&singly, Cost::cpu_per_million), megabytes(&singly), copy, "".into()]);
        let ratio = median(&singly, |run| run.bytes_out as f64) / median(&summed, |run| run.bytes_out as f64);
        let cells = [spread(&summed, Cost::cpu_per_million), megabytes(&summed), "".into(), fixed(ratio)];
        row(&format!("{name}, profile"), &cells);
    }
}

fn print_runs(name: &str, runs: &[Cost], ratio: &str) {
    let megabytes_in = fixed(median(runs, |run| run.bytes_in as f64 / 1e6 / run.seconds));
    let megabytes_out = match median(runs, |run| run.bytes_out as f64 / 1e6 / run.seconds) {
        0.0 => String::new(),
        megabytes => fixed(megabytes),
    };
    let (cpu, peak) = (spread(runs, Cost::cpu_per_million), fixed(median(runs, |run| run.memory.peak)));
    let per_second = rate(median(runs, Cost::per_second));
    row(name, &[per_second, megabytes_in, megabytes_out, cpu, ratio.to_owned(), peak, runs[0].balance.clone()]);
}

/// Prints the cost of rsyslog to parse and write the lines that the daemon wrote.
fn compare_rsyslog(events: u64, repetitions: u64) {
    let Some(version) = peer::rsyslog_version() else {
        println!("\nrsyslog is not installed: its row is left out.");
        return;
    };
    println!(
        "\nThe lines of `datadog → file`, sent to rsyslog {version} as JSON by TCP, parsed (mmjsonparse) and written to a file:\n"
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..repetitions {
        let (run, counters) = Cost::of_load(Load::named("datadog"), events, "", &[FILE], &[]);
        theirs.push(peer::rsyslog(&counters.directory.path().join("out/events.ndjson"), run.events));
        ours.push(run);
    }
    let events = ours[0].events as f64;
    let ratios: Vec<f64> =
        ours.iter().zip(&theirs).map(|(ours, theirs)| theirs.cpu_seconds / ours.cpu_seconds).collect();
    head(&["events/s", "MB/s out", "CPU", "× datadog → file", "peak MiB"]);
    row(
        &format!("rsyslog {version}"),
        &[
            rate(median(&theirs, |run| events / run.seconds)),
            fixed(median(&theirs, |run| run.bytes_out as f64 / 1e6 / run.seconds)),
            spread(&theirs, |run| run.cpu_seconds / events * 1e6),
            spread(&ratios, |ratio| *ratio),
            fixed(median(&theirs, |run| run.peak_mib)),
        ],
    );
}
