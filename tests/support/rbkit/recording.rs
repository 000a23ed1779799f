//! The recordings below `tests/data/rbkit`: messages of real agents, single messages and replies, ZMTP streams, and
//! their decodes by an independent decoder.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use serde_json::Value;

/// One recorded conversation, in order.
pub struct Session {
    pub name: String,
    pub dialect: String,
    /// Its entry in the manifest.
    pub manifest: Value,
    pub steps: Vec<Step>,
}

/// A step of a conversation.
pub enum Step {
    Request(Vec<u8>),
    Ok,
    Handshake(Message),
    Publish(Message),
}

/// The body of a message, and its decode.
#[derive(Clone)]
pub struct Message {
    pub file: String,
    pub body: Vec<u8>,
    pub decoded: Value,
    /// For heap dumps: the objects, one per line.
    pub objects: Vec<Object>,
}

/// An object of a dump, with its texts as sent.
#[derive(Clone)]
pub struct Object {
    pub id: u64,
    pub class: Option<Vec<u8>>,
    pub file: Option<Vec<u8>>,
    pub line: Option<u64>,
    pub size: Option<u64>,
    pub references: Vec<u64>,
}

/// A single generated message, well-formed or not.
pub struct Case {
    pub name: String,
    pub dialect: String,
    /// `ok`, `partial` or `reject`.
    pub outcome: String,
    /// Null for rejected ones.
    pub message: Message,
}

pub fn directory() -> PathBuf {
    crate::project().join("tests/data/rbkit")
}

pub fn manifest() -> Vec<Value> {
    let manifest: Value = serde_json::from_slice(&read("manifest.json")).unwrap();
    manifest["cases"].as_array().unwrap().clone()
}

/// A file below the directory.
pub fn read(path: &str) -> Vec<u8> {
    fs::read(directory().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn of_type(name: &str) -> Vec<Value> {
    let mut cases = manifest();
    cases.retain(|case| case["type"] == name);
    assert!(!cases.is_empty());
    cases
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

pub fn sessions() -> Vec<Session> {
    of_type("session").into_iter().map(Session::read).collect()
}

pub fn session(name: &str) -> Session {
    sessions().into_iter().find(|session| session.name == name).unwrap()
}

/// The single messages.
pub fn messages() -> Vec<Case> {
    of_type("message").iter().map(case).collect()
}

/// The single replies to a handshake.
pub fn replies() -> Vec<Case> {
    of_type("reply").iter().map(case).collect()
}

/// The streams of hostile peers: name, outcome, bytes.
pub fn hostile() -> Vec<(String, String, Vec<u8>)> {
    let cases = of_type("zmtp-hostile").into_iter();
    cases.map(|case| (text(&case["name"]), text(&case["outcome"]), read(case["file"].as_str().unwrap()))).collect()
}

/// The bytes of an agent on one socket, and its frames from `expected.json`.
pub fn stream(name: &str, stream: &str) -> (Vec<u8>, Vec<Value>) {
    let bytes = read(&format!("zmtp/{name}/{stream}.bin"));
    let expected: Value = serde_json::from_slice(&read(&format!("zmtp/{name}/expected.json"))).unwrap();
    (bytes, expected[stream].as_array().unwrap().clone())
}

fn case(manifest: &Value) -> Case {
    let expected: Value = serde_json::from_slice(&read(manifest["expected"].as_str().unwrap())).unwrap();
    let message = Message {
        file: text(&manifest["file"]),
        body: read(manifest["file"].as_str().unwrap()),
        decoded: expected["decoded"].clone(),
        objects: Vec::new(),
    };
    Case {
        name: text(&manifest["name"]),
        dialect: manifest["dialect"].as_str().unwrap_or_default().to_owned(),
        outcome: text(&manifest["outcome"]),
        message,
    }
}

impl Session {
    fn read(manifest: Value) -> Session {
        let path = text(&manifest["path"]);
        let session: Value = serde_json::from_slice(&read(&format!("{path}/session.json"))).unwrap();
        let expected = String::from_utf8(read(&format!("{path}/expected.jsonl"))).unwrap();
        let mut expected = expected.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let mut message = |step: &Value| {
            let file = text(&step["file"]);
            let body = read(&format!("{path}/{file}"));
            assert_eq!(step["bytes"], body.len());
            let decoded = expected.next().unwrap();
            assert_eq!(decoded["file"], file);
            let objects = directory().join(&path).join(file.replace(".msgpack", ".objects.tsv.gz"));
            let objects = fs::read(objects).map_or_else(|_| Vec::new(), |packed| read_objects(&packed));
            Message { file, body, decoded, objects }
        };
        let step = |step: &Value| match (step["dir"].as_str().unwrap(), &step["text"]) {
            ("req", _) => Step::Request(match step["request_hex"].as_str() {
                Some(hex) => unhex(hex),
                None => text(&step["request"]).into_bytes(),
            }),
            ("rep", Value::String(ok)) if ok == "ok" => Step::Ok,
            ("rep", Value::Null) => Step::Handshake(message(step)),
            ("pub", Value::Null) => Step::Publish(message(step)),
            other => panic!("{other:?}"),
        };
        let steps = session["steps"].as_array().unwrap().iter().map(step).collect();
        Session { name: text(&manifest["name"]), dialect: text(&manifest["dialect"]), manifest, steps }
    }

    /// The published messages.
    pub fn published(&self) -> impl Iterator<Item = &Message> {
        self.steps.iter().filter_map(|step| match step {
            Step::Publish(message) => Some(message),
            _ => None,
        })
    }

    /// The handshake replies.
    pub fn handshakes(&self) -> impl Iterator<Item = &Message> {
        self.steps.iter().filter_map(|step| match step {
            Step::Handshake(message) => Some(message),
            _ => None,
        })
    }

    /// The position of a message.
    pub fn path(&self, message: &Message) -> PathBuf {
        directory().join("sessions").join(&self.name).join(&message.file)
    }
}

impl Message {
    pub fn counter(&self) -> Option<u64> {
        self.decoded["message_counter"].as_u64()
    }
}

/// `id TAB class TAB file TAB line TAB size TAB ref,ref,... LF`, with `\N` for nil.
fn read_objects(packed: &[u8]) -> Vec<Object> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
            let number = |field: &[u8]| std::str::from_utf8(field).unwrap().parse::<u64>().unwrap();
            let known = |field: usize| Some(fields[field]).filter(|field| *field != b"\\N");
            let references = fields[5].split(|byte| *byte == b',').filter(|id| !id.is_empty());
            Object {
                id: number(fields[0]),
                class: known(1).map(unescape),
                file: known(2).map(unescape),
                line: known(3).map(number),
                size: known(4).map(number),
                references: references.map(number).collect(),
            }
        })
        .collect()
}

fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = field.iter();
    while let Some(&byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next().unwrap() {
                b't' => b'\t',
                b'n' => b'\n',
                other => *other,
            },
            byte => byte,
        });
    }
    out
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
