//! The events that each message must become: `docs/event-model.md`, section Bytefrog.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::names::{self, Known, Names};
use super::recording::{Message, Recording};
use super::text::Text;

/// The expected value of an attribute.
#[derive(Clone, Debug)]
pub enum Want {
    Is(Value),
    /// Any of these: the wire does not determine it.
    In(Vec<Value>),
    /// A text with U+FFFD in it.
    Repaired,
    /// An id in hex digits.
    Hex,
    /// As inside, or absent.
    Maybe(Box<Want>),
}

/// The one event that a message must become.
#[derive(Clone, Debug)]
pub struct Expected {
    pub stream: usize,
    pub offset: u64,
    pub length: u64,
    pub kind: &'static str,
    pub name: &'static str,
    pub severity: &'static str,
    pub sequence: Option<u32>,
    /// The time of the peer. `None`: the time is that of receipt.
    pub relative_millis: Option<u64>,
    pub attributes: BTreeMap<&'static str, Want>,
    /// Attributes beyond those listed are allowed.
    pub may_have_more: bool,
    pub body: Option<Want>,
    pub loss: Option<ExpectedLoss>,
}

#[derive(Clone, Debug)]
pub struct ExpectedLoss {
    /// Any of these.
    pub reasons: &'static [&'static str],
    pub bytes: u64,
    /// If the number is known.
    pub events: Option<u64>,
    /// The first lost bytes.
    pub lost: Vec<u8>,
}

/// What must be reported about a whole run.
#[derive(Debug)]
pub struct ExpectedRun {
    pub sequenced: u64,
    /// Numbers that are missing and that no data break explains, first and last.
    pub gaps: Vec<(u32, u32)>,
}

/// Everything that a listener with `emit_definitions` must write for the messages of a recording.
pub fn expected(recording: &Recording, known: Known) -> Vec<Expected> {
    let names = Names::of(recording);
    let mut numbers = BTreeSet::new();
    let mut last_break = None;
    let mut expected = Vec::new();
    for (stream, message) in recording.messages() {
        let contract = Contract { recording, names: &names, stream, message, known };
        let is_new = message.sequence().is_none_or(|number| numbers.insert(number));
        if !recording.has_run() {
            expected.push(contract.unheard());
            continue;
        }
        expected.extend(match message.type_id() {
            None => Some(contract.end()),
            Some(30) => None,
            Some(_) if !is_new => Some(contract.lost(&["duplicate"], Some(1))),
            Some(9) => {
                let number = message.number("seq").unwrap() as u32;
                let is_forward = last_break.is_none_or(|last| number.wrapping_sub(last) as i32 > 0);
                if is_forward {
                    last_break = Some(number);
                }
                Some(if is_forward { contract.data_break() } else { contract.idle_break(last_break == Some(number)) })
            }
            Some(type_id) => Some(contract.event(type_id)),
        });
    }
    for stream in (0..recording.streams.len()).filter(|stream| recording.is_unregistered(*stream)) {
        let message = &recording.streams[stream].messages[0];
        let contract = Contract { recording, names: &names, stream, message, known };
        expected.push(contract.all_lost(&["unauthorized"]));
    }
    expected
}

/// What must be reported about the run at its end.
pub fn expected_run(recording: &Recording) -> ExpectedRun {
    let numbers: BTreeSet<u32> = recording.messages().filter_map(|(_, message)| message.sequence()).collect();
    let breaks: Vec<u32> = recording
        .messages()
        .filter(|(_, message)| message.type_id() == Some(9))
        .map(|(_, message)| message.number("seq").unwrap() as u32)
        .collect();
    let mut gaps = Vec::new();
    let mut next = 0;
    for number in &numbers {
        if *number > next && !breaks.contains(number) {
            gaps.push((next, number - 1));
        }
        next = number.saturating_add(1);
    }
    ExpectedRun { sequenced: numbers.len() as u64, gaps }
}

/// One message, and what is needed to judge it.
struct Contract<'a> {
    recording: &'a Recording,
    names: &'a Names,
    stream: usize,
    message: &'a Message,
    known: Known,
}

