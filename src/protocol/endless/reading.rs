//! Reading the events of one bundle, as many at a time as a batch takes.

use std::time::Duration;

use crate::codec::gvariant::{Elements, Place, Slice};
use crate::codec::reader::DecodeError;
use crate::event::{Header, Loss, Position, Reason, Resource, UnixNanos, semconv};
use crate::protocol::{Now, Output, Request, RequestOutcome};

use super::dedup::{Fingerprint, Memory, Seen};
use super::exchange::Shared;
use super::normalize::{self, Context, Element, Shown, Timeline, Writer};
use super::payload::{self, PayloadFault, Workroom};
use super::texts::Texts;
use super::wire::{self, Bundle, BundleHead, Layout, Section, Version};

/// How deep a payload (a maybe of a variant) stands in a bundle: bundle, array, event, payload …
const PAYLOAD_DEPTH: usize = 3;
/// … and one of an item: bundle, array, sequence, array, item, payload.
const ITEM_PAYLOAD_DEPTH: usize = 5;
/// Bundles and aggregates that say nothing unique are known together with the moment at which the agent's clock stood at
/// 0, which differs from machine to machine and hardly drifts on one. It is taken in steps of so many nanoseconds.
const ORIGIN_STEP_NANOS: i128 = 4_000_000_000;

/// The events of one bundle.
#[derive(Debug)]
pub(super) struct Reading {
    version: Version,
    layout: Layout,
    context: Context,
    /// Where the events of each kind are in the body.
    sections: [(usize, usize); 3],
    section: usize,
    place: Option<Place>,
    sequence: Option<OpenSequence>,
    room: Workroom,
    texts: Texts,
    repeats: Repeats,
    /// Whether it is known yet whether the bundle is a repeat.
    has_begun: bool,
    events: u64,
    lost: u64,
    /// The first fault, and how many there were.
    fault: Option<String>,
    faults: u64,
}

/// A sequence whose elements are on their way out.
#[derive(Clone, Copy, Debug)]
struct OpenSequence {
    start: usize,
    end: usize,
    place: Option<Place>,
    index: u64,
    /// The payload of some item cannot be read: then none is shown (section 3).
    is_faulty: bool,
}

/// What the bundle and its events are known by.
#[derive(Debug)]
struct Repeats {
    is_on: bool,
    /// The bundle; the first is how it is remembered, the others are as close that it may be a repeat of them.
    bundle: Option<[Fingerprint; 3]>,
    /// Who speaks.
    speaker: Fingerprint,
    /// What stands for the step of the clock's origin, the one before it and the one after it, where they are needed to tell
    /// speakers apart.
    steps: Option<[Fingerprint; 3]>,
    /// What is to be remembered once it is delivered …
    fresh: Vec<Fingerprint>,
    /// … and that only if the bundle was kept as well, for something in it cannot be read.
    faulty: Vec<Fingerprint>,
    events: u64,
    bytes: u64,
}

/// What a call has come to.
#[derive(Debug)]
pub(super) enum Told {
    /// The batch is full; call again.
    More,
    /// Every event has been looked at.
    All {
        /// Bytes of the body that were reported lost.
        lost: u64,
        /// Events that went out.
        events: u64,
        /// What was wrong with some.
        fault: Option<String>,
    },
    /// The whole bundle was delivered before.
    Repeat {
        /// Events in it.
        events: u64,
    },
    /// The whole bundle is being delivered at this moment.
    InFlightRequest {
        /// Events in it.
        events: u64,
    },
}

impl Reading {
    /// Of a bundle in `body` that was read as `layout`.
    pub(super) fn new(
        bundle: &Bundle<'_>,
        body: &[u8],
        version: Version,
        layout: Layout,
        received: UnixNanos,
        request: &Request,
        shared: &Shared,
    ) -> Self {
        let timeline = Timeline::new(bundle.head.clocks, layout, received);
        let context = Context { layout, timeline, received, request: request.number };
        let sections = bundle.sections.map(|section| (section.offset(), section.offset() + section.len()));
        Reading {
            version,
            layout,
            context,
            sections,
            section: 0,
            place: None,
            sequence: None,
            room: Workroom::default(),
            texts: Texts::default(),
            repeats: Repeats::new(bundle, body, layout, &shared.memory),
            has_begun: false,
            events: 0,
            lost: 0,
            fault: None,
            faults: 0,
        }
    }

    /// Who speaks in the bundle.
    pub(super) fn resource(&self, head: &BundleHead<'_>) -> Resource {
        normalize::resource(head, self.version, self.layout)
    }

