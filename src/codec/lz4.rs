//! Decompresses LZ4 in steps, with a hard limit on the output: frames, streams of lz4-java, and bare blocks with or without
//! a size in front.
//!
//! Nothing is allocated from declared sizes. Only the first frame is decompressed: the bytes after it are not consumed.

mod block;
mod xxh32;

use block::Block;
use xxh32::Xxh32;

use super::inflate::{InflateError, STEP_BYTES};

/// How LZ4 data are wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lz4Layout {
    /// The frame format: magic number 0x184D2204.
    Frame,
    /// A stream of lz4-java's `LZ4BlockOutputStream`.
    Java,
    /// A block after its uncompressed size of 4 bytes, little-endian.
    SizeLe,
    /// The same, big-endian.
    SizeBe,
    /// A block without a size.
    Block,
}

/// Unpacks one stream of LZ4.
#[derive(Debug)]
pub struct Unlz4 {
    layout: Lz4Layout,
    phase: Lz4Phase,
    /// Input bytes that have been processed.
    at: usize,
    output: Vec<u8>,
    limit: usize,
}

#[derive(Debug)]
enum Lz4Phase {
    /// At the start.
    Start,
    /// Between blocks of a frame.
    Frame(Box<Lz4Frame>),
    /// Between blocks of a stream of lz4-java.
    Java,
    /// Inside a block.
    Block {
        block: Block,
        then: Then,
    },
    Done,
}

/// What follows a block.
#[derive(Debug)]
enum Then {
    Frame(Box<Lz4Frame>),
    Java {
        expected: u32,
        /// Offset of the block in the output.
        start: usize,
        size: usize,
    },
    /// Nothing. The output must have this length.
    End(Option<usize>),
}

/// The head of a frame.
#[derive(Debug)]
struct Lz4Frame {
    is_independent: bool,
    has_block_checksums: bool,
    max_block_bytes: usize,
    content_bytes: Option<u64>,
    /// The checksum of the content so far, if the frame ends with one.
    checksum: Option<Xxh32>,
    /// Bytes of output in the checksum.
    hashed: usize,
}

const FRAME_MAGIC: [u8; 4] = 0x184D_2204u32.to_le_bytes();
const JAVA_MAGIC: [u8; 8] = *b"LZ4Block";
/// Magic, token, compressed size, original size, checksum.
const JAVA_HEAD_BYTES: usize = 21;
const JAVA_SEED: u32 = 0x9747_B28C;
/// The bits of the checksum that lz4-java keeps.
const JAVA_CHECKSUM_MASK: u32 = 0x0FFF_FFFF;
/// The most bytes of output for one byte of a block.
const MOST_EXPANSION: usize = 255;

impl Unlz4 {
    /// Data of an unknown wrapping, with at most `limit` bytes of output. The first 4 bytes are a size only if the output
    /// has exactly that length.
    pub fn new(input: &[u8], limit: usize) -> Self {
        let layout = if input.starts_with(&FRAME_MAGIC) {
            Lz4Layout::Frame
        } else if input.starts_with(&JAVA_MAGIC) {
            Lz4Layout::Java
        } else {
            Lz4Layout::SizeLe
        };
        Unlz4 { layout, phase: Lz4Phase::Start, at: 0, output: Vec::new(), limit }
    }

    /// How the data are wrapped; final at the end.
    pub fn layout(&self) -> Lz4Layout {
        self.layout
    }

    /// Memory of the output.
    pub fn memory_bytes(&self) -> usize {
        self.output.capacity()
    }

    /// Input bytes that have been processed; at the end, the length of the stream.
    pub fn consumed(&self) -> usize {
        self.at
    }

    /// The output.
    pub fn into_output(self) -> Vec<u8> {
        self.output
    }

