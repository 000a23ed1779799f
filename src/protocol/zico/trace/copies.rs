//! Copies of traces that were delivered before: where one begins inside another trace, and how it is skipped (rule 22).

use tributary_codec::cbor::Reader;
use tributary_event::Link;

use super::super::body::BodyState;
use super::super::clock;
use super::super::delivered::{Delivered, DeliveredTrace, Fresh};
use super::super::symbols::Symbols;
use super::super::wire::{self, Begin, BodyItem, Epilog, Order, ZicoDialect};
use super::OpenTrace;

/// The flag of a record whose trace was submitted by itself before (gen2, section 2.4).
const SENT: u64 = 0x2000;

/// A copy of a trace that was delivered before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copy {
    /// The place of its top.
    pub(super) top: usize,
    /// Its records and exceptions so far.
    pub(super) events: u64,
    /// It is no inner trace, but a whole body that is sent again.
    pub(super) is_repeat: bool,
    /// The delivered trace has the same id: its spans are within those of this one.
    pub(super) is_same_trace: bool,
}

impl OpenTrace {
    /// Rule 22: gen2 agents submit a trace by itself, and again inside each enclosing trace.
    pub(super) fn look_for_copy(
        &mut self,
        begin: Begin,
        place: usize,
        start: Option<u64>,
        reader: Reader<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
    ) {
        let Some(record) = self.records.last() else { return };
        let link = Link { trace_id: self.id, span_id: record.id };
        let own = (state.known_trace && begin.span != 0).then(|| delivered.span(self.id, begin.span));
        if let Some(known) = own.and_then(|own| delivered.first(own)) {
            return self.skip(place, known, state);
        }
        // Without a distributed context each copy has other ids, but the same times on both clocks.
        let moment = start.map(|start| delivered.moment(begin.clock, start));
        if place > 0
            && let Some(moment) = moment
            && let Some(known) = delivered.original(moment, 0, &state.changes)
            && end_of(reader, ZicoDialect::Gen2, &mut state.ahead)
                .is_some_and(|epilog| epilog.flags.is_some_and(|flags| flags & SENT != 0))
        {
            return self.skip(place, known, state);
        }
        for fingerprint in own.into_iter().chain(moment.filter(|_| place == 0)) {
            state.changes.remember(Fresh { fingerprint, ticks: 0, link });
        }
    }

    /// The same for the local tracer of gen1. Its copies have no ids, and their times are counted from the start of the
    /// trace that is submitted; but they have the same clock, type and method, and the same duration within a tick. Other traces
    /// may have the same, so each trace has one copy.
    pub(super) fn look_for_local_copy(
        &mut self,
        begin: Begin,
        place: usize,
        reader: Reader<'_>,
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
    ) {
        // The local tracer counts from 0; the streaming tracer sends each trace once.
        let is_local = self.records.first().and_then(|root| root.prolog).is_some_and(|prolog| prolog.start == 0);
        let Some(record) = self.records.last_mut() else { return };
        let Some(prolog) = record.prolog else { return };
        if !is_local || place > 0 && delivered.is_empty() {
            return;
        }
        // Methods are numbered again when a session is opened again.
        let call = match symbols.method(prolog.method) {
            Some(method) => delivered.call(begin.clock, begin.trace_type, (&method.name, &method.signature)),
            None => delivered.call(begin.clock, begin.trace_type, prolog.method),
        };
        if place == 0 {
            // It is remembered with its duration, when it ends.
            if let Some(top) = &mut record.begin {
                top.call = Some(call);
            }
        } else if delivered.knows(call)
            && let Some(epilog) = end_of(reader, ZicoDialect::Gen1, &mut state.ahead)
            && let Some(known) = delivered.original(call, clock::ticks(prolog.start, epilog.stop), &state.changes)
        {
            state.changes.copied.push((call, known.number));
            self.skip(place, known, state);
        }
    }

    /// The same for agents of the binary protocol: copies have the same clock, type, method and duration.
    pub(super) fn look_for_sent_copy(
        &mut self,
        begin: Begin,
        place: usize,
        nanos: u64,
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
    ) {
        let Some(record) = self.records.last_mut() else { return };
        let Some(prolog) = record.prolog else { return };
        if place > 0 && delivered.is_empty() && state.own.as_ref().is_none_or(Delivered::is_empty) {
            return;
        }
        let ticks = clock::ticks(prolog.start, prolog.start.wrapping_add(nanos));
        let call = match symbols.method(prolog.method) {
            Some(method) => {
                delivered.timed_call(begin.clock, begin.trace_type, nanos, (&method.name, &method.signature))
            }
            None => return,
        };
        if place == 0 {
            if let Some(top) = &mut record.begin {
                top.call = Some(call);
            }
        } else if let Some(known) = delivered.original(call, ticks, &state.changes) {
            state.changes.copied.push((call, known.number));
            self.skip(place, known, state);
        } else if let Some(known) =
            state.own.as_mut().and_then(|own| own.take_original(call, ticks, &mut state.changes))
        {
            self.skip(place, known, state);
        }
    }

    /// Skips the copy of a delivered trace that began with the innermost record. The record that encloses it links to the
    /// delivered trace, once.
    fn skip(&mut self, place: usize, known: DeliveredTrace, state: &mut BodyState) {
        let is_same_trace = known.link.trace_id == self.id;
        self.copy = Some(Copy { top: place, events: 0, is_repeat: place == 0, is_same_trace });
        if let Some(enclosing) = place.checked_sub(1)
            && state.changes.linked.insert(known.number)
        {
            self.links.push((u32::try_from(enclosing).unwrap_or(u32::MAX), known.link));
        }
    }
}

/// The end of the record that just began. Reads ahead to it, at most `ahead` bytes, which it decreases: so all look-aheads of a
/// body together cost linear time.
fn end_of(mut reader: Reader<'_>, dialect: ZicoDialect, ahead: &mut usize) -> Option<Epilog> {
    let mut depth = 1u64;
    let mut order = Order::Little;
    loop {
        let before = reader.offset();
        let entry = wire::entry(&mut reader, dialect, &mut order).ok()?;
        *ahead = ahead.checked_sub(reader.offset() - before)?;
        match entry {
            BodyItem::Open(_) => depth += 1,
            BodyItem::Epilog(epilog) if depth == 1 => return Some(epilog),
            BodyItem::Epilog(_) => depth -= 1,
            // Rule 21.
            BodyItem::Break if dialect == ZicoDialect::Gen2 => {}
            BodyItem::Break if depth == 1 => return None,
            BodyItem::Break => depth -= 1,
            _ => {}
        }
    }
}
