//! Numbers in as few bytes as they need (LEB128: varints of Protocol Buffers).

/// Length of a varint in bytes.
#[inline]
pub const fn varint_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends a varint.
#[inline]
pub fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The signed number of a varint that was made by [`unsigned`].
#[inline]
pub fn zigzag(varint: u64) -> i64 {
    (varint >> 1) as i64 ^ -((varint & 1) as i64)
}

/// A number whose varint is short where a signed number is near 0.
#[inline]
pub const fn unsigned(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The varint at the beginning of these bytes, and the bytes behind it. `None`: there is none.
#[inline]
pub fn read_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes {
        // Most varints are tags and short lengths.
        [byte @ 0..0x80, rest @ ..] => Some((u64::from(*byte), rest)),
        // Lengths of messages mostly have two bytes.
        [low, high @ 0..0x80, rest @ ..] => Some((u64::from(low & 0x7f) | u64::from(*high) << 7, rest)),
        _ => read_long_varint(bytes),
    }
}

fn read_long_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}
