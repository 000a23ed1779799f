//! Reads the data of a packet; each call fills one batch (section 6.4).
//!
//! Records nest as deep as the program's calls. They are read without recursion: [`Level`]s are the records whose children follow.

use tributary_codec::fressian::{FressianError, FressianErrorKind, FressianItem, FressianReader};
use tributary_event::{Reason, TraceId};
use tributary_protocol::{Now, Output};

use super::super::body::BodyState;
use super::super::delivered::Delivered;
use super::super::normalize;
use super::super::sessions::Session;
use super::super::symbols::{Full, Symbols};
use super::super::trace::{FressianPlace, OpenTrace};
use super::super::value::MAX_VALUE_DEPTH;
use super::super::wire::{Definition, ZicoDialect};
use super::connection::Link;
use super::digest::{self, RecordDigest};
use super::packet::HEADER_BYTES;
use super::structs::{self, RecordHead, Tag};

/// At most this many bytes are read before others get their turn.
const SLICE_BYTES: usize = 256 << 10;
/// A top-level value that is neither a struct of the agents nor null.
const STRAY_VALUE: &str = "zico.stray_value";

/// A packet that is being read.
#[derive(Debug)]
pub(in super::super) struct PacketReader {
    pub(in super::super) state: BodyState,
    trace: Option<OpenTrace>,
    levels: Vec<Level>,
    scan: Option<Scan>,
    /// What was read, for when it comes again.
    pub(in super::super) digests: Vec<RecordDigest>,
    /// The records of a packet that may come again. `None`: this one does not begin as another one did.
    expected: Option<Vec<RecordDigest>>,
    is_flushing: bool,
    /// A table was full: what it lacks, and since which offset.
    full: Option<(usize, Full)>,
    max_depth: usize,
    emits_definitions: bool,
    /// Why the rest of the packet cannot be read.
    pub(in super::super) fault: Option<(Reason, usize, String)>,
}

/// A record whose children are being read.
#[derive(Debug)]
struct Level {
    /// The number of children that follow; `None`: up to an end.
    left: Option<u64>,
    /// When the next child starts, in nanoseconds since the root did: children follow each other.
    next: u64,
    nanos: u64,
}

/// A perf record whose samples are being read.
#[derive(Clone, Copy, Debug)]
struct Scan {
    clock: i64,
    scanner: u64,
    left: Option<u64>,
}

impl PacketReader {
    /// A reader of a packet that is complete.
    pub(in super::super) fn new(mut state: BodyState, max_depth: usize, emits_definitions: bool) -> Self {
        state.at = HEADER_BYTES;
        PacketReader {
            state,
            trace: None,
            levels: Vec::new(),
            scan: None,
            digests: Vec::new(),
            expected: None,
            is_flushing: false,
            full: None,
            max_depth,
            emits_definitions,
            fault: None,
        }
    }

    /// The approximate memory in bytes.
    pub(in super::super) fn memory_bytes(&self) -> usize {
        let trace = self.trace.as_ref().map_or(0, OpenTrace::memory_bytes);
        let own = self.state.own.as_ref().map_or(0, Delivered::memory_bytes);
        trace + own + self.levels.capacity() * size_of::<Level>() + self.digests.capacity() * size_of::<RecordDigest>()
    }

    /// Reads values until the batch is full or the packet ends. Returns whether all is written.
    pub(in super::super) fn read(
        &mut self,
        body: &[u8],
        link: &mut Link,
        session: &Session,
        now: Now,
        out: &mut Output,
    ) -> bool {
        let slice_end = self.state.at.saturating_add(SLICE_BYTES);
        while !self.is_flushing {
            if out.batch.is_full() || self.state.at >= slice_end {
                return false;
            }
            match self.value(body, link, session, now, out) {
                Ok(true) => {}
                Ok(false) => self.is_flushing = true,
                Err(error) => {
                    let (reason, detail) = fault_of(&error);
                    self.give_up((reason, self.state.at, detail));
                }
            }
        }
        let Some(trace) = &mut self.trace else { return true };
        let symbols = &mut Symbols { own: &mut link.symbols, host: None };
        if trace.flush(body, symbols, &mut self.state, out) {
            self.trace = None;
        }
        self.trace.is_none()
    }

    /// Gives the rest of the packet up: reason, offset and detail.
    pub(in super::super) fn give_up(&mut self, fault: (Reason, usize, String)) {
        self.fault = Some(fault);
        self.is_flushing = true;
    }

    /// Reports what was collected over the whole packet.
    pub(in super::super) fn report(&mut self, body: &[u8], out: &mut Output) {
        self.state.report_collected(body, out);
        self.state.report_unresolved(out);
        if let Some((offset, Full { limit, key })) = self.full.take() {
            let detail = format!("further symbols or metrics are over the limit of {limit} ({key})");
            self.state.lose(Reason::TooLarge, (offset, offset), None, &detail, body, out);
        }
    }

