//! Inflates gzip, zlib and raw deflate in steps, with a hard limit on the output.
//!
//! A step does a bounded amount of work; the caller decides when to do the next one. Consecutive gzip members are one
//! stream, and zero bytes after the last member are padding, as in gzip itself; anything else there is an error. zlib and
//! raw deflate end with their stream.

use std::fmt;

use flate2::{Crc, Decompress, FlushDecompress, Status};

/// The most bytes that one step produces.
pub const STEP_BYTES: usize = 256 * 1024;
/// The least free output buffer of a step.
const MIN_SPACE_BYTES: usize = 4 * 1024;

/// Why a stream cannot be inflated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InflateError {
    /// The format is violated.
    Corrupt {
        /// Approximate offset in the compressed bytes.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The input ends inside the stream.
    Truncated,
    /// The output is over the limit.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl fmt::Display for InflateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InflateError::Corrupt { offset, what } => write!(f, "compressed data, at {offset}: {what}"),
            InflateError::Truncated => f.write_str("compressed data: they end inside the stream"),
            InflateError::TooLarge { limit } => write!(f, "compressed data: more than {limit} bytes come out"),
        }
    }
}

impl std::error::Error for InflateError {}

/// Inflates one gzip stream.
#[derive(Debug)]
pub struct Gunzip {
    deflated: Deflated,
    crc: Crc,
    phase: InflatePhase,
}

/// Inflates one stream of zlib or of raw deflate.
#[derive(Debug)]
pub struct Inflate {
    deflated: Deflated,
    is_done: bool,
}

/// The parts that both have in common.
#[derive(Debug)]
struct Deflated {
    inflater: Decompress,
    /// Input bytes that have been processed.
    at: usize,
    output: Vec<u8>,
    limit: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InflatePhase {
    /// At the start of a member. The first one is mandatory.
    Header {
        is_first: bool,
    },
    Data,
    Done,
}

const MAGIC: [u8; 3] = [0x1F, 0x8B, 8];
const HEADER_BYTES: usize = 10;
const TRAILER_BYTES: usize = 8;
const FLAG_HEADER_CRC: u8 = 2;
const FLAG_EXTRA: u8 = 4;
const FLAG_NAME: u8 = 8;
const FLAG_COMMENT: u8 = 16;
const FLAGS_RESERVED: u8 = 0xE0;

impl Gunzip {
    /// A stream with at most `limit` bytes of output.
    pub fn new(limit: usize) -> Self {
        let deflated = Deflated::new(false, limit);
        Gunzip { deflated, crc: Crc::new(), phase: InflatePhase::Header { is_first: true } }
    }

    /// Memory of the output.
    pub fn memory_bytes(&self) -> usize {
        self.deflated.output.capacity()
    }

    /// The output.
    pub fn into_output(self) -> Vec<u8> {
        self.deflated.output
    }

    /// Does the next step. `input` is the whole stream, the same in every call. Returns `true` at the end.
    ///
    /// # Errors
    /// The stream is invalid or over the limit; no further step is possible.
    pub fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        match self.phase {
            InflatePhase::Header { is_first } => self.header(input, is_first)?,
            InflatePhase::Data => self.data(input)?,
            InflatePhase::Done => {}
        }
        Ok(self.phase == InflatePhase::Done)
    }

    fn header(&mut self, input: &[u8], is_first: bool) -> Result<(), InflateError> {
        let rest = &input[self.deflated.at..];
        if !is_first && rest.iter().all(|byte| *byte == 0) {
            self.phase = InflatePhase::Done;
            return Ok(());
        }
        if !rest.iter().zip(&MAGIC).all(|(found, expected)| found == expected) {
            return Err(self.deflated.corrupt(if is_first {
                "no gzip stream"
            } else {
                "neither a member nor padding"
            }));
        }
        let Some(&[_, _, _, flags, ..]) = rest.first_chunk::<HEADER_BYTES>() else {
            return Err(InflateError::Truncated);
        };
        if flags & FLAGS_RESERVED != 0 {
            return Err(self.deflated.corrupt("flags that gzip does not have"));
        }
        let mut size = HEADER_BYTES;
        if flags & FLAG_EXTRA != 0 {
            let length = rest[size..].first_chunk().ok_or(InflateError::Truncated)?;
            size += 2 + usize::from(u16::from_le_bytes(*length));
        }
        for flag in [FLAG_NAME, FLAG_COMMENT] {
            if flags & flag != 0 {
                let text = rest.get(size..).ok_or(InflateError::Truncated)?;
                size += text.iter().position(|byte| *byte == 0).ok_or(InflateError::Truncated)? + 1;
            }
        }
        if flags & FLAG_HEADER_CRC != 0 {
            size += 2;
        }
        if size > rest.len() {
            return Err(InflateError::Truncated);
        }
        self.deflated.at += size;
        self.deflated.inflater.reset(false);
        self.crc.reset();
        self.phase = InflatePhase::Data;
        Ok(())
    }

