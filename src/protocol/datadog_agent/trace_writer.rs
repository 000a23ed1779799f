//! Writes the spans of a body that was checked, in bounded steps.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::reader::DecodeError;
use tributary_codec::text::escape;
use tributary_event::{Header, Key, Position, Value};
use tributary_protocol::{Flow, Now, Output};

use super::body::{Chunk, Layout, TraceBody};
use super::facts::{ChunkFacts, SpanTags, upper_half};
use super::keys::Keys;
use super::normalize::{self, SpanContext};
use super::resources::{Resources, SenderHeaders, SpanSource};
use super::shared::SharedExchange;
use super::span::{BodyPart, UnknownKey, WireSpan, WireValue};

/// The spans of a body that are written.
#[derive(Debug)]
pub(super) struct TraceWriter {
    body: TraceBody,
    headers: SenderHeaders,
    resources: Resources,
    keys: Keys,
    span: WireSpan,
    /// The attributes of the span.
    attributes: Vec<(Key, Value)>,
    /// Attributes of the payload.
    of_payload: Vec<(BodyPart, WireValue)>,
    chunks_left: u32,
    /// Where the next chunk or span begins.
    offset: usize,
    chunk: Option<OpenChunk>,
    number: u64,
}

/// A chunk whose spans are being written.
#[derive(Debug)]
struct OpenChunk {
    chunk: Chunk,
    facts: ChunkFacts,
    spans_left: u32,
    inherited: Vec<(BodyPart, WireValue)>,
    /// The id of the trace of its first span, as it is sent and whole.
    first_trace_id: u64,
    first_whole_id: u128,
}

impl TraceWriter {
    /// Of a body that was checked.
    pub(super) fn new(mut body: TraceBody, headers: SenderHeaders, shared: &SharedExchange) -> TraceWriter {
        let of_payload = body.payload.attributes.map(|start| body.members(start).unwrap_or_default());
        let of_payload = last_of_each(of_payload.iter().flatten(), &body.bytes);
        TraceWriter {
            headers,
            resources: Resources::new(&shared.resources),
            keys: shared.keys(),
            span: WireSpan::default(),
            attributes: Vec::new(),
            of_payload,
            chunks_left: body.payload.chunks,
            offset: body.payload.chunks_at,
            chunk: None,
            number: 0,
            body,
        }
    }

    /// Writes spans until the batch is full. [`Flow::Continue`]: all are written.
    ///
    /// # Errors
    /// None: the body was checked.
    pub(super) fn step(&mut self, shared: &SharedExchange, now: Now, out: &mut Output) -> Result<Flow, DecodeError> {
        while !out.batch.is_full() {
            if !self.next(shared, now, out)? {
                shared.keep_keys(std::mem::take(&mut self.keys));
                return Ok(Flow::Continue);
            }
        }
        Ok(Flow::Again)
    }

    /// Writes the next span, or opens the next chunk. `false`: there is none.
    fn next(&mut self, shared: &SharedExchange, now: Now, out: &mut Output) -> Result<bool, DecodeError> {
        match &mut self.chunk {
            Some(open) if open.spans_left > 0 => {
                open.spans_left -= 1;
                self.span(shared, now, out)?;
                Ok(true)
            }
            Some(open) => {
                if open.chunk.end > 0 {
                    self.offset = open.chunk.end;
                }
                self.chunk = None;
                Ok(true)
            }
            None if self.chunks_left == 0 => Ok(false),
            None => {
                self.chunks_left -= 1;
                self.open_chunk()?;
                Ok(true)
            }
        }
    }

    fn open_chunk(&mut self) -> Result<(), DecodeError> {
        let chunk = self.body.chunk(self.offset)?;
        self.offset = chunk.spans_at;
        let facts = if chunk.spans == 0 {
            ChunkFacts::default()
        } else if self.body.facts.has_late_trace_ids || self.body.facts.has_several_processes {
            self.body.chunk_facts(&chunk)?
        } else {
            // What it says it says on its first span.
            ChunkFacts::default()
        };
        let inherited = if chunk.spans == 0 { Vec::new() } else { self.inherited(&chunk)? };
        let spans_left = chunk.spans;
        self.chunk = Some(OpenChunk { chunk, facts, spans_left, inherited, first_trace_id: 0, first_whole_id: 0 });
        Ok(())
    }

