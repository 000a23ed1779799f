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
        match accepted(head) {
            Ok(_) => HeadDecision::Take { max_body_bytes: self.shared.options.max_body_bytes, key: "max_body_bytes" },
            Err(response) => HeadDecision::Answer(response, Reason::Unsupported),
        }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> OtlpWork {
        // Only admitted requests get here.
        let (signal, encoding) = accepted(&request.head).unwrap_or((Signal::Traces, Encoding::Protobuf));
        OtlpWork::new(request, signal, encoding, self.shared.clone(), memory)
    }

    /// The sender has a request that is accepted still, and sends it again.
    fn ignored_as(&self, head: &RequestHead) -> Option<&'static str> {
        accepted(head).ok().map(|(signal, _)| signal.as_str())
    }
}

/// What a request is for, and how it is encoded.
///
/// # Errors
/// It is none of OTLP; the answer.
fn accepted(head: &RequestHead) -> Result<(Signal, Encoding), Response> {
    let signal = Signal::of(head.path()).ok_or_else(|| {
        Response::text(404, "OpenTelemetry SDKs post to /v1/traces, /v1/logs, /v1/metrics and /v1development/profiles")
    })?;
    if head.method != "POST" {
        return Err(Response::not_allowed(&head.method, "POST"));
    }
    let encoding = Encoding::of(head).ok_or_else(|| {
        let sentence = "the Content-Type is none of OTLP; write application/x-protobuf or application/json";
        Response::text(415, sentence)
    })?;
    Ok((signal, encoding))
}
