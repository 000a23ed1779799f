//! The ZICO section of the event model in code: recorded results → expected events. Shares no code with the decoder.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use super::Recorded;

/// Flags (field notes, sections 2.3 and 2.4).
const GEN1_ERROR: u64 = 8;
const GEN2_ERROR: u64 = 0x1000;
const GEN2_SENT: u64 = 0x2000;

/// A reference to one of several exceptions of the same id.
const ANY: &str = "any of ";

/// A comparable span, of a recorded result or of an event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Its name, times and status.
    pub content: String,
    /// The enclosing spans, innermost first: a number for the content of each.
    pub around: Vec<u64>,
    /// Its exceptions, in their order.
    pub exceptions: Vec<String>,
    /// Its attributes; numbers in one form, so that 1 and 1.0 are the same.
    pub attributes: BTreeMap<String, String>,
    /// The number of its links.
    pub links: usize,
    /// Keys that several records set: the recorded results do not say which was the last, so they are not compared.
    pub uncompared: BTreeSet<String>,
}

impl Span {
    fn new(content: &Value, attributes: &Map<String, Value>) -> Self {
        let attributes = attributes.iter().map(|(key, value)| (key.clone(), plain(value))).collect();
        let (around, exceptions) = (Vec::new(), Vec::new());
        Span { content: plain(content), around, exceptions, attributes, links: 0, uncompared: BTreeSet::new() }
    }

