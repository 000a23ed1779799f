//! Items of bodies → records: which are open, what belongs to which, and what belongs to none (sections 2.3 to 2.6).
//!
//! Records nest as deep as the program's calls. Open records are kept on a stack, and a record is written as soon as it
//! closes, so a trace of any size takes the memory of its open records. An open record keeps places in the body. Before the
//! body is dropped (a trace in several parts), open records are settled: their parts are copied with their symbols filled in.

mod copies;
mod fressian;

use std::ops::Range;

use hashbrown::HashMap;

use tributary_codec::cbor::Reader;
use tributary_event::{Link, Position, Reason, SpanId, TraceId, UnixNanos};
use tributary_profile::tree::ROOT;
use tributary_protocol::Output;

use super::body::{BodyState, TraceError};
use super::clock::{self, Anchor};
use super::delivered::{Delivered, Fresh};
use super::ids::{self, Seed};
use super::normalize::{self, SpanContext, Thrown, is_failed};
use super::profile::BodyCalls;
use super::record::{MethodUse, OpenRecord, Pruned, RecordAttributes, Top, TraceType};
use super::symbols::{ResolvedMethod, Symbols};
use super::value;
use super::wire::{self, Attributes, Begin, BodyItem, Order, Prolog, ZicoDialect};
use copies::Copy;

pub(super) use fressian::FressianPlace;

/// One trace, as far as it is not written yet.
#[derive(Debug)]
pub(super) struct OpenTrace {
    pub(super) id: TraceId,
    seed: Seed,
    pub(super) dialect: ZicoDialect,
    records: Vec<OpenRecord>,
    /// The places of the tops among them.
    tops: Vec<u32>,
    /// The innermost top of each type.
    by_type: HashMap<u64, u32, foldhash::quality::RandomState>,
    /// The number of records opened so far.
    opened: u64,
    /// The number of attributes of open records.
    kept: usize,
    /// The number of records at the bottom of the stack that are settled, except those in `unsettled`.
    settled: usize,
    /// Places of settled records that changed since.
    unsettled: Vec<u32>,
    /// Bytes of settled parts.
    settled_bytes: usize,
    thrown: HashMap<u64, Thrown, foldhash::quality::RandomState>,
    thrown_bytes: usize,
    /// The copy of a delivered trace that is being skipped.
    copy: Option<Copy>,
    /// Links to traces whose copies were skipped, each after the place of the record that encloses the copy, in ascending
    /// order of these.
    links: Vec<(u32, Link)>,
    /// Vectors of closed records, for reuse.
    spare: Vec<Vec<RecordAttributes>>,
    /// The number of the body that is being read, of those of this trace.
    pub(super) body: u32,
}

/// The number of vectors that are kept for reuse.
const MAX_SPARE: usize = 64;
/// Where records make no events, at most this many bytes are read, or records closed, before others get their turn.
const SLICE_BYTES: usize = 256 << 10;
const SLICE_RECORDS: usize = 4096;
/// After open records grow by this much, the memory budget is asked.
const GROWTH_BYTES: usize = 256 << 10;

impl OpenTrace {
    pub(super) fn new(id: TraceId, dialect: ZicoDialect) -> Self {
        OpenTrace {
            id,
            seed: Seed::of(id),
            dialect,
            records: Vec::new(),
            tops: Vec::new(),
            by_type: HashMap::default(),
            opened: 0,
            kept: 0,
            settled: 0,
            unsettled: Vec::new(),
            settled_bytes: 0,
            thrown: HashMap::default(),
            thrown_bytes: 0,
            copy: None,
            links: Vec::new(),
            spare: Vec::new(),
            body: 0,
        }
    }

    /// Another body of the trace follows.
    pub(super) fn begin_body(&mut self) {
        self.body = self.body.wrapping_add(1);
    }

    /// Whether no record is open.
    pub(super) fn is_closed(&self) -> bool {
        self.records.is_empty()
    }

