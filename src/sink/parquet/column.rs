//! The values of one leaf column, collected for a row group, and how they are written.
//!
//! A leaf is written as Dremel does it: values, and for each entry a definition level (how much of its path is there) and a
//! repetition level (0: it begins a row). Rows without an entry are added when the next entry or the end of the row group
//! comes, so a column costs nothing for rows that do not have it.

use std::io::Write;

use bytes::Bytes;
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::writer::{SerializedColumnWriter, SerializedRowGroupWriter};

/// Texts are handed to the writer in pieces of about this many entries: each entry takes 32 bytes meanwhile.
const PIECE_ENTRIES: usize = 8192;

/// A leaf column of a row group.
#[derive(Debug)]
pub(super) struct Leaf {
    values: ColumnValues,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    max_definition: i16,
    is_repeated: bool,
    /// The number of rows, the one that is being written included.
    rows: usize,
}

#[derive(Debug)]
enum ColumnValues {
    Int(Vec<i64>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    Text { bytes: Vec<u8>, ends: Vec<u32> },
}

/// The physical type of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Physical {
    Int,
    Double,
    Bool,
    Text,
}

impl Leaf {
    /// An empty leaf. Definition level 0: every row has it.
    pub(super) fn new(physical: Physical, max_definition: i16, is_repeated: bool) -> Self {
        let values = match physical {
            Physical::Int => ColumnValues::Int(Vec::new()),
            Physical::Double => ColumnValues::Double(Vec::new()),
            Physical::Bool => ColumnValues::Bool(Vec::new()),
            Physical::Text => ColumnValues::Text { bytes: Vec::new(), ends: Vec::new() },
        };
        Leaf { values, definitions: Vec::new(), repetitions: Vec::new(), max_definition, is_repeated, rows: 0 }
    }

    /// Adds a value to this row, at the end.
    #[inline]
    pub(super) fn int(&mut self, row: usize, value: i64) {
        self.entry(row, self.max_definition);
        if let ColumnValues::Int(values) = &mut self.values {
            values.push(value);
        }
    }

    #[inline]
    pub(super) fn double(&mut self, row: usize, value: f64) {
        self.entry(row, self.max_definition);
        if let ColumnValues::Double(values) = &mut self.values {
            values.push(value);
        }
    }

    #[inline]
    pub(super) fn bool(&mut self, row: usize, value: bool) {
        self.entry(row, self.max_definition);
        if let ColumnValues::Bool(values) = &mut self.values {
            values.push(value);
        }
    }

    #[inline]
    pub(super) fn text(&mut self, row: usize, value: &[u8]) {
        self.text_with(row, |bytes| bytes.extend_from_slice(value));
    }