    fn data(&mut self, input: &[u8]) -> Result<(), InflateError> {
        let before = self.deflated.output.len();
        let is_over = self.deflated.step(input)?;
        self.crc.update(&self.deflated.output[before..]);
        if is_over { self.trailer(input) } else { Ok(()) }
    }

    fn trailer(&mut self, input: &[u8]) -> Result<(), InflateError> {
        let trailer = input[self.deflated.at..].first_chunk::<TRAILER_BYTES>().ok_or(InflateError::Truncated)?;
        let [a, b, c, d, size @ ..] = *trailer;
        let crc = [a, b, c, d];
        if u32::from_le_bytes(crc) != self.crc.sum() || u32::from_le_bytes(size) != self.crc.amount() {
            return Err(self.deflated.corrupt("a checksum or length that does not match the data"));
        }
        self.deflated.at += TRAILER_BYTES;
        self.phase = InflatePhase::Header { is_first: false };
        Ok(())
    }
}

impl Inflate {
    /// A zlib stream with at most `limit` bytes of output.
    pub fn zlib(limit: usize) -> Self {
        Inflate { deflated: Deflated::new(true, limit), is_done: false }
    }

    /// A raw deflate stream.
    pub fn raw(limit: usize) -> Self {
        Inflate { deflated: Deflated::new(false, limit), is_done: false }
    }

    /// Memory of the output.
    pub fn memory_bytes(&self) -> usize {
        self.deflated.output.capacity()
    }

    /// Input bytes that have been processed; at the end, the length of the stream.
    pub fn consumed(&self) -> usize {
        self.deflated.at
    }

    /// The output.
    pub fn into_output(self) -> Vec<u8> {
        self.deflated.output
    }

    /// Does the next step. `input` begins with the stream and is the same in every call. Returns `true` at the end.
    ///
    /// # Errors
    /// The stream is invalid or over the limit; no further step is possible.
    pub fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        self.is_done = self.is_done || self.deflated.step(input)?;
        Ok(self.is_done)
    }
}

impl Deflated {
    fn new(is_zlib: bool, limit: usize) -> Self {
        Deflated { inflater: Decompress::new(is_zlib), at: 0, output: Vec::new(), limit }
    }

