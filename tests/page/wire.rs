//! Bytes of a `datadog` tracer: spans of any shape, with any texts.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::live::wire;

/// A span. Texts are ids of strings: name, type, resource, service.
pub(crate) struct Span {
    pub(crate) trace: u128,
    pub(crate) id: u64,
    /// 0: a root.
    pub(crate) parent: u64,
    pub(crate) start: u64,
    pub(crate) duration: u64,
    pub(crate) texts: [u64; 4],
    pub(crate) is_error: bool,
}

impl Span {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend([0xDD, 2]);
        out.extend(self.id.to_be_bytes());
        out.extend(self.parent.to_be_bytes());
        out.extend(self.trace.to_be_bytes());
        out.extend(self.start.to_be_bytes());
        out.extend(self.duration.to_be_bytes());
        self.texts.iter().for_each(|text| out.extend(text.to_be_bytes()));
        out.push(u8::from(self.is_error));
    }
}

/// One entry of the meta of the object before it; both are ids of strings.
pub(crate) fn meta(key: u64, value: u64) -> Vec<u8> {
    [&[0xDD, 5, 1][..], &key.to_be_bytes(), &value.to_be_bytes()].concat()
}

/// The greeting, and strings with the ids 1, 2, 3 ….
pub(crate) fn hello(texts: &[&str]) -> Vec<u8> {
    let strings = texts.iter().zip(1..).map(|(text, id)| wire::string(id, text));
    std::iter::once(wire::process()).chain(strings).collect::<Vec<_>>().concat()
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}