impl Contract<'_> {
    fn log(&self, name: &'static str) -> Expected {
        let relative_millis = self.message.number("time");
        let mut expected = Expected {
            stream: self.stream,
            offset: self.message.offset(),
            length: self.message.bytes().len() as u64,
            kind: "log",
            name,
            severity: "INFO",
            sequence: self.message.sequence(),
            relative_millis,
            attributes: BTreeMap::new(),
            may_have_more: false,
            body: None,
            loss: None,
        };
        match relative_millis {
            Some(millis) => {
                expected.is("bytefrog.time.relative_ms", json!(millis));
                expected.is("tributary.time.basis", json!("peer_relative"));
            }
            None => expected.is("tributary.time.basis", json!("received")),
        }
        expected
    }

    fn event(&self, type_id: u8) -> Expected {
        match type_id {
            0 | 16 => self.log("bytefrog.agent.connected"),
            8 => self.heartbeat(),
            10..=13 | 15 => self.definition(type_id),
            14 => self.visit(),
            20 => self.call("bytefrog.method.entry"),
            21 => self.exit(),
            22 | 23 => self.exception(type_id),
            40..=42 => self.class(type_id),
            50 => self.marker(),
            99 => {
                let mut event = self.log("bytefrog.agent.error");
                event.severity = "ERROR";
                event.body = Some(event.show(&[self.message.text("text")], str::to_owned));
                event
            }
            other => panic!("a type that this contract does not know: {other}"),
        }
    }

    fn heartbeat(&self) -> Expected {
        let mut event = self.log("bytefrog.heartbeat");
        match self.message.field("mode") {
            Value::String(mode) => event.is("bytefrog.mode", json!(mode)),
            value => {
                event.is("bytefrog.mode", json!("unknown"));
                event.is("bytefrog.mode.value", value.clone());
            }
        }
        event.is("bytefrog.buffers.readable", self.message.field("send_queue").clone());
        event
    }

    fn class(&self, type_id: u8) -> Expected {
        let mut event = self.log(match type_id {
            40 => "bytefrog.class.transformed",
            41 => "bytefrog.class.ignored",
            _ => "bytefrog.class.transform_failed",
        });
        if type_id == 42 {
            event.severity = "WARN";
        }
        let name = event.show(&[self.message.text("text")], str::to_owned);
        event.wants("bytefrog.class.name", name);
        event
    }

    fn marker(&self) -> Expected {
        let mut event = self.log("bytefrog.marker");
        for (key, attribute) in [("key", "bytefrog.marker.key"), ("value", "bytefrog.marker.value")] {
            let text = event.show(&[self.message.text(key)], str::to_owned);
            event.wants(attribute, text);
        }
        event
    }

    /// The common part of entry, exit, exceptions and visits.
    fn call(&self, name: &'static str) -> Expected {
        let mut event = self.log(name);
        let method = self.message.number("method").unwrap();
        event.is("bytefrog.method.id", json!(method));
        event.resolves("code.function.name", UNRESOLVED_METHOD, method, self.names.methods(method), names::function);
        let thread = self.message.number("thread").unwrap();
        event.is("thread.id", json!(thread));
        let texts: Vec<Text> = self.names.threads(self.message, self.stream, self.known).into_iter().cloned().collect();
        if !texts.is_empty() {
            let name = event.show(&texts, str::to_owned);
            event.wants("thread.name", name);
        } else if matches!(self.recording.version(), Some(1 | 2)) {
            // Agents of versions 3 and 4 never name a thread; those of 1 and 2 must.
            event.wants(UNRESOLVED_THREAD, Want::Maybe(Box::new(id(thread))));
        }
        event
    }

    fn exit(&self) -> Expected {
        let mut event = self.call("bytefrog.method.exit");
        match self.message.field("threw") {
            Value::Bool(threw) => event.is("bytefrog.exit.threw", json!(threw)),
            _ => event.shows_line(self.message.number("line").unwrap()),
        }
        event
    }

    fn exception(&self, type_id: u8) -> Expected {
        let name = if type_id == 22 { "bytefrog.exception.thrown" } else { "bytefrog.exception.bubbled" };
        let mut event = self.call(name);
        let exception = self.message.number("exception").unwrap();
        event.is("bytefrog.exception.id", json!(exception));
        let texts = self.names.exceptions(exception);
        event.resolves("exception.type", UNRESOLVED_EXCEPTION, exception, texts, str::to_owned);
        if type_id == 22 {
            event.shows_line(self.message.number("line").unwrap());
        }
        event
    }

    fn visit(&self) -> Expected {
        let mut event = self.call("bytefrog.method.visit");
        let location = self.message.number("location").unwrap();
        event.is("bytefrog.source_location.id", json!(location));
        let lines = self.names.locations(location);
        if lines.is_empty() {
            event.wants(UNRESOLVED_LOCATION, id(location));
        } else {
            let [starts, ends] = [0, 1].map(|end| lines.iter().map(|line| [line.0, line.1][end]).collect::<Vec<_>>());
            event.shows_unless_negative("code.line.number", &starts);
            event.shows_unless_negative("bytefrog.line.end", &ends);
        }
        event
    }

    fn definition(&self, type_id: u8) -> Expected {
        let mut event = self.log(match type_id {
            10 => "bytefrog.thread.named",
            11 => "bytefrog.method.mapped",
            12 => "bytefrog.exception.mapped",
            13 => "bytefrog.source_location.mapped",
            _ => "bytefrog.source_location.counted",
        });
        event.severity = "DEBUG";
        let number = |key: &str| json!(self.message.number(key).unwrap());
        let text = |event: &mut Expected, make: fn(&str) -> String| event.show(&[self.message.text("text")], make);
        match type_id {
            10 => {
                event.is("thread.id", number("thread"));
                let name = text(&mut event, str::to_owned);
                event.wants("thread.name", name);
            }
            11 => {
                event.is("bytefrog.method.id", number("method"));
                let name = text(&mut event, names::function);
                event.wants("code.function.name", name);
                if let Some(method) = self.message.text("text").as_str().and_then(names::method) {
                    event.is("bytefrog.method.access", json!(method.access));
                    event.is("bytefrog.method.descriptor", json!(method.descriptor));
                }
            }
            12 => {
                event.is("bytefrog.exception.id", number("exception"));
                let name = text(&mut event, str::to_owned);
                event.wants("exception.type", name);
            }
            13 => {
                event.is("bytefrog.source_location.id", number("location"));
                event.is("bytefrog.method.id", number("method"));
                let [start, end, from, to] = ["start_line", "end_line", "start_char", "end_char"]
                    .map(|key| self.message.field(key).as_i64().unwrap());
                event.shows_unless_negative("code.line.number", &[start]);
                event.shows_unless_negative("bytefrog.line.end", &[end]);
                event.shows_unless_negative("code.column.number", &[from]);
                event.shows_unless_negative("bytefrog.column.end", &[to]);
            }
            _ => {
                event.is("bytefrog.method.id", number("method"));
                event.is("bytefrog.source_location.count", number("count"));
            }
        }
        event
    }

    fn data_break(&self) -> Expected {
        let mut event = self.log("bytefrog.data_break");
        event.kind = "loss";
        event.attributes.clear();
        event.wants("tributary.time.basis", Want::Maybe(Box::new(Want::Is(json!("received")))));
        event.is("bytefrog.sequence", json!(self.message.number("seq").unwrap()));
        event.loss = Some(ExpectedLoss { reasons: &["gap"], bytes: 0, events: None, lost: Vec::new() });
        event
    }

    /// A break that is not after the last one is reported and has no effect. One that repeats the last number may also
    /// count as a duplicate: the event model leaves that open.
    fn idle_break(&self, is_repeated: bool) -> Expected {
        self.lost(if is_repeated { &["malformed", "duplicate"] } else { &["malformed"] }, None)
    }

    fn lost(&self, reasons: &'static [&'static str], events: Option<u64>) -> Expected {
        let mut event = self.log("tributary.loss");
        let lost = self.message.bytes().to_vec();
        event.kind = "loss";
        event.may_have_more = true;
        event.attributes.clear();
        event.loss = Some(ExpectedLoss { reasons, bytes: lost.len() as u64, events, lost });
        event
    }

    /// The whole stream is lost.
    fn all_lost(&self, reasons: &'static [&'static str]) -> Expected {
        let mut event = self.lost(reasons, None);
        let lost = self.recording.streams[self.stream].bytes.clone();
        event.length = lost.len() as u64;
        event.loss = Some(ExpectedLoss { reasons, bytes: lost.len() as u64, events: None, lost });
        event
    }

    /// The end that cannot be decoded.
    fn end(&self) -> Expected {
        if self.message.is_truncated() {
            return self.lost(&["truncated"], None);
        }
        // A type that does not exist, or not in this version, is unsupported. For one that exists and is at the wrong
        // place, the event model specifies only that it is a protocol error.
        let type_id = self.message.bytes()[0];
        let is_misplaced = matches!(type_id, 8 | 9 | 30);
        self.lost(if is_misplaced { &["malformed", "unsupported"] } else { &["unsupported"] }, None)
    }

    /// A connection that never became part of a run.
    fn unheard(&self) -> Expected {
        match self.message.type_id() {
            Some(0) => self.all_lost(&["unsupported"]),
            _ if self.message.is_truncated() => self.all_lost(&["truncated"]),
            _ => self.all_lost(&["malformed"]),
        }
    }
}

