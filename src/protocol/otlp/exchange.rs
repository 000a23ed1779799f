//! Decides about request heads.

use std::sync::Arc;

use tributary_event::Reason;
use tributary_memory::MemoryBudget;
use tributary_protocol::{AnswerForm, Exchange, HeadDecision, Now, Request, RequestHead, Response};

use super::answer::form;
use super::listener::OtlpListener;
use super::options::Options;
use super::route::{Encoding, Signal};
use super::work::OtlpWork;

/// The protocol of one `otlp` listener.
#[derive(Debug)]
pub struct OtlpExchange {
    shared: Arc<OtlpListener>,
}

impl OtlpExchange {
    /// A listener without history.
    pub fn new(options: Options, memory: &Arc<MemoryBudget>) -> Self {
        OtlpExchange { shared: Arc::new(OtlpListener::new(options, memory)) }
    }
}

impl Exchange for OtlpExchange {
    type Work = OtlpWork;

    fn speaks_http2(&self) -> bool {
        true
    }

    fn answer_form(&self, head: &RequestHead) -> Option<AnswerForm> {
        Encoding::of(head).map(form)
    }

    fn admit(&self, head: &RequestHead, _now: Now) -> HeadDecision {
        let answer = |response| HeadDecision::Answer(response, Reason::Unsupported);
        if Signal::of(head.path()).is_none() {
            let sentence = "OpenTelemetry SDKs post to /v1/traces, /v1/logs and /v1/metrics";
            return answer(Response::text(404, sentence));
        }
        if head.method != "POST" {
            return answer(Response::not_allowed(&head.method, "POST"));
        }
        if Encoding::of(head).is_none() {
            let sentence = "the Content-Type is none of OTLP; write application/x-protobuf or application/json";
            return answer(Response::text(415, sentence));
        }
        HeadDecision::Take { max_body_bytes: self.shared.options.max_body_bytes, key: "max_body_bytes" }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> OtlpWork {
        // Only admitted requests get here: they have a signal and an encoding.
        let signal = Signal::of(request.head.path()).unwrap_or(Signal::Traces);
        let encoding = Encoding::of(&request.head).unwrap_or(Encoding::Protobuf);
        OtlpWork::new(request, signal, encoding, self.shared.clone(), memory)
    }

    /// The sender has a request of OTLP still, and sends it again.
    fn ignored_as(&self, head: &RequestHead) -> Option<&'static str> {
        Encoding::of(head)?;
        Signal::of(head.path()).map(Signal::as_str)
    }
}
