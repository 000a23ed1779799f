//! The recorded bundles, and the JSON lines that `docs/event-model.md` specifies for each: made of the results of an independent
//! decoder, by code that shares nothing with ours.

pub mod http;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::sync::LazyLock;

use flate2::read::MultiGzDecoder;
use serde_json::{Map, Value, json};

pub fn data() -> PathBuf {
    crate::project().join("tests/data/endless")
}

fn read_json(path: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(data().join(path)).unwrap()).unwrap()
}

pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    MultiGzDecoder::new(bytes).read_to_end(&mut plain).unwrap();
    plain
}

/// One recorded case.
pub struct Case {
    pub name: String,
    /// The whole request, as on the wire.
    pub request: Vec<u8>,
    /// The uncompressed bundle.
    pub body: Vec<u8>,
    pub outcome: Value,
    pub expected: Value,
}

impl Case {
    pub fn version(&self) -> u64 {
        self.expected["protocol"].as_u64().unwrap()
    }

    pub fn is_normal(&self) -> bool {
        self.expected["normal"].as_bool().unwrap()
    }

    pub fn is_refused(&self) -> bool {
        self.outcome["bundle"] == "refused"
    }

    /// The type of the whole bundle.
    pub fn bundle_type(&self) -> &str {
        self.expected["type"].as_str().unwrap()
    }

    /// The receive time, as far as the expected times depend on it.
    pub fn received(&self) -> u64 {
        self.expected["derived"]["received_at_ns"].as_u64().unwrap_or(1_795_176_900_000_000_000)
    }

    fn named(case: &Value) -> Case {
        let name = case["name"].as_str().unwrap();
        let folder = data().join(name);
        let request = fs::read(folder.join("request.http")).unwrap();
        let head_end = request.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        let body = fs::read(folder.join("body.bin")).unwrap_or_else(|_| gunzip(&request[head_end..]));
        let expected = match fs::read(folder.join("expected.json")) {
            Ok(text) => text,
            Err(_) => gunzip(&fs::read(folder.join("expected.json.gz")).unwrap()),
        };
        let expected = serde_json::from_slice(&expected).unwrap();
        Case { name: name.to_owned(), request, body, outcome: case["outcome"].clone(), expected }
    }
}

pub fn cases() -> Vec<Case> {
    let manifest = read_json("manifest.json");
    let cases: Vec<_> = manifest["cases"].as_array().unwrap().iter().map(Case::named).collect();
    assert!(cases.len() > 95, "the manifest names its cases");
    cases
}

/// One recorded request about HTTP.
pub struct HttpCase {
    pub name: String,
    pub request: Vec<u8>,
    pub statuses: Vec<u16>,
    pub action: String,
}

pub fn http_cases() -> Vec<HttpCase> {
    let cases = read_json("http-cases.json");
    let one = |case: &Value| HttpCase {
        name: case["name"].as_str().unwrap().to_owned(),
        request: fs::read(data().join(case["file"].as_str().unwrap())).unwrap(),
        statuses: case["collector_status"].as_array().unwrap().iter().map(|s| s.as_u64().unwrap() as u16).collect(),
        action: case["collector_action"].as_str().unwrap().to_owned(),
    };
    cases["cases"].as_array().unwrap().iter().map(one).collect()
}

/// Doubles in canonical form, for comparison.
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.to_string().contains(['.', 'e', 'E']) => {
            json!(format!("double {:?}", number.to_string().parse::<f64>().unwrap()))
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Object(members) => members.iter().map(|(key, value)| (key.clone(), canonical(value))).collect(),
        other => other.clone(),
    }
}

/// An event without the parts that recorded results do not have: origin and receive time.
pub fn comparable(event: &Value) -> Value {
    let mut event = event.as_object().unwrap().clone();
    event.remove("origin");
    event.remove("observed_time");
    canonical(&Value::Object(event))
}

