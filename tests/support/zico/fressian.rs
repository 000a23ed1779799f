//! Recorded conversations of the binary protocol, and the section of the event model about it in code: what an independent reader
//! found → expected events. Shares no code with the decoder.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

/// A recorded conversation.
pub struct Conversation {
    pub name: String,
    pub connections: Vec<Connection>,
    /// Of those made by hand: the packet at fault, its answer, and its loss.
    pub refusal: Value,
}

/// One connection of it.
pub struct Connection {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
    /// Packets from the agent.
    pub packets: Vec<Value>,
}

impl Conversation {
    /// Whether an unmodified agent spoke it.
    pub fn is_recorded(&self) -> bool {
        self.name.starts_with(|first: char| first.is_ascii_digit())
    }
}

pub fn folder() -> PathBuf {
    crate::project().join("tests/data/zico_packets")
}

pub fn names() -> Vec<String> {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap());
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<_> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn conversation(name: &str) -> Conversation {
    let folder = folder().join(name);
    let text = fs::read_to_string(folder.join("expected.ndjson")).unwrap();
    let mut lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let refusal = lines.next().unwrap()["refusal"].take();
    let packets: Vec<Value> = lines.filter(|packet| packet["direction"] == "in").collect();
    let wire = |kind: &str, number: usize| {
        let number = if number == 0 { String::new() } else { format!("-{}", number + 1) };
        fs::read(folder.join(format!("wire-{kind}{number}.bin"))).ok()
    };
    let connections = (0..).map_while(|number| {
        let own = packets.iter().filter(|packet| packet["connection"] == number).cloned();
        Some(Connection {
            input: wire("in", number)?,
            output: wire("out", number).unwrap_or_default(),
            packets: own.collect(),
        })
    });
    Conversation { name: name.to_owned(), connections: connections.collect(), refusal }
}

/// What the collector knows of a host.
#[derive(Default)]
pub struct Known {
    /// Traces that were delivered by themselves: class, method, signature, type, clock, time.
    delivered: Vec<String>,
    /// The latest packet of each connection: its number and its records and scans.
    latest: Vec<(usize, Vec<String>)>,
}

/// The expected events of a conversation, in their order, and the number of repeats.
#[derive(Default, Debug)]
pub struct Expected {
    pub events: Vec<Value>,
    pub repeats: u64,
    /// Spans with undefined names.
    pub unresolved: u64,
}

/// The expected events of a connection that is answered as it should be.
pub fn expected(number: usize, connection: &Connection, known: &mut Known, out: &mut Expected) {
    let (mut has_said_hello, mut is_first) = (false, true);
    let mut metrics = BTreeMap::new();
    for packet in &connection.packets {
        let items = packet["items"].as_array().unwrap();
        if packet["type"] == "hello" && items.iter().any(|item| item["hello"]["host"].is_string()) {
            (has_said_hello, is_first) = (true, true);
            out.events.push(json!({ "log": "zico.session.opened" }));
        }
        if packet["type"] != "data" || !has_said_hello {
            continue;
        }
        let identities: Vec<String> = items.iter().filter_map(identity).collect();
        known.latest.retain(|(other, _)| *other != number);
        let before = known.latest.iter().rev().find(|(_, records)| records.first() == identities.first());
        let before = before.filter(|_| is_first && !identities.is_empty()).map(|(_, records)| records.clone());
        let repeats =
            before.map_or(0, |before| before.iter().zip(&identities).take_while(|(before, now)| before == now).count());
        is_first = false;
        let mut place = 0;
        for item in items {
            if let Some(metric) = item.get("metric") {
                metrics.insert(metric["id"].as_u64().unwrap(), metric.clone());
            } else if let Some(records) = item.get("record") {
                let records = records.as_array().unwrap();
                if place < repeats {
                    out.repeats += records.len() as u64;
                } else {
                    trace(records, known, out);
                }
                place += 1;
            } else if let Some(perf) = item.get("perf") {
                let samples = perf["samples"].as_array().unwrap();
                if place < repeats {
                    out.repeats += samples.len() as u64;
                } else {
                    out.events.extend(samples.iter().map(|sample| metric(perf, sample, &metrics)));
                }
                place += 1;
            }
        }
        known.latest.push((number, identities));
    }
}

