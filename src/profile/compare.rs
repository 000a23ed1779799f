//! Two dumps of one process: which objects of the later one were not in the earlier.
//!
//! An object is known by its id, which is its address, and an address is given to another object once its first one is
//! gone. So an id that stands in both dumps says little by itself. When class or place differ, another object has taken
//! the address: it is `replaced`. When they agree it may still be another one, which no dump can show.

use std::io::{self, Write};

use super::heap::{Entry, Heap, note_full};
use super::rows::{Place, Places, Table};

/// What became of the objects of an earlier dump in a later one.
#[derive(Debug)]
pub struct Comparison<'a> {
    before: &'a Heap,
    after: &'a Heap,
    /// Objects in both dumps, as far as they can be told apart.
    pub kept: u64,
    /// Objects of the earlier dump whose ids the later does not have.
    pub gone: u64,
    /// Objects whose id the earlier dump does not have.
    pub new: u64,
    /// Objects whose id the earlier dump has for an object of another class or place.
    pub replaced: u64,
    /// Objects, new ones, replaced ones, bytes, references, by row of the later dump.
    sums: Vec<[u64; 5]>,
}

impl<'a> Comparison<'a> {
    /// Of two dumps whose objects were kept.
    pub fn new(before: &'a Heap, after: &'a Heap) -> Self {
        let mut known: Vec<(u64, u32)> = before.objects.iter().map(|object| (object.id, object.row)).collect();
        known.sort_unstable();
        known.dedup_by_key(|(id, _)| *id);
        let mut was_seen = vec![false; known.len()];
        let (kept, gone, new, replaced) = (0, 0, 0, 0);
        let mut comparison = Comparison { before, after, kept, gone, new, replaced, sums: Vec::new() };
        for object in &after.objects {
            let found = known.binary_search_by_key(&object.id, |(id, _)| *id).ok();
            let Some(at) = found else {
                comparison.new += 1;
                comparison.add(object, false);
                continue;
            };
            was_seen[at] = true;
            if is_other(before.places.place(known[at].1), after.places.place(object.row)) {
                comparison.replaced += 1;
                comparison.add(object, true);
            } else {
                comparison.kept += 1;
            }
        }
        comparison.gone = was_seen.iter().filter(|was_seen| !**was_seen).count() as u64;
        comparison
    }

    fn add(&mut self, object: &Entry, is_replaced: bool) {
        let row = object.row as usize;
        if self.sums.len() <= row {
            self.sums.resize(row + 1, [0; 5]);
        }
        let more = [1, u64::from(!is_replaced), u64::from(is_replaced), object.size, object.references];
        self.sums[row].iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Writes a row per class and place of what was not there before, then what became of the rest, and what this
    /// cannot see.
    ///
    /// # Errors
    /// As `out` has them.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let places: &Places = &self.after.places;
        let heads = ["count", "new", "replaced", "bytes", "references"];
        Table { places, sums: &self.sums, heads, has_share: false }.write(out)?;
        note_full(places, out)?;
        let Comparison { kept, gone, new, replaced, .. } = self;
        writeln!(out, "\nA: {}\nB: {}", self.before.name(), self.after.name())?;
        writeln!(out, "B has {new} new objects, {replaced} replaced and {kept} kept; {gone} of A are gone.")?;
        let (a, b) = (self.before.name().dump.pid, self.after.name().dump.pid);
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            writeln!(
                out,
                "A and B are of different processes ({a} and {b}): their ids have nothing to do with each other."
            )?;
        } else if kept + replaced == 0 && *new > 0 && *gone > 0 {
            writeln!(
                out,
                "No id is in both: they may be of different processes, whose ids have nothing to do with each other."
            )?;
        }
        out.write_all(BLIND_SPOTS.as_bytes())
    }
}

const BLIND_SPOTS: &str = "\
An id is an address, which Ruby gives to another object when the first is gone. `replaced`: the id was in A, with an
object of another class or place. An address taken by an object of the same class and place looks kept: `count` is the
least that came, never the most. Places are known only of objects made while memory profiling was on.
";

/// Whether these cannot be the same object. A place that only the earlier dump knows says nothing: the agent forgets
/// places when memory profiling ends.
fn is_other(before: &Place, after: &Place) -> bool {
    let has_place = after.file.is_some() || after.line.is_some();
    before.class != after.class || has_place && (&before.file, before.line) != (&after.file, after.line)
}