/// The expected events, without losses, of a case that is received at this time.
pub fn expected_events(case: &Case, received: u64) -> Vec<Value> {
    let expected = &case.expected;
    let version = case.version();
    let (head, kinds): (Vec<Value>, [Vec<Value>; 3]) = if expected["normal"] == true {
        let value = expected["value"].as_array().unwrap();
        let events = if version == 3 { 5 } else { value.len() - 3 };
        let kind = |index: usize| value.get(events + index).and_then(Value::as_array).cloned().unwrap_or_default();
        (value[..events].to_vec(), [kind(0), kind(1), kind(2)])
    } else if expected["salvage"]["bundle"] == "ok" {
        let salvage = &expected["salvage"];
        let kind = |name: &str| salvage[name].as_array().cloned().unwrap_or_default();
        (salvage["header"].as_array().unwrap().clone(), [kind("singular"), kind("aggregate"), kind("sequence")])
    } else {
        return Vec::new();
    };
    let bundle = Expected { version, received, head };
    let mut events = Vec::new();
    for event in &kinds[0] {
        events.extend(bundle.singular(event));
    }
    for event in &kinds[1] {
        events.extend(bundle.aggregate(event));
    }
    for event in &kinds[2] {
        events.extend(bundle.sequence(event));
    }
    events.iter().map(canonical).collect()
}

struct Expected {
    version: u64,
    received: u64,
    head: Vec<Value>,
}

impl Expected {
    fn header(&self, index: usize) -> &Value {
        // Version 2 has a send number first.
        &self.head[index + usize::from(self.version == 2)]
    }

    /// The time of an event by rules 9 and 10, and its marks.
    fn time(&self, relative: &Value, attributes: &mut Map<String, Value>) -> Value {
        let (base, is_received) = self.base();
        let nanos = base - int(self.header(0)) + int(relative);
        match u64::try_from(nanos) {
            Ok(nanos) => {
                if is_received {
                    attributes.insert("tributary.time.basis".into(), json!("received"));
                }
                json!(rfc3339(nanos))
            }
            Err(_) => {
                let own = int(self.header(1)) - int(self.header(0)) + int(relative);
                if let Ok(own) = i64::try_from(own) {
                    attributes.insert("endless.time.unix_nanos".into(), json!(own));
                }
                Value::Null
            }
        }
    }

    fn base(&self) -> (i128, bool) {
        let (absolute, received) = (int(self.header(1)), i128::from(self.received));
        let gap = received - absolute;
        let is_wrong = self.version == 3 && !(-1_000_000_000..=600_000_000_000).contains(&gap);
        if is_wrong { (received, true) } else { (absolute, false) }
    }

    fn singular(&self, event: &Value) -> Option<Value> {
        let Some(event) = event.as_array() else { return self.faulty(event, "endless.event") };
        let (head, relative, payload) = match self.version {
            3 => ([&event[0], &event[1]], &event[2], &event[3]),
            _ => ([&event[1], &event[0]], &event[2], &event[3]),
        };
        let mut attributes = self.attributes(head);
        let body = self.payload(head[0], payload, &mut attributes);
        let time = self.time(relative, &mut attributes);
        Some(self.log("endless.event", time, body, attributes))
    }

    fn sequence(&self, event: &Value) -> Vec<Value> {
        let event = event.as_array().unwrap();
        let items = event[2].as_array().unwrap();
        let one = |(index, item): (usize, &Value)| {
            let mut attributes = self.attributes([&event[1], &event[0]]);
            attributes.insert("endless.sequence.index".into(), json!(index));
            attributes.insert("endless.sequence.length".into(), json!(items.len()));
            let body = self.payload(&event[1], &item[1], &mut attributes);
            // The end of a sequence has no payload.
            if body.is_none() && items.len() > 1 && index + 1 == items.len() {
                attributes.remove("endless.payload.expected");
            }
            if items.len() == 1 {
                attributes.insert("tributary.incomplete".into(), json!(["sequence"]));
            }
            let time = self.time(&item[0], &mut attributes);
            self.log("endless.sequence", time, body, attributes)
        };
        items.iter().enumerate().map(one).collect()
    }

