//! Heap dumps of Ruby programs, added to tables while they pass: a row for each class and site, and as far as memory goes the
//! references between objects.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use tributary_event::{EventView, KeyView, UnixNanos, ValueView, semconv};
use tributary_profile::heap::Heap;
use tributary_profile::heap_fields::HeapFields;
use tributary_profile::{DumpIdentity, events};

/// The most dumps.
const MAX_DUMPS: usize = 16;
/// Memory of a dump besides its tables.
const DUMP_BYTES: usize = 1024;
/// An object with its place among the references, and one reference.
const OBJECT_BYTES: usize = size_of::<ObjectNode>();
const REFERENCE_BYTES: usize = size_of::<u64>();

/// The latest dumps.
#[derive(Debug)]
pub struct Heaps {
    /// The oldest first.
    dumps: VecDeque<HeapDump>,
    next: u64,
    limit: usize,
}

/// A dump.
#[derive(Debug)]
pub struct HeapDump {
    /// Its number in the view.
    pub number: u64,
    /// The process in words.
    pub agent: String,
    /// The listener.
    pub listener: Arc<str>,
    /// When its first object was read.
    pub at: UnixNanos,
    /// Its rows.
    pub heap: Heap,
    /// Objects that are in no row, because there are too many classes and sites.
    pub left_out: u64,
    graph: Graph,
}

/// Objects and their references.
#[derive(Debug, Default)]
struct Graph {
    nodes: Vec<ObjectNode>,
    references: Vec<u64>,
    /// There was no memory for further objects.
    is_cut: bool,
}

#[derive(Clone, Copy, Debug)]
struct ObjectNode {
    id: u64,
    row: u32,
    /// Where its references end; they begin where those of the object before end.
    end: u32,
}

/// Classes that refer to a class, or that it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Related {
    /// The class; internal objects have none. An object that is not in the dump has the class `(not in the dump)`.
    pub class: Option<String>,
    /// References.
    pub references: u64,
    /// The objects that have these references.
    pub objects: u64,
}

/// What refers to the objects of a class, and what they refer to.
#[derive(Clone, Debug, Default)]
pub struct References {
    /// Objects of the class whose references are known.
    pub objects: u64,
    #[allow(missing_docs)]
    pub referred_from: Vec<Related>,
    #[allow(missing_docs)]
    pub refers_to: Vec<Related>,
    /// Objects of the dump whose references are known.
    pub examined: u64,
}

impl Heaps {
    /// No dumps, in at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Heaps { dumps: VecDeque::new(), next: 1, limit }
    }

    /// Sets the most bytes. The oldest dumps are dropped until the others fit.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        while self.memory_bytes() > self.limit {
            self.dumps.pop_front();
        }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.dumps.iter().map(HeapDump::memory_bytes).sum()
    }

    /// The dumps, the oldest first.
    pub fn dumps(&self) -> impl DoubleEndedIterator<Item = &HeapDump> {
        self.dumps.iter()
    }

    /// The dump with this number.
    pub fn dump(&self, number: u64) -> Option<&HeapDump> {
        self.dumps.iter().find(|dump| dump.number == number)
    }

    /// Adds an event of rbkit, if it is about a dump.
    pub(super) fn add(&mut self, event: EventView<'_>) {
        match event.name_key() {
            KeyView::Name(semconv::RBKIT_HEAP_OBJECT) => self.add_object(event),
            KeyView::Name(semconv::RBKIT_HEAP_DUMP) => {
                let dump = HeapFields::of(event).identity(event);
                if let Some(at) = self.find(&dump) {
                    self.dumps[at].heap.end(&dump);
                }
            }
            _ => {}
        }
    }

    fn find(&self, dump: &DumpIdentity<'_>) -> Option<usize> {
        self.dumps.iter().rposition(|known| known.heap.name().is_of(dump))
    }

    fn add_object(&mut self, event: EventView<'_>) {
        let fields = HeapFields::of(event);
        let dump = fields.identity(event);
        let at = self.find(&dump).unwrap_or_else(|| {
            if self.dumps.len() >= MAX_DUMPS {
                self.dumps.pop_front();
            }
            let (agent, listener, at) = (events::agent(event), event.origin().listener.clone(), event.observed());
            let (number, heap, graph) = (self.next, Heap::new(&dump), Graph::default());
            self.next += 1;
            self.dumps.push_back(HeapDump { number, agent, listener, at, heap, left_out: 0, graph });
            self.dumps.len() - 1
        });
        let texts = [fields.class, fields.file].into_iter().flatten().map(str::len).sum::<usize>();
        let at = self.free_memory(at, texts + 256);
        // The tables of its rows may double.
        let is_full = self.memory_bytes() + self.dumps[at].heap.memory_bytes() + texts + 256 > self.limit;
        let heap_dump = &mut self.dumps[at];
        if is_full {
            heap_dump.left_out += 1;
            return;
        }
        let object = fields.object(dump);
        let (id, row) = (object.id, heap_dump.heap.add(&object, false));
        if !heap_dump.graph.is_cut {
            let graph = &mut heap_dump.graph;
            graph.references.extend(fields.references.into_iter().flatten().filter_map(ValueView::as_u64));
            graph.nodes.push(ObjectNode { id, row, end: u32::try_from(graph.references.len()).unwrap_or(u32::MAX) });
        }
    }

    /// Frees memory for `bytes` of the dump at `at`, as far as possible: first the references of the oldest dumps, then
    /// whole dumps, then the references of this dump. Returns where the dump is then.
    fn free_memory(&mut self, mut at: usize, bytes: usize) -> usize {
        // The vectors of this dump may double.
        let own = &self.dumps[at];
        let growth = if own.graph.is_cut { own.heap.memory_bytes() / 2 } else { own.memory_bytes() };
        while self.memory_bytes() + growth + bytes > self.limit {
            let older = (0..self.dumps.len()).find(|other| *other != at && !self.dumps[*other].graph.nodes.is_empty());
            if let Some(older) = older {
                self.dumps[older].graph = Graph { is_cut: true, ..Graph::default() };
            } else if let Some(other) = (0..self.dumps.len()).find(|other| *other != at) {
                self.dumps.remove(other);
                at -= usize::from(other < at);
            } else {
                self.dumps[at].graph.is_cut = true;
                break;
            }
        }
        at
    }
}

