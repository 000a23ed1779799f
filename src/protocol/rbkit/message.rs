//! One published message, decoded while it arrives.
//!
//! A heap of a million objects is one message of 60 MB, so decoding does not wait for the end of a message: its head, each
//! event, each object of a dump and each number of a statistic is decoded as soon as it is complete. Only where keys follow
//! a payload must the whole map be here first.

mod pieces;

use tributary_codec::msgpack::{MsgpackValue as Wire, Reader};
use tributary_codec::reader::DecodeError;
use tributary_event::{Frame, Name, Reason, SampleClock, Value, semconv as names};
use tributary_protocol::fault::SessionError;
use tributary_protocol::{End, Now, Output};

use super::agent::RbkitAgent;
use super::dump::Dumps;
use super::normalize::{self, StreamPosition};
use super::object_counts::ObjectCounts;
use super::options::Options;
use super::snapshot::{Snapshot, read_frames};
use super::texts::TextCache;
use super::wire::{DumpObject, Family, MessageHead, MessageKind, Payload, Type, wrong, wrong_type};

/// A message that is being decoded.
#[derive(Debug)]
pub(super) struct MessageDecoder {
    /// Offset of its first byte since the start of the connection.
    start: u64,
    /// Bytes of it that are not consumed yet.
    left: u64,
    /// Bytes of it that are consumed.
    taken: u64,
    family: Family,
    counter: Option<u64>,
    state: MessageState,
    /// Pairs of the message's map after its payload.
    after: u32,
    /// Events to come, without the current one.
    events_left: u32,
}

#[derive(Debug)]
enum MessageState {
    /// The map of the message, up to its payload.
    Head,
    /// The next event, if there is one.
    Event,
    /// `left` objects of a dump, then `after` pairs of its event.
    Objects { left: u32, after: u32 },
    /// `left` numbers of a statistic, then `after` pairs of its event.
    Stats { left: u32, after: u32, time: Option<f64> },
    /// The samples of a snapshot, whose event is `length` bytes long and stays in the input until all are written.
    Snapshot { snapshot: Box<Snapshot>, length: usize },
    /// Pairs of an event after its payload.
    EventPairs(u32),
    /// Pairs of the message after its payload.
    Pairs(u32),
    /// The message is decoded; bytes that follow are a fault.
    End,
    /// The rest of the message is lost.
    Lost(SessionError),
}

/// What decoding a message needs besides its bytes.
pub(super) struct MessageContext<'a> {
    pub(super) options: &'a Options,
    pub(super) agent: &'a RbkitAgent,
    /// The clock of the CPU profile.
    pub(super) clock: Option<SampleClock>,
    pub(super) dumps: &'a mut Dumps,
    /// Objects are counted instead of written one by one.
    pub(super) objects: Option<&'a mut ObjectCounts>,
    pub(super) buffers: &'a mut Buffers,
    pub(super) is_short_of_memory: bool,
    pub(super) now: Now,
}

/// Buffers that are reused for each event.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    references: Vec<Value>,
    frames: Vec<Frame>,
    texts: TextCache,
}

impl MessageContext<'_> {
    /// Whether sums are being written that come before the next event.
    fn is_writing(&self) -> bool {
        self.dumps.is_writing() || self.objects.as_ref().is_some_and(|objects| objects.is_writing())
    }
}

impl Buffers {
    /// The texts, for what is written beside messages.
    pub(super) fn texts(&mut self) -> &mut TextCache {
        &mut self.texts
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.references.capacity() * size_of::<Value>() + self.frames.capacity() * size_of::<Frame>();
        lists + self.texts.memory_bytes()
    }
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MessageStep {
    /// It has consumed this many bytes, possibly none.
    Taken(usize),
    /// It needs more of the message.
    More,
    /// The message has ended.
    Done,
}

/// How decoding a part of a message fails.
enum MessageError {
    /// The rest of the message cannot be decoded.
    Message(DecodeError),
    /// This event or element is invalid, but its end is known.
    Part(Reason, &'static str),
}

impl From<DecodeError> for MessageError {
    fn from(error: DecodeError) -> Self {
        MessageError::Message(error)
    }
}

impl MessageDecoder {
    /// A message of `length` bytes that begins at `start` of the connection.
    pub(super) fn new(start: u64, length: u64) -> Self {
        let (family, state) = (Family::Master, MessageState::Head);
        MessageDecoder { start, left: length, taken: 0, family, counter: None, state, after: 0, events_left: 0 }
    }

    /// Bytes of it that are not consumed yet.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Offset of its first byte since the start of the connection.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Its memory, without its bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        if let MessageState::Snapshot { snapshot, .. } = &self.state { snapshot.memory_bytes() } else { 0 }
    }

