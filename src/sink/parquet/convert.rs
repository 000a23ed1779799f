//! A finished file of the journal to a Parquet file. Runs on another thread than the writing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use parquet::basic::{Compression as Codec, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, TypePtr};

use super::column::Physical;
use super::options::{Compression, Options, ROW_GROUP_BYTES, Timestamps};
use super::schema::{self, Column, FORM_KEY, FORMS, JOURNAL_KEY, KIND_KEY, Role, Shape};
use super::table::RowGroup;
use tributary_event::{Batch, EventView};
use tributary_sink_file::names;
use tributary_stored::Rebuilder;
use tributary_stored::row_reader::RowReader;
use tributary_system::directories;

const BLOCK_BYTES: usize = 256 * 1024;
/// The longest row of a journal that is read.
const MAX_ROW_BYTES: u64 = 64 << 20;
/// What is appended to the name of a journal that has damaged rows: it is kept for the operator.
const DAMAGED: &str = ".damaged";

/// Files whose name was taken are numbered; more than this many are an error.
pub(super) const MAX_SAME_NAME: u32 = 1_000;

/// A directory that is removed as soon as it was created is created at most this many times.
const MAX_PLACINGS: u32 = 100;

/// A file of the journal, and where its rows go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) journal: PathBuf,
    pub(super) target: PathBuf,
}

/// What a conversion has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Converted {
    pub(super) rows: u64,
    /// Rows that could not be read.
    pub(super) damaged: u64,
    /// The size of the file; 0: there is none.
    pub(super) bytes: u64,
}

/// Writes the rows of a journal to a file, and removes the journal. The file has its name when it is complete and on the disk. If
/// there is a file of this name that was made of this journal, a process was killed before it could remove the journal.
///
/// # Errors
/// The system's. The journal is still there.
pub(super) fn convert(job: &Job, options: &Options, stop: &AtomicBool) -> io::Result<Converted> {
    let mut done = Converted::default();
    let temporary = job.journal.with_extension("parquet.tmp");
    if free_name(job)?.is_some() {
        let result = write(&job.journal, &temporary, options, stop, &mut done).and_then(|has_rows| {
            if has_rows {
                done.bytes = fs::metadata(&temporary)?.len();
                place(&temporary, job)?;
            }
            Ok(())
        });
        if result.is_err() {
            let _ = fs::remove_file(&temporary);
            result?;
        }
    } else {
        // Its name may not be on the disk: syncing the directory can have failed before.
        sync_name(&job.target)?;
        let _ = fs::remove_file(&temporary);
    }
    if done.damaged > 0 {
        fs::rename(&job.journal, job.journal.with_extension(format!("rows{DAMAGED}")))?;
    } else {
        fs::remove_file(&job.journal)?;
    }
    Ok(done)
}

