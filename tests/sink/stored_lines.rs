//! Stored lines in the order of the JSON encoder are read in one pass, all others by `serde_json`: what is read is the same.

use std::collections::BTreeMap;

use tributary::event::Batch;
use tributary::stored::{Rebuilder, json as lines};

use super::encode::json;
use super::parquet::recorded::{extremes, recordings};

/// What is read from a line, as lines again. `None`: it is refused.
fn read(line: &[u8], out: &mut Rebuilder) -> Option<String> {
    lines::read(line, out).ok()?;
    Some(json(&out.take()))
}

/// The same line in another form, which our own encoder does not write.
fn spaced(line: &[u8]) -> Vec<u8> {
    [b" ", line].concat()
}

fn batches() -> Vec<Batch> {
    let mut batches = vec![extremes()];
    for recording in recordings() {
        batches.extend(recording.decoded().1.iter().map(|batch| batch.copy_of(|_| true)));
    }
    batches
}

#[test]
fn lines_are_the_same_however_they_are_read() {
    let (mut read_lines, mut out) = (0, Rebuilder::default());
    for batch in batches() {
        for line in json(&batch).split_inclusive('\n') {
            assert_eq!(read(line.as_bytes(), &mut out).as_deref(), Some(line));
            assert_eq!(read(&spaced(line.as_bytes()), &mut out).as_deref(), Some(line));
            read_lines += 1;
        }
    }
    assert!(read_lines > 15_000, "{read_lines}");
}

#[test]
fn what_is_wrong_with_a_line_is_found_however_it_is_read() {
    let mut of_each = BTreeMap::new();
    for batch in batches() {
        for (event, line) in batch.events().zip(json(&batch).lines()) {
            if (100..2000).contains(&line.len()) {
                of_each
                    .entry((event.kind().as_str(), event.name().text().to_owned()))
                    .or_insert_with(|| line.to_owned());
            }
        }
    }
    assert!(of_each.len() > 20, "{}", of_each.len());
    let (mut accepted, mut refused, mut out) = (0, 0, Rebuilder::default());
    for line in of_each.values() {
        for at in 0..line.len() {
            for with in 0..3 {
                let mut damaged = line.clone().into_bytes();
                let replacements = [&b"\""[..], b"\\", b"0", b",", b"}", b"\x01", b" ", b"-", b""];
                damaged.splice(at..=at, replacements[(at * 4 + with * 3) % 9].iter().copied());
                let found = read(&damaged, &mut out);
                assert_eq!(found, read(&spaced(&damaged), &mut out), "{}", String::from_utf8_lossy(&damaged));
                if found.is_some() { accepted += 1 } else { refused += 1 }
            }
        }
    }
    assert!(accepted > 1000 && refused > 1000, "{accepted} {refused}");
}
