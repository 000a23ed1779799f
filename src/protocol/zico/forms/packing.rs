//! What the data of a form are packed in, and how they come out of it.

use crate::codec::inflate::{Gunzip, Inflate, InflateError};
use crate::codec::lz4::{Layout, Unlz4};

/// What the bytes of a form are packed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// `data`: as they are.
    Plain,
    /// `zdata`: zlib, gzip or raw deflate.
    Deflate,
    /// `ldata`: LZ4 in one of its forms.
    Lz4,
}

/// Bytes of a form being unpacked, in steps.
#[derive(Debug)]
pub struct Unpacking {
    packed: Vec<u8>,
    stream: Stream,
}

#[derive(Debug)]
enum Stream {
    Plain { limit: usize },
    Gzip(Box<Gunzip>),
    Zlib(Box<Inflate>),
    Deflate(Box<Inflate>),
    Lz4(Box<Unlz4>),
}

impl Unpacking {
    pub(super) fn new(packing: Packing, packed: Vec<u8>, limit: usize) -> Self {
        let stream = match packing {
            Packing::Plain => Stream::Plain { limit },
            Packing::Deflate if packed.starts_with(&[0x1F, 0x8B]) => Stream::Gzip(Box::new(Gunzip::new(limit))),
            Packing::Deflate if is_zlib(&packed) => Stream::Zlib(Box::new(Inflate::zlib(limit))),
            Packing::Deflate => Stream::Deflate(Box::new(Inflate::raw(limit))),
            Packing::Lz4 => Stream::Lz4(Box::new(Unlz4::new(&packed, limit))),
        };
        Unpacking { packed, stream }
    }

    /// Does a bounded part of the work. Answers `true` when all is done.
    ///
    /// # Errors
    /// The bytes are at fault, or more come out than may. Offsets are those in the bytes out of base64.
    pub fn step(&mut self) -> Result<bool, InflateError> {
        match &mut self.stream {
            Stream::Plain { limit } if self.packed.len() > *limit => Err(InflateError::TooLarge { limit: *limit }),
            Stream::Plain { .. } => Ok(true),
            Stream::Gzip(stream) => stream.step(&self.packed),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.step(&self.packed),
            Stream::Lz4(stream) => stream.step(&self.packed),
        }
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let output = match &self.stream {
            Stream::Plain { .. } => 0,
            Stream::Gzip(stream) => stream.memory_bytes(),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.memory_bytes(),
            Stream::Lz4(stream) => stream.memory_bytes(),
        };
        self.packed.capacity() + output
    }

    /// What the bytes turned out to be packed in: `data`, `zdata:zlib`, `zdata:gzip`, `zdata:deflate`, `ldata:frame`,
    /// `ldata:lz4java`, `ldata:size-le`, `ldata:size-be`, `ldata:block`. Certain when all is done.
    pub fn layout(&self) -> &'static str {
        match &self.stream {
            Stream::Plain { .. } => "data",
            Stream::Gzip(_) => "zdata:gzip",
            Stream::Zlib(_) => "zdata:zlib",
            Stream::Deflate(_) => "zdata:deflate",
            Stream::Lz4(stream) => match stream.layout() {
                Layout::Frame => "ldata:frame",
                Layout::Java => "ldata:lz4java",
                Layout::SizeLe => "ldata:size-le",
                Layout::SizeBe => "ldata:size-be",
                Layout::Block => "ldata:block",
            },
        }
    }

    /// Packed bytes behind the end of the packed stream, which mean nothing. Known when all is done.
    pub fn trailing(&self) -> usize {
        match &self.stream {
            Stream::Plain { .. } | Stream::Gzip(_) => 0,
            Stream::Zlib(stream) | Stream::Deflate(stream) => self.packed.len() - stream.consumed(),
            Stream::Lz4(stream) => self.packed.len() - stream.consumed(),
        }
    }

    /// What came out.
    pub fn into_output(self) -> Vec<u8> {
        match self.stream {
            Stream::Plain { .. } => self.packed,
            Stream::Gzip(stream) => stream.into_output(),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.into_output(),
            Stream::Lz4(stream) => stream.into_output(),
        }
    }
}

/// Whether these bytes begin as RFC 1950 has it. Raw deflate that looks so is not written by anybody.
fn is_zlib(packed: &[u8]) -> bool {
    matches!(packed, [method, flags, ..] if method & 0x0F == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}