impl HeapDump {
    fn memory_bytes(&self) -> usize {
        let Graph { nodes, references, .. } = &self.graph;
        DUMP_BYTES
            + self.agent.len()
            + self.heap.memory_bytes()
            + nodes.capacity() * OBJECT_BYTES
            + references.capacity() * REFERENCE_BYTES
    }

    /// Whether any references are known.
    pub fn has_references(&self) -> bool {
        !self.graph.nodes.is_empty()
    }

    /// Memory that [`HeapDump::references`] takes at most.
    pub fn reference_bytes(&self) -> usize {
        self.graph.nodes.len() * size_of::<u32>() + self.heap.sums.rows().count() * 256
    }

    /// What refers to the objects of a class, and what they refer to.
    pub fn references(&self, class: Option<&str>) -> References {
        let nodes = &self.graph.nodes;
        let mut by_id: Vec<u32> = (0..nodes.len() as u32).collect();
        by_id.sort_unstable_by_key(|at| nodes[*at as usize].id);
        let row_of = |id: u64| {
            let place = by_id.binary_search_by_key(&id, |at| nodes[*at as usize].id).ok()?;
            Some(nodes[by_id[place] as usize].row)
        };
        let class_of = |row: u32| self.heap.sums.get(row).class;
        let is_it: Vec<bool> = self.heap.sums.rows().map(|row| row.class == class).collect();
        let mut from: HashMap<Option<&str>, (u64, u64), RandomState> = HashMap::default();
        let mut to = from.clone();
        let (mut objects, mut start) = (0, 0);
        // The last object that was counted for a class, so that each counts once.
        let mut counted: HashMap<Option<&str>, usize, RandomState> = HashMap::default();
        for (index, node) in nodes.iter().enumerate() {
            let own = is_it.get(node.row as usize).copied().unwrap_or(false);
            objects += u64::from(own);
            let end = node.end as usize;
            let mut into = 0;
            for id in self.graph.references.get(start..end).unwrap_or_default() {
                let row = row_of(*id);
                into += u64::from(row.is_some_and(|row| is_it.get(row as usize).copied().unwrap_or(false)));
                if own {
                    let class = row.map_or(Some("(not in the dump)"), class_of);
                    let entry = to.entry(class).or_default();
                    entry.0 += 1;
                    entry.1 += u64::from(counted.insert(class, index) != Some(index));
                }
            }
            if into > 0 {
                let entry = from.entry(class_of(node.row)).or_default();
                entry.0 += into;
                entry.1 += 1;
            }
            start = end;
        }
        References { objects, referred_from: sorted(from), refers_to: sorted(to), examined: nodes.len() as u64 }
    }
}

fn sorted(classes: HashMap<Option<&str>, (u64, u64), RandomState>) -> Vec<Related> {
    let related = |(class, (references, objects)): (Option<&str>, _)| Related {
        class: class.map(str::to_owned),
        references,
        objects,
    };
    let mut sorted: Vec<Related> = classes.into_iter().map(related).collect();
    sorted.sort_by(|a, b| b.references.cmp(&a.references).then_with(|| a.class.cmp(&b.class)));
    sorted
}
