//! Reads the events of one bundle; each call fills one batch.

use std::time::Duration;

use tributary_codec::gvariant::{ArrayPosition, Elements, Slice};
use tributary_codec::reader::DecodeError;
use tributary_event::{Header, Loss, Position, Reason, Resource, UnixNanos, hex, semconv};
use tributary_protocol::{Now, Output, Request, RequestOutcome};

use super::dedup::{BundleStatus, DedupCache, Fingerprint};
use super::normalize::{self, BundleContext, Element, Shown, Timeline, Writer};
use super::payload::{self, PayloadBuffers, PayloadError};
use super::repeats::{KnownBy, Repeats};
use super::shared::SharedExchange;
use super::shared_deliveries::{Delivered, FingerprintSet};
use super::texts::BundleTexts;
use super::wire::{self, Bundle, BundleHead, BundleLayout, Section, UploadVersion};

/// The depth of an event's payload (a maybe of a variant) in a bundle: bundle, array, event, payload.
const PAYLOAD_DEPTH: usize = 3;
/// The depth of an item's payload: bundle, array, sequence, array, item, payload.
const ITEM_PAYLOAD_DEPTH: usize = 5;
/// The events of one bundle.
#[derive(Debug)]
pub(super) struct BundleReader {
    version: UploadVersion,
    layout: BundleLayout,
    context: BundleContext,
    /// Start and end of each kind's events in the body.
    sections: [(usize, usize); 3],
    section: usize,
    place: Option<ArrayPosition>,
    sequence: Option<OpenSequence>,
    buffers: PayloadBuffers,
    texts: BundleTexts,
    repeats: Repeats,
    /// Whether the bundle was looked up among delivered bundles.
    is_looked_up: bool,
    events: u64,
    lost: u64,
    /// The first fault, and the number of faults.
    fault: Option<String>,
    faults: u64,
}

/// A sequence whose elements are being written.
#[derive(Clone, Copy, Debug)]
struct OpenSequence {
    start: usize,
    end: usize,
    place: Option<ArrayPosition>,
    index: u64,
    /// The payload of an item cannot be read: then no payload of the sequence is shown (section 3).
    is_faulty: bool,
}

/// The progress of reading a bundle.
#[derive(Debug)]
pub(super) enum BundleProgress {
    /// The batch is full: call again.
    BatchFull,
    /// Every event was processed.
    Done {
        /// Bytes of the body that were reported lost.
        lost: u64,
        /// Events that were written.
        events: u64,
        /// The first fault, and how many there were.
        fault: Option<String>,
    },
    /// Other daemons are to be asked what they have noted under these fingerprints: call again then.
    LookUp {
        /// Those of the first event of each section.
        first: Vec<Fingerprint>,
    },
    /// The whole bundle was delivered before.
    Repeat {
        /// Its events.
        events: u64,
    },
    /// The whole bundle is being delivered by another request.
    InFlight {
        /// Its events.
        events: u64,
    },
}

impl BundleReader {
    /// A reader of the bundle in `body`, which has this layout.
    pub(super) fn new(
        bundle: &Bundle<'_>,
        body: &[u8],
        version: UploadVersion,
        layout: BundleLayout,
        received: UnixNanos,
        request: &Request,
        shared: &SharedExchange,
    ) -> Self {
        let timeline = Timeline::new(bundle.head.clocks, layout, received);
        let context = BundleContext { layout, timeline, received, request: request.number };
        let sections = bundle.sections.map(|section| (section.offset(), section.offset() + section.len()));
        BundleReader {
            version,
            layout,
            context,
            sections,
            section: 0,
            place: None,
            sequence: None,
            buffers: PayloadBuffers::default(),
            texts: BundleTexts::default(),
            repeats: Repeats::new(bundle, body, layout, shared),
            is_looked_up: false,
            events: 0,
            lost: 0,
            fault: None,
            faults: 0,
        }
    }

    /// The sender of the bundle.
    pub(super) fn resource(&self, head: &BundleHead<'_>) -> Resource {
        normalize::resource(head, self.version, self.layout)
    }

