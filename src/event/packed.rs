//! Packed batches: spans and logs in few bytes, for those who keep many of them and read few.
//!
//! Numbers of one sort stand together in a column, where it helps as differences from the one before, and a text or a trace id that
//! several events have stands once. Columns are made to be compressed: most bytes of a column are equal. Only the process that packed a
//! batch unpacks it, so the form may change with every version.

mod pack;
mod unpack;

use std::sync::Arc;

use super::{Origin, Resource};

/// What a packed batch shares with others, beside its columns.
#[derive(Clone, Debug)]
pub struct PackedParts {
    /// The connections of its events.
    pub origins: Vec<Arc<Origin>>,
    /// The resources of its events.
    pub resources: Vec<Arc<Resource>>,
}

/// The columns, in their order.
#[derive(Clone, Copy, Debug)]
enum Column {
    /// How many parts of a kind follow in other columns.
    Counts,
    /// What an event has (the flags below), and a span.
    Flags,
    Names,
    Times,
    Observed,
    Sequences,
    Offsets,
    Lengths,
    Origins,
    Resources,
    Keys,
    /// The types of values.
    Types,
    /// Numbers in values, and lengths of texts of bytes.
    Numbers,
    /// Texts, by their places in the list of all.
    Texts,
    /// Traces, by their places in the list of all, and the ids in that list.
    Traces,
    TraceIds,
    SpanIds,
    /// Parents, by the distance of the span with that id in the batch, and the ids of the others.
    Parents,
    ParentIds,
    Durations,
    Bytes,
    TextLengths,
    /// The last one: all texts.
    TextBytes,
}

const COLUMNS: usize = Column::TextBytes as usize + 1;

/// What an event has.
const IS_SPAN: u8 = 1;
const HAS_TIME: u8 = 1 << 1;
const HAS_SEQUENCE: u8 = 1 << 2;
/// Of a span: its duration, its parent. Of a log: its trace, and a span of it.
const HAS_DURATION: u8 = 1 << 3;
const HAS_PARENT: u8 = 1 << 4;
const HAS_TRACE: u8 = HAS_DURATION;
const HAS_TRACE_SPAN: u8 = HAS_PARENT;
/// Of a log.
const HAS_BODY: u8 = 1 << 5;

/// What a span has: its status in the lowest 2 bits, its kind in the next 3 (0: none), and these.
const KIND_SHIFT: u8 = 2;
/// It ends when its duration is over.
const ENDS_IN_TIME: u8 = 1 << 5;
/// It ends at another time.
const HAS_END: u8 = 1 << 6;
/// It has a message, links, events or extras.
const HAS_MORE: u8 = 1 << 7;

/// Types of values, and a run in the place of an attribute.
mod value_type {
    pub(super) const NULL: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const I64: u8 = 3;
    pub(super) const U64: u8 = 4;
    pub(super) const F64: u8 = 5;
    pub(super) const TEXT: u8 = 6;
    pub(super) const BYTES: u8 = 7;
    pub(super) const ARRAY: u8 = 8;
    pub(super) const MAP: u8 = 9;
    pub(super) const RUN: u8 = 10;
}
