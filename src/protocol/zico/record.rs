//! A record that is open, and what is kept of it until it closes.

use std::ops::Range;

use crate::event::SpanId;

use super::clock::Anchor;
use super::symbols::Method;
use super::wire::{Epilog, Form, Order, Prolog};

/// A record that is open.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: SpanId,
    pub(super) prolog: Option<Prolog>,
    pub(super) epilog: Option<Epilog>,
    pub(super) begin: Option<Box<Top>>,
    pub(super) method: MethodUse,
    pub(super) attributes: Vec<Kept>,
    /// Bytes of its attributes.
    pub(super) attribute_bytes: usize,
    /// Some were too many.
    pub(super) lacks_attributes: bool,
    /// The flags of gen1.
    pub(super) own_flags: Option<u64>,
    /// An exception left it.
    pub(super) has_thrown: bool,
    /// Its id has gone out, with a child or an exception.
    pub(super) is_named: bool,
    pub(super) order: Order,
    /// Where it begins in the body that it began in.
    pub(super) offset: usize,
    /// So many of its attributes do not need the body any more …
    pub(super) settled_attributes: usize,
    /// … and take so many bytes, with its method and type as far as they are settled.
    pub(super) settled_bytes: usize,
}

impl Record {
    /// Its flags, or in gen2 those of its trace.
    pub(super) fn flags(&self) -> Option<u64> {
        self.own_flags.or(self.epilog?.flags)
    }
}

/// What a record is the top of.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) anchor: Anchor,
    pub(super) type_id: u64,
    pub(super) trace_type: TraceType,
    /// Which record above this was the last top of this type.
    pub(super) outer: Option<u32>,
    pub(super) parent: Option<SpanId>,
}

/// The type of a trace.
#[derive(Debug)]
pub(super) enum TraceType {
    /// By its id, as long as the body is here that told it.
    Id(u64),
    /// As it was when that body was read.
    Text(String),
}

/// The method of a record.
#[derive(Debug)]
pub(super) enum MethodUse {
    /// That of the prolog's id.
    Id,
    /// As it was when the body was read that told it.
    Settled(Box<Method>),
}

/// Attributes of a record that is open.
#[derive(Debug)]
pub(super) enum Kept {
    /// In the body that is being read.
    Here(Form, Range<usize>),
    /// Copied.
    Settled(Box<[u8]>),
}

impl Kept {
    pub(super) fn bytes<'a>(&'a self, body: &'a [u8]) -> &'a [u8] {
        match self {
            Kept::Here(_, range) => body.get(range.clone()).unwrap_or_default(),
            Kept::Settled(bytes) => bytes,
        }
    }

    pub(super) fn form(&self) -> Form {
        match self {
            Kept::Here(form, _) => *form,
            Kept::Settled(_) => Form::Map,
        }
    }
}