impl Expected {
    pub fn is(&mut self, attribute: &'static str, value: Value) {
        self.wants(attribute, Want::Is(value));
    }

    pub fn wants(&mut self, attribute: &'static str, want: Want) {
        self.attributes.insert(attribute, want);
    }

    /// A text that is any of these, marked if it was repaired.
    fn show(&mut self, texts: &[Text], make: fn(&str) -> String) -> Want {
        let mark = json!(true);
        if texts.contains(&Text::Invalid) && texts.len() == 1 {
            self.is("tributary.text.repaired", mark);
            return Want::Repaired;
        }
        if texts.iter().any(|text| !matches!(text, Text::Exact(_))) {
            // Whether a lone surrogate is a repair: the event model leaves that open.
            self.attributes.entry("tributary.text.repaired").or_insert(Want::Maybe(Box::new(Want::Is(mark))));
        }
        let values = texts.iter().filter_map(Text::as_str).map(|text| json!(make(text)));
        Want::In(values.collect())
    }

    /// A name, or else the raw id.
    fn resolves(
        &mut self,
        attribute: &'static str,
        unresolved: &'static str,
        raw: u64,
        texts: &[Text],
        make: fn(&str) -> String,
    ) {
        if texts.is_empty() {
            self.wants(unresolved, id(raw));
        } else {
            let want = self.show(texts, make);
            self.wants(attribute, want);
        }
    }

