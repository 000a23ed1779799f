//! The simulated Zorka agents, checked with an independent CBOR reader.

use std::collections::BTreeSet;

use ciborium::Value;
use tributary::simulate::zico::{Bodies, Jvm, ZicoDialect};

const START: u64 = 1_795_132_800_000_000_000;
const DIALECTS: [ZicoDialect; 3] = [ZicoDialect::Doc, ZicoDialect::Gen1, ZicoDialect::Gen2];

/// The items of a body.
fn items(mut body: &[u8]) -> Vec<Value> {
    let mut items = Vec::new();
    while !body.is_empty() {
        items.push(ciborium::from_reader(&mut body).unwrap());
    }
    items
}

/// The content of a trace.
#[derive(Debug, Default)]
struct Found {
    records: u64,
    exceptions: u64,
    references: u64,
    /// Tags of all other items.
    tags: BTreeSet<u64>,
    methods: BTreeSet<u64>,
    strings: BTreeSet<u64>,
}

fn number(value: &Value) -> u64 {
    u64::try_from(i128::from(value.as_integer().unwrap())).unwrap_or(u64::MAX)
}

impl Found {
    fn walk(&mut self, item: &Value, dialect: ZicoDialect, is_little: bool) {
        let Value::Tag(tag, inner) = item else { return };
        let record = match dialect {
            ZicoDialect::Doc => 0x0B,
            ZicoDialect::Gen1 => 8,
            ZicoDialect::Gen2 => 3,
            ZicoDialect::Fressian => return,
        };
        let word = |bytes: &[u8]| {
            let bytes: [u8; 8] = bytes.try_into().unwrap();
            if is_little { u64::from_le_bytes(bytes) } else { u64::from_be_bytes(bytes) }
        };
        match (*tag, inner.as_ref()) {
            (tag, Value::Array(children)) if tag == record => {
                self.records += 1;
                self.methods.insert(match (&children[0], &children[1]) {
                    (Value::Bytes(bytes), _) => word(bytes) >> 40,
                    (Value::Tag(_, bytes), _) => word(bytes.as_bytes().unwrap()) >> 40,
                    (_, method) => number(method),
                });
                children.iter().for_each(|child| self.walk(child, dialect, is_little));
            }
            (0x22, Value::Array(fields)) => self.exception(fields),
            (7, Value::Array(fields)) if dialect == ZicoDialect::Gen2 => self.exception(fields),
            (8, Value::Integer(_)) if dialect == ZicoDialect::Gen2 => self.references += 1,
            (0x23, Value::Integer(_)) => self.references += 1,
            (0x21, Value::Array(fields)) => drop(self.strings.insert(number(&fields[1]))),
            (5, Value::Array(fields)) if dialect == ZicoDialect::Gen2 => drop(self.strings.insert(number(&fields[1]))),
            (6, Value::Array(fields)) if dialect == ZicoDialect::Gen2 => drop(self.strings.insert(number(&fields[0]))),
            (9, Value::Map(pairs)) => {
                self.tags.insert(9);
                for (key, _) in pairs {
                    if let Value::Tag(6, id) = key {
                        self.strings.insert(number(id));
                    }
                }
            }
            (tag, _) => drop(self.tags.insert(tag)),
        }
    }

    fn exception(&mut self, fields: &[Value]) {
        self.exceptions += 1;
        for frame in fields[4].as_array().unwrap() {
            let frame = frame.as_array().unwrap();
            self.strings.extend(frame[..3].iter().map(number).filter(|id| *id != 0));
        }
    }
}

