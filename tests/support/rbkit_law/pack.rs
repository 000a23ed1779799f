//! MessagePack and ZMTP, written byte by byte.

/// The encoding of texts: with or without str8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Texts {
    Raw,
    Str8,
}

#[derive(Clone, Debug)]
pub struct Pack {
    pub bytes: Vec<u8>,
    pub texts: Texts,
}

impl Pack {
    pub fn new(texts: Texts) -> Self {
        Pack { bytes: Vec::new(), texts }
    }

    pub fn nil(&mut self) {
        self.bytes.push(0xC0);
    }

    pub fn uint(&mut self, number: u64) {
        match number {
            0..=0x7F => self.bytes.push(number as u8),
            0x80..=0xFF => self.bytes.extend_from_slice(&[0xCC, number as u8]),
            0x100..=0xFFFF => self.head(0xCD, &(number as u16).to_be_bytes()),
            0x1_0000..=0xFFFF_FFFF => self.head(0xCE, &(number as u32).to_be_bytes()),
            _ => self.head(0xCF, &number.to_be_bytes()),
        }
    }

    pub fn float(&mut self, number: f64) {
        self.head(0xCB, &number.to_be_bytes());
    }

    pub fn text(&mut self, text: &[u8]) {
        match (text.len(), self.texts) {
            (length @ 0..32, _) => self.bytes.push(0xA0 | length as u8),
            (length @ 32..256, Texts::Str8) => self.bytes.extend_from_slice(&[0xD9, length as u8]),
            (length @ 32..0x1_0000, _) => self.head(0xDA, &(length as u16).to_be_bytes()),
            (length, _) => self.head(0xDB, &(length as u32).to_be_bytes()),
        }
        self.bytes.extend_from_slice(text);
    }

    pub fn array(&mut self, count: usize) {
        match count {
            0..16 => self.bytes.push(0x90 | count as u8),
            16..0x1_0000 => self.head(0xDC, &(count as u16).to_be_bytes()),
            _ => self.head(0xDD, &(count as u32).to_be_bytes()),
        }
    }

    pub fn map(&mut self, pairs: usize) {
        match pairs {
            0..16 => self.bytes.push(0x80 | pairs as u8),
            16..0x1_0000 => self.head(0xDE, &(pairs as u16).to_be_bytes()),
            _ => self.head(0xDF, &(pairs as u32).to_be_bytes()),
        }
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn text_or_nil(&mut self, text: Option<&[u8]>) {
        match text {
            Some(text) => self.text(text),
            None => self.nil(),
        }
    }

    pub fn uint_or_nil(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.uint(number),
            None => self.nil(),
        }
    }

    fn head(&mut self, first: u8, number: &[u8]) {
        self.bytes.push(first);
        self.bytes.extend_from_slice(number);
    }
}

/// The greeting and READY of an agent.
pub fn hello(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let data = [b"\x05READY\x0BSocket-Type\0\0\0", &[socket.len() as u8][..], socket.as_bytes()].concat();
    bytes.extend_from_slice(&[4, data.len() as u8]);
    bytes.extend_from_slice(&data);
    bytes
}

/// A frame; `flags` may request the long form.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let head = match u8::try_from(body.len()) {
        Ok(length) if flags & 2 == 0 => vec![flags, length],
        _ => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    [&head[..], body].concat()
}
