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
    fn from(Body { mut bytes, start }: Body) -> Bytes {
        // A request waits for its response, and the bounds of memory count its length. A buffer that has grown with its records has
        // up to twice that.
        if bytes.capacity() > bytes.len() + bytes.len() / 8 {
            bytes.shrink_to_fit();
        }
        Bytes::from(bytes).slice(start..)
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        Body { bytes, start: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_waits_takes_at_most_an_eighth_more_memory_than_its_length() {
        let capacity_of = |capacity: usize| {
            let mut bytes = Vec::with_capacity(capacity);
            bytes.resize(8000, 7);
            let body = Bytes::from(Body { bytes, start: 100 });
            assert_eq!(body, vec![7; 7900]);
            // Of bytes that nothing else uses, this is the buffer itself.
            Vec::from(body).capacity()
        };
        assert_eq!([8000, 9000, 9001, 16000].map(capacity_of), [8000, 9000, 8000, 8000]);
    }
}