    /// Frees what can be computed again.
    pub(super) fn free_caches(&mut self) {
        if let MessageState::Snapshot { snapshot, .. } = &mut self.state {
            snapshot.free_caches();
        }
    }

    /// Decodes some parts of the message at the front of `input`, which may extend beyond the end of the message.
    pub(super) fn step(&mut self, input: &[u8], context: &mut MessageContext<'_>, out: &mut Output) -> MessageStep {
        let here = &input[..input.len().min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        let missing = self.left - here.len() as u64;
        match &mut self.state {
            MessageState::Snapshot { .. } => return self.snapshot(here, context, out),
            MessageState::End if self.left == 0 => return MessageStep::Done,
            MessageState::Lost(fault) if self.left == 0 => {
                fault.report(context.now, out);
                return MessageStep::Done;
            }
            MessageState::Lost(_) if here.is_empty() => return MessageStep::More,
            MessageState::Lost(fault) => {
                fault.count(here);
                self.advance(here.len());
                return MessageStep::Taken(here.len());
            }
            _ => {}
        }
        let lost_before: u64 = out.lost_bytes.iter().sum();
        let mut taken = 0;
        let result = loop {
            let reader = Reader::new(&here[taken..], missing);
            match self.part(reader, context, out) {
                Ok(bytes) => {
                    self.advance(bytes);
                    taken += bytes;
                }
                // The parts before it are consumed first.
                Err(_) if taken > 0 => break Ok(()),
                Err(error) => break Err((reader.may_wait(&error), error)),
            }
            // Events and objects come in long runs.
            if !matches!(self.state, MessageState::Event | MessageState::Objects { .. })
                || out.batch.is_full()
                || context.is_writing()
            {
                break Ok(());
            }
        };
        let lost = out.lost_bytes.iter().sum::<u64>() - lost_before;
        out.decoded_bytes += (taken as u64).saturating_sub(lost);
        match result {
            Ok(()) => MessageStep::Taken(taken),
            Err((true, _)) => MessageStep::More,
            Err((false, error)) => {
                self.refuse(&error);
                MessageStep::Taken(0)
            }
        }
    }

    /// Decodes the part at the front of `reader`. Returns its length.
    fn part(
        &mut self,
        reader: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        match &mut self.state {
            MessageState::Objects { .. } => self.object(reader, context, out),
            MessageState::Event => self.event(reader, context, out),
            MessageState::Head => self.head(reader, context, out),
            MessageState::Stats { .. } => self.stat(reader, context, out),
            MessageState::EventPairs(0) => {
                self.state = MessageState::Event;
                Ok(0)
            }
            MessageState::Pairs(0) => {
                self.state = MessageState::End;
                Ok(0)
            }
            MessageState::EventPairs(pairs) | MessageState::Pairs(pairs) => skip_pair(reader).inspect(|_| *pairs -= 1),
            MessageState::End => {
                self.lose_rest(Reason::Malformed, format!("{} bytes follow the message", self.left));
                Ok(0)
            }
            MessageState::Snapshot { .. } | MessageState::Lost(_) => Ok(0),
        }
    }

    /// The connection has ended inside the message; `rest` is the input that was not consumed.
    pub(super) fn cut_short(self, rest: &[u8], end: End, now: Now, out: &mut Output) {
        let mut fault = match self.state {
            MessageState::Lost(fault) if fault.has_bytes() || !rest.is_empty() => fault,
            _ => {
                let missing = self.left.saturating_sub(rest.len() as u64);
                let detail = format!("the message ends {missing} bytes early: {}", end.as_str());
                SessionError::new(end.reason(), self.start, detail)
            }
        };
        fault.count(rest);
        fault.report(now, out);
    }

    /// A part of the message is longer than the limit.
    pub(super) fn too_large(&mut self, limit: u64) {
        let detail = format!("a part of the message is longer than {limit} bytes (max_message_bytes)");
        self.lose_rest(Reason::TooLarge, detail);
    }

    fn refuse(&mut self, error: &DecodeError) {
        self.lose_rest(
            Reason::Malformed,
            format!("at byte {} of the message: {error}", self.taken + error.offset as u64),
        );
    }

    /// The rest of the message is lost.
    fn lose_rest(&mut self, reason: Reason, detail: String) {
        self.state = MessageState::Lost(SessionError::new(reason, self.start, detail));
    }

    fn advance(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.taken += bytes as u64;
    }

    /// The place of the part at the front of the input.
    fn place(&self, length: usize, now: Now) -> StreamPosition {
        let offset = self.start + self.taken;
        StreamPosition { sequence: self.counter, offset, length: length as u64, now }
    }

    fn head(
        &mut self,
        mut reader: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let whole = reader.rest();
        let Wire::Map(pairs) = reader.next("message")? else {
            return Err(wrong("message", whole, 0, "a map"));
        };
        let head = MessageHead::read(reader, pairs)?;
        let family = match head.kind {
            Some(Type::Number(number)) => Family::of_collection(number),
            Some(kind @ Type::Name(_)) if kind.kind(Family::Master) == Some(MessageKind::Collection) => {
                Some(context.agent.family())
            }
            _ => None,
        };
        let Some(family) = family else {
            // The specification has snapshots outside of collections. Agents do not send them.
            let is_snapshot =
                head.kind.and_then(|kind| kind.kind(Family::Spec)) == Some(MessageKind::AllocationSnapshot);
            if is_snapshot
                && let Some(payload) = head.payload
                && Snapshot::is_one(payload.reader)?
            {
                context.agent.set_family(Family::Spec, out);
                self.family = Family::Spec;
                self.events_left = 1;
                self.state = MessageState::Event;
                return Ok(0);
            }
            return Err(wrong_type(head.kind, "an event_collection (6 or 7)"));
        };
        let Some(Payload { reader: mut payload, after }) = head.payload else {
            return Err(wrong("message", whole, 0, "a map with a payload"));
        };
        let start = payload.offset();
        let Wire::Array(events) = payload.next("payload")? else {
            return Err(wrong("payload", whole, start, "an array"));
        };
        context.agent.set_family(family, out);
        self.family = family;
        self.counter = head.counter;
        if let Some(counter) = head.counter {
            let place = StreamPosition { offset: self.start, length: self.left, ..self.place(0, context.now) };
            let follows = context.agent.check_counter(counter, context.dumps, place, out);
            if let Some(objects) = &mut context.objects
                && !follows
            {
                objects.end_interval(context.now, true);
                objects.forget_live();
            }
        }
        (self.events_left, self.after, self.state) = (events, after, MessageState::Event);
        Ok(payload.offset())
    }

    fn event(
        &mut self,
        whole: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        if self.events_left == 0 {
            self.state = MessageState::Pairs(self.after);
            return Ok(0);
        }
        match self.try_event(whole, context, out) {
            Ok(bytes) => {
                self.events_left -= 1;
                Ok(bytes)
            }
            Err(MessageError::Message(error)) => Err(error),
            Err(MessageError::Part(reason, detail)) => {
                let mut end = whole;
                end.skip("event")?;
                let bytes = &whole.rest()[..end.offset()];
                normalize::lost(out, reason, bytes, Some(1), detail, self.place(bytes.len(), context.now));
                self.events_left -= 1;
                self.state = MessageState::Event;
                Ok(bytes.len())
            }
        }
    }

    /// Decodes an event, or the part of it before the elements that are decoded one by one.
    fn try_event(
        &mut self,
        whole: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, MessageError> {
        let mut reader = whole;
        let Wire::Map(pairs) = reader.next("event")? else {
            return Err(MessageError::Part(Reason::Malformed, "an element of the payload is not a map"));
        };
        let head = MessageHead::read(reader, pairs)?;
        let Some(kind) = head.kind.and_then(|kind| kind.kind(self.family)) else {
            return Err(match head.kind {
                Some(_) => MessageError::Part(Reason::Unsupported, "an event of unknown type"),
                None => MessageError::Part(Reason::Malformed, "an event without type"),
            });
        };
        let name = match kind {
            MessageKind::Dump | MessageKind::GcStats => return self.begin_pieces(kind, &head, context, out),
            MessageKind::CpuSample => return self.cpu_sample(whole, &head, context, out),
            MessageKind::AllocationSnapshot => return self.begin_snapshot(whole, &head, context),
            MessageKind::Created => names::RBKIT_OBJECT_CREATED,
            MessageKind::Destroyed => names::RBKIT_OBJECT_DESTROYED,
            MessageKind::GcStart => return self.gc_phase(names::RBKIT_GC_START, whole, &head, context, out),
            MessageKind::GcEndMark => return self.gc_phase(names::RBKIT_GC_END_MARK, whole, &head, context, out),
            MessageKind::GcEndSweep => return self.gc_phase(names::RBKIT_GC_END_SWEEP, whole, &head, context, out),
            MessageKind::Collection => {
                return Err(MessageError::Part(Reason::Malformed, "a collection inside a collection"));
            }
            MessageKind::Handshake => {
                return Err(MessageError::Part(Reason::Malformed, "a handshake inside a collection"));
            }
        };
        self.object_event(name, whole, &head, context, out)
    }

    /// A phase of a garbage collection. With a payload it is another event with an unexpected number: in the other family,
    /// number 1 is an object that was destroyed. It is skipped, not guessed (rule 7).
    fn gc_phase(
        &mut self,
        name: Name,
        whole: Reader<'_>,
        head: &MessageHead<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, MessageError> {
        let end = match head.payload {
            None => head.end,
            Some(Payload { mut reader, .. }) => {
                let end = end_of(whole)?;
                if reader.next("payload")? != Wire::Nil {
                    return Err(MessageError::Part(Reason::Malformed, "a garbage collection event with a payload"));
                }
                end
            }
        };
        normalize::gc_phase(out, name, head.time, self.place(end, context.now));
        Ok(end)
    }

    /// An object that was created or destroyed.
    fn object_event(
        &mut self,
        name: Name,
        whole: Reader<'_>,
        head: &MessageHead<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, MessageError> {
        let malformed = MessageError::Part(Reason::Malformed, "the event has no payload with an object_id");
        let Some(Payload { reader: mut payload, after }) = head.payload else { return Err(malformed) };
        let Wire::Map(pairs) = payload.next("payload")? else { return Err(malformed) };
        let references = (&mut context.buffers.references, context.options.max_references);
        let object = DumpObject::read(&mut payload, pairs, references)?;
        let end = if after == 0 { payload.offset() } else { end_of(whole)? };
        let Some(id) = object.id else { return Err(malformed) };
        let class = if name == names::RBKIT_OBJECT_CREATED { object.class } else { None };
        match &mut context.objects {
            Some(objects) if name == names::RBKIT_OBJECT_CREATED => {
                objects.created(id, class, !context.is_short_of_memory, context.now);
            }
            Some(objects) => objects.destroyed(id, context.now),
            None => {
                let place = self.place(end, context.now);
                normalize::object(out, name, (id, class), head.time, &mut context.buffers.texts, place);
            }
        }
        Ok(end)
    }

    fn cpu_sample(
        &mut self,
        whole: Reader<'_>,
        head: &MessageHead<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, MessageError> {
        let end = end_of(whole)?;
        let malformed = |_| MessageError::Part(Reason::Malformed, "a cpu_sample without an array of frames");
        let payload = head.payload.ok_or_else(|| malformed(()))?;
        let (Buffers { frames, texts, .. }, mut marks) = (&mut *context.buffers, (false, false));
        frames.clear();
        let thread = read_frames(payload.reader, context.options.max_frames, (&mut *frames, texts), &mut marks, out)
            .map_err(|_| malformed(()))?;
        normalize::cpu_sample(out, frames, (thread, context.clock), marks, head.time, self.place(end, context.now));
        Ok(end)
    }

    /// A snapshot. It is read as a whole, and stays in the input until all its samples are written.
    fn begin_snapshot(
        &mut self,
        whole: Reader<'_>,
        head: &MessageHead<'_>,
        context: &MessageContext<'_>,
    ) -> Result<usize, MessageError> {
        let length = end_of(whole)?;
        let malformed =
            MessageError::Part(Reason::Malformed, "an allocation_snapshot without stacktraces or allocations");
        let Some(payload) = head.payload else { return Err(malformed) };
        if !Snapshot::is_one(payload.reader)? {
            let mut payload = payload.reader;
            // A snapshot in which nothing was allocated.
            return if payload.next("payload")? == Wire::Map(0) { Ok(length) } else { Err(malformed) };
        }
        let snapshot = Snapshot::read(payload.reader, head.time, context.is_short_of_memory)?;
        self.state = MessageState::Snapshot { snapshot: Box::new(snapshot), length };
        Ok(0)
    }

    fn snapshot(&mut self, here: &[u8], context: &mut MessageContext<'_>, out: &mut Output) -> MessageStep {
        let MessageState::Snapshot { snapshot, length } = &mut self.state else { return MessageStep::Taken(0) };
        let length = *length;
        let offset = self.start + self.taken;
        let place = StreamPosition { sequence: self.counter, offset, length: length as u64, now: context.now };
        let lost_before: u64 = out.lost_bytes.iter().sum();
        let texts = &mut context.buffers.texts;
        let written = snapshot.write_samples(&here[..length], context.options.max_frames, texts, out, place);
        let lost = out.lost_bytes.iter().sum::<u64>() - lost_before;
        snapshot.lost += lost;
        match written {
            Ok(false) => MessageStep::Taken(0),
            // The whole event was read before, so an error here would be a bug; it ends the snapshot.
            Ok(true) | Err(_) => {
                out.decoded_bytes += (length as u64).saturating_sub(snapshot.lost);
                self.state = MessageState::Event;
                self.advance(length);
                MessageStep::Taken(length)
            }
        }
    }
}

/// The end of the value at the front.
fn end_of(mut whole: Reader<'_>) -> Result<usize, DecodeError> {
    whole.skip("event")?;
    Ok(whole.offset())
}

fn skip_pair(mut reader: Reader<'_>) -> Result<usize, DecodeError> {
    reader.skip("key")?;
    reader.skip("value")?;
    Ok(reader.offset())
}
