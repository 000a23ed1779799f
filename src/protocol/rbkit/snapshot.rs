//! An allocation snapshot: the sites in the program that have allocated since the last one, and their stacks.
//!
//! Stacks and the sites that refer to them come in any order, so the event is read as a whole. Its samples are written
//! batch by batch.

use std::ops::Range;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::msgpack::{MsgpackValue as Wire, Reader};
use tributary_codec::reader::DecodeError;
use tributary_event::{Frame, Reason};
use tributary_protocol::Output;

use super::normalize::{self, Site, StreamPosition};
use super::texts::TextCache;
use super::wire::{KEY_ALLOCATIONS, KEY_COUNT, KEY_STACKTRACE, StackFrame, wrong};

/// Memory of the cache of decoded stacks. If it is full, all are dropped and decoded again when needed. Many samples have
/// the same stack, and a stack may be long without having many frames.
const MAX_CACHED_BYTES: usize = 4 << 20;

/// Stacks of a snapshot that are indexed by their ids; agents have some hundred. Samples of further stacks have no frames.
const MAX_STACKS: usize = 1 << 16;
/// The same while the memory budget is exhausted.
const MAX_STACKS_WHEN_SHORT: usize = 1 << 10;

/// A snapshot whose samples are being written. All offsets are relative to its event.
#[derive(Debug)]
pub(super) struct Snapshot {
    time: Option<f64>,
    /// Bytes of it that were reported as lost.
    pub(super) lost: u64,
    /// The offset of the frames of each stack, by the id of the stack.
    stacks: HashMap<u64, usize, RandomState>,
    max_stacks: usize,
    /// Decoded stacks by their offset; and their memory.
    cached: HashMap<usize, Stack, RandomState>,
    cached_bytes: usize,
    /// The offset of the next file or site.
    at: usize,
    files_left: u32,
    sites_left: u32,
    stacks_left: u32,
    /// The offset of the next stack of the current site.
    stacks_at: usize,
    file: Option<Range<usize>>,
    signature: Range<usize>,
    /// Objects of the current site that belong to none of the stacks so far.
    count: u64,
}

/// A decoded stack, innermost frame first.
#[derive(Debug, Default)]
struct Stack {
    frames: Vec<OwnedFrame>,
    is_cut: bool,
}

#[derive(Debug)]
struct OwnedFrame {
    function: Option<Box<[u8]>>,
    file: Option<Box<[u8]>>,
    line: Option<u64>,
}

impl Snapshot {
    /// Whether a payload has the keys of a snapshot.
    pub(super) fn is_one(mut payload: Reader<'_>) -> Result<bool, DecodeError> {
        let Wire::Map(pairs) = payload.next("payload")? else { return Ok(false) };
        for _ in 0..pairs {
            if matches!(part(&mut payload)?, SnapshotKey::Stacks | SnapshotKey::Allocations) {
                return Ok(true);
            }
            payload.skip("payload value")?;
        }
        Ok(false)
    }

    /// Indexes a payload. All of it must be here.
    pub(super) fn read(
        mut payload: Reader<'_>,
        time: Option<f64>,
        is_short_of_memory: bool,
    ) -> Result<Snapshot, DecodeError> {
        let (start, whole) = (payload.offset(), payload);
        let Wire::Map(pairs) = payload.next("payload")? else {
            return Err(DecodeError { offset: start, ..wrong("payload", whole.rest(), 0, "a map") });
        };
        let mut snapshot = Snapshot {
            time,
            lost: 0,
            stacks: HashMap::default(),
            max_stacks: if is_short_of_memory { MAX_STACKS_WHEN_SHORT } else { MAX_STACKS },
            cached: HashMap::default(),
            cached_bytes: 0,
            at: start,
            files_left: 0,
            sites_left: 0,
            stacks_left: 0,
            stacks_at: 0,
            file: None,
            signature: 0..0,
            count: 0,
        };
        for _ in 0..pairs {
            match part(&mut payload)? {
                SnapshotKey::Stacks => snapshot.read_stacks(payload)?,
                SnapshotKey::Allocations => {
                    let mut files = payload;
                    if let Wire::Map(count) = files.next("allocations")? {
                        (snapshot.files_left, snapshot.at) = (count, files.offset());
                    }
                }
                SnapshotKey::Count | SnapshotKey::Other => {}
            }
            payload.skip("payload value")?;
        }
        Ok(snapshot)
    }

