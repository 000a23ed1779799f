//! Calls as bytes, in each of the three dialects. Values are written by a library; what is around them is the wire's own.

use std::collections::{HashMap, HashSet};

use ciborium::Value;

use super::Dialect;
use super::shop::{Call, Exception, METHODS, Said, Thrown};

/// What an agent has told its collector about names.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    ids: HashMap<&'static str, u64>,
    methods: HashMap<usize, u64>,
    told: HashSet<&'static str>,
    told_methods: HashSet<usize>,
    /// Definitions that have not been sent.
    pub(super) definitions: Vec<u8>,
}

/// What a symbol is (section 2.2).
const STRING: u64 = 0;
const KEYWORD: u64 = 4;
const CLASS: u64 = 5;
const METHOD: u64 = 6;
const SIGNATURE: u64 = 8;

impl Symbols {
    /// Nothing is taken for known any more (sections 1.1 and 1.2).
    pub(super) fn forget(&mut self, dialect: Dialect) {
        self.told.clear();
        self.told_methods.clear();
        self.definitions.clear();
        if dialect == Dialect::Gen2 {
            self.methods.clear();
        }
    }

    fn string(&mut self, text: &'static str, kind: u64, dialect: Dialect) -> u64 {
        let next = self.ids.len() as u64 + 1;
        let id = *self.ids.entry(text).or_insert(next);
        if self.told.insert(text) {
            let mut fields = vec![id.into(), text.into()];
            if dialect != Dialect::Gen2 {
                fields.push(kind.into());
            }
            let tag = if dialect == Dialect::Doc { 0x0D } else { 1 };
            write(&mut self.definitions, &Value::Tag(tag, Box::new(Value::Array(fields))));
        }
        id
    }

    fn method(&mut self, place: usize, dialect: Dialect) -> u64 {
        let next = self.methods.len() as u64 + 1;
        let id = *self.methods.entry(place).or_insert(next);
        if self.told_methods.insert(place) {
            let known = &METHODS[place];
            let names = [(known.class, CLASS), (known.name, METHOD), (known.signature, SIGNATURE)];
            let [class, name, signature] = names.map(|(text, kind)| self.string(text, kind, dialect));
            let fields = [id, class, name, signature].map(Value::from).to_vec();
            let tag = if dialect == Dialect::Doc { 0x0E } else { 2 };
            write(&mut self.definitions, &Value::Tag(tag, Box::new(Value::Array(fields))));
        }
        id
    }
}

/// Writes one trace.
pub(super) struct Writer<'a> {
    pub(super) dialect: Dialect,
    /// gen1: as the streaming tracer does, or as the local one.
    pub(super) is_streaming: bool,
    pub(super) symbols: &'a mut Symbols,
    /// Subtracted from the calendar: the agent's running clock.
    pub(super) behind_nanos: u64,
    /// gen2: the spans of the trace.
    pub(super) span_ids: (i64, Option<i64>),
    /// Where traces inside the trace have ended: places where it may be cut.
    pub(super) cuts: Vec<usize>,
}

/// So many nanoseconds are a tick.
const TICK_NANOS: u64 = 1 << 16;
const MASK_40: u64 = (1 << 40) - 1;

