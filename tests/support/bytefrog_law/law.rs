//! The law of every run with any input: what a reader that knows only the layouts finds in the bytes must agree with
//! the lines written.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tributary::event::Reason;
use tributary::protocol::bytefrog::CallOutput;

use super::Finished;
use crate::hostile::raw;

/// A numbered message at its offset.
#[derive(Clone, Copy, Debug)]
pub struct Numbered {
    pub kind: u8,
    pub number: u32,
    pub length: u64,
}

/// The readable part of a connection.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    /// By offset.
    pub numbered: BTreeMap<u64, Numbered>,
    /// Where reading stops: at the end, inside a message, or before an unknown type.
    pub good: u64,
}

/// Reads a connection whose hello is intact.
pub fn walk(bytes: &[u8], version: u8, is_control: bool) -> Walk {
    let mut walk = Walk { good: if bytes[0] == 16 { 6 } else { 2 }, ..Walk::default() };
    while let Some(length) = length(&bytes[walk.good as usize..], version, is_control) {
        let at = walk.good as usize;
        if at + length > bytes.len() {
            break;
        }
        if !is_control && matches!(bytes[at], 14 | 20..=23 | 50) {
            let number = u32::from_be_bytes(bytes[at + 5..at + 9].try_into().unwrap());
            walk.numbered.insert(walk.good, Numbered { kind: bytes[at], number, length: length as u64 });
        }
        walk.good += length as u64;
    }
    walk
}