    /// Its memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.cached_bytes + self.stacks.capacity() * (size_of::<(u64, usize)>() + 1)
    }

    /// Frees the decoded stacks, which can be decoded again.
    pub(super) fn free_caches(&mut self) {
        (self.cached, self.cached_bytes) = (HashMap::default(), 0);
    }

    fn read_stacks(&mut self, mut stacks: Reader<'_>) -> Result<(), DecodeError> {
        let Wire::Map(count) = stacks.next("stacktraces")? else { return Ok(()) };
        for _ in 0..count {
            let mut key = stacks;
            stacks.skip("stacktrace id")?;
            if let Wire::Unsigned(id) = key.next("stacktrace id")?
                && self.stacks.len() < self.max_stacks
            {
                self.stacks.insert(id, stacks.offset());
            }
            stacks.skip("stacktrace")?;
        }
        Ok(())
    }

    /// Writes samples until the batch is full; `true`: all are written. `event` is the whole event. Of a stack, the innermost
    /// `max_frames` frames are written.
    pub(super) fn write_samples(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut TextCache,
        out: &mut Output,
        place: StreamPosition,
    ) -> Result<bool, DecodeError> {
        while !out.batch.is_full() {
            if self.stacks_left > 0 {
                self.next_stack(event, max_frames, texts, out, place)?;
            } else if self.sites_left > 0 {
                self.next_site(event, max_frames, texts, out, place)?;
            } else if self.files_left > 0 {
                self.next_file(event)?;
            } else {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_file(&mut self, event: &[u8]) -> Result<(), DecodeError> {
        let mut reader = at(event, self.at);
        self.files_left -= 1;
        self.file = text(&mut reader, self.at)?;
        let mut sites = reader;
        reader.skip("sites")?;
        let end = self.at + reader.offset();
        match sites.next("sites")? {
            Wire::Map(count @ 1..) => {
                self.sites_left = count;
                self.at += sites.offset();
            }
            _ => self.at = end,
        }
        Ok(())
    }

    /// Reads a site. If it has no list of stacks it is written, otherwise its stacks are next.
    fn next_site(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut TextCache,
        out: &mut Output,
        place: StreamPosition,
    ) -> Result<(), DecodeError> {
        let start = self.at;
        let mut reader = at(event, start);
        self.sites_left -= 1;
        let signature = text(&mut reader, start)?;
        let mut values = reader;
        reader.skip("site")?;
        self.at += reader.offset();
        let (Some(signature), Wire::Map(pairs)) = (signature, values.next("site")?) else {
            let detail = "a site of an allocation snapshot is not a text with a map";
            normalize::lost(out, Reason::Malformed, &event[start..self.at], Some(1), detail, place);
            return Ok(());
        };
        (self.signature, self.count) = (signature, 0);
        let mut stack = None;
        for _ in 0..pairs {
            let part = part(&mut values)?;
            let mut value = values;
            values.skip("site value")?;
            match (part, value.next("site value")?) {
                (SnapshotKey::Count, Wire::Unsigned(count)) => self.count = count,
                // The specification has one id here, agents send a map from ids to counts.
                (SnapshotKey::Stacks, Wire::Unsigned(id)) => stack = Some(id),
                (SnapshotKey::Stacks, Wire::Map(count)) => {
                    (self.stacks_left, self.stacks_at) = (count, start + value.offset());
                }
                _ => {}
            }
        }
        if self.stacks_left == 0 {
            self.write(event, (stack, self.count), max_frames, texts, out, place);
        }
        Ok(())
    }

    /// Reads and writes a stack of a site; after the last one, the objects that belong to no stack.
    fn next_stack(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut TextCache,
        out: &mut Output,
        place: StreamPosition,
    ) -> Result<(), DecodeError> {
        let mut reader = at(event, self.stacks_at);
        self.stacks_left -= 1;
        let (mut id, mut count) = (reader, reader);
        reader.skip("stacktrace id")?;
        count.skip("stacktrace id")?;
        reader.skip("count")?;
        self.stacks_at += reader.offset();
        if let (Wire::Unsigned(id), Wire::Unsigned(count)) = (id.next("stacktrace id")?, count.next("count")?) {
            self.write(event, (Some(id), count), max_frames, texts, out, place);
            self.count = self.count.saturating_sub(count);
        }
        if self.stacks_left == 0 && self.count > 0 {
            self.write(event, (None, self.count), max_frames, texts, out, place);
        }
        Ok(())
    }

    fn write(
        &mut self,
        event: &[u8],
        (stack, count): (Option<u64>, u64),
        max_frames: usize,
        texts: &mut TextCache,
        out: &mut Output,
        place: StreamPosition,
    ) {
        let (mut frames, mut marks) = (Vec::new(), (false, false));
        if let Some(start) = stack.and_then(|id| self.stacks.get(&id).copied()) {
            self.cache(event, start, max_frames);
            let stack = self.cached.get(&start);
            for OwnedFrame { function, file, line } in stack.into_iter().flat_map(|stack| &stack.frames) {
                let frame = StackFrame {
                    label: function.as_deref(),
                    file: file.as_deref(),
                    line: *line,
                    ..StackFrame::default()
                };
                frames.push(normalize::add_frame(&mut out.batch, &frame, texts, &mut marks.0));
            }
            marks.1 = stack.is_some_and(|stack| stack.is_cut);
        } else {
            marks.1 = stack.is_some() && self.stacks.len() == self.max_stacks;
        }
        let file = self.file.clone().map(|range| &event[range]);
        let site = site(file, &event[self.signature.clone()]);
        normalize::allocation(out, (site, count), texts, &frames, marks, self.time, place);
    }

    /// Decodes the stack at the offset `start`, unless it is cached.
    fn cache(&mut self, event: &[u8], start: usize, max_frames: usize) {
        if self.cached.contains_key(&start) {
            return;
        }
        let mut stack = Stack::default();
        let mut bytes = size_of::<(usize, Stack)>();
        // An invalid stack ends at its first invalid frame.
        let _ = each_frame(at(event, start), max_frames, &mut stack.is_cut, |frame| {
            let (function, file) = (frame.label.or(frame.method), frame.file);
            bytes += size_of::<OwnedFrame>() + function.map_or(0, <[u8]>::len) + file.map_or(0, <[u8]>::len);
            stack.frames.push(OwnedFrame {
                function: function.map(Into::into),
                file: file.map(Into::into),
                line: frame.line,
            });
        });
        self.cached_bytes += bytes;
        if self.cached_bytes > MAX_CACHED_BYTES {
            self.cached.clear();
            self.cached_bytes = bytes;
        }
        self.cached.insert(start, stack);
    }
}

/// Reads frames into the batch, innermost first. Returns the first thread id that a frame has. Sets `is_repaired` if a text
/// was repaired, and `is_cut` if frames were left out.
pub(super) fn read_frames(
    reader: Reader<'_>,
    max_frames: usize,
    (frames, texts): (&mut Vec<Frame>, &mut TextCache),
    (is_repaired, is_cut): &mut (bool, bool),
    out: &mut Output,
) -> Result<Option<u64>, DecodeError> {
    let mut thread = None;
    each_frame(reader, max_frames, is_cut, |frame| {
        thread = thread.or(frame.thread);
        frames.push(normalize::add_frame(&mut out.batch, &frame, texts, is_repaired));
    })?;
    Ok(thread)
}

/// Passes the frames of a stack to `take`, innermost first. Sets `is_cut` if some were left out.
fn each_frame<'a>(
    mut reader: Reader<'a>,
    max_frames: usize,
    is_cut: &mut bool,
    mut take: impl FnMut(StackFrame<'a>),
) -> Result<(), DecodeError> {
    let whole = reader;
    let Wire::Array(count) = reader.next("frames")? else {
        return Err(DecodeError { offset: whole.offset(), ..wrong("frames", whole.rest(), 0, "an array") });
    };
    for number in 0..count as usize {
        if number >= max_frames {
            *is_cut = true;
            break;
        }
        let mut whole = reader;
        match reader.next("frame")? {
            Wire::Map(pairs) => take(StackFrame::read(&mut reader, pairs)?),
            // In the specification, the frames of a snapshot are texts.
            Wire::Text(text) => take(StackFrame { label: Some(text), ..StackFrame::default() }),
            _ => {
                *is_cut = true;
                whole.skip("frame")?;
                reader = whole;
            }
        }
    }
    Ok(())
}

/// A part of a snapshot or of a site. Its key is a number or, in the specification, a name.
enum SnapshotKey {
    Stacks,
    Allocations,
    Count,
    Other,
}

fn part(reader: &mut Reader<'_>) -> Result<SnapshotKey, DecodeError> {
    let mut key = *reader;
    reader.skip("key")?;
    Ok(match key.next("key")? {
        Wire::Unsigned(KEY_STACKTRACE) | Wire::Text(b"stacktrace") => SnapshotKey::Stacks,
        Wire::Unsigned(KEY_ALLOCATIONS) | Wire::Text(b"allocations") => SnapshotKey::Allocations,
        Wire::Unsigned(KEY_COUNT) | Wire::Text(b"count") => SnapshotKey::Count,
        _ => SnapshotKey::Other,
    })
}

/// A reader at an offset of the event. All of the event is here.
fn at(event: &[u8], offset: usize) -> Reader<'_> {
    Reader::new(event.get(offset..).unwrap_or_default(), 0)
}

/// The range of the next text in the event. `reader` began at the offset `start`. None: it is not a text.
fn text(reader: &mut Reader<'_>, start: usize) -> Result<Option<Range<usize>>, DecodeError> {
    let mut value = *reader;
    reader.skip("text")?;
    let end = start + reader.offset();
    Ok(match value.next("text")? {
        Wire::Text(text) => Some(end - text.len()..end),
        _ => None,
    })
}

/// Parses the signature of a site: "LINE TYPE SIZE", where TYPE may contain spaces (rule 19). In any other form, all of it is
/// the type.
fn site<'a>(file: Option<&'a [u8]>, signature: &'a [u8]) -> Site<'a> {
    let first = signature.iter().position(|byte| *byte == b' ');
    let last = signature.iter().rposition(|byte| *byte == b' ');
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
    if let (Some(first), Some(last)) = (first, last)
        && first < last
        && let (Some(line), Some(size)) = (number(&signature[..first]), number(&signature[last + 1..]))
    {
        return Site { file, line: Some(line), class: &signature[first + 1..last], size: Some(size) };
    }
    Site { file, line: None, class: signature, size: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_split_at_its_first_and_last_space() {
        let read = |text: &'static str| {
            let site = site(None, text.as_bytes());
            (site.line, str::from_utf8(site.class).unwrap(), site.size)
        };
        assert_eq!(read("13 String 40"), (Some(13), "String", Some(40)));
        assert_eq!(read("7 (null) 0"), (Some(7), "(null)", Some(0)));
        assert_eq!(read("7 A B C 8"), (Some(7), "A B C", Some(8)));
        assert_eq!(read("7 8"), (None, "7 8", None));
        assert_eq!(read("x String 40"), (None, "x String 40", None));
        assert_eq!(read(""), (None, "", None));
    }
}
