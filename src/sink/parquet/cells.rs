//! The values of one leaf column of a file, some rows at a time.

use std::io;

use parquet::basic::Type as PhysicalType;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;

use tributary_event::Value;
use tributary_stored::Rebuilder;

/// A value of a column.
pub(super) enum Cell {
    Int(i64),
    Double(f64),
    Bool(bool),
    Text(ByteArray),
}

impl Cell {
    pub(super) fn text(self) -> io::Result<String> {
        match self {
            Cell::Text(text) => String::from_utf8(text.data().to_vec()).map_err(|_| invalid("a text is not UTF-8")),
            _ => Err(invalid("a column of texts has another type")),
        }
    }

    pub(super) fn value(self, out: &mut Rebuilder) -> io::Result<Value> {
        Ok(match self {
            Cell::Int(number) => Value::I64(number),
            Cell::Double(number) => Value::F64(number),
            Cell::Bool(value) => Value::Bool(value),
            text => Value::Text(out.builder().push_text(&text.text()?)),
        })
    }
}

/// A leaf column; some of its rows are in memory.
pub(super) struct Leaf {
    values: CellValues,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    max_definition: i16,
    is_repeated: bool,
    /// The next level and value.
    level: usize,
    value: usize,
}

enum CellValues {
    Int(Vec<i64>),
    Double(Vec<f64>),
    Bool(Vec<bool>),
    Text(Vec<ByteArray>),
    /// A type that tables of ours do not have.
    Other,
}

impl Leaf {
    pub(super) fn new(physical: PhysicalType, max_definition: i16, is_repeated: bool) -> Leaf {
        let values = match physical {
            PhysicalType::INT64 => CellValues::Int(Vec::new()),
            PhysicalType::DOUBLE => CellValues::Double(Vec::new()),
            PhysicalType::BOOLEAN => CellValues::Bool(Vec::new()),
            PhysicalType::BYTE_ARRAY => CellValues::Text(Vec::new()),
            _ => CellValues::Other,
        };
        let (definitions, repetitions) = (Vec::new(), Vec::new());
        Leaf { values, definitions, repetitions, max_definition, is_repeated, level: 0, value: 0 }
    }

    /// Replaces what is in memory by the next rows.
    pub(super) fn fill(&mut self, reader: &mut ColumnReader, rows: usize) -> io::Result<()> {
        (self.level, self.value) = (0, 0);
        self.definitions.clear();
        self.repetitions.clear();
        let definitions = (self.max_definition > 0).then_some(&mut self.definitions);
        let repetitions = self.is_repeated.then_some(&mut self.repetitions);
        let read = match (&mut self.values, reader) {
            (CellValues::Int(values), ColumnReader::Int64ColumnReader(reader)) => {
                values.clear();
                reader.read_records(rows, definitions, repetitions, values)
            }
            (CellValues::Double(values), ColumnReader::DoubleColumnReader(reader)) => {
                values.clear();
                reader.read_records(rows, definitions, repetitions, values)
            }
            (CellValues::Bool(values), ColumnReader::BoolColumnReader(reader)) => {
                values.clear();
                reader.read_records(rows, definitions, repetitions, values)
            }
            (CellValues::Text(values), ColumnReader::ByteArrayColumnReader(reader)) => {
                values.clear();
                reader.read_records(rows, definitions, repetitions, values)
            }
            _ => return Err(invalid("a column has a type that tables of this program do not have")),
        };
        let (records, ..) = read.map_err(failed)?;
        if records == rows { Ok(()) } else { Err(invalid("a column ends before its row group")) }
    }

    /// The value of the next row.
    pub(super) fn next(&mut self) -> Option<Cell> {
        if self.max_definition > 0 {
            let level = self.definitions.get(self.level).copied().unwrap_or(0);
            self.level += 1;
            if level < self.max_definition {
                return None;
            }
        }
        self.take()
    }

    fn take(&mut self) -> Option<Cell> {
        let at = self.value;
        self.value += 1;
        match &self.values {
            CellValues::Int(values) => values.get(at).map(|value| Cell::Int(*value)),
            CellValues::Double(values) => values.get(at).map(|value| Cell::Double(*value)),
            CellValues::Bool(values) => values.get(at).map(|value| Cell::Bool(*value)),
            CellValues::Text(values) => values.get(at).map(|value| Cell::Text(value.clone())),
            CellValues::Other => None,
        }
    }

    /// The definition levels of the next row, one for each entry, or one for a list without entries.
    fn next_levels(&mut self) -> Vec<i16> {
        let start = self.level;
        self.level += 1;
        while self.repetitions.get(self.level).is_some_and(|level| *level > 0) {
            self.level += 1;
        }
        self.definitions.get(start..self.level.min(self.definitions.len())).unwrap_or_default().to_vec()
    }

    /// The entries of the next row: lists of tables are never null. `None`: an entry without value.
    pub(super) fn next_entries(&mut self) -> Vec<Option<Cell>> {
        let levels = self.next_levels();
        let mut entries = Vec::new();
        for level in levels.into_iter().filter(|level| *level > 0) {
            entries.push(if level == self.max_definition { self.take() } else { None });
        }
        entries
    }

    /// The list of integers of the next row; `None`: it has none.
    pub(super) fn next_list(&mut self) -> Option<Vec<i64>> {
        let levels = self.next_levels();
        if levels.first().is_none_or(|level| *level == 0) {
            return None;
        }
        let mut items = Vec::new();
        for level in levels {
            if level == self.max_definition
                && let Some(Cell::Int(item)) = self.take()
            {
                items.push(item);
            }
        }
        Some(items)
    }
}

/// The error of a file that cannot be read.
pub(super) fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

pub(super) fn failed(error: ParquetError) -> io::Error {
    invalid(error.to_string())
}