    /// Reads one value, or the end of one. Returns whether the packet has more.
    fn value(
        &mut self,
        body: &[u8],
        link: &mut Link,
        session: &Session,
        now: Now,
        out: &mut Output,
    ) -> Result<bool, FressianError> {
        let mut reader = FressianReader::at(body, self.state.at);
        if self.scan.is_some() {
            self.sample(&mut reader, link, out)?;
        } else if !self.levels.is_empty() {
            self.child(&mut reader, link, session, out)?;
        } else if reader.is_at_end() {
            return Ok(false);
        } else {
            self.top(&mut reader, link, session, now, out)?;
        }
        self.state.at = reader.offset();
        Ok(true)
    }

    fn top(
        &mut self,
        reader: &mut FressianReader<'_>,
        link: &mut Link,
        session: &Session,
        now: Now,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        let before = *reader;
        let start = reader.offset();
        let known = &mut self.state.defined;
        let tag = match reader.item(known)? {
            FressianItem::Null | FressianItem::Footer => return Ok(()),
            FressianItem::Reset => {
                known.reset();
                return Ok(());
            }
            FressianItem::Struct(tag, _) => Tag::of(tag),
            FressianItem::End => return Err(FressianError { offset: start, fault: FressianErrorKind::Misplaced }),
            _ => {
                *reader = before;
                reader.skip(MAX_VALUE_DEPTH, known)?;
                out.warn(STRAY_VALUE);
                return Ok(());
            }
        };
        match tag {
            Tag::Symbol => {
                let (id, text) = structs::symbol(reader, known)?;
                if let Err(full) = link.symbols.define_java_string(id, &text) {
                    self.full.get_or_insert((start, full));
                } else if self.emits_definitions {
                    let symbols = &mut Symbols { own: &mut link.symbols, host: None };
                    let text = tributary_codec::mutf8::read(&text).0.into_owned().into_bytes();
                    let definition = Definition::String { id, text: text.into(), kind: None };
                    normalize::definition(&definition, (start, reader.offset()), symbols, &self.state.context, out);
                }
            }
            Tag::Metric => {
                let head = structs::metric(reader, known)?;
                if !link.metrics.define(&head) {
                    let full = Full { limit: self.state.limits.bytes, key: "max_symbol_bytes" };
                    self.full.get_or_insert((start, full));
                }
            }
            Tag::Template => structs::template(reader, known)?,
            Tag::Perf => {
                let (clock, scanner, left) = structs::perf_head(reader, known)?;
                let mut end = before;
                end.skip_any(known, |_| {})?;
                let digest = digest::of_scan(&link.host, reader.whole(), start..end.offset(), known);
                if self.is_repeat(digest, link, session, now) {
                    self.repeat(before, reader, out)?;
                } else {
                    self.scan = Some(Scan { clock, scanner, left });
                }
            }
            Tag::Record => {
                let head = structs::record_head(reader, known)?;
                let symbols = &mut Symbols { own: &mut link.symbols, host: None };
                let digest = digest::of_record(&link.host, &head, reader.whole(), symbols, known);
                if self.is_repeat(digest, link, session, now) {
                    self.repeat(before, reader, out)?;
                } else {
                    self.trace = Some(OpenTrace::new(TraceId(digest), ZicoDialect::Fressian));
                    self.enter(&head, start, 0, reader, link, session, out)?;
                }
            }
            Tag::Hello | Tag::Marker | Tag::Exception | Tag::Frame | Tag::Tagged | Tag::Sample | Tag::Unknown => {
                *reader = before;
                reader.skip(MAX_VALUE_DEPTH, known)?;
                let tag = { before }.item(known)?;
                let tag = if let FressianItem::Struct(tag, _) = tag { tag } else { &[] };
                let tag = String::from_utf8_lossy(&tag[..tag.len().min(80)]).into_owned();
                let detail = format!("a struct {tag} is not known at the top of a packet");
                let range = (start, reader.offset());
                self.state.lose(Reason::Unsupported, range, Some(1), &detail, reader.whole(), out);
            }
        }
        Ok(())
    }

    /// Whether a record or scan at the top was delivered before, by a packet that began as this one does.
    fn is_repeat(&mut self, digest: RecordDigest, link: &Link, session: &Session, now: Now) -> bool {
        let place = self.digests.len();
        self.digests.push(digest);
        // Also of a later packet: it can have been delayed until its records came again on another connection.
        if place == 0 {
            let known = session.resends.beginning_with(digest, link.connection, now.elapsed);
            self.expected = known.map(<[RecordDigest]>::to_vec);
        }
        let is_repeat = self.expected.as_ref().is_some_and(|expected| expected.get(place) == Some(&digest));
        if !is_repeat {
            self.expected = None;
        }
        is_repeat
    }