/// What does not change of a record or scan that is sent again.
fn identity(item: &Value) -> Option<String> {
    if let Some(perf) = item.get("perf") {
        return Some(perf.to_string());
    }
    let root = &item.get("record")?[0];
    Some(json!([call(root), root["attributes"]]).to_string())
}

/// What identifies a trace among those of its host.
fn call(record: &Value) -> String {
    let marker = &record["marker"];
    let parts = ["class", "method", "signature", "time_ns"].map(|key| &record[key]);
    json!([parts, marker["trace"], marker["clock_ms"]]).to_string()
}

struct Open<'a> {
    record: &'a Value,
    start: i64,
    /// When its next child starts.
    next: i64,
    links: usize,
}

fn trace(records: &[Value], known: &mut Known, out: &mut Expected) {
    let mut open: Vec<Open<'_>> = Vec::new();
    // The depth of a copy that is left out.
    let mut copy: Option<u64> = None;
    let mut clocks: Vec<Option<i64>> = Vec::new();
    for record in records {
        let depth = record["depth"].as_u64().unwrap();
        if copy.is_some_and(|copy| depth > copy) {
            continue;
        }
        copy = None;
        close(&mut open, depth as usize, &mut clocks, out);
        let time = record["time_ns"].as_i64().unwrap();
        if depth > 0
            && record["marker"].is_object()
            && let Some(place) = known.delivered.iter().position(|delivered| *delivered == call(record))
        {
            known.delivered.remove(place);
            let parent = open.last_mut().unwrap();
            parent.links += 1;
            parent.next += time;
            copy = Some(depth);
            continue;
        }
        let start = match (open.last(), record["marker"]["clock_ms"].as_i64()) {
            (None, clock) => clock.map(|clock| clock * 1_000_000),
            (Some(parent), Some(clock)) => Some((clock * 1_000_000).max(parent.start)),
            (Some(parent), None) => Some(parent.next),
        };
        let has_clock = start.is_some() && clocks.last().is_none_or(Option::is_some);
        clocks.push(has_clock.then_some(0));
        let start = start.unwrap_or(0);
        if record["exception"].is_object() {
            out.events.push(exception(&record["exception"], has_clock.then_some(start)));
        }
        open.push(Open { record, start, next: start, links: 0 });
    }
    close(&mut open, 0, &mut clocks, out);
    if records[0]["marker"].is_object() {
        known.delivered.push(call(&records[0]));
    }
}

/// Closes the records at this depth and below.
fn close(open: &mut Vec<Open<'_>>, depth: usize, clocks: &mut Vec<Option<i64>>, out: &mut Expected) {
    while open.len() > depth {
        let Open { record, start, links, .. } = open.pop().unwrap();
        let has_clock = clocks.pop().unwrap().is_some();
        let time = record["time_ns"].as_i64().unwrap();
        if let Some(parent) = open.last_mut() {
            parent.next += time;
        }
        let span = span(record, has_clock.then_some(start), links, open.len());
        out.unresolved += u64::from(span["attributes"].get("zico.unresolved.symbols").is_some());
        out.events.push(span);
    }
}

