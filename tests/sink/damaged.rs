//! Files that were damaged anywhere: every reader of files returns events and errors, and none panics.
//!
//! The mutations are the same in each run. `DAMAGED_FILES=N` makes N of each file instead of [`MUTATIONS`].

use std::io::{Cursor, Write as _};
use std::time::Duration;

use bytes::Bytes;
use tributary::capture::{CaptureHead, Reader, put_bytes, put_end, put_missing};
use tributary::event::{Batch, UnixNanos};
use tributary::profile::events;
use tributary::protocol::{End, Protocol};
use tributary::sink::encode::{Encoder, Format, LineFields};
use tributary::sink::parquet;
use tributary::stored::Rebuilder;
use tributary::stored::event_file::EventFile;
use tributary::stored::row_reader::RowReader;

use crate::parquet::recorded::recordings;
use crate::parquet::{files, options, write};

/// Mutations of each file.
const MUTATIONS: u64 = 50;

/// Numbers of a fixed sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }

    /// Damages a file in one to four places; half of the time near its end, where footers are.
    fn damage(&mut self, file: &[u8]) -> Vec<u8> {
        let mut damaged = file.to_vec();
        for _ in 0..=self.below(3) {
            let from = if self.below(2) == 0 { damaged.len().saturating_sub(2048) } else { 0 };
            let at = from + self.below(damaged.len() - from);
            let length = 1 + self.below(16).min(damaged.len().saturating_sub(at + 1));
            match self.below(7) {
                _ if damaged.is_empty() => {}
                0 => damaged.truncate(at),
                1 => damaged[at] ^= 1 << self.below(8),
                2 => damaged[at] = [0, 0x7F, 0x80, 0xFF][self.below(4)],
                3 => damaged[at..].iter_mut().take(length).for_each(|byte| *byte = 0xFF),
                4 => drop(damaged.drain(at..(at + length).min(damaged.len()))),
                5 => {
                    let piece = damaged[at..].iter().copied().take(length).collect::<Vec<_>>();
                    damaged.splice(at..at, piece);
                }
                _ => damaged[at] = self.below(256) as u8,
            }
        }
        damaged
    }
}

/// Reads a file as whatever it may be.
fn read_all(file: &[u8]) {
    let _ = parquet::read(Bytes::copy_from_slice(file), &mut |_| Ok(true));
    if let Ok(Ok(file)) = EventFile::open(Cursor::new(file.to_vec())) {
        let _ = file.read(|_, _| true, &mut |batch, _, _| {
            events::items(&batch).for_each(drop);
            true
        });
    }
    if let Ok(mut capture) = Reader::new(Cursor::new(file.to_vec())) {
        while let Ok(Some(_)) = capture.record() {}
    }
    let (mut rows, mut rebuilder) = (RowReader::default(), Rebuilder::default());
    for row in file.split(|byte| *byte == b'\n') {
        let _ = rows.read(row, &mut rebuilder);
        if rebuilder.is_full() {
            rebuilder.take();
        }
    }
}

/// A file of each kind, made of recorded conversations.
async fn originals() -> Vec<Vec<u8>> {
    let mut originals = Vec::new();
    let few = |part: &str| recordings().iter().find(|recording| recording.name.contains(part)).unwrap();
    for part in ["datadog/", "bytefrog/", "endless/", "zico/", "rbkit/"] {
        let (lines, batches) = few(part).decoded();
        let directory = tempfile::tempdir().unwrap();
        write(options(directory.path()), batches).await;
        originals.extend(files(directory.path(), ".parquet").iter().map(|path| std::fs::read(path).unwrap()));
        let mut compact = Vec::new();
        let mut encoder = Encoder::new(Format::Json).with_fields(LineFields::Compact);
        batches.iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut compact));
        let mut rows = Vec::new();
        let mut encoder = Encoder::new(Format::Rows);
        batches.iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut rows));
        let lines = lines[..lines.len().min(20_000)].to_vec();
        originals.extend([lines, compact, rows]);
    }
    let lines = originals.iter().find(|file| file.starts_with(b"{")).unwrap().clone();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&lines).unwrap();
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    lz4.write_all(&lines).unwrap();
    originals.extend([gzip.finish().unwrap(), lz4.finish().unwrap(), zstd::encode_all(&lines[..], 3).unwrap()]);
    let (listener, peer) = ("java".to_owned(), "127.0.0.1:1".to_owned());
    let mut capture = CaptureHead {
        protocol: Protocol::Bytefrog,
        listener,
        peer,
        connection: 1,
        opened: UnixNanos(1_795_000_000_000_000_000),
    }
    .to_bytes();
    put_bytes(&mut capture, Duration::ZERO, b"\0\x04");
    put_bytes(&mut capture, Duration::from_secs(1), &[8, b'T', 0, 0].repeat(100));
    put_missing(&mut capture, Duration::from_secs(2), 7);
    put_end(&mut capture, Duration::from_secs(3), End::Closed);
    originals.push(capture);
    originals
}

#[tokio::test]
async fn no_reader_of_files_panics_whatever_is_damaged() {
    let mutations = std::env::var("DAMAGED_FILES").map_or(MUTATIONS, |number| number.parse().unwrap());
    let originals = originals().await;
    assert!(originals.len() > 20, "{}", originals.len());
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for original in &originals {
        read_all(original);
        for _ in 0..mutations {
            read_all(&random.damage(original));
        }
    }
    println!("{} files, {} executions", originals.len(), originals.len() as u64 * (mutations + 1));
}
