//! The compression of a form's data, and its decompression.

use tributary_codec::inflate::{Gunzip, Inflate, InflateError};
use tributary_codec::lz4::{Layout, Unlz4};

/// The compression of a form's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// `data`: not compressed.
    Plain,
    /// `zdata`: zlib, gzip or raw deflate.
    Deflate,
    /// `ldata`: LZ4 in one of its forms.
    Lz4,
}

/// Decompresses the data of a form in steps.
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

    /// Does a bounded part of the work. Returns `true` at the end.
    ///
    /// # Errors
    /// The bytes are malformed, or decompress to more than the limit. Offsets count after base64 decoding.
    pub fn step(&mut self) -> Result<bool, InflateError> {
        match &mut self.stream {
            Stream::Plain { limit } if self.packed.len() > *limit => Err(InflateError::TooLarge { limit: *limit }),
            Stream::Plain { .. } => Ok(true),
            Stream::Gzip(stream) => stream.step(&self.packed),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.step(&self.packed),
            Stream::Lz4(stream) => stream.step(&self.packed),
        }
    }

    /// Its memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let output = match &self.stream {
            Stream::Plain { .. } => 0,
            Stream::Gzip(stream) => stream.memory_bytes(),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.memory_bytes(),
            Stream::Lz4(stream) => stream.memory_bytes(),
        };
        self.packed.capacity() + output
    }

    /// The detected compression: `data`, `zdata:zlib`, `zdata:gzip`, `zdata:deflate`, `ldata:frame`,
    /// `ldata:lz4java`, `ldata:size-le`, `ldata:size-be`, `ldata:block`. Final at the end.
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

    /// The number of bytes after the end of the compressed stream, which are ignored. Final at the end.
    pub fn trailing(&self) -> usize {
        match &self.stream {
            Stream::Plain { .. } | Stream::Gzip(_) => 0,
            Stream::Zlib(stream) | Stream::Deflate(stream) => self.packed.len() - stream.consumed(),
            Stream::Lz4(stream) => self.packed.len() - stream.consumed(),
        }
    }

    /// The decompressed bytes.
    pub fn into_output(self) -> Vec<u8> {
        match self.stream {
            Stream::Plain { .. } => self.packed,
            Stream::Gzip(stream) => stream.into_output(),
            Stream::Zlib(stream) | Stream::Deflate(stream) => stream.into_output(),
            Stream::Lz4(stream) => stream.into_output(),
        }
    }
}

/// Whether these bytes have the header of RFC 1950. No known compressor writes raw deflate that starts like it.
fn is_zlib(packed: &[u8]) -> bool {
    matches!(packed, [method, flags, ..] if method & 0x0F == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}
