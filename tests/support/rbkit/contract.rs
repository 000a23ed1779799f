//! The section "Rbkit" of the event model as code: the expected events of a message.

use serde_json::{Value, json};

use super::recording::{Message, Object, unhex};

/// One expected event.
#[derive(Clone, Debug)]
pub struct Expected {
    pub kind: &'static str,
    pub name: String,
    /// Milliseconds since 1970.
    pub millis: u64,
    /// All of them.
    pub attributes: Vec<(&'static str, Want)>,
    /// The data of its kind.
    pub data: Vec<(&'static str, Want)>,
    /// The frames of a sample: function, file, line.
    pub frames: Vec<[Want; 3]>,
    /// Whether one of its texts is not UTF-8.
    pub is_repaired: bool,
}

/// An expectation for a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Want {
    /// Exactly this.
    Is(Value),
    /// This or missing.
    Maybe(Value),
    /// Nothing.
    Absent,
    /// This number, in any JSON form.
    Double(f64),
}

impl Want {
    pub fn is_met(&self, found: &Value) -> bool {
        match self {
            Want::Is(want) => want == found,
            Want::Maybe(want) => found.is_null() || want == found,
            Want::Absent => found.is_null(),
            Want::Double(want) => found.as_f64() == Some(*want),
        }
    }