    /// Writes events until the batch is full or there is no further one.
    pub(super) fn proceed(&mut self, body: &[u8], now: Now, shared: &Shared, out: &mut Output) -> Told {
        if !self.has_begun {
            self.has_begun = true;
            if let Some(told) = self.begin(body, now, &shared.memory) {
                return told;
            }
        }
        while let Some(kind) = Section::ALL.get(self.section).copied() {
            if self.sequence.is_some() && !self.elements(body, shared, out) {
                return Told::More;
            }
            let Some(mut events) = self.events_of(body, kind) else { break };
            loop {
                if out.batch.is_full() {
                    return Told::More;
                }
                let event = events.read();
                self.place = Some(events.place());
                // The framing has been checked with the bundle.
                let Ok(Some(event)) = event else { break };
                self.event(event, kind, shared, out);
                if self.sequence.is_some() && !self.elements(body, shared, out) {
                    return Told::More;
                }
            }
            self.section += 1;
            self.place = None;
        }
        self.tell_repeats(out);
        let fault = self.fault.take().map(|fault| match self.faults {
            0 | 1 => fault,
            faults => format!("{fault}; {faults} faults in all"),
        });
        Told::All { lost: self.lost, events: self.events, fault }
    }

    /// The fate of the events is known.
    pub(super) fn respond(&mut self, fate: RequestOutcome, now: Duration, memory: &Memory) {
        let Some([bundle, ..]) = self.repeats.bundle.take() else { return };
        let mut delivered = std::mem::take(&mut self.repeats.fresh);
        match fate {
            RequestOutcome::Delivered => {
                delivered.append(&mut self.repeats.faulty);
                delivered.push(bundle);
            }
            // It is to come again, for what could not be read in it.
            RequestOutcome::Unkept => {}
            RequestOutcome::Failed => delivered.clear(),
        }
        memory.end(bundle, &delivered, now);
    }

    fn begin(&mut self, body: &[u8], now: Now, memory: &Memory) -> Option<Told> {
        let bundle = self.repeats.bundle?;
        let seen = memory.begin(&bundle, now.elapsed);
        if seen == Seen::New {
            return None;
        }
        // Somebody else's: not ours to end.
        self.repeats.bundle = None;
        let events = self.count(body);
        Some(if seen == Seen::Delivered { Told::Repeat { events } } else { Told::InFlightRequest { events } })
    }

    /// How many events the bundle has: elements, of sequences that can be read.
    fn count(&self, body: &[u8]) -> u64 {
        let mut count = 0;
        for (index, kind) in Section::ALL.into_iter().enumerate() {
            let (start, end) = self.sections[index];
            let Ok(mut events) = wire::events(Slice::at(&body[start..end], start), kind) else { continue };
            if kind != Section::Sequence {
                count += events.len() as u64;
                continue;
            }
            while let Ok(Some(event)) = events.read() {
                count += wire::sequence(event, self.layout).map_or(1, |sequence| sequence.items.len() as u64);
            }
        }
        count
    }