    /// Writes events until the batch is full or all are written.
    pub(super) fn write_events(
        &mut self,
        body: &[u8],
        now: Now,
        shared: &SharedExchange,
        out: &mut Output,
    ) -> BundleProgress {
        if !self.is_looked_up {
            self.is_looked_up = true;
            if let Some(progress) = self.look_up(body, now, shared) {
                return progress;
            }
        }
        while let Some(kind) = Section::ALL.get(self.section).copied() {
            if self.sequence.is_some() && !self.elements(body, shared, out) {
                return BundleProgress::BatchFull;
            }
            let Some(mut events) = self.events_of(body, kind) else { break };
            loop {
                if out.batch.is_full() {
                    return BundleProgress::BatchFull;
                }
                let event = events.read();
                self.place = Some(events.place());
                // The framing was checked with the bundle.
                let Ok(Some(event)) = event else { break };
                self.event(event, kind, shared, out);
                if self.sequence.is_some() && !self.elements(body, shared, out) {
                    return BundleProgress::BatchFull;
                }
            }
            self.section += 1;
            self.place = None;
        }
        self.report_repeats(out);
        let fault = self.fault.take().map(|fault| match self.faults {
            0 | 1 => fault,
            faults => format!("{fault}; {faults} faults in all"),
        });
        BundleProgress::Done { lost: self.lost, events: self.events, fault }
    }

    /// Ends the delivery of the bundle with this outcome.
    pub(super) fn end(&mut self, outcome: RequestOutcome, now: Duration, cache: &DedupCache) {
        self.repeats.end(outcome, now, cache);
    }

    /// What other daemons have delivered of the bundle.
    pub(super) fn set_delivered_by_others(&mut self, events: FingerprintSet) {
        self.repeats.set_delivered_by_others(events);
    }

    /// The events to be reported to other daemons once the bundle is delivered.
    pub(super) fn take_delivered(&mut self) -> Vec<Delivered> {
        self.repeats.take_delivered()
    }

    fn look_up(&mut self, body: &[u8], now: Now, shared: &SharedExchange) -> Option<BundleProgress> {
        let bundle = self.repeats.bundle?;
        let status = shared.dedup.begin(&bundle, now.elapsed);
        if status == BundleStatus::New {
            return shared
                .shared_deliveries
                .is_some()
                .then(|| BundleProgress::LookUp { first: self.first_events(body, &shared.dedup) });
        }
        // It belongs to another request, which ends its delivery.
        self.repeats.bundle = None;
        let events = self.count(body);
        Some(if status == BundleStatus::Delivered {
            BundleProgress::Repeat { events }
        } else {
            BundleProgress::InFlight { events }
        })
    }

    /// The fingerprints of the first event of each section.
    fn first_events(&self, body: &[u8], cache: &DedupCache) -> Vec<Fingerprint> {
        let mut first = Vec::new();
        for (kind, (start, end)) in Section::ALL.into_iter().zip(self.sections) {
            let events = wire::events(Slice::at(&body[start..end], start), kind);
            if let Some(event) = events.ok().and_then(|mut events| events.read().ok().flatten()) {
                first.extend(self.repeats.event(event, kind, cache));
                first.dedup();
            }
        }
        first
    }

    /// The number of events in the bundle; a sequence that can be read counts its elements.
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

    fn event(&mut self, slice: Slice<'_>, kind: Section, shared: &SharedExchange, out: &mut Output) {
        let (faults, known) = (self.faults, self.repeats.len());
        if let Some(known_by) = self.repeats.known_by(slice, kind, shared) {
            let events = match kind {
                Section::Sequence => wire::sequence(slice, self.layout).map_or(1, |one| one.items.len() as u64),
                Section::Singular | Section::Aggregate => 1,
            };
            self.repeats.events += events;
            self.repeats.events_of_others += if known_by == KnownBy::Another { events } else { 0 };
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
            self.repeats.mark_faulty(known);
        }
    }

