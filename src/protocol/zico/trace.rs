//! Items of bodies → records: which are open, what belongs to which, what is left over (sections 2.3 to 2.6).
//!
//! Records are nested as deep as the program's calls, so those that are open stand on a stack of ours, and a record goes
//! out as soon as it closes: a trace of any size takes the memory of its open records. Of those only places in the body
//! are kept; what outlives its body (a trace in several parts) is copied with its symbols filled in.

use std::ops::Range;

use hashbrown::HashMap;

use crate::codec::cbor::Reader;
use crate::event::{Position, Reason, SpanId, TraceId, UnixNanos};
use crate::protocol::Output;

use super::body::{BodyState, TraceFault};
use super::clock::Anchor;
use super::delivered::Delivered;
use super::ids::{self, Seed};
use super::normalize::{Surroundings, Thrown};
use super::record::{Kept, MethodUse, Record, Top, TraceType};
use super::symbols::{Method, Symbols};
use super::value;
use super::wire::{self, Attributes, Begin, Dialect, Entry, Order, Prolog};

/// The flag of a record whose trace was posted by itself before (gen2, section 2.4).
const SENT: u64 = 0x2000;

/// One trace, as far as it is open.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) id: TraceId,
    seed: Seed,
    pub(super) dialect: Dialect,
    records: Vec<Record>,
    /// The tops among them, by their places.
    tops: Vec<u32>,
    /// The innermost top of each type.
    by_type: HashMap<u64, u32, foldhash::quality::RandomState>,
    /// Records opened so far.
    opened: u64,
    /// Attributes of open records.
    kept: usize,
    thrown: HashMap<u64, Thrown, foldhash::quality::RandomState>,
    thrown_bytes: usize,
    /// A copy of what was delivered is being passed over.
    copy: Option<Copy>,
    /// Vectors of records that are gone.
    spare: Vec<Vec<Kept>>,
    /// So many records, from the outermost on, were settled when an earlier part of the trace ended.
    settled: usize,
    /// Bytes that all settled records take beside [`Record`] itself.
    settled_bytes: usize,
    /// Places of settled records that have attributes which are not settled.
    unsettled: Vec<u32>,
}

/// A copy of a trace that was delivered before.
#[derive(Clone, Copy, Debug)]
struct Copy {
    /// The place of its top.
    top: usize,
    /// Records and exceptions of it so far.
    events: u64,
}

/// Vectors that are kept for records to come.
const MOST_SPARE: usize = 64;
/// What is open grows by so much, and then it is asked whether there is memory for more.
const GROWTH_BYTES: usize = 256 << 10;

impl Trace {
    pub(super) fn new(id: TraceId, dialect: Dialect) -> Self {
        Trace {
            id,
            seed: Seed::of(id),
            dialect,
            records: Vec::new(),
            tops: Vec::new(),
            by_type: HashMap::default(),
            opened: 0,
            kept: 0,
            thrown: HashMap::default(),
            thrown_bytes: 0,
            copy: None,
            spare: Vec::new(),
            settled: 0,
            settled_bytes: 0,
            unsettled: Vec::new(),
        }
    }

    /// Whether no record is open.
    pub(super) fn is_closed(&self) -> bool {
        self.records.is_empty()
    }

