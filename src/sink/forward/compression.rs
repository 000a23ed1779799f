//! Compression of requests.

use std::io::{self, Read as _, Write as _};

/// A part of a divided request is not longer than this when it is decompressed.
const MAX_INFLATED_BYTES: u64 = 256 * 1024 * 1024;

/// How requests are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip, level 1: half of the processor time of the default level for a few percent more bytes.
    Gzip,
    /// Zstandard, level 1.
    Zstd,
}

impl Compression {
    /// Every way.
    pub const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Zstd];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        }
    }

    /// How a request is compressed, by its first bytes. Neither JSON nor a message of OTLP begins with any of these.
    pub fn of(body: &[u8]) -> Compression {
        match body {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Compression::Zstd,
            _ => Compression::None,
        }
    }

    /// Appends a request, compressed.
    pub fn compress_to(self, body: &[u8], mut out: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Compression::None => out.extend_from_slice(body),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::fast());
                encoder.write_all(body)?;
                out = encoder.finish()?;
            }
            Compression::Zstd => out.extend_from_slice(&zstd::bulk::compress(body, 1)?),
        }
        Ok(out)
    }

    /// The request as it was before.
    pub fn decompress(self, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        let read = match self {
            Compression::None => return Ok(body.to_vec()),
            Compression::Gzip => flate2::read::GzDecoder::new(body).take(MAX_INFLATED_BYTES).read_to_end(&mut out)?,
            Compression::Zstd => zstd::Decoder::new(body)?.take(MAX_INFLATED_BYTES).read_to_end(&mut out)?,
        };
        if read as u64 == MAX_INFLATED_BYTES { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(out) }
    }
}
