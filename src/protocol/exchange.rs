//! Protocols of requests and responses over HTTP: one request in, events and one response out.
//!
//! The order of calls for one request: [`Exchange::admit`] with its head; [`Exchange::work`] when the body was received within
//! the limit; [`Work::step`] while it returns [`Flow::Again`]; [`Work::conclude`] and [`Work::respond`] when the sinks have
//! written the events or failed. Before each step and the response [`Work::poll_ready`]. Nothing here waits or knows a socket.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

use tributary_codec::http::RequestHead;
use tributary_event::Reason;
use tributary_memory::MemoryBudget;

use super::{Flow, Now, Output, Packets};

/// A protocol of requests and responses: one value per listener. It contains the state that requests share.
pub trait Exchange: Send + Sync + 'static {
    /// The decoder of one request.
    type Work: Work;

    /// Whether connections may speak HTTP/2: with prior knowledge, or, through TLS, by agreement (ALPN `h2`). A connection of
    /// HTTP/2 has several requests at the same time.
    fn speaks_http2(&self) -> bool {
        false
    }

    /// Changes every answer to such a request just before it is sent, those of the transport (400, 408, 413, 503) too. Statuses
    /// are counted before. `None`: answers are sent as they are.
    fn answer_form(&self, _head: &RequestHead) -> Option<AnswerForm> {
        None
    }

    /// Whether the body may contain a secret: then no loss shows how it begins.
    fn is_secret(&self, _head: &RequestHead) -> bool {
        false
    }

    /// Whether what explains the complete body of such a request hides its keys, so that the rest can be shown.
    fn is_explained_without_keys(&self, _head: &RequestHead) -> bool {
        false
    }

    /// The first bytes of connections that speak packets instead of HTTP. `None`: there are none.
    fn packet_magic(&self) -> Option<&'static [u8]> {
        None
    }

    /// The packets of a new connection that begins with [`Exchange::packet_magic`].
    fn packets(&self) -> Option<Box<dyn Packets<Self::Work>>> {
        None
    }

    /// A head was received, and nothing of its body.
    fn admit(&self, head: &RequestHead, now: Now) -> HeadDecision;

    /// An admitted request was received completely. What it needs beside its body it takes of `memory`, that of the peer's
    /// address. None: of the memory of the exchange.
    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, now: Now) -> Self::Work;

    /// The endpoint of a request that is refused because of its head or for lack of memory, if its bytes count as ignored:
    /// they are not kept here, or the peer still has them. `None`: they are lost.
    fn ignored_as(&self, _head: &RequestHead) -> Option<&'static str> {
        None
    }

    /// The answer to a request that cannot be taken now. `why`: what is missing.
    fn overloaded(&self, _head: &RequestHead, why: &'static str) -> Response {
        Response::unavailable(why)
    }

    /// After how long the peer gets this answer, although its events are not delivered yet. `None`: it waits for them.
    fn early_answer(&self, _head: &RequestHead) -> Option<(Duration, Response)> {
        None
    }

    /// Called about once a second: writes what is due. [`Flow::Again`]: take the events and call again.
    fn tick(&self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }

    /// No request follows: writes everything that waits. Call again while it returns [`Flow::Again`].
    fn finish(&self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }
}

/// Changes an answer: for peers that read something else than the HTTP status, e.g. the status of gRPC.
pub type AnswerForm = fn(Response) -> Response;

/// The decoder of one request. If it is dropped before [`Work::respond`], the events were not delivered.
pub trait Work: Send + 'static {
    /// Does a bounded part of the work. [`Flow::Again`]: take the events and call again. Otherwise all is decoded.
    ///
    /// Over all calls every byte of the body is decoded or lost. If the decoded body has another size than the received one,
    /// [`Output::inflated`] is called before.
    fn step(&mut self, now: Now, out: &mut Output) -> Flow;

    /// Whether the next call can be made: [`Work::step`], or [`Work::respond`]. If something else is waited for than the sinks,
    /// `context` is woken when it can.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    /// Why the request goes to the quarantine, after the last `step`. `None`: it does not.
    fn quarantine_reason(&self) -> Option<&str>;

    /// The request as it was received.
    fn request(&self) -> &Request;

    /// The outcome of the events is known. [`Work::respond`] follows as soon as the work is [ready](Work::poll_ready).
    fn conclude(&mut self, _outcome: RequestOutcome) {}

    /// The response, when the outcome of the events is known.
    fn respond(self, outcome: RequestOutcome, now: Now) -> Response;
}

/// Reads datagrams. Each is complete.
pub trait DatagramReader: Send + Sync + fmt::Debug + 'static {
    /// Reads a datagram from `start` on until the batch is full; returns where the rest begins. Every byte is decoded or lost.
    fn read(&self, datagram: &[u8], start: usize, now: Now, out: &mut Output) -> usize;
}

/// What became of the events of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestOutcome {
    /// Every sink that takes them has written them, and the quarantine has the request if it asked for that.
    Delivered,
    /// Every sink has written them, but the request could not be written to the quarantine.
    Unkept,
    /// At least one sink has not written them.
    Failed,
}

/// A complete request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its head.
    pub head: RequestHead,
    /// Its body as it was transmitted.
    pub body: Bytes,
    /// Its number on the connection, from 1.
    pub number: u64,
}

/// What to do with a request when only its head was received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeadDecision {
    /// Read the body.
    Take {
        /// The most bytes that it may have.
        max_body_bytes: u64,
        /// The configuration key of that limit.
        key: &'static str,
    },
    /// Decode nothing and send this response. Bytes of the body are lost for this reason.
    Answer(Response, Reason),
}

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The HTTP status.
    pub status: u16,
    /// Headers beside those of HTTP itself.
    pub headers: Vec<(&'static str, String)>,
    /// The body: a sentence for a human reader, unless the protocol defines one.
    pub body: Cow<'static, [u8]>,
    /// Headers behind the body. Only peers that speak HTTP/2 get them.
    pub trailers: Vec<(&'static str, String)>,
}

impl Response {
    /// A response with a sentence as its body.
    pub fn text(status: u16, sentence: impl Into<String>) -> Self {
        let headers = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
        let body = Cow::Owned((sentence.into() + "\n").into_bytes());
        Response { headers, body, ..Response::empty(status) }
    }

    /// A response without a body. Over HTTP/2 it ends with its headers if no trailers are added.
    pub fn empty(status: u16) -> Self {
        Response { status, headers: Vec::new(), body: Cow::Borrowed(&[]), trailers: Vec::new() }
    }

    /// 503: the request is valid and can be repeated later.
    pub fn unavailable(sentence: impl Into<String>) -> Self {
        Response::text(503, sentence).again_later()
    }

    /// The same with the time after which the request can be repeated.
    #[must_use]
    pub fn again_later(self) -> Self {
        self.with("retry-after", RETRY_AFTER_SECONDS.to_string())
    }

    /// 405, with the allowed methods.
    pub fn not_allowed(method: &str, allowed: &str) -> Self {
        let shown: String = method.chars().take(32).collect();
        Response::text(405, format!("{shown} is not for this path; allowed: {allowed}"))
            .with("allow", allowed.to_owned())
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The same with one more header behind the body.
    #[must_use]
    pub fn with_trailer(mut self, name: &'static str, value: String) -> Self {
        self.trailers.push((name, value));
        self
    }
}

/// The value of `Retry-After`: how long a peer waits before it sends a request again that cannot be taken now.
pub const RETRY_AFTER_SECONDS: u32 = 10;
