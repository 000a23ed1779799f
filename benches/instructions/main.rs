//! Instructions per event, counted by valgrind and compared with `baseline.tsv` beside this file. Work of others on the
//! machine does not move a count as it moves a time, so that a regression of a few percent is seen anywhere.
//!
//! `cargo bench --profile instructions --bench instructions` prints a table, and fails when a count is over its baseline by
//! more than [`baseline::TOLERANCE`]. With `-- --renew` it writes the baseline instead.

#![allow(missing_docs, unreachable_pub, clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

mod baseline;
mod callgrind;
#[path = "../workloads/mod.rs"]
mod workloads;

use std::hint::black_box;
use std::process::ExitCode;
use std::{env, fs};

use baseline::Baseline;
use tributary::sink::encode::{Encoder, Format};

const BASELINE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/instructions/baseline.tsv");
const COMMAND: &str = "cargo bench --profile instructions --bench instructions";
/// The profile in [`COMMAND`], which names the folder above the one that the program lies in.
const PROFILE: &str = "instructions";
/// What this program is told when it runs itself below valgrind.
const BELOW_VALGRIND: &str = "--below-valgrind";

fn main() -> ExitCode {
    let is_told = |word: &str| env::args().any(|argument| argument == word);
    if is_told(BELOW_VALGRIND) {
        work();
    } else if let Err(error) = compare(is_told("--renew")) {
        eprintln!("error: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What is counted, in this order: decoding, then encoding, of one workload after the other. Says how many events each has.
fn work() {
    for workload in workloads::all() {
        callgrind::counted_work(&mut || workload.decode(&mut |batch| drop(black_box(batch))));
        let (batches, mut encoder, mut out) = (workload.batches(), Encoder::new(Format::Json), Vec::new());
        callgrind::counted_work(&mut || {
            for batch in &batches {
                out.clear();
                batch.events().for_each(|event| encoder.encode(event, &mut out));
                black_box(&out);
            }
        });
        println!("{}\t{}", workload.name, workload.events);
    }
}

fn compare(renew: bool) -> Result<(), String> {
    let program = env::current_exe().unwrap();
    let is_of_profile = program.ancestors().nth(2).is_some_and(|folder| folder.ends_with(PROFILE));
    if renew && !is_of_profile {
        return Err(format!("the baseline is one of the profile `{PROFILE}`: {COMMAND} -- --renew"));
    }
    let now = Baseline { circumstances: baseline::circumstances(), counts: callgrind::count()? };
    let then = match fs::read_to_string(BASELINE) {
        Ok(text) => Baseline::read(&text)?,
        Err(_) if renew => Baseline::default(),
        Err(error) => return Err(format!("{BASELINE}: {error}")),
    };
    if renew {
        now.print_beside(&then);
        fs::write(BASELINE, now.written()).map_err(|error| format!("{BASELINE}: {error}"))?;
        println!("\nrenewed: {BASELINE}");
        return Ok(());
    }
    if !is_of_profile || now.machine() != then.machine() {
        now.print_beside(&Baseline::default());
        println!("\nNOT compared: the baseline is one of the profile `{PROFILE}` on {}", then.machine());
        return Ok(());
    }
    now.print_beside(&then);
    now.verdict(&then)
}
