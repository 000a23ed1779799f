//! Rows that are found by their content: a slab whose places are used again, and an index.

use hashbrown::HashTable;

/// Rows of one type, each with a number as long as it is there.
#[derive(Debug)]
pub(crate) struct Rows<T> {
    rows: Vec<Option<(u64, T)>>,
    free: Vec<u32>,
    index: HashTable<u32>,
    most: usize,
}

impl<T> Rows<T> {
    /// No rows, and at most this many.
    pub(crate) fn new(most: usize) -> Rows<T> {
        Rows { rows: Vec::new(), free: Vec::new(), index: HashTable::new(), most }
    }

    /// Sets the most rows; those that are there stay.
    pub(crate) fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// The number of the row with this hash for which `is_it`.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        let found = self.index.find(hash, |at| self.get(*at).is_some_and(&is_it));
        found.copied()
    }

    /// Adds a row. `None`: there are too many.
    pub(crate) fn add(&mut self, hash: u64, row: T) -> Option<u32> {
        if self.len() >= self.most {
            return None;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.rows.push(None);
            self.rows.len() as u32 - 1
        });
        self.rows[at as usize] = Some((hash, row));
        let rows = &self.rows;
        self.index.insert_unique(hash, at, |at| rows[*at as usize].as_ref().map_or(0, |(hash, _)| *hash));
        Some(at)
    }

    /// The number of the first row for which `is_it`.
    pub(crate) fn position(&self, is_it: impl Fn(&T) -> bool) -> Option<u32> {
        (0..self.rows.len() as u32).find(|at| self.get(*at).is_some_and(&is_it))
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.rows.get(at as usize)?.as_ref().map(|(_, row)| row)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.rows.get_mut(at as usize)?.as_mut().map(|(_, row)| row)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.rows.iter().flatten().map(|(_, row)| row)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.rows.iter_mut().flatten().map(|(_, row)| row)
    }

    /// Removes the rows for which `stays` is false; it gets their numbers too.
    pub(crate) fn retain(&mut self, mut stays: impl FnMut(u32, &mut T) -> bool) {
        for at in 0..self.rows.len() {
            let Some((hash, row)) = &mut self.rows[at] else { continue };
            if stays(at as u32, row) {
                continue;
            }
            if let Ok(entry) = self.index.find_entry(*hash, |known| *known as usize == at) {
                entry.remove();
            }
            self.rows[at] = None;
            self.free.push(at as u32);
        }
    }

    /// Memory of the rows beside what they point to.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Option<(u64, T)>>() + self.free.capacity() * 4 + self.index.allocation_size()
    }
}