    fn of(value: Option<Value>) -> Want {
        value.map_or(Want::Absent, Want::Is)
    }
}

/// A text of a decode: null, a string, or its bytes if it is not UTF-8. The second value: it had to be repaired.
pub fn text(value: &Value) -> (Option<String>, bool) {
    match (value, value["bytes"].as_str()) {
        (Value::String(text), _) => (Some(text.clone()), false),
        (Value::Null, _) => (None, false),
        (_, Some(hex)) => repaired(&unhex(hex)),
        _ => panic!("{value} is no text"),
    }
}

fn repaired(bytes: &[u8]) -> (Option<String>, bool) {
    (Some(String::from_utf8_lossy(bytes).into_owned()), std::str::from_utf8(bytes).is_err())
}

/// The events of a collection, in order, each dump followed by its summary once it is complete. Dumps that never are
/// leave a loss, which is not among these events.
pub fn collection(message: &Message) -> Vec<Expected> {
    let mut dumps = Dumps { objects: &message.objects, number: 0, open: None };
    let events = message.decoded["events"].as_array().unwrap();
    events.iter().flat_map(|event| one(message, event, &mut dumps)).collect()
}

fn one(message: &Message, event: &Value, dumps: &mut Dumps<'_>) -> Vec<Expected> {
    let millis = event["t"].as_u64().unwrap();
    let log = |name: &str| Expected {
        kind: "log",
        name: name.to_owned(),
        millis,
        attributes: Vec::new(),
        data: Vec::new(),
        frames: Vec::new(),
        is_repaired: false,
    };
    let id = || ("rbkit.object.id", Want::Is(event["id"].clone()));
    match event["e"].as_str().unwrap() {
        "obj_created" => {
            let (class, is_repaired) = text(&event["class"]);
            let class = ("rbkit.class.name", Want::of(class.map(Value::from)));
            vec![Expected { attributes: vec![id(), class], is_repaired, ..log("rbkit.object.created") }]
        }
        "obj_destroyed" => vec![Expected { attributes: vec![id()], ..log("rbkit.object.destroyed") }],
        "gc_start" => vec![log("rbkit.gc.start")],
        "gc_end_m" => vec![log("rbkit.gc.end_mark")],
        "gc_end_s" => vec![log("rbkit.gc.end_sweep")],
        "gc_stats" => {
            let stats = event["stats"].as_object().unwrap().iter();
            stats.filter(|(_, value)| **value != "").map(|(key, value)| stat(key, value, &log)).collect()
        }
        "cpu_sample" => vec![cpu_sample(message, event, log("rbkit.cpu"))],
        "allocation_snapshot" => allocations(event, &log("rbkit.allocations")),
        "object_space_dump" => dumps.event(event, &log),
        other => panic!("{other}"),
    }
}

fn stat(key: &str, value: &Value, log: &impl Fn(&str) -> Expected) -> Expected {
    let clean: String = key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    let is_sum =
        ["count", "minor_gc_count", "major_gc_count", "total_allocated_objects", "total_freed_objects"].contains(&key);
    let value = match value {
        Value::String(decimal) => decimal
            .parse::<u64>()
            .map_or_else(|_| Want::Double(decimal.parse().unwrap()), |number| Want::Is(number.into())),
        number if number.is_f64() && !number.is_u64() && !number.is_i64() => Want::Double(number.as_f64().unwrap()),
        number => Want::Is(number.clone()),
    };
    let mut data = vec![("value", value), ("type", Want::Is(if is_sum { "sum" } else { "gauge" }.into()))];
    if is_sum {
        data.push(("temporality", Want::Is("cumulative".into())));
        data.push(("monotonic", Want::Is(true.into())));
    }
    Expected { kind: "metric", data, ..log(&format!("rbkit.gc.{clean}")) }
}

fn cpu_sample(message: &Message, event: &Value, log: Expected) -> Expected {
    let table = message.decoded["frame_table"].as_array();
    let rows: Vec<&Value> = event["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|index| &table.unwrap()[index.as_u64().unwrap() as usize])
        .collect();
    // Method, label, file, line, singleton, thread. No recorded label is missing.
    let frames = rows.iter().map(|row| frame(&row[1], &row[2], &row[3])).collect();
    let texts = rows.iter().flat_map(|row| [text(&row[1]), text(&row[2])]);
    let is_repaired = texts.into_iter().any(|(_, is_repaired)| is_repaired);
    let thread = rows.first().map(|row| row[5].clone()).filter(|thread| !thread.is_null());
    Expected {
        kind: "sample",
        attributes: vec![("thread.id", Want::of(thread))],
        data: sampled("cpu", 1.into()).into_iter().chain([("period_ns", Want::Is(1_000_000.into()))]).collect(),
        frames,
        is_repaired,
        ..log
    }
}

fn sampled(kind: &str, value: Value) -> Vec<(&'static str, Want)> {
    let unit = ("unit", Want::Is("count".into()));
    vec![("type", Want::Is(kind.into())), unit, ("value", Want::Is(value))]
}

/// Frames of C functions have line 0, which means none.
fn frame(function: &Value, file: &Value, line: &Value) -> [Want; 3] {
    let line = if *line == 0 { Want::Absent } else { Want::of(Some(line.clone()).filter(|line| !line.is_null())) };
    [Want::of(text(function).0.map(Value::from)), Want::of(text(file).0.map(Value::from)), line]
}

/// One event for each site; if the stacks are known, one for each stack.
fn allocations(event: &Value, log: &Expected) -> Vec<Expected> {
    let mut all = Vec::new();
    let stacks = event["stacktraces"].as_array().unwrap();
    for site in event["allocations"].as_array().unwrap() {
        let ((file, file_repaired), (class, class_repaired)) = (text(&site["file"]), text(&site["type"]));
        // Objects without class and size are internal to Ruby.
        let is_internal = class.as_deref() == Some("(null)");
        let class = class.map(Value::from);
        let attributes = vec![
            ("code.file.path", Want::of(file.map(Value::from))),
            ("code.line.number", if site["line"] == 0 { Want::Absent } else { Want::Is(site["line"].clone()) }),
            ("rbkit.class.name", if is_internal { Want::Maybe("(null)".into()) } else { Want::of(class) }),
            (
                "rbkit.object.size",
                if site["size"] == 0 { Want::Maybe(0.into()) } else { Want::Is(site["size"].clone()) },
            ),
        ];
        let one = |count: &Value, frames| Expected {
            kind: "sample",
            attributes: attributes.clone(),
            data: sampled("alloc_objects", count.clone()),
            frames,
            is_repaired: file_repaired || class_repaired,
            ..log.clone()
        };
        match site["stacktraces"].as_array() {
            None => all.push(one(&site["count"], Vec::new())),
            Some(counts) => {
                // Generated sites have more allocations than their stacks; the rest has no stack.
                let known: u64 = counts.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
                let rest = site["count"].as_u64().unwrap().saturating_sub(known);
                all.extend(counts.iter().map(|pair| {
                    let stack = stacks.iter().find(|stack| stack["id"] == pair[0]);
                    let frames = stack.map_or(&[][..], |stack| stack["frames"].as_array().unwrap());
                    one(&pair[1], frames.iter().map(|row| frame(&row[0], &row[1], &row[2])).collect())
                }));
                all.extend((rest > 0).then(|| one(&rest.into(), Vec::new())));
            }
        }
    }
    all
}

/// The dumps of one message.
struct Dumps<'a> {
    /// Objects that are missing.
    objects: &'a [Object],
    /// Dumps without a correlation id so far.
    number: u64,
    /// The open dump, and the number of its objects so far.
    open: Option<(u64, u64)>,
}

impl Dumps<'_> {
    fn event(&mut self, event: &Value, log: &impl Fn(&str) -> Expected) -> Vec<Expected> {
        let count = event["objects"].as_u64().unwrap();
        let (number, complete) = match (event["correlation_id"].as_u64(), event["complete_message_count"].as_u64()) {
            (Some(number), Some(complete)) => (number, complete),
            _ => {
                self.number += 1;
                (self.number, count)
            }
        };
        let about =
            [("rbkit.dump.id", Want::Is(number.into())), ("rbkit.dump.object_count", Want::Is(complete.into()))];
        // Generated messages have no list of their objects, only their number.
        let (mine, rest) = self.objects.split_at(self.objects.len().min(count as usize));
        self.objects = rest;
        let mut all: Vec<_> = mine.iter().map(|object| heap_object(object, &about, log)).collect();
        if mine.is_empty() {
            all = (0..count).map(|_| log("rbkit.heap.object")).collect();
        }
        let before = self.open.filter(|(open, _)| *open == number).map_or(0, |(_, before)| before);
        self.open = Some((number, before + count));
        if before + count >= complete {
            self.open = None;
            all.push(Expected { attributes: about.to_vec(), ..log("rbkit.heap.dump") });
        }
        all
    }
}

