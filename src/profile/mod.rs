//! Profiles that people can look at, made of events: folded stacks, flame graphs, tables of what is on a heap.
//!
//! [`events`] finds in batches, or in event files, what profiles are made of; [`stacks`] sums samples, which
//! [`flamegraph`] draws; [`heap`] gathers dumps and counts what is in them; [`compare`] sets one against another. Memory
//! goes with what is different in the input (call paths, places, ids of one dump), not with its length.

pub mod compare;
pub mod events;
pub mod flamegraph;
pub mod heap;
mod rows;
pub mod stacks;
mod words;

use std::borrow::Cow;

/// A part of a profile.
#[derive(Clone, Debug, PartialEq)]
pub enum Item<'a> {
    /// A stack and a value.
    Sample(Sample<'a>),
    /// An object of a heap dump.
    Object(Object<'a>),
    /// A dump has been received whole.
    DumpEnd(Dump<'a>),
}

/// What samples count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Where time went; the value is a number of samples.
    Cpu,
    /// Where objects were made; the value is their number.
    Allocations,
}

/// A stack and a value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// What the value counts.
    pub counted: Counted,
    /// The value.
    pub value: u64,
    /// The stack, innermost frame first; empty when it is not known.
    pub frames: Vec<Frame<'a>>,
    /// Of allocations: where.
    pub site: Site<'a>,
    /// Of allocations: the class of the objects.
    pub class: Option<Cow<'a, str>>,
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Frame<'a> {
    pub function: Option<Cow<'a, str>>,
    pub site: Site<'a>,
}

/// A place in source, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Site<'a> {
    pub file: Option<Cow<'a, str>>,
    pub line: Option<u64>,
}

/// Which dump, of whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump<'a> {
    /// The peer's address, or the name of the capture.
    pub peer: Cow<'a, str>,
    /// The peer's connection.
    pub connection: u64,
    /// The dumped process.
    pub pid: Option<u64>,
    /// The number of the dump.
    pub id: u64,
    /// How many objects it has, as the peer says.
    pub object_count: Option<u64>,
}

/// An object of a heap dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Object<'a> {
    /// The dump it stands in.
    pub dump: Dump<'a>,
    /// Its id: an address. Another object may have it after this one is gone.
    pub id: u64,
    /// Its class; internal objects have none.
    pub class: Option<Cow<'a, str>>,
    /// Where it was made, if allocations were being traced then.
    pub site: Site<'a>,
    /// Its size in bytes, if it has one.
    pub size: Option<u64>,
    /// How many objects it refers to.
    pub references: u64,
}
