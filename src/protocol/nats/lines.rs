//! The lines of a message, decompressed one block after the other.

use std::fmt;
use std::io::{BufReader, Read};

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use zstd::stream::read::Decoder;

use super::MessageLimits;
use tributary_memory::MemoryLease;

/// The bytes that are decompressed at a time.
const BLOCK_BYTES: usize = 64 << 10;
/// The largest window of compressed messages, as a power of 2: 2 MiB. The sink `nats` uses less.
const MAX_WINDOW_LOG: u32 = 21;

/// How a message is compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Plain,
    Zstd,
}

/// Reads lines.
pub(super) struct LineReader {
    source: LineSource,
    limits: MessageLimits,
    /// What is decompressed: lines that were read, from `at` to `end` the line, and from `next` on what follows.
    text: Vec<u8>,
    at: usize,
    end: usize,
    next: usize,
    /// The memory of `text` beyond a block.
    lease: MemoryLease,
    inflated: u64,
    is_at_end: bool,
}

enum LineSource {
    Plain(Reader<Bytes>),
    Zstd(Box<Decoder<'static, BufReader<Reader<Bytes>>>>),
}

/// Why lines cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LineError {
    /// The compression is damaged, or is none.
    Damaged(String),
    /// A limit was exceeded; names its key.
    TooLarge(String),
    /// There is no memory for a long line now.
    NoMemory,
}

impl fmt::Debug for LineReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("inflated", &self.inflated).finish_non_exhaustive()
    }
}

impl LineReader {
    pub(super) fn new(
        body: Bytes,
        encoding: Encoding,
        limits: MessageLimits,
        lease: MemoryLease,
    ) -> Result<LineReader, LineError> {
        let damaged = |error: std::io::Error| LineError::Damaged(error.to_string());
        let source = match encoding {
            Encoding::Plain => LineSource::Plain(body.reader()),
            Encoding::Zstd => {
                let mut decoder = Decoder::new(body.reader()).map_err(damaged)?;
                decoder.window_log_max(MAX_WINDOW_LOG).map_err(damaged)?;
                LineSource::Zstd(Box::new(decoder))
            }
        };
        Ok(LineReader {
            source,
            limits,
            text: Vec::new(),
            at: 0,
            end: 0,
            next: 0,
            lease,
            inflated: 0,
            is_at_end: false,
        })
    }

    /// Bytes that were decompressed.
    pub(super) fn inflated(&self) -> u64 {
        self.inflated
    }

    /// Goes to the next line. `false`: there is none.
    pub(super) fn advance(&mut self) -> Result<bool, LineError> {
        self.at = self.next;
        let mut searched = self.at;
        loop {
            if let Some(found) = self.text[searched..].iter().position(|byte| *byte == b'\n') {
                self.end = searched + found;
                self.next = self.end + 1;
                return Ok(true);
            }
            if self.is_at_end {
                (self.end, self.next) = (self.text.len(), self.text.len());
                return Ok(self.at < self.end);
            }
            let length = self.text.len() - self.at;
            if length as u64 > self.limits.max_line_bytes {
                let limit = self.limits.max_line_bytes;
                return Err(LineError::TooLarge(format!("a line has more than {limit} bytes (max_line_bytes)")));
            }
            self.fill()?;
            searched = length;
        }
    }

    /// The line, without its line feed.
    pub(super) fn line(&self) -> &[u8] {
        &self.text[self.at..self.end]
    }

    /// The bytes of the line, with its line feed.
    pub(super) fn line_bytes(&self) -> u64 {
        (self.next - self.at) as u64
    }

    /// The next line is this one again.
    pub(super) fn put_back(&mut self) {
        self.next = self.at;
    }