/// `None`: the type is unknown, or its length field is not here.
fn length(bytes: &[u8], version: u8, is_control: bool) -> Option<usize> {
    let text = |at: usize| Some(at + 2 + usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    match (*bytes.first()?, is_control) {
        (8, true) => Some(4),
        (9, true) => Some(5),
        (40..=42 | 99, true) => text(1),
        (_, true) => None,
        (10, false) => text(7),
        (11 | 12, false) => text(5),
        (13, false) if version >= 3 => Some(21),
        (14, false) if version >= 3 => Some(19),
        (15, false) if version >= 3 => Some(9),
        (20, false) => Some(15),
        (21, false) => Some(if version == 1 { 17 } else { 16 }),
        (22, false) => Some(21),
        (23, false) => Some(19),
        (50, false) => text(text(9)?),
        _ => None,
    }
}

/// The lines of a run by the position of their message: connection and offset.
#[derive(Debug, Default)]
pub struct Written {
    pub logs: BTreeMap<(usize, u64), u64>,
    pub spans: BTreeMap<(usize, u64), u64>,
    pub repeated: BTreeMap<(usize, u64), u64>,
    /// Numbers reported as missing, without those that a break explains.
    pub missing: u64,
    pub events_of_run: Vec<u64>,
}

impl Written {
    /// Reads the lines and checks each of them.
    pub fn read(done: &Finished, sizes: &[u64]) -> Written {
        let mut written = Written::default();
        let mut spans = BTreeSet::new();
        let mut parents = BTreeSet::new();
        for line in done.text.lines() {
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!(raw::repeated_keys(line), [""; 0], "{line}");
            let origin = &event["origin"];
            let connection = origin["connection"].as_u64().unwrap() as usize;
            let offset = origin["offset"].as_u64().unwrap();
            let end = offset + origin["length"].as_u64().unwrap();
            assert!(end <= sizes[connection], "outside a stream of {} bytes: {line}", sizes[connection]);
            let name = event["name"].as_str().unwrap();
            let place = (connection, offset);
            if event["kind"] == "span" {
                *written.spans.entry(place).or_default() += 1;
                let span = &event["span"];
                assert!(spans.insert(span["span_id"].to_string()), "a second span of this id: {line}");
                parents.extend(span.get("parent_span_id").map(Value::to_string));
            } else if event["loss"]["reason"] == "duplicate" {
                *written.repeated.entry(place).or_default() += 1;
            } else if event["loss"]["reason"] == "gap" && name == "tributary.loss" {
                let missing = event["loss"]["events"].as_u64().unwrap();
                assert!(missing > 0, "{line}");
                written.missing += missing;
            } else if name == "bytefrog.run.ended" {
                written.events_of_run.push(event["attributes"]["bytefrog.run.events"].as_u64().unwrap());
            } else if event["kind"] == "log" && origin.get("sequence").is_some() {
                *written.logs.entry(place).or_default() += 1;
            }
        }
        assert!(parents.is_subset(&spans), "every parent is a span that is written");
        written
    }
}

/// Asserts that every numbered message of the run is written once, in the form of `calls`, and nothing else.
pub fn check_run(done: &Finished, walks: &[Walk], sizes: &[u64], calls: CallOutput) -> Written {
    let written = Written::read(done, sizes);
    let (mut entries, mut entries_reported, mut spans_of_exits, mut numbered) = (0, 0, 0, 0);
    for (connection, walk) in walks.iter().enumerate() {
        for (offset, message) in &walk.numbered {
            let place = (connection, *offset);
            let count = |what: &BTreeMap<(usize, u64), u64>| what.get(&place).copied().unwrap_or(0);
            let (logs, spans, repeated) = (count(&written.logs), count(&written.spans), count(&written.repeated));
            let what = format!("{message:?} at {offset} of connection {connection}: {logs} {spans} {repeated}");
            numbered += 1;
            let (is_entry, is_exit) = (message.kind == 20, matches!(message.kind, 21 | 23));
            match calls {
                CallOutput::Spans if is_entry => {
                    assert!(logs + spans + repeated <= 1, "{what}");
                    entries += 1;
                    entries_reported += logs + spans + repeated;
                }
                CallOutput::Spans => assert_eq!(logs + spans + repeated, 1, "{what}"),
                CallOutput::Events | CallOutput::Both => assert_eq!(logs + repeated, 1, "{what}"),
                CallOutput::Profile => panic!("this is the law of single calls"),
            }
            assert!(
                spans + repeated <= u64::from(calls != CallOutput::Events && (is_entry || is_exit) || repeated > 0),
                "{what}"
            );
            spans_of_exits += if is_exit { spans } else { 0 };
        }
    }
    if calls == CallOutput::Spans {
        assert_eq!(entries, entries_reported + spans_of_exits, "an entry is an event, or begins one span");
    }
    for (connection, offset) in written.logs.keys().chain(written.spans.keys()).chain(written.repeated.keys()) {
        assert!(walks[*connection].numbered.contains_key(offset), "nothing is at {offset} of connection {connection}");
    }
    let repeated: u64 = written.repeated.values().sum();
    assert_eq!(written.events_of_run, [numbered - repeated], "one end of one run, with all its events");
    for (connection, (totals, walk)) in done.totals.iter().zip(walks).enumerate() {
        let lost = |reason: Reason| totals.bytes_lost[reason.index()];
        // Breaks that are not after the last one can be read, and are lost.
        let readable = totals.bytes_decoded + lost(Reason::Duplicate) + lost(Reason::Malformed);
        assert_eq!(readable, walk.good, "what can be read of connection {connection} is");
    }
    written
}

/// The messages of a legal conversation in the order of their arrival: each repeated number is reported, no other is,
/// and every number between the first and the last that never arrived is reported once.
pub fn check_numbers(arrived: &[(usize, u64, Numbered)], written: &Written, late_reported: u64, has_breaks: bool) {
    let Some((.., first)) = arrived.first() else { return };
    let start = if first.number > u32::MAX / 2 { i64::from(first.number) } else { 0 };
    let (mut seen, mut last) = (BTreeSet::new(), start - 1);
    for (connection, offset, message) in arrived {
        let nearest = last + i64::from(message.number.wrapping_sub(last as u32) as i32);
        let is_repeated = !seen.insert(nearest);
        last = last.max(nearest);
        assert_eq!(written.repeated.contains_key(&(*connection, *offset)), is_repeated, "{message:?}");
    }
    let before = seen.range(..start).count() as u64;
    let never_arrived = (last + 1 - start) as u64 - (seen.len() as u64 - before);
    if !has_breaks {
        assert_eq!(
            written.missing,
            never_arrived + late_reported - before,
            "numbers that are missing, or came too late"
        );
    }
}