    /// Whether an event is the expected one.
    pub fn agrees(&self, expected: &Span) -> bool {
        let compared = |span: &Span| -> Vec<(String, String)> {
            let compared = span.attributes.iter().filter(|(key, _)| !expected.uncompared.contains(*key));
            compared.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        let is_same = |(found, expected): (&String, &String)| match expected.strip_prefix(ANY) {
            Some(id) => found.ends_with(&format!("\"zico.exception.id\":{id},\"zico.exception.ref\":true}}")),
            None => found == expected,
        };
        (&self.content, &self.around, self.links) == (&expected.content, &expected.around, expected.links)
            && self.exceptions.len() == expected.exceptions.len()
            && self.exceptions.iter().zip(&expected.exceptions).all(is_same)
            && compared(self) == compared(expected)
    }
}

/// The traces that each session delivered before, by their identities.
#[derive(Default)]
pub struct Before {
    spans: BTreeSet<(String, String, String)>,
    moments: BTreeSet<(String, u64, u64)>,
    /// Those of the local tracer of gen1 whose copies were not seen yet: clock, type, method; and ticks.
    calls: Vec<([String; 3], u64)>,
}

/// The expected events of a body.
pub struct Expected {
    pub spans: Vec<Span>,
    /// Records and exceptions of a body that was delivered before.
    pub duplicates: u64,
    /// The number of spans with undefined ids.
    pub unresolved: u64,
}

fn tick_nanos(decode: &Value) -> i128 {
    i128::from(decode["tick_ns"].as_u64().unwrap())
}

/// The expected events of a recorded result.
pub fn expected(decode: &Value, recorded: &Recorded, before: &mut Before) -> Expected {
    let records = decode["records"].as_array().unwrap();
    let is_gen2 = recorded.expected["dialect"] == "gen2";
    let session = recorded.expected["session"].as_str().unwrap_or_default().to_owned();
    let trace = recorded.expected["trace"].as_str().unwrap_or_default().to_lowercase();
    let mut copies = BTreeSet::new();
    let mut learnt = Before::default();
    let thrown = |index: usize| records[index]["exceptions"].as_array().map_or(0, Vec::len) as u64;
    let mut duplicates = 0;
    let mut links = BTreeMap::<usize, usize>::new();
    let is_local = records.first().is_some_and(|root| root["tstart"] == 0);
    for (index, record) in records.iter().enumerate() {
        let parent = record["parent"].as_u64().map(|parent| parent as usize);
        if parent.is_some_and(|parent| copies.contains(&parent)) {
            copies.insert(index);
            if copies.contains(&0) {
                duplicates += 1 + thrown(index);
            }
            continue;
        }
        let Some(begin) = record["begin"].as_object() else { continue };
        if !is_gen2 {
            // The recorded collector opened another session after a failure; ours keeps it.
            let call = [begin["clock"].to_string(), begin["ttype_id"].to_string(), record["method"].to_string()];
            let ticks =
                record["tstop"].as_u64().zip(record["tstart"].as_u64()).map(|(stop, start)| stop.wrapping_sub(start));
            let Some(ticks) = ticks.filter(|_| is_local) else { continue };
            let original = before
                .calls
                .iter()
                .position(|(known, known_ticks)| *known == call && (*known_ticks == ticks || known_ticks + 1 == ticks));
            match (parent, original) {
                (None, _) => learnt.calls.push((call, ticks)),
                (Some(parent), Some(original)) => {
                    before.calls.remove(original);
                    copies.insert(index);
                    *links.entry(parent).or_default() += 1;
                }
                (Some(_), None) => {}
            }
            continue;
        }
        let own = begin.get("span").map(|span| (session.clone(), trace.clone(), span.as_str().unwrap().to_owned()));
        let own = own.filter(|_| is_usable(&trace));
        let moment = (
            session.clone(),
            begin["clock"].as_u64().unwrap_or_default(),
            record["tstart"].as_u64().unwrap_or_default(),
        );
        let is_sent = record["flags"].as_u64().unwrap_or_default() & GEN2_SENT != 0;
        let is_copy = own.as_ref().is_some_and(|own| before.spans.contains(own))
            || parent.is_some() && is_sent && before.moments.contains(&moment);
        if is_copy {
            copies.insert(index);
            match parent {
                Some(parent) => *links.entry(parent).or_default() += 1,
                None => duplicates += 1 + thrown(index),
            }
            continue;
        }
        learnt.spans.extend(own);
        if parent.is_none() {
            learnt.moments.insert(moment);
        }
    }
    before.spans.extend(learnt.spans);
    before.moments.extend(learnt.moments);
    before.calls.extend(learnt.calls);
    let mut upward = BTreeMap::<usize, Vec<&Value>>::new();
    for (index, record) in records.iter().enumerate() {
        for up in record["up_attrs"].as_array().into_iter().flatten() {
            upward.entry(target(index, up[0].as_u64().unwrap(), records)).or_default().push(up);
        }
    }
    let own: Vec<_> =
        (0..records.len()).map(|index| content(index, records, upward.get(&index), decode, is_gen2)).collect();
    // Deep records have many ancestors.
    let digests: Vec<u64> = own.iter().map(|span| digest(&span.content)).collect();
    let mut unresolved = 0;
    let mut spans = Vec::new();
    for (index, record) in records.iter().enumerate() {
        if copies.contains(&index) {
            continue;
        }
        unresolved += u64::from(own[index].attributes.keys().any(|key| key.starts_with("zico.unresolved")));
        let mut around = Vec::new();
        let mut parent = record["parent"].as_u64();
        while let Some(index) = parent {
            around.push(digests[index as usize]);
            parent = records[index as usize]["parent"].as_u64();
        }
        let exceptions = exceptions(record, records);
        let links = links.get(&index).copied().unwrap_or_default();
        spans.push(Span { exceptions, around, links, ..own[index].clone() });
    }
    spans.sort();
    Expected { spans, duplicates, unresolved }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

fn is_usable(trace: &str) -> bool {
    let digits = trace.replace('-', "");
    [16, 32].contains(&digits.len()) && digits.chars().all(|digit| digit.is_ascii_hexdigit())
}

/// The content of a record's span, by the event model.
fn content(index: usize, records: &[Value], upward: Option<&Vec<&Value>>, decode: &Value, is_gen2: bool) -> Span {
    let record = &records[index];
    let mut attributes = Map::new();
    let flags = record["flags"].as_u64().unwrap_or_default();
    let tops: Vec<usize> = enclosing(index, records).filter(|index| records[*index].get("begin").is_some()).collect();
    // Attributes: its own, and upward attributes of enclosed records.
    let mut several = BTreeSet::new();
    for pair in record["attrs"].as_array().into_iter().flatten() {
        set(&mut attributes, &pair[0], &pair[1]);
    }
    for up in upward.into_iter().flatten() {
        let key = key(&up[2]);
        let before = attributes.get(&key).cloned();
        set(&mut attributes, &up[2], &up[3]);
        let after = attributes.get(&key).cloned();
        if before.is_some() && before != after {
            several.insert(key);
        }
    }
    attributes.retain(|_, value| !value.is_null());
    let method = record["method"].as_str();
    let (name, signature) = match method {
        None => ("zico.record".to_owned(), None),
        Some(unknown) if unknown.starts_with("?method") => {
            attributes.insert("zico.unresolved.method".to_owned(), record["mid"].clone());
            (format!("method#{}", record["mid"]), None)
        }
        Some(known) => {
            let known = known.replace("?sym", "symbol#");
            match known.find('(') {
                Some(at) => (known[..at].to_owned(), Some(known[at..].to_owned())),
                None => (known, None),
            }
        }
    };
    if method.is_some_and(|method| !method.starts_with("?method")) {
        attributes.insert("code.function.name".to_owned(), json!(name));
    }
    if let Some(signature) = signature {
        attributes.insert("zico.method.signature".to_owned(), json!(signature));
    }
    let closed = record["closed"].as_str().unwrap();
    let has_end = closed.starts_with("epilog") || closed.starts_with("end");
    if has_end {
        attributes.insert("zico.calls".to_owned(), record["calls"].clone());
    }
    if let Some(begin) = record.get("begin") {
        let trace_type = begin["ttype"].as_str().map(|text| text.replace("?sym", "symbol#"));
        trace_type.map(|text| attributes.insert("zico.trace.type".to_owned(), json!(text)));
        begin.get("parent").map(|parent| attributes.insert("zico.parent_span_id".to_owned(), parent.clone()));
    }
    mark_repaired(&mut attributes);
    let ids = symbols(&attributes);
    if !ids.is_empty() {
        attributes.insert("zico.unresolved.symbols".to_owned(), json!(ids));
    }
    // The short end of gen2 has no flags, which the recorded result shows as 0.
    record
        .get("flags")
        .filter(|_| closed != "end2")
        .map(|flags| attributes.insert("zico.flags".to_owned(), flags.clone()));
    // Times.
    let tick = tick_nanos(decode);
    let number = |value: &Value| value.as_u64().map(i128::from).or(value.as_i64().map(i128::from));
    let (start, stop) = (number(&record["tstart"]), number(&record["tstop"]).filter(|_| has_end));
    let step = |from: i128, to: i128| {
        let lap = 1i128 << 40;
        if is_gen2 {
            i128::from((to as u64).wrapping_sub(from as u64) as i64)
        } else {
            (to - from + lap / 2).rem_euclid(lap) - lap / 2
        }
    };
    let time = tops.first().and_then(|top| {
        let clock = i128::from(records[*top]["begin"]["clock"].as_i64()?) * 1_000_000;
        let time = clock + step(number(&records[*top]["tstart"])?, start?) * tick;
        (0..=i128::from(u64::MAX)).contains(&time).then_some(time)
    });
    let duration = start.zip(stop).map(|(start, stop)| step(start, stop) * tick).filter(|nanos| *nanos >= 0);
    if start.is_some() && stop.is_some() && duration.is_none() {
        attributes.insert("zico.time.backward".to_owned(), json!(true));
    }
    let end = time.zip(duration).map(|(time, duration)| time + duration).filter(|end| *end <= i128::from(u64::MAX));
    let mut missing = Vec::new();
    if start.is_none() {
        missing.extend(["method", "start"]);
    }
    if stop.is_none() {
        missing.push("end");
    }
    if !missing.is_empty() {
        attributes.insert("tributary.incomplete".to_owned(), json!(missing));
    }
    let has_thrown = record["exceptions"].as_array().is_some_and(|exceptions| !exceptions.is_empty());
    let has_failed =
        if is_gen2 { record.get("begin").is_some() && flags & GEN2_ERROR != 0 } else { flags & GEN1_ERROR != 0 };
    let status = if has_thrown || has_failed { "error" } else { "unset" };
    let rendered = |time: Option<i128>| time.map(|time| rfc3339(time as u64));
    let duration = duration.map(|nanos| nanos.to_string());
    let content = json!({
        "name": name, "time": rendered(time), "end": rendered(end), "duration": duration, "status": status,
    });
    Span { uncompared: several, ..Span::new(&content, &attributes) }
}

/// Ids of undefined strings: the independent decoder writes `?symN` for a text, anywhere in the attributes.
fn symbols(attributes: &Map<String, Value>) -> Vec<i64> {
    let text = Value::Object(attributes.clone()).to_string();
    let ids: BTreeSet<i64> = text
        .split("symbol#")
        .skip(1)
        .map(|rest| {
            let digits =
                rest.char_indices().take_while(|(at, digit)| digit.is_ascii_digit() || *at == 0 && *digit == '-');
            digits.map(|(_, digit)| digit).collect::<String>().parse().unwrap()
        })
        .collect();
    ids.into_iter().collect()
}

/// The independent decoder repairs text like ours, without a mark.
fn mark_repaired(attributes: &mut Map<String, Value>) {
    if Value::Object(attributes.clone()).to_string().contains('\u{FFFD}') {
        attributes.insert("tributary.text.repaired".to_owned(), json!(true));
    }
}

fn enclosing(index: usize, records: &[Value]) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(index), |index| records[*index]["parent"].as_u64().map(|parent| parent as usize))
}