    /// The approximate memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<OpenRecord>() + self.kept_bytes()
    }

    fn open_bytes(&self) -> usize {
        self.records.len() * size_of::<OpenRecord>() + self.kept_bytes()
    }

    fn kept_bytes(&self) -> usize {
        self.kept * size_of::<RecordAttributes>() + self.links.len() * size_of::<(u32, Link)>() + self.thrown_bytes
    }

    /// Reads items until the batch is full, or open records grew by [`GROWTH_BYTES`]. Returns whether the end of the body
    /// is reached.
    ///
    /// # Errors
    /// The item at `state.at` cannot be read, so neither can what follows.
    pub(super) fn read(
        &mut self,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
        out: &mut Output,
    ) -> Result<bool, TraceError> {
        let mut reader = Reader::at(body, state.at);
        let most_open = self.open_bytes() + GROWTH_BYTES;
        let mut is_full = out.batch.is_full();
        let slice_end = if state.omits_records() { state.at + SLICE_BYTES } else { usize::MAX };
        while !is_full && self.open_bytes() < most_open {
            if reader.is_at_end() {
                state.report_collected(body, out);
                return Ok(true);
            }
            let start = reader.offset();
            let mut order = self.records.last().map_or(Order::Little, |record| record.order);
            let entry = wire::entry(&mut reader, self.dialect, &mut order).map_err(TraceError::Wire)?;
            if let BodyItem::Open(prolog) = entry {
                let limit = state.limits.bytes;
                if self.open_bytes() >= limit {
                    return Err(TraceError::TooMuchOpen { offset: start, limit });
                }
                self.open(prolog, order, start);
            } else {
                self.apply(entry, start, reader, symbols, delivered, state, out);
                is_full = out.batch.is_full();
            }
            state.at = reader.offset();
            is_full |= state.at >= slice_end;
        }
        Ok(false)
    }

    /// Writes open records, the innermost first, until the batch is full. Returns whether none is left.
    pub(super) fn flush(
        &mut self,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
        out: &mut Output,
    ) -> bool {
        let mut left = if state.omits_records() { SLICE_RECORDS } else { usize::MAX };
        while !self.records.is_empty() {
            if out.batch.is_full() || left == 0 {
                return false;
            }
            self.close(body, symbols, state, out);
            left -= 1;
        }
        true
    }

    /// Makes open records independent of the body and of later definitions. Returns the memory that they take; `None`: more
    /// than `limit`, and some of them still need the body.
    ///
    /// Only what changed since the last call is looked at: a trace with many open records that comes in many parts costs
    /// linear time.
    pub(super) fn settle(&mut self, body: &[u8], symbols: &mut Symbols<'_>, limit: usize) -> Option<usize> {
        let base = self.memory_bytes();
        let changed: Vec<u32> = std::mem::take(&mut self.unsettled);
        let places = changed.into_iter().map(|place| place as usize).chain(self.settled..self.records.len());
        for place in places {
            let most = limit.checked_sub(base + self.settled_bytes)?;
            let Some(record) = self.records.get_mut(place) else { continue };
            let bytes = settle_record(record, body, symbols, self.dialect, most)?;
            record.settled_bytes = record.settled_bytes.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.settled_bytes += bytes;
        }
        self.settled = self.records.len();
        self.spare = Vec::new();
        // The stack shrinks only if most of it is unused: growing it again would copy it with every part.
        if self.records.capacity() > 4 * self.records.len() + 64 {
            self.records.shrink_to(2 * self.records.len());
        }
        Some(base + self.settled_bytes)
    }

    /// Notes that a record changed, if it is settled.
    fn changed(&mut self, place: usize) {
        if place < self.settled {
            self.unsettled.push(u32::try_from(place).unwrap_or(u32::MAX));
        }
    }

    #[inline(always)]
    fn open(&mut self, prolog: Option<Prolog>, order: Order, offset: usize) {
        if let Some(parent) = self.records.last_mut() {
            parent.is_named = true;
        }
        self.records.push(OpenRecord {
            id: ids::span_id(self.seed, self.opened, prolog),
            prolog,
            epilog: None,
            begin: None,
            method: MethodUse::Id,
            attributes: self.spare.pop().unwrap_or_default(),
            attribute_bytes: 0,
            settled_attributes: 0,
            settled_bytes: 0,
            lacks_attributes: false,
            own_flags: None,
            errors: None,
            has_thrown: false,
            is_named: false,
            order,
            offset,
            node: None,
            within: 0,
            pruned: Pruned::default(),
            has_written: false,
        });
        self.opened += 1;
    }

    #[expect(clippy::too_many_arguments, reason = "those of its one caller")]
    fn apply(
        &mut self,
        entry: BodyItem,
        start: usize,
        reader: Reader<'_>,
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
        out: &mut Output,
    ) {
        let body = reader.whole();
        let is_gen2 = self.dialect == ZicoDialect::Gen2;
        let (index, seed) = (self.opened.wrapping_sub(1), self.seed);
        let Some(record) = self.records.last_mut() else {
            let is_epilog = matches!(entry, BodyItem::Epilog(_));
            return state.orphan(start, reader.offset(), is_epilog, body, out);
        };
        match entry {
            BodyItem::Epilog(epilog) => {
                record.epilog = Some(epilog);
                state.at = reader.offset();
                self.close(body, symbols, state, out);
            }
            // Rule 21. A copy is not reported.
            BodyItem::Break if is_gen2 && self.copy.is_some() => {}
            BodyItem::Break if is_gen2 => state.orphan(start, reader.offset(), false, body, out),
            BodyItem::Break => {
                state.at = reader.offset();
                self.close(body, symbols, state, out);
            }
            BodyItem::Prolog(prolog) => {
                record.prolog = Some(prolog);
                if !record.is_named {
                    record.id = ids::span_id(seed, index, record.prolog);
                }
                self.changed(self.records.len() - 1);
            }
            BodyItem::Flags(flags) => record.own_flags = Some(flags),
            BodyItem::Attributes(attributes) => self.keep(attributes, start, state, body, out),
            BodyItem::Begin(begin) => self.begin(begin, reader, symbols, delivered, state),
            BodyItem::Exception(range) => self.exception(range, start, symbols, state, body, out),
            BodyItem::Reference(id) => {
                let span = self.thrown_in(state.context.position(start, reader.offset()));
                if let Some(copy) = &mut self.copy {
                    copy.events += 1;
                } else if let Some(span) = span {
                    state.buffers.reference(id, self.thrown.get(&id), span, &state.context, out);
                }
            }
            BodyItem::Open(_) => {}
        }
    }

    /// Adds attributes to the innermost record, or to the enclosing top that they name (which may be the innermost record);
    /// without such a top, to the innermost record (section 3).
    fn keep(&mut self, attributes: Attributes, start: usize, state: &mut BodyState, body: &[u8], out: &mut Output) {
        let place = match attributes.upward {
            None => None,
            Some(0) => self.tops.last().copied(),
            Some(trace_type) => self.by_type.get(&trace_type).copied(),
        };
        let place = place.map_or(self.records.len().saturating_sub(1), |place| place as usize);
        if self.copy.is_some_and(|copy| place >= copy.top) {
            return;
        }
        let is_in_copy = self.copy.is_some();
        let Some(record) = self.records.get_mut(place) else { return };
        let (bytes, limit) = (attributes.range.len(), state.limits.record_bytes);
        if record.attribute_bytes + bytes > limit || self.kept * size_of::<RecordAttributes>() > state.limits.bytes {
            record.lacks_attributes = true;
            if is_in_copy {
                return;
            }
            return state.surplus(start, attributes.range.end, body, out);
        }
        record.attribute_bytes += bytes;
        let is_settled = record.settled_attributes as usize == record.attributes.len();
        record.attributes.push(RecordAttributes::Here(attributes.form, attributes.range));
        self.kept += 1;
        if is_settled {
            self.changed(place);
        }
    }

    fn begin(
        &mut self,
        begin: Begin,
        reader: Reader<'_>,
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
    ) {
        let place = self.top(begin);
        if self.copy.is_some() {
            return;
        }
        let start = self.records.last().and_then(|record| record.prolog).map(|prolog| prolog.start);
        match self.dialect {
            ZicoDialect::Gen2 => self.look_for_copy(begin, place, start, reader, delivered, state),
            ZicoDialect::Gen1 => self.look_for_local_copy(begin, place, reader, symbols, delivered, state),
            ZicoDialect::Doc | ZicoDialect::Fressian => {}
        }
    }

    /// Makes the innermost record the top of a trace; returns its place.
    fn top(&mut self, begin: Begin) -> usize {
        let place = self.records.len().saturating_sub(1);
        // The last of several begins of one record counts.
        if let Some(top) = self.records.last_mut().and_then(|record| record.begin.take()) {
            self.tops.pop();
            self.forget(top.type_id, top.outer);
        }
        let Some(record) = self.records.last_mut() else { return place };
        let start = record.prolog.map(|prolog| prolog.start);
        let place32 = u32::try_from(place).unwrap_or(u32::MAX);
        record.begin = Some(Box::new(Top {
            anchor: Anchor::new(begin.clock, start),
            type_id: begin.trace_type,
            trace_type: TraceType::Id(begin.trace_type),
            outer: self.by_type.insert(begin.trace_type, place32),
            parent: ids::given(begin.parent),
            call: None,
        }));
        if let Some(given) = ids::given(begin.span)
            && !record.is_named
        {
            record.id = given;
        }
        self.tops.push(place32);
        self.changed(place);
        place
    }

    fn exception(
        &mut self,
        range: Range<usize>,
        start: usize,
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
        body: &[u8],
        out: &mut Output,
    ) {
        let Some(span) = self.span_of_exception((start, range.end), range.len(), state, body, out) else { return };
        let bytes = body.get(range).unwrap_or_default();
        let Ok(thrown) = state.buffers.exception(bytes, span, symbols, &state.context, out) else { return };
        if self.thrown_bytes + thrown.bytes() <= state.limits.bytes {
            self.thrown_bytes += thrown.bytes();
            if let Some(older) = self.thrown.insert(thrown.id.unwrap_or_default(), thrown) {
                self.thrown_bytes -= older.bytes();
            }
        }
    }

    /// Notes that an exception of this place and length was thrown, and returns what its log says of the innermost record. `None`: it is
    /// in no record, or in a copy, or over a limit.
    fn span_of_exception(
        &mut self,
        (start, end): (usize, usize),
        len: usize,
        state: &mut BodyState,
        body: &[u8],
        out: &mut Output,
    ) -> Option<(TraceId, SpanId, Option<UnixNanos>, Position)> {
        let span = self.thrown_in(state.context.position(start, end))?;
        if let Some(copy) = &mut self.copy {
            copy.events += 1;
            return None;
        }
        let limit = state.limits.record_bytes;
        if len > limit {
            let detail = format!("an exception is over the limit of {limit} bytes (max_record_bytes)");
            state.lose(Reason::TooLarge, (start, end), Some(1), &detail, body, out);
            return None;
        }
        Some(span)
    }

    /// Marks the innermost record as left by an exception; returns its trace and id, and its start.
    fn thrown_in(&mut self, position: Position) -> Option<(TraceId, SpanId, Option<UnixNanos>, Position)> {
        let anchor = self.anchor();
        let record = self.records.last_mut()?;
        record.has_thrown = true;
        record.is_named = true;
        let start = record.prolog.map(|prolog| prolog.start);
        let time = anchor.and_then(|anchor| anchor.time(start, self.dialect));
        Some((self.id, record.id, time, position))
    }

    /// The begin of the innermost top, from which times are counted.
    fn anchor(&self) -> Option<Anchor> {
        let top = self.records.get(*self.tops.last()? as usize)?;
        top.begin.as_ref().map(|begin| begin.anchor)
    }

    /// Closes the innermost record: writes it, or skips it as part of a copy.
    fn close(&mut self, body: &[u8], symbols: &mut Symbols<'_>, state: &mut BodyState, out: &mut Output) {
        let anchor = self.anchor();
        let Some(mut record) = self.records.pop() else { return };
        if let Some(top) = &record.begin {
            self.tops.pop();
            self.forget(top.type_id, top.outer);
        }
        self.kept -= record.attributes.len();
        self.settled = self.settled.min(self.records.len());
        self.settled_bytes -= record.settled_bytes as usize;
        if let Some(copy) = &mut self.copy {
            copy.events += 1;
            if self.records.len() == copy.top {
                let Copy { events, is_repeat, is_same_trace, .. } = *copy;
                self.copy = None;
                if let Some(parent) = self.records.last_mut().filter(|_| is_same_trace) {
                    parent.within = parent.within.saturating_add(record.duration(self.dialect).unwrap_or(0));
                }
                if is_repeat {
                    let detail = "a trace that was delivered before";
                    state.lose(Reason::Duplicate, (record.offset, state.at), Some(events), detail, body, out);
                }
            }
        } else {
            let place = u32::try_from(self.records.len()).unwrap_or(u32::MAX);
            let unlinked = self.links.iter().rposition(|(of, _)| *of != place).map_or(0, |last| last + 1);
            let duration = record.duration(self.dialect);
            if let Some(mut calls) = state.calls.take() {
                self.count(&record, duration, &mut calls, symbols, state);
                state.calls = Some(calls);
            }
            let is_pruned = duration.is_some_and(|duration| duration < state.min_nanos)
                && unlinked == self.links.len()
                && is_prunable(&record, self.dialect);
            if let Some(parent) = self.records.last_mut() {
                parent.within = parent.within.saturating_add(duration.unwrap_or(record.within));
                match duration {
                    Some(duration) if is_pruned => {
                        parent.pruned.records += 1 + record.pruned.records;
                        parent.pruned.nanos = parent.pruned.nanos.saturating_add(duration);
                    }
                    _ => parent.has_written = true,
                }
            }
            let is_written = state.has_spans && (!is_pruned || self.records.is_empty());
            let parent = self.records.last().map(|parent| parent.id);
            let remote = || record.begin.as_ref().and_then(|begin| begin.parent);
            let around = SpanContext {
                trace: self.id,
                parent: parent.or_else(remote),
                anchor,
                position: state.context.position(record.offset, state.at),
                body,
                links: &self.links[unlinked..],
            };
            if is_written {
                let is_unresolved =
                    state.buffers.span(&record, &around, symbols, &mut state.defined, &state.context, out);
                state.unresolved += u64::from(is_unresolved);
            }
            self.links.truncate(unlinked);
            if let Some(call) = record.begin.as_ref().and_then(|begin| begin.call)
                && let Some((prolog, epilog)) = record.prolog.zip(record.epilog)
            {
                let link = Link { trace_id: self.id, span_id: record.id };
                let ticks = clock::ticks(prolog.start, epilog.stop);
                let fresh = Fresh { fingerprint: call, ticks, link };
                state.changes.remember(fresh);
                if let Some(own) = &mut state.own {
                    own.learn(fresh);
                }
            }
        }
        if record.attributes.capacity() > 0 && self.spare.len() < MAX_SPARE {
            record.attributes.clear();
            self.spare.push(record.attributes);
        }
    }

    /// Counts a record that has closed, below those that are open.
    fn count(
        &mut self,
        record: &OpenRecord,
        duration: Option<u64>,
        calls: &mut BodyCalls,
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
    ) {
        // Deeper calls fold into their callers in any case.
        let deepest = self.records.len().min(calls.max_depth);
        let body = self.body;
        let known = self.records[..deepest].iter().rposition(|open| open.node.is_some_and(|(of, _)| of == body));
        let mut caller = known.and_then(|place| self.records[place].node).map_or(ROOT, |(_, node)| node);
        for open in &mut self.records[known.map_or(0, |place| place + 1)..deepest] {
            caller = normalize::with_name(open, symbols, |name, _| calls.callee(caller, name));
            open.node = Some((body, caller));
        }
        let node = match record.node {
            Some((of, node)) if of == body => {
                let is_unresolved = !state.has_spans && normalize::with_name(record, symbols, |_, is| is);
                state.unresolved += u64::from(is_unresolved);
                node
            }
            _ => {
                let (node, is_unresolved) = normalize::with_name(record, symbols, |name, is_unresolved| {
                    (calls.callee(caller, name), is_unresolved)
                });
                state.unresolved += u64::from(is_unresolved && !state.has_spans);
                node
            }
        };
        calls.count(node, duration.map(|duration| duration.saturating_sub(record.within)));
    }

    /// Removes the innermost top of a type.
    fn forget(&mut self, type_id: u64, outer: Option<u32>) {
        match outer {
            Some(outer) => self.by_type.insert(type_id, outer),
            None => self.by_type.remove(&type_id),
        };
    }
}

