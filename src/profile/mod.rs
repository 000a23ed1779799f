//! Human-readable profiles of events: folded stacks, flame graphs, tables of the heap.
//!
//! [`events`] extracts samples, objects and dumps from batches or event files; [`stacks`] sums samples, and [`flamegraph`]
//! draws them; [`heap`] collects dumps and counts their objects; [`compare`] compares two dumps. Memory grows with the
//! different call paths, sites and (for a comparison) object ids in the input, not with its length.

pub mod compare;
pub mod events;
pub mod flamegraph;
pub mod heap;
mod rows;
pub mod stacks;
mod words;

use std::borrow::Cow;

/// An item of a profile.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// A stack and a value.
    Sample(Sample<'a>),
    /// An object of a heap dump.
    Object(Object<'a>),
    /// The end of a complete dump.
    DumpEnd(Dump<'a>),
}

/// The quantity that a sample counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// CPU time; the value is a number of samples.
    Cpu,
    /// Allocations; the value is a number of objects.
    Allocations,
}

/// A stack and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// The quantity of the value.
    pub counted: Counted,
    /// The value.
    pub value: u64,
    /// The stack, innermost frame first; empty if it is not known.
    pub frames: Vec<Frame<'a>>,
    /// For allocations: the site of the allocation.
    pub site: Site<'a>,
    /// For allocations: the class of the objects.
    pub class: Option<Cow<'a, str>>,
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Frame<'a> {
    pub function: Option<Cow<'a, str>>,
    pub site: Site<'a>,
}

/// A place in the source code, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Site<'a> {
    pub file: Option<Cow<'a, str>>,
    pub line: Option<u64>,
}

/// The identity of a dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump<'a> {
    /// The address of the peer, or the name of the capture.
    pub peer: Cow<'a, str>,
    /// The number of the connection.
    pub connection: u64,
    /// The dumped process.
    pub pid: Option<u64>,
    /// The number of the dump.
    pub id: u64,
    /// The number of its objects, as sent by the peer.
    pub object_count: Option<u64>,
}

/// An object of a heap dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Object<'a> {
    /// The dump that it belongs to.
    pub dump: Dump<'a>,
    /// Its id, which is an address: another object may have it later.
    pub id: u64,
    /// Its class; internal objects have none.
    pub class: Option<Cow<'a, str>>,
    /// The site of its allocation, if the memory profile was on then.
    pub site: Site<'a>,
    /// Its size in bytes, if known.
    pub size: Option<u64>,
    /// The number of its references to other objects.
    pub references: u64,
}