    fn aggregate(&self, event: &Value) -> Option<Value> {
        let Some(event) = event.as_array() else { return self.faulty(event, "endless.aggregate") };
        let mut metric = json!({"type": "sum"});
        let (head, payload);
        if self.version == 3 {
            (head, payload) = ([&event[0], &event[1]], &event[4]);
            metric["value"] = event[3].clone();
            metric["temporality"] = json!("delta");
            metric["monotonic"] = json!(false);
        } else {
            (head, payload) = ([&event[1], &event[0]], &event[4]);
            metric["value"] = event[2].clone();
            metric["temporality"] = json!("delta");
            metric["monotonic"] = json!(false);
        }
        let mut attributes = self.attributes(head);
        let time = if self.version == 3 {
            attributes.insert("endless.period".into(), event[2].clone());
            let period = period(event[2].as_str().unwrap());
            if let Some((start, _)) = period {
                metric["start_time"] = json!(rfc3339(start));
            }
            period.map_or(Value::Null, |(_, end)| json!(rfc3339(end)))
        } else {
            self.time(&event[3], &mut attributes)
        };
        if let Some(body) = self.payload(head[0], payload, &mut attributes) {
            attributes.insert("endless.payload".into(), body);
        }
        let mut line = json!({"time": time, "kind": "metric", "name": "endless.aggregate", "metric": metric});
        line["attributes"] = attributes.into();
        line["resource"] = self.resource();
        Some(line)
    }

    /// A faulty event: lost, or without its payload.
    fn faulty(&self, event: &Value, name: &str) -> Option<Value> {
        let fault = event["error"].as_str().unwrap();
        fault.starts_with("payload:").then(|| json!({"faulty": name}))
    }

    fn log(&self, name: &str, time: Value, body: Option<Value>, attributes: Map<String, Value>) -> Value {
        let mut line = json!({"time": time, "kind": "log", "name": name, "severity": "INFO"});
        if let Some(body) = body {
            line["body"] = body;
        }
        line["attributes"] = attributes.into();
        line["resource"] = self.resource();
        line
    }

    /// Id, name, and OS version or user.
    fn attributes(&self, [id, other]: [&Value; 2]) -> Map<String, Value> {
        let hex = id["hex"].as_str().unwrap();
        let id = match hex.len() {
            32 => [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"),
            _ => hex.to_owned(),
        };
        let mut attributes = Map::new();
        if let Some(name) = known(&id) {
            attributes.insert("endless.event.name".into(), json!(name));
        }
        attributes.insert("endless.event.id".into(), json!(id));
        let key = if self.version == 3 { "os.version" } else { "endless.user.id" };
        attributes.insert(key.into(), other.clone());
        attributes
    }

    fn payload(&self, id: &Value, payload: &Value, attributes: &mut Map<String, Value>) -> Option<Value> {
        let id = self.attributes([id, &Value::Null])["endless.event.id"].as_str().unwrap().to_owned();
        let mut content = payload.get("just");
        while let Some(inner) = content.filter(|content| content["v"] == "v") {
            content = Some(&inner["value"]);
        }
        let payload_type = content.map(|content| content["v"].as_str().unwrap());
        if let Some(payload_type) = payload_type {
            attributes.insert("endless.payload.type".into(), json!(payload_type));
        }
        let body = content.map(|content| structural(payload_type.unwrap(), &content["value"]));
        if let Some(entry) = registered(&id, self.version) {
            let types: Vec<&str> =
                entry["payload_types"].as_array().into_iter().flatten().map(|t| t.as_str().unwrap()).collect();
            if payload_type.map_or(types.is_empty(), |found| types.contains(&found)) {
                if let Some(fields) = fields(&id, entry, payload_type, body.as_ref()) {
                    attributes.insert("endless.fields".into(), fields);
                }
            } else {
                let expected = if types.is_empty() { "none".to_owned() } else { types.join("|") };
                attributes.insert("endless.payload.expected".into(), json!(expected));
            }
        }
        body
    }

    fn resource(&self) -> Value {
        let mut resource = Map::new();
        resource.insert("endless.protocol.version".into(), json!(self.version.to_string()));
        if self.version < 3 {
            resource.insert("endless.machine.id".into(), self.header(2)["hex"].clone());
            if self.version == 2 {
                resource.insert("endless.send_number".into(), self.head[0].clone());
            }
            return resource.into();
        }
        let image = self.head[2].as_str().unwrap();
        if !["unknown", "[Invalid UTF-8]"].contains(&image) {
            resource.insert("endless.image".into(), json!(image));
            let parts: Vec<&str> = image.splitn(5, '-').collect();
            if let [product, branch, architecture, platform, rest] = parts[..] {
                let (platform, date) = platform.split_once('.').unwrap();
                let (time, personality) = rest.split_once('.').unwrap();
                let two = |text: &str| [text[..2].to_owned(), text[2..4].to_owned(), text[4..].to_owned()];
                let built = format!("20{}T{}Z", two(date).join("-"), two(time).join(":"));
                for (part, text) in [
                    ("product", product),
                    ("branch", branch),
                    ("architecture", architecture),
                    ("platform", platform),
                    ("built", &built),
                    ("personality", personality),
                ] {
                    resource.insert(format!("endless.image.{part}"), json!(text));
                }
            }
        }
        let flags = self.head[4].as_u64().unwrap();
        resource.insert("endless.dualboot".into(), json!(flags & 1 == 1));
        resource.insert("endless.live".into(), json!(flags & 2 == 2));
        for entry in self.head[3]["dict"].as_array().unwrap() {
            if entry[1] != "" {
                resource.insert(format!("endless.site.{}", entry[0].as_str().unwrap()), entry[1].clone());
            }
        }
        resource.into()
    }
}

/// Compares events with the expected ones; the order of keys is ignored.
pub fn assert_events(name: &str, found: &[Value], expected: &[Value]) {
    assert_eq!(found.len(), expected.len(), "{name}: {found:#?}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        if let Some(kind) = expected.get("faulty") {
            assert_eq!(&found["name"], kind, "{name} {index}");
            assert_eq!(found["attributes"]["tributary.incomplete"], json!(["payload"]), "{name} {index}");
            assert!(found["attributes"]["endless.payload_base64"].is_string(), "{name} {index}");
            assert!(found.get("body").is_none() && found["attributes"].get("endless.payload").is_none());
            continue;
        }
        assert!(found == expected, "{name} {index}:\nfound    {found}\nexpected {expected}");
    }
}

