//! Our normal-form verdicts against GLib's, on seeded mutants of every recorded bundle.
//!
//! Without Python or PyGObject the test says so and passes; `cargo test --test endless gvariant_oracle -- --nocapture` shows
//! what was compared.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::endless_support::cases;
use tributary::codec::gvariant::{Scratch, Skip, Slice, visit_type};

const MUTANTS: usize = 100_000;
/// The most bytes of a mutant: GLib through Python is slower than ours.
const MOST_BYTES: usize = 8 * 1024;
/// The script's exit code without GLib.
const NO_GLIB: i32 = 3;

/// splitmix64: the same mutants on every machine.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

/// One to three small changes, mostly of framing, types and terminators, on which verdicts depend.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(3) {
        let at = rng.below(bytes.len());
        match rng.below(8) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.below(256) as u8,
            2 => bytes[at] = b"\0ybnqiuxtdsogvma({})"[rng.below(19)],
            3 => bytes[at] = bytes[at].wrapping_add(1),
            4 => bytes[at] = bytes[at].wrapping_sub(1),
            5 => bytes.truncate(at.max(1)),
            6 => bytes.insert(at, [0, 1, 0xFF, b's'][rng.below(4)]),
            _ => {
                let other = rng.below(bytes.len());
                bytes.swap(at, other);
            }
        }
    }
}

#[test]
fn our_verdicts_are_those_of_glib() {
    let cases: Vec<_> = cases().into_iter().filter(|case| case.body.len() <= MOST_BYTES).collect();
    let mut rng = Rng(20_261_121);
    let mut values: Vec<(String, Vec<u8>)> = Vec::new();
    for case in &cases {
        values.push((case.bundle_type().to_owned(), case.body.clone()));
    }
    while values.len() < MUTANTS + cases.len() {
        let case = &cases[rng.below(cases.len())];
        let mut bytes = case.body.clone();
        mutate(&mut bytes, &mut rng);
        // The types as shipped; two versions share one.
        values.push((case.bundle_type().to_owned(), bytes));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/endless/gvariant_oracle.py");
    let Some(verdicts) = ask(&script, &values) else {
        println!("not compared: Python's gi (PyGObject) is not there");
        return;
    };
    let mut scratch = Scratch::default();
    let mut normal = 0;
    for ((kind, bytes), verdict) in values.iter().zip(&verdicts) {
        let ours = visit_type(kind, Slice::new(bytes), 0, &mut scratch, &mut Skip);
        assert_eq!(ours.is_ok(), *verdict == 1, "{kind} {bytes:02x?}: {ours:?}");
        normal += usize::from(ours.is_ok());
    }
    println!("{} values, {normal} of them in normal form: every verdict is GLib's", values.len());
    assert_eq!(verdicts.len(), values.len());
}

/// GLib's verdicts; `None`: there is no GLib.
fn ask(script: &Path, values: &[(String, Vec<u8>)]) -> Option<Vec<u8>> {
    // The system's own Python first: distributions install PyGObject there.
    for python in ["/usr/bin/python3", "python3"] {
        let command = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut child) = command else { continue };
        let mut stdin = child.stdin.take().unwrap();
        let mut input = Vec::new();
        for (kind, bytes) in values {
            input.extend_from_slice(&(kind.len() as u32).to_le_bytes());
            input.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            input.extend_from_slice(kind.as_bytes());
            input.extend_from_slice(bytes);
        }
        let writer = std::thread::spawn(move || {
            // A script without GLib stops reading; its exit code says why.
            let _ = stdin.write_all(&input);
        });
        let mut verdicts = Vec::new();
        child.stdout.take().unwrap().read_to_end(&mut verdicts).unwrap();
        writer.join().unwrap();
        let status = child.wait().unwrap();
        if status.success() {
            return Some(verdicts);
        }
        assert_eq!(status.code(), Some(NO_GLIB), "the script failed");
    }
    None
}