/// Whether nothing but the time of a record would be missing without it.
fn is_prunable(record: &OpenRecord, dialect: ZicoDialect) -> bool {
    record.begin.is_none()
        && record.attributes.is_empty()
        && !record.lacks_attributes
        && !record.has_written
        && !is_failed(record, dialect)
}

/// Settles what is new in a record. Returns its bytes; `None`: they are more than `limit`.
fn settle_record(
    record: &mut OpenRecord,
    body: &[u8],
    symbols: &mut Symbols<'_>,
    dialect: ZicoDialect,
    limit: usize,
) -> Option<usize> {
    let mut bytes = 0;
    if let (MethodUse::Id, Some(prolog)) = (&record.method, record.prolog)
        && let Some(method) = symbols.method(prolog.method)
    {
        bytes += size_of::<ResolvedMethod>() + method.name.len() + method.signature.len();
        record.method = MethodUse::Settled(Box::new(method.clone()));
    }
    if let Some(top) = &mut record.begin
        && let TraceType::Id(id) = top.trace_type
        && let Some(symbol) = symbols.string(id)
    {
        bytes += symbol.text.len();
        top.trace_type = TraceType::Text(symbol.text.to_string());
    }
    for kept in record.attributes.iter_mut().skip(record.settled_attributes as usize) {
        if let RecordAttributes::Here(form, range) = kept {
            let here = body.get(range.clone()).unwrap_or_default();
            // Attributes were checked when they were read.
            let settled = value::settle(here, *form, symbols, dialect, limit.saturating_sub(bytes));
            let settled = settled.unwrap_or_default()?;
            bytes += settled.len();
            *kept = RecordAttributes::Settled(settled);
        }
    }
    record.settled_attributes = u32::try_from(record.attributes.len()).unwrap_or(u32::MAX);
    // Places in this body mean nothing in the next one.
    record.offset = 0;
    Some(bytes)
}