fn heap_object(object: &Object, about: &[(&'static str, Want)], log: &impl Fn(&str) -> Expected) -> Expected {
    let mut is_repaired = false;
    let mut text = |bytes: &Option<Vec<u8>>| match bytes {
        Some(bytes) => {
            let (text, was_repaired) = repaired(bytes);
            is_repaired |= was_repaired;
            Want::of(text.map(Value::from))
        }
        None => Want::Absent,
    };
    let (class, file) = (text(&object.class), text(&object.file));
    let references = json!(object.references);
    let references = if object.references.is_empty() { Want::Maybe(references) } else { Want::Is(references) };
    let mut attributes = vec![
        ("rbkit.object.id", Want::Is(object.id.into())),
        ("rbkit.class.name", class),
        ("rbkit.object.references", references),
        ("code.file.path", file),
        ("code.line.number", Want::of(object.line.map(Value::from))),
        ("rbkit.object.size", Want::of(object.size.map(Value::from))),
    ];
    attributes.extend(about.iter().cloned());
    Expected { attributes, is_repaired, ..log("rbkit.heap.object") }
}

/// The resource of the events after a handshake.
pub fn resource(handshake: &Value) -> Vec<(&'static str, Value)> {
    let payload = &handshake["payload"];
    let names = [
        ("process.pid", "pid"),
        ("process.executable.name", "process_name"),
        ("process.working_directory", "pwd"),
        ("rbkit.server.version", "rbkit_server_version"),
        ("rbkit.protocol.version", "rbkit_protocol_version"),
    ];
    let expected = names.into_iter().filter(|(_, key)| !payload[*key].is_null());
    let value = |key: &str| match &payload[key] {
        Value::Number(number) => Value::Number(number.clone()),
        other => text(other).0.unwrap().into(),
    };
    expected.map(|(name, key)| (name, value(key))).chain([("process.runtime.name", "ruby".into())]).collect()
}
