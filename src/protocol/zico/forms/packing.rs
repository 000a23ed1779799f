//! The compression of a form's data, and its decompression.

use tributary_codec::inflate::{Gunzip, Inflate, InflateError};
use tributary_codec::lz4::{Lz4Layout, Unlz4};

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
    stream: BodyDecoder,
}

#[derive(Debug)]
enum BodyDecoder {
    Plain { limit: usize },
    Gzip(Box<Gunzip>),
    Zlib(Box<Inflate>),
    Deflate(Box<Inflate>),
    Lz4(Box<Unlz4>),
}

impl Unpacking {
    pub(super) fn new(packing: Packing, packed: Vec<u8>, limit: usize) -> Self {
        let stream = match packing {
            Packing::Plain => BodyDecoder::Plain { limit },
            Packing::Deflate if packed.starts_with(&[0x1F, 0x8B]) => BodyDecoder::Gzip(Box::new(Gunzip::new(limit))),
            Packing::Deflate if is_zlib(&packed) => BodyDecoder::Zlib(Box::new(Inflate::zlib(limit))),
            Packing::Deflate => BodyDecoder::Deflate(Box::new(Inflate::raw(limit))),
            Packing::Lz4 => BodyDecoder::Lz4(Box::new(Unlz4::new(&packed, limit))),
        };
        Unpacking { packed, stream }
    }

    /// Does a bounded part of the work. Returns `true` at the end.
    ///
    /// # Errors
    /// The bytes are malformed, or decompress to more than the limit. Offsets count after base64 decoding.
    pub fn step(&mut self) -> Result<bool, InflateError> {
        match &mut self.stream {
            BodyDecoder::Plain { limit } if self.packed.len() > *limit => Err(InflateError::TooLarge { limit: *limit }),
            BodyDecoder::Plain { .. } => Ok(true),
            BodyDecoder::Gzip(stream) => stream.step(&self.packed),
            BodyDecoder::Zlib(stream) | BodyDecoder::Deflate(stream) => stream.step(&self.packed),
            BodyDecoder::Lz4(stream) => stream.step(&self.packed),
        }
    }

    /// Its memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let output = match &self.stream {
            BodyDecoder::Plain { .. } => 0,
            BodyDecoder::Gzip(stream) => stream.memory_bytes(),
            BodyDecoder::Zlib(stream) | BodyDecoder::Deflate(stream) => stream.memory_bytes(),
            BodyDecoder::Lz4(stream) => stream.memory_bytes(),
        };
        self.packed.capacity() + output
    }

    /// The detected compression: `data`, `zdata:zlib`, `zdata:gzip`, `zdata:deflate`, `ldata:frame`,
    /// `ldata:lz4java`, `ldata:size-le`, `ldata:size-be`, `ldata:block`. Final at the end.
    pub fn layout(&self) -> &'static str {
        match &self.stream {
            BodyDecoder::Plain { .. } => "data",
            BodyDecoder::Gzip(_) => "zdata:gzip",
            BodyDecoder::Zlib(_) => "zdata:zlib",
            BodyDecoder::Deflate(_) => "zdata:deflate",
            BodyDecoder::Lz4(stream) => match stream.layout() {
                Lz4Layout::Frame => "ldata:frame",
                Lz4Layout::Java => "ldata:lz4java",
                Lz4Layout::SizeLe => "ldata:size-le",
                Lz4Layout::SizeBe => "ldata:size-be",
                Lz4Layout::Block => "ldata:block",
            },
        }
    }

    /// The number of bytes after the end of the compressed stream, which are ignored. Final at the end.
    pub fn trailing(&self) -> usize {
        match &self.stream {
            BodyDecoder::Plain { .. } | BodyDecoder::Gzip(_) => 0,
            BodyDecoder::Zlib(stream) | BodyDecoder::Deflate(stream) => self.packed.len() - stream.consumed(),
            BodyDecoder::Lz4(stream) => self.packed.len() - stream.consumed(),
        }
    }

    /// The decompressed bytes.
    pub fn into_output(self) -> Vec<u8> {
        match self.stream {
            BodyDecoder::Plain { .. } => self.packed,
            BodyDecoder::Gzip(stream) => stream.into_output(),
            BodyDecoder::Zlib(stream) | BodyDecoder::Deflate(stream) => stream.into_output(),
            BodyDecoder::Lz4(stream) => stream.into_output(),
        }
    }
}

/// Whether these bytes have the header of RFC 1950. No known compressor writes raw deflate that starts like it.
fn is_zlib(packed: &[u8]) -> bool {
    matches!(packed, [method, flags, ..] if method & 0x0F == 8 && u16::from_be_bytes([*method, *flags]) % 31 == 0)
}