    /// Adds the text that `push` appends.
    #[inline]
    pub(super) fn text_with(&mut self, row: usize, push: impl FnOnce(&mut Vec<u8>)) {
        self.entry(row, self.max_definition);
        if let ColumnValues::Text { bytes, ends } = &mut self.values {
            push(bytes);
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
    }

    /// Adds an entry without value: of a list, an element whose member is null.
    pub(super) fn null(&mut self, row: usize) {
        self.entry(row, self.max_definition - 1);
    }

    #[inline]
    fn entry(&mut self, row: usize, definition: i16) {
        let begins = self.rows <= row;
        if begins {
            self.pad(row);
            self.rows = row + 1;
        }
        if self.max_definition > 0 {
            self.definitions.push(definition);
        }
        if self.is_repeated {
            self.repetitions.push(i16::from(!begins));
        }
    }

    /// Rows before `row` that have no entry are empty.
    #[inline]
    fn pad(&mut self, row: usize) {
        let missing = row - self.rows;
        if missing > 0 {
            self.definitions.resize(self.definitions.len() + missing, 0);
            if self.is_repeated {
                self.repetitions.resize(self.repetitions.len() + missing, 0);
            }
        }
    }

    /// Bytes of memory of what it has.
    pub(super) fn memory_bytes(&self) -> usize {
        let values = match &self.values {
            ColumnValues::Int(values) => values.len() * 8,
            ColumnValues::Double(values) => values.len() * 8,
            ColumnValues::Bool(values) => values.len(),
            ColumnValues::Text { bytes, ends } => bytes.len() + ends.len() * 4,
        };
        values + 2 * (self.definitions.len() + self.repetitions.len())
    }

    /// Writes the column of a row group of `rows` rows, and empties it.
    pub(super) fn write(&mut self, rows: usize, column: &mut SerializedColumnWriter<'_>) -> Result<()> {
        if self.max_definition > 0 {
            self.pad(rows);
        }
        let definitions = (self.max_definition > 0).then_some(&self.definitions[..]);
        let repetitions = self.is_repeated.then_some(&self.repetitions[..]);
        match &mut self.values {
            ColumnValues::Int(values) => write_all(column.typed::<Int64Type>(), values, definitions, repetitions)?,
            ColumnValues::Double(values) => write_all(column.typed::<DoubleType>(), values, definitions, repetitions)?,
            ColumnValues::Bool(values) => write_all(column.typed::<BoolType>(), values, definitions, repetitions)?,
            ColumnValues::Text { bytes, ends } => {
                let all = Bytes::from(std::mem::take(bytes));
                let texts =
                    ColumnTexts { bytes: &all, ends, definitions, repetitions, max_definition: self.max_definition };
                texts.write(column.typed::<ByteArrayType>())?;
                // The dictionary of the writer still refers to them.
                ends.clear();
            }
        }
        self.definitions.clear();
        self.repetitions.clear();
        self.rows = 0;
        Ok(())
    }
}

fn write_all<T: DataType>(
    writer: &mut ColumnWriterImpl<'_, T>,
    values: &mut Vec<T::T>,
    definitions: Option<&[i16]>,
    repetitions: Option<&[i16]>,
) -> Result<()> {
    writer.write_batch(values, definitions, repetitions)?;
    values.clear();
    Ok(())
}

/// The texts of a column.
struct ColumnTexts<'a> {
    bytes: &'a Bytes,
    ends: &'a [u32],
    definitions: Option<&'a [i16]>,
    repetitions: Option<&'a [i16]>,
    max_definition: i16,
}

impl ColumnTexts<'_> {
    fn write(self, writer: &mut ColumnWriterImpl<'_, ByteArrayType>) -> Result<()> {
        let entries = self.definitions.map_or(self.ends.len(), <[i16]>::len);
        let (mut at, mut value, mut start) = (0, 0, 0);
        let mut texts: Vec<ByteArray> = Vec::new();
        while at < entries {
            let mut end = entries.min(at + PIECE_ENTRIES);
            if let Some(repetitions) = self.repetitions {
                // A piece ends where a row ends.
                end += repetitions[end..].iter().take_while(|level| **level > 0).count();
            }
            let count = match self.definitions {
                Some(levels) => levels[at..end].iter().filter(|level| **level == self.max_definition).count(),
                None => end - at,
            };
            texts.clear();
            texts.extend(self.ends[value..value + count].iter().map(|text_end| {
                let text = self.bytes.slice(start..*text_end as usize);
                start = *text_end as usize;
                ByteArray::from(text)
            }));
            let definitions = self.definitions.map(|levels| &levels[at..end]);
            let repetitions = self.repetitions.map(|levels| &levels[at..end]);
            writer.write_batch(&texts, definitions, repetitions)?;
            value += count;
            at = end;
        }
        Ok(())
    }
}

/// Writes the leaves of a row group in their order.
pub(super) fn write_leaves<W: Write + Send>(
    leaves: &mut [Leaf],
    rows: usize,
    group: &mut SerializedRowGroupWriter<'_, W>,
) -> Result<()> {
    for leaf in leaves {
        let Some(mut column) = group.next_column()? else { break };
        leaf.write(rows, &mut column)?;
        column.close()?;
    }
    Ok(())
}
