//! The wire format of Protocol Buffers, written and read without generated code.
//!
//! A field is a tag (its number and wire type) and a value. All fields that are written here, but some of 4 bytes, have numbers
//! below 16, so a tag is one byte.

pub use tributary_event::varint::{push_varint, read_varint, unsigned, varint_len, zigzag};

/// The tag of a field whose value is a varint.
pub(crate) const fn varint_tag(field: u8) -> u8 {
    field << 3
}

/// The tag of a field whose value has 8 bytes.
pub(crate) const fn fixed64_tag(field: u8) -> u8 {
    field << 3 | 1
}

/// The tag of a field whose value begins with its length: text, bytes, messages and packed lists.
pub const fn len_tag(field: u8) -> u8 {
    field << 3 | 2
}

/// Appends a field whose value is a varint.
#[inline]
pub fn push_varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    out.push(varint_tag(field));
    push_varint(out, value);
}

/// Appends a field of 8 bytes.
#[inline]
pub fn push_fixed64_field(out: &mut Vec<u8>, field: u8, value: u64) {
    let mut bytes = [fixed64_tag(field); 9];
    bytes[1..].copy_from_slice(&value.to_le_bytes());
    out.extend_from_slice(&bytes);
}

/// Appends a field whose value is a varint of a signed number, small ones as short ones.
#[inline]
pub fn push_zigzag_field(out: &mut Vec<u8>, field: u8, value: i32) {
    push_varint_field(out, field, unsigned(value.into()));
}

/// Appends a field of 4 bytes, of any number.
#[inline]
pub fn push_fixed32_field(out: &mut Vec<u8>, field: u8, value: u32) {
    push_varint(out, u64::from(field) << 3 | 5);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a field of text, bytes, or a message that is encoded already.
#[inline]
pub fn push_bytes_field(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(len_tag(field));
    push_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// Appends a message that `write` appends, with its tag and length. The length is expected to take `expected` bytes; if it does
/// not, the message is moved.
#[inline]
pub fn push_message(out: &mut Vec<u8>, field: u8, expected: usize, write: impl FnOnce(&mut Vec<u8>)) {
    const ZEROS: [u8; 10] = [0; 10];
    out.push(len_tag(field));
    let start = out.len();
    out.extend_from_slice(&ZEROS[..expected]);
    write(out);
    let end = out.len();
    let length = end - start - expected;
    let needed = varint_len(length as u64);
    if needed > expected {
        out.extend_from_slice(&ZEROS[..needed - expected]);
    }
    if needed != expected {
        out.copy_within(start + expected..end, start + needed);
        out.truncate(start + needed + length);
    }
    let mut rest = length as u64;
    for byte in &mut out[start..start + needed] {
        *byte = rest as u8 | 0x80;
        rest >>= 7;
    }
    out[start + needed - 1] &= 0x7f;
}

/// The value of a field that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtobufValue<'a> {
    /// A varint.
    Varint(u64),
    /// Text, bytes, or a message.
    Bytes(&'a [u8]),
    /// 4 or 8 bytes.
    Fixed(&'a [u8]),
}

/// A field that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field<'a> {
    /// Its number.
    pub number: u64,
    /// Its value.
    pub value: ProtobufValue<'a>,
}

/// Reads the fields of a message in order. Ends before the first invalid one; [`ProtobufFields::is_valid`] is `false` then.
#[derive(Clone, Debug)]
pub struct ProtobufFields<'a> {
    rest: &'a [u8],
}

impl<'a> ProtobufFields<'a> {
    /// The fields of a message.
    pub fn of(message: &'a [u8]) -> ProtobufFields<'a> {
        ProtobufFields { rest: message }
    }

    /// After the last field: whether the message ended there.
    pub fn is_valid(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes of the message that were not read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next field, and all of its bytes, with its tag.
    #[inline]
    pub fn next_whole(&mut self) -> Option<(Field<'a>, &'a [u8])> {
        let before = self.rest;
        let field = self.next()?;
        Some((field, &before[..before.len() - self.rest.len()]))
    }

    /// The next field of any form.
    #[inline(never)]
    fn any(&mut self) -> Option<Field<'a>> {
        let (tag, rest) = read_varint(self.rest)?;
        let (value, rest) = match tag & 7 {
            2 => {
                let (length, rest) = read_varint(rest)?;
                let (bytes, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                (ProtobufValue::Bytes(bytes), rest)
            }
            of => read_number(of, rest)?,
        };
        self.rest = rest;
        Some(Field { number: tag >> 3, value })
    }
}

/// The value of a field with this wire type that has no length, and what follows.
fn read_number(of: u64, rest: &[u8]) -> Option<(ProtobufValue<'_>, &[u8])> {
    match of {
        0 => read_varint(rest).map(|(value, rest)| (ProtobufValue::Varint(value), rest)),
        1 => rest.split_at_checked(8).map(|(bytes, rest)| (ProtobufValue::Fixed(bytes), rest)),
        5 => rest.split_at_checked(4).map(|(bytes, rest)| (ProtobufValue::Fixed(bytes), rest)),
        _ => None,
    }
}

impl<'a> Iterator for ProtobufFields<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        // Most fields are a text or a message of less than 128 bytes, and have a number below 16.
        if let [tag, length @ 0..0x80, rest @ ..] = self.rest
            && tag & 0x87 == 2
            && let Some((bytes, rest)) = rest.split_at_checked(usize::from(*length))
        {
            self.rest = rest;
            return Some(Field { number: u64::from(tag >> 3), value: ProtobufValue::Bytes(bytes) });
        }
        self.any()
    }
}

/// Reads varints that follow each other: a packed list. Ends before the first invalid one.
#[derive(Clone, Debug)]
pub struct Varints<'a> {
    rest: &'a [u8],
}

