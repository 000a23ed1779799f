//! The recordings below `tests/data/bytefrog`: bytes, their decode by an independent decoder, and the order of writes.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::text::{self, Text};

/// The agent's side of one recorded conversation.
pub struct Recording {
    pub name: String,
    /// Its entry in the manifest.
    pub manifest: Value,
    pub streams: Vec<Stream>,
    pub steps: Vec<Step>,
}

/// The bytes that an agent sent on one connection.
pub struct Stream {
    pub name: String,
    pub bytes: Vec<u8>,
    pub messages: Vec<Message>,
}

/// One message, or the end that cannot be decoded, as the independent decoder reports it.
#[derive(Clone, Debug)]
pub struct Message {
    fields: Value,
    bytes: Vec<u8>,
}

/// One write of the agent. Without bytes: the end of its stream.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub stream: usize,
    pub offset: usize,
    pub length: usize,
}

pub fn directory() -> PathBuf {
    crate::project().join("tests/data/bytefrog")
}

/// The recordings whose name starts with this.
pub fn all(prefixes: &[&str]) -> Vec<Recording> {
    let manifest: Value =
        serde_json::from_str(&fs::read_to_string(directory().join("manifest.json")).unwrap()).unwrap();
    let is_wanted = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let cases = manifest.as_array().unwrap().iter();
    let wanted = cases.filter(|case| is_wanted(case["name"].as_str().unwrap()));
    let recordings: Vec<_> = wanted.map(|case| Recording::read(case.clone())).collect();
    assert!(!recordings.is_empty(), "no recording begins with any of {prefixes:?}");
    recordings
}

pub fn one(name: &str) -> Recording {
    let mut all = all(&[name]);
    all.retain(|recording| recording.name == name);
    all.remove(0)
}

impl Recording {
    fn read(manifest: Value) -> Recording {
        let name = manifest["name"].as_str().unwrap().to_owned();
        let directory = directory().join(&name);
        let names = ["control".to_owned()].into_iter().chain((0..64).map(|number| format!("data-{number}")));
        let is_there = |name: &String| directory.join(format!("{name}.agent.bin")).exists();
        let streams: Vec<Stream> = names
            .filter(is_there)
            .map(|name| {
                let bytes = fs::read(directory.join(format!("{name}.agent.bin"))).unwrap();
                let decode = fs::read_to_string(directory.join(format!("{name}.agent.ndjson"))).unwrap();
                let messages = decode.lines().map(|line| Message::read(line, &bytes)).collect();
                Stream { name, bytes, messages }
            })
            .collect();
        let timeline = fs::read_to_string(directory.join("timeline.ndjson"));
        let steps = timeline.map_or_else(|_| default_steps(&name, &streams), |text| recorded_steps(&text, &streams));
        Recording { name, manifest, streams, steps }
    }

    /// The version in the hello of the agent, if there is one.
    pub fn version(&self) -> Option<u8> {
        let hello = self.streams[0].messages.first().filter(|message| matches!(message.type_id(), Some(0 | 16)))?;
        Some(hello.number("version")? as u8)
    }

    /// Whether the hello of the agent opens a run.
    pub fn has_run(&self) -> bool {
        self.version().is_some_and(|version| (1..=4).contains(&version))
    }

    /// The run id in the hello of a data connection.
    pub fn recorded_run(&self, stream: usize) -> Option<u64> {
        self.streams[stream].messages.first().filter(|first| first.type_id() == Some(30))?.number("run_id")
    }

    /// Whether this data connection has another run id than the first one.
    pub fn is_unregistered(&self, stream: usize) -> bool {
        let runs = || (0..self.streams.len()).filter_map(|stream| self.recorded_run(stream));
        self.recorded_run(stream).is_some_and(|run| runs().next() != Some(run))
    }

    /// Every message with the number of its stream, without unregistered connections.
    pub fn messages(&self) -> impl Iterator<Item = (usize, &Message)> {
        let streams = (0..self.streams.len()).filter(|stream| !self.is_unregistered(*stream));
        streams.flat_map(|stream| self.streams[stream].messages.iter().map(move |message| (stream, message)))
    }
}

