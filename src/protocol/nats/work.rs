//! One message: its lines are made events again, a batch at a time.
//!
//! Lines that are no events are left out; the message then goes to the quarantine, and one loss reports all of them.
//! Where a batch ends depends on the message alone, so its parts are the same each time that one version decodes it; a
//! part is named by its lines, because another version can divide it otherwise.

use std::mem::swap;
use std::sync::Arc;

use super::MessageLimits;
use super::lines::{Encoding, LineError, LineReader};
use crate::{Flow, Now, Output, Request, RequestOutcome, Response, Work};
use tributary_event::{Header, Loss, Origin, Position, Reason, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_stored::{Rebuilder, json};

/// At most this many bytes at the beginning of what cannot be read are shown in the loss.
const EXCERPT_BYTES: usize = 64;

/// The decoder of one message.
#[derive(Debug)]
pub struct NatsWork {
    request: Request,
    limits: MessageLimits,
    stage: MessageStage,
    rebuilder: Rebuilder,
    /// The origin of losses: the listener itself.
    own: Option<Arc<Origin>>,
    /// Where the line begins that is read next, and its number, from 0. A message has fewer lines than `max_inflated_bytes`.
    offset: u64,
    number: u32,
    unread: Option<Unread>,
    quarantine_reason: Option<String>,
    is_short_of_memory: bool,
}

#[derive(Debug)]
enum MessageStage {
    Start(MemoryLease),
    Reading(Box<LineReader>),
    /// The events are taken; what could not be read is reported.
    Reporting,
    Done,
}

/// What could not be read.
#[derive(Debug)]
struct Unread {
    reason: Reason,
    why: String,
    lines: u64,
    bytes: u64,
    offset: u64,
    excerpt: Vec<u8>,
}

impl NatsWork {
    pub(super) fn new(request: Request, limits: MessageLimits, memory: &Arc<MemoryBudget>) -> NatsWork {
        NatsWork {
            request,
            limits,
            stage: MessageStage::Start(memory.passing(0)),
            rebuilder: Rebuilder::default(),
            own: None,
            offset: 0,
            number: 0,
            unread: None,
            quarantine_reason: None,
            is_short_of_memory: false,
        }
    }

    /// Whether there was no memory for a long line. Then the message must be decoded again later.
    pub fn is_short_of_memory(&self) -> bool {
        self.is_short_of_memory
    }

    /// The number of lines whose events are in the batches up to now, or that are left out.
    pub fn lines(&self) -> u32 {
        self.number
    }

    fn start(&mut self, lease: MemoryLease, out: &mut Output) -> MessageStage {
        self.own = Some(out.batch.origin().clone());
        let body = self.request.body.clone();
        let encoding = match self.request.head.header("content-encoding").unwrap_or("identity") {
            "identity" => Encoding::Plain,
            "zstd" => Encoding::Zstd,
            other => {
                let why = format!("its Content-Encoding is neither zstd nor identity, but {other:.40}");
                return self.give_up(Reason::Unsupported, why);
            }
        };
        if body.is_empty() {
            return self.give_up(Reason::Malformed, "it is empty".to_owned());
        }
        match LineReader::new(body, encoding, self.limits, lease) {
            Ok(lines) => {
                out.inflated(self.request.body.len() as u64, 0);
                MessageStage::Reading(Box::new(lines))
            }
            Err(fault) => self.fail(fault, out),
        }
    }

    /// Reads lines until the batch is full, or the next event is of another listener.
    fn read(&mut self, mut lines: Box<LineReader>, out: &mut Output) -> MessageStage {
        loop {
            let before = lines.inflated();
            let advanced = lines.advance();
            out.inflated(0, lines.inflated() - before);
            match advanced {
                Ok(true) => {}
                Ok(false) => return MessageStage::Reporting,
                Err(fault) => {
                    // What was decompressed and is not decoded is not counted; the message is, as it was received.
                    let undecided = lines.inflated() - self.offset;
                    out.inflated(undecided, self.request.body.len() as u64);
                    return self.fail(fault, out);
                }
            }
            let (line, bytes) = (lines.line(), lines.line_bytes());
            match json::read_of_listener(line, &mut self.rebuilder) {
                Ok(true) => out.decoded_bytes += bytes,
                // The line is read again into the next batch.
                Ok(false) => {
                    lines.put_back();
                    return MessageStage::Reading(lines);
                }
                Err(why) => {
                    let number = self.number + 1;
                    let unread = self.unread.get_or_insert_with(|| Unread {
                        reason: Reason::Malformed,
                        why: format!("line {number} is no event: {why}"),
                        lines: 0,
                        bytes: 0,
                        offset: self.offset,
                        excerpt: line[..line.len().min(EXCERPT_BYTES)].to_vec(),
                    });
                    unread.lines += 1;
                    unread.bytes += bytes;
                }
            }
            self.offset += bytes;
            self.number += 1;
            if self.rebuilder.is_full() {
                return MessageStage::Reading(lines);
            }
        }
    }

    fn fail(&mut self, fault: LineError, out: &mut Output) -> MessageStage {
        match fault {
            LineError::Damaged(why) => {
                self.give_up(Reason::Malformed, format!("its compression cannot be read: {why}"))
            }
            LineError::TooLarge(why) => self.give_up(Reason::TooLarge, why),
            LineError::NoMemory => {
                self.is_short_of_memory = true;
                // It comes again: its other bytes are neither decoded nor lost.
                let unread = self.unread.take().map_or(0, |unread| unread.bytes);
                out.inflated(self.request.body.len() as u64 + unread, 0);
                MessageStage::Done
            }
        }
    }

    /// The rest of the message is not decoded.
    fn give_up(&mut self, reason: Reason, why: String) -> MessageStage {
        let bytes = self.request.body.len() as u64;
        let body = &self.request.body;
        let excerpt = body[..body.len().min(EXCERPT_BYTES)].to_vec();
        let lost = self.unread.as_ref().map_or(0, |unread| unread.bytes);
        self.unread = Some(Unread { reason, why, lines: 0, bytes: bytes + lost, offset: self.offset, excerpt });
        MessageStage::Reporting
    }

    /// Reports what could not be read, as a loss of the listener.
    fn report(&mut self, now: Now, out: &mut Output) {
        let (Some(Unread { reason, why, lines, bytes, offset, excerpt }), Some(own)) = (self.unread.take(), &self.own)
        else {
            return;
        };
        let detail = match lines {
            0 | 1 => format!("message {}: {why}", self.request.number),
            lines => format!("message {}: {lines} lines cannot be read; {why}", self.request.number),
        };
        out.batch.set_origin(own.clone());
        out.batch.set_resource(Arc::default());
        let position = Position { sequence: Some(self.request.number), offset, length: bytes };
        let loss = Loss { reason, bytes, events: (lines > 0).then_some(lines), detail: &detail, excerpt: &excerpt };
        out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
        self.quarantine_reason = Some(why);
    }
}

impl Work for NatsWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        match std::mem::replace(&mut self.stage, MessageStage::Done) {
            MessageStage::Start(lease) => self.stage = self.start(lease, out),
            MessageStage::Reading(lines) => {
                swap(self.rebuilder.builder(), &mut out.batch);
                self.stage = self.read(lines, out);
                swap(self.rebuilder.builder(), &mut out.batch);
            }
            MessageStage::Reporting => self.report(now, out),
            MessageStage::Done => {}
        }
        if let MessageStage::Done = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn quarantine_reason(&self) -> Option<&str> {
        self.quarantine_reason.as_deref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(self, outcome: RequestOutcome, _now: Now) -> Response {
        match outcome {
            RequestOutcome::Delivered => Response::empty(200),
            RequestOutcome::Unkept | RequestOutcome::Failed => Response::unavailable("its events are not delivered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::RequestHead;
    use tributary_event::{BatchBuilder, UnixNanos};

    #[test]
    fn the_lines_of_the_batches_follow_each_other_and_are_all_lines_of_the_message() {
        let good = b"{\"time\":null,\"observed_time\":\"2026-01-01T00:00:00Z\",\"kind\":\"log\",\"name\":\"x\",\"severity\":\"INFO\",\
            \"attributes\":{},\"resource\":{},\"origin\":{\"protocol\":\"endless\",\"listener\":\"web\",\
            \"peer\":\"192.0.2.1:7\",\"connection\":3,\"offset\":0,\"length\":9}}\n";
        let mut lines = [&good[..]; 1500];
        lines[3] = b"no JSON\n";
        let head = RequestHead { method: String::new(), target: String::new(), headers: Vec::new() };
        let request = Request { head, body: lines.concat().into(), number: 1 };
        let mut work = NatsWork::new(request, MessageLimits::default(), &MemoryBudget::unlimited());
        let own = Arc::new(Origin::new("nats", "stream".into(), "peer".into(), 1));
        let mut out = Output::new(BatchBuilder::new(own));
        let now = Now { unix: UnixNanos(0), elapsed: Duration::ZERO };
        let mut batches = Vec::new();
        loop {
            let flow = work.step(now, &mut out);
            if !out.batch.is_empty() {
                batches.push((out.batch.take().len(), work.lines()));
            }
            if flow != Flow::Again {
                break;
            }
        }
        assert_eq!(batches.pop(), Some((1, 1500)), "the loss");
        let (mut first_line, mut left_out) = (0, 1);
        for (events, end_line) in &batches {
            assert_eq!(end_line - first_line, *events as u32 + left_out);
            (first_line, left_out) = (*end_line, 0);
        }
        assert!(first_line == 1500 && batches.len() > 1);
    }
}
