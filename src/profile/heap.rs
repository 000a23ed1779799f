//! Dumps of a heap, gathered object by object; a table of what is in one.
//!
//! Dumps of several processes may stand mixed in the input. One is whole when all objects that its agent promised are
//! there. Of each dump a row per class and place is kept, and only if asked for its objects.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};

use super::rows::{Places, Table};
use super::{Dump, Object};

/// Dumps that are gathered at the same time; the oldest is given up for one more.
const MAX_OPEN: usize = 8;
/// Dumps that are remembered by name, to be spoken of.
const MAX_REMEMBERED: usize = 64;

/// Which dump is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The last one that is whole.
    LastWhole,
    /// The last of this number, whole or not.
    Number(u64),
}

/// Gathers the dumps of an input.
#[derive(Debug)]
pub struct Dumps {
    wanted: Wanted,
    keeps_objects: bool,
    /// In the order in which they began.
    open: VecDeque<Heap>,
    found: Option<Heap>,
    /// Every dump that is not `found` or open any more.
    others: Vec<Name>,
}

/// A dump.
#[derive(Debug)]
pub struct Heap {
    name: Name,
    pub(super) places: Places,
    /// Objects, bytes, references, by row.
    sums: Vec<[u64; 3]>,
    /// Id and row, if objects are kept.
    pub(super) objects: Vec<Entry>,
}

/// An object, as comparing needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) references: u64,
    pub(super) row: u32,
}

/// Whose dump it is, and how much of it is there.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    /// Which dump, of whom.
    pub dump: Dump<'static>,
    /// Objects that are there.
    pub objects: u64,
    /// Its agent's end of the dump is there.
    has_ended: bool,
}

impl Dumps {
    /// Of an input from its start. Objects are kept when the dump is to be compared.
    pub fn new(wanted: Wanted, keeps_objects: bool) -> Self {
        Dumps { wanted, keeps_objects, open: VecDeque::new(), found: None, others: Vec::new() }
    }

    /// The next object.
    pub fn object(&mut self, object: &Object<'_>) {
        let heap = match self.open.iter().rposition(|heap| heap.name.is_of(&object.dump)) {
            Some(at) => &mut self.open[at],
            None => {
                if self.open.len() == MAX_OPEN
                    && let Some(oldest) = self.open.pop_front()
                {
                    self.settle(oldest);
                }
                self.open.push_back(Heap::new(&object.dump));
                let last = self.open.len() - 1;
                &mut self.open[last]
            }
        };
        // Of a dump that nobody wants the objects are only counted.
        match self.wanted {
            Wanted::Number(number) if number != object.dump.id => heap.name.objects += 1,
            _ => heap.add(object, self.keeps_objects),
        }
    }

    /// A dump has ended; an empty one has no object before its end.
    pub fn end(&mut self, dump: &Dump<'_>) {
        let at = self.open.iter().rposition(|heap| heap.name.is_of(dump));
        let mut heap = at.and_then(|at| self.open.remove(at)).unwrap_or_else(|| Heap::new(dump));
        heap.name.has_ended = true;
        heap.name.dump.object_count = dump.object_count.or(heap.name.dump.object_count);
        self.settle(heap);
    }

    /// The wanted dump, and the names of the others in the input, the last of them at the end.
    ///
    /// # Errors
    /// There is none: the names of what there is.
    pub fn finish(mut self) -> Result<(Heap, Vec<Name>), Vec<Name>> {
        while let Some(heap) = self.open.pop_front() {
            self.settle(heap);
        }
        match self.found {
            Some(heap) => Ok((heap, self.others)),
            None => Err(self.others),
        }
    }

    fn settle(&mut self, heap: Heap) {
        let is_wanted = match self.wanted {
            Wanted::LastWhole => heap.name.is_whole(),
            // A whole one is not given up for a part of another with its number.
            Wanted::Number(number) => {
                let has_whole = self.found.as_ref().is_some_and(|found| found.name.is_whole());
                number == heap.name.dump.id && (heap.name.is_whole() || !has_whole)
            }
        };
        let other = if is_wanted { self.found.replace(heap) } else { Some(heap) };
        if let Some(other) = other {
            if self.others.len() == MAX_REMEMBERED {
                self.others.remove(0);
            }
            self.others.push(other.name);
        }
    }
}

impl Heap {
    fn new(dump: &Dump<'_>) -> Self {
        let dump = Dump { peer: dump.peer.clone().into_owned().into(), ..*dump };
        let name = Name { dump, objects: 0, has_ended: false };
        Heap { name, places: Places::default(), sums: Vec::new(), objects: Vec::new() }
    }

    fn add(&mut self, object: &Object<'_>, keeps_objects: bool) {
        self.name.objects += 1;
        let row = self.places.row(object.class.as_deref(), &object.site);
        if self.sums.len() <= row as usize {
            self.sums.push([0; 3]);
        }
        let size = object.size.unwrap_or(0);
        let sums = &mut self.sums[row as usize];
        for (sum, more) in sums.iter_mut().zip([1, size, object.references]) {
            *sum = sum.saturating_add(more);
        }
        if keeps_objects {
            self.objects.push(Entry { id: object.id, size, references: object.references, row });
        }
    }

    /// Whose dump it is.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Writes a row per class and place, the most objects first.
    ///
    /// # Errors
    /// As `out` has them.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let heads = ["count", "bytes", "references"];
        Table { places: &self.places, sums: &self.sums, heads, has_share: true }.write(out)?;
        note_full(&self.places, out)
    }
}

pub(super) fn note_full(places: &Places, out: &mut impl Write) -> io::Result<()> {
    if !places.is_full() {
        return Ok(());
    }
    writeln!(out, "\nMore classes and places than can be told apart: one row stands for all the rest.")
}

impl Name {
    fn is_of(&self, dump: &Dump<'_>) -> bool {
        let Dump { peer, connection, pid, id, .. } = &self.dump;
        (*id, *connection, *pid) == (dump.id, dump.connection, dump.pid) && *peer == dump.peer
    }

    /// Whether every object is there that the agent promised.
    pub fn is_whole(&self) -> bool {
        self.dump.object_count.map_or(self.has_ended, |count| self.objects >= count)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dump { peer, pid, id, object_count, .. } = &self.dump;
        write!(f, "dump {id} of ")?;
        if let Some(pid) = pid {
            write!(f, "process {pid} at ")?;
        }
        write!(f, "{}: {}", super::words::shown(peer), self.objects)?;
        match object_count {
            Some(count) if *count != self.objects => write!(f, " of {count} objects"),
            _ if self.objects == 1 => write!(f, " object"),
            _ => write!(f, " objects"),
        }
    }
}
