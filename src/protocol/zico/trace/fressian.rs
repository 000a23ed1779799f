//! Records of Fressian: a record's head has everything but its children, which follow (section 6).

use std::ops::Range;

use tributary_event::UnixNanos;
use tributary_protocol::Output;

use super::super::body::BodyState;
use super::super::delivered::Delivered;
use super::super::fressian::structs::RecordHead;
use super::super::symbols::Symbols;
use super::super::wire::{Attributes, Begin, Epilog, Form, Order, Prolog};
use super::OpenTrace;

/// What surrounds a record.
pub(in super::super) struct FressianPlace {
    /// When it started, in nanoseconds since the root did.
    pub(in super::super) start: u64,
    /// Its method's id in the symbol table.
    pub(in super::super) method: u64,
    /// Where it begins and where its head ends.
    pub(in super::super) range: (usize, usize),
}

impl OpenTrace {
    /// Whether open records take the memory that they may.
    pub(in super::super) fn is_full(&self, limit: usize) -> bool {
        self.open_bytes() >= limit
    }

    /// Opens a record within the innermost one.
    #[expect(clippy::too_many_arguments, reason = "those of its one caller")]
    pub(in super::super) fn enter(
        &mut self,
        head: &RecordHead,
        place: &FressianPlace,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
        out: &mut Output,
    ) {
        let (start, end) = place.range;
        // The id depends on the place in the trace only: a connection numbers methods in its own order.
        self.open(None, Order::Big, start);
        let parent = self.records.len().checked_sub(2).and_then(|parent| self.records[parent].prolog);
        let around =
            self.anchor().zip(parent).and_then(|(anchor, parent)| anchor.time(Some(parent.start), self.dialect));
        if let Some(record) = self.records.last_mut() {
            record.prolog = Some(Prolog { start: place.start, method: place.method });
            let stop = place.start.saturating_add(head.nanos);
            let flags = head.marker.map(|marker| marker.flags);
            record.epilog = Some(Epilog { stop, calls: head.calls, flags });
            record.own_flags = Some(head.flags);
            record.errors = Some(head.errors);
        }
        if let Some(marker) = head.marker {
            let begin = Begin { clock: marker.clock, trace_type: marker.trace_type, span: 0, parent: 0 };
            let place = self.top(begin);
            self.hold_back(around);
            if self.copy.is_none() {
                self.look_for_sent_copy(begin, place, head.nanos, symbols, delivered, state);
            }
        }
        if let Some(range) = head.attributes.clone() {
            let attributes = Attributes { upward: None, form: Form::Fressian, range: range.clone() };
            self.keep(attributes, range.start, state, body, out);
        }
        if let Some(range) = head.exception.clone() {
            self.java_exception(range, symbols, state, body, out);
        }
        state.at = end;
    }

    /// Closes the innermost record.
    pub(in super::super) fn leave(
        &mut self,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
        out: &mut Output,
    ) {
        self.close(body, symbols, state, out);
    }

    fn java_exception(
        &mut self,
        range: Range<usize>,
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
        body: &[u8],
        out: &mut Output,
    ) {
        let place = (range.start, range.end);
        let Some(span) = self.span_of_exception(place, range.len(), state, body, out) else { return };
        let BodyState { buffers, defined, context, .. } = state;
        // It was checked when it was read.
        let _ = buffers.java_exception(body, range, span, symbols, defined, context, out);
    }

    /// An inner top does not start before the record around it: its clock has whole milliseconds only.
    fn hold_back(&mut self, around: Option<UnixNanos>) {
        if let Some(top) = self.records.last_mut().and_then(|record| record.begin.as_mut()) {
            top.anchor = top.anchor.not_before(around);
        }
    }
}
