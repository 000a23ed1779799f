//! One connection: the magic, then objects until the end. The collector never sends a byte (rule 4).

use std::sync::Arc;
use std::time::Duration;

use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_codec::text::cut_bytes;
use tributary_event::{Loss, Reason, semconv};
use tributary_explain::Explain;
use tributary_memory::{Amplification, MemoryBudget};
use tributary_protocol::fault::SessionError;
use tributary_protocol::{Awaiting, End, Flow, Now, Output, ReceiveProgress, Session};

use super::Options;
use super::assembler::Assembler;
use super::explain::Explainer;
use super::record::ObjectPosition;
use super::wire::{self, StringId, WireLimits, WireObject};

/// Output bytes that may accumulate before they are charged.
const MAX_UNCHARGED_BYTES: u64 = 256 * 1024;

/// The state of one connection.
#[derive(Debug)]
pub struct DatadogSession {
    wire: WireLimits,
    span_idle: Duration,
    state: SessionState,
    /// Offset in the stream of the first byte that is not consumed.
    offset: u64,
    /// A part of an object was received; the rest is awaited.
    is_inside_object: bool,
    last_input: Duration,
    assembler: Assembler,
    amplification: Amplification,
}

#[derive(Debug)]
enum SessionState {
    /// Waiting for `process`.
    Magic,
    /// Waiting for objects.
    Objects,
    /// Inside a string that is longer than `kept_string_bytes` (rule 24).
    LongString(LongString),
    /// The stream cannot be decoded further; the remaining bytes are counted.
    Fault(SessionError),
    /// `finish` was called. Records may remain to be emitted, and after them this fault.
    Finished(Option<SessionError>),
}

#[derive(Debug)]
struct LongString {
    id: StringId,
    offset: u64,
    head_bytes: u64,
    len: u32,
    received: u32,
    kept: Vec<u8>,
}

impl DatadogSession {
    /// A session for a new connection. `max_string_bytes` is `max_message_bytes` of the listener.
    pub fn new(options: Options, max_string_bytes: u64, emit_definitions: bool, memory: &Arc<MemoryBudget>) -> Self {
        let amplification = options.amplification;
        DatadogSession {
            wire: WireLimits {
                max_string_bytes,
                kept_string_bytes: options.kept_string_bytes,
                list_layout: options.list_layout,
            },
            span_idle: options.span_idle,
            state: SessionState::Magic,
            offset: 0,
            is_inside_object: false,
            last_input: Duration::ZERO,
            assembler: Assembler::new(options, emit_definitions, memory),
            amplification,
        }
    }
}

impl Session for DatadogSession {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let expanded_before = out.batch.total_expanded_bytes();
        self.last_input = now.elapsed;
        let progress = self.decode(input, now, out);
        self.is_inside_object = progress.flow == Flow::Continue && progress.consumed < input.len();
        let expanded = out.batch.total_expanded_bytes() - expanded_before + self.assembler.take_uncharged_bytes();
        out.charge(self.amplification, progress.consumed as u64, expanded, now.elapsed);
        progress
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if !matches!(self.state, SessionState::Finished(_)) {
            let fault = self.final_fault(rest, end);
            self.assembler.end(fault.is_none() && end == End::Closed, out);
            self.state = SessionState::Finished(fault);
            self.offset += rest.len() as u64;
        }
        if !self.assembler.drain(out) {
            return Flow::Again;
        }
        if let SessionState::Finished(Some(fault)) = std::mem::replace(&mut self.state, SessionState::Finished(None)) {
            fault.report(now, out);
        }
        let events = self.assembler.take_unresolved_events();
        if events > 0 {
            let position = ObjectPosition { offset: self.offset, size: 0, now };
            let detail = "events were written with raw ids: their strings were never defined";
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events: Some(events), detail, excerpt: &[] };
            out.loss(position.header(semconv::LOSS, None), loss);
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match &self.state {
            SessionState::Magic => Awaiting::Handshake,
            SessionState::LongString(string) => Awaiting::Rest { offset: string.offset },
            SessionState::Objects if self.is_inside_object => Awaiting::Rest { offset: self.offset },
            SessionState::Objects | SessionState::Fault(_) | SessionState::Finished(_) => Awaiting::Message,
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.idle_deadline().into_iter().chain(self.assembler.waiting_deadline()).min()
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        if self.idle_deadline().is_some_and(|deadline| deadline <= now.elapsed) {
            self.assembler.close(out);
        }
        if self.assembler.expire(now, out) { Flow::Continue } else { Flow::Again }
    }

