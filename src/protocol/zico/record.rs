//! Open records of a trace, and what is kept of them until they close.

use std::ops::Range;

use tributary_event::SpanId;

use super::clock::{self, Anchor};
use super::delivered::Fingerprint;
use super::symbols::ResolvedMethod;
use super::wire::{Epilog, Form, Order, Prolog, ZicoDialect};

/// An open record.
#[derive(Debug)]
pub(super) struct OpenRecord {
    pub(super) id: SpanId,
    pub(super) prolog: Option<Prolog>,
    pub(super) epilog: Option<Epilog>,
    pub(super) begin: Option<Box<Top>>,
    pub(super) method: MethodUse,
    pub(super) attributes: Vec<RecordAttributes>,
    /// Bytes of its attributes as sent.
    pub(super) attribute_bytes: usize,
    /// How many of its attributes are settled; the others follow them.
    pub(super) settled_attributes: u32,
    /// Bytes of its settled parts.
    pub(super) settled_bytes: u32,
    /// Attributes over a limit were left out.
    pub(super) lacks_attributes: bool,
    /// Its flags (gen1, Fressian).
    pub(super) own_flags: Option<u64>,
    /// The number of its calls that threw an exception (Fressian).
    pub(super) errors: Option<u64>,
    /// An exception was thrown out of it.
    pub(super) has_thrown: bool,
    /// Its id was used by a child or an exception, so it cannot change.
    pub(super) is_named: bool,
    pub(super) order: Order,
    /// Its offset in the body in which it began.
    pub(super) offset: usize,
    /// Its node in the profile of a body, and the number of that body.
    pub(super) node: Option<(u32, u32)>,
    /// The time of the records within it, in nanoseconds.
    pub(super) within: u64,
    /// The records that were added to it, because they are short.
    pub(super) pruned: Pruned,
    /// A record within it was written.
    pub(super) has_written: bool,
}

/// Records that were added to the record around them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pruned {
    /// Their number.
    pub(super) records: u64,
    /// The time of the outermost of them, in nanoseconds.
    pub(super) nanos: u64,
}

impl OpenRecord {
    /// How long it took, in nanoseconds; `None`: its start or end is missing, or its end is before its start.
    pub(super) fn duration(&self, dialect: ZicoDialect) -> Option<u64> {
        let (prolog, epilog) = self.prolog.zip(self.epilog)?;
        clock::duration(prolog.start, epilog.stop, dialect)
    }

    /// Its flags; in gen2 those of its trace.
    pub(super) fn flags(&self) -> Option<u64> {
        self.own_flags.or(self.epilog?.flags)
    }
}

/// The begin of a trace, on the record that is its top.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) anchor: Anchor,
    pub(super) type_id: u64,
    pub(super) trace_type: TraceType,
    /// The enclosing top of the same type.
    pub(super) outer: Option<u32>,
    pub(super) parent: Option<SpanId>,
    /// The identity of the trace, if copies of it may follow inside others (gen1).
    pub(super) call: Option<Fingerprint>,
}

/// The type of a trace.
#[derive(Debug)]
pub(super) enum TraceType {
    /// Its id, while the body that contains it is in memory.
    Id(u64),
    /// Its text when that body was read.
    Text(String),
}

/// The method of a record.
#[derive(Debug)]
pub(super) enum MethodUse {
    /// Found by the prolog's id.
    Id,
    /// As defined when that body was read.
    Settled(Box<ResolvedMethod>),
}

/// Attributes of an open record.
#[derive(Debug)]
pub(super) enum RecordAttributes {
    /// In the body that is being read.
    Here(Form, Range<usize>),
    /// Copied.
    Settled(Box<[u8]>),
}

impl RecordAttributes {
    pub(super) fn bytes<'a>(&'a self, body: &'a [u8]) -> &'a [u8] {
        match self {
            RecordAttributes::Here(_, range) => body.get(range.clone()).unwrap_or_default(),
            RecordAttributes::Settled(bytes) => bytes,
        }
    }

    /// Where they begin in the body, if they are not copied.
    pub(super) fn offset(&self) -> Option<usize> {
        match self {
            RecordAttributes::Here(_, range) => Some(range.start),
            RecordAttributes::Settled(_) => None,
        }
    }

    pub(super) fn form(&self) -> Form {
        match self {
            RecordAttributes::Here(form, _) => *form,
            RecordAttributes::Settled(_) => Form::Map,
        }
    }
}