impl Message {
    fn read(line: &str, stream: &[u8]) -> Message {
        let fields: Value = serde_json::from_str(line).unwrap();
        let [offset, length] = ["off", "len"].map(|key| fields[key].as_u64().unwrap() as usize);
        Message { bytes: stream[offset..offset + length].to_vec(), fields }
    }

    /// `None`: an end that cannot be decoded.
    pub fn type_id(&self) -> Option<u8> {
        if self.is_truncated() || self.undecodable().is_some() { None } else { Some(self.number("type")? as u8) }
    }

    pub fn is_truncated(&self) -> bool {
        self.fields["name"] == "TRUNCATED"
    }

    /// Why the independent decoder stopped here.
    pub fn undecodable(&self) -> Option<&str> {
        (self.fields["name"] == "UNDECODABLE").then(|| self.fields["why"].as_str().unwrap())
    }

    pub fn offset(&self) -> u64 {
        self.number("off").unwrap()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A field as it was written, also a negative number.
    pub fn field(&self, key: &str) -> &Value {
        &self.fields[key]
    }

    pub fn number(&self, key: &str) -> Option<u64> {
        self.fields[key].as_u64()
    }

    /// The number of a sequenced message.
    pub fn sequence(&self) -> Option<u32> {
        let is_sequenced = matches!(self.type_id(), Some(14 | 20 | 21 | 22 | 23 | 50));
        is_sequenced.then(|| self.number("seq").unwrap() as u32)
    }

    /// A field that is a text.
    pub fn text(&self, key: &str) -> Text {
        let value = &self.fields[key];
        match value {
            Value::String(text) => Text::Exact(text.clone()),
            _ if value["valid"] == true => Text::Lossy(value["lossy"].as_str().unwrap().to_owned()),
            _ if value["valid"] == false => Text::Invalid,
            _ => Text::Exact(self.long_text(key)),
        }
    }

    /// A text that the decode does not contain because it is long. The decode suffices to check what is read here.
    fn long_text(&self, key: &str) -> String {
        let offset = match (self.type_id().unwrap(), key) {
            (10, _) => 7,
            (11 | 12, _) => 5,
            (50, "key") => 9,
            (50, _) => 11 + text::at(&self.bytes, 9).len(),
            _ => 1,
        };
        let (wire, summary) = (text::at(&self.bytes, offset), &self.fields[key]);
        let text = text::read(wire);
        assert_eq!(Some(wire.len() as u64), summary["wire_bytes"].as_u64(), "{self:?}");
        assert_eq!(Some(text.encode_utf16().count() as u64), summary["chars_utf16"].as_u64());
        assert!(text.starts_with(summary["starts"].as_str().unwrap()));
        text
    }
}

/// The writes of a timeline, in its order.
fn recorded_steps(timeline: &str, streams: &[Stream]) -> Vec<Step> {
    let lines = timeline.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let step = |line: Value| {
        let stream = streams.iter().position(|stream| stream.name == line["conn"].as_str().unwrap()).unwrap();
        let [offset, length] = ["off", "len"].map(|key| line[key].as_u64().unwrap() as usize);
        Step { stream, offset, length }
    };
    lines.filter(|line| line["from"] == "agent").map(step).collect()
}

/// A conversation without a timeline: control until a data connection may be opened, every data hello, the rest of
/// control, the data connections one after the other, the end of control. A data break that the manifest calls late
/// follows the data.
fn default_steps(name: &str, streams: &[Stream]) -> Vec<Step> {
    let hello = |stream: usize| streams[stream].messages.first().map_or(0, |hello| hello.bytes.len());
    let send_hello = |stream: usize| Step { stream, offset: 0, length: hello(stream) };
    let rest = |stream: usize| {
        let (offset, length) = (hello(stream), streams[stream].bytes.len() - hello(stream));
        Some(Step { stream, offset, length }).filter(|step| step.length > 0)
    };
    let end = |stream: usize| Some(Step { stream, offset: streams[stream].bytes.len(), length: 0 });
    let data: Vec<_> = (1..streams.len()).flat_map(|stream| [rest(stream), end(stream)]).collect();
    let behind = match name {
        "edge-v1-late-break" => [data, vec![rest(0)]].concat(),
        _ => [vec![rest(0)], data].concat(),
    };
    let greetings = (0..streams.len()).map(send_hello);
    greetings.chain(behind.into_iter().chain([end(0)]).flatten()).collect()
}
