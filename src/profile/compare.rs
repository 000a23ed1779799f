//! Compares two dumps of one process: which objects of the later one are not in the earlier one.
//!
//! The id of an object is its address, which another object may have after the first one is freed. So an equal id does not
//! prove that it is the same object. If class or site differ it is another object: it is `replaced`. If they are equal it
//! may still be another object; a dump does not show that.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::heap::{Heap, HeapEntry, note_full};
use super::rows::{ClassSite, Places, RowTable};
use super::words;

/// The difference between an earlier and a later dump.
#[derive(Debug)]
pub struct Comparison<'a> {
    before: &'a Heap,
    after: &'a Heap,
    /// Objects with the same id, class and site in both dumps.
    pub kept: u64,
    /// Objects of the earlier dump whose ids are not in the later one.
    pub gone: u64,
    /// Objects whose ids are not in the earlier dump.
    pub new: u64,
    /// Objects whose ids the earlier dump has for an object of another class or site.
    pub replaced: u64,
    /// All objects, new ones, replaced ones, bytes and references, for each row of the later dump.
    sums: Vec<[u64; 5]>,
}

impl<'a> Comparison<'a> {
    /// Compares two dumps whose objects were kept.
    pub fn new(before: &'a Heap, after: &'a Heap) -> Self {
        let mut known: Vec<(u64, u32)> = before.objects.iter().map(|object| (object.id, object.row)).collect();
        known.sort_unstable();
        known.dedup_by_key(|(id, _)| *id);
        let mut is_in_both = vec![false; known.len()];
        let (kept, gone, new, replaced) = (0, 0, 0, 0);
        let mut comparison = Comparison { before, after, kept, gone, new, replaced, sums: Vec::new() };
        for object in &after.objects {
            let index = known.binary_search_by_key(&object.id, |(id, _)| *id).ok();
            let Some(at) = index else {
                comparison.new += 1;
                comparison.add(object, false);
                continue;
            };
            is_in_both[at] = true;
            if is_other(before.sums.places.place(known[at].1), after.sums.places.place(object.row)) {
                comparison.replaced += 1;
                comparison.add(object, true);
            } else {
                comparison.kept += 1;
            }
        }
        comparison.gone = is_in_both.iter().filter(|is_in_both| !**is_in_both).count() as u64;
        comparison
    }

    fn add(&mut self, object: &HeapEntry, is_replaced: bool) {
        let row = object.row as usize;
        if self.sums.len() <= row {
            self.sums.resize(row + 1, [0; 5]);
        }
        let more = [1, u64::from(!is_replaced), u64::from(is_replaced), object.size, object.references];
        self.sums[row].iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Writes a row for each class and site with new or replaced objects, then the totals and the limits of the comparison. If
    /// a dump has sums only, the rows are the differences of the sums.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        if !self.before.has_objects || !self.after.has_objects {
            return self.write_sums(out);
        }
        let places: &Places = &self.after.sums.places;
        let heads = ["count", "new", "replaced", "bytes", "references"];
        RowTable { places, sums: &self.sums, heads, has_share: false }.write(out)?;
        note_full(places, out)?;
        let Comparison { kept, gone, new, replaced, .. } = self;
        writeln!(out, "\nA: {}\nB: {}", self.before.name(), self.after.name())?;
        writeln!(out, "B has {new} new objects, {replaced} replaced and {kept} kept; {gone} of A are gone.")?;
        let (a, b) = (self.before.name().dump.pid, self.after.name().dump.pid);
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            writeln!(out, "A and B are of different processes ({a} and {b}): their ids cannot be compared.")?;
        } else if kept + replaced == 0 && *new > 0 && *gone > 0 {
            writeln!(out, "No id is in both: they may be of different processes, whose ids cannot be compared.")?;
        }
        out.write_all(LIMITS.as_bytes())
    }
}

/// Class, file and line, as far as they are known.
type ClassAndSite<'a> = (Option<&'a str>, Option<&'a str>, Option<u64>);

impl Comparison<'_> {
    /// Writes a row for each class and site whose sums differ, the one with the largest difference of objects first.
    fn write_sums(&self, out: &mut impl Write) -> io::Result<()> {
        // Objects and bytes, before and after.
        let mut rows: BTreeMap<ClassAndSite<'_>, [[u64; 2]; 2]> = BTreeMap::new();
        for (column, heap) in [self.before, self.after].into_iter().enumerate() {
            for row in heap.sums.rows() {
                let sum = &mut rows.entry((row.class, row.file, row.line)).or_default()[column];
                *sum = [row.sums[0], row.sums[1]];
            }
        }
        let difference = |before: u64, after: u64| i128::from(after) - i128::from(before);
        let mut rows: Vec<_> = rows.into_iter().filter(|(_, [before, after])| before != after).collect();
        rows.sort_by_key(|(_, [before, after])| Reverse(difference(before[0], after[0]).abs()));
        writeln!(out, "{:>12}  {:>14}  {:<40}  site", "count", "bytes", "class")?;
        let mut total = [0, 0];
        for ((class, file, line), [before, after]) in rows {
            let [count, bytes] = [0, 1].map(|column| difference(before[column], after[column]));
            total = [total[0] + count, total[1] + bytes];
            let site = words::site(file, line);
            let site = site.as_deref().unwrap_or("(no site)");
            writeln!(out, "{count:>+12}  {bytes:>+14}  {:<40}  {site}", words::class(class))?;
        }
        writeln!(out, "{:>+12}  {:>+14}  total", total[0], total[1])?;
        note_full(&self.after.sums.places, out)?;
        writeln!(out, "\nA: {}\nB: {}", self.before.name(), self.after.name())?;
        writeln!(out, "The dumps have sums only: the rows are B without A.")
    }
}

const LIMITS: &str = "\
An id is an address, which Ruby reuses for another object after the first is freed. `replaced`: A has the id for an
object of another class or site. If an object of the same class and site has reused an address, it counts as kept: `count`
is a lower bound. Sites are known only of objects that were allocated while memory profiling was on.
";

/// Whether these are certainly different objects. A site that only the earlier dump has proves nothing: the agent forgets
/// sites when memory profiling ends.
fn is_other(before: &ClassSite, after: &ClassSite) -> bool {
    let has_site = after.file.is_some() || after.line.is_some();
    before.class != after.class || has_site && (&before.file, before.line) != (&after.file, after.line)
}