static REGISTRY: LazyLock<Value> = LazyLock::new(|| read_json("events.json"));

fn known(id: &str) -> Option<String> {
    let is_it = |event: &&Value| event["uuid"] == id;
    if let Some(event) = REGISTRY["events"].as_array().unwrap().iter().find(is_it) {
        return Some(event["name"].as_str().unwrap().to_owned());
    }
    let is_among = |entry: &&Value| entry["uuids"].as_array().unwrap().iter().any(|one| one == id);
    if let Some(entry) = REGISTRY["deprecated"].as_array().unwrap().iter().find(is_among) {
        return Some(entry["title"].as_str().unwrap().to_owned());
    }
    let title = REGISTRY["ignored_titles"][id].as_str()?;
    Some(title.split(", payload").next().unwrap().to_owned())
}

/// The registry's entry of an event for this version; `None` also for events that no collector decoded.
fn registered(id: &str, version: u64) -> Option<&'static Value> {
    let event = REGISTRY["events"].as_array().unwrap().iter().find(|event| event["uuid"] == id)?;
    let protocol = if version == 3 { 3 } else { 2 };
    event["protocols"].as_array().unwrap().iter().find(|entry| entry["protocol"] == protocol)
}

fn fields(id: &str, entry: &Value, payload_type: Option<&str>, body: Option<&Value>) -> Option<Value> {
    let mut names: Vec<&str> =
        entry["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap()).collect();
    if known(id).unwrap() == "ShellAppIsOpen" {
        // The duration is not in the payload: it is the time between the first item and the last.
        names.retain(|name| *name != "duration");
    }
    let (body, payload_type) = (body?, payload_type?);
    if known(id).unwrap() == "OSVersion" {
        return Some(json!({"version": body[1].as_str().unwrap().trim_matches('"')}));
    }
    match (names.as_slice(), payload_type.starts_with('(')) {
        ([], _) => None,
        (names, true) => Some(
            names
                .iter()
                .zip(body.as_array().unwrap())
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
        ),
        ([name], false) => Some(json!({*name: body})),
        _ => None,
    }
}

/// A value of a recorded result as plain JSON, by its type.
fn structural(kind: &str, value: &Value) -> Value {
    match kind.as_bytes()[0] {
        b'v' => structural(value["v"].as_str().unwrap(), &value["value"]),
        b'm' if value.is_null() => Value::Null,
        b'm' => structural(&kind[1..], &value["just"]),
        b'a' if kind == "ay" => json!(base64(value["hex"].as_str().unwrap())),
        b'a' if kind.starts_with("a{") => {
            let entries = value["dict"].as_array().unwrap().iter();
            let [key, content] = members(&kind[1..]).try_into().unwrap();
            let entries = entries.map(|entry| (structural(key, &entry[0]), structural(content, &entry[1])));
            if ["s", "o", "g"].contains(&key) {
                entries.map(|(key, value)| (key.as_str().unwrap().to_owned(), value)).collect()
            } else {
                entries.map(|(key, value)| json!([key, value])).collect()
            }
        }
        b'a' => value.as_array().unwrap().iter().map(|item| structural(&kind[1..], item)).collect(),
        b'(' | b'{' => {
            let items = value.as_array().unwrap();
            members(kind).iter().zip(items).map(|(kind, item)| structural(kind, item)).collect()
        }
        b'd' => match value.as_str() {
            Some("nan") => json!("NaN"),
            Some("inf") => json!("Infinity"),
            Some("-inf") => json!("-Infinity"),
            _ => json!(value.to_string().parse::<f64>().unwrap()),
        },
        _ => value.clone(),
    }
}

/// The members of a tuple or entry type.
fn members(kind: &str) -> Vec<&str> {
    let mut inner = &kind[1..kind.len() - 1];
    let mut members = Vec::new();
    while !inner.is_empty() {
        let (member, rest) = inner.split_at(end_of_type(inner));
        members.push(member);
        inner = rest;
    }
    members
}

fn end_of_type(text: &str) -> usize {
    match text.as_bytes()[0] {
        b'a' | b'm' => 1 + end_of_type(&text[1..]),
        b'(' | b'{' => {
            let mut depth = 0;
            let is_end = |byte: u8| {
                depth += i32::from(b"({".contains(&byte)) - i32::from(b")}".contains(&byte));
                depth == 0
            };
            1 + text.bytes().position(is_end).unwrap()
        }
        _ => 1,
    }
}

fn base64(hex: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> =
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect();
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for digit in 0..4 {
            let is_there = digit <= chunk.len();
            text.push(if is_there { DIGITS[(bits >> (18 - 6 * digit)) as usize & 63] as char } else { '=' });
        }
    }
    text
}