fn span(record: &Value, start: Option<i64>, links: usize, depth: usize) -> Value {
    let marker = &record["marker"];
    let mut attributes = Map::new();
    let mut unresolved: Vec<u64> = Vec::new();
    let mut named = |text: &Value| {
        let text = text.as_str().unwrap();
        match text.strip_prefix('?') {
            Some(id) => {
                unresolved.push(id.parse().unwrap());
                format!("symbol#{id}")
            }
            None => text.to_owned(),
        }
    };
    let [class, method, signature] = ["class", "method", "signature"].map(|key| named(&record[key]));
    let name = format!("{class}.{method}");
    attributes.insert("code.function.name".into(), json!(name));
    attributes.insert("zico.method.signature".into(), json!(signature));
    attributes.insert("zico.calls".into(), record["calls"].clone());
    attributes.insert("zico.flags".into(), record["flags"].clone());
    if record["errors"] != 0 {
        attributes.insert("zico.errors".into(), record["errors"].clone());
    }
    if marker.is_object() {
        attributes.insert("zico.trace.flags".into(), marker["flags"].clone());
        attributes.insert("zico.trace.type".into(), json!(named(&marker["trace"])));
    } else {
        attributes.insert("tributary.time.basis".into(), json!("estimated"));
    }
    let mut is_repaired = false;
    for attribute in record["attributes"].as_array().into_iter().flatten() {
        let (key, value) = (named(&attribute[0]), value(&attribute[2]));
        is_repaired |= value.to_string().contains('\u{fffd}');
        if attribute[2].get("bytes_base64").is_some() {
            attributes.insert(key + "_base64", value);
        } else if !value.is_null() {
            attributes.insert(key, value);
        }
    }
    if is_repaired {
        attributes.insert("tributary.text.repaired".into(), json!(true));
    }
    unresolved.sort_unstable();
    unresolved.dedup();
    if !unresolved.is_empty() {
        attributes.insert("zico.unresolved.symbols".into(), json!(unresolved));
    }
    let flags = |of: &Value| of["flags"].as_u64().unwrap_or_default();
    let is_failed = record["exception"].is_object() || flags(record) & 4 != 0 || flags(marker) & 0x1000 != 0;
    json!({
        "span": name,
        "time": start,
        "duration": record["time_ns"],
        "status": if is_failed { "error" } else { "unset" },
        "links": links,
        "is_root": depth == 0,
        "attributes": attributes,
    })
}

fn exception(exception: &Value, time: Option<i64>) -> Value {
    let mut stack = String::new();
    let mut thrown = exception;
    while thrown.is_object() {
        let message = thrown["message"].as_str().map(|message| format!(": {message}")).unwrap_or_default();
        let before = if stack.is_empty() { "" } else { "\nCaused by: " };
        stack += &format!("{before}{}{message}", thrown["class"].as_str().unwrap());
        for frame in thrown["stack"].as_array().into_iter().flatten() {
            let [class, method, file] = [0, 1, 2].map(|part| frame[part].as_str().unwrap_or_default());
            let place = match (file, frame[3].as_i64().unwrap()) {
                (_, -2) => "Native Method".to_owned(),
                ("" | "<null>", _) => "Unknown Source".to_owned(),
                (file, ..=0) => file.to_owned(),
                (file, line) => format!("{file}:{line}"),
            };
            stack += &format!("\n\tat {class}.{method}({place})");
        }
        thrown = &thrown["cause"];
    }
    let mut log = json!({
        "log": "zico.exception",
        "time": time,
        "type": exception["class"],
        "stack": stack,
    });
    if exception["message"].is_string() {
        log["message"] = exception["message"].clone();
    }
    log
}

fn metric(perf: &Value, sample: &Value, metrics: &BTreeMap<u64, Value>) -> Value {
    let id = sample["metric_id"].as_u64().unwrap();
    let known = &metrics[&id];
    let name: String = known["name"].as_str().unwrap().to_lowercase();
    let name: String = name.chars().map(|plain| if plain.is_ascii_alphanumeric() { plain } else { '_' }).collect();
    let mut attributes = Map::new();
    attributes.insert("zico.metric.id".into(), json!(id));
    attributes.insert("zico.metric.description".into(), known["description"].clone());
    attributes.insert("zico.metric.scanner".into(), perf["scanner"].clone());
    for (key, text) in known["attributes"].as_object().unwrap() {
        attributes.insert(key.clone(), text.clone());
    }
    for attribute in sample["attributes"].as_array().into_iter().flatten() {
        attributes.insert(attribute[0].as_str().unwrap().replace('?', "symbol#"), attribute[2].clone());
    }
    attributes.retain(|_, value| !value.is_null());
    json!({
        "metric": format!("zorka.{name}"),
        "time": perf["clock_ms"].as_i64().unwrap() * 1_000_000,
        "value": value(&sample["value"]),
        "attributes": attributes,
    })
}

