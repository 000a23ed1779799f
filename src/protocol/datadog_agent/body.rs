//! A body of traces: first it is checked as a whole, because one bad element refuses all of it; then its chunks and spans are
//! read one by one.

use bytes::Bytes;

use tributary_codec::msgpack::MsgpackValue;
use tributary_codec::reader::DecodeError;

use super::cursor::{Cursor, StringTable};
use super::facts::{BodyFacts, ChunkFacts};
use super::read_spans::ReadSpans;
use super::span::{BodyPart, WireSpan, WireValue};
use super::streaming::StreamingReader;
use super::text_cache::TextCache;
use super::{maps, table};

/// The layout of a body of traces (notes, section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// A list of spans: `/spans` and `/v0.1/spans`.
    Spans,
    /// A list of chunks of spans: versions 0.2, 0.3 and 0.4.
    Chunks,
    /// Version 0.5.
    Table,
    /// Version 0.7.
    WithPayload,
    /// Version 1.0.
    Streaming,
}

/// What a payload says of all its spans. Parts that are absent are empty.
#[derive(Debug, Default)]
pub(super) struct TracePayload {
    pub(super) container_id: BodyPart,
    pub(super) language: BodyPart,
    pub(super) language_version: BodyPart,
    pub(super) tracer_version: BodyPart,
    pub(super) runtime_id: BodyPart,
    pub(super) env: BodyPart,
    pub(super) hostname: BodyPart,
    pub(super) app_version: BodyPart,
    /// Where its attributes begin.
    pub(super) attributes: Option<usize>,
    pub(super) chunks: u32,
    pub(super) chunks_at: usize,
}

/// The spans of one trace that were sent together, and what is said of all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    pub(super) priority: Option<i64>,
    pub(super) origin: BodyPart,
    pub(super) is_dropped: bool,
    /// The whole id of the trace, of version 1.0.
    pub(super) trace_id: Option<u128>,
    pub(super) mechanism: Option<u64>,
    /// Where its attributes begin.
    pub(super) attributes: Option<usize>,
    pub(super) spans: u32,
    pub(super) spans_at: usize,
    /// Where it begins, where its spans may stand before the rest of it.
    pub(super) start: usize,
    /// Where it ends; 0: behind its spans.
    pub(super) end: usize,
}

/// The most chunks of a body that are kept from the check; further ones are read again.
const MAX_KEPT_CHUNKS: usize = 1024;

/// A body that is whole and valid.
#[derive(Debug)]
pub(super) struct TraceBody {
    pub(super) bytes: Bytes,
    pub(super) layout: Layout,
    pub(super) payload: TracePayload,
    pub(super) facts: BodyFacts,
    /// The number of its spans.
    pub(super) spans: u64,
    strings: StringTable,
    /// The first chunks of a version whose chunks are maps: what they say of their spans may stand behind the spans.
    chunks: Vec<Chunk>,
    read_spans: ReadSpans,
    max_entries: usize,
    /// Texts of the table that spans have named.
    pub(super) texts: TextCache,
}

/// What limits a body.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    pub(super) max_strings: usize,
    pub(super) max_entries: usize,
}

impl TraceBody {
    /// Checks a body.
    ///
    /// # Errors
    /// What is wrong where. Nothing of the body may be used then.
    pub(super) fn check(bytes: Bytes, layout: Layout, limits: BodyLimits) -> Result<TraceBody, DecodeError> {
        let mut body = TraceBody {
            layout,
            payload: TracePayload::default(),
            facts: BodyFacts::default(),
            spans: 0,
            strings: StringTable::new(limits.max_strings),
            chunks: Vec::new(),
            read_spans: ReadSpans::of_body(bytes.len()),
            max_entries: limits.max_entries,
            texts: match layout {
                Layout::Table | Layout::Streaming => TextCache::with_table(),
                Layout::Spans | Layout::Chunks | Layout::WithPayload => TextCache::default(),
            },
            bytes: bytes.clone(),
        };
        let mut cursor = Cursor::at(&bytes, 0);
        body.walk(&mut cursor)?;
        cursor.finish()?;
        body.strings.is_complete = true;
        Ok(body)
    }

