//! One published message, worked off as it arrives.
//!
//! A heap of a million objects is one message of 60 MB, so nothing waits for the end of a message: its head, each event,
//! each object of a dump and each number of a statistic is taken as soon as it is here as a whole. Only what cannot be
//! told apart otherwise is read ahead: where keys stand behind a payload, the map that they stand in.

mod pieces;

use crate::codec::msgpack::{Reader, Value as Wire};
use crate::codec::reader::DecodeError;
use crate::event::{Frame, Name, Reason, Value, semconv as names};
use crate::protocol::fault::Fault;
use crate::protocol::{End, Now, Output};

use super::agent::Agent;
use super::dump::Dumps;
use super::normalize::{self, Place};
use super::options::Options;
use super::snapshot::{Snapshot, read_frames};
use super::texts::Texts;
use super::wire::{Family, Head, Kind, Object, Payload, Type, wrong};

/// A message under way.
#[derive(Debug)]
pub(super) struct Message {
    /// Offset of its first byte since the start of the connection.
    start: u64,
    /// Bytes of it that are not worked off yet.
    left: u64,
    /// Bytes of it that are.
    taken: u64,
    family: Family,
    counter: Option<u64>,
    state: State,
    /// Pairs of the message's map behind its payload.
    after: u32,
    /// Events to come, the one under way not counted.
    events_left: u32,
}

#[derive(Debug)]
enum State {
    /// The map and its keys, as far as the payload.
    Head,
    /// The next event, if there is one.
    Event,
    /// So many objects of a dump, and then so many pairs.
    Objects { left: u32, after: u32 },
    /// So many numbers of a statistic, and then so many pairs.
    Stats { left: u32, after: u32, time: Option<f64> },
    /// Samples of a snapshot, which stands at the front; its length.
    Snapshot { snapshot: Box<Snapshot>, length: usize },
    /// Pairs of an event behind its payload.
    EventPairs(u32),
    /// Pairs of the message behind its payload.
    Pairs(u32),
    /// All is said; what follows is too much.
    End,
    /// The rest is of no use.
    Waste(Fault),
}

/// What reading a message needs beside its bytes.
pub(super) struct Surroundings<'a> {
    pub(super) options: &'a Options,
    pub(super) agent: &'a Agent,
    pub(super) dumps: &'a mut Dumps,
    pub(super) scratch: &'a mut Scratch,
    pub(super) is_short_of_memory: bool,
    pub(super) now: Now,
}

/// Memory that is used again from event to event.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    references: Vec<Value>,
    frames: Vec<Frame>,
    texts: Texts,
}

impl Scratch {
    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.references.capacity() * size_of::<Value>() + self.frames.capacity() * size_of::<Frame>();
        lists + self.texts.memory_bytes()
    }
}

/// What a step has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Worked off so many bytes, which may be none.
    Taken(usize),
    /// Needs more of the message.
    More,
    /// The message is over.
    Done,
}

/// How a part of a message fails.
enum Failure {
    /// The message cannot be read further.
    Message(DecodeError),
    /// This event or element is of no use, but it is clear where it ends.
    Part(Reason, &'static str),
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Failure::Message(error)
    }
}

impl Message {
    /// A message of `length` bytes that begins at `start` of the connection.
    pub(super) fn new(start: u64, length: u64) -> Self {
        let (family, state) = (Family::Master, State::Head);
        Message { start, left: length, taken: 0, family, counter: None, state, after: 0, events_left: 0 }
    }

    /// Bytes of it that are not worked off yet.
    pub(super) fn left(&self) -> u64 {
        self.left
    }