    fn events_of<'b>(&self, body: &'b [u8], kind: Section) -> Option<Elements<'b>> {
        let (start, end) = self.sections[self.section];
        let mut events = wire::events(Slice::at(body.get(start..end)?, start), kind).ok()?;
        if let Some(place) = self.place {
            events.resume(place);
        }
        Some(events)
    }

    fn event(&mut self, slice: Slice<'_>, kind: Section, shared: &Shared, out: &mut Output) {
        let (faults, known) = (self.faults, self.repeats.fresh.len());
        if self.repeats.is_repeat(slice, kind, shared) {
            let events = match kind {
                Section::Sequence => wire::sequence(slice, self.layout).map_or(1, |one| one.items.len() as u64),
                Section::Singular | Section::Aggregate => 1,
            };
            self.repeats.events += events;
            self.repeats.bytes += slice.len() as u64;
            return;
        }
        let read = match kind {
            Section::Singular => self.singular(slice, shared, out),
            Section::Aggregate => self.aggregate(slice, shared, out),
            Section::Sequence => self.open_sequence(slice, shared, out),
        };
        if let Err(fault) = read {
            let detail = format!("{}, at {}: {fault}", kind.as_str(), fault.offset);
            let events = (kind != Section::Sequence).then_some(1);
            self.lose(slice, slice.len(), Reason::Malformed, events, &detail, out);
        }
        if self.faults > faults {
            let faulty = self.repeats.fresh.split_off(known);
            self.repeats.faulty.extend(faulty);
        }
    }

    fn singular(&mut self, slice: Slice<'_>, shared: &Shared, out: &mut Output) -> Result<(), DecodeError> {
        let event = wire::singular(slice, self.layout)?;
        let shown = self.payload(event.payload, slice, PAYLOAD_DEPTH, shared, out);
        self.writer().singular(&event.head, event.relative, slice, &shown, out);
        self.events += 1;
        Ok(())
    }

    fn aggregate(&mut self, slice: Slice<'_>, shared: &Shared, out: &mut Output) -> Result<(), DecodeError> {
        let event = wire::aggregate(slice, self.layout)?;
        let shown = self.payload(event.payload, slice, PAYLOAD_DEPTH, shared, out);
        self.writer().aggregate(&event, slice, &shown, out);
        self.events += 1;
        Ok(())
    }

    /// Looks at a whole sequence before any of its elements goes out.
    fn open_sequence(&mut self, slice: Slice<'_>, shared: &Shared, out: &mut Output) -> Result<(), DecodeError> {
        let sequence = wire::sequence(slice, self.layout)?;
        if sequence.items.is_empty() {
            let id = normalize::hex(sequence.head.id);
            let detail = format!("event sequence {id}, at {}: it has no items", slice.offset());
            // It can be read, and says nothing: no reason to keep the bundle.
            self.report(slice, slice.len(), Reason::Malformed, Some(1), &detail, out);
            return Ok(());
        }
        let mut fault = None;
        let mut items = sequence.items;
        while let Some(item) = items.read()? {
            let (_, payload) = wire::item(item)?;
            let limit = shared.options.max_payload_bytes;
            fault = fault.or(payload::check(payload, ITEM_PAYLOAD_DEPTH, limit, &mut self.room).err());
        }
        if let Some(fault) = fault {
            let detail = format!("payload in an event sequence, at {}: {fault}", fault.offset);
            self.lose(slice, 0, Reason::Malformed, Some(sequence.items.len() as u64), &detail, out);
        }
        let (start, end) = (slice.offset(), slice.offset() + slice.len());
        self.sequence = Some(OpenSequence { start, end, place: None, index: 0, is_faulty: fault.is_some() });
        Ok(())
    }

    /// Writes elements of the open sequence. `false`: the batch is full.
    fn elements(&mut self, body: &[u8], shared: &Shared, out: &mut Output) -> bool {
        let Some(mut open) = self.sequence else { return true };
        let slice = Slice::at(body.get(open.start..open.end).unwrap_or_default(), open.start);
        let Ok(sequence) = wire::sequence(slice, self.layout) else {
            self.sequence = None;
            return true;
        };
        let length = sequence.items.len() as u64;
        let mut items = sequence.items;
        if let Some(place) = open.place {
            items.resume(place);
        }
        while !out.batch.is_full() {
            let Ok(Some(item)) = items.read() else {
                self.sequence = None;
                return true;
            };
            let Ok((relative, payload)) = wire::item(item) else { continue };
            let shown = match open.is_faulty {
                true if payload.is_empty() => Shown::Absent,
                true => Shown::Raw(payload::raw(payload)),
                false => self.payload(payload, item, ITEM_PAYLOAD_DEPTH, shared, out),
            };
            let element = Element { relative, index: open.index, length };
            self.writer().element(&sequence.head, element, item, &shown, out);
            self.events += 1;
            open.index += 1;
        }
        open.place = Some(items.place());
        self.sequence = Some(open);
        false
    }

    fn writer(&mut self) -> Writer<'_> {
        Writer { context: &self.context, room: &mut self.room, texts: &mut self.texts }
    }

    /// Reads a payload of the event in `slice`; what is wrong with it is reported.
    fn payload<'a>(
        &mut self,
        payload: Slice<'a>,
        slice: Slice<'a>,
        depth: usize,
        shared: &Shared,
        out: &mut Output,
    ) -> Shown<'a> {
        match payload::read(payload, depth, shared.options.max_payload_bytes, &mut self.room, &mut out.batch) {
            Ok(None) => Shown::Absent,
            Ok(Some(read)) => Shown::Read(read),
            Err(PayloadFault::Malformed(fault)) => {
                // No byte is missing: the event shows them raw.
                let detail = format!("payload, at {}: {fault}", fault.offset);
                self.lose(slice, 0, Reason::Malformed, Some(1), &detail, out);
                Shown::Raw(payload::raw(payload))
            }
            Err(PayloadFault::TooLarge(fault)) => {
                let detail = format!("payload, at {}: {fault}", fault.offset);
                self.lose(payload, payload.len(), Reason::TooLarge, Some(1), &detail, out);
                Shown::Omitted
            }
        }
    }

    /// Reports what cannot be read, for which the bundle is kept.
    fn lose(
        &mut self,
        slice: Slice<'_>,
        bytes: usize,
        reason: Reason,
        events: Option<u64>,
        detail: &str,
        out: &mut Output,
    ) {
        self.faults += 1;
        self.fault.get_or_insert_with(|| detail.to_owned());
        self.report(slice, bytes, reason, events, detail, out);
    }

    /// Reports what stands in `slice`, `bytes` of which no event stands for.
    fn report(
        &mut self,
        slice: Slice<'_>,
        bytes: usize,
        reason: Reason,
        events: Option<u64>,
        detail: &str,
        out: &mut Output,
    ) {
        self.lost += bytes as u64;
        let loss = Loss { reason, bytes: bytes as u64, events, detail, excerpt: slice.bytes() };
        let header = Header::observed_at(semconv::LOSS, self.context.received, self.context.position(slice));
        out.loss(header, loss);
    }

    /// What was left out because it was delivered before.
    fn tell_repeats(&mut self, out: &mut Output) {
        let Repeats { events, bytes, .. } = self.repeats;
        if events == 0 {
            return;
        }
        self.lost += bytes;
        let position = Position { sequence: Some(self.context.request), offset: 0, length: 0 };
        let detail = "events of the bundle were delivered with an earlier one";
        let loss = Loss { reason: Reason::Duplicate, bytes, events: Some(events), detail, excerpt: &[] };
        out.loss(Header::observed_at(semconv::LOSS, self.context.received, position), loss);
        self.repeats.events = 0;
    }
}

