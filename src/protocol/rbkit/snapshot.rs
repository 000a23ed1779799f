//! An allocation snapshot: the places in the program that allocated since the last one, and through which stacks.
//!
//! Stacks stand beside the sites that refer to them, in any order, so the event is read as a whole; what becomes of it is
//! written batch by batch.

use std::ops::Range;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::codec::msgpack::{Reader, Value as Wire};
use crate::codec::reader::DecodeError;
use crate::event::{Frame, Reason};
use crate::protocol::Output;

use super::normalize::{self, Place, Site};
use super::texts::Texts;
use super::wire::{KEY_ALLOCATIONS, KEY_COUNT, KEY_STACKTRACE, StackFrame, wrong};

/// Stacks that are kept as read take so many bytes at most; then they are read again when they are needed. Many samples
/// have the same stack, and one may be long without showing anything.
const MAX_KEPT_BYTES: usize = 4 << 20;

/// Stacks of a snapshot that are found again by their ids; agents have some hundred. The samples of further ones go
/// without.
const MAX_STACKS: usize = 1 << 16;
/// The same while memory is short.
const FEW_STACKS: usize = 1 << 10;

/// A snapshot being worked off. All offsets are those of its event.
#[derive(Debug)]
pub(super) struct Snapshot {
    time: Option<f64>,
    /// Bytes of it that were told lost.
    pub(super) lost: u64,
    /// Where the frames of each stack are.
    stacks: HashMap<u64, usize, RandomState>,
    max_stacks: usize,
    /// Stacks as read, by where they are; and the memory that they take.
    kept: HashMap<usize, Kept, RandomState>,
    kept_bytes: usize,
    /// Where to go on.
    at: usize,
    files_left: u32,
    sites_left: u32,
    stacks_left: u32,
    /// Where to go on in the stacks of a site.
    stacks_at: usize,
    file: Option<Range<usize>>,
    signature: Range<usize>,
    /// Objects of the site that no stack has accounted for yet.
    count: u64,
}

/// The frames of a stack, innermost first.
#[derive(Debug, Default)]
struct Kept {
    frames: Vec<KeptFrame>,
    is_cut: bool,
}

#[derive(Debug)]
struct KeptFrame {
    function: Option<Box<[u8]>>,
    file: Option<Box<[u8]>>,
    line: Option<u64>,
}

impl Snapshot {
    /// Whether a payload has the keys of a snapshot.
    pub(super) fn is_one(mut payload: Reader<'_>) -> Result<bool, DecodeError> {
        let Wire::Map(pairs) = payload.next("payload")? else { return Ok(false) };
        for _ in 0..pairs {
            if matches!(part(&mut payload)?, Part::Stacks | Part::Allocations) {
                return Ok(true);
            }
            payload.skip("payload value")?;
        }
        Ok(false)
    }