    /// Adds a block. What is before `at` is dropped.
    fn fill(&mut self) -> Result<(), LineError> {
        self.text.drain(..std::mem::take(&mut self.at));
        let length = self.text.len();
        if !self.lease.try_resize((length + BLOCK_BYTES) as u64) {
            return Err(LineError::NoMemory);
        }
        self.text.resize(length + BLOCK_BYTES, 0);
        let mut filled = length;
        while filled < self.text.len() {
            let read = match &mut self.source {
                LineSource::Plain(reader) => reader.read(&mut self.text[filled..]),
                LineSource::Zstd(decoder) => decoder.read(&mut self.text[filled..]),
            };
            match read {
                Ok(0) => {
                    self.is_at_end = true;
                    break;
                }
                Ok(bytes) => filled += bytes,
                Err(error) => return Err(LineError::Damaged(error.to_string())),
            }
        }
        self.text.truncate(filled);
        self.inflated += (filled - length) as u64;
        if self.inflated > self.limits.max_inflated_bytes {
            let limit = self.limits.max_inflated_bytes;
            return Err(LineError::TooLarge(format!("it has more than {limit} bytes of lines (max_inflated_bytes)")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_memory::MemoryBudget;

    fn read(body: Vec<u8>, encoding: Encoding, limits: MessageLimits) -> Result<Vec<Vec<u8>>, LineError> {
        let lease = MemoryBudget::unlimited().passing(0);
        let (mut lines, mut read) = (LineReader::new(body.into(), encoding, limits, lease)?, Vec::new());
        while lines.advance()? {
            read.push(lines.line().to_vec());
        }
        Ok(read)
    }

    #[test]
    fn lines_are_whole_however_long_they_are_and_the_last_one_may_have_no_line_feed() {
        let lines: Vec<Vec<u8>> =
            [0, 1, 65_535, 65_536, 200_000, 3].map(|length| vec![b'x'; length]).into_iter().collect();
        let text = lines.join(&b'\n');
        for body in [text.clone(), [&text[..], b"\n"].concat()] {
            assert!(read(body.clone(), Encoding::Plain, MessageLimits::default()).unwrap() == lines);
            let packed = zstd::encode_all(&body[..], 3).unwrap();
            assert!(read(packed, Encoding::Zstd, MessageLimits::default()).unwrap() == lines);
        }
        assert_eq!(read(Vec::new(), Encoding::Plain, MessageLimits::default()), Ok(Vec::new()));
    }

    #[test]
    fn limits_are_kept_and_damage_is_reported() {
        let limits = MessageLimits { max_inflated_bytes: 1 << 20, max_line_bytes: 1 << 17, ..MessageLimits::default() };
        let bomb = zstd::encode_all(&vec![b'\n'; 64 << 20][..], 3).unwrap();
        assert!(bomb.len() < 10_000);
        let Err(LineError::TooLarge(why)) = read(bomb.clone(), Encoding::Zstd, limits) else { panic!("a bomb") };
        assert!(why.ends_with("(max_inflated_bytes)"), "{why}");
        let Err(LineError::TooLarge(why)) = read(vec![b'x'; 300_000], Encoding::Plain, limits) else {
            panic!("a line")
        };
        assert!(why.ends_with("(max_line_bytes)"), "{why}");
        for cut in [0, 1, 5, bomb.len() - 1] {
            let whole = read(bomb[..cut].to_vec(), Encoding::Zstd, MessageLimits::default());
            assert!(matches!(whole, Err(LineError::Damaged(_))) || cut == 0, "{cut}: {whole:?}");
        }
        assert!(matches!(read(b"no frame".to_vec(), Encoding::Zstd, limits), Err(LineError::Damaged(_))));
    }

    #[test]
    fn a_line_for_which_there_is_no_memory_is_no_damage() {
        let memory = MemoryBudget::new(4 << 20);
        let mut lines = LineReader::new(
            vec![b'x'; 8 << 20].into(),
            Encoding::Plain,
            MessageLimits { max_line_bytes: 64 << 20, ..MessageLimits::default() },
            memory.passing(0),
        )
        .unwrap();
        assert_eq!(lines.advance(), Err(LineError::NoMemory));
    }
}