    /// The attributes of the payload and of a chunk; of the same key that of the chunk counts.
    fn inherited(&mut self, chunk: &Chunk) -> Result<Vec<(BodyPart, WireValue)>, DecodeError> {
        let Some(start) = chunk.attributes else { return Ok(self.of_payload.clone()) };
        let own = self.body.members(start)?;
        Ok(last_of_each(self.of_payload.iter().chain(&own), &self.body.bytes))
    }

    fn span(&mut self, shared: &SharedExchange, now: Now, out: &mut Output) -> Result<(), DecodeError> {
        let (start, is_list) = (self.offset, self.body.layout == Layout::Spans);
        self.offset = self.body.span(start, &mut self.span)?;
        let (Some(open), span) = (&mut self.chunk, &self.span) else { return Ok(()) };
        let bytes = self.body.bytes.clone();
        let tags = SpanTags::of(span, &bytes);
        let own_half = tags.trace_id_high.and_then(|text| upper_half(text.of(&bytes)));
        let is_first = open.chunk.spans - open.spans_left == 1;
        if is_first {
            open.first_trace_id = span.trace_id;
            open.facts.trace_id_high = open.facts.trace_id_high.or(own_half);
        }
        let trace_id = match open.chunk.trace_id {
            Some(whole) => whole,
            None if is_first || is_list || span.trace_id != open.first_trace_id => {
                let of_chunk = open.facts.trace_id_high.filter(|_| is_first && !is_list);
                shared.trace_ids.whole(span.trace_id, own_half.or(of_chunk))
            }
            None => open.first_whole_id,
        };
        if is_first {
            open.first_whole_id = trace_id;
        }
        let process = match self.body.facts.has_several_processes {
            true => &open.facts.process,
            false => &self.body.facts.process,
        };
        let source = SpanSource::of(span, &tags, &self.body.payload);
        let payload = &self.body.payload;
        let resource = self.resources.get(source, process, payload, &self.headers, &bytes, &mut out.batch);
        let limit = shared.max_text_bytes();
        let length = (self.offset - start) as u64;
        self.number += 1;
        let header = Header {
            name: normalize::name(span, &bytes, &self.keys, limit, &mut out.batch),
            time: normalize::start(span),
            observed: now.unix,
            position: Position { sequence: Some(self.number), offset: start as u64, length },
        };
        let context = SpanContext {
            chunk: &open.chunk,
            trace_id,
            inherited: &open.inherited,
            resource,
            max_text_bytes: limit,
            has_invalid_half: tags.trace_id_high.is_some() && own_half.is_none(),
            first_trace_id: if is_list { span.trace_id } else { open.first_trace_id },
        };
        if span.unknown_keys > 0 {
            out.warn("unknown_span_key");
            let key: String = match span.unknown_key {
                Some(UnknownKey::Text(key)) => escape(key.of(&bytes)).chars().take(100).collect(),
                Some(UnknownKey::Number(number)) => number.to_string(),
                None => String::new(),
            };
            if shared.unknown_keys.is_new(|| key.clone()) {
                out.log(format!(
                    "spans have the key {key:?}, which this version does not know; its values are skipped"
                ));
            }
        }
        normalize::write(span, header, &context, &mut self.body, &mut self.keys, &mut self.attributes, out);
        Ok(())
    }
}

/// Each key once, with its last value.
fn last_of_each<'a>(all: impl Iterator<Item = &'a (BodyPart, WireValue)>, body: &[u8]) -> Vec<(BodyPart, WireValue)> {
    let mut places: HashMap<&[u8], usize, RandomState> = HashMap::default();
    let mut kept: Vec<(BodyPart, WireValue)> = Vec::new();
    for (key, value) in all {
        let place = *places.entry(key.of(body)).or_insert(kept.len());
        match kept.get_mut(place) {
            Some(known) => *known = (*key, *value),
            None => kept.push((*key, *value)),
        }
    }
    kept
}