    fn explainer(&self) -> Box<dyn Explain> {
        let layout = self.wire.list_layout;
        Box::new(match &self.state {
            SessionState::Magic => Explainer::new(layout),
            SessionState::Objects => Explainer::within(layout, 0),
            SessionState::LongString(string) => Explainer::within(layout, string.len - string.received),
            SessionState::Fault(_) | SessionState::Finished(_) => Explainer::lost(),
        })
    }
}

impl DatadogSession {
    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let mut at = 0;
        loop {
            self.assembler.enforce_limits(out);
            self.assembler.send_ready(out);
            if out.batch.is_full() || self.assembler.uncharged_bytes() >= MAX_UNCHARGED_BYTES {
                return ReceiveProgress { consumed: at, flow: Flow::Again };
            }
            let rest = &input[at..];
            let step = match &mut self.state {
                SessionState::Magic => self.magic(rest, now, out),
                SessionState::Objects => self.object(rest, now, out),
                SessionState::LongString(_) => Ok(self.long_string(rest, now, out)),
                SessionState::Fault(fault) => {
                    fault.count(rest);
                    self.offset += rest.len() as u64;
                    return ReceiveProgress { consumed: input.len(), flow: Flow::Close };
                }
                SessionState::Finished(_) => return ReceiveProgress { consumed: at, flow: Flow::Close },
            };
            match step {
                Ok(Some(size)) => {
                    at += size;
                    self.offset += size as u64;
                }
                Ok(None) => return ReceiveProgress { consumed: at, flow: Flow::Continue },
                Err(error) => self.state = SessionState::Fault(self.fault(error, rest)),
            }
        }
    }

    /// Decodes the first object. Returns its size; `None`: it is not complete yet. The same holds for the other objects.
    fn magic(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let Some(process) = wire::decode_process(rest)? else { return Ok(None) };
        self.state = SessionState::Objects;
        let origin = out.batch.origin().with_version("1");
        out.batch.set_origin(origin.into());
        let size = wire::PROCESS_BYTES as u64;
        self.assembler.process(process, ObjectPosition { offset: self.offset, size, now });
        out.decoded_bytes += size;
        Ok(Some(wire::PROCESS_BYTES))
    }

    fn object(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let decoded = wire::decode(rest, &self.wire);
        // Matched by reference: an object is as large as a span.
        let (object, size) = match &decoded {
            Ok(Some((object, size))) => (object, *size),
            Ok(None) => return Ok(None),
            Err(error) => return Err(*error),
        };
        let position = ObjectPosition { offset: self.offset, size: size as u64, now };
        let mut undecoded = 0;
        match *object {
            WireObject::Trace(trace_id) => self.assembler.trace(trace_id, position, out),
            WireObject::Span(ref span) => {
                if let Some(lists) = wire::lists_of_span(&rest[size..], &self.wire) {
                    self.assembler.close(out);
                    if out.batch.is_full() {
                        // The record before this span has filled the batch: the span is read again for the next one.
                        return Ok(Some(0));
                    }
                    if self.assembler.whole_span(span, &lists, position, out) {
                        let size = size + lists.size;
                        out.decoded_bytes += size as u64;
                        return Ok(Some(size));
                    }
                }
                self.assembler.span(span, position, out);
            }
            WireObject::List(kind, entries) => undecoded = self.assembler.list(kind, entries, position, out),
            WireObject::String(id, text) => self.assembler.define(id, text, false, position, out),
            WireObject::LongString(id, len) => {
                let (offset, head_bytes) = (position.offset, position.size);
                let string = LongString { id, offset, head_bytes, len, received: 0, kept: Vec::new() };
                self.state = SessionState::LongString(string);
                // Counted as decoded when it is complete, or as lost with what was received.
                undecoded = head_bytes;
            }
        }
        out.decoded_bytes += position.size - undecoded;
        Ok(Some(size))
    }

    /// Streams the body of a long string. Keeps 3 bytes more than the limit, so that it is cut at a character.
    fn long_string(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let SessionState::LongString(string) = &mut self.state else { return None };
        let missing = (string.len - string.received) as usize;
        if rest.is_empty() && missing > 0 {
            return None;
        }
        let taken = missing.min(rest.len());
        let limit = usize::try_from(self.wire.kept_string_bytes).unwrap_or(usize::MAX);
        let space = limit.saturating_add(3).saturating_sub(string.kept.len());
        // If memory is exhausted, the string is cut at that point.
        let wanted = string.kept.len() + taken.min(space);
        let has_space = wanted <= string.kept.capacity() || self.assembler.reserve_other(2 * wanted as u64);
        if has_space && string.kept.len() == string.received as usize {
            string.kept.extend_from_slice(&rest[..taken.min(space)]);
        }
        string.received += taken as u32;
        if string.received == string.len {
            let SessionState::LongString(string) = std::mem::replace(&mut self.state, SessionState::Objects) else {
                return None;
            };
            let _ = self.assembler.reserve_other(0);
            out.warn("string_truncated");
            let size = string.head_bytes + u64::from(string.len);
            let position = ObjectPosition { offset: string.offset, size, now };
            self.assembler.define(string.id, cut_bytes(&string.kept, limit), true, position, out);
            out.decoded_bytes += size;
        }
        Some(taken)
    }

    /// The fault that stands for the bytes that cannot be decoded, if there are any.
    fn final_fault(&mut self, rest: &[u8], end: End) -> Option<SessionError> {
        let reason = end.reason();
        match std::mem::replace(&mut self.state, SessionState::Finished(None)) {
            SessionState::Fault(mut fault) => {
                fault.count(rest);
                Some(fault)
            }
            SessionState::LongString(LongString { id, offset, head_bytes, len, received, kept }) => {
                let detail = format!("string.characters: {received} of {len} bytes were received: {}", end.as_str());
                let mut fault = SessionError::new(reason, offset, detail);
                let shown = [&[0xDD, 6][..], &id.0, &len.to_be_bytes(), &kept].concat();
                fault.count(&shown);
                fault.count_unseen(head_bytes + u64::from(received) - shown.len() as u64);
                fault.count(rest);
                Some(fault)
            }
            _ if !rest.is_empty() => {
                let detail = format!("{} bytes of an object were received: {}", rest.len(), end.as_str());
                let mut fault = SessionError::new(reason, self.offset, detail);
                fault.count(rest);
                Some(fault)
            }
            _ => None,
        }
    }

    fn fault(&self, error: DecodeError, rest: &[u8]) -> SessionError {
        let reason = match error.kind {
            DecodeErrorKind::Short { .. } | DecodeErrorKind::Invalid { .. } => Reason::Malformed,
            DecodeErrorKind::Unsupported { .. } => Reason::Unsupported,
            DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
        };
        // Operators confuse ports: the detail says what the first byte looks like (rule 30).
        let looks_like = match (&self.state, rest.first()) {
            (SessionState::Magic, Some(0x16)) => {
                "; this looks like TLS: set `tls` on the listener or turn it off in the agent"
            }
            (SessionState::Magic, Some(byte)) if byte.is_ascii_uppercase() => {
                "; this looks like HTTP, which released Datadog tracers speak: their protocol is datadog_agent, by default on port 8126"
            }
            _ => "",
        };
        let detail = format!("at {}: {error}{looks_like}", self.offset + error.offset as u64);
        SessionError::new(reason, self.offset, detail)
    }

    /// When the open record counts as complete without a following object (reading 16). Not while a part of an object is
    /// here, which may be one of its lists.
    fn idle_deadline(&self) -> Option<Duration> {
        let idle = matches!(self.state, SessionState::Objects) && !self.is_inside_object && self.assembler.has_open();
        idle.then(|| self.last_input + self.span_idle)
    }
}