    /// Returns `true` at the end.
    fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        let before = self.output.len();
        // A small buffer for small streams, because many can be in progress. One byte more than allowed, so that a stream of
        // exactly the limit can end.
        let space = before.max(4 * input.len()).clamp(MIN_SPACE_BYTES, STEP_BYTES);
        let space = space.min((self.limit - before).saturating_add(1));
        self.output.resize(before + space, 0);
        let (read, written) = (self.inflater.total_in(), self.inflater.total_out());
        let result = self.inflater.decompress(&input[self.at..], &mut self.output[before..], FlushDecompress::None);
        let read = (self.inflater.total_in() - read) as usize;
        let written = (self.inflater.total_out() - written) as usize;
        self.at += read;
        self.output.truncate(before + written);
        let status = result.map_err(|_| self.corrupt("data that deflate does not write"))?;
        if self.output.len() > self.limit {
            return Err(InflateError::TooLarge { limit: self.limit });
        }
        match status {
            Status::StreamEnd => Ok(true),
            _ if read == 0 && written == 0 => Err(InflateError::Truncated),
            _ => Ok(false),
        }
    }

    fn corrupt(&self, what: &'static str) -> InflateError {
        InflateError::Corrupt { offset: self.at, what }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn inflate(input: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
        let mut gunzip = Gunzip::new(limit);
        while !gunzip.step(input)? {
            assert!(gunzip.memory_bytes() <= 2 * (limit + STEP_BYTES));
        }
        Ok(gunzip.into_output())
    }

    #[test]
    fn members_are_one_stream_and_zero_bytes_after_them_are_padding() {
        let stream = [gzip(b"one "), gzip(b""), gzip(b"two"), vec![0; 20]].concat();
        assert_eq!(inflate(&stream, 7), Ok(b"one two".to_vec()));
        let stream = [gzip(b"one"), b"junk".to_vec()].concat();
        assert_eq!(
            inflate(&stream, 99),
            Err(InflateError::Corrupt { offset: stream.len() - 4, what: "neither a member nor padding" })
        );
    }

    #[test]
    fn a_stream_may_reach_the_limit_and_not_exceed_it() {
        let bytes = vec![7; 3 * STEP_BYTES + 5];
        assert_eq!(inflate(&gzip(&bytes), bytes.len()), Ok(bytes.clone()));
        let limit = bytes.len() - 1;
        assert_eq!(inflate(&gzip(&bytes), limit), Err(InflateError::TooLarge { limit }));
    }

    #[test]
    fn optional_parts_of_the_header_are_skipped() {
        let plain = gzip(b"text");
        let mut stream = plain[..HEADER_BYTES].to_vec();
        stream[3] = FLAG_EXTRA | FLAG_NAME | FLAG_COMMENT | FLAG_HEADER_CRC;
        stream.extend_from_slice(&[3, 0, 1, 2, 3]);
        stream.extend_from_slice(b"name\0comment\0\x12\x34");
        stream.extend_from_slice(&plain[HEADER_BYTES..]);
        assert_eq!(inflate(&stream, 99), Ok(b"text".to_vec()));
        for end in 0..stream.len() {
            assert_eq!(inflate(&stream[..end], 99), Err(InflateError::Truncated), "{end}");
        }
    }

    #[test]
    fn every_damaged_bit_that_matters_is_found_and_none_panics() {
        let stream = gzip(b"a text that compresses a little, a little");
        for bit in 0..stream.len() * 8 {
            let mut damaged = stream.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Time, extra flags, system and text flag of the header do not affect the data.
            let is_idle = (4 * 8..HEADER_BYTES * 8).contains(&bit) || bit == 3 * 8;
            assert_eq!(inflate(&damaged, 999).is_ok(), is_idle, "bit {bit}");
        }
    }

    fn unwrap(mut stream: Inflate, input: &[u8], limit: usize) -> Result<(Vec<u8>, usize), InflateError> {
        while !stream.step(input)? {
            assert!(stream.memory_bytes() <= 2 * (limit + STEP_BYTES));
        }
        let consumed = stream.consumed();
        Ok((stream.into_output(), consumed))
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn raw(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let (limit, bytes) = (1 << 20, vec![0; 20 << 20]);
        assert_eq!(unwrap(Inflate::zlib(limit), &zlib(&bytes), limit), Err(InflateError::TooLarge { limit }));
        assert_eq!(unwrap(Inflate::raw(limit), &raw(&bytes), limit), Err(InflateError::TooLarge { limit }));
    }

    #[test]
    fn every_damaged_bit_of_zlib_is_found() {
        let stream = zlib(b"a text that compresses a little, a little");
        for bit in 0..stream.len() * 8 {
            let mut damaged = stream.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(unwrap(Inflate::zlib(999), &damaged, 999).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, ..ProptestConfig::default() })]

        #[test]
        fn what_a_library_deflates_is_inflated_and_what_follows_is_left(
            bytes in prop::collection::vec(prop_oneof![Just(b'a'), any::<u8>()], 0..3000),
            rest in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            for (stream, packed) in [(Inflate::zlib(bytes.len()), zlib(&bytes)), (Inflate::raw(bytes.len()), raw(&bytes))] {
                let input = [packed.as_slice(), &rest].concat();
                prop_assert!(unwrap(stream, &input, bytes.len()) == Ok((bytes.clone(), packed.len())));
            }
        }

        #[test]
        fn a_stream_that_is_cut_off_is_truncated(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            cut in any::<prop::sample::Index>(),
        ) {
            for (stream, packed) in [(Inflate::zlib(999), zlib(&bytes)), (Inflate::raw(999), raw(&bytes))] {
                let cut = cut.index(packed.len());
                prop_assert!(unwrap(stream, &packed[..cut], 999) == Err(InflateError::Truncated));
            }
        }
    }
}
