//! Protocols as pure state machines: bytes and time in, events and replies out.
//!
//! No socket, task, clock or random number here or below. `tributary_driver` drives a [`Session`] or an [`Exchange`], the same
//! code for live connections, for recordings and for tests. A protocol is one folder and one variant of [`Protocol`].
#![forbid(unsafe_code)]

pub mod datadog_tags;
mod exchange;
pub mod fault;
mod loss_limit;
pub mod nats;
mod output;
mod packets;
pub mod repeats;

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use tributary_event::{Reason, UnixNanos};
use tributary_explain::{Explain, Raw};

pub use exchange::{
    AnswerForm, DatagramReader, Exchange, HeadDecision, RETRY_AFTER_SECONDS, Request, RequestOutcome, Response, Work,
};
pub use loss_limit::LossLimit;
pub use output::Output;
pub use packets::{Frame, PacketAction, Packets};
pub use tributary_codec::http::RequestHead;

/// The protocols. Closed on purpose: a new one is a variant here, and the compiler lists the other places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Protocol {
    Rbkit,
    Bytefrog,
    Datadog,
    DatadogAgent,
    Endless,
    Zico,
    Otlp,
    /// Events of other collectors, from a stream. Only losses of such a listener have it as their protocol.
    Nats,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 8] = [
        Protocol::Rbkit,
        Protocol::Bytefrog,
        Protocol::Datadog,
        Protocol::DatadogAgent,
        Protocol::Endless,
        Protocol::Zico,
        Protocol::Otlp,
        Protocol::Nats,
    ];

    /// Those that agents speak.
    pub const OF_AGENTS: [Protocol; 7] = [
        Protocol::Rbkit,
        Protocol::Bytefrog,
        Protocol::Datadog,
        Protocol::DatadogAgent,
        Protocol::Endless,
        Protocol::Zico,
        Protocol::Otlp,
    ];

    /// The name in configuration and in `origin.protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Rbkit => "rbkit",
            Protocol::Bytefrog => "bytefrog",
            Protocol::Datadog => "datadog",
            Protocol::DatadogAgent => "datadog_agent",
            Protocol::Endless => "endless",
            Protocol::Zico => "zico",
            Protocol::Otlp => "otlp",
            Protocol::Nats => "nats",
        }
    }

    /// Whether its agents are answered when their events are delivered.
    pub fn acknowledges(self) -> bool {
        match self {
            Protocol::DatadogAgent | Protocol::Endless | Protocol::Zico | Protocol::Otlp | Protocol::Nats => true,
            Protocol::Rbkit | Protocol::Bytefrog | Protocol::Datadog => false,
        }
    }

    /// Whether it leaves events out that were delivered before.
    pub fn recognizes_repeats(self) -> bool {
        matches!(self, Protocol::Endless | Protocol::DatadogAgent | Protocol::Otlp | Protocol::Zico)
    }

    /// The protocol of this name.
    pub fn by_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.as_str() == name)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How `serde_json` names a number that it shows as a map with its digits: it has the feature `arbitrary_precision`, which other
/// readers need.
pub const JSON_NUMBER: &str = "$serde_json::private::Number";

/// The time of a call, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// The wall clock, for times in events. It may step in either direction.
    pub unix: UnixNanos,
    /// Time since a fixed moment, for timeouts. It never steps back.
    pub elapsed: Duration,
}

