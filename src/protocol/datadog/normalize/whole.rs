//! Spans whose lists are all here: their tags are written into the batch as they are read, without a record.
//!
//! Most spans are written this way. Whatever is unusual about a span is left to its record, which makes the same event: what was
//! written is discarded, and the span is read again.

use tributary_event::{Header, Key, Position, semconv};
use tributary_protocol::Output;

use super::super::Options;
use super::super::record::{EntryKind, KEY_IN_FULL, METRIC_BYTES, NAME, ObjectPosition, Ref, SERVICE};
use super::super::services::Services;
use super::super::strings::{StringSlot, Strings, TextMarks};
use super::super::traces::Traces;
use super::super::wire::{self, ListKind, Lists, StringId, WireSpan};
use super::repeated::{FEW_ENTRIES, SeenKeys};
use super::{SpanPart, Writer, number, service, span_time};

/// A span with metas of its trace is written this way if there are at most this many, because each is compared with the
/// others.
const MAX_TRACE_METAS: usize = 8;

/// A span, and all of its lists.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct WholeSpan<'a> {
    pub(in super::super) span: &'a WireSpan,
    pub(in super::super) lists: &'a Lists<'a>,
    /// Its number among the owners of the connection.
    pub(in super::super) sequence: u64,
    pub(in super::super) position: ObjectPosition,
}

/// The size of what is written, by which a record is limited, and the keys.
#[derive(Default)]
struct Written {
    bytes: u64,
    keys: SeenKeys,
}

impl WholeSpan<'_> {
    /// Writes the span. Returns the number of metas of its trace. `None`: it needs a record, and nothing was written.
    #[inline]
    pub(in super::super) fn write(
        &self,
        strings: &mut Strings,
        services: &mut Services,
        traces: &mut Traces,
        options: &Options,
        out: &mut Output,
    ) -> Option<usize> {
        let WholeSpan { span, lists, sequence, position } = *self;
        let limits = &options.max_text;
        let metas = traces.get(span.trace_id);
        let count = metas.len();
        let entries = lists.entries();
        let is_unusual = span.error > 1 || span.start.checked_add(span.duration).is_none();
        if is_unusual || count > MAX_TRACE_METAS || entries > FEW_ENTRIES.min(options.max_record_entries) {
            return None;
        }
        let mut written = Written::default();
        let mut fields = [Ref::Absent; 4];
        let field_limits = [limits.name, limits.type_, limits.resource, limits.service];
        for ((field, id), limit) in fields.iter_mut().zip(span.texts).zip(field_limits) {
            match strings.refer(id) {
                Some(known) => {
                    written.bytes += known.bytes(limit);
                    *field = Ref::Bound(known.slot);
                }
                None if id == StringId::ABSENT => {}
                None => return None,
            }
        }
        let (name, marks) = match fields[NAME] {
            Ref::Bound(slot) => {
                let (text, marks) = strings.show(slot, limits.name, &mut out.batch);
                (Key::from(text), marks)
            }
            _ => (semconv::DATADOG_SPAN.into(), TextMarks::default()),
        };
        let service = service(fields[SERVICE], strings, services, limits, out);
        let header = Header {
            name,
            time: span_time(span),
            observed: position.now.unix,
            position: Position { sequence: Some(sequence), offset: position.offset, length: position.size },
        };
        let mut writer = Writer::new(out.batch.event(header), strings, limits, marks);
        writer.fields(&fields, service);
        let mut is_written = true;
        for meta in metas {
            is_written = is_written && writer.trace_meta(meta, &mut written);
        }
        for (kind, entries) in lists.iter() {
            is_written = is_written && writer.list(kind, entries, &mut written);
        }
        if !is_written || written.bytes > options.max_record_bytes {
            writer.event.discard();
            return None;
        }
        writer.write_text_marks();
        writer.end(span);
        Some(count)
    }
}

impl Writer<'_> {
    /// Writes a meta of the trace, as far as its texts are known. `false`: its key is repeated.
    fn trace_meta(&mut self, [key, value]: [Option<StringSlot>; 2], written: &mut Written) -> bool {
        let (Some(key), Some(value)) = (key, value) else { return true };
        let (key_bytes, value_bytes) = (self.strings.text(key).len(), self.strings.text(value).len());
        written.bytes += (key_bytes.min(self.limits.key) + value_bytes.min(self.limits.value)) as u64;
        let value = self.text(value, self.limits.value);
        let key = self.prefixed(EntryKind::TraceMeta, Ref::Bound(key));
        let is_new = !self.event.has_text_key(key);
        self.event.attribute(key, value);
        is_new
    }

    /// Writes the entries of a list. `false`: a text of them is not defined, or a key cannot be written as it is.
    #[inline]
    fn list(&mut self, kind: ListKind, entries: &[wire::WireEntry], written: &mut Written) -> bool {
        for ids in entries {
            let Some(known) = self.strings.refer(StringId(ids[0])) else { return false };
            let Some(key) = self.key(known.slot) else { return false };
            if !written.keys.add(key.fingerprint) && self.event.has_text_key(key.text) {
                return false;
            }
            written.bytes += known.bytes(KEY_IN_FULL);
            let value = match kind {
                ListKind::Meta => {
                    let Some(value) = self.strings.refer(StringId(ids[1])) else { return false };
                    written.bytes += value.bytes(self.limits.value);
                    if let Some(tag) = key.meaning {
                        match self.part(tag, value.slot) {
                            SpanPart::Written => continue,
                            SpanPart::Unwritten => {}
                            SpanPart::Repeated => return false,
                        }
                    }
                    self.tag(value.slot, key.is_whole)
                }
                ListKind::Metrics => {
                    written.bytes += METRIC_BYTES;
                    number(ids[1], key.is_whole)
                }
            };
            self.event.attribute(key.text, value);
        }
        true
    }
}
