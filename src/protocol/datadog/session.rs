//! One connection: MAGIC, then objects, until it ends. One direction only: the collector never sends a byte (rule 4).

use std::sync::Arc;
use std::time::Duration;

use crate::codec::reader::{DecodeError, DecodeErrorKind};
use crate::codec::text::cut_bytes;
use crate::event::{Loss, Reason, semconv};
use crate::explain::Explain;
use crate::memory::{Amplification, MemoryBudget};
use crate::protocol::fault::Fault;
use crate::protocol::{Awaiting, End, Flow, Now, Output, Progress, Session};

use super::Options;
use super::assembler::Assembler;
use super::explain::Explainer;
use super::record::Place;
use super::wire::{self, Object, StringId, WireLimits};

/// So much output may be owed before the credit is asked.
const MOST_OWED_BYTES: u64 = 256 * 1024;

/// The state of one connection.
#[derive(Debug)]
pub struct DatadogSession {
    wire: WireLimits,
    span_idle: Duration,
    phase: Phase,
    /// Offset in the stream of the first byte not consumed.
    offset: u64,
    /// Part of an object is here and waits for the rest.
    begun: bool,
    last_input: Duration,
    assembler: Assembler,
    amplification: Amplification,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for `process`.
    Magic,
    /// Objects.
    Objects,
    /// Inside a string longer than what is kept of it (rule 24).
    LongString(LongString),
    /// Nothing can be read any more; what still comes is counted.
    Fault(Fault),
    /// `finish` has been told everything; records may still be on their way out, and after them these last words.
    Finished(Option<Fault>),
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
    /// A session at the start of a connection. `max_string_bytes` is the listener's `max_message_bytes`.
    pub fn new(options: Options, max_string_bytes: u64, emit_definitions: bool, memory: &Arc<MemoryBudget>) -> Self {
        let amplification = options.amplification;
        DatadogSession {
            wire: WireLimits {
                max_string_bytes,
                kept_string_bytes: options.kept_string_bytes,
                list_layout: options.list_layout,
            },
            span_idle: options.span_idle,
            phase: Phase::Magic,
            offset: 0,
            begun: false,
            last_input: Duration::ZERO,
            assembler: Assembler::new(options, emit_definitions, memory),
            amplification,
        }
    }
}

impl Session for DatadogSession {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let expanded_before = out.batch.total_expanded_bytes();
        self.last_input = now.elapsed;
        let progress = self.decode(input, now, out);
        self.begun = progress.flow == Flow::Continue && progress.consumed < input.len();
        let expanded = out.batch.total_expanded_bytes() - expanded_before + self.assembler.take_owed_bytes();
        out.charge(self.amplification, progress.consumed as u64, expanded, now.elapsed);
        progress
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if !matches!(self.phase, Phase::Finished(_)) {
            let fault = self.last_fault(rest, end);
            self.assembler.end(fault.is_none() && end == End::Closed, out);
            self.phase = Phase::Finished(fault);
            self.offset += rest.len() as u64;
        }
        if !self.assembler.drain(out) {
            return Flow::Again;
        }
        if let Phase::Finished(Some(fault)) = std::mem::replace(&mut self.phase, Phase::Finished(None)) {
            fault.tell(now, out);
        }
        let events = self.assembler.take_unresolved_events();
        if events > 0 {
            let place = Place { offset: self.offset, size: 0, now };
            let detail = "events went out with raw ids: their strings were never defined";
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events: Some(events), detail, excerpt: &[] };
            out.loss(place.header(semconv::LOSS, None), loss);
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match &self.phase {
            Phase::Magic => Awaiting::Handshake,
            Phase::LongString(string) => Awaiting::Rest { offset: string.offset },
            Phase::Objects if self.begun => Awaiting::Rest { offset: self.offset },
            Phase::Objects | Phase::Fault(_) | Phase::Finished(_) => Awaiting::Message,
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
        Box::new(match &self.phase {
            Phase::Magic => Explainer::new(layout),
            Phase::Objects => Explainer::within(layout, 0),
            Phase::LongString(string) => Explainer::within(layout, string.len - string.received),
            Phase::Fault(_) | Phase::Finished(_) => Explainer::lost(),
        })
    }
}

