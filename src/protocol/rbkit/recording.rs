//! Recordings: the bytes of a connection, or the body of one message.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tributary_codec::msgpack::{MsgpackValue as Wire, Reader};
use tributary_explain::Explain;
use tributary_protocol::{Awaiting, End, Flow, Now, Output, ReceiveProgress, Session};

use super::agent::RbkitAgent;
use super::control::Control;
use super::options::Options;
use super::subscription::Subscription;
use super::wire::{Channel, MessageHead, Type};

/// A session that reads a recording.
#[derive(Debug)]
pub struct Player {
    kind: RecordingKind,
    /// Recordings of the same conversation that have not ended. The last one of them ends the conversation.
    left: Option<Arc<AtomicUsize>>,
}

#[derive(Debug)]
enum RecordingKind {
    /// Of published messages.
    Pub(Box<Subscription>),
    /// Of replies.
    Rep(Box<Control>),
}

impl Player {
    /// The session for `bytes`: one recording, of possibly several, of the connections to `agent`. Without `channel` the form
    /// of the bytes decides.
    pub fn new(
        agent: RbkitAgent,
        options: Arc<Options>,
        max_message_bytes: u64,
        bytes: &[u8],
        channel: Option<Channel>,
        is_last: bool,
    ) -> Player {
        // No message begins with 0xff, the first byte of a greeting.
        let is_stream = bytes.first() == Some(&0xff);
        let channel = channel.unwrap_or_else(|| if is_stream { socket(bytes) } else { sender(bytes) });
        let kind = match channel {
            Channel::Pub => {
                let body = (!is_stream).then_some(bytes.len() as u64);
                RecordingKind::Pub(Subscription::offline(agent, options, max_message_bytes, body, is_last).into())
            }
            Channel::Rep => {
                let body = (!is_stream).then_some(bytes.len());
                RecordingKind::Rep(Control::offline(agent, options, body, is_last).into())
            }
        };
        Player { kind, left: None }
    }

    /// The same for one of several recordings that are played together: `left` counts those that have not ended.
    #[must_use]
    pub fn together(self, left: &Arc<AtomicUsize>) -> Player {
        left.fetch_add(1, Relaxed);
        Player { left: Some(left.clone()), ..self }
    }

    fn session(&self) -> &dyn Session {
        match &self.kind {
            RecordingKind::Pub(session) => &**session,
            RecordingKind::Rep(session) => &**session,
        }
    }

    fn session_mut(&mut self) -> &mut dyn Session {
        match &mut self.kind {
            RecordingKind::Pub(session) => &mut **session,
            RecordingKind::Rep(session) => &mut **session,
        }
    }
}

impl Session for Player {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        self.session_mut().receive(input, now, out)
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if self.left.take().is_some_and(|left| left.fetch_sub(1, Relaxed) == 1) {
            match &mut self.kind {
                RecordingKind::Pub(session) => session.set_last(),
                RecordingKind::Rep(session) => session.set_last(),
            }
        }
        self.session_mut().finish(rest, end, now, out)
    }

    fn awaiting(&self) -> Awaiting {
        self.session().awaiting()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.session().poll_timeout()
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        self.session_mut().handle_timeout(now, out)
    }

    fn explainer(&self) -> Box<dyn Explain> {
        self.session().explainer()
    }
}

/// The socket of a stream, from its READY.
fn socket(bytes: &[u8]) -> Channel {
    const NAME: &[u8] = b"socket-type";
    let head = &bytes[..bytes.len().min(4096)];
    let at = head.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME));
    let value = at.and_then(|at| head.get(at + NAME.len() + 4..)).unwrap_or_default();
    let replies = [&b"REP"[..], b"ROUTER"]
        .iter()
        .any(|name| value.get(..name.len()).is_some_and(|value| value.eq_ignore_ascii_case(name)));
    if replies { Channel::Rep } else { Channel::Pub }
}

/// The socket of a body: the payload of a handshake is a map, that of a collection is an array.
fn sender(body: &[u8]) -> Channel {
    let mut reader = Reader::new(body, 0);
    if body == b"ok" {
        return Channel::Rep;
    }
    let Ok(Wire::Map(pairs)) = reader.next("message") else { return Channel::Pub };
    let Ok(head) = MessageHead::read(reader, pairs) else { return Channel::Pub };
    let is_handshake = matches!(head.kind, Some(Type::Number(7 | 8) | Type::Name(b"handshake")));
    match head.payload.map(|mut payload| payload.reader.next("payload")) {
        Some(Ok(Wire::Map(_))) if is_handshake => Channel::Rep,
        _ => Channel::Pub,
    }
}