    /// Passes over a record or scan that was delivered before.
    fn repeat<'a>(
        &mut self,
        before: FressianReader<'a>,
        reader: &mut FressianReader<'a>,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        *reader = before;
        let mut events = 0;
        reader.skip_any(&mut self.state.defined, |item| {
            let is_event = |tag| matches!(Tag::of(tag), Tag::Record | Tag::Sample);
            events += u64::from(matches!(item, FressianItem::Struct(tag, _) if is_event(tag)));
        })?;
        out.repeats[0] += events;
        Ok(())
    }

    /// Opens a record whose head was read; `at`: when it starts.
    #[expect(clippy::too_many_arguments, reason = "two callers, next to it")]
    fn enter(
        &mut self,
        head: &RecordHead,
        start: usize,
        at: u64,
        reader: &mut FressianReader<'_>,
        link: &mut Link,
        session: &Session,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        let Some(trace) = &mut self.trace else { return Ok(()) };
        let method = link.symbols.method_of(head.parts).unwrap_or_else(|full| {
            self.full.get_or_insert((start, full));
            u64::MAX
        });
        let symbols = &mut Symbols { own: &mut link.symbols, host: None };
        let place = FressianPlace { start: at, method, range: (start, reader.offset()) };
        trace.enter(head, &place, reader.whole(), symbols, &session.delivered, &mut self.state, out);
        let mut left = head.children;
        let limit = self.state.limits.bytes;
        let is_too_deep = self.levels.len() + 1 >= self.max_depth;
        if left != Some(0) && (is_too_deep || trace.is_full(limit)) {
            let detail = match is_too_deep {
                true => format!("records nest deeper than {} (max_record_depth)", self.max_depth),
                false => format!("open records take the limit of {limit} bytes (max_open_bytes)"),
            };
            let (from, mut records) = (reader.offset(), 0);
            while structs::next_of(reader, &mut left)? {
                reader.skip_any(&mut self.state.defined, |item| {
                    let is_record = |tag| Tag::of(tag) == Tag::Record;
                    records += u64::from(matches!(item, FressianItem::Struct(tag, _) if is_record(tag)));
                })?;
            }
            let range = (from, reader.offset());
            self.state.lose(Reason::TooLarge, range, Some(records), &detail, reader.whole(), out);
            left = Some(0);
        }
        self.levels.push(Level { left, next: at, nanos: head.nanos });
        Ok(())
    }

    /// Reads a child of the innermost record, or closes the record.
    fn child(
        &mut self,
        reader: &mut FressianReader<'_>,
        link: &mut Link,
        session: &Session,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        if structs::next_of(reader, &mut level.left)? {
            let (start, at) = (reader.offset(), level.next);
            match reader.item(&mut self.state.defined)? {
                FressianItem::Null => return Ok(()),
                FressianItem::Struct(tag, _) if Tag::of(tag) == Tag::Record => {}
                _ => return Err(structs::expected(start, "a record")),
            }
            let head = structs::record_head(reader, &mut self.state.defined)?;
            return self.enter(&head, start, at, reader, link, session, out);
        }
        self.state.at = reader.offset();
        let nanos = level.nanos;
        self.levels.pop();
        if let Some(parent) = self.levels.last_mut() {
            parent.next = parent.next.saturating_add(nanos);
        }
        let symbols = &mut Symbols { own: &mut link.symbols, host: None };
        if let Some(trace) = &mut self.trace {
            trace.leave(reader.whole(), symbols, &mut self.state, out);
        }
        if self.levels.is_empty() {
            self.trace = None;
        }
        Ok(())
    }

    /// Reads a sample of the open scan, or ends the scan.
    fn sample(
        &mut self,
        reader: &mut FressianReader<'_>,
        link: &mut Link,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        if !structs::next_of(reader, &mut scan.left)? {
            self.scan = None;
            return Ok(());
        }
        let (start, clock) = (reader.offset(), (scan.clock, scan.scanner));
        let known = &mut self.state.defined;
        match reader.item(known)? {
            FressianItem::Null => return Ok(()),
            FressianItem::Struct(tag, _) if Tag::of(tag) == Tag::Sample => {}
            _ => return Err(structs::expected(start, "a sample")),
        }
        let sample = structs::sample(reader, known)?;
        let position = self.state.context.position(start, reader.offset());
        let symbols = &mut Symbols { own: &mut link.symbols, host: None };
        let metric = link.metrics.get(sample.metric);
        self.state.buffers.sample(&sample, metric, clock, position, symbols, &self.state.context, out);
        Ok(())
    }
}

/// The loss of what cannot be read.
fn fault_of(error: &FressianError) -> (Reason, String) {
    let reason = match error {
        _ if error.is_cut() => Reason::Truncated,
        _ if error.is_over_limit() => Reason::TooLarge,
        _ => Reason::Malformed,
    };
    (reason, format!("Fressian, {error}"))
}