    fn walk(&mut self, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        let (mut span, limit) = (WireSpan::default(), self.max_entries);
        let TraceBody { strings, facts, payload, spans, chunks, read_spans, .. } = self;
        let mut keep = |chunk: Chunk| {
            *spans += u64::from(chunk.spans);
            if chunks.len() < MAX_KEPT_CHUNKS {
                chunks.push(chunk);
            }
        };
        let mut note = |span: &WireSpan, start: usize, cursor: &Cursor<'_>, chunk: &mut ChunkFacts| {
            facts.add(span, cursor.body, chunk);
            read_spans.keep(start, cursor.offset(), span);
        };
        match self.layout {
            Layout::Spans => {
                payload.chunks = 1;
                payload.chunks_at = cursor.offset();
                let mut chunk = ChunkFacts::default();
                for _ in 0..top_array(cursor)? {
                    let start = cursor.offset();
                    maps::read_span(cursor, limit, &mut span)?;
                    *spans += 1;
                    note(&span, start, cursor, &mut chunk);
                }
            }
            Layout::Chunks | Layout::Table => {
                if self.layout == Layout::Table {
                    table::read_strings(cursor, strings)?;
                }
                payload.chunks = top_array(cursor)?;
                payload.chunks_at = cursor.offset();
                for _ in 0..payload.chunks {
                    let mut chunk = ChunkFacts::default();
                    let count = cursor.array("chunk")?;
                    for _ in 0..count {
                        let start = cursor.offset();
                        match self.layout {
                            Layout::Table => table::read_span(cursor, strings, limit, &mut span)?,
                            _ => maps::read_span(cursor, limit, &mut span)?,
                        }
                        note(&span, start, cursor, &mut chunk);
                    }
                    *spans += u64::from(count);
                }
            }
            Layout::WithPayload => {
                *payload = maps::read_payload(cursor, |cursor| {
                    let mut chunk = ChunkFacts::default();
                    let read = maps::read_chunk(cursor, |cursor| {
                        let start = cursor.offset();
                        maps::read_span(cursor, limit, &mut span)?;
                        note(&span, start, cursor, &mut chunk);
                        Ok(())
                    })?;
                    keep(read);
                    Ok(())
                })?;
            }
            Layout::Streaming => {
                // Number 0 is the empty string.
                strings.push(BodyPart::default(), 0)?;
                let mut reader = StreamingReader { cursor: Cursor::at(cursor.body, 0), strings, limit };
                *payload = reader.payload(|reader| {
                    let mut chunk = ChunkFacts::default();
                    let read = reader.chunk(|reader| {
                        let start = reader.cursor.offset();
                        reader.span(&mut span)?;
                        note(&span, start, &reader.cursor, &mut chunk);
                        Ok(())
                    })?;
                    keep(read);
                    Ok(())
                })?;
                *cursor = reader.cursor;
            }
        }
        Ok(())
    }

    /// Reads the chunk at an offset. It was checked, so an error is one of this program.
    pub(super) fn chunk(&mut self, offset: usize) -> Result<Chunk, DecodeError> {
        if let Ok(place) = self.chunks.binary_search_by_key(&offset, |chunk| chunk.start) {
            return Ok(self.chunks[place]);
        }
        let bytes = self.bytes.clone();
        let mut cursor = Cursor::at(&bytes, offset);
        match self.layout {
            Layout::Spans => {
                let spans = top_array(&mut cursor)?;
                Ok(Chunk { spans, spans_at: cursor.offset(), ..Chunk::default() })
            }
            Layout::Chunks | Layout::Table => {
                let spans = cursor.array("chunk")?;
                Ok(Chunk { spans, spans_at: cursor.offset(), ..Chunk::default() })
            }
            Layout::WithPayload => maps::read_chunk(&mut cursor, |cursor| cursor.skip("span")),
            Layout::Streaming => self.streaming(&bytes, offset).chunk(|reader| reader.cursor.skip("span")),
        }
    }

    /// The span at an offset, of spans in the order of the body; returns where it ends.
    pub(super) fn span(&mut self, offset: usize, span: &mut WireSpan) -> Result<usize, DecodeError> {
        match self.read_spans.take(offset, span) {
            Some(end) => Ok(end),
            None => self.read_span(offset, span),
        }
    }

    /// Reads the span at an offset; returns where it ends.
    fn read_span(&mut self, offset: usize, span: &mut WireSpan) -> Result<usize, DecodeError> {
        let bytes = self.bytes.clone();
        let mut cursor = Cursor::at(&bytes, offset);
        match self.layout {
            Layout::Spans | Layout::Chunks | Layout::WithPayload => {
                maps::read_span(&mut cursor, self.max_entries, span)?;
            }
            Layout::Table => table::read_span(&mut cursor, &self.strings, self.max_entries, span)?,
            Layout::Streaming => {
                let mut reader = self.streaming(&bytes, offset);
                reader.span(span)?;
                cursor = reader.cursor;
            }
        }
        Ok(cursor.offset())
    }

    /// What the spans of a chunk say of all of them.
    pub(super) fn chunk_facts(&mut self, chunk: &Chunk) -> Result<ChunkFacts, DecodeError> {
        let (mut span, mut facts, mut all) = (WireSpan::default(), ChunkFacts::default(), BodyFacts::default());
        let mut offset = chunk.spans_at;
        for _ in 0..chunk.spans {
            offset = self.read_span(offset, &mut span)?;
            all.add(&span, &self.bytes, &mut facts);
        }
        Ok(facts)
    }

    /// The keys and values of the attributes that begin at an offset.
    pub(super) fn members(&mut self, start: usize) -> Result<Vec<(BodyPart, WireValue)>, DecodeError> {
        let (bytes, limit, mut all) = (self.bytes.clone(), self.max_entries, Vec::new());
        let each = |key, value| {
            if all.len() < limit {
                all.push((key, value));
            }
        };
        match self.layout {
            Layout::Streaming => self.streaming(&bytes, start).attributes("attributes", each)?,
            _ => maps::members(&bytes, start, each)?,
        }
        Ok(all)
    }

    /// The values of the array that begins at an offset.
    pub(super) fn items(&mut self, start: usize) -> Result<Vec<WireValue>, DecodeError> {
        let (bytes, limit, mut all) = (self.bytes.clone(), self.max_entries, Vec::new());
        match self.layout {
            Layout::Streaming => {
                let mut reader = self.streaming(&bytes, start);
                for _ in 0..reader.cursor.array("array")? / 2 {
                    all.push(reader.value("array", 0)?);
                    if all.len() == limit {
                        break;
                    }
                }
            }
            _ => {
                let mut cursor = Cursor::at(&bytes, start);
                for _ in 0..(cursor.array("array")? as usize).min(limit) {
                    all.push(maps::value(&mut cursor)?);
                }
            }
        }
        Ok(all)
    }

    fn streaming<'a>(&mut self, bytes: &'a [u8], offset: usize) -> StreamingReader<'a, '_> {
        StreamingReader { cursor: Cursor::at(bytes, offset), strings: &mut self.strings, limit: self.max_entries }
    }
}

/// The outermost array. An old client sends nil where it has nothing.
fn top_array(cursor: &mut Cursor<'_>) -> Result<u32, DecodeError> {
    let at = cursor.offset();
    match cursor.next("traces")? {
        MsgpackValue::Array(count) => Ok(count),
        MsgpackValue::Nil => Ok(0),
        _ => Err(cursor.wrong("traces", at, "an array")),
    }
}