/// Collects the defined methods and strings.
fn define(symbols: &[u8], dialect: ZicoDialect, methods: &mut BTreeSet<u64>, strings: &mut BTreeSet<u64>) {
    for item in items(symbols) {
        let (tag, fields) = item.as_tag().unwrap();
        let fields = fields.as_array().unwrap();
        let id = number(&fields[0]);
        match (tag, dialect, fields.len()) {
            (0x0D, ZicoDialect::Doc, 3) | (1, ZicoDialect::Gen1, 3) | (1, ZicoDialect::Gen2, 2) => {
                strings.insert(id);
            }
            (0x0E, ZicoDialect::Doc, 4) | (2, ZicoDialect::Gen1 | ZicoDialect::Gen2, 4) => {
                assert!(fields[1..].iter().all(|name| strings.contains(&number(name))), "names come first");
                methods.insert(id);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn bodies_have_the_counted_events_and_refer_only_to_defined_names() {
    for (dialect, number) in
        [(ZicoDialect::Doc, 0), (ZicoDialect::Gen1, 0), (ZicoDialect::Gen1, 1), (ZicoDialect::Gen2, 0)]
    {
        let mut jvm = Jvm::new(5, number, START, dialect);
        let is_little = dialect == ZicoDialect::Doc || number == 0;
        let (mut methods, mut strings, mut all, mut parts) = (BTreeSet::new(), BTreeSet::new(), Found::default(), 0);
        let mut inner = 0;
        for visit in 0..600 {
            let trace = jvm.trace(if visit % 3 == 0 { 7 } else { 2000 }, START + visit * 1_000_000_000);
            let submissions = trace.submissions();
            let counted: u64 = submissions.iter().map(|submission| submission.events).sum();
            assert_eq!(counted, trace.events);
            inner += submissions.len() - 1;
            let mut found = Found::default();
            for submission in &submissions {
                let Bodies { symbols, parts: bodies } = jvm.bodies(submission);
                define(&symbols, dialect, &mut methods, &mut strings);
                parts += bodies.len() - 1;
                // The last submission is the whole trace.
                found = Found::default();
                items(&bodies.concat()).iter().for_each(|item| found.walk(item, dialect, is_little));
                assert!(found.methods.is_subset(&methods) && found.strings.is_subset(&strings), "{dialect:?}");
            }
            assert_eq!(found.records + found.exceptions + found.references, trace.events);
            all.records += found.records;
            all.exceptions += found.exceptions;
            all.references += found.references;
            all.tags.extend(found.tags);
        }
        println!("{dialect:?} {number}: {all:?}, {parts} cuts");
        assert!(all.records > 10_000 && all.exceptions > 20, "{all:?}");
        assert_eq!(all.references > 0, dialect == ZicoDialect::Gen2 || (dialect == ZicoDialect::Gen1 && is_little));
        assert_eq!(parts > 0, dialect == ZicoDialect::Gen1 && is_little, "{parts}");
        // The local tracers submit inner traces by themselves, too, and put upward attributes on their traces.
        let is_local = dialect == ZicoDialect::Gen2 || !is_little;
        assert_eq!(all.tags.contains(&0x26), !is_local, "upward attributes");
        assert_eq!(all.tags.contains(&0x0F), dialect == ZicoDialect::Gen1 && is_local, "flags");
        assert_eq!(inner > 100, is_local, "{inner}");
    }
}

#[test]
fn equal_seeds_give_equal_traces() {
    for dialect in DIALECTS {
        let bodies = |seed, number| {
            let mut jvm = Jvm::new(seed, number, START, dialect);
            let mut all = Vec::new();
            for second in 0..200 {
                let trace = jvm.trace(1000, START + second * 1_000_000_000);
                for submission in trace.submissions() {
                    let Bodies { symbols, parts } = jvm.bodies(&submission);
                    all.push((symbols, parts));
                }
            }
            all
        };
        for number in [0, 1] {
            assert!(bodies(1, number) == bodies(1, number), "{dialect:?}");
            assert!(bodies(1, number) != bodies(1, number + 2), "{dialect:?}");
            assert!(bodies(1, number) != bodies(2, number), "{dialect:?}");
        }
    }
}

#[test]
fn all_names_are_sent_again_after_a_failure() {
    for dialect in DIALECTS {
        let mut jvm = Jvm::new(1, 0, START, dialect);
        let trace = jvm.trace(1000, START + 5_000_000_000);
        let whole = *trace.submissions().last().unwrap();
        let first = jvm.bodies(&whole);
        let second = jvm.bodies(&whole);
        assert!(!first.symbols.is_empty() && second.symbols.is_empty());
        // The span ids of gen2 differ.
        let sizes = |bodies: &Bodies| bodies.parts.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&first).len(), sizes(&second).len());
        assert!(dialect == ZicoDialect::Gen2 || first.parts == second.parts);
        jvm.forget();
        assert_eq!(jvm.bodies(&whole).symbols, first.symbols);
    }
}