/// A value as events have it.
fn value(recorded: &Value) -> Value {
    let Some(object) = recorded.as_object() else {
        return match recorded {
            Value::Array(values) => values.iter().map(value).collect(),
            plain => plain.clone(),
        };
    };
    if let Some(tag) = object.get("tagged") {
        return json!({ "tag": tag.as_str().unwrap().replace('?', "symbol#"), "value": value(&object["value"]) });
    }
    let (kind, inner) = object.iter().next().unwrap();
    match kind.as_str() {
        "double" | "float" if inner == "nan" => json!("NaN"),
        "double" | "float" => json!(inner.as_f64().unwrap()),
        "inst" => json!({ "tag": "instant", "value": inner }),
        "uuid" => {
            let digits = inner.as_str().unwrap();
            let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &digits[range]);
            json!(parts.join("-"))
        }
        "bigdec" => {
            let (digits, scale) = (inner[0].as_str().unwrap(), inner[1].as_u64().unwrap() as usize);
            let (whole, fraction) = digits.split_at(digits.len() - scale);
            json!(format!("{whole}.{fraction}"))
        }
        "map" => {
            let pairs = inner.as_array().unwrap().iter();
            pairs.map(|pair| (pair[0].as_str().unwrap().to_owned(), value(&pair[1]))).collect::<Map<_, _>>().into()
        }
        _ => value(inner),
    }
}

/// An event in the same form. `None`: a loss.
pub fn found(event: &Value) -> Option<Value> {
    let time = event["time"].as_str().map(|time| time.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as i64);
    let attributes = event["attributes"].clone();
    Some(match event["kind"].as_str().unwrap() {
        "span" => json!({
            "span": event["name"],
            "time": time,
            "duration": event["span"]["duration_ns"],
            "status": event["span"]["status"],
            "links": event["span"]["links"].as_array().map_or(0, Vec::len),
            "is_root": event["span"].get("parent_span_id").is_none(),
            "attributes": attributes,
        }),
        "metric" => json!({
            "metric": event["name"],
            "time": time,
            "value": event["metric"]["value"],
            "attributes": attributes,
        }),
        "log" if event["name"] == "zico.exception" => {
            let mut log = json!({
                "log": event["name"],
                "time": time,
                "type": attributes["exception.type"],
                "stack": attributes["exception.stacktrace"],
            });
            if let Some(message) = attributes.get("exception.message") {
                log["message"] = message.clone();
            }
            log
        }
        "log" => json!({ "log": event["name"] }),
        _ => return None,
    })
}

/// Writes the content of a packet.
#[derive(Default)]
pub struct Content {
    pub bytes: Vec<u8>,
    types: Vec<&'static str>,
}

impl Content {
    /// Begins a struct; its first use announces it.
    pub fn open(&mut self, tag: &'static str, values: i64) {
        match self.types.iter().position(|known| *known == tag) {
            Some(number) => self.bytes.push(0xA0 + number as u8),
            None => {
                self.types.push(tag);
                self.bytes.push(0xEF);
                self.text(&format!("com.jitlogic.zorka.{tag}"));
                self.int(values);
            }
        }
    }

    pub fn int(&mut self, number: i64) {
        self.bytes.push(0xF8);
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }

    pub fn ints(&mut self, numbers: &[i64]) {
        numbers.iter().for_each(|number| self.int(*number));
    }

    pub fn text(&mut self, text: &str) {
        self.bytes.push(0xE3);
        self.int(text.len() as i64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub fn null(&mut self) {
        self.bytes.push(0xF7);
    }

    pub fn list(&mut self, values: i64) {
        self.bytes.push(0xEC);
        self.int(values);
    }

    pub fn symbol(&mut self, id: i64, text: &str) {
        self.open("Symbol_v1", 2);
        self.int(id);
        self.text(text);
    }

    /// A record up to its attributes. `clock`: it begins a trace.
    pub fn record(&mut self, time: i64, clock: Option<i64>) {
        self.open("TraceRecord_v1", 11);
        self.ints(&[1, 2, 3, 0, time, 1, 0]);
        match clock {
            Some(clock) => {
                self.open("TraceMarker_v1", 4);
                self.ints(&[2, clock, 0, 8]);
            }
            None => self.null(),
        }
        self.null();
    }

    /// A record without attributes and children.
    pub fn leaf(&mut self, time: i64, clock: Option<i64>) {
        self.record(time, clock);
        self.null();
        self.null();
    }

    /// A map of this many attributes, each of a symbol and a number.
    pub fn attributes(&mut self, count: i64) {
        self.bytes.push(0xC0);
        self.list(2 * count);
        (0..count).for_each(|key| self.ints(&[4 + key, key]));
    }
}