    /// Finds the parts of a payload, which is here as a whole.
    pub(super) fn read(
        mut payload: Reader<'_>,
        time: Option<f64>,
        is_short_of_memory: bool,
    ) -> Result<Snapshot, DecodeError> {
        let start = payload.offset();
        let Wire::Map(pairs) = payload.next("payload")? else {
            return Err(wrong("payload", start, "a map"));
        };
        let mut snapshot = Snapshot {
            time,
            lost: 0,
            stacks: HashMap::default(),
            max_stacks: if is_short_of_memory { FEW_STACKS } else { MAX_STACKS },
            kept: HashMap::default(),
            kept_bytes: 0,
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
                Part::Stacks => snapshot.read_stacks(payload)?,
                Part::Allocations => {
                    let mut files = payload;
                    if let Wire::Map(count) = files.next("allocations")? {
                        (snapshot.files_left, snapshot.at) = (count, files.offset());
                    }
                }
                Part::Count | Part::Other => {}
            }
            payload.skip("payload value")?;
        }
        Ok(snapshot)
    }

    /// Memory that it takes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.kept_bytes + self.stacks.capacity() * (size_of::<(u64, usize)>() + 1)
    }

    /// Lets go of what can be read again.
    pub(super) fn let_go(&mut self) {
        (self.kept, self.kept_bytes) = (HashMap::default(), 0);
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

    /// Writes samples until the batch is full; `true`: all are written. `event` is the whole event; stacks are cut to
    /// `max_frames`, innermost first.
    pub(super) fn proceed(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut Texts,
        out: &mut Output,
        place: Place,
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

    /// A site: written at once, or its list of stacks is gone through next.
    fn next_site(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut Texts,
        out: &mut Output,
        place: Place,
    ) -> Result<(), DecodeError> {
        let start = self.at;
        let mut reader = at(event, start);
        self.sites_left -= 1;
        let signature = text(&mut reader, start)?;
        let mut values = reader;
        reader.skip("site")?;
        self.at += reader.offset();
        let (Some(signature), Wire::Map(pairs)) = (signature, values.next("site")?) else {
            let detail = "a site of an allocation snapshot is not a text to a map";
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
                (Part::Count, Wire::Unsigned(count)) => self.count = count,
                // The document has one id here, agents a map from ids to counts.
                (Part::Stacks, Wire::Unsigned(id)) => stack = Some(id),
                (Part::Stacks, Wire::Map(count)) => {
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

    /// A stack of a site; after the last, what no stack has accounted for.
    fn next_stack(
        &mut self,
        event: &[u8],
        max_frames: usize,
        texts: &mut Texts,
        out: &mut Output,
        place: Place,
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
        texts: &mut Texts,
        out: &mut Output,
        place: Place,
    ) {
        let (mut frames, mut marks) = (Vec::new(), (false, false));
        if let Some(start) = stack.and_then(|id| self.stacks.get(&id).copied()) {
            self.keep(event, start, max_frames);
            let kept = self.kept.get(&start);
            for KeptFrame { function, file, line } in kept.into_iter().flat_map(|kept| &kept.frames) {
                let frame = StackFrame {
                    label: function.as_deref(),
                    file: file.as_deref(),
                    line: *line,
                    ..StackFrame::default()
                };
                frames.push(normalize::add_frame(&mut out.batch, &frame, texts, &mut marks.0));
            }
            marks.1 = kept.is_some_and(|kept| kept.is_cut);
        } else {
            marks.1 = stack.is_some() && self.stacks.len() == self.max_stacks;
        }
        let file = self.file.clone().map(|range| &event[range]);
        let site = site(file, &event[self.signature.clone()]);
        normalize::allocation(out, (site, count), texts, &frames, marks, self.time, place);
    }

    /// Reads the stack that begins at `start`, if it is not kept.
    fn keep(&mut self, event: &[u8], start: usize, max_frames: usize) {
        if self.kept.contains_key(&start) {
            return;
        }
        let mut kept = Kept::default();
        let mut bytes = size_of::<(usize, Kept)>();
        // A stack that cannot be read leaves its sites without one.
        let _ = each_frame(at(event, start), max_frames, &mut kept.is_cut, |frame| {
            let (function, file) = (frame.label.or(frame.method), frame.file);
            bytes += size_of::<KeptFrame>() + function.map_or(0, <[u8]>::len) + file.map_or(0, <[u8]>::len);
            kept.frames.push(KeptFrame {
                function: function.map(Into::into),
                file: file.map(Into::into),
                line: frame.line,
            });
        });
        self.kept_bytes += bytes;
        if self.kept_bytes > MAX_KEPT_BYTES {
            self.kept.clear();
            self.kept_bytes = bytes;
        }
        self.kept.insert(start, kept);
    }
}

/// Reads frames into the batch, innermost first, and answers the thread of the first that names one. `marks`: a text was
/// repaired; frames were left out.
pub(super) fn read_frames(
    reader: Reader<'_>,
    max_frames: usize,
    (frames, texts): (&mut Vec<Frame>, &mut Texts),
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

/// Gives the frames of a stack to `take`, innermost first; `is_cut`: some were left out.
fn each_frame<'a>(
    mut reader: Reader<'a>,
    max_frames: usize,
    is_cut: &mut bool,
    mut take: impl FnMut(StackFrame<'a>),
) -> Result<(), DecodeError> {
    let start = reader.offset();
    let Wire::Array(count) = reader.next("frames")? else { return Err(wrong("frames", start, "an array")) };
    for number in 0..count as usize {
        if number >= max_frames {
            *is_cut = true;
            break;
        }
        let mut whole = reader;
        match reader.next("frame")? {
            Wire::Map(pairs) => take(StackFrame::read(&mut reader, pairs)?),
            // The document's snapshots have texts for frames.
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

/// A part of a snapshot or of a site, by the number of its key or, in documents, its name.
enum Part {
    Stacks,
    Allocations,
    Count,
    Other,
}

fn part(reader: &mut Reader<'_>) -> Result<Part, DecodeError> {
    let mut key = *reader;
    reader.skip("key")?;
    Ok(match key.next("key")? {
        Wire::Unsigned(KEY_STACKTRACE) | Wire::Text(b"stacktrace") => Part::Stacks,
        Wire::Unsigned(KEY_ALLOCATIONS) | Wire::Text(b"allocations") => Part::Allocations,
        Wire::Unsigned(KEY_COUNT) | Wire::Text(b"count") => Part::Count,
        _ => Part::Other,
    })
}

/// The event from an offset on. It was read once to its end, so nothing of it is missing.
fn at(event: &[u8], offset: usize) -> Reader<'_> {
    Reader::new(event.get(offset..).unwrap_or_default(), 0)
}

/// Where the next text stands in the event in which `reader` began at `start`; None: there is none.
fn text(reader: &mut Reader<'_>, start: usize) -> Result<Option<Range<usize>>, DecodeError> {
    let mut value = *reader;
    reader.skip("text")?;
    let end = start + reader.offset();
    Ok(match value.next("text")? {
        Wire::Text(text) => Some(end - text.len()..end),
        _ => None,
    })
}

/// A site by its signature: "LINE TYPE SIZE", where TYPE may hold spaces (rule 19). Of another form, all of it is the type.
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