    /// Offset of its first byte since the start of the connection.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Memory that it takes beside its bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        if let State::Snapshot { snapshot, .. } = &self.state { snapshot.memory_bytes() } else { 0 }
    }

    /// Lets go of what can be had again.
    pub(super) fn let_go(&mut self) {
        if let State::Snapshot { snapshot, .. } = &mut self.state {
            snapshot.let_go();
        }
    }

    /// Works off something of what is here of the rest of the message: `input`, which may reach beyond its end.
    pub(super) fn step(&mut self, input: &[u8], around: &mut Surroundings<'_>, out: &mut Output) -> Step {
        let here = &input[..input.len().min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        let missing = self.left - here.len() as u64;
        match &mut self.state {
            State::Snapshot { .. } => return self.snapshot(here, around, out),
            State::End if self.left == 0 => return Step::Done,
            State::Waste(fault) if self.left == 0 => {
                fault.tell(around.now, out);
                return Step::Done;
            }
            State::Waste(_) if here.is_empty() => return Step::More,
            State::Waste(fault) => {
                fault.count(here);
                self.advance(here.len());
                return Step::Taken(here.len());
            }
            _ => {}
        }
        let lost_before: u64 = out.lost_bytes.iter().sum();
        let mut taken = 0;
        let result = loop {
            let reader = Reader::new(&here[taken..], missing);
            match self.part(reader, around, out) {
                Ok(bytes) => {
                    self.advance(bytes);
                    taken += bytes;
                }
                // What is before it is worked off.
                Err(_) if taken > 0 => break Ok(()),
                Err(error) => break Err((reader.may_wait(&error), error)),
            }
            // Of events and objects there are many, one behind the other.
            if !matches!(self.state, State::Event | State::Objects { .. }) || out.batch.is_full() {
                break Ok(());
            }
        };
        let lost = out.lost_bytes.iter().sum::<u64>() - lost_before;
        out.decoded_bytes += (taken as u64).saturating_sub(lost);
        match result {
            Ok(()) => Step::Taken(taken),
            Err((true, _)) => Step::More,
            Err((false, error)) => {
                self.refuse(&error);
                Step::Taken(0)
            }
        }
    }

    /// The next part of the message, which stands at the front of `reader`: answers its length.
    fn part(
        &mut self,
        reader: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        match &mut self.state {
            State::Objects { .. } => self.object(reader, around, out),
            State::Event => self.event(reader, around, out),
            State::Head => self.head(reader, around, out),
            State::Stats { .. } => self.stat(reader, around, out),
            State::EventPairs(0) => {
                self.state = State::Event;
                Ok(0)
            }
            State::Pairs(0) => {
                self.state = State::End;
                Ok(0)
            }
            State::EventPairs(pairs) | State::Pairs(pairs) => skip_pair(reader).inspect(|_| *pairs -= 1),
            State::End => {
                self.waste(Reason::Malformed, format!("{} bytes follow the message", self.left));
                Ok(0)
            }
            State::Snapshot { .. } | State::Waste(_) => Ok(0),
        }
    }

    /// The connection has ended inside the message: of its rest, `rest` is here.
    pub(super) fn cut_short(self, rest: &[u8], end: End, now: Now, out: &mut Output) {
        let mut fault = match self.state {
            State::Waste(fault) if fault.has_bytes() || !rest.is_empty() => fault,
            _ => {
                let missing = self.left.saturating_sub(rest.len() as u64);
                let detail = format!("the message ends {missing} bytes early: {}", end.as_str());
                Fault::new(end.reason(), self.start, detail)
            }
        };
        fault.count(rest);
        fault.tell(now, out);
    }

    /// No more of the message fits into memory, and what is here makes no part of it.
    pub(super) fn too_large(&mut self, limit: u64) {
        let detail = format!("a part of the message is longer than {limit} bytes (max_message_bytes)");
        self.waste(Reason::TooLarge, detail);
    }

    fn refuse(&mut self, error: &DecodeError) {
        self.waste(Reason::Malformed, format!("at byte {} of the message: {error}", self.taken + error.offset as u64));
    }

    /// From here on the message is of no use.
    fn waste(&mut self, reason: Reason, detail: String) {
        self.state = State::Waste(Fault::new(reason, self.start, detail));
    }

    fn advance(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.taken += bytes as u64;
    }

    /// The place of what stands at the front of what is here.
    fn place(&self, length: usize, now: Now) -> Place {
        let offset = self.start + self.taken;
        Place { sequence: self.counter, offset, length: length as u64, now }
    }

    fn head(
        &mut self,
        mut reader: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let Wire::Map(pairs) = reader.next("message")? else {
            return Err(wrong("message", 0, "a map"));
        };
        let head = Head::read(reader, pairs)?;
        let family = match head.kind {
            Some(Type::Number(number)) => Family::of_collection(number),
            Some(kind @ Type::Name(_)) if kind.kind(Family::Master) == Some(Kind::Collection) => {
                Some(around.agent.family())
            }
            _ => None,
        };
        let Some(family) = family else {
            // The document has snapshots outside of collections; agents never do.
            let is_snapshot = head.kind.and_then(|kind| kind.kind(Family::Spec)) == Some(Kind::AllocationSnapshot);
            if is_snapshot
                && let Some(payload) = head.payload
                && Snapshot::is_one(payload.reader)?
            {
                around.agent.says(Family::Spec, out);
                self.family = Family::Spec;
                self.events_left = 1;
                self.state = State::Event;
                return Ok(0);
            }
            return Err(wrong("event_type", 0, "an event_collection (6 or 7)"));
        };
        let Some(Payload { reader: mut payload, after }) = head.payload else {
            return Err(wrong("payload", head.end, "an array, and there is none"));
        };
        let start = payload.offset();
        let Wire::Array(events) = payload.next("payload")? else {
            return Err(wrong("payload", start, "an array"));
        };
        around.agent.says(family, out);
        self.family = family;
        self.counter = head.counter;
        if let Some(counter) = head.counter {
            let place = Place { offset: self.start, length: self.left, ..self.place(0, around.now) };
            around.agent.counted(counter, around.dumps, place, out);
        }
        (self.events_left, self.after, self.state) = (events, after, State::Event);
        Ok(payload.offset())
    }

    fn event(
        &mut self,
        whole: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        if self.events_left == 0 {
            self.state = State::Pairs(self.after);
            return Ok(0);
        }
        match self.try_event(whole, around, out) {
            Ok(bytes) => {
                self.events_left -= 1;
                Ok(bytes)
            }
            Err(Failure::Message(error)) => Err(error),
            Err(Failure::Part(reason, detail)) => {
                let mut end = whole;
                end.skip("event")?;
                let bytes = &whole.rest()[..end.offset()];
                normalize::lost(out, reason, bytes, Some(1), detail, self.place(bytes.len(), around.now));
                self.events_left -= 1;
                self.state = State::Event;
                Ok(bytes.len())
            }
        }
    }

    /// Takes an event, or the part of it that stands in front of what is worked off piece by piece.
    fn try_event(
        &mut self,
        whole: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, Failure> {
        let mut reader = whole;
        let Wire::Map(pairs) = reader.next("event")? else {
            return Err(Failure::Part(Reason::Malformed, "an element of the payload is no map"));
        };
        let head = Head::read(reader, pairs)?;
        let Some(kind) = head.kind.and_then(|kind| kind.kind(self.family)) else {
            return Err(match head.kind {
                Some(_) => Failure::Part(Reason::Unsupported, "an event of unknown type"),
                None => Failure::Part(Reason::Malformed, "an event without type"),
            });
        };
        let name = match kind {
            Kind::Dump | Kind::GcStats => return self.begin_pieces(kind, &head, around, out),
            Kind::CpuSample => return self.cpu_sample(whole, &head, around, out),
            Kind::AllocationSnapshot => {
                if let Some(bytes) = self.begin_snapshot(whole, &head, around)? {
                    return Ok(bytes);
                }
                // What stands in its place on master, written by a peer that mixes the two.
                names::RBKIT_OBJECT_CREATED
            }
            Kind::Created => names::RBKIT_OBJECT_CREATED,
            Kind::Destroyed => names::RBKIT_OBJECT_DESTROYED,
            // The document describes destroyed objects and has no number for them; a GC that starts has no payload.
            Kind::GcStart if self.family == Family::Spec && head.payload.is_some() => names::RBKIT_OBJECT_DESTROYED,
            Kind::GcStart => return self.simple(names::RBKIT_GC_START, whole, &head, around, out),
            Kind::GcEndMark => return self.simple(names::RBKIT_GC_END_MARK, whole, &head, around, out),
            Kind::GcEndSweep => return self.simple(names::RBKIT_GC_END_SWEEP, whole, &head, around, out),
            Kind::Collection => return Err(Failure::Part(Reason::Malformed, "a collection inside a collection")),
            Kind::Handshake => return Err(Failure::Part(Reason::Malformed, "a handshake inside a collection")),
        };
        self.object_event(name, whole, &head, around, out)
    }

    fn simple(
        &mut self,
        name: Name,
        whole: Reader<'_>,
        head: &Head<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, Failure> {
        let end = match head.payload {
            None => head.end,
            Some(_) => end_of(whole)?,
        };
        normalize::simple(out, name, head.time, self.place(end, around.now));
        Ok(end)
    }

    /// An object created or destroyed.
    fn object_event(
        &mut self,
        name: Name,
        whole: Reader<'_>,
        head: &Head<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, Failure> {
        let malformed = Failure::Part(Reason::Malformed, "the event has no payload with an object_id");
        let Some(Payload { reader: mut payload, after }) = head.payload else { return Err(malformed) };
        let Wire::Map(pairs) = payload.next("payload")? else { return Err(malformed) };
        let references = (&mut around.scratch.references, around.options.max_references);
        let object = Object::read(&mut payload, pairs, references)?;
        let end = if after == 0 { payload.offset() } else { end_of(whole)? };
        let Some(id) = object.id else { return Err(malformed) };
        let class = if name == names::RBKIT_OBJECT_CREATED { object.class } else { None };
        let place = self.place(end, around.now);
        normalize::object_is(out, name, (id, class), head.time, &mut around.scratch.texts, place);
        Ok(end)
    }

    fn cpu_sample(
        &mut self,
        whole: Reader<'_>,
        head: &Head<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, Failure> {
        let end = end_of(whole)?;
        let malformed = |_| Failure::Part(Reason::Malformed, "a cpu_sample without an array of frames");
        let payload = head.payload.ok_or_else(|| malformed(()))?;
        let (Scratch { frames, texts, .. }, mut marks) = (&mut *around.scratch, (false, false));
        frames.clear();
        let thread = read_frames(payload.reader, around.options.max_frames, (&mut *frames, texts), &mut marks, out)
            .map_err(|_| malformed(()))?;
        normalize::cpu_sample(out, frames, thread, marks, head.time, self.place(end, around.now));
        Ok(end)
    }

    /// A snapshot, which is read as a whole and stays at the front until it is worked off. None: its payload is an object.
    fn begin_snapshot(
        &mut self,
        whole: Reader<'_>,
        head: &Head<'_>,
        around: &Surroundings<'_>,
    ) -> Result<Option<usize>, Failure> {
        let length = end_of(whole)?;
        let malformed = || Failure::Part(Reason::Malformed, "an allocation_snapshot without a map");
        let payload = head.payload.ok_or_else(malformed)?;
        if !Snapshot::is_one(payload.reader)? {
            let mut payload = payload.reader;
            return match payload.next("payload")? {
                Wire::Map(0) => Ok(Some(length)),
                Wire::Map(_) => Ok(None),
                _ => Err(malformed()),
            };
        }
        let snapshot = Snapshot::read(payload.reader, head.time, around.is_short_of_memory)?;
        self.state = State::Snapshot { snapshot: Box::new(snapshot), length };
        Ok(Some(0))
    }

    fn snapshot(&mut self, here: &[u8], around: &mut Surroundings<'_>, out: &mut Output) -> Step {
        let State::Snapshot { snapshot, length } = &mut self.state else { return Step::Taken(0) };
        let length = *length;
        let offset = self.start + self.taken;
        let place = Place { sequence: self.counter, offset, length: length as u64, now: around.now };
        let lost_before: u64 = out.lost_bytes.iter().sum();
        let texts = &mut around.scratch.texts;
        let proceeded = snapshot.proceed(&here[..length], around.options.max_frames, texts, out, place);
        let lost = out.lost_bytes.iter().sum::<u64>() - lost_before;
        snapshot.lost += lost;
        match proceeded {
            Ok(false) => Step::Taken(0),
            // It was read to its end before: an error here would be one of ours, and ends it as its end does.
            Ok(true) | Err(_) => {
                out.decoded_bytes += (length as u64).saturating_sub(snapshot.lost);
                self.state = State::Event;
                self.advance(length);
                Step::Taken(length)
            }
        }
    }
}

/// Where the value at the front ends.
fn end_of(mut whole: Reader<'_>) -> Result<usize, DecodeError> {
    whole.skip("event")?;
    Ok(whole.offset())
}

fn skip_pair(mut reader: Reader<'_>) -> Result<usize, DecodeError> {
    reader.skip("key")?;
    reader.skip("value")?;
    Ok(reader.offset())
}
