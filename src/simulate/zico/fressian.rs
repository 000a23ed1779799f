//! Writes calls as packets of Fressian (section 6). The library of real agents is one of Java, so the format is written here.

use std::collections::{HashMap, HashSet};

use super::shop::{AttributeValue, Call, Exception, METHODS, Thrown};
use super::write::file;

/// The first bytes of each packet.
const MAGIC: [u8; 4] = [0x21, 0xC0, 0xBA, 0xBE];
/// Types of packets.
pub(super) const DATA: u16 = 0x01;
pub(super) const HELLO: u16 = 0x10;
/// Flags of records: it begins a trace; it threw.
const BEGINS: i64 = 0x02;
/// Flags of traces: those of every trace, and of one that failed.
const DEFAULT_FLAGS: i64 = 0x08;
const FAILED: i64 = 0x1002;

/// The names of one JVM: their numbers live as long as it, what is defined as long as a connection.
#[derive(Debug, Default)]
pub(super) struct FressianSymbols {
    ids: HashMap<&'static str, i64>,
    defined: HashSet<&'static str>,
}

impl FressianSymbols {
    /// Whether the connection has defined nothing.
    pub(super) fn is_new(&self) -> bool {
        self.defined.is_empty()
    }

    /// Another connection begins.
    pub(super) fn forget(&mut self) {
        self.defined.clear();
    }
}

/// A packet with this content.
pub(super) fn packet(kind: u16, content: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(content);
    let mut packet = MAGIC.to_vec();
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&(content.len() as u32).to_be_bytes());
    packet.extend_from_slice(&u64::from(crc.sum()).to_be_bytes());
    packet.extend_from_slice(content);
    packet
}

/// The hello of a host.
pub(super) fn hello(host: &str, pass_phrase: &str, unix_nanos: u64) -> Vec<u8> {
    let mut content = Content::default();
    content.open("HelloRequest_v1", 3);
    content.integer((unix_nanos / 1_000_000) as i64);
    content.text(host);
    content.text(pass_phrase);
    packet(HELLO, &content.bytes)
}

/// A packet of these traces, each with the names that it needs before it.
pub(super) fn data(calls: &[&Call], symbols: &mut FressianSymbols) -> Vec<u8> {
    let mut content = Content::default();
    for call in calls {
        content.define(call, symbols);
        content.record(call, symbols);
    }
    packet(DATA, &content.bytes)
}

/// The content of a packet.
#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    /// The structs that were announced.
    types: Vec<&'static str>,
}

impl Content {
    /// Defines every name of a call that is not defined.
    fn define(&mut self, call: &Call, symbols: &mut FressianSymbols) {
        let known = &METHODS[call.method];
        let mut names = vec![known.class, known.name, known.signature];
        names.extend(known.begins);
        names.extend(call.attributes.iter().map(|(key, _)| *key));
        names.extend(call.upward.iter().map(|(_, key, _)| *key));
        if let Some(Thrown::New(exception)) = &call.thrown {
            names.push(exception.class);
            for (place, _) in &exception.stack {
                names.extend([METHODS[*place].class, METHODS[*place].name, file(METHODS[*place].class)]);
            }
        }
        for name in names {
            let next = symbols.ids.len() as i64 + 1;
            let id = *symbols.ids.entry(name).or_insert(next);
            if symbols.defined.insert(name) {
                self.open("Symbol_v1", 2);
                self.integer(id);
                self.text(name);
            }
        }
        call.children.iter().for_each(|child| self.define(child, symbols));
    }

    fn record(&mut self, call: &Call, symbols: &FressianSymbols) {
        let known = &METHODS[call.method];
        self.open("TraceRecord_v1", 11);
        [known.class, known.name, known.signature].iter().for_each(|name| self.symbol(name, symbols));
        self.integer(if known.begins.is_some() { BEGINS } else { 0 });
        self.integer((call.end_nanos - call.start_nanos) as i64);
        self.integer(call.calls as i64);
        self.integer(i64::from(call.has_failed()));
        match known.begins {
            Some(kind) => {
                self.open("TraceMarker_v1", 4);
                self.symbol(kind, symbols);
                self.integer((call.start_nanos / 1_000_000) as i64);
                self.integer(0);
                self.integer(DEFAULT_FLAGS | if call.has_failed() { FAILED } else { 0 });
            }
            None => self.null(),
        }
        match &call.thrown {
            Some(Thrown::New(exception)) => self.exception(exception, symbols),
            _ => self.null(),
        }
        let upward = call.upward.iter().map(|(_, key, value)| (*key, value));
        let attributes: Vec<_> = call.attributes.iter().map(|(key, value)| (*key, value)).chain(upward).collect();
        if attributes.is_empty() {
            self.null();
        } else {
            self.bytes.push(0xC0);
            self.list(2 * attributes.len());
            for (key, value) in attributes {
                self.symbol(key, symbols);
                self.value(value);
            }
        }
        if call.children.is_empty() {
            self.null();
        } else {
            self.list(call.children.len());
            call.children.iter().for_each(|child| self.record(child, symbols));
        }
    }

