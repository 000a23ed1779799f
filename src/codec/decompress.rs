//! Data whose compression is recognised by how they begin: gzip, Zstandard, a frame of LZ4, or none.

use std::fmt;

use zstd::stream::raw::{DParameter, Decoder, InBuffer, Operation, OutBuffer};

use super::inflate::{Gunzip, InflateError, STEP_BYTES};
use super::lz4::Unlz4;

const GZIP_MAGIC: [u8; 2] = [0x1F, 0x8B];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
const LZ4_MAGIC: [u8; 4] = [0x04, 0x22, 0x4D, 0x18];
/// The largest window of Zstandard, as a power of 2: a frame names it, and the decoder allocates it.
const MAX_WINDOW_LOG: u32 = 23;

/// Decompresses in steps.
#[derive(Debug)]
pub enum Decompressor {
    /// The data are not compressed.
    Plain {
        /// The most bytes of output.
        limit: usize,
        /// The output.
        output: Vec<u8>,
    },
    /// A stream of gzip.
    Gzip(Gunzip),
    /// Frames of Zstandard.
    Zstd(Unzstd),
    /// A frame of LZ4.
    Lz4(Unlz4),
}

impl Decompressor {
    /// For data that begin so, with at most `limit` bytes of output.
    pub fn new(input: &[u8], limit: usize) -> Decompressor {
        if input.starts_with(&GZIP_MAGIC) {
            Decompressor::Gzip(Gunzip::new(limit))
        } else if input.starts_with(&ZSTD_MAGIC) {
            Decompressor::Zstd(Unzstd::new(limit))
        } else if input.starts_with(&LZ4_MAGIC) {
            Decompressor::Lz4(Unlz4::new(input, limit))
        } else {
            Decompressor::Plain { limit, output: Vec::new() }
        }
    }

    /// Memory that it uses.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Decompressor::Plain { output, .. } => output.capacity(),
            Decompressor::Gzip(gunzip) => gunzip.memory_bytes(),
            Decompressor::Zstd(unzstd) => unzstd.output.capacity() + (1 << MAX_WINDOW_LOG),
            Decompressor::Lz4(unlz4) => unlz4.memory_bytes(),
        }
    }

    /// Does the next step, which produces a bounded number of bytes. `input` is the same in every call. Returns `true` at the end.
    ///
    /// # Errors
    /// The data are invalid or over the limit; no further step is possible.
    pub fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        match self {
            Decompressor::Plain { limit, .. } if input.len() > *limit => Err(InflateError::TooLarge { limit: *limit }),
            Decompressor::Plain { output, .. } => {
                output.extend_from_slice(input);
                Ok(true)
            }
            Decompressor::Gzip(gunzip) => gunzip.step(input),
            Decompressor::Zstd(unzstd) => unzstd.step(input),
            Decompressor::Lz4(unlz4) => match unlz4.step(input)? {
                true if unlz4.consumed() < input.len() => {
                    Err(InflateError::Corrupt { offset: unlz4.consumed(), what: "bytes behind the frame" })
                }
                is_over => Ok(is_over),
            },
        }
    }

    /// The output.
    pub fn into_output(self) -> Vec<u8> {
        match self {
            Decompressor::Plain { output, .. } => output,
            Decompressor::Gzip(gunzip) => gunzip.into_output(),
            Decompressor::Zstd(unzstd) => unzstd.output,
            Decompressor::Lz4(unlz4) => unlz4.into_output(),
        }
    }
}

/// Decompresses consecutive frames of Zstandard.
pub struct Unzstd {
    /// `None`: it cannot be made.
    decoder: Option<Decoder<'static>>,
    /// Input bytes that have been processed.
    at: usize,
    output: Vec<u8>,
    limit: usize,
    /// Whether the last frame has ended.
    is_between: bool,
}

impl fmt::Debug for Unzstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unzstd").field("at", &self.at).field("output", &self.output.len()).finish_non_exhaustive()
    }
}

impl Unzstd {
    fn new(limit: usize) -> Unzstd {
        let decoder = Decoder::new().and_then(|mut decoder| {
            decoder.set_parameter(DParameter::WindowLogMax(MAX_WINDOW_LOG))?;
            Ok(decoder)
        });
        Unzstd { decoder: decoder.ok(), at: 0, output: Vec::new(), limit, is_between: false }
    }

    fn step(&mut self, input: &[u8]) -> Result<bool, InflateError> {
        let corrupt = |offset, what| InflateError::Corrupt { offset, what };
        let Some(decoder) = &mut self.decoder else { return Err(corrupt(0, "no memory for a decoder of Zstandard")) };
        if self.is_between {
            if self.at == input.len() {
                return Ok(true);
            }
            decoder.reinit().map_err(|_| corrupt(self.at, "a frame that cannot begin"))?;
        }
        let before = self.output.len();
        // One more than the limit tells that there is more.
        let most = (self.limit + 1).min(before + STEP_BYTES);
        self.output.resize(most, 0);
        let mut output = OutBuffer::around_pos(&mut self.output[..], before);
        let mut rest = InBuffer::around(&input[self.at..]);
        let hint = decoder.run(&mut rest, &mut output);
        let written = output.pos();
        let consumed = rest.pos();
        self.output.truncate(written);
        self.at += consumed;
        let hint = hint.map_err(|_| corrupt(self.at, "no valid frame of Zstandard, or a window of more than 8 MiB"))?;
        if written > self.limit {
            return Err(InflateError::TooLarge { limit: self.limit });
        }
        self.is_between = hint == 0;
        if !self.is_between && consumed == 0 && written == before {
            return Err(InflateError::Truncated);
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn all(input: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
        let mut decompressor = Decompressor::new(input, limit);
        while !decompressor.step(input)? {}
        Ok(decompressor.into_output())
    }

    fn compressed() -> Vec<(Vec<u8>, Vec<u8>)> {
        let data: Vec<u8> =
            (0..2_000_000_u32).flat_map(|number| (number / 7 % 251).to_be_bytes()).take(700_000).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gzip.write_all(&data).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(&data).unwrap();
        let zstd = zstd::bulk::compress(&data, 3).unwrap();
        let all = [gzip.finish().unwrap(), lz4.finish().unwrap(), zstd, data.clone()];
        all.into_iter().map(|compressed| (compressed, data.clone())).collect()
    }

    #[test]
    fn every_form_is_recognised_and_bounded() {
        for (compressed, data) in compressed() {
            assert_eq!(all(&compressed, data.len()).unwrap(), data);
            let limit = data.len() - 1;
            assert_eq!(all(&compressed, limit).unwrap_err(), InflateError::TooLarge { limit });
        }
    }

    #[test]
    fn a_cut_or_continued_stream_is_refused() {
        for (compressed, _) in &compressed()[..3] {
            for end in [4, 5, 20, compressed.len() / 2, compressed.len() - 1] {
                all(&compressed[..end], 1 << 20).unwrap_err();
            }
            let continued = [compressed, &b"more"[..]].concat();
            all(&continued, 1 << 20).unwrap_err();
        }
    }

    #[test]
    fn frames_of_zstandard_follow_each_other() {
        let frame = |text: &[u8]| zstd::bulk::compress(text, 1).unwrap();
        let both = [frame(b"one"), frame(b""), frame(b"two")].concat();
        assert_eq!(all(&both, 6).unwrap(), b"onetwo");
    }
}
