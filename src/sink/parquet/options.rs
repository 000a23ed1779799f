//! The options of a Parquet sink.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::schema::{Shape, is_free};
use super::upload::UploadOptions;
use tributary_event::Kind;
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_sink::encode::Format;
use tributary_sink_file as file;
use tributary_sink_file::template::Template;
use tributary_system::processors;

/// A row group is also written when its values take this much memory.
pub(super) const ROW_GROUP_BYTES: usize = 12 << 20;
/// Memory of a file being written: a row group, whose capacity may be twice its size, and what the encoder and the compressor
/// of one column take.
const CONVERSION_BYTES: u64 = 40 << 20;
/// The highest default of `conversions`.
const MOST_CONVERSIONS: usize = 4;
/// The directory of the journal, below the base of the path.
const JOURNAL: &str = ".journal";
/// The name of every file, without its time.
const NAME: &str = "{kind}-{protocol}";
/// The most columns of attributes of one table.
const MAX_COLUMNS: usize = 256;
const MAX_NAME_BYTES: usize = 256;

options! {
    /// The options of a [`super::Parquet`]. Every field has a default.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options checked by check {
        /// Attributes with a column of their own, in addition to those of their protocol: ["http.route:string", "db.rows:int"]. The
        /// types are string, int, double, bool and int[].
        pub columns: Vec<(Kind, Vec<(String, ColumnType)>)> = section(read_columns),
        /// The directories of the files: a path with date items, {kind}, {protocol} and {listener}, as that of the sink file. The sink
        /// names the files.
        pub path: String = text("archive/{kind}/date=%Y-%m-%d/{protocol}"),
        /// A file is finished when it has this many rows.
        pub rotate_rows: u64 = count(1_000_000, 1..=1_000_000_000),
        /// A file is finished before its rows take more than this in the journal, mostly several times its own size. 0: not for that
        /// reason.
        pub rotate_bytes: u64 = size(256 << 20, 0..=1024 << 30),
        /// A file is finished this long after its first row.
        pub rotate_interval: Duration = duration(Duration::from_secs(15 * 60), Duration::from_millis(1)..=LONGEST),
        /// The most rows of a row group. It is also complete when its values take 12 MiB of memory.
        pub row_group_rows: usize = count(131_072, 1..=16_777_216),
        /// How many files are written at once, each by a thread of its own. Not set: half of the number of processors, at least 1 and at
        /// most 4.
        pub conversions: Option<usize> = optional_count(1..=64),
        /// The compression of pages: "none", "lz4" or "zstd".
        pub compression: Compression =
            choice(Compression::default(), &Compression::ALL.map(|compression| (compression.as_str(), compression))),
        /// The unit of times: "microseconds", with their nanoseconds in columns of their own, or "nanoseconds", which Spark does not
        /// read.
        pub timestamps: Timestamps =
            choice(Timestamps::default(), &Timestamps::ALL.map(|timestamps| (timestamps.as_str(), timestamps))),
        /// How many finished files of each series are kept; the oldest are removed first. 0: no limit.
        pub keep_files: usize = count(0, 0..=1_000_000),
        /// How many bytes the finished files of each series take at most; the oldest are removed first. 0: no limit.
        pub keep_bytes: u64 = size(0, 0..=1 << 60),
        /// How long finished files are kept. "0s": no limit.
        pub keep_time: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST * 100),
        /// How long rows may be in the operating system's memory only, if no request waits for them.
        pub fsync_interval: Duration = duration(Duration::from_secs(1), Duration::from_millis(1)..=LONGEST),
        /// An object store that gets each finished file. Not set: they stay here.
        pub upload: Option<UploadOptions> = optional_section(UploadOptions::read),
    }
}

/// The columns of attributes that the operator names, by kind.
fn read_columns(section: &mut Section<'_>) -> Vec<(Kind, Vec<(String, ColumnType)>)> {
    let of = |(kind, table): (Kind, &str)| {
        section.about("Attributes of these events with a column of their own.");
        let columns = section.list_of_parsed(table, MAX_COLUMNS, |text| AttributeColumn::parse(kind, text));
        (kind, columns.into_iter().map(|AttributeColumn(name, column)| (name, column)).collect::<Vec<_>>())
    };
    TABLES.map(of).into_iter().filter(|(_, columns)| !columns.is_empty()).collect()
}

impl Options {
    fn check(&self, section: &mut Section<'_>) {
        if let Err(fault) = self.templates() {
            section.error("path", fault, None);
        }
    }

    /// The templates of the journal, and of the finished files without their time.
    ///
    /// # Errors
    /// What is invalid in `path`, as a text for the operator.
    pub(super) fn templates(&self) -> Result<(Template, Template), String> {
        let path = self.path.strip_suffix('/').unwrap_or(&self.path);
        let archive = Template::parse(&format!("{path}/{NAME}.parquet"))?;
        // The journal is below the base, so that it is on the same file system and belongs to this path only.
        let base = archive.base().display().to_string();
        let rest = path.split('/').skip_while(|name| !name.contains(['%', '{'])).collect::<Vec<_>>().join("/");
        let separator = if base.is_empty() || base.ends_with('/') { "" } else { "/" };
        let journal = Template::parse(&format!("{base}{separator}{JOURNAL}/{rest}/{NAME}.rows"))?;
        Ok((journal, archive))
    }