/// A name that no file has; `None`: there is a file that was made of this journal. Others can have its name when the clock was
/// set back, and then it gets the next number.
fn free_name(job: &Job) -> io::Result<Option<PathBuf>> {
    let Some((first, with_number)) = names::numbered(&job.target) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not the name of a finished file"));
    };
    let mut identity = None;
    for number in first..first.saturating_add(MAX_SAME_NAME) {
        let target = with_number(number);
        if !fs::exists(&target)? {
            return Ok(Some(target));
        }
        let identity = match &identity {
            Some(identity) => identity,
            None => identity.insert(identity_of(&job.journal)?),
        };
        if journal_of(&target).as_ref() == Some(identity) {
            return Ok(None);
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free name for the file"))
}

/// What identifies a journal: its length, and a checksum.
fn identity_of(journal: &Path) -> io::Result<String> {
    let mut journal = BufReader::with_capacity(BLOCK_BYTES, File::open(journal)?);
    let (mut bytes, mut crc) = (0, 0);
    loop {
        let block = journal.fill_buf()?;
        if block.is_empty() {
            return Ok(identity(bytes, crc));
        }
        crc = crc32c::crc32c_append(crc, block);
        bytes += block.len() as u64;
        let read = block.len();
        journal.consume(read);
    }
}

fn identity(bytes: u64, crc: u32) -> String {
    format!("{bytes}-{crc:08x}")
}

/// The identity of the journal that a file was made of.
fn journal_of(file: &Path) -> Option<String> {
    let file = SerializedFileReader::new(File::open(file).ok()?).ok()?;
    let metadata = file.metadata().file_metadata().key_value_metadata()?;
    metadata.iter().find(|entry| entry.key == JOURNAL_KEY)?.value.clone()
}

/// Gives a complete file a free name. Its directory, and those above, can be removed at any moment until it is there: they are empty
/// when their last file was uploaded, or was too old.
fn place(temporary: &Path, job: &Job) -> io::Result<()> {
    static PLACING: Mutex<()> = Mutex::new(());
    let mut attempts = 1;
    loop {
        // Of files that are written at once, one takes a free name after the other.
        let placing = PLACING.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(target) = free_name(job)? else { return fs::remove_file(temporary) };
        // As open as those of other files: others read the archive.
        let created = directories::create_with(directories::directory_of(&target), 0o777);
        let placed = created.and_then(|()| fs::rename(temporary, &target));
        drop(placing);
        match placed {
            Ok(()) => return sync_name(&target),
            Err(error) if attempts < MAX_PLACINGS && is_of_removed_directory(&error) => attempts += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Forces the name of a placed file to the disk. The file and its directory can be removed before that, as too old: then there is
/// nothing to force.
fn sync_name(target: &Path) -> io::Result<()> {
    directories::sync_directory_of(target).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })
}

/// Whether an error can come from a directory that is removed at that moment.
fn is_of_removed_directory(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists)
}

/// Writes and syncs a file. Returns whether it has rows; without any it does not exist.
fn write(
    journal: &Path,
    temporary: &Path,
    options: &Options,
    stop: &AtomicBool,
    done: &mut Converted,
) -> io::Result<bool> {
    let mut journal = BufReader::with_capacity(BLOCK_BYTES, File::open(journal)?);
    let (mut reader, mut rebuilder) = (RowReader::default(), Rebuilder::default());
    let mut writer: Option<Writer> = None;
    let mut line = Vec::new();
    let (mut bytes, mut crc) = (0, 0);
    loop {
        line.clear();
        let is_end = (&mut journal).take(MAX_ROW_BYTES).read_until(b'\n', &mut line)? == 0;
        bytes += line.len() as u64;
        crc = crc32c::crc32c_append(crc, &line);
        if let Some(row) = line.strip_suffix(b"\n") {
            match reader.read(row, &mut rebuilder) {
                Ok(()) => done.rows += 1,
                Err(_) => done.damaged += 1,
            }
        } else if !is_end {
            done.damaged += 1;
        }
        if !(is_end || rebuilder.is_full()) {
            continue;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the sink is gone"));
        }
        let batch = rebuilder.take();
        if let Some(first) = batch.events().next() {
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(Writer::new(first, temporary, options)?),
            };
            writer.push(&batch)?;
        }
        if is_end {
            break;
        }
    }
    let Some(writer) = writer else { return Ok(false) };
    writer.finish(&identity(bytes, crc))?;
    Ok(true)
}

/// A file that is being written.
struct Writer {
    file: SerializedFileWriter<File>,
    table: RowGroup,
    row_group_rows: usize,
}

impl Writer {
    /// A file for events like this one.
    fn new(event: EventView<'_>, path: &Path, options: &Options) -> io::Result<Writer> {
        let (kind, protocol) = (event.kind(), event.origin().protocol);
        let columns = schema::columns(kind, protocol, &options.columns_of(kind), options.timestamps);
        let form = match options.timestamps {
            Timestamps::Nanoseconds => FORMS[0],
            Timestamps::Microseconds => FORMS[1],
        };
        let schema: TypePtr = schema::parquet(&columns).map_err(failed)?;
        let metadata = vec![
            KeyValue::new(FORM_KEY.to_owned(), form.to_owned()),
            KeyValue::new(KIND_KEY.to_owned(), kind.as_str().to_owned()),
        ];
        let properties = Arc::new(properties(&columns, options.compression, metadata)?);
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
        let file = SerializedFileWriter::new(file, schema, properties).map_err(failed)?;
        Ok(Writer { file, table: RowGroup::new(&columns), row_group_rows: options.row_group_rows })
    }

    fn push(&mut self, batch: &Batch) -> io::Result<()> {
        for event in batch.events() {
            self.table.push(event);
            if self.table.rows() >= self.row_group_rows {
                self.table.write(&mut self.file).map_err(failed)?;
            }
        }
        if self.table.memory_bytes() >= ROW_GROUP_BYTES {
            self.table.write(&mut self.file).map_err(failed)?;
        }
        Ok(())
    }

