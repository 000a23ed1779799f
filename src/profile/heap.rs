//! Collects heap dumps object by object, and writes the table of one.
//!
//! Dumps of several processes may be interleaved in the input. A dump is complete if it has as many objects as its agent has
//! announced. For each dump one row per class and site is kept; its objects are kept only for a comparison.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};

use super::class_sums::ClassSums;
use super::rows::{Places, RowTable};
use super::{Counted, DumpIdentity, HeapObject, ProfileSample, Site};

/// Dumps that are collected at the same time; another one closes the oldest.
const MAX_OPEN: usize = 8;
/// Dumps whose names are kept, for messages.
const MAX_REMEMBERED: usize = 64;

/// The dump to select.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// The last complete one.
    LastWhole,
    /// The last one, complete or not.
    Last,
    /// The last one with this number, complete or not.
    Number(u64),
}

/// Collects the dumps of an input.
#[derive(Debug)]
pub struct Dumps {
    wanted: Wanted,
    keeps_objects: bool,
    /// In the order of their first objects.
    open: VecDeque<Heap>,
    selected: Option<Heap>,
    /// The closed dumps that are not selected.
    others: VecDeque<DumpSummary>,
}

/// A dump.
#[derive(Debug)]
pub struct Heap {
    name: DumpSummary,
    /// Its objects, by class and site.
    pub sums: ClassSums,
    /// The objects, if they are kept.
    pub(super) objects: Vec<HeapEntry>,
    /// The input has its objects, not only their sums.
    pub(super) has_objects: bool,
}

/// The part of an object that a comparison needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeapEntry {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) references: u64,
    pub(super) row: u32,
}

/// A dump's identity and completeness.
#[derive(Clone, Debug, PartialEq)]
pub struct DumpSummary {
    /// The identity.
    pub dump: DumpIdentity<'static>,
    /// The objects in the input.
    pub objects: u64,
    /// The input has the end of the dump.
    has_ended: bool,
}

impl Dumps {
    /// No dumps yet. `keeps_objects`: the selected dump is to be compared.
    pub fn new(wanted: Wanted, keeps_objects: bool) -> Self {
        Dumps { wanted, keeps_objects, open: VecDeque::new(), selected: None, others: VecDeque::new() }
    }

    /// Adds an object.
    pub fn object(&mut self, object: &HeapObject<'_>) {
        let (wanted, keeps_objects) = (self.wanted, self.keeps_objects);
        let heap = self.heap(&object.dump);
        heap.has_objects = true;
        // The objects of a dump that cannot be selected are only counted.
        match wanted {
            Wanted::Number(number) if number != object.dump.id => heap.name.objects += 1,
            _ => {
                heap.add(object, keeps_objects);
            }
        }
    }

    /// Adds a sum of a dump that was summed up. Beside the objects of the dump it is ignored.
    pub fn sum(&mut self, sample: &ProfileSample<'_>) {
        let Some(dump) = &sample.dump else { return };
        let heap = self.heap(dump);
        if heap.has_objects {
            return;
        }
        let [objects, bytes] = match sample.counted {
            Counted::HeapObjects => [sample.value, 0],
            Counted::HeapBytes => [0, sample.value],
            _ => return,
        };
        heap.name.objects += objects;
        heap.count(sample.class.as_deref(), &sample.site, [objects, bytes, 0]);
    }

    /// The open dump of this identity.
    fn heap(&mut self, dump: &DumpIdentity<'_>) -> &mut Heap {
        let at = self.open.iter().rposition(|heap| heap.name.is_of(dump)).unwrap_or_else(|| {
            if self.open.len() == MAX_OPEN
                && let Some(oldest) = self.open.pop_front()
            {
                self.close(oldest);
            }
            self.open.push_back(Heap::new(dump));
            self.open.len() - 1
        });
        &mut self.open[at]
    }

    /// Ends a dump. An empty one has no object before its end.
    pub fn end(&mut self, dump: &DumpIdentity<'_>) {
        let at = self.open.iter().rposition(|heap| heap.name.is_of(dump));
        let mut heap = at.and_then(|at| self.open.remove(at)).unwrap_or_else(|| Heap::new(dump));
        heap.end(dump);
        self.close(heap);
    }

