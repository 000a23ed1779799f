//! Bodies that are no CBOR: what agents say to register and to open a session, in JSON or EDN, and the form that
//! `/submit/agent` takes (section 1.4).

use std::fmt;

use super::agents::{Opening, Registration};

/// Why a body cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormFault {
    /// Where in the body, in bytes.
    pub offset: usize,
    /// What is wrong there. Never a key's value.
    pub what: String,
}

impl fmt::Display for FormFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for FormFault {}

/// Reads the body of `/agent/register`: JSON, or EDN where the content type says so (rules 2 and 3).
///
/// # Errors
/// It is neither; or `rkey`, `name`, `app` or `env` is missing, no text, or too long.
pub fn registration(_body: &[u8], _content_type: Option<&str>) -> Result<Registration, FormFault> {
    Err(FormFault { offset: 0, what: String::new() })
}

/// Reads the body of `/agent/session`, likewise: `authkey`, and the agent as `uuid` or `id` (rule 3).
///
/// # Errors
/// It is neither JSON nor EDN; or something is missing.
pub fn opening(_body: &[u8], _content_type: Option<&str>) -> Result<Opening, FormFault> {
    Err(FormFault { offset: 0, what: String::new() })
}

/// The body of `/submit/agent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Submission {
    /// Whose it is: a uuid, as sent.
    pub host: String,
    /// Under which name its bytes were sent.
    pub packing: Packing,
    /// The bytes, out of base64.
    pub packed: Vec<u8>,
}

/// What the bytes of a [`Submission`] are packed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    /// `data`: as they are.
    Plain,
    /// `zdata`: zlib, gzip or raw deflate.
    Deflate,
    /// `ldata`: LZ4 in one of its forms.
    Lz4,
}

/// Reads the body of `/submit/agent`: `host`, and exactly one of `data`, `zdata` and `ldata` (rule 31).
///
/// # Errors
/// It is something else, or what is in it is no base64.
pub fn submission(_body: &[u8]) -> Result<Submission, FormFault> {
    Err(FormFault { offset: 0, what: String::new() })
}

/// Bytes of a [`Submission`] being unpacked, in steps.
#[derive(Debug)]
pub struct Unpacking {
    packed: Vec<u8>,
}

/// Why bytes cannot be unpacked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnpackFault {
    /// They break their format.
    Corrupt {
        /// Offset in the packed bytes, roughly.
        offset: usize,
        /// What is wrong there.
        what: String,
    },
    /// More comes out than is allowed.
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
}

impl Submission {
    /// Begins to unpack; at most `limit` bytes may come out.
    pub fn unpack(self, _limit: usize) -> Unpacking {
        Unpacking { packed: self.packed }
    }
}

impl Unpacking {
    /// Does a bounded part of the work. Answers `true` when all is done.
    ///
    /// # Errors
    /// The bytes are at fault, or more come out than may.
    pub fn step(&mut self) -> Result<bool, UnpackFault> {
        Ok(true)
    }

    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.packed.capacity()
    }

    /// What the bytes turned out to be packed in: `data`, `zdata:zlib`, `zdata:gzip`, `zdata:deflate`, `ldata:frame`,
    /// `ldata:lz4java`, `ldata:size-le`, `ldata:size-be`, `ldata:block`. Known when all is done.
    pub fn layout(&self) -> &'static str {
        "data"
    }

    /// Packed bytes that stand behind the end of the packed stream, and mean nothing. Known when all is done.
    pub fn trailing(&self) -> usize {
        0
    }

    /// What came out.
    pub fn into_output(self) -> Vec<u8> {
        self.packed
    }
}