    fn finish(mut self, journal: &str) -> io::Result<()> {
        if self.table.rows() > 0 {
            self.table.write(&mut self.file).map_err(failed)?;
        }
        self.file.append_key_value_metadata(KeyValue::new(JOURNAL_KEY.to_owned(), journal.to_owned()));
        // This also writes the footer.
        self.file.into_inner().map_err(failed)?.sync_all()
    }
}

/// Texts by whose range readers leave out row groups.
const RANGED: [&str; 2] = ["name", "service_name"];

/// How columns are encoded. Integers and times are stored as differences, texts in dictionaries. Maps and most texts have no
/// statistics: each row group has nearly all of their values.
fn properties(columns: &[Column], compression: Compression, metadata: Vec<KeyValue>) -> io::Result<WriterProperties> {
    let codec = match compression {
        Compression::None => Codec::UNCOMPRESSED,
        Compression::Lz4 => Codec::LZ4_RAW,
        Compression::Zstd => Codec::ZSTD(ZstdLevel::try_new(zstd::DEFAULT_COMPRESSION_LEVEL).map_err(failed)?),
    };
    let mut builder = WriterProperties::builder()
        .set_created_by(concat!("tributary ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(codec)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_key_value_metadata(Some(metadata));
    for column in columns {
        let path = |parts: &[&str]| {
            let parts = [column.name.as_str()].into_iter().chain(parts.iter().copied()).map(str::to_owned);
            ColumnPath::new(parts.collect())
        };
        match column.shape {
            Shape::Int | Shape::Uint | Shape::Time | Shape::Micros => {
                let is_set = column.role == Role::Part;
                builder = builder
                    .set_column_dictionary_enabled(path(&[]), !is_set)
                    .set_column_encoding(path(&[]), Encoding::DELTA_BINARY_PACKED);
            }
            Shape::Ints | Shape::Numbers(Physical::Int) => {
                builder = builder
                    .set_column_dictionary_enabled(path(&["list", "element"]), false)
                    .set_column_encoding(path(&["list", "element"]), Encoding::DELTA_BINARY_PACKED)
                    .set_column_statistics_enabled(path(&["list", "element"]), EnabledStatistics::None);
            }
            Shape::Map(_) => {
                for part in ["key", "value"] {
                    let path = path(&["key_value", part]);
                    builder = builder.set_column_statistics_enabled(path, EnabledStatistics::None);
                }
            }
            Shape::Text if !RANGED.contains(&column.name.as_str()) => {
                builder = builder.set_column_statistics_enabled(path(&[]), EnabledStatistics::None);
            }
            Shape::Numbers(_) => {
                let path = path(&["list", "element"]);
                builder = builder.set_column_statistics_enabled(path, EnabledStatistics::None);
            }
            Shape::Text
            | Shape::Double
            | Shape::Bool
            | Shape::Frames
            | Shape::Links
            | Shape::SpanEvents
            | Shape::Quantiles => {}
        }
    }
    Ok(builder.build())
}

fn failed(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => io::Error::other(error),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn a_file_is_placed_although_its_directories_are_removed_at_any_moment() {
        let archive = tempfile::tempdir().unwrap();
        let target = archive.path().join("span/zico/span-zico.20261130T080000.000.parquet");
        let job = Job { journal: archive.path().join("rows"), target: target.clone() };
        // Each attempt that fails takes one of the removals.
        let removals = AtomicU32::new(0);
        let is_done = AtomicBool::new(false);
        let place_all = || {
            (0..200).try_for_each(|_| {
                let temporary = archive.path().join("file.parquet.tmp");
                fs::write(&temporary, "")?;
                removals.store(MAX_PLACINGS / 2, Ordering::Relaxed);
                place(&temporary, &job)?;
                removals.store(0, Ordering::Relaxed);
                fs::remove_file(&target)
            })
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for directory in ["span/zico", "span"] {
                        if removals.load(Ordering::Relaxed) > 0
                            && fs::remove_dir(archive.path().join(directory)).is_ok()
                        {
                            let _ =
                                removals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
                        }
                    }
                }
            });
            let placed = place_all();
            is_done.store(true, Ordering::Relaxed);
            placed.unwrap();
        });
    }

    #[test]
    fn the_name_of_a_file_that_was_removed_with_its_directory_needs_no_sync() {
        let archive = tempfile::tempdir().unwrap();
        sync_name(&archive.path().join("span/zico/file.parquet")).unwrap();
        fs::write(archive.path().join("span"), "").unwrap();
        sync_name(&archive.path().join("span/zico/file.parquet")).unwrap_err();
    }
}