fn int(value: &Value) -> i128 {
    value.to_string().parse().unwrap()
}

/// A period's bounds, by independent calendar arithmetic.
fn period(text: &str) -> Option<(u64, u64)> {
    let numbers: Vec<i64> = text.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (year, month, day) = match (numbers.as_slice(), text.len()) {
        ([year, month, day], 10) => (*year, *month, Some(*day)),
        ([year, month], 7) => (*year, *month, None),
        _ => return None,
    };
    if !(1..=12).contains(&month) {
        return None;
    }
    let next = if month == 12 { days(year + 1, 1) } else { days(year, month + 1) };
    let (start, end) = match day {
        None => (days(year, month), next),
        Some(day) => (days(year, month) + day - 1, days(year, month) + day),
    };
    let is_day = day.is_none_or(|day| day >= 1 && end <= next);
    let nanos = |day: i64| u64::try_from(day).ok().map(|day| day * 86_400 * 1_000_000_000);
    Some((nanos(start)?, nanos(end)?)).filter(|_| is_day)
}

/// Days from 1970 to the first of a month.
fn days(year: i64, month: i64) -> i64 {
    let is_leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let years: i64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    years + lengths[..month as usize - 1].iter().sum::<i64>()
}

pub fn rfc3339(unix_nanos: u64) -> String {
    let at = jiff::Timestamp::from_nanosecond(i128::from(unix_nanos)).unwrap();
    format!("{}.{:09}Z", at.strftime("%Y-%m-%dT%H:%M:%S"), unix_nanos % 1_000_000_000)
}

/// Nanoseconds since 1970 of a time in an event.
pub fn unix_nanos(text: &str) -> u64 {
    text.parse::<jiff::Timestamp>().unwrap().as_nanosecond().try_into().unwrap()
}