/// The record that an upward attribute belongs to.
fn target(index: usize, trace_type: u64, records: &[Value]) -> usize {
    let is_meant = |index: &usize| {
        let begin = &records[*index]["begin"];
        !begin.is_null() && (trace_type == 0 || begin["ttype_id"].as_u64() == Some(trace_type))
    };
    enclosing(index, records).find(is_meant).unwrap_or(index)
}

fn key(key: &Value) -> String {
    let text = match value(key).0 {
        Value::String(text) => text.replace("?sym", "symbol#"),
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    };
    let is_ours = ["zico.", "tributary.", "exception."].iter().any(|prefix| text.starts_with(prefix))
        || ["code.function.name", "trace_id", "span_id"].contains(&text.as_str());
    if is_ours { format!("zico.attribute.{text}") } else { text }
}

fn set(attributes: &mut Map<String, Value>, name: &Value, raw: &Value) {
    let (value, is_bytes) = value(raw);
    let name = key(name);
    attributes.remove(&name);
    attributes.remove(&format!("{name}_base64"));
    attributes.insert(if is_bytes { format!("{name}_base64") } else { name }, value);
}

/// A value as shown in events, and whether it is bytes.
fn value(raw: &Value) -> (Value, bool) {
    let Value::Object(tagged) = raw else {
        return match raw {
            Value::Array(items) => (Value::Array(items.iter().map(|item| value(item).0).collect()), false),
            Value::String(text) => (json!(text), false),
            other => (other.clone(), false),
        };
    };
    if let Some(pairs) = tagged.get("map") {
        let mut map = Map::new();
        pairs.as_array().unwrap().iter().for_each(|pair| set(&mut map, &pair[0], &pair[1]));
        return (Value::Object(map), false);
    }
    if let Some(hex) = tagged.get("bytes") {
        let hex = hex.as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        return (json!(base64(&bytes)), true);
    }
    if let Some(id) = tagged.get("ref") {
        let text = tagged.get("s").and_then(Value::as_str).filter(|text| !text.starts_with("?sym"));
        return (json!(text.map_or_else(|| format!("symbol#{id}"), str::to_owned)), false);
    }
    if let Some(float) = tagged.get("float") {
        return (float.clone(), false);
    }
    if let Some(tag) = tagged.get("tag") {
        return (json!({ "tag": tag, "value": value(&tagged["value"]).0 }), false);
    }
    panic!("a value of another kind: {raw}");
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group.iter().chain([0, 0].iter()).take(3).fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The logs of a record's exceptions.
fn exceptions(record: &Value, records: &[Value]) -> Vec<String> {
    let all = record["exceptions"].as_array().into_iter().flatten();
    all.map(|one| {
        let mut content = Map::new();
        if let Some(id) = one.get("ref") {
            // A reference is resolved within its trace, and is marked.
            let known = records.iter().flat_map(|record| record["exceptions"].as_array().into_iter().flatten());
            let known: Vec<_> = known.filter(|other| other.get("id") == Some(id)).collect();
            if known.windows(2).any(|two| two[0] != two[1]) {
                // Ids may repeat, and the recorded results do not say which came last.
                return format!("{ANY}{}", plain(id));
            }
            known.into_iter().for_each(|known| describe(known, &mut content));
            content.insert("zico.exception.id".to_owned(), id.clone());
            content.insert("zico.exception.ref".to_owned(), json!(true));
        } else {
            describe(one, &mut content);
            content.insert("zico.exception.id".to_owned(), one["id"].clone());
            if one["cause"].as_i64().is_some_and(|cause| cause != 0) {
                content.insert("zico.exception.cause".to_owned(), one["cause"].clone());
            }
            for pair in one["attrs"].as_array().into_iter().flatten() {
                set(&mut content, &pair[0], &pair[1]);
            }
            content.retain(|_, value| !value.is_null());
        }
        mark_repaired(&mut content);
        plain(&Value::Object(content))
    })
    .collect()
}

fn describe(exception: &Value, content: &mut Map<String, Value>) {
    let text = |value: &Value| value.as_str().map(|text| text.replace("?sym", "symbol#"));
    let (class, message) = (text(&exception["class"]), text(&exception["message"]));
    let mut stack = class.clone().unwrap_or_else(|| "null".to_owned());
    if let Some(message) = &message {
        stack += &format!(": {message}");
    }
    for frame in exception["stack"].as_array().into_iter().flatten() {
        let part = |index: usize| text(&frame[index]).filter(|text| !text.is_empty());
        let place = match (part(2), frame[3].as_i64().unwrap()) {
            (_, -2) => "Native Method".to_owned(),
            (None, _) => "Unknown Source".to_owned(),
            (Some(file), line) if line > 0 => format!("{file}:{line}"),
            (Some(file), _) => file,
        };
        let name: Vec<_> = [part(0), part(1)].into_iter().flatten().collect();
        stack += &format!("\n\tat {}({place})", name.join("."));
    }
    class.map(|class| content.insert("exception.type".to_owned(), json!(class)));
    message.map(|message| content.insert("exception.message".to_owned(), json!(message)));
    content.insert("exception.stacktrace".to_owned(), json!(stack));
}

/// A time as the encoder must print it, computed in another way.
pub fn rfc3339(unix_nanos: u64) -> String {
    let at = jiff::Timestamp::from_nanosecond(i128::from(unix_nanos)).unwrap();
    let date = at.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    format!("{date}.{:09}Z", unix_nanos % 1_000_000_000)
}

/// JSON with sorted keys and canonical numbers.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().map(|(key, value)| (key, plain(value))).collect();
            let members: Vec<_> = sorted.into_iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
            format!("{{{}}}", members.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(plain).collect::<Vec<_>>().join(",")),
        Value::Number(number) => {
            let text = number.to_string();
            text.parse::<i128>().map_or_else(
                |_| format!("{:?}", text.parse::<f64>().unwrap()),
                |whole| {
                    if whole.unsigned_abs() < 1 << 53 || text.contains(['.', 'e']) {
                        format!("{:?}", whole as f64)
                    } else {
                        text.clone()
                    }
                },
            )
        }
        other => other.to_string(),
    }
}

