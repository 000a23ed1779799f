//! Texts on the wire: modified or plain UTF-8 behind a length of two bytes, read independently of the decoder.

/// A text as an agent sent it, and what an event may show of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    /// Well formed: exactly this.
    Exact(String),
    /// Well formed but for lone surrogates; each is one U+FFFD.
    Lossy(String),
    /// Neither modified nor plain UTF-8: repaired in any way that shows U+FFFD.
    Invalid,
}

impl Text {
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Text::Exact(text) | Text::Lossy(text) => Some(text),
            Text::Invalid => None,
        }
    }
}

/// The bytes of the text whose length is at `offset`.
pub fn at(bytes: &[u8], offset: usize) -> &[u8] {
    let length = usize::from(u16::from_be_bytes([bytes[offset], bytes[offset + 1]]));
    &bytes[offset + 2..offset + 2 + length]
}

/// Reads a text that is well formed but for lone surrogates.
pub fn read(bytes: &[u8]) -> String {
    let mut units: Vec<u16> = Vec::new();
    let mut rest = bytes;
    while let [first, ..] = rest {
        let (length, head) = match first {
            0..=0x7f => (1, u32::from(*first)),
            0xc0..=0xdf => (2, u32::from(first & 0x1f)),
            0xe0..=0xef => (3, u32::from(first & 0x0f)),
            0xf0..=0xf7 => (4, u32::from(first & 0x07)),
            other => panic!("{other:02x} does not begin a character"),
        };
        let point = rest[1..length].iter().fold(head, |point, byte| point << 6 | u32::from(byte & 0x3f));
        match u16::try_from(point) {
            Ok(unit) => units.push(unit),
            Err(_) => units.extend(char::from_u32(point).unwrap().encode_utf16(&mut [0; 2]).iter()),
        }
        rest = &rest[length..];
    }
    String::from_utf16_lossy(&units)
}

/// Modified UTF-8 behind its length, as Java writes it.
pub fn write(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for unit in text.encode_utf16() {
        let part = |shift: u16, mark: u8| mark | (unit >> shift) as u8 & 0x3f;
        match unit {
            1..=0x7f => bytes.push(unit as u8),
            0 | 0x80..=0x7ff => bytes.extend([0xc0 | (unit >> 6) as u8, part(0, 0x80)]),
            _ => bytes.extend([0xe0 | (unit >> 12) as u8, part(6, 0x80), part(0, 0x80)]),
        }
    }
    [&u16::try_from(bytes.len()).unwrap().to_be_bytes()[..], &bytes].concat()
}
