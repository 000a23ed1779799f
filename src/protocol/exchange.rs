//! Protocols of requests and answers, as HTTP carries them: one request in, events and one answer out.
//!
//! The transport asks about the head before it reads a body, gathers the body within the limit that it is told, drives
//! the [`Work`] that the request makes, waits for what the sinks say, and sends the answer. Nobody here waits or knows
//! a socket.

use std::borrow::Cow;

use bytes::Bytes;

use crate::codec::http::Head;
use crate::event::Reason;

use super::{Flow, Now, Output};

/// A protocol of requests and answers: one value per listener. What requests share is the implementor's own.
pub trait Exchange: Send + Sync + 'static {
    /// What becomes of one request.
    type Work: Work;

    /// Whether there may be something in the body that nobody is to see: then no loss shows how it begins.
    fn is_secret(&self, _head: &Head) -> bool {
        false
    }

    /// A head is here, and nothing of its body.
    fn admit(&self, head: &Head, now: Now) -> HeadDecision;

    /// A request that was admitted is here whole.
    fn work(&self, request: Request, now: Now) -> Self::Work;

    /// About a second has passed: writes what has waited long enough. [`Flow::Again`]: take the events and call again.
    fn tick(&self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }

    /// No request will come any more: writes what still waits. Call again while it answers [`Flow::Again`].
    fn finish(&self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }
}

/// One request on its way through the decoder. Dropped before [`Work::respond`], its events were not delivered.
pub trait Work: Send + 'static {
    /// Does a bounded part of the work. [`Flow::Again`]: take the events and call again. Anything else: all is done.
    ///
    /// Over all calls every byte of the body is decoded or lost; [`Output::inflated`] is told first where the body that
    /// is decoded is another size than the one received.
    fn step(&mut self, now: Now, out: &mut Output) -> Flow;

    /// Why the request is to be kept as it came, once `step` is done. `None`: it need not.
    fn quarantine_reason(&self) -> Option<&str>;

    /// The request as it came.
    fn request(&self) -> &Request;

    /// The answer, when the fate of the events is known.
    fn respond(self, fate: RequestOutcome, now: Now) -> Response;
}

/// What became of the events of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// Every sink that takes them has them, and what was to be kept is kept.
    Delivered,
    /// Every sink has them, but the request, which was to be kept, is not.
    Unkept,
    /// Some sink has them not.
    Failed,
}

/// A whole request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its head.
    pub head: Head,
    /// Its body as it was transmitted.
    pub body: Bytes,
    /// Its number on the connection, from 1.
    pub number: u64,
}

/// What to do about a request of which only the head is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeadDecision {
    /// Take the body, which may have this many bytes.
    Take {
        /// The limit.
        max_body_bytes: u64,
        /// Its configuration key.
        key: &'static str,
    },
    /// Nothing to decode: this is the answer. Body bytes that come all the same are lost for this reason.
    Answer(Response, Reason),
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Headers beside those that HTTP itself needs.
    pub headers: Vec<(&'static str, String)>,
    /// The body: a sentence for people, unless the protocol has something to say.
    pub body: Cow<'static, [u8]>,
}

impl Response {
    /// An answer with a sentence in it.
    pub fn text(status: u16, sentence: impl Into<String>) -> Self {
        let headers = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
        Response { status, headers, body: Cow::Owned((sentence.into() + "\n").into_bytes()) }
    }

    /// An answer without a body.
    pub fn empty(status: u16) -> Self {
        Response { status, headers: Vec::new(), body: Cow::Borrowed(&[]) }
    }

    /// 503: nothing is wrong with the request, and the same one is welcome later.
    pub fn unavailable(sentence: impl Into<String>) -> Self {
        Response::text(503, sentence).with("retry-after", RETRY_AFTER_SECONDS.to_string())
    }

    /// 405, with what would be allowed.
    pub fn not_allowed(method: &str, allowed: &str) -> Self {
        let shown: String = method.chars().take(32).collect();
        Response::text(405, format!("{shown} is not for this path; allowed: {allowed}"))
            .with("allow", allowed.to_owned())
    }

    /// The same with a further header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// How long a peer is asked to wait after a 503.
const RETRY_AFTER_SECONDS: u32 = 10;