impl<'a> Varints<'a> {
    /// The varints of a list.
    pub fn of(list: &'a [u8]) -> Varints<'a> {
        Varints { rest: list }
    }

    /// After the last varint: whether the list ended there.
    pub fn is_valid(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes of the list that were not read.
    pub fn rest(&self) -> &[u8] {
        self.rest
    }
}

impl Iterator for Varints<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        let (value, rest) = read_varint(self.rest)?;
        self.rest = rest;
        Some(value)
    }
}

/// The message or bytes of the first field with this number; empty: there is none.
pub fn bytes_of(message: &[u8], number: u64) -> &[u8] {
    let found = ProtobufFields::of(message).find_map(|field| match field.value {
        ProtobufValue::Bytes(bytes) if field.number == number => Some(bytes),
        _ => None,
    });
    found.unwrap_or_default()
}

/// The varint of the first field with this number; 0: there is none.
pub fn varint_of(message: &[u8], number: u64) -> u64 {
    let found = ProtobufFields::of(message).find_map(|field| match field.value {
        ProtobufValue::Varint(value) if field.number == number => Some(value),
        _ => None,
    });
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_message_is_written_in_as_many_bytes_as_it_needs() {
        for length in [0, 1, 127, 128, 300, 16_383, 16_384, 2_097_152] {
            for expected in 1..=4 {
                let mut out = vec![9];
                push_message(&mut out, 3, expected, |out| out.resize(out.len() + length, 7));
                let (read, rest) = read_varint(&out[2..]).unwrap();
                assert_eq!((out[0], out[1], read, rest.len()), (9, 0x1a, length as u64, length));
                assert_eq!(out.len(), 2 + varint_len(length as u64) + length);
                assert!(rest.iter().all(|byte| *byte == 7));
            }
        }
    }

    #[test]
    fn varints_have_the_length_that_is_computed_and_are_read_back() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                push_varint(&mut out, value);
                assert_eq!((out.len(), read_varint(&out)), (varint_len(value), Some((value, &[][..]))));
            }
        }
    }

    #[test]
    fn invalid_messages_end_and_are_recognized() {
        for bytes in [
            &[0x0a][..],
            &[0x0a, 5, 1],
            &[0x08],
            &[0x09, 1],
            &[0x0b],
            &[0xff; 11],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            let mut fields = ProtobufFields::of(bytes);
            assert_eq!(fields.by_ref().count(), 0);
            assert!(!fields.is_valid());
        }
        let mut message = Vec::new();
        push_varint_field(&mut message, 1, 300);
        push_fixed64_field(&mut message, 2, 7);
        push_bytes_field(&mut message, 3, b"x");
        let mut fields = ProtobufFields::of(&message);
        assert_eq!(fields.by_ref().count(), 3);
        assert!(fields.is_valid());
        assert_eq!((varint_of(&message, 1), bytes_of(&message, 3)), (300, &b"x"[..]));
        let mut varints = Varints::of(&[1, 0xac, 2, 0x80]);
        assert_eq!(varints.by_ref().collect::<Vec<_>>(), [1, 300]);
        assert!(!varints.is_valid());
    }
}
