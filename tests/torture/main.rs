//! The torture program: a real daemon is killed, loses its power, has failing disks and a failing destination, while agents over
//! real sockets remember what it has acknowledged. Nothing that was acknowledged may be missing afterwards.
//!
//! ```text
//! cargo test --release --test torture -- kill --count 1000 --seed 7
//! cargo test --release --test torture -- power --count 1000
//! cargo test --release --test torture -- faults --count 10000
//! cargo test --release --test torture -- peer --count 100
//! cargo test --release --test torture -- disk --count 200
//! ```
//!
//! Without a part it runs a short slice of each, as the gate does. It prints its seed; the same seed makes the same
//! choices. With `--keep`, the part `faults` leaves the directory in which it has found a loss. See docs/reliability.md.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]
#![allow(clippy::print_stdout, reason = "a program that reports what it does")]

mod agents;
mod check;
mod disk;
mod image;
mod journal;
mod parts;
mod receiver;
mod rng;
mod site;

use tributary_testing::{http_server, marked_upload, small_disk, wait};

use std::time::Instant;

/// Runs a part and returns what it found.
type Part = fn(&Run) -> String;

/// The parts, with the size of the slice that `cargo test` runs.
const PARTS: [(&str, Part, u64); 5] = [
    ("kill", parts::kill, 12),
    ("power", parts::power, 40),
    ("faults", parts::faults, 300),
    ("peer", parts::peer, 12),
    ("disk", disk::disk, 12),
];

/// One run of one part.
struct Run {
    /// Kills, images, faults, misdeeds of the destination, or lives.
    count: u64,
    seed: u64,
    /// `power`: the library skips this many of 1,000 syncs, and reports that they were done. The part must notice.
    lie: u64,
    /// `faults`: a run that finds a loss leaves its directory.
    keep: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1)?.parse::<u64>().unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    let keep = arguments.iter().any(|argument| argument == "--keep");
    let seed = value("--seed").unwrap_or_else(rng::from_clock);
    let named = arguments.iter().find(|argument| !argument.starts_with("--") && argument.parse::<u64>().is_err());
    // `cargo test NAME` gives every test program a name to select tests by; `--list` asks for their names.
    let is_selected = |part: &str| named.is_none_or(|named| part == named || "torture".contains(named.as_str()));
    if arguments.iter().any(|argument| argument == "--list") {
        return PARTS.iter().for_each(|(name, ..)| println!("torture::{name}: test"));
    }
    if cfg!(not(target_os = "linux")) {
        return println!("skipped: the torture program needs Linux");
    }
    for (name, part, slice) in PARTS.into_iter().filter(|(name, ..)| is_selected(name)) {
        let run = Run { count: value("--count").unwrap_or(slice), seed, lie: value("--lie").unwrap_or(0), keep };
        println!("torture {name}: count {}, seed {seed}", run.count);
        let begin = Instant::now();
        println!("torture {name}: {}; {:.1} s", part(&run), begin.elapsed().as_secs_f64());
    }
}