    /// The paths of all finished files, for the search of two sinks that write the same files.
    pub fn files(&self) -> String {
        format!("{}/{NAME}.parquet", self.path)
    }

    /// The directory that all files are in, or below: the base of `path`.
    pub fn directory(&self) -> PathBuf {
        Template::parse(&self.path).map(|template| template.base().to_owned()).unwrap_or_default()
    }

    /// The options of the files of the journal.
    pub(super) fn journal(&self) -> file::Options {
        file::Options {
            path: String::new(),
            format: Format::Rows,
            rotate_bytes: self.rotate_bytes,
            rotate_records: self.rotate_rows,
            rotate_interval: self.rotate_interval,
            fsync_interval: self.fsync_interval,
            // Messages that are delivered again are written again: a journal that was converted cannot be cut.
            remembered_messages: 0,
            ..file::Options::default()
        }
    }

    /// What is kept of finished files, as options of the sink `file`.
    pub fn kept(&self) -> file::Options {
        let Options { keep_files, keep_bytes, keep_time, .. } = *self;
        file::Options {
            rotate_bytes: 0,
            rotate_interval: Duration::ZERO,
            keep_files,
            keep_bytes,
            keep_time,
            ..file::Options::default()
        }
    }

    /// How many files are written at once.
    pub fn conversions(&self) -> usize {
        self.conversions.unwrap_or_else(|| (processors() / 2).clamp(1, MOST_CONVERSIONS))
    }

    /// The columns of attributes that the operator names for this kind.
    pub(super) fn columns_of(&self, kind: Kind) -> Vec<(String, Shape)> {
        let of_kind = self.columns.iter().filter(|(of, _)| *of == kind).flat_map(|(_, columns)| columns);
        of_kind.map(|(name, column)| (name.clone(), column.shape())).collect()
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        self.journal().declare(of, bounds);
        bounds.add(of, "Parquet files being written", self.conversions() as u64 * CONVERSION_BYTES);
        if let Some(upload) = &self.upload {
            upload.declare(of, bounds);
        }
    }
}

/// The names of tables in the configuration and in documents.
const TABLES: [(Kind, &str); 5] = [
    (Kind::Log, "logs"),
    (Kind::Span, "spans"),
    (Kind::Metric, "metrics"),
    (Kind::Sample, "samples"),
    (Kind::Loss, "losses"),
];

/// A column of an attribute in the configuration: `key:type`.
struct AttributeColumn(String, ColumnType);

impl AttributeColumn {
    fn parse(kind: Kind, text: &str) -> Result<AttributeColumn, (String, String)> {
        let types = ColumnType::ALL.map(ColumnType::as_str).join(", ");
        let help = || format!("write \"http.status_code:int\"; the types are {types}");
        let Some((name, of)) = text.rsplit_once(':') else { return Err((format!("{text:?} has no type"), help())) };
        let Some(column) = ColumnType::ALL.into_iter().find(|known| known.as_str() == of) else {
            return Err((format!("{text:?} has no known type"), help()));
        };
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err((format!("{text:?} has no valid key"), format!("a key has 1 to {MAX_NAME_BYTES} bytes")));
        }
        if !is_free(kind, name) {
            return Err((format!("`{name}` is another column of this table"), "it stays in the maps".to_owned()));
        }
        Ok(AttributeColumn(name.to_owned(), column))
    }
}

impl fmt::Display for AttributeColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0, self.1.as_str())
    }
}

/// The type of an attribute's column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ColumnType {
    String,
    Int,
    Double,
    Bool,
    Ints,
}

impl ColumnType {
    /// Every type.
    pub const ALL: [ColumnType; 5] =
        [ColumnType::String, ColumnType::Int, ColumnType::Double, ColumnType::Bool, ColumnType::Ints];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            ColumnType::String => "string",
            ColumnType::Int => "int",
            ColumnType::Double => "double",
            ColumnType::Bool => "bool",
            ColumnType::Ints => "int[]",
        }
    }

    fn shape(self) -> Shape {
        match self {
            ColumnType::String => Shape::Text,
            ColumnType::Int => Shape::Int,
            ColumnType::Double => Shape::Double,
            ColumnType::Bool => Shape::Bool,
            ColumnType::Ints => Shape::Ints,
        }
    }
}

/// The unit of the columns that have a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timestamps {
    /// Microseconds, which every reader of Parquet has. The rest, 0 to 999 nanoseconds, is in another column.
    #[default]
    Microseconds,
    /// Nanoseconds. Spark does not read such files.
    Nanoseconds,
}

impl Timestamps {
    /// Every unit.
    pub const ALL: [Timestamps; 2] = [Timestamps::Microseconds, Timestamps::Nanoseconds];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Timestamps::Microseconds => "microseconds",
            Timestamps::Nanoseconds => "nanoseconds",
        }
    }
}

/// The compression of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// None.
    None,
    /// LZ4, without frames: fast, and larger.
    Lz4,
    /// Zstandard, level 3.
    #[default]
    Zstd,
}

impl Compression {
    /// Every compression.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}