    /// Does the next step. `input` is that of [`Unlz4::new`], the same in every call. Returns `true` at the end.
    ///
    /// # Errors
    /// The data are invalid or over the limit; no further step is possible.
    pub fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        let result = match std::mem::replace(&mut self.phase, Lz4Phase::Done) {
            Lz4Phase::Start => self.start(input),
            Lz4Phase::Frame(frame) => self.frame_block(frame, input),
            Lz4Phase::Java => self.java_block(input),
            Lz4Phase::Block { block, then } => self.block(block, then, input),
            Lz4Phase::Done => Ok(()),
        };
        match (result, self.layout.or_else()) {
            (Ok(()), _) => Ok(matches!(self.phase, Lz4Phase::Done)),
            // So the first bytes are not a size.
            (Err(_), Some(layout)) => {
                self.output.clear();
                (self.layout, self.phase, self.at) = (layout, Lz4Phase::Start, 0);
                Ok(false)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn start(&mut self, input: &[u8]) -> Result<(), InflateError> {
        let sized = |size: [u8; 4], to_size: fn([u8; 4]) -> u32| {
            let size = to_size(size) as usize;
            // The block cannot have that much output, so the first bytes are not a size.
            (1..=self.limit.min(input.len().saturating_mul(MOST_EXPANSION))).contains(&size).then_some(size)
        };
        let head = input.first_chunk::<4>().copied();
        let size = match self.layout {
            Lz4Layout::Frame => return self.frame_head(input),
            Lz4Layout::Java => {
                self.phase = Lz4Phase::Java;
                return Ok(());
            }
            Lz4Layout::SizeLe => Some(head.and_then(|head| sized(head, u32::from_le_bytes))),
            Lz4Layout::SizeBe => Some(head.and_then(|head| sized(head, u32::from_be_bytes))),
            Lz4Layout::Block => None,
        };
        if let Some(None) = size {
            return Err(self.corrupt("no size"));
        }
        self.at = if size.is_some() { 4 } else { 0 };
        let block = Block::new(self.at..input.len(), 0, size.flatten().unwrap_or(self.limit));
        self.phase = Lz4Phase::Block { block, then: Then::End(size.flatten()) };
        Ok(())
    }

    fn frame_head(&mut self, input: &[u8]) -> Result<(), InflateError> {
        let mut at = FRAME_MAGIC.len();
        let [flags, sizes] = take(input, &mut at)?;
        if flags >> 6 != 1 || flags & 2 != 0 || sizes & 0x8F != 0 || sizes >> 4 < 4 {
            self.at = FRAME_MAGIC.len();
            return Err(self.corrupt("flags that a frame does not have"));
        }
        if flags & 1 != 0 {
            self.at = FRAME_MAGIC.len();
            return Err(self.corrupt("a frame that needs a dictionary"));
        }
        let content_bytes = if flags & 8 != 0 { Some(u64::from_le_bytes(take(input, &mut at)?)) } else { None };
        let expected = (Xxh32::of(&input[FRAME_MAGIC.len()..at], 0) >> 8) as u8;
        let [checksum] = take(input, &mut at)?;
        if checksum != expected {
            self.at = at - 1;
            return Err(self.corrupt("a checksum that does not match the frame's head"));
        }
        self.at = at;
        self.phase = Lz4Phase::Frame(Box::new(Lz4Frame {
            is_independent: flags & 0x20 != 0,
            has_block_checksums: flags & 0x10 != 0,
            max_block_bytes: 1 << (8 + 2 * (sizes >> 4)),
            content_bytes,
            checksum: (flags & 4 != 0).then(|| Xxh32::new(0)),
            hashed: 0,
        }));
        Ok(())
    }

    /// Begins the next block of a frame, or ends it.
    fn frame_block(&mut self, mut frame: Box<Lz4Frame>, input: &[u8]) -> Result<(), InflateError> {
        if let Some(checksum) = &mut frame.checksum {
            // At most the output of one block.
            checksum.update(&self.output[frame.hashed..]);
            frame.hashed = self.output.len();
        }
        let mut at = self.at;
        let size = u32::from_le_bytes(take(input, &mut at)?);
        if size == 0 {
            return self.frame_end(*frame, at, input);
        }
        let (is_plain, size) = (size >> 31 == 1, (size & 0x7FFF_FFFF) as usize);
        if size > frame.max_block_bytes {
            return Err(self.corrupt("a block that is larger than the frame allows"));
        }
        let end = at + size;
        let data = input.get(at..end).ok_or(InflateError::Truncated)?;
        if frame.has_block_checksums {
            let mut after = end;
            if u32::from_le_bytes(take(input, &mut after)?) != Xxh32::of(data, 0) {
                return Err(self.corrupt("a checksum that does not match its block"));
            }
        }
        let start = if frame.is_independent { self.output.len() } else { 0 };
        if is_plain {
            self.plain(data)?;
            self.at = end + if frame.has_block_checksums { 4 } else { 0 };
            self.phase = Lz4Phase::Frame(frame);
        } else {
            let most = (self.output.len() + frame.max_block_bytes).min(self.limit);
            self.phase = Lz4Phase::Block { block: Block::new(at..end, start, most), then: Then::Frame(frame) };
        }
        Ok(())
    }

    fn frame_end(&mut self, frame: Lz4Frame, mut at: usize, input: &[u8]) -> Result<(), InflateError> {
        if frame.content_bytes.is_some_and(|bytes| bytes != self.output.len() as u64) {
            return Err(self.corrupt("a content size that does not match the content"));
        }
        if let Some(checksum) = frame.checksum
            && u32::from_le_bytes(take(input, &mut at)?) != checksum.finish()
        {
            return Err(self.corrupt("a checksum that does not match the content"));
        }
        self.at = at;
        self.phase = Lz4Phase::Done;
        Ok(())
    }

    /// Begins the next block of a stream of lz4-java. An empty block ends the stream.
    fn java_block(&mut self, input: &[u8]) -> Result<(), InflateError> {
        let mut at = self.at;
        let magic: [u8; 8] = take(input, &mut at)?;
        let [token] = take(input, &mut at)?;
        let [compressed, original] = [take(input, &mut at)?, take(input, &mut at)?].map(u32::from_le_bytes);
        let (compressed, original) = (compressed as usize, original as usize);
        let expected = u32::from_le_bytes(take(input, &mut at)?);
        debug_assert_eq!(at, self.at + JAVA_HEAD_BYTES);
        if magic != JAVA_MAGIC {
            return Err(self.corrupt("no block of lz4-java"));
        }
        let is_plain = match token & 0xF0 {
            0x10 if compressed == original => true,
            0x20 => false,
            _ => return Err(self.corrupt("a block of a kind that lz4-java does not have")),
        };
        if original > 1 << (10 + (token & 0x0F)) || (original == 0) != (compressed == 0) {
            return Err(self.corrupt("a block of impossible size"));
        }
        if original == 0 {
            self.at = at;
            return Ok(());
        }
        let end = at + compressed;
        let data = input.get(at..end).ok_or(InflateError::Truncated)?;
        let start = self.output.len();
        let then = Then::Java { expected, start, size: original };
        if is_plain {
            self.plain(data)?;
            self.at = end;
            return self.block_end(then);
        }
        let most = (start + original).min(self.limit);
        self.phase = Lz4Phase::Block { block: Block::new(at..end, start, most), then };
        Ok(())
    }

    fn block(&mut self, mut block: Block, then: Then, input: &[u8]) -> Result<(), InflateError> {
        let before = self.output.len();
        match block.step(input, &mut self.output, before.saturating_add(STEP_BYTES)) {
            Ok(false) => {
                self.phase = Lz4Phase::Block { block, then };
                Ok(())
            }
            Ok(true) => {
                self.at = block.end() + if then.has_block_checksum() { 4 } else { 0 };
                self.block_end(then)
            }
            Err(InflateError::TooLarge { limit }) if limit < self.limit => {
                self.at = block.at();
                Err(self.corrupt("a block that holds more than is declared"))
            }
            Err(error) => Err(error),
        }
    }

    fn block_end(&mut self, then: Then) -> Result<(), InflateError> {
        self.phase = match then {
            Then::Frame(frame) => Lz4Phase::Frame(frame),
            Then::Java { expected, start, size } => {
                let block = &self.output[start..];
                if block.len() != size || Xxh32::of(block, JAVA_SEED) & JAVA_CHECKSUM_MASK != expected {
                    return Err(self.corrupt("a checksum or size that does not match its block"));
                }
                Lz4Phase::Java
            }
            Then::End(Some(size)) if size != self.output.len() => return Err(self.corrupt("no size")),
            Then::End(_) => Lz4Phase::Done,
        };
        Ok(())
    }

    /// Copies a block that is not compressed.
    fn plain(&mut self, data: &[u8]) -> Result<(), InflateError> {
        if data.len() > self.limit - self.output.len() {
            return Err(InflateError::TooLarge { limit: self.limit });
        }
        self.output.extend_from_slice(data);
        Ok(())
    }

    fn corrupt(&self, what: &'static str) -> InflateError {
        InflateError::Corrupt { offset: self.at, what }
    }
}

impl Lz4Layout {
    /// The next wrapping to try when this one does not fit.
    fn or_else(self) -> Option<Lz4Layout> {
        match self {
            Lz4Layout::SizeLe => Some(Lz4Layout::SizeBe),
            Lz4Layout::SizeBe => Some(Lz4Layout::Block),
            Lz4Layout::Frame | Lz4Layout::Java | Lz4Layout::Block => None,
        }
    }
}

impl Then {
    fn has_block_checksum(&self) -> bool {
        matches!(self, Then::Frame(frame) if frame.has_block_checksums)
    }
}

/// The next bytes of `input`.
fn take<const N: usize>(input: &[u8], at: &mut usize) -> Result<[u8; N], InflateError> {
    let bytes = input.get(*at..).and_then(<[u8]>::first_chunk).ok_or(InflateError::Truncated)?;
    *at += N;
    Ok(*bytes)
}

#[cfg(test)]
mod tests;
