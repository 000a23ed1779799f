//! Bodies of requests.

use std::ops::{Deref, DerefMut};

use bytes::Bytes;

/// The body of a request: a message in a buffer that may have unused bytes in front of it.
#[derive(Debug)]
pub struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for Body {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

impl From<Body> for Bytes {
    fn from(Body { bytes, start }: Body) -> Bytes {
        Bytes::from(bytes).slice(start..)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body { bytes, start: 0 }
    }
}
