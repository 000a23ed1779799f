//! Objects of a heap, summed up by class and site.

use super::rows::{ClassSite, Places, RowSums};

/// The sums of a heap, or of a part of it.
#[derive(Debug, Default)]
pub struct ClassSums {
    pub(super) places: Places,
    /// By row.
    pub(super) sums: Vec<RowSums<3>>,
}

/// The objects of a class that were allocated at a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassRow<'a> {
    /// The class; internal objects have none.
    pub class: Option<&'a str>,
    /// The site, as far as it is known.
    pub file: Option<&'a str>,
    #[allow(missing_docs)]
    pub line: Option<u64>,
    /// Objects, their bytes, and their references to other objects.
    pub sums: [u64; 3],
}

impl ClassSums {
    /// The number of the row of a class and site, from 0 on. The sums of a new row are 0. When there are too many rows, it is that
    /// of the last one.
    pub fn row(&mut self, class: Option<&str>, file: Option<&str>, line: Option<u64>) -> u32 {
        let row = self.places.row(class, file, line);
        if self.sums.len() <= row as usize {
            self.sums.push([0; 3]);
        }
        row
    }

    /// Adds objects, bytes and references to the sums of a row.
    pub fn add(&mut self, row: u32, more: [u64; 3]) {
        self.sums[row as usize].iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }

    /// Every class and site, in the order of their numbers.
    pub fn rows(&self) -> impl Iterator<Item = ClassRow<'_>> {
        (0..self.sums.len() as u32).map(|row| self.get(row))
    }

    /// The class and site with this number.
    pub fn get(&self, row: u32) -> ClassRow<'_> {
        let ClassSite { class, file, line } = self.places.place(row);
        let sums = self.sums.get(row as usize).copied().unwrap_or_default();
        ClassRow { class: class.as_deref(), file: file.as_deref(), line: *line, sums }
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.places.memory_bytes() + self.sums.capacity() * size_of::<RowSums<3>>()
    }
}