    fn exception(&mut self, exception: &Exception, symbols: &FressianSymbols) {
        self.open("SymbolicException_v1", 4);
        self.symbol(exception.class, symbols);
        self.text(exception.message);
        self.list(exception.stack.len());
        for (place, line) in &exception.stack {
            let known = &METHODS[*place];
            self.open("SymbolicStackElement_v1", 4);
            self.symbol(known.class, symbols);
            self.symbol(known.name, symbols);
            self.symbol(file(known.class), symbols);
            self.integer(*line);
        }
        self.null();
    }

    fn value(&mut self, value: &AttributeValue) {
        match value {
            AttributeValue::Text(text) => self.text(text),
            AttributeValue::Int(number) => self.integer(*number),
            AttributeValue::Float(number) => {
                self.bytes.push(0xFA);
                self.bytes.extend_from_slice(&number.to_be_bytes());
            }
            AttributeValue::Bool(flag) => self.bytes.push(if *flag { 0xF5 } else { 0xF6 }),
            AttributeValue::List(list) => {
                self.list(list.len());
                list.iter().for_each(|value| self.value(value));
            }
            AttributeValue::Nothing => self.null(),
        }
    }

    /// Begins a struct; its first use in a packet announces it.
    fn open(&mut self, tag: &'static str, values: i64) {
        if let Some(number) = self.types.iter().position(|known| *known == tag) {
            self.bytes.push(0xA0 + number as u8);
            return;
        }
        self.types.push(tag);
        self.bytes.push(0xEF);
        self.text(&format!("com.jitlogic.zorka.{tag}"));
        self.integer(values);
    }

    fn symbol(&mut self, name: &str, symbols: &FressianSymbols) {
        self.integer(symbols.ids.get(name).copied().unwrap_or_default());
    }

    fn null(&mut self) {
        self.bytes.push(0xF7);
    }

    fn list(&mut self, values: usize) {
        if values < 8 {
            self.bytes.push(0xE4 + values as u8);
        } else {
            self.bytes.push(0xEC);
            self.integer(values as i64);
        }
    }

    /// A text; those of the shop are ASCII.
    fn text(&mut self, text: &str) {
        if text.len() < 8 {
            self.bytes.push(0xDA + text.len() as u8);
        } else {
            self.bytes.push(0xE3);
            self.integer(text.len() as i64);
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// An integer in its shortest form.
    fn integer(&mut self, number: i64) {
        match number {
            -1 => return self.bytes.push(0xFF),
            0..64 => return self.bytes.push(number as u8),
            _ => {}
        }
        for (zero, bytes, half) in
            [(0x50, 1, 16i64), (0x68, 2, 8), (0x72, 3, 2), (0x76, 4, 2), (0x7A, 5, 2), (0x7E, 6, 2)]
        {
            let high = number >> (8 * bytes);
            if (-half..half).contains(&high) {
                self.bytes.push((zero + high) as u8);
                self.bytes.extend_from_slice(&number.to_be_bytes()[8 - bytes..]);
                return;
            }
        }
        self.bytes.push(0xF8);
        self.bytes.extend_from_slice(&number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_have_their_shortest_form() {
        for (number, bytes) in [
            (63, &b"\x3f"[..]),
            (64, b"\x50\x40"),
            (-2, b"\x4f\xfe"),
            (4095, b"\x5f\xff"),
            (-4096, b"\x40\x00"),
            (4096, b"\x68\x10\x00"),
            (524_287, b"\x6f\xff\xff"),
            (524_288, b"\x72\x08\x00\x00"),
            (1_400_000_001_536, b"\x7b\x45\xf6\x80\xb6\x00"),
            (i64::MIN, b"\xf8\x80\0\0\0\0\0\0\0"),
        ] {
            let mut content = Content::default();
            content.integer(number);
            assert_eq!(content.bytes, bytes, "{number}");
        }
    }
}