impl Writer<'_> {
    /// Appends the records of a trace to `out`.
    pub(super) fn trace(&mut self, root: &Call, out: &mut Vec<u8>) {
        // The local tracer of gen1 counts from the start of the trace.
        let is_local = self.dialect == Dialect::Gen1 && !self.is_streaming;
        let origin = if is_local { root.start_nanos } else { self.behind_nanos };
        let flags = if root.has_failed() { 0x310A } else { 0x2108 };
        self.record(root, true, origin, flags, out);
    }

    fn record(&mut self, call: &Call, is_root: bool, origin: u64, flags: u64, out: &mut Vec<u8>) {
        let method = self.symbols.method(call.method, self.dialect);
        let (start, end) = (call.start_nanos.saturating_sub(origin), call.end_nanos.saturating_sub(origin));
        match self.dialect {
            Dialect::Gen2 => {
                out.extend_from_slice(&[0xC3, 0x9F]);
                write(out, &start.into());
                write(out, &method.into());
            }
            Dialect::Gen1 => {
                out.extend_from_slice(&[0xC8, 0x9F, if self.is_streaming { 0xCB } else { 0xCA }, 0x48]);
                self.word(start / TICK_NANOS, method, out);
            }
            Dialect::Doc => {
                out.extend_from_slice(&[0xCB, 0x9F, 0x48]);
                self.word(start / TICK_NANOS, method, out);
            }
        }
        let begins = call.begins(is_root, self.dialect != Dialect::Gen2);
        if let Some(kind) = begins {
            self.begin(kind, call, out);
        }
        if self.dialect == Dialect::Gen1 && !self.is_streaming && call.has_failed() {
            out.extend_from_slice(&[0xCF, 0x08]);
        }
        self.attributes(call, out);
        for child in &call.children {
            self.record(child, false, origin, flags, out);
        }
        match &call.thrown {
            Some(Thrown::New(exception)) => self.exception(exception, out),
            Some(Thrown::Passed { id }) if self.dialect == Dialect::Gen2 => tagged(8, (*id).into(), out),
            Some(Thrown::Passed { id }) => tagged(0x23, (*id).into(), out),
            None => {}
        }
        self.end(end, call.calls, flags, out);
        if begins.is_some() && !is_root {
            self.cuts.push(out.len());
        }
    }

    fn begin(&mut self, kind: &'static str, call: &Call, out: &mut Vec<u8>) {
        let clock = call.start_nanos / 1_000_000;
        let kind = self.symbols.string(kind, KEYWORD, self.dialect);
        let mut fields = vec![clock.into(), kind.into()];
        if self.dialect == Dialect::Gen2 {
            let (span, parent) = self.span_ids;
            fields.push(span.into());
            fields.extend(parent.map(Value::from));
        }
        let tag = if self.dialect == Dialect::Gen2 { 5 } else { 0x21 };
        tagged(tag, Value::Array(fields), out);
    }

    fn attributes(&mut self, call: &Call, out: &mut Vec<u8>) {
        if self.dialect == Dialect::Gen2 {
            for (key, said) in &call.attributes {
                let key = self.symbols.string(key, STRING, self.dialect);
                tagged(6, Value::Array(vec![key.into(), as_text(said).into()]), out);
            }
            return;
        }
        let mut pairs: Vec<(Value, Value)> =
            call.attributes.iter().map(|(key, said)| (self.key(key), value(said))).collect();
        if self.is_streaming {
            for pair in pairs {
                tagged(9, Value::Map(vec![pair]), out);
            }
        } else if !pairs.is_empty() {
            pairs.retain(|(_, said)| !said.is_null());
            tagged(9, Value::Map(pairs), out);
        }
        if let Some((kind, key, said)) = &call.upward {
            let kind = kind.map_or(0, |kind| self.symbols.string(kind, KEYWORD, self.dialect));
            let map = Value::Map(vec![(self.key(key), value(said))]);
            tagged(0x26, Value::Array(vec![kind.into(), map]), out);
        }
    }

    /// The key of an attribute: the documented form writes it out, agents refer to it.
    fn key(&mut self, text: &'static str) -> Value {
        match self.dialect {
            Dialect::Doc => text.into(),
            _ => Value::Tag(6, Box::new(self.symbols.string(text, STRING, self.dialect).into())),
        }
    }

    fn exception(&mut self, exception: &Exception, out: &mut Vec<u8>) {
        let dialect = self.dialect;
        let class = match dialect {
            Dialect::Doc => exception.class.into(),
            Dialect::Gen1 => Value::Tag(6, Box::new(self.symbols.string(exception.class, CLASS, dialect).into())),
            Dialect::Gen2 => self.symbols.string(exception.class, CLASS, dialect).into(),
        };
        let mut stack = Vec::new();
        for (place, line) in &exception.stack {
            let known = &METHODS[*place];
            let symbols = &mut *self.symbols;
            let [class, name] = [known.class, known.name].map(|text| symbols.string(text, CLASS, dialect));
            let file = if *line < 0 { 0 } else { symbols.string(file(known.class), STRING, dialect) };
            stack.push(Value::Array(vec![class.into(), name.into(), file.into(), (*line).into()]));
        }
        let fields = vec![exception.id.into(), class, exception.message.into(), 0.into(), Value::Array(stack)];
        tagged(if dialect == Dialect::Gen2 { 7 } else { 0x22 }, Value::Array(fields), out);
    }

    fn end(&mut self, end: u64, calls: u64, flags: u64, out: &mut Vec<u8>) {
        match self.dialect {
            Dialect::Gen2 => tagged(4, Value::Array([end, calls, flags].map(Value::from).to_vec()), out),
            Dialect::Gen1 => {
                out.extend_from_slice(&[if self.is_streaming { 0xCD } else { 0xCC }, 0x48]);
                self.word(end / TICK_NANOS, calls, out);
            }
            Dialect::Doc => {
                out.extend_from_slice(&[0xCD, 0x48]);
                self.word(end / TICK_NANOS, calls, out);
            }
        }
        out.push(0xFF);
    }

    /// 40 bits of time and 24 of something else, in the order of the machine or of the network (section 2.3).
    fn word(&self, ticks: u64, high: u64, out: &mut Vec<u8>) {
        let word = ticks & MASK_40 | high << 40;
        let is_big = self.dialect == Dialect::Gen1 && !self.is_streaming;
        out.extend_from_slice(&if is_big { word.to_be_bytes() } else { word.to_le_bytes() });
    }
}

/// The source file of a class.
fn file(class: &str) -> &'static str {
    match class {
        "shop.web.Controller" => "Controller.java",
        "org.h2.jdbc.JdbcPreparedStatement" => "JdbcPreparedStatement.java",
        "shop.net.Client" => "Client.java",
        _ => "Shop.java",
    }
}

fn value(said: &Said) -> Value {
    match said {
        Said::Text(text) => text.as_str().into(),
        Said::Int(number) => (*number).into(),
        Said::Float(number) => (*number).into(),
        Said::Bool(flag) => (*flag).into(),
        Said::List(list) => Value::Array(list.iter().map(value).collect()),
        Said::Nothing => Value::Null,
    }
}

/// The local tracer of gen2 makes everything a text.
fn as_text(said: &Said) -> String {
    match said {
        Said::Text(text) => text.clone(),
        Said::Int(number) => number.to_string(),
        Said::Float(number) => number.to_string(),
        Said::Bool(flag) => flag.to_string(),
        Said::List(list) => format!("[{}]", list.iter().map(as_text).collect::<Vec<_>>().join(", ")),
        Said::Nothing => "null".to_owned(),
    }
}

fn tagged(tag: u64, inner: Value, out: &mut Vec<u8>) {
    write(out, &Value::Tag(tag, Box::new(inner)));
}

fn write(out: &mut Vec<u8>, value: &Value) {
    // Memory takes everything.
    let _ = ciborium::into_writer(value, out);
}
