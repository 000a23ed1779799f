//! Replays conversations without a socket.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::decode;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::zico::{Options, ZicoExchange};
use tributary::protocol::{Exchange, Now, Protocol, Request, RequestHead, RequestOutcome, Response, Work};
use tributary::sink::encode::{Encoder, Format};
use tributary::zico_store::{AgentStore, StoreOptions};

use super::{Case, Given, Recorded};

/// 2026-11-20T12:15:00Z, the start of every test.
pub const START: UnixNanos = UnixNanos(1_795_176_900_000_000_000);

/// A listener without a socket.
pub struct Offline {
    pub exchange: ZicoExchange,
    pub counters: Arc<ListenerCounters>,
    pub elapsed: Duration,
    requests: u64,
}

/// The result of a request.
pub struct Answered {
    pub status: u16,
    pub body: String,
    pub events: Vec<Value>,
    pub aside: Option<String>,
}

impl Answered {
    pub fn losses(&self) -> Vec<&Value> {
        self.events.iter().filter(|event| event["kind"] == "loss").collect()
    }

    pub fn spans(&self) -> Vec<&Value> {
        self.events.iter().filter(|event| event["kind"] == "span").collect()
    }

    pub fn names(&self) -> Vec<&str> {
        self.events.iter().map(|event| event["name"].as_str().unwrap()).collect()
    }
}

impl Offline {
    pub fn new(options: Options) -> Self {
        Offline::with(options, MemoryBudget::new(256 << 20), false)
    }

    pub fn with(options: Options, memory: Arc<MemoryBudget>, emit_definitions: bool) -> Self {
        let store = StoreOptions::default();
        let agents = Arc::new(AgentStore::open(&store, "test").unwrap());
        let exchange = ZicoExchange::new(options, store.session_timeout, agents, emit_definitions, &memory);
        let counters = ListenerCounters::new("test".into(), Protocol::Zico);
        Offline { exchange, counters, elapsed: Duration::ZERO, requests: 0 }
    }

    /// Like `tributary decode`: every session is accepted.
    pub fn recorded() -> Self {
        let exchange = ZicoExchange::recorded(Options::default(), false, &MemoryBudget::new(256 << 20));
        let counters = ListenerCounters::new("test".into(), Protocol::Zico);
        Offline { exchange, counters, elapsed: Duration::ZERO, requests: 0 }
    }

    pub fn now(&self) -> Now {
        Now { unix: UnixNanos(START.0 + self.elapsed.as_nanos() as u64), elapsed: self.elapsed }
    }

    pub fn origin(&self) -> Arc<Origin> {
        Arc::new(Origin::new("zico", "test".into(), "192.0.2.1:1234".into(), 1))
    }

    pub fn ask(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answered {
        let mut lines = Vec::new();
        let (response, aside) = self.ask_taking(path, headers, body, &mut |batch| lines.push(encode(&batch)));
        let events = lines.iter().flat_map(|lines| read(lines)).collect();
        Answered {
            status: response.status,
            body: String::from_utf8(response.body.into_owned()).unwrap(),
            events,
            aside,
        }
    }

    /// A request whose events no sink takes. Returns the status of the answer.
    pub fn ask_undelivered(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> u16 {
        let now = self.now();
        let request = self.request(path, headers, body);
        let mut work = self.exchange.work(request, None, now);
        let mut out = tributary::protocol::Output::new(tributary::event::BatchBuilder::new(self.origin()));
        while work.step(now, &mut out) == tributary::protocol::Flow::Again {
            out.batch.take();
        }
        work.respond(RequestOutcome::Failed, now).status
    }

    fn request(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Request {
        self.requests += 1;
        let headers = headers.iter().map(|(name, value)| (name.to_lowercase(), value.as_bytes().to_vec())).collect();
        let head = RequestHead { method: "POST".to_owned(), target: path.to_owned(), headers };
        Request { head, body: body.to_vec().into(), number: self.requests }
    }

    pub fn ask_taking(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        take: &mut impl FnMut(Batch),
    ) -> (Response, Option<String>) {
        let request = self.request(path, headers, body);
        decode::answer(&self.exchange, request, self.origin(), &self.counters, self.now(), take)
    }

    /// Replays a recorded request.
    pub fn again(&mut self, recorded: &Recorded, given: &mut Given) -> Answered {
        let headers: Vec<_> =
            recorded.headers.iter().map(|(name, value)| (name.clone(), given.header(value))).collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answered = self.ask(&recorded.path, &headers, &given.body(recorded));
        given.learn(recorded, &answered.body);
        answered
    }

    /// Replays a recorded conversation: the answers, and the events at its end.
    pub fn converse(&mut self, case: &Case) -> (Vec<Answered>, Vec<Value>) {
        let mut given = Given::default();
        let answers = case.exchanges.iter().map(|recorded| self.again(recorded, &mut given)).collect();
        (answers, self.finish())
    }

    /// Advances the time, and ticks.
    pub fn pass(&mut self, time: Duration) -> Vec<Value> {
        self.elapsed += time;
        let mut out = tributary::protocol::Output::new(tributary::event::BatchBuilder::new(self.origin()));
        let mut events = Vec::new();
        let mut flow = tributary::protocol::Flow::Again;
        while flow == tributary::protocol::Flow::Again {
            flow = self.exchange.tick(self.now(), &mut out);
            self.counters.settle(&mut out);
            events.extend(read(&encode(&out.batch.take())));
        }
        events
    }

    pub fn finish(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        decode::finish(&self.exchange, self.origin(), &self.counters, self.now(), &mut |batch| {
            events.extend(read(&encode(&batch)));
        });
        events
    }
}

pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut lines = Vec::new();
    let mut encoder = Encoder::new(Format::Json);
    batch.events().for_each(|event| encoder.encode(event, &mut lines));
    lines
}

fn read(lines: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(lines).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
