//! FLOOR 2 — protocols as pure state machines: bytes and time in, events and replies out.
//!
//! No socket, task, clock or random number here or below. A transport drives a [`Session`] or an [`Exchange`]; so does
//! the offline decoder, and so do the tests, with the same code. A protocol is one folder and one variant of
//! [`Protocol`].

pub mod bytefrog;
pub mod datadog;
pub mod endless;
mod exchange;
mod fault;
pub mod rbkit;
pub mod zico;

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;

use crate::event::{BatchBuilder, Header, Key, Loss, Reason, UnixNanos, Value};
use crate::explain::{Explain, Raw};

pub use crate::codec::http::Head;
pub use exchange::{Exchange, HeadDecision, Request, RequestOutcome, Response, Work};

/// The protocols of the house. Closed on purpose: a new one is a variant here, and the compiler lists the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Protocol {
    Rbkit,
    Bytefrog,
    Datadog,
    Endless,
    Zico,
}

impl Protocol {
    /// Every protocol of the house.
    pub const ALL: [Protocol; 5] =
        [Protocol::Rbkit, Protocol::Bytefrog, Protocol::Datadog, Protocol::Endless, Protocol::Zico];

    /// The name in configuration and in `origin.protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Rbkit => "rbkit",
            Protocol::Bytefrog => "bytefrog",
            Protocol::Datadog => "datadog",
            Protocol::Endless => "endless",
            Protocol::Zico => "zico",
        }
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

/// The moment of a call, on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Wall clock, for what events say. May step in either direction.
    pub unix: UnixNanos,
    /// Time since some fixed moment, never stepping back, for everything that waits.
    pub elapsed: Duration,
}

/// One connection as a pure state machine.
pub trait Session: Send + 'static {
    /// Consumes complete messages at the front of `input`; call again with the rest and what has arrived since.
    /// What it cannot decode it consumes too, and reports as a loss here or in [`Session::finish`].
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress;

    /// The connection is over: `rest` (what `receive` left) can never complete. Call again, with an empty `rest`,
    /// while it answers [`Flow::Again`]; after that the session is spent.
    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow;

    /// What the session waits for. The transport applies the listener's time limit for it.
    fn awaiting(&self) -> Awaiting;

    /// When [`Session::handle_timeout`] wants to be called, on the clock of [`Now::elapsed`]. May change with any call.
    fn poll_timeout(&self) -> Option<Duration> {
        None
    }

    /// The moment of `poll_timeout` has passed.
    fn handle_timeout(&mut self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Continue
    }

    /// Whether somebody else wants something of this connection, who will wake it through the context when that
    /// changes. Then [`Session::handle_timeout`] is called, as when time is up.
    fn poll_wake(&mut self, _context: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// The collector is stopping: say to the peer what the protocol wants said. [`Flow::Continue`]: the session is told
    /// what the peer answers, and closes by itself, in a bounded time. Otherwise `finish` follows.
    fn shutdown(&mut self, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    /// What names the bytes that follow those consumed so far, for people to read.
    fn explainer(&self) -> Box<dyn Explain> {
        Box::new(Raw::new("of a protocol that nobody has explained"))
    }
}

/// What a call to [`Session::receive`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Bytes at the front of the input that the session is done with.
    pub consumed: usize,
    /// What to do next.
    pub flow: Flow,
}

/// What a session wants of its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Flow {
    /// Go on when there is more to say.
    Continue,
    /// The batch is full: take it and call again with the same rest.
    Again,
    /// Nothing further can be understood or is wanted: send the reply, then finish.
    Close,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer closed it.
    Closed,
    /// It broke.
    Reset,
    /// A time limit passed.
    TimedOut,
    /// More of one message is here than `max_message_bytes`.
    TooLarge,
    /// There was no memory for the rest of a message in the time that it had.
    NoMemory,
    /// The collector stops.
    Stopped,
}

impl End {
    /// The end in words, for loss details.
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

    /// Why what was left of a message is lost.
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
    /// Any message; nothing of it is here yet (`idle_timeout`).
    Message,
    /// The rest of the message that began at this offset of the stream (`message_timeout`).
    Rest {
        /// Offset of the message's first byte since the start of the connection.
        offset: u64,
    },
}

/// What sessions produce. The driver takes from it after every call.
#[derive(Debug)]
pub struct Output {
    /// Events.
    pub batch: BatchBuilder,
    /// Bytes for the peer.
    pub reply: BytesMut,
    /// Bytes that became events or protocol state since the driver last took the number.
    pub decoded_bytes: u64,
    /// Bytes reported lost, by reason, since the driver last took the numbers.
    pub lost_bytes: [u64; Reason::ALL.len()],
    /// By how many bytes inflating made more of what was received, since the driver last took the number.
    pub inflated_bytes: i64,
    /// Oddities that are no loss, by code, since the driver last took them.
    pub warnings: Vec<(&'static str, u64)>,
    /// How long to wait before reading on: the peer made us expand more than its credit.
    pub hold: Option<Duration>,
}

impl Output {
    /// An empty output that writes into `batch`.
    pub fn new(batch: BatchBuilder) -> Self {
        Output {
            batch,
            reply: BytesMut::new(),
            decoded_bytes: 0,
            lost_bytes: [0; Reason::ALL.len()],
            inflated_bytes: 0,
            warnings: Vec::new(),
            hold: None,
        }
    }

    /// Writes a loss event and counters its bytes. With [`Output::loss_with`] the only way to report lost bytes.
    pub fn loss(&mut self, header: Header, loss: Loss<'_>) {
        self.loss_with(header, loss, &[]);
    }

    /// The same, with attributes whose values were made for this batch.
    pub fn loss_with(&mut self, header: Header, loss: Loss<'_>, attributes: &[(Key, Value)]) {
        self.lost_bytes[loss.reason.index()] += loss.bytes;
        self.batch.loss_with(header, loss, attributes);
    }

    /// What was received as `from` bytes is decoded as `to` bytes: from here on those count.
    pub fn inflated(&mut self, from: u64, to: u64) {
        // Both are bounded by limits far below 2^63.
        self.inflated_bytes += (to as i64).wrapping_sub(from as i64);
    }

    /// Counts an oddity that is no loss.
    pub fn warn(&mut self, code: &'static str) {
        match self.warnings.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += 1,
            None => self.warnings.push((code, 1)),
        }
    }
}
