//! What one span says of all spans of its chunk or of its body (notes, section 3; contract, "Decided" 3).

use super::span::{BodyPart, Sort, WireSpan, WireValue};
use tributary_event::hex_array;

/// What is known of the process that sent a body.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessFacts {
    /// The service of the span that has the runtime id, else of the first span.
    pub(super) service: BodyPart,
    pub(super) runtime_id: BodyPart,
    pub(super) hostname: BodyPart,
    pub(super) language: BodyPart,
    pub(super) tags: BodyPart,
    /// Its id, a number or a text.
    pub(super) pid: Option<WireValue>,
}

/// What a body says of its process.
#[derive(Debug, Default)]
pub(super) struct BodyFacts {
    pub(super) process: ProcessFacts,
    /// Spans name different processes: each chunk has facts of its own.
    pub(super) has_several_processes: bool,
    /// A chunk has the upper half of its trace's id on another span than its first.
    pub(super) has_late_trace_ids: bool,
}

/// What a chunk says of its spans.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChunkFacts {
    pub(super) process: ProcessFacts,
    /// The upper half of the trace's id, once it is known.
    pub(super) trace_id_high: Option<u64>,
    /// Its spans that were seen.
    spans: u64,
}

/// The tags of a span that say where it is from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpanTags {
    pub(super) env: BodyPart,
    pub(super) version: BodyPart,
    /// `_dd.p.tid`.
    pub(super) trace_id_high: Option<BodyPart>,
}

impl SpanTags {
    /// Of a span; the last of a repeated key counts.
    pub(super) fn of(span: &WireSpan, body: &[u8]) -> SpanTags {
        let mut tags = SpanTags::default();
        for entry in &span.entries {
            let (WireValue::Text(text), Sort::Meta) = (entry.value, entry.sort) else { continue };
            match entry.key.of(body) {
                b"env" => tags.env = text,
                b"version" => tags.version = text,
                b"_dd.p.tid" => tags.trace_id_high = Some(text),
                _ => {}
            }
        }
        tags
    }
}

impl BodyFacts {
    /// Adds what a span of a chunk says.
    pub(super) fn add(&mut self, span: &WireSpan, body: &[u8], chunk: &mut ChunkFacts) {
        chunk.spans += 1;
        self.set(chunk, |process| &mut process.service, span.service);
        for entry in &span.entries {
            let key = entry.key.of(body);
            match (key.first(), entry.sort) {
                (Some(b'_'), Sort::Meta) => {}
                (Some(b'r' | b'l'), Sort::Meta) | (Some(b'p'), _) => {}
                _ => continue,
            }
            match (key, entry.value) {
                (b"_dd.p.tid", WireValue::Text(text)) => {
                    let high = upper_half(text.of(body));
                    if high.is_some() && chunk.trace_id_high.is_none() {
                        self.has_late_trace_ids |= chunk.spans > 1;
                        chunk.trace_id_high = high;
                    }
                }
                (b"runtime-id", WireValue::Text(text)) => {
                    let known = self.process.runtime_id;
                    self.has_several_processes |= !known.is_empty() && known.of(body) != text.of(body);
                    for process in [&mut self.process, &mut chunk.process] {
                        if process.runtime_id.is_empty() {
                            process.service = span.service;
                        }
                    }
                    self.set(chunk, |process| &mut process.runtime_id, text);
                }
                (b"_dd.hostname", WireValue::Text(text)) => self.set(chunk, |process| &mut process.hostname, text),
                (b"_dd.tags.process", WireValue::Text(text)) => self.set(chunk, |process| &mut process.tags, text),
                (b"language", WireValue::Text(text)) => self.set(chunk, |process| &mut process.language, text),
                (b"process_id", value) => {
                    self.process.pid.get_or_insert(value);
                    chunk.process.pid.get_or_insert(value);
                }
                _ => {}
            }
        }
    }

    /// Sets a fact that is not known yet.
    fn set(&mut self, chunk: &mut ChunkFacts, of: fn(&mut ProcessFacts) -> &mut BodyPart, text: BodyPart) {
        for known in [of(&mut self.process), of(&mut chunk.process)] {
            if known.is_empty() {
                *known = text;
            }
        }
    }
}

/// The upper half of the id of a trace, from 16 hex digits.
pub(super) fn upper_half(text: &[u8]) -> Option<u64> {
    hex_array(str::from_utf8(text).ok()?).map(u64::from_be_bytes)
}
