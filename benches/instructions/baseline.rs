//! Instruction counts with the environment in which they were counted: reading, writing and comparing them.

use std::collections::BTreeMap;
use std::env::consts::{ARCH, OS};
use std::process::Command;

use super::{BASELINE, COMMAND};

/// A count fails if it exceeds its baseline by more than this fraction. A baseline is out of date if its count is below it by
/// more than this fraction.
pub const TOLERANCE: f64 = 0.05;

/// Counts by workload, in the order of counting.
pub type Counts = Vec<(String, Count)>;

/// Instructions per event.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Count {
    pub decode: f64,
    pub encode: f64,
}

impl Count {
    fn total(self) -> f64 {
        self.decode + self.encode
    }
}

#[derive(Default)]
pub struct Baseline {
    /// Everything besides our code that changes counts.
    pub environment: BTreeMap<String, String>,
    pub counts: Counts,
}

/// The current environment.
pub fn environment() -> BTreeMap<String, String> {
    let output_of = |program: &str, argument: &str| {
        let ran = Command::new(program).arg(argument).output().ok().filter(|ran| ran.status.success());
        ran.map_or_else(|| "unknown".to_owned(), |ran| String::from_utf8_lossy(&ran.stdout).trim().to_owned())
    };
    let pairs = [
        ("machine", format!("{ARCH}-{OS}")),
        ("rustc", output_of("rustc", "--version")),
        ("libc", output_of("getconf", "GNU_LIBC_VERSION")),
        ("valgrind", output_of("valgrind", "--version")),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

impl Baseline {
    /// The architecture. Counts of different architectures are not comparable.
    pub fn machine(&self) -> &str {
        self.environment.get("machine").map_or("nothing", String::as_str)
    }

    pub fn read(text: &str) -> Result<Self, String> {
        let mut baseline = Baseline::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match *line.split('\t').collect::<Vec<_>>() {
                [key, value] => drop(baseline.environment.insert(key.to_owned(), value.to_owned())),
                [name, decode, encode] => {
                    let number = |text: &str| text.parse().map_err(|error| format!("{BASELINE}: {line}: {error}"));
                    let count = Count { decode: number(decode)?, encode: number(encode)? };
                    baseline.counts.push((name.to_owned(), count));
                }
                _ => return Err(format!("{BASELINE}: {line}: neither a line of the environment nor a count")),
            }
        }
        Ok(baseline)
    }

    pub fn to_tsv(&self) -> String {
        let mut text = format!("# Instructions per event: decode, encode. Written by: {COMMAND} -- --renew\n");
        for (key, value) in &self.environment {
            text += &format!("{key}\t{value}\n");
        }
        for (name, count) in &self.counts {
            text += &format!("{name}\t{:.1}\t{:.1}\n", count.decode, count.encode);
        }
        text
    }

    fn of(&self, name: &str) -> Option<Count> {
        self.counts.iter().find(|(other, _)| other == name).map(|(_, count)| *count)
    }

    pub fn print_comparison(&self, then: &Baseline) {
        println!("instructions per event; in brackets the baseline and the change\n");
        println!("{:<20} {:>27} {:>27} {:>27}", "", "decode", "encode", "total");
        for (name, now) in &self.counts {
            let then = then.of(name);
            let cell = |part: fn(Count) -> f64| {
                let comparison = then.map(part).map(|then| format!(" ({then:.0}, {:+.1} %)", change(part(*now), then)));
                format!("{:.0}{}", part(*now), comparison.unwrap_or_default())
            };
            let [decode, encode, total] = [cell(|count| count.decode), cell(|count| count.encode), cell(Count::total)];
            println!("{name:<20} {decode:>27} {encode:>27} {total:>27}");
        }
    }

    /// Checks that no count is higher than `then`.
    ///
    /// # Errors
    /// A count exceeds its baseline by more than the tolerance, or has no baseline.
    pub fn check_against(&self, then: &Baseline) -> Result<(), String> {
        let (mut worse, mut better) = (Vec::new(), Vec::new());
        for (name, now) in &self.counts {
            let Some(then) = then.of(name) else {
                worse.push(format!("{name} has no baseline"));
                continue;
            };
            for (part, now, then) in [("decode", now.decode, then.decode), ("encode", now.encode, then.encode)] {
                match change(now, then) / 100.0 {
                    more if more > TOLERANCE => worse.push(format!("{part} {name}: {then:.0} -> {now:.0}")),
                    less if less < -TOLERANCE => better.push(format!("{part} {name}: {then:.0} -> {now:.0}")),
                    _ => {}
                }
            }
        }
        let percent = TOLERANCE * 100.0;
        if !better.is_empty() {
            println!("\nfewer by more than {percent} %: {}", better.join(", "));
            println!("renew the baseline to keep the improvement: {COMMAND} -- --renew");
        }
        if worse.is_empty() {
            return Ok(());
        }
        let others = self.environment.iter().filter(|(key, value)| then.environment.get(*key) != Some(*value));
        let others = others.map(|(key, value)| {
            let before = then.environment.get(key).map_or("unknown", String::as_str);
            format!("\nthe environment may be the cause: {key} is {value}, the baseline's was {before}")
        });
        Err(format!(
            "more instructions than the baseline, by more than {percent} %: {}{}\nif this is intended, or caused by the environment: {COMMAND} -- --renew",
            worse.join(", "),
            others.collect::<String>()
        ))
    }
}

/// The change in percent.
fn change(now: f64, then: f64) -> f64 {
    (now / then - 1.0) * 100.0
}
