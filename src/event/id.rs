//! Identifiers and instants: newtypes, so that trace ids and span ids, or nanoseconds and milliseconds, cannot be confused.

use std::fmt;
use std::hash::{Hash, Hasher};

/// Nanoseconds since the Unix epoch, UTC. The largest value is in the year 2554.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct UnixNanos(pub u64);

/// The 16 bytes of a trace id, in wire order. Shown as 32 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct TraceId(pub [u8; 16]);

/// Hashed as one number: an array of bytes would be hashed as a slice, with its length.
impl Hash for TraceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.0));
    }
}

/// The 8 bytes of a span id, in wire order. Shown as 16 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SpanId(pub [u8; 8]);

impl SpanId {
    /// Zero means "no span": a parent of zero marks a root.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 8]
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

/// Bytes in hex, in lower case.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    // Writing to a text does not fail.
    let _ = write_hex(&mut text, bytes);
    text
}

/// Writes bytes as lower-case hex digits.
///
/// # Errors
/// Only those of the writer.
pub fn write_hex(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.chunks(16).try_for_each(|bytes| {
        let mut digits = [0; 32];
        for (two, byte) in digits.as_chunks_mut().0.iter_mut().zip(bytes) {
            *two = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
        }
        f.write_str(str::from_utf8(&digits[..2 * bytes.len()]).unwrap_or_default())
    })
}

/// The bytes of `N` pairs of hex digits, in upper or lower case. `None`: it is something else.
pub fn hex_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    (text.len() == 2 * N && hex_into(text, &mut bytes)).then_some(bytes)
}

/// The bytes of pairs of hex digits, in upper or lower case. `None`: it is something else.
pub fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = vec![0; text.len() / 2];
    (text.len().is_multiple_of(2) && hex_into(text, &mut bytes)).then_some(bytes)
}

fn hex_into(text: &str, bytes: &mut [u8]) -> bool {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    let all = bytes.iter_mut().zip(pairs).fold(0, |all, (byte, [high, low])| {
        let (high, low) = (HEX_DIGITS[usize::from(*high)], HEX_DIGITS[usize::from(*low)]);
        *byte = high << 4 | low;
        all | high | low
    });
    all < 16
}

/// The values of hex digits; 255: the byte is none.
const HEX_DIGITS: [u8; 256] = {
    let (mut values, mut value) = ([255; 256], 0);
    while value < 16 {
        values[b"0123456789abcdef"[value] as usize] = value as u8;
        values[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    values
};
