//! A listener without a socket.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::driver::decode;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::otlp::{Options, OtlpExchange};
use tributary::protocol::{Exchange as _, HeadDecision, Now, Protocol, Request, RequestHead, Response};
use tributary::sink::encode::{Encoder, Format};

/// A listener.
pub(crate) struct Offline {
    exchange: OtlpExchange,
    pub(crate) counters: Arc<ListenerCounters>,
    pub(crate) elapsed: Duration,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    /// Of a refusal of gRPC.
    pub(crate) grpc_status: Option<String>,
    pub(crate) body: Vec<u8>,
    pub(crate) events: Vec<Value>,
}

impl Answered {
    fn of(response: Response, events: Vec<Value>) -> Answered {
        let grpc_status = response.headers.iter().find(|(name, _)| *name == "grpc-status");
        let grpc_status = grpc_status.map(|(_, value)| value.clone());
        Answered { status: response.status, grpc_status, body: response.body.into_owned(), events }
    }
}

pub(crate) const PROTOBUF: (&str, &str) = ("content-type", "application/x-protobuf");
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

impl Offline {
    pub(crate) fn new() -> Offline {
        Offline::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Offline {
        let counters = ListenerCounters::new("test".into(), Protocol::Otlp);
        let exchange = OtlpExchange::new(options, &MemoryBudget::unlimited());
        Offline { exchange, counters, elapsed: Duration::ZERO }
    }

    pub(crate) fn ask(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answered {
        let (response, batches) = self.answer(path, headers, body);
        Answered::of(response, lines(&batches))
    }

    fn answer(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (Response, Vec<Batch>) {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        let head = RequestHead { method: "POST".to_owned(), target: path.to_owned(), headers };
        let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: self.elapsed };
        if let HeadDecision::Answer(response, _) = self.exchange.admit(&head, now) {
            return (response, Vec::new());
        }
        let mut batches = Vec::new();
        let form = self.exchange.answer_form(&head).unwrap_or(|response| response);
        let request = Request { head, body: body.to_vec().into(), number: 1 };
        let origin = Arc::new(Origin::new("otlp", "test".into(), "192.0.2.1:1234".into(), 1));
        let (response, _) =
            decode::answer(&self.exchange, request, origin, &self.counters, now, &mut |batch| batches.push(batch));
        (form(response), batches)
    }

    /// The batches of a request in protobuf that must be accepted.
    pub(crate) fn batches(&mut self, path: &str, body: &[u8]) -> Vec<Batch> {
        let (response, batches) = self.answer(path, &[PROTOBUF], body);
        assert_eq!(response.status, 200, "{}", String::from_utf8_lossy(&response.body));
        batches
    }

    /// The events of a request that must be accepted.
    pub(crate) fn events(&mut self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<Value> {
        let answered = self.ask(path, headers, body);
        assert_eq!(answered.status, 200, "{}", String::from_utf8_lossy(&answered.body));
        self.assert_balance();
        answered.events
    }

    /// Checks that every byte is decoded, ignored or lost.
    pub(crate) fn assert_balance(&self) {
        assert_eq!(self.counters.totals().buffered(), 0);
    }
}

/// The events of batches as JSON.
pub(crate) fn lines(batches: &[Batch]) -> Vec<Value> {
    let (mut encoder, mut lines) = (Encoder::new(Format::Json), Vec::new());
    batches.iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut lines));
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// An event without what differs between two ways of sending it: where it stood, and when it was read.
pub(crate) fn content(event: &Value) -> Value {
    let mut event = event.clone();
    for key in ["origin", "observed_time"] {
        event.as_object_mut().unwrap().remove(key);
    }
    event
}
