//! The recorded conversations, and clients that replay them.

pub mod cbor;
pub mod client;
pub mod compare;
pub mod contract;
pub mod fressian;
pub mod offline;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tributary::zico_store::{AgentStore, StoreError, StoreOptions};

use crate::live::binary::until;

/// The conversation with 100,000 nested records, whose events take long to compare.
pub const DEEPEST: &str = "hostile-gen2-depth-100k";

pub fn data() -> PathBuf {
    crate::project().join("tests/data/zico")
}

/// One recorded conversation.
pub struct Case {
    pub name: String,
    pub exchanges: Vec<Recorded>,
}

/// One recorded request.
pub struct Recorded {
    pub number: u64,
    pub connection: u64,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The answer of the recorded collector.
    pub reply: Option<Value>,
    /// The answers that a collector may give.
    pub statuses: Vec<u64>,
    /// The result of an independent decoder.
    pub expected: Value,
}

impl Recorded {
    /// Whether a collector must accept it, with the recorded result.
    pub fn is_taken(&self) -> bool {
        self.statuses.contains(&202)
    }

    pub fn is_trace(&self) -> bool {
        !self.expected["trc"].is_null() && self.is_taken()
    }
}

fn lines(path: PathBuf) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub fn names() -> Vec<String> {
    let manifest: Value = serde_json::from_str(&fs::read_to_string(data().join("manifest.json")).unwrap()).unwrap();
    manifest["cases"].as_array().unwrap().iter().map(|case| case["name"].as_str().unwrap().to_owned()).collect()
}

pub fn case(name: &str) -> Case {
    let folder = data().join(name);
    let expected = lines(folder.join("expected.ndjson"));
    let requests = lines(folder.join("requests.ndjson"));
    assert_eq!(requests.len(), expected.len(), "{name}");
    let exchanges = requests.into_iter().zip(expected).map(|(request, expected)| {
        assert_eq!(request["n"], expected["n"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let headers = request["headers"].as_array().unwrap();
        let reply = request["recorded_reply"].as_str().and_then(|reply| serde_json::from_str(reply).ok());
        let body = fs::read(folder.join(request["body"].as_str().unwrap())).unwrap();
        assert_eq!(body.len() as u64, request["body_bytes"].as_u64().unwrap());
        Recorded {
            number: request["n"].as_u64().unwrap(),
            connection: request["conn"].as_u64().unwrap(),
            path: text(&request["path"]),
            headers: headers.iter().map(|header| (text(&header[0]), text(&header[1]))).collect(),
            body,
            reply,
            statuses: request["expect_status"].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).collect(),
            expected,
        }
    });
    Case { name: name.to_owned(), exchanges: exchanges.collect() }
}

pub fn cases() -> Vec<Case> {
    names().iter().map(|name| case(name)).collect()
}

/// Ids and keys of the recorded collector, and those that replace them.
#[derive(Default)]
pub struct Given(BTreeMap<String, String>);

impl Given {
    /// Learns ids and keys from the answer to a recorded request.
    pub fn learn(&mut self, recorded: &Recorded, live: &str) {
        let (Some(Value::Object(then)), Ok(Value::Object(now))) = (&recorded.reply, serde_json::from_str(live)) else {
            return;
        };
        for (key, value) in then {
            if let (Some(then), Some(now)) = (value.as_str(), now.get(key).and_then(Value::as_str)) {
                self.0.insert(then.to_owned(), now.to_owned());
            }
        }
    }

    pub fn header(&self, value: &str) -> String {
        self.0.get(value).cloned().unwrap_or_else(|| value.to_owned())
    }

    /// The body of a registration or session request with its ids and keys replaced; other bodies have none.
    pub fn body(&self, recorded: &Recorded) -> Vec<u8> {
        if !recorded.path.ends_with("/session") && !recorded.path.ends_with("/register") {
            return recorded.body.clone();
        }
        let Ok(mut text) = String::from_utf8(recorded.body.clone()) else { return recorded.body.clone() };
        for (then, now) in &self.0 {
            text = text.replace(then, now);
        }
        text.into_bytes()
    }
}

/// The SHA-256 of a text, in hexadecimal digits.
pub fn sha256(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens a store of agents. A child that another test has forked may hold the lock of the store before until it runs its program.
pub fn open_store(options: &StoreOptions, listener: &str) -> Result<AgentStore, StoreError> {
    until("the store is free", || match AgentStore::open(options, listener) {
        Err(error) if error.to_string().contains("another tributary process uses it") => None,
        opened => Some(opened),
    })
}
