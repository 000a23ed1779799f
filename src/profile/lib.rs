//! Human-readable profiles of events: stacks in several forms, flame graphs, tables of the heap.
//!
//! [`events`] extracts samples, spans, calls, objects and dumps from batches; [`heap_fields`] reads what an event says of the
//! heap. [`stacks`] sums samples by stack; [`spans`] and [`logs`] find the self times of spans, and of entries and exits.
//! [`flamegraph`], [`pprof`], [`speedscope`] and [`report`] write stacks. [`heap`] collects dumps, whose objects [`class_sums`]
//! counts; [`coverage`] finds which methods and lines were run, of all that [`classes`] reads from class files; [`compare`]
//! compares two dumps. Memory grows with the different call paths, sites and (for a comparison) object ids in the input; spans
//! wait for their traces.
//!
//! Protocols also use [`tree`], [`calls`], [`interval`] and [`limits`], to make profiles while events arrive.
#![forbid(unsafe_code)]

mod call_order;
pub mod call_stack;
pub mod calls;
pub mod class_sums;
pub mod classes;
pub mod collected;
pub mod compare;
pub mod coverage;
pub mod events;
pub mod firefox;
pub mod flamegraph;
pub mod heap;
pub mod heap_fields;
pub mod interval;
pub mod limits;
pub mod logs;
pub mod perfetto;
pub mod pprof;
pub mod report;
mod rows;
pub mod sandwich;
pub mod spans;
pub mod speedscope;
pub mod stacks;
pub mod timeline;
pub mod tree;
mod words;

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An item of a profile.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileItem<'a> {
    /// A stack and a value.
    Sample(ProfileSample<'a>),
    /// A span.
    Span(ProfileSpan<'a>),
    /// An entry or exit of a call, or a break.
    Call(Call<'a>),
    /// A method that is known or was run.
    Method(coverage::CoveredMethod<'a>),
    /// Lines that are known or were run.
    Lines(coverage::MethodLines<'a>),
    /// An object of a heap dump.
    Object(HeapObject<'a>),
    /// The end of a complete dump.
    DumpEnd(DumpIdentity<'a>),
}

/// The quantity that a sample counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Counted {
    /// CPU time; the value is a number of samples.
    #[default]
    Cpu,
    /// Allocations; the value is a number of objects.
    Allocations,
    /// Time that calls took without the calls within them, in nanoseconds.
    Wall,
    /// A number of calls.
    Calls,
    /// The size of the objects of a heap, in bytes.
    HeapBytes,
    /// The number of the objects of a heap.
    HeapObjects,
    /// What a profiler counts, which names it.
    Profiled(&'static SampleKind),
}

impl Counted {
    /// Those of our own.
    pub const OWN: [Counted; 6] =
        [Counted::Cpu, Counted::Allocations, Counted::Wall, Counted::Calls, Counted::HeapBytes, Counted::HeapObjects];

    /// The type of its samples in events.
    pub fn sample_type(self) -> &'static str {
        match self {
            Counted::Profiled(kind) => &kind.sample_type,
            Counted::Cpu => "cpu",
            Counted::Allocations => "alloc_objects",
            Counted::Wall => "wall",
            Counted::Calls => "calls",
            Counted::HeapBytes => "inuse_space",
            Counted::HeapObjects => "inuse_objects",
        }
    }

    /// By which it is chosen: its type, unless that is one of our own.
    pub fn id(self) -> &'static str {
        match self {
            Counted::Profiled(kind) => &kind.id,
            own => own.sample_type(),
        }
    }

    /// The unit of its values in profiles.
    pub fn unit(self) -> &'static str {
        match self {
            Counted::Profiled(kind) => &kind.unit,
            Counted::Wall => "nanoseconds",
            Counted::HeapBytes => "bytes",
            Counted::Cpu | Counted::Allocations | Counted::Calls | Counted::HeapObjects => "count",
        }
    }

    /// What is counted, in the plural.
    pub fn things(self) -> &'static str {
        match self {
            Counted::Profiled(kind) if kind.unit.as_ref() == "nanoseconds" => "microseconds",
            Counted::Profiled(kind) if kind.unit.as_ref() == "count" => &kind.sample_type,
            Counted::Profiled(kind) => &kind.unit,
            Counted::Cpu => "samples",
            Counted::Wall => "microseconds",
            Counted::Calls => "calls",
            Counted::HeapBytes => "bytes",
            Counted::Allocations | Counted::HeapObjects => "objects",
        }
    }
}

/// A type of samples that a profiler names, and the unit of its values.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SampleKind {
    id: Box<str>,
    sample_type: Box<str>,
    unit: Box<str>,
}

/// The most types that are distinguished, and the longest text: those of all profilers are far fewer and shorter.
const MAX_SAMPLE_KINDS: usize = 1_024;
const MAX_KIND_BYTES: usize = 128;

impl SampleKind {
    /// All types that samples had.
    pub fn all() -> Vec<&'static SampleKind> {
        SampleKind::known().clone()
    }

    /// The types with this id or name that samples had.
    pub fn named(name: &str) -> Vec<&'static SampleKind> {
        let known = SampleKind::known();
        let mut named: Vec<_> =
            known.iter().filter(|kind| *kind.id == *name || *kind.sample_type == *name).copied().collect();
        named.sort_by_key(|kind| *kind.id != *name);
        named
    }

    fn known() -> MutexGuard<'static, Vec<&'static SampleKind>> {
        static KNOWN: Mutex<Vec<&'static SampleKind>> = Mutex::new(Vec::new());
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The type of this name and unit. `None`: they are too long or not one line, as terminals show them, or there are too
    /// many.
    pub fn of(sample_type: &str, unit: &str) -> Option<&'static SampleKind> {
        let is_wanted = |text: &str| text.len() <= MAX_KIND_BYTES && words::one_line(text) == text;
        if sample_type.is_empty() || !is_wanted(sample_type) || !is_wanted(unit) {
            return None;
        }
        let mut known = SampleKind::known();
        let found = known.iter().find(|kind| (&*kind.sample_type, &*kind.unit) == (sample_type, unit)).copied();
        if found.is_some() || known.len() >= MAX_SAMPLE_KINDS {
            return found;
        }
        let is_taken = Counted::OWN.iter().any(|own| own.sample_type() == sample_type)
            || known.iter().any(|kind| *kind.id == *sample_type);
        let id = if is_taken { format!("{sample_type}/{unit}") } else { sample_type.to_owned() };
        let kind = SampleKind { id: id.into(), sample_type: sample_type.into(), unit: unit.into() };
        // It stays for the life of the process.
        let kind: &'static SampleKind = Box::leak(Box::new(kind));
        known.push(kind);
        Some(kind)
    }
}

