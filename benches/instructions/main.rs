//! Instructions per event, counted by valgrind and compared with `baseline.tsv` in this folder. Other load on the machine
//! changes times but not counts, so a regression of a few percent is visible on any machine.
//!
//! `cargo run --profile instructions -p tributary-instructions` prints a table, and fails when a count is over its baseline by
//! more than [`baseline::TOLERANCE`]. With `-- --renew` it writes the baseline instead.

#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod baseline;
mod callgrind;

use std::hint::black_box;
use std::process::ExitCode;
use std::{env, fs};

use baseline::Baseline;
use tributary_event::Batch;
use tributary_sink::encode::{Encoder, Format, LineFields};
use tributary_sink_otlp as otlp;
use tributary_stored::row::RowEncoder;
use tributary_stored::row_reader::RowReader;
use tributary_stored::{Rebuilder, json};
use tributary_workloads::{self as workloads, Workload};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/baseline.tsv");
const COMMAND: &str = "cargo run --profile instructions -p tributary-instructions";
/// The profile in [`COMMAND`]. The parent of the program's folder has this name.
const PROFILE: &str = "instructions";
/// The default length of a request of the sink `otlp`.
const REQUEST_BYTES: usize = 3 << 20;
/// The argument with which this program starts itself under valgrind.
const BELOW_VALGRIND: &str = "--below-valgrind";

fn main() -> ExitCode {
    let has_argument = |word: &str| env::args().any(|argument| argument == word);
    if has_argument(BELOW_VALGRIND) {
        work();
    } else if let Err(error) = compare(has_argument("--renew")) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The counted work: for each workload decoding, then encoding. Prints the number of events of each workload.
fn work() {
    let lines = workloads::all().into_iter().map(|workload| (workload, Form::Lines(LineFields::Full)));
    for (workload, form) in lines.chain(other_forms()) {
        callgrind::counted_work(&mut || workload.decode(&mut |batch| drop(black_box(batch))));
        form.count(&workload.batches());
        println!("{}\t{}", workload.name, workload.events);
    }
    for (name, form) in [("datadog, stored lines", Stored::Lines), ("datadog, stored rows", Stored::Rows)] {
        let workload = workloads::datadog::spans();
        form.count(&workload.batches());
        println!("{name}\t{}", workload.events);
    }
}

/// What is stored and read back.
#[derive(Clone, Copy)]
enum Stored {
    /// JSON lines.
    Lines,
    /// The rows of a journal.
    Rows,
}

impl Stored {
    /// Reads what the batches are written as, and writes it, both counted.
    fn count(self, batches: &[Batch]) {
        let written = self.write(batches);
        let lines: Vec<_> = written.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
        callgrind::counted_work(&mut || self.read(&lines));
        callgrind::counted_work(&mut || drop(black_box(self.write(batches))));
    }

    fn write(self, batches: &[Batch]) -> Vec<u8> {
        let mut out = Vec::new();
        let events = batches.iter().flat_map(Batch::events);
        match self {
            Stored::Lines => {
                let mut encoder = Encoder::new(Format::Json);
                events.for_each(|event| encoder.encode(event, &mut out));
            }
            Stored::Rows => {
                let mut encoder = RowEncoder::default();
                events.for_each(|event| encoder.encode(event, &mut out));
            }
        }
        out
    }

    fn read(self, lines: &[&[u8]]) {
        let (mut rebuilder, mut rows) = (Rebuilder::default(), RowReader::default());
        for line in lines {
            match self {
                Stored::Lines => json::read(line, &mut rebuilder).unwrap(),
                Stored::Rows => rows.read(line, &mut rebuilder).unwrap(),
            }
            if rebuilder.is_full() {
                black_box(rebuilder.take());
            }
        }
        black_box(rebuilder.take());
    }
}

/// What events are encoded as.
#[derive(Clone, Copy)]
enum Form {
    Lines(LineFields),
    Otlp,
}

/// Workloads that are encoded as something else than whole JSON lines, too.
fn other_forms() -> Vec<(Workload, Form)> {
    let calls = |name| workloads::bytefrog::calls(name, 4, Default::default());
    let spans = |name| workloads::datadog::spans().named(name);
    vec![
        (spans("datadog, compact"), Form::Lines(LineFields::Compact)),
        (spans("datadog, OTLP"), Form::Otlp),
        (calls("bytefrog v4, compact"), Form::Lines(LineFields::Compact)),
        (calls("bytefrog v4, OTLP"), Form::Otlp),
    ]
}

impl Form {
    /// Encodes batches, counted.
    fn count(self, batches: &[Batch]) {
        let mut out = Vec::new();
        match self {
            Form::Lines(fields) => {
                let mut encoder = Encoder::new(Format::Json).with_fields(fields);
                callgrind::counted_work(&mut || {
                    for batch in batches {
                        out.clear();
                        for event in batch.events() {
                            if fields == LineFields::Compact {
                                black_box(encoder.source(event));
                            }
                            encoder.encode(event, &mut out);
                        }
                        black_box(&out);
                    }
                });
            }
            Form::Otlp => {
                let mut encoder = otlp::Encoder::new(REQUEST_BYTES, true, 0);
                callgrind::counted_work(&mut || {
                    for batch in batches {
                        encoder.begin_batch();
                        batch.events().for_each(|event| assert!(encoder.push(event, true)));
                    }
                    encoder.end_requests();
                    black_box(encoder.take_requests());
                });
            }
        }
    }
}

fn compare(renew: bool) -> Result<(), String> {
    let program = env::current_exe().unwrap();
    let is_of_profile = program.parent().is_some_and(|folder| folder.ends_with(PROFILE));
    if renew && !is_of_profile {
        return Err(format!("the baseline needs the profile `{PROFILE}`: {COMMAND} -- --renew"));
    }
    let now = Baseline { environment: baseline::environment(), counts: callgrind::count()? };
    let then = match fs::read_to_string(BASELINE) {
        Ok(text) => Baseline::read(&text)?,
        Err(_) if renew => Baseline::default(),
        Err(error) => return Err(format!("{BASELINE}: {error}")),
    };
    if renew {
        now.print_comparison(&then);
        fs::write(BASELINE, now.to_tsv()).map_err(|error| format!("{BASELINE}: {error}"))?;
        println!("\nrenewed: {BASELINE}");
        return Ok(());
    }
    if !is_of_profile || now.machine() != then.machine() {
        now.print_comparison(&Baseline::default());
        println!("\nNOT compared: the baseline is for the profile `{PROFILE}` on {}", then.machine());
        return Ok(());
    }
    now.print_comparison(&then);
    now.check_against(&then)
}