    fn singular(&mut self, slice: Slice<'_>, shared: &SharedExchange, out: &mut Output) -> Result<(), DecodeError> {
        let event = wire::singular(slice, self.layout)?;
        let shown = self.payload(event.payload, slice, PAYLOAD_DEPTH, shared, out);
        self.writer().singular(&event.head, event.relative, slice, &shown, out);
        self.events += 1;
        Ok(())
    }

    fn aggregate(&mut self, slice: Slice<'_>, shared: &SharedExchange, out: &mut Output) -> Result<(), DecodeError> {
        let event = wire::aggregate(slice, self.layout)?;
        let shown = self.payload(event.payload, slice, PAYLOAD_DEPTH, shared, out);
        self.writer().aggregate(&event, slice, &shown, out);
        self.events += 1;
        Ok(())
    }

    /// Checks a whole sequence before any of its elements is written.
    fn open_sequence(
        &mut self,
        slice: Slice<'_>,
        shared: &SharedExchange,
        out: &mut Output,
    ) -> Result<(), DecodeError> {
        let sequence = wire::sequence(slice, self.layout)?;
        if sequence.items.is_empty() {
            let id = hex(sequence.head.id);
            let detail = format!("event sequence {id}, at {}: it has no items", slice.offset());
            // It can be read and has no content: no reason to put the bundle into the quarantine.
            self.report(slice, slice.len(), Reason::Malformed, Some(1), &detail, out);
            return Ok(());
        }
        let mut fault = None;
        let mut items = sequence.items;
        while let Some(item) = items.read()? {
            let (_, payload) = wire::item(item)?;
            let limit = shared.options.max_payload_bytes;
            fault = fault.or(payload::check(payload, ITEM_PAYLOAD_DEPTH, limit, &mut self.buffers).err());
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
    fn elements(&mut self, body: &[u8], shared: &SharedExchange, out: &mut Output) -> bool {
        let Some(mut open) = self.sequence else { return true };
        let slice = Slice::at(body.get(open.start..open.end).unwrap_or_default(), open.start);
        // Its items were checked by `open_sequence`: checking them again for each batch would cost quadratic time.
        let Ok(sequence) = wire::unchecked_sequence(slice, self.layout) else {
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
        Writer { context: &self.context, buffers: &mut self.buffers, texts: &mut self.texts }
    }

    /// Reads a payload of the event in `slice`, and reports its fault.
    fn payload<'a>(
        &mut self,
        payload: Slice<'a>,
        slice: Slice<'a>,
        depth: usize,
        shared: &SharedExchange,
        out: &mut Output,
    ) -> Shown<'a> {
        match payload::read(payload, depth, shared.options.max_payload_bytes, &mut self.buffers, &mut out.batch) {
            Ok(None) => Shown::Absent,
            Ok(Some(read)) => Shown::Read(read),
            Err(PayloadError::Malformed(fault)) => {
                // No byte is lost: the event shows them raw.
                let detail = format!("payload, at {}: {fault}", fault.offset);
                self.lose(slice, 0, Reason::Malformed, Some(1), &detail, out);
                Shown::Raw(payload::raw(payload))
            }
            Err(PayloadError::TooLarge(fault)) => {
                let detail = format!("payload, at {}: {fault}", fault.offset);
                self.lose(payload, payload.len(), Reason::TooLarge, Some(1), &detail, out);
                Shown::Omitted
            }
        }
    }

    /// Reports a fault, for which the bundle goes to the quarantine.
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

    /// Reports a loss of `bytes` bytes at `slice`.
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

    /// Reports the events that were left out as repeats.
    fn report_repeats(&mut self, out: &mut Output) {
        let Repeats { events, bytes, events_of_others, .. } = self.repeats;
        if events == 0 {
            return;
        }
        out.repeats[0] += events - events_of_others;
        out.repeats[1] += events_of_others;
        self.lost += bytes;
        let position = Position { sequence: Some(self.context.request), offset: 0, length: 0 };
        let detail = "events of the bundle were delivered with an earlier one";
        let loss = Loss { reason: Reason::Duplicate, bytes, events: Some(events), detail, excerpt: &[] };
        out.loss(Header::observed_at(semconv::LOSS, self.context.received, position), loss);
        self.repeats.events = 0;
    }
}
