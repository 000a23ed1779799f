//! Files of JSON lines, also compressed, to batches.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;

use super::{Rebuilder, json};
use tributary_event::Batch;

/// Longer lines of an event file are skipped. An object with a million references has a third of this length.
const MAX_LINE_BYTES: usize = 64 << 20;

/// An event file, decompressed.
pub struct EventFile(Box<dyn BufRead>);

/// How many lines were read from an event file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// All lines.
    pub read: u64,
    /// Lines that are not events, for example incomplete ones, or whose events cannot be used.
    pub skipped: u64,
    /// The number of the first of them, from 1.
    pub first_skipped: Option<u64>,
}

impl EventFile {
    /// Opens an event file, which begins with `{`, or with the magic of gzip, LZ4 or zstd if the file sink has compressed it.
    /// Recorded wire bytes begin with none of these; such an input is returned as it is.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn open(input: impl Read + 'static) -> io::Result<Result<EventFile, Box<dyn Read>>> {
        let mut input = BufReader::with_capacity(256 * 1024, input);
        skip_frames(&mut input)?;
        let file: Box<dyn BufRead> = match input.fill_buf()? {
            start if is_start(start, b"{") => Box::new(input),
            start if is_start(start, &[0x1F, 0x8B]) => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            start if is_start(start, &[0x04, 0x22, 0x4D, 0x18]) => Box::new(BufReader::new(Lz4Frames::new(input))),
            start if is_start(start, &[0x28, 0xB5, 0x2F, 0xFD]) => {
                Box::new(BufReader::new(zstd::Decoder::with_buffer(input)?))
            }
            _ => return Ok(Err(Box::new(input))),
        };
        Ok(Ok(EventFile(file)))
    }

    /// An input that does not begin as an event file, as one: its first lines are no events, or none is.
    pub fn of_lines(input: Box<dyn Read>) -> EventFile {
        EventFile(Box::new(BufReader::new(input)))
    }

    /// Reads the events of the file whose kind and name `is_wanted`, until `take` returns `false`, or to its end. `take` gets a
    /// batch, for each of its events the number of its line, and the counts, to which it adds the lines that it cannot use.
    ///
    /// # Errors
    /// The file cannot be read or decompressed. The events before the error have been passed to `take`.
    pub fn read(
        mut self,
        is_wanted: fn(&str, &str) -> bool,
        take: &mut dyn FnMut(Batch, &[u64], &mut LineCounts) -> bool,
    ) -> io::Result<LineCounts> {
        let (mut rebuilder, mut numbers) = (Rebuilder::default(), Vec::new());
        let (mut lines, mut line) = (LineCounts::default(), Vec::new());
        let mut end_batch = |rebuilder: &mut Rebuilder, numbers: &mut Vec<u64>, lines: &mut LineCounts| {
            let batch = rebuilder.take();
            let is_continued = batch.is_empty() || take(batch, numbers, lines);
            numbers.clear();
            is_continued
        };
        loop {
            line.clear();
            let next = read_line(&mut *self.0, &mut line);
            let Ok(Some(is_whole)) = next else {
                end_batch(&mut rebuilder, &mut numbers, &mut lines);
                return next.map(|_| lines);
            };
            lines.read += 1;
            match is_whole.then(|| json::read_wanted(&line, is_wanted, &mut rebuilder)) {
                Some(Ok(true)) => numbers.push(lines.read),
                Some(Ok(false)) => {}
                Some(Err(_)) | None => lines.skip(lines.read),
            }
            if rebuilder.is_full() && !end_batch(&mut rebuilder, &mut numbers, &mut lines) {
                return Ok(lines);
            }
        }
    }
}

impl LineCounts {
    /// Counts a line as skipped.
    pub fn skip(&mut self, number: u64) {
        self.skipped += 1;
        self.first_skipped = Some(self.first_skipped.map_or(number, |first| first.min(number)));
    }
}

/// The content of LZ4 frames that follow each other.
struct Lz4Frames<R: BufRead>(FrameDecoder<R>);

impl<R: BufRead> Lz4Frames<R> {
    fn new(input: R) -> Self {
        Lz4Frames(FrameDecoder::new(input))
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // 0: the end of a frame.
            let bytes = self.0.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            let input = self.0.get_mut();
            skip_frames(input)?;
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
        }
    }
}

/// Skips frames that have no content, as some compressors write them: zstd and LZ4 have the same.
fn skip_frames(input: &mut impl BufRead) -> io::Result<()> {
    while let [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] = input.fill_buf()? {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [.., a, b, c, d] = head;
        let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
        if io::copy(&mut input.take(bytes), &mut io::sink())? < bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Whether what has arrived of an input is the start of `magic`, or begins with it.
fn is_start(bytes: &[u8], magic: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().zip(magic).all(|(byte, expected)| byte == expected)
}

/// Reads the next line. `None`: the end; `Some(false)`: the line was too long and is incomplete.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    let mut is_whole = true;
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(is_whole) });
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        is_whole &= line.len() + piece.len() <= MAX_LINE_BYTES;
        if is_whole {
            line.extend_from_slice(piece);
        }
        let read = end.map_or(bytes.len(), |end| end + 1);
        input.consume(read);
        if end.is_some() {
            return Ok(Some(is_whole));
        }
    }
}