/// Events → comparable spans.
pub fn found(events: &[&Value]) -> Vec<Span> {
    let mut logs = BTreeMap::<&str, Vec<String>>::new();
    for event in events.iter().filter(|event| event["name"] == "zico.exception") {
        assert_eq!(event["severity"], "ERROR");
        let content = event["attributes"].as_object().unwrap().clone();
        let span = event["span_id"].as_str().unwrap();
        for id in ["trace_id", "span_id"] {
            assert!(event[id].is_string() && !content.contains_key(id), "{event}");
        }
        logs.entry(span).or_default().push(plain(&Value::Object(content)));
    }
    let spans: Vec<_> = events.iter().filter(|event| event["kind"] == "span").collect();
    let mut own = BTreeMap::new();
    for event in &spans {
        let span = &event["span"];
        let duration = span.get("duration_ns").map(ToString::to_string);
        let content = json!({
            "name": event["name"], "time": event["time"], "end": span.get("end_time"), "duration": duration,
            "status": span["status"],
        });
        let none = Map::new();
        let attributes = event.get("attributes").map_or(&none, |attributes| attributes.as_object().unwrap());
        let mut content = Span::new(&content, attributes);
        content.links = span["links"].as_array().map_or(0, Vec::len);
        let id = span["span_id"].as_str().unwrap();
        let parent = span.get("parent_span_id").map(|parent| parent.as_str().unwrap());
        let digest = digest(&content.content);
        assert!(own.insert(id, (content, parent, digest)).is_none(), "two spans with the id {id}");
    }
    let mut found: Vec<_> = own
        .iter()
        .map(|(id, (content, parent, _))| {
            let mut around = Vec::new();
            let mut parent = *parent;
            // A root may have a parent in another process.
            while let Some((_, next, digest)) = parent.and_then(|id| own.get(id)) {
                around.push(*digest);
                parent = *next;
            }
            Span { exceptions: logs.remove(id).unwrap_or_default(), around, ..content.clone() }
        })
        .collect();
    assert!(logs.is_empty(), "exceptions of spans that are not there: {logs:?}");
    found.sort();
    found
}