    /// 65535 is an unknown line, which is absent.
    fn shows_line(&mut self, line: u64) {
        if line != 65535 {
            self.is("code.line.number", json!(line));
        }
    }

    /// A line or column of a source location: any of these. -1 is unknown and absent; agents send nothing else below 0,
    /// and what is then written is open.
    fn shows_unless_negative(&mut self, attribute: &'static str, values: &[i64]) {
        let want = Want::In(values.iter().map(|value| json!(value)).collect());
        match values.iter().min() {
            Some(-1) => {}
            Some(..-1) => self.wants(attribute, Want::Maybe(Box::new(want))),
            _ => self.wants(attribute, want),
        }
    }
}

/// A raw id: an integer or hex.
fn id(raw: u64) -> Want {
    Want::In(vec![json!(raw), json!(format!("{raw:x}")), json!(format!("{raw:08x}")), json!(format!("{raw:04x}"))])
}

pub const UNRESOLVED_METHOD: &str = "bytefrog.unresolved.method";
pub const UNRESOLVED_THREAD: &str = "bytefrog.unresolved.thread";
pub const UNRESOLVED_EXCEPTION: &str = "bytefrog.unresolved.exception";
pub const UNRESOLVED_LOCATION: &str = "bytefrog.unresolved.source_location";

/// Logs about the health of an agent, which depend on time.
pub const HEALTH: [&str; 3] = ["bytefrog.agent.unhealthy", "bytefrog.agent.recovered", "bytefrog.agent.disconnected"];