/// A stack and a value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileSample<'a> {
    /// The quantity of the value.
    pub counted: Counted,
    /// The value.
    pub value: u64,
    /// The stack, innermost frame first; empty if it is not known.
    pub frames: Vec<ProfileFrame<'a>>,
    /// For allocations: the site of the allocation.
    pub site: Site<'a>,
    /// For allocations: the class of the objects.
    pub class: Option<Cow<'a, str>>,
    /// The process.
    pub agent: Cow<'a, str>,
    /// The name of the thread, if it is known.
    pub thread: Option<Cow<'a, str>>,
    /// When it was taken, in nanoseconds since the epoch.
    pub time: Option<u64>,
    /// How long before that it began to count, if it counts for a while, in nanoseconds.
    pub covers: Option<u64>,
    /// The time between two samples, if they are taken by time, in nanoseconds.
    pub period: Option<u64>,
    /// The clock of that time.
    pub clock: Option<Clock>,
    /// Deeper frames were folded into this stack.
    pub is_incomplete: bool,
    /// For the objects of a heap: the dump that they belong to.
    pub dump: Option<DumpIdentity<'a>>,
}

/// The clock that samples are taken by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub enum Clock {
    Cpu,
    Wall,
}

/// A span.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileSpan<'a> {
    /// The process.
    pub agent: Cow<'a, str>,
    /// The name of its thread, if it is known.
    pub thread: Option<Cow<'a, str>>,
    /// The ids of its trace, itself and its parent.
    pub trace: u128,
    #[allow(missing_docs)]
    pub id: u64,
    #[allow(missing_docs)]
    pub parent: Option<u64>,
    /// Its name.
    pub name: Cow<'a, str>,
    /// What it worked on, for example a route.
    pub detail: Option<Cow<'a, str>>,
    /// When it began, in nanoseconds since the epoch.
    pub start: Option<u64>,
    /// How long it took, in nanoseconds; `None`: unknown.
    pub duration: Option<u64>,
}

/// What happens with calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum CallStep {
    /// Events were dropped before this number: every open call ends without an exit.
    Break,
    /// A call begins.
    #[default]
    Entry,
    /// A call ends.
    Exit,
}

/// An entry or exit of a call, or a break.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Call<'a> {
    /// The process.
    pub agent: Cow<'a, str>,
    /// The thread.
    pub thread_id: u64,
    /// The name of the thread, if it is known.
    pub thread: Option<Cow<'a, str>>,
    /// The function.
    pub function: Cow<'a, str>,
    /// The id of the function.
    pub method: Option<u64>,
    /// What happened.
    pub step: CallStep,
    /// It ended by an exception.
    pub has_failed: bool,
    /// The agent's time in milliseconds, of 32 bits.
    pub time: u32,
    /// The number of the event, of 32 bits.
    pub sequence: u32,
    /// When it happened, in nanoseconds since the epoch.
    pub at: Option<u64>,
}

/// A frame of a stack.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct ProfileFrame<'a> {
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
pub struct DumpIdentity<'a> {
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
pub struct HeapObject<'a> {
    /// The dump that it belongs to.
    pub dump: DumpIdentity<'a>,
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
