//! Rows of objects by class and site, whose texts are stored once; and tables of them.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::Arc;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::words;

/// The maximum number of rows; objects of further ones are counted in the last row. A heap has some thousand rows.
const MAX_ROWS: usize = 1 << 20;
/// Memory of a text besides its bytes: its counts, and its entry in the table.
const TEXT_BYTES: usize = 40;
/// The maximum width of the class column; the site follows directly behind a longer class.
const CLASS_WIDTH: usize = 40;

/// A class and a site, as far as they are known.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct ClassSite {
    pub(super) class: Option<Arc<str>>,
    pub(super) file: Option<Arc<str>>,
    pub(super) line: Option<u64>,
}

/// The numbered classes and sites of one dump.
#[derive(Debug, Default)]
pub(super) struct Places {
    texts: HashMap<Arc<str>, (), RandomState>,
    rows: HashMap<ClassSite, u32, RandomState>,
    places: Vec<ClassSite>,
    is_full: bool,
    /// Bytes of the texts.
    text_bytes: usize,
}

impl Places {
    /// The number of a class and site.
    pub(super) fn row(&mut self, class: Option<&str>, file: Option<&str>, line: Option<u64>) -> u32 {
        let place =
            ClassSite { class: class.map(|text| self.text(text)), file: file.map(|text| self.text(text)), line };
        if let Some(row) = self.rows.get(&place) {
            return *row;
        }
        if self.places.len() == MAX_ROWS {
            self.is_full = true;
            return MAX_ROWS as u32 - 1;
        }
        let row = self.places.len() as u32;
        self.places.push(place.clone());
        self.rows.insert(place, row);
        row
    }

    fn text(&mut self, text: &str) -> Arc<str> {
        if let Some((kept, ())) = self.texts.get_key_value(text) {
            return kept.clone();
        }
        let kept: Arc<str> = text.into();
        if !self.is_full {
            self.texts.insert(kept.clone(), ());
            self.text_bytes += text.len() + TEXT_BYTES;
        }
        kept
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let row = size_of::<(ClassSite, u32)>() + 1;
        self.text_bytes + self.rows.capacity() * row + self.places.capacity() * size_of::<ClassSite>()
    }

    pub(super) fn place(&self, row: u32) -> &ClassSite {
        &self.places[row as usize]
    }

    /// Whether the last row has the objects of other rows too.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }
}

/// The sums of a row. Rows are ordered by the first sum.
pub(super) type RowSums<const N: usize> = [u64; N];

/// A table of classes and sites with sums, the largest first.
pub(super) struct RowTable<'a, const N: usize> {
    pub(super) places: &'a Places,
    /// By row; a row of zeros is not shown.
    pub(super) sums: &'a [RowSums<N>],
    /// The heads of the columns of sums.
    pub(super) heads: [&'static str; N],
    /// A column after the first sum has its share of the total.
    pub(super) has_share: bool,
}

impl<const N: usize> RowTable<'_, N> {
    /// Writes the table and a row of totals.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut rows: Vec<(u32, &RowSums<N>)> = (0..).zip(self.sums).filter(|(_, sums)| **sums != [0; N]).collect();
        rows.sort_by(|(a, a_sums), (b, b_sums)| {
            Reverse(a_sums).cmp(&Reverse(b_sums)).then_with(|| self.order(*a).cmp(&self.order(*b)))
        });
        let mut total = [0u64; N];
        for (_, sums) in &rows {
            total.iter_mut().zip(*sums).for_each(|(total, sum)| *total = total.saturating_add(*sum));
        }
        let mut head = String::new();
        for (at, name) in self.heads.iter().enumerate() {
            let _ = write!(head, "{name:>width$}  ", width = self.width(at, &total));
            if at == 0 && self.has_share {
                let _ = write!(head, "{:>6}  ", "share");
            }
        }
        let class_width = rows.iter().map(|(row, _)| self.class(*row).chars().count()).max().unwrap_or(0);
        let class_width = class_width.clamp("class".len(), CLASS_WIDTH);
        writeln!(out, "{head}{:<class_width$}  site", "class")?;
        for (row, sums) in &rows {
            let place = self.places.place(*row);
            let site = words::site(place.file.as_deref(), place.line);
            let site = site.as_deref().unwrap_or("(no site)");
            writeln!(out, "{}{:<class_width$}  {site}", self.numbers(sums, &total), self.class(*row))?;
        }
        writeln!(out, "{}total", self.numbers(&total, &total))
    }

    fn numbers(&self, sums: &RowSums<N>, total: &RowSums<N>) -> String {
        let mut line = String::new();
        for (at, sum) in sums.iter().enumerate() {
            let _ = write!(line, "{sum:>width$}  ", width = self.width(at, total));
            if at == 0 && self.has_share {
                let _ = write!(line, "{:>5.1}%  ", 100.0 * sums[0] as f64 / total[0].max(1) as f64);
            }
        }
        line
    }

    fn width(&self, column: usize, total: &RowSums<N>) -> usize {
        self.heads[column].len().max(total[column].to_string().len())
    }

    fn class(&self, row: u32) -> std::borrow::Cow<'_, str> {
        words::class(self.places.place(row).class.as_deref())
    }

    fn order(&self, row: u32) -> (Option<&str>, Option<&str>, Option<u64>) {
        let place = self.places.place(row);
        (place.class.as_deref(), place.file.as_deref(), place.line)
    }
}
