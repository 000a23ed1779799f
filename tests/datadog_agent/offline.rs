//! A listener without a socket, and the recorded bodies.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::driver::{Account, call, decode};
use tributary::event::{BatchBuilder, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::datadog_agent::{DatadogAgentExchange, Options};
use tributary::protocol::{Exchange as _, Flow, Now, Output, Protocol, Request, RequestHead};
use tributary::sink::encode::{Encoder, Format};

/// A recorded body.
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// What the body says, with texts in the place of numbers; null: it must be refused.
    pub(crate) resolved: Value,
    pub(crate) is_malformed: bool,
}

/// All bodies of traces.
pub(crate) fn recorded() -> Vec<Recorded> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog_agent/traces");
    let mut names: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let read = |name: &std::ffi::OsString| {
        let directory = root.join(name);
        let case: Value = serde_json::from_slice(&fs::read(directory.join("1.json")).unwrap()).unwrap();
        let headers = case["headers"].as_object().unwrap();
        Recorded {
            name: name.to_str().unwrap().to_owned(),
            path: case["path"].as_str().unwrap().to_owned(),
            headers: headers
                .iter()
                .map(|(name, value)| (name.to_lowercase(), value.as_str().unwrap().to_owned()))
                .collect(),
            body: fs::read(directory.join("1.bin")).unwrap(),
            resolved: case["resolved"].clone(),
            is_malformed: case["malformed"].is_string(),
        }
    };
    names.iter().map(read).collect()
}

/// A listener.
pub(crate) struct Offline {
    pub(crate) exchange: DatadogAgentExchange,
    pub(crate) counters: Arc<ListenerCounters>,
    pub(crate) elapsed: Duration,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: String,
    pub(crate) events: Vec<Value>,
}

impl Answered {
    pub(crate) fn spans(&self) -> Vec<&Value> {
        self.events.iter().filter(|event| event["kind"] == "span").collect()
    }
}

impl Offline {
    pub(crate) fn new() -> Offline {
        Offline::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Offline {
        Offline::within(options, &MemoryBudget::unlimited())
    }

    pub(crate) fn within(options: Options, memory: &Arc<MemoryBudget>) -> Offline {
        let counters = ListenerCounters::new("test".into(), Protocol::DatadogAgent);
        Offline { exchange: DatadogAgentExchange::new(options, memory), counters, elapsed: Duration::ZERO }
    }

    pub(crate) fn now(&self) -> Now {
        Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: self.elapsed }
    }

    pub(crate) fn ask(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answered {
        let mut encoder = Encoder::new(Format::Json);
        let mut lines = Vec::new();
        let mut take = |batch: tributary::event::Batch| {
            batch.events().for_each(|event| encoder.encode(event, &mut lines));
        };
        let request = Offline::request(path, headers, body);
        let (response, _) =
            decode::answer(&self.exchange, request, Offline::origin(), &self.counters, self.now(), &mut take);
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Answered {
            status: response.status,
            body: String::from_utf8(response.body.into_owned()).unwrap(),
            events: lines.map(|line| serde_json::from_slice(line).unwrap()).collect(),
        }
    }

    /// Makes the call of every second.
    pub(crate) fn tick(&self) -> Vec<Value> {
        self.end(|exchange, now, out| exchange.tick(now, out))
    }

    /// Calls a method of the exchange until it has nothing more to write.
    pub(crate) fn end(&self, mut method: impl FnMut(&DatadogAgentExchange, Now, &mut Output) -> Flow) -> Vec<Value> {
        let (mut encoder, mut lines) = (Encoder::new(Format::Json), Vec::new());
        let mut out = Output::new(BatchBuilder::new(Offline::origin()));
        let (mut account, now) = (Account::default(), self.now());
        loop {
            let step = call(&mut out, &mut account, &self.counters, now, |out| method(&self.exchange, now, out));
            if let Some(batch) = step.batch {
                batch.events().for_each(|event| encoder.encode(event, &mut lines));
            }
            if step.flow != Flow::Again {
                break;
            }
        }
        let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// Sends a recorded body.
    pub(crate) fn replay(&mut self, case: &Recorded) -> Answered {
        let headers: Vec<_> = case.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        self.ask(&case.path, &headers, &case.body)
    }

    pub(crate) fn request(path: &str, headers: &[(&str, &str)], body: &[u8]) -> Request {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        let head = RequestHead { method: "PUT".to_owned(), target: path.to_owned(), headers };
        Request { head, body: body.to_vec().into(), number: 1 }
    }

    pub(crate) fn origin() -> Arc<Origin> {
        Arc::new(Origin::new("datadog_agent", "test".into(), "192.0.2.1:1234".into(), 1))
    }

    /// Checks that every byte is decoded, ignored or lost.
    pub(crate) fn assert_balance(&self) {
        assert_eq!(self.counters.totals().buffered(), 0);
    }
}