impl Repeats {
    fn new(bundle: &Bundle<'_>, body: &[u8], layout: Layout, memory: &Memory) -> Self {
        let is_empty = bundle.sections.iter().all(|section| section.is_empty());
        // An empty bundle is a heartbeat, and may come as often as it likes (rule 20).
        let is_on = memory.is_on() && !is_empty;
        let mut repeats = Repeats {
            is_on,
            bundle: None,
            speaker: 0,
            steps: None,
            fresh: Vec::new(),
            faulty: Vec::new(),
            events: 0,
            bytes: 0,
        };
        if !is_on {
            return repeats;
        }
        let clocks = bundle.head.clocks.map_or((0, 0), |clocks| (clocks.absolute, clocks.relative));
        let origin = i128::from(clocks.0) - i128::from(clocks.1);
        // Machines are told apart by an id that version 0 got wrong and version 3 does not send.
        let step = origin.div_euclid(ORIGIN_STEP_NANOS);
        repeats.steps = (layout != Layout::V2).then(|| [0, -1, 1].map(|other| memory.fingerprint(step + other)));
        let [singular, _, sequence] = bundle.sections;
        let stamp = layout.stamp_bytes().min(body.len());
        let kind = layout.type_string();
        let whole = memory.fingerprint((kind, &body[stamp..]));
        let is_unique = !singular.is_empty() || !sequence.is_empty();
        repeats.bundle = Some(repeats.close_to(whole, is_unique));
        let head = body.get(stamp..singular.offset()).unwrap_or_default();
        repeats.speaker = memory.fingerprint((kind, head));
        repeats
    }

    /// A fingerprint and those that the same thing may have; the three are one for what is unique by itself.
    fn close_to(&self, fingerprint: Fingerprint, is_unique: bool) -> [Fingerprint; 3] {
        match self.steps.filter(|_| !is_unique) {
            // Nobody knows what any of the two is, so neither can anybody make two of them alike.
            Some(steps) => steps.map(|step| fingerprint ^ step),
            None => [fingerprint; 3],
        }
    }

    /// Whether an event was delivered before; if not, it will have been.
    fn is_repeat(&mut self, slice: Slice<'_>, kind: Section, shared: &Shared) -> bool {
        if !self.is_on {
            return false;
        }
        let event = shared.memory.fingerprint((self.speaker, kind as u8, slice.bytes()));
        // Aggregates have no time of their own that would tell machines apart.
        let is_unique = kind != Section::Aggregate;
        let event = self.close_to(event, is_unique);
        let known_by = if is_unique { &event[..1] } else { &event[..] };
        if shared.memory.knows(known_by) {
            return true;
        }
        if self.fresh.len() < shared.options.dedup.entries {
            self.fresh.push(event[0]);
        }
        false
    }
}