    /// The selected dump and the names of the others, in the order of the input.
    ///
    /// # Errors
    /// No dump was selected: the names of all.
    pub fn finish(mut self) -> Result<(Heap, Vec<DumpSummary>), Vec<DumpSummary>> {
        while let Some(heap) = self.open.pop_front() {
            self.close(heap);
        }
        match self.selected {
            Some(heap) => Ok((heap, self.others.into())),
            None => Err(self.others.into()),
        }
    }

    fn close(&mut self, heap: Heap) {
        let is_wanted = match self.wanted {
            Wanted::LastWhole => heap.name.is_whole(),
            Wanted::Last => true,
            // An incomplete dump does not replace a complete one with the same number.
            Wanted::Number(number) => {
                let has_whole = self.selected.as_ref().is_some_and(|heap| heap.name.is_whole());
                number == heap.name.dump.id && (heap.name.is_whole() || !has_whole)
            }
        };
        let other = if is_wanted { self.selected.replace(heap) } else { Some(heap) };
        if let Some(other) = other {
            if self.others.len() == MAX_REMEMBERED {
                self.others.pop_front();
            }
            self.others.push_back(other.name);
        }
    }
}

impl Heap {
    /// A dump without objects.
    pub fn new(dump: &DumpIdentity<'_>) -> Self {
        let dump = DumpIdentity { peer: dump.peer.clone().into_owned().into(), ..*dump };
        let name = DumpSummary { dump, objects: 0, has_ended: false };
        Heap { name, sums: ClassSums::default(), objects: Vec::new(), has_objects: false }
    }

    /// Adds an object. Returns the number of its row.
    pub fn add(&mut self, object: &HeapObject<'_>, keeps_objects: bool) -> u32 {
        self.name.objects += 1;
        let size = object.size.unwrap_or(0);
        let row = self.count(object.class.as_deref(), &object.site, [1, size, object.references]);
        if keeps_objects {
            self.objects.push(HeapEntry { id: object.id, size, references: object.references, row });
        }
        row
    }

    /// Ends the dump.
    pub fn end(&mut self, dump: &DumpIdentity<'_>) {
        self.name.has_ended = true;
        self.name.dump.object_count = dump.object_count.or(self.name.dump.object_count);
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.sums.memory_bytes() + self.objects.capacity() * size_of::<HeapEntry>()
    }

    /// Adds to the sums of a class and site. Returns their row.
    fn count(&mut self, class: Option<&str>, site: &Site<'_>, more: [u64; 3]) -> u32 {
        let row = self.sums.row(class, site.file.as_deref(), site.line);
        self.sums.add(row, more);
        row
    }

    /// Its identity and completeness.
    pub fn name(&self) -> &DumpSummary {
        &self.name
    }

    /// Writes a row for each class and site, the most objects first.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let heads = ["count", "bytes", "references"];
        let ClassSums { places, sums } = &self.sums;
        RowTable { places, sums, heads, has_share: true }.write(out)?;
        note_full(places, out)
    }
}

pub(super) fn note_full(places: &Places, out: &mut impl Write) -> io::Result<()> {
    if !places.is_full() {
        return Ok(());
    }
    writeln!(out, "\nThere are more classes and sites than rows: the last row has all others.")
}

impl DumpSummary {
    /// Whether it is this dump.
    pub fn is_of(&self, dump: &DumpIdentity<'_>) -> bool {
        let DumpIdentity { peer, connection, pid, id, .. } = &self.dump;
        (*id, *connection, *pid) == (dump.id, dump.connection, dump.pid) && *peer == dump.peer
    }

    /// Whether the input has all objects that the agent has announced.
    pub fn is_whole(&self) -> bool {
        self.dump.object_count.map_or(self.has_ended, |count| self.objects >= count)
    }
}

impl fmt::Display for DumpSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DumpIdentity { peer, pid, id, object_count, .. } = &self.dump;
        write!(f, "dump {id} of ")?;
        if let Some(pid) = pid {
            write!(f, "process {pid} at ")?;
        }
        write!(f, "{}: {}", super::words::one_line(peer), self.objects)?;
        match object_count {
            Some(count) if *count != self.objects => write!(f, " of {count} objects"),
            _ if self.objects == 1 => write!(f, " object"),
            _ => write!(f, " objects"),
        }
    }
}
