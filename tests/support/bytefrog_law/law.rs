//! What must hold of every run, whatever came: found from the bytes by a reader that knows the layouts only, and from
//! the lines that went out.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tributary::event::Reason;
use tributary::protocol::bytefrog::Calls;

use super::Finished;
use crate::hostile_support::raw;

/// A numbered message, where it stood.
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
    /// Where reading ends: at the end, in the middle of a message, or before a type that does not exist.
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

/// `None`: no such type, or not enough is here to say.
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

/// What went out of a run, by the place where it came in: connection and offset.
#[derive(Debug, Default)]
pub struct Told {
    pub logs: BTreeMap<(usize, u64), u64>,
    pub spans: BTreeMap<(usize, u64), u64>,
    pub repeated: BTreeMap<(usize, u64), u64>,
    /// Numbers told as missing, without those that a break explains.
    pub missing: u64,
    pub events_of_run: Vec<u64>,
}

impl Told {
    /// Reads the lines, each of which must be sound.
    pub fn read(done: &Finished, sizes: &[u64]) -> Told {
        let mut told = Told::default();
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
                *told.spans.entry(place).or_default() += 1;
                let span = &event["span"];
                assert!(spans.insert(span["span_id"].to_string()), "a second span of this id: {line}");
                parents.extend(span.get("parent_span_id").map(Value::to_string));
            } else if event["loss"]["reason"] == "duplicate" {
                *told.repeated.entry(place).or_default() += 1;
            } else if event["loss"]["reason"] == "gap" && name == "tributary.loss" {
                let missing = event["loss"]["events"].as_u64().unwrap();
                assert!(missing > 0, "{line}");
                told.missing += missing;
            } else if name == "bytefrog.run.ended" {
                told.events_of_run.push(event["attributes"]["bytefrog.run.events"].as_u64().unwrap());
            } else if event["kind"] == "log" && origin.get("sequence").is_some() {
                *told.logs.entry(place).or_default() += 1;
            }
        }
        assert!(parents.is_subset(&spans), "every parent is a span that is told");
        told
    }
}

/// Every numbered message of the run goes out once, in the form that `calls` wants, and nothing else does.
pub fn check_run(done: &Finished, walks: &[Walk], sizes: &[u64], calls: Calls) -> Told {
    let told = Told::read(done, sizes);
    let (mut entries, mut entries_told, mut spans_of_exits, mut numbered) = (0, 0, 0, 0);
    for (connection, walk) in walks.iter().enumerate() {
        for (offset, message) in &walk.numbered {
            let place = (connection, *offset);
            let count = |what: &BTreeMap<(usize, u64), u64>| what.get(&place).copied().unwrap_or(0);
            let (logs, spans, repeated) = (count(&told.logs), count(&told.spans), count(&told.repeated));
            let what = format!("{message:?} at {offset} of connection {connection}: {logs} {spans} {repeated}");
            numbered += 1;
            let (is_entry, is_exit) = (message.kind == 20, matches!(message.kind, 21 | 23));
            match calls {
                Calls::Spans if is_entry => {
                    assert!(logs + spans + repeated <= 1, "{what}");
                    entries += 1;
                    entries_told += logs + spans + repeated;
                }
                Calls::Spans => assert_eq!(logs + spans + repeated, 1, "{what}"),
                Calls::Events | Calls::Both => assert_eq!(logs + repeated, 1, "{what}"),
            }
            assert!(
                spans + repeated <= u64::from(calls != Calls::Events && (is_entry || is_exit) || repeated > 0),
                "{what}"
            );
            spans_of_exits += if is_exit { spans } else { 0 };
        }
    }
    if calls == Calls::Spans {
        assert_eq!(entries, entries_told + spans_of_exits, "an entry is an event, or begins one span");
    }
    for (connection, offset) in told.logs.keys().chain(told.spans.keys()).chain(told.repeated.keys()) {
        assert!(walks[*connection].numbered.contains_key(offset), "nothing is at {offset} of connection {connection}");
    }
    let repeated: u64 = told.repeated.values().sum();
    assert_eq!(told.events_of_run, [numbered - repeated], "one end of one run, with all its events");
    for (connection, (totals, walk)) in done.totals.iter().zip(walks).enumerate() {
        let lost = |reason: Reason| totals.bytes_lost[reason.index()];
        // Breaks that go back are readable, and lost all the same.
        let readable = totals.bytes_decoded + lost(Reason::Duplicate) + lost(Reason::Malformed);
        assert_eq!(readable, walk.good, "what can be read of connection {connection} is");
    }
    told
}

/// The messages of a legal conversation in the order of their arrival: whose number has come before is told so, nobody
/// else, and every number between the first and the last that never came is told once.
pub fn check_numbers(arrived: &[(usize, u64, Numbered)], told: &Told, late_told: u64, has_breaks: bool) {
    let Some((.., first)) = arrived.first() else { return };
    let start = if first.number > u32::MAX / 2 { i64::from(first.number) } else { 0 };
    let (mut seen, mut last) = (BTreeSet::new(), start - 1);
    for (connection, offset, message) in arrived {
        let nearest = last + i64::from(message.number.wrapping_sub(last as u32) as i32);
        let is_repeated = !seen.insert(nearest);
        last = last.max(nearest);
        assert_eq!(told.repeated.contains_key(&(*connection, *offset)), is_repeated, "{message:?}");
    }
    let before = seen.range(..start).count() as u64;
    let never_came = (last + 1 - start) as u64 - (seen.len() as u64 - before);
    if !has_breaks {
        assert_eq!(told.missing, never_came + late_told - before, "numbers that are missing, or came too late");
    }
}
