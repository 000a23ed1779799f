//! A span as it is on the wire: places in the body, no copies.

use tributary_codec::msgpack::MsgpackValue;

/// A text or bytes of the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BodyPart {
    start: u32,
    end: u32,
}

impl BodyPart {
    /// The place of `part`, which ends before `end`. Bodies are limited to 1 GiB.
    pub(super) fn ending_at(end: usize, part: &[u8]) -> BodyPart {
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        BodyPart { start: end.saturating_sub(part.len() as u32), end }
    }

    /// Its bytes.
    #[inline]
    pub(super) fn of(self, body: &[u8]) -> &[u8] {
        body.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    /// Where it ends.
    #[inline]
    pub(super) fn end(self) -> u32 {
        self.end
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A value of the body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WireValue {
    Null,
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(BodyPart),
    Bytes(BodyPart),
    /// An array or a list of keys and values; it begins at this offset, behind the type.
    Array(usize),
    Map(usize),
}

impl WireValue {
    /// A value of MessagePack that stands for itself. `None`: it is an array, a map or an extension.
    pub(super) fn scalar(value: MsgpackValue<'_>, end: usize) -> Option<WireValue> {
        Some(match value {
            MsgpackValue::Nil => WireValue::Null,
            MsgpackValue::Bool(value) => WireValue::Bool(value),
            MsgpackValue::Unsigned(number) => WireValue::U64(number),
            MsgpackValue::Negative(number) => WireValue::I64(number),
            MsgpackValue::Float(number) => WireValue::F64(number),
            MsgpackValue::Text(text) => WireValue::Text(BodyPart::ending_at(end, text)),
            MsgpackValue::Binary(bytes) => WireValue::Bytes(BodyPart::ending_at(end, bytes)),
            MsgpackValue::Array(_) | MsgpackValue::Map(_) | MsgpackValue::Extension(..) => return None,
        })
    }
}

/// What an entry of a span was sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sort {
    /// A text of `meta`, or an attribute of version 1.0.
    Meta,
    /// A number of `metrics`.
    Metric,
    /// MessagePack of `meta_struct`.
    Struct,
}

/// A key and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) key: BodyPart,
    pub(super) value: WireValue,
    pub(super) sort: Sort,
}

/// A link of a span.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WireLink {
    pub(super) trace_id: u128,
    pub(super) span_id: u64,
    /// Where its attributes begin.
    pub(super) attributes: Option<usize>,
    pub(super) trace_state: BodyPart,
    pub(super) flags: Option<u32>,
}

/// What happened during a span.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WireEvent {
    pub(super) time: u64,
    pub(super) name: BodyPart,
    /// Where its attributes begin.
    pub(super) attributes: Option<usize>,
}

/// A span. Fields that are absent have their default.
#[derive(Debug, Default)]
pub(super) struct WireSpan {
    pub(super) service: BodyPart,
    pub(super) name: BodyPart,
    pub(super) resource: BodyPart,
    pub(super) span_type: BodyPart,
    /// The lower half of the id of its trace.
    pub(super) trace_id: u64,
    pub(super) span_id: u64,
    pub(super) parent_id: u64,
    pub(super) start: i64,
    pub(super) duration: i64,
    pub(super) is_error: bool,
    /// Of version 1.0.
    pub(super) env: BodyPart,
    pub(super) version: BodyPart,
    pub(super) component: BodyPart,
    /// OpenTelemetry's number; 0: untold.
    pub(super) kind: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) links: Vec<WireLink>,
    pub(super) events: Vec<WireEvent>,
    /// Entries, links and events beyond the limit.
    pub(super) dropped: u64,
    /// The number of its keys that are not known.
    pub(super) unknown_keys: u64,
    /// The last of these; of version 1.0 a number.
    pub(super) unknown_key: Option<UnknownKey>,
}

/// A key of a span that is not known.
#[derive(Clone, Copy, Debug)]
pub(super) enum UnknownKey {
    Text(BodyPart),
    Number(u64),
}

impl WireSpan {
    /// Makes it empty; its memory is kept.
    pub(super) fn clear(&mut self) {
        let WireSpan { entries, links, events, .. } = std::mem::take(self);
        *self = WireSpan { entries, links, events, ..WireSpan::default() };
        self.entries.clear();
        self.links.clear();
        self.events.clear();
    }

    /// Adds an entry unless it has `limit` entries.
    #[inline]
    pub(super) fn push(&mut self, limit: usize, entry: Entry) {
        if self.entries.len() < limit {
            self.entries.push(entry);
        } else {
            self.dropped += 1;
        }
    }
}