    /// Memory, roughly.
    pub(super) fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<Record>() + self.kept * size_of::<Kept>() + self.thrown_bytes
    }

    fn open_bytes(&self) -> usize {
        self.records.len() * size_of::<Record>() + self.kept * size_of::<Kept>() + self.thrown_bytes
    }

    /// Reads items until the batch is full, or what is open takes so much more that it should be asked whether there is
    /// memory for it. Answers whether the body is at its end.
    ///
    /// # Errors
    /// What stands at `state.at` cannot be understood, and so nothing behind it.
    pub(super) fn read(
        &mut self,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
        out: &mut Output,
    ) -> Result<bool, TraceFault> {
        let mut reader = Reader::at(body, state.at);
        let most_open = self.open_bytes() + GROWTH_BYTES;
        let mut is_full = out.batch.is_full();
        while !is_full && self.open_bytes() < most_open {
            if reader.is_at_end() {
                state.tell(body, out);
                return Ok(true);
            }
            let start = reader.offset();
            let mut order = self.records.last().map_or(Order::Little, |record| record.order);
            let entry = wire::entry(&mut reader, self.dialect, &mut order).map_err(TraceFault::Wire)?;
            if let Entry::Open(prolog) = entry {
                let limit = state.limits.bytes;
                if self.open_bytes() >= limit {
                    return Err(TraceFault::TooMuchOpen { offset: start, limit });
                }
                self.open(prolog, order, start);
            } else {
                self.apply(entry, start, reader, symbols, delivered, state, out);
                is_full = out.batch.is_full();
            }
            state.at = reader.offset();
        }
        Ok(false)
    }

    /// Lets go of open records, the innermost first, until the batch is full. Answers whether none is left.
    pub(super) fn flush(
        &mut self,
        body: &[u8],
        symbols: &mut Symbols<'_>,
        state: &mut BodyState,
        out: &mut Output,
    ) -> bool {
        while !self.records.is_empty() {
            if out.batch.is_full() {
                return false;
            }
            self.close(body, symbols, state, out);
        }
        true
    }

    /// Makes the open records independent of the body and of later definitions. Returns the memory that they take.
    /// `None`: that would be more than `limit`, and some of it still needs the body.
    ///
    /// Records that an earlier part has settled are not visited again unless they have changed, so that many small parts
    /// of a deep trace cost no more than one large part.
    pub(super) fn settle(&mut self, body: &[u8], symbols: &mut Symbols<'_>, limit: usize) -> Option<usize> {
        let changed = std::mem::take(&mut self.unsettled).into_iter().map(|place| place as usize);
        let settled = self.settled.min(self.records.len());
        let mut bytes = self.memory_bytes() + self.settled_bytes;
        for place in changed.filter(|place| *place < settled).chain(settled..self.records.len()) {
            if bytes > limit {
                return None;
            }
            let record = &mut self.records[place];
            let before = record.settled_bytes;
            record.settle(body, symbols, self.dialect, limit.saturating_sub(bytes))?;
            let more = record.settled_bytes - before;
            self.settled_bytes += more;
            bytes += more;
        }
        self.settled = self.records.len();
        self.spare = Vec::new();
        // Not to the last byte: then each further part would copy all records twice.
        if self.records.capacity() / 2 > self.records.len() {
            self.records.shrink_to_fit();
        }
        Some(bytes)
    }

    fn open(&mut self, prolog: Option<Prolog>, order: Order, offset: usize) {
        if let Some(parent) = self.records.last_mut() {
            parent.is_named = true;
        }
        self.records.push(Record {
            id: ids::span_id(self.seed, self.opened, prolog),
            prolog,
            epilog: None,
            begin: None,
            method: MethodUse::Id,
            attributes: self.spare.pop().unwrap_or_default(),
            attribute_bytes: 0,
            lacks_attributes: false,
            own_flags: None,
            has_thrown: false,
            is_named: false,
            order,
            offset,
            settled_attributes: 0,
            settled_bytes: 0,
        });
        self.opened += 1;
    }

    #[expect(clippy::too_many_arguments, reason = "those of its one caller")]
    fn apply(
        &mut self,
        entry: Entry,
        start: usize,
        reader: Reader<'_>,
        symbols: &mut Symbols<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
        out: &mut Output,
    ) {
        let body = reader.whole();
        let is_gen2 = self.dialect == Dialect::Gen2;
        let (index, seed) = (self.opened.wrapping_sub(1), self.seed);
        let Some(record) = self.records.last_mut() else {
            let is_epilog = matches!(entry, Entry::Epilog(_));
            return state.orphan(start, reader.offset(), is_epilog, body, out);
        };
        match entry {
            Entry::Epilog(epilog) => {
                record.epilog = Some(epilog);
                state.at = reader.offset();
                self.close(body, symbols, state, out);
            }
            // Rule 21. Of a copy every byte is lost already.
            Entry::Break if is_gen2 && self.copy.is_some() => {}
            Entry::Break if is_gen2 => state.orphan(start, reader.offset(), false, body, out),
            Entry::Break => {
                state.at = reader.offset();
                self.close(body, symbols, state, out);
            }
            Entry::Prolog(prolog) => {
                record.prolog = Some(prolog);
                if !record.is_named {
                    record.id = ids::span_id(seed, index, record.prolog);
                }
                self.settled = self.settled.min(self.records.len() - 1);
            }
            Entry::Flags(flags) => record.own_flags = Some(flags),
            Entry::Attributes(attributes) => self.keep(attributes, start, state, body, out),
            Entry::Begin(begin) => self.begin(begin, reader, delivered, state),
            Entry::Exception(range) => self.exception(range, start, symbols, state, body, out),
            Entry::Reference(id) => {
                let span = self.thrown_in(state.context.position(start, reader.offset()));
                if let Some(copy) = &mut self.copy {
                    copy.events += 1;
                } else if let Some(span) = span {
                    state.room.reference(id, self.thrown.get(&id), span, &state.context, out);
                }
            }
            Entry::Open(_) => {}
        }
    }

    /// Attributes belong to the innermost record, or to the enclosing top that they name, its own included; to the
    /// innermost record after all if there is none (section 3).
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
        if record.attribute_bytes + bytes > limit || self.kept * size_of::<Kept>() > state.limits.bytes {
            record.lacks_attributes = true;
            if is_in_copy {
                return;
            }
            return state.surplus(start, attributes.range.end, body, out);
        }
        if place < self.settled && record.settled_attributes == record.attributes.len() {
            self.unsettled.push(u32::try_from(place).unwrap_or(u32::MAX));
        }
        record.attribute_bytes += bytes;
        record.attributes.push(Kept::Here(attributes.form, attributes.range));
        self.kept += 1;
    }

    fn begin(&mut self, begin: Begin, reader: Reader<'_>, delivered: &Delivered, state: &mut BodyState) {
        let place = self.records.len().saturating_sub(1);
        self.settled = self.settled.min(place);
        // Of several begins of one record the last counts.
        if let Some(top) = self.records.last_mut().and_then(|record| record.begin.take()) {
            self.tops.pop();
            self.forget(top.type_id, top.outer);
        }
        let Some(record) = self.records.last_mut() else { return };
        let start = record.prolog.map(|prolog| prolog.start);
        let place32 = u32::try_from(place).unwrap_or(u32::MAX);
        record.begin = Some(Box::new(Top {
            anchor: Anchor::new(begin.clock, start),
            type_id: begin.trace_type,
            trace_type: TraceType::Id(begin.trace_type),
            outer: self.by_type.insert(begin.trace_type, place32),
            parent: ids::given(begin.parent),
        }));
        if let Some(given) = ids::given(begin.span)
            && !record.is_named
        {
            record.id = given;
        }
        self.tops.push(place32);
        if self.dialect == Dialect::Gen2 && self.copy.is_none() {
            self.look_for_copy(begin, place, start, reader, delivered, state);
        }
    }

    /// Rule 22: agents of gen2 post a trace by itself, and then again inside every trace that encloses it.
    fn look_for_copy(
        &mut self,
        begin: Begin,
        place: usize,
        start: Option<u64>,
        reader: Reader<'_>,
        delivered: &Delivered,
        state: &mut BodyState,
    ) {
        let own = (state.known_trace && begin.span != 0).then(|| delivered.span(self.id, begin.span));
        // Without a distributed context every copy has other ids, but the same moment on both clocks.
        let moment = start.map(|start| delivered.moment(begin.clock, start));
        let is_copy = own.is_some_and(|own| delivered.knows(own))
            || place > 0
                && moment.is_some_and(|moment| delivered.knows(moment))
                && will_be_sent(reader, &mut state.ahead);
        if is_copy {
            self.copy = Some(Copy { top: place, events: 0 });
            return;
        }
        state.fresh.extend(own);
        if place == 0 {
            state.fresh.extend(moment);
        }
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
        let Some(span) = self.thrown_in(state.context.position(start, range.end)) else { return };
        if let Some(copy) = &mut self.copy {
            copy.events += 1;
            return;
        }
        let limit = state.limits.record_bytes;
        if range.len() > limit {
            let detail = format!("an exception is over the limit of {limit} bytes (max_record_bytes)");
            return state.lose(Reason::TooLarge, (start, range.end), Some(1), &detail, body, out);
        }
        let bytes = body.get(range).unwrap_or_default();
        let Ok(thrown) = state.room.exception(bytes, span, symbols, &state.context, out) else { return };
        if self.thrown_bytes + thrown.bytes() <= state.limits.bytes {
            self.thrown_bytes += thrown.bytes();
            if let Some(older) = self.thrown.insert(thrown.id, thrown) {
                self.thrown_bytes -= older.bytes();
            }
        }
    }

    /// The innermost record, which an exception leaves: its trace and id, and when it began.
    fn thrown_in(&mut self, position: Position) -> Option<(TraceId, SpanId, Option<UnixNanos>, Position)> {
        let anchor = self.anchor();
        let record = self.records.last_mut()?;
        record.has_thrown = true;
        record.is_named = true;
        let start = record.prolog.map(|prolog| prolog.start);
        let time = anchor.and_then(|anchor| anchor.time(start, self.dialect));
        Some((self.id, record.id, time, position))
    }

    /// The begin that times are counted from: that of the innermost top.
    fn anchor(&self) -> Option<Anchor> {
        let top = self.records.get(*self.tops.last()? as usize)?;
        top.begin.as_ref().map(|begin| begin.anchor)
    }

    /// Closes the innermost record: it goes out, or was a copy.
    fn close(&mut self, body: &[u8], symbols: &mut Symbols<'_>, state: &mut BodyState, out: &mut Output) {
        let anchor = self.anchor();
        let Some(mut record) = self.records.pop() else { return };
        self.settled = self.settled.min(self.records.len());
        self.settled_bytes -= record.settled_bytes;
        if let Some(top) = &record.begin {
            self.tops.pop();
            self.forget(top.type_id, top.outer);
        }
        self.kept -= record.attributes.len();
        if let Some(copy) = &mut self.copy {
            copy.events += 1;
            if self.records.len() == copy.top {
                let events = Some(copy.events);
                self.copy = None;
                let detail = "a trace inside another one that was delivered by itself before";
                state.lose(Reason::Duplicate, (record.offset, state.at), events, detail, body, out);
            }
        } else {
            let parent = self.records.last().map(|parent| parent.id);
            let remote = || record.begin.as_ref().and_then(|begin| begin.parent);
            let around = Surroundings {
                trace: self.id,
                parent: parent.or_else(remote),
                anchor,
                position: state.context.position(record.offset, state.at),
                body,
            };
            let is_unresolved = state.room.span(&record, &around, symbols, &state.context, out);
            state.unresolved += u64::from(is_unresolved);
        }
        if record.attributes.capacity() > 0 && self.spare.len() < MOST_SPARE {
            record.attributes.clear();
            self.spare.push(record.attributes);
        }
    }

    /// The innermost top of a type is none any more.
    fn forget(&mut self, type_id: u64, outer: Option<u32>) {
        match outer {
            Some(outer) => self.by_type.insert(type_id, outer),
            None => self.by_type.remove(&type_id),
        };
    }
}