impl DatadogSession {
    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let mut at = 0;
        loop {
            self.assembler.enforce_limits(out);
            self.assembler.send_ready(out);
            if out.batch.is_full() || self.assembler.owed_bytes() >= MOST_OWED_BYTES {
                return Progress { consumed: at, flow: Flow::Again };
            }
            let rest = &input[at..];
            let step = match &mut self.phase {
                Phase::Magic => self.magic(rest, now, out),
                Phase::Objects => self.object(rest, now, out),
                Phase::LongString(_) => Ok(self.long_string(rest, now, out)),
                Phase::Fault(fault) => {
                    fault.count(rest);
                    self.offset += rest.len() as u64;
                    return Progress { consumed: input.len(), flow: Flow::Close };
                }
                Phase::Finished(_) => return Progress { consumed: at, flow: Flow::Close },
            };
            match step {
                Ok(Some(size)) => {
                    at += size;
                    self.offset += size as u64;
                }
                Ok(None) => return Progress { consumed: at, flow: Flow::Continue },
                Err(error) => self.phase = Phase::Fault(self.fault(error, rest)),
            }
        }
    }

    /// The first object. Answers its size; `None`: not all of it is here, as for the others.
    fn magic(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let Some(process) = wire::decode_process(rest)? else { return Ok(None) };
        self.phase = Phase::Objects;
        let origin = out.batch.origin().with_version("1");
        out.batch.set_origin(origin.into());
        let size = wire::PROCESS_BYTES as u64;
        self.assembler.process(process, Place { offset: self.offset, size, now });
        out.decoded_bytes += size;
        Ok(Some(wire::PROCESS_BYTES))
    }

    fn object(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let decoded = wire::decode(rest, &self.wire);
        // Looked at where it is: an object is as large as a span.
        let (object, size) = match &decoded {
            Ok(Some((object, size))) => (object, *size),
            Ok(None) => return Ok(None),
            Err(error) => return Err(*error),
        };
        let place = Place { offset: self.offset, size: size as u64, now };
        let mut undecoded = 0;
        match *object {
            Object::Trace(trace_id) => self.assembler.trace(trace_id, place, out),
            Object::Span(ref span) => self.assembler.span(span, place, out),
            Object::List(kind, entries) => undecoded = self.assembler.list(kind, entries, place, out),
            Object::String(id, text) => self.assembler.define(id, text, false, place, out),
            Object::LongString(id, len) => {
                let (offset, head_bytes) = (place.offset, place.size);
                let string = LongString { id, offset, head_bytes, len, received: 0, kept: Vec::new() };
                self.phase = Phase::LongString(string);
                // Decoded when all of it is here, or lost with what is.
                undecoded = head_bytes;
            }
        }
        out.decoded_bytes += place.size - undecoded;
        Ok(Some(size))
    }

    /// Streams a string's body: keeps a little more than the limit, so that the cut can see the character at it.
    fn long_string(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let Phase::LongString(string) = &mut self.phase else { return None };
        let missing = (string.len - string.received) as usize;
        if rest.is_empty() && missing > 0 {
            return None;
        }
        let taken = missing.min(rest.len());
        let limit = usize::try_from(self.wire.kept_string_bytes).unwrap_or(usize::MAX);
        let room = limit.saturating_add(3).saturating_sub(string.kept.len());
        // While memory is short, it is cut where there was no more room.
        let wanted = string.kept.len() + taken.min(room);
        let has_room = wanted <= string.kept.capacity() || self.assembler.hold_beside(2 * wanted as u64);
        if has_room && string.kept.len() == string.received as usize {
            string.kept.extend_from_slice(&rest[..taken.min(room)]);
        }
        string.received += taken as u32;
        if string.received == string.len {
            let Phase::LongString(string) = std::mem::replace(&mut self.phase, Phase::Objects) else { return None };
            let _ = self.assembler.hold_beside(0);
            out.warn("string_truncated");
            let size = string.head_bytes + u64::from(string.len);
            let place = Place { offset: string.offset, size, now };
            self.assembler.define(string.id, cut_bytes(&string.kept, limit), true, place, out);
            out.decoded_bytes += size;
        }
        Some(taken)
    }

    /// The last words about bytes that can never be decoded, if there are any.
    fn last_fault(&mut self, rest: &[u8], end: End) -> Option<Fault> {
        let reason = end.reason();
        match std::mem::replace(&mut self.phase, Phase::Finished(None)) {
            Phase::Fault(mut fault) => {
                fault.count(rest);
                Some(fault)
            }
            Phase::LongString(LongString { id, offset, head_bytes, len, received, kept }) => {
                let detail = format!("string.characters: {received} of {len} bytes are here, and {}", end.as_str());
                let mut fault = Fault::new(reason, offset, detail);
                let shown = [&[0xDD, 6][..], &id.0, &len.to_be_bytes(), &kept].concat();
                fault.count(&shown);
                fault.count_unseen(head_bytes + u64::from(received) - shown.len() as u64);
                fault.count(rest);
                Some(fault)
            }
            _ if !rest.is_empty() => {
                let detail = format!("{} bytes of an object are here, and {}", rest.len(), end.as_str());
                let mut fault = Fault::new(reason, self.offset, detail);
                fault.count(rest);
                Some(fault)
            }
            _ => None,
        }
    }

    fn fault(&self, error: DecodeError, rest: &[u8]) -> Fault {
        let reason = match error.kind {
            DecodeErrorKind::Short { .. } | DecodeErrorKind::Invalid { .. } => Reason::Malformed,
            DecodeErrorKind::Unsupported { .. } => Reason::Unsupported,
            DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
        };
        // Operators mix up ports: say what the first byte looks like (rule 30).
        let looks_like = match (&self.phase, rest.first()) {
            (Phase::Magic, Some(0x16)) => {
                "; this looks like TLS: set `tls` on the listener or turn it off in the agent"
            }
            (Phase::Magic, Some(byte)) if byte.is_ascii_uppercase() => "; this looks like HTTP, another protocol",
            _ => "",
        };
        let detail = format!("at {}: {error}{looks_like}", self.offset + error.offset as u64);
        Fault::new(reason, self.offset, detail)
    }

    /// When the open record counts as complete though nothing follows it (reading 16). While an object is half here,
    /// it may be one of its lists.
    fn idle_deadline(&self) -> Option<Duration> {
        let idle = matches!(self.phase, Phase::Objects) && !self.begun && self.assembler.has_open();
        idle.then(|| self.last_input + self.span_idle)
    }
}