/// One connection as a pure state machine: bytes and time in, events and replies out.
///
/// # Order of calls
/// `tributary_driver` is the only caller. It makes the calls of one connection in this order:
///
/// 1. [`receive`](Session::receive), whenever bytes arrived, with everything that is not consumed. Again with the rest
///    while it returns [`Flow::Again`].
/// 2. [`handle_timeout`](Session::handle_timeout), whenever the time of [`poll_timeout`](Session::poll_timeout) has come
///    or [`poll_wake`](Session::poll_wake) was ready, between calls of `receive`. Again while it returns [`Flow::Again`].
/// 3. [`shutdown`](Session::shutdown), at most once, when the collector stops. After [`Shutdown::Drain`], 1 and 2 continue
///    until one of them returns [`Flow::Close`], and [`hurry`](Session::hurry) is called at most once.
/// 4. [`finish`](Session::finish), after any call that returned [`Flow::Close`], when the connection has ended, or after
///    [`Shutdown::Close`]. Again while it returns [`Flow::Again`]. No other call follows.
///
/// After *every* call the driver takes [`Output`]: it settles the bytes, hands the batch over, and, on a live connection,
/// sends the reply and then pauses for [`Output::throttle`]. So `poll_timeout`, `awaiting` and `explainer` may change with
/// every call, and are asked again after each.
///
/// After [`Flow::Close`] the transport may still pass bytes to `receive` for a moment (`close_linger`): a session that has
/// closed consumes them and reports them as lost.
///
/// # What an implementation guarantees
/// - Events do not depend on how the bytes were cut into calls.
/// - Every byte is decoded or lost exactly once. [`Output::decoded_bytes`] and the losses add up to what was consumed, and
///   after `finish` also to the rest.
/// - No call panics, and each does a bounded amount of work; more work is [`Flow::Again`].
pub trait Session: Send + 'static {
    /// Consumes complete messages at the front of `input`. Bytes that cannot be decoded are consumed too, and reported as
    /// a loss here or in [`Session::finish`].
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress;

    /// The connection is over: `rest` (what `receive` did not consume) can never become complete. It is empty when the call
    /// is repeated.
    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow;

    /// What the session waits for. The transport applies the listener's time limit for it.
    fn awaiting(&self) -> Awaiting;

    /// When [`Session::handle_timeout`] is to be called, on the clock of [`Now::elapsed`]. None: at no time.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// The time of `poll_timeout` has come, or `poll_wake` was ready.
    fn handle_timeout(&mut self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }

    /// Ready when something outside the connection (a command, another session) wants [`Session::handle_timeout`] to be
    /// called. Until then it keeps the waker of `context`.
    fn poll_wake(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// The collector is stopping: writes the reply with which the protocol says so, if it has one.
    fn shutdown(&mut self, _now: Now, _out: &mut Output) -> Shutdown {
        Shutdown::Close
    }

    /// The collector, which is stopping, ends within seconds: writes what lets the peer end sooner.
    fn hurry(&mut self, _now: Now, _out: &mut Output) {}

    /// Names the bytes that follow those consumed so far, for a human reader.
    fn explainer(&self) -> Box<dyn Explain> {
        Box::new(Raw::new("of a protocol without an explanation"))
    }
}

/// What a call to [`Session::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ReceiveProgress {
    /// Bytes at the front of the input that the session does not need again.
    pub consumed: usize,
    /// What to do next.
    pub flow: Flow,
}

/// What a session wants its driver to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Call again when there are more bytes or the time has come.
    Continue,
    /// The batch is full: take it and call again with the same rest.
    Again,
    /// The session can understand or wants no further bytes: send the reply, then finish.
    Close,
}

/// What a session does when the collector stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Shutdown {
    /// It waits for nothing: send the reply, then finish.
    Close,
    /// It waits for the peer's answer, for a bounded time, and then returns [`Flow::Close`].
    Drain,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer closed it.
    Closed,
    /// It failed.
    Reset,
    /// A time limit passed.
    TimedOut,
    /// One message is longer than `max_message_bytes`.
    TooLarge,
    /// There was no memory for the rest of a message within its time limit.
    NoMemory,
    /// The collector stops.
    Stopped,
}

impl End {
    /// The end, as loss details name it.
    pub fn as_str(self) -> &'static str {
        match self {
            End::Closed => "the peer closed the connection",
            End::Reset => "the connection broke",
            End::TimedOut => "a time limit passed",
            End::TooLarge => "that is over max_message_bytes",
            End::NoMemory => "there was no memory for the rest in time (limits.memory_bytes)",
            End::Stopped => "the collector is stopping",
        }
    }

    /// The reason with which the rest of a message is lost.
    pub fn reason(self) -> Reason {
        match self {
            End::TooLarge => Reason::TooLarge,
            End::NoMemory => Reason::Failed,
            End::Closed | End::Reset | End::TimedOut | End::Stopped => Reason::Truncated,
        }
    }
}

/// What a session waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaiting {
    /// The first message (`handshake_timeout`).
    Handshake,
    /// Any message; no byte of it was received yet (`idle_timeout`).
    Message,
    /// The rest of the message that began at this offset of the stream (`message_timeout`).
    Rest {
        /// Offset of the message's first byte since the start of the connection.
        offset: u64,
    },
}