impl Record {
    /// Copies what still needs the body, and fills in method and type as they are defined now. `None`: its attributes
    /// take more than `limit` bytes.
    fn settle(&mut self, body: &[u8], symbols: &mut Symbols<'_>, dialect: Dialect, limit: usize) -> Option<()> {
        let mut bytes = 0;
        if let (MethodUse::Id, Some(prolog)) = (&self.method, self.prolog)
            && let Some(method) = symbols.method(prolog.method)
        {
            bytes += size_of::<Method>() + method.name.len() + method.signature.len();
            self.method = MethodUse::Settled(Box::new(method.clone()));
        }
        if let Some(top) = &mut self.begin
            && let TraceType::Id(id) = top.trace_type
            && let Some(symbol) = symbols.string(id)
        {
            top.trace_type = TraceType::Text(symbol.text.to_string());
            bytes += symbol.text.len();
        }
        for kept in self.attributes.iter_mut().skip(self.settled_attributes) {
            if let Kept::Here(form, range) = kept {
                let here = body.get(range.clone()).unwrap_or_default();
                let most = limit.saturating_sub(bytes);
                // What is kept was checked when it came.
                *kept = Kept::Settled(value::settle(here, *form, symbols, dialect, most).unwrap_or_default()?);
            }
            bytes += kept.bytes(&[]).len();
        }
        self.settled_attributes = self.attributes.len();
        self.settled_bytes += bytes;
        // From here on places are those in the next body.
        self.offset = 0;
        Some(())
    }
}

/// Whether the flags of the record that has just begun will say that it was posted by itself. Reads ahead to its end, as
/// long as there are bytes for that.
fn will_be_sent(mut reader: Reader<'_>, ahead: &mut usize) -> bool {
    let mut depth = 1u64;
    let mut order = Order::Little;
    loop {
        let before = reader.offset();
        let Ok(entry) = wire::entry(&mut reader, Dialect::Gen2, &mut order) else { return false };
        let Some(left) = ahead.checked_sub(reader.offset() - before) else { return false };
        *ahead = left;
        match entry {
            Entry::Open(_) => depth += 1,
            Entry::Epilog(epilog) if depth == 1 => return epilog.flags.is_some_and(|flags| flags & SENT != 0),
            Entry::Epilog(_) => depth -= 1,
            _ => {}
        }
    }
}
