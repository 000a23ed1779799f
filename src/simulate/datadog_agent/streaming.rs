//! Traces of version 1.0: maps with numbers as keys, and strings that are sent once and then named by their number.

use std::collections::HashMap;

use super::Span;

/// MessagePack with streaming strings.
#[derive(Default)]
struct StreamingWriter {
    out: Vec<u8>,
    /// The numbers of the strings that were sent. Number 0 is the empty one.
    strings: HashMap<String, u64>,
}

impl StreamingWriter {
    fn map(&mut self, members: u32) {
        self.out.push(0xDF);
        self.out.extend_from_slice(&members.to_be_bytes());
    }

    fn array(&mut self, items: u32) {
        self.out.push(0xDD);
        self.out.extend_from_slice(&items.to_be_bytes());
    }

    fn number(&mut self, number: u64) {
        self.out.push(0xCF);
        self.out.extend_from_slice(&number.to_be_bytes());
    }

    fn double(&mut self, number: f64) {
        self.out.push(0xCB);
        self.out.extend_from_slice(&number.to_bits().to_be_bytes());
    }

    fn bool(&mut self, value: bool) {
        self.out.push(0xC2 + u8::from(value));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(&[0xC4, bytes.len() as u8]);
        self.out.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        let next = self.strings.len() as u64 + 1;
        match self.strings.get(text) {
            _ if text.is_empty() => self.number(0),
            Some(number) => {
                let number = *number;
                self.number(number);
            }
            None => {
                self.out.push(0xDB);
                self.out.extend_from_slice(&(text.len() as u32).to_be_bytes());
                self.out.extend_from_slice(text.as_bytes());
                self.strings.insert(text.to_owned(), next);
            }
        }
    }

    fn span(&mut self, span: &Span) {
        // `span.kind` and the tags of the payload have fields of their own.
        let metas: Vec<_> = span.meta.iter().filter(|(key, _)| !matches!(**key, "span.kind" | "_dd.p.tid")).collect();
        self.map(10);
        for (key, text) in [(1, span.service), (2, span.name), (3, span.resource), (10, span.r#type)] {
            self.number(key);
            self.text(text);
        }
        for (key, number) in [(4, span.span_id), (5, span.parent_id), (6, span.start as u64), (7, span.duration as u64)]
        {
            self.number(key);
            self.number(number);
        }
        self.number(8);
        self.bool(span.error > 0);
        self.number(9);
        self.array(3 * (metas.len() + span.metrics.len()) as u32);
        for (key, value) in metas {
            self.text(key);
            self.number(1);
            self.text(value);
        }
        for (key, value) in &span.metrics {
            self.text(key);
            self.number(3);
            self.double(*value);
        }
    }
}

/// A body of these chunks. As Datadog's encoder does, it begins with the chunks.
pub(super) fn body(chunks: &[Vec<Span>], runtime_id: &str) -> Vec<u8> {
    let mut writer = StreamingWriter::default();
    writer.map(6);
    writer.number(11);
    writer.array(chunks.len() as u32);
    for chunk in chunks {
        let first = chunk.first();
        let high = first.and_then(|span| u64::from_str_radix(span.meta.get("_dd.p.tid")?, 16).ok()).unwrap_or(0);
        let low = first.map_or(0, |span| span.trace_id);
        writer.map(3);
        writer.number(1);
        writer.number(1);
        writer.number(4);
        writer.array(chunk.len() as u32);
        chunk.iter().for_each(|span| writer.span(span));
        writer.number(6);
        writer.bytes(&[high.to_be_bytes(), low.to_be_bytes()].concat());
    }
    for (key, text) in [(3, "python"), (5, "4.16.0"), (6, runtime_id), (7, "prod"), (9, "3.14.1")] {
        writer.number(key);
        writer.text(text);
    }
    writer.out
}
