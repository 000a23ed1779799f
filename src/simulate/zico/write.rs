//! Writes calls as bytes, in each of the three dialects of CBOR. Values are written by a library, the framing by this module.

use std::collections::{HashMap, HashSet};

use ciborium::Value;

use super::super::rng::Rng;
use super::ZicoDialect;
use super::shop::{AttributeValue, Call, Exception, METHODS, Thrown};

/// The names that an agent defined at its collector.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    ids: HashMap<&'static str, u64>,
    methods: HashMap<usize, u64>,
    defined: HashSet<&'static str>,
    defined_methods: HashSet<usize>,
    /// Definitions that are not sent yet.
    pub(super) definitions: Vec<u8>,
}

/// The type of a symbol (section 2.2).
const STRING: u64 = 0;
const KEYWORD: u64 = 4;
const CLASS: u64 = 5;
const METHOD: u64 = 6;
const SIGNATURE: u64 = 8;

impl Symbols {
    /// Forgets all definitions (sections 1.1 and 1.2).
    pub(super) fn forget(&mut self, dialect: ZicoDialect) {
        self.defined.clear();
        self.defined_methods.clear();
        self.definitions.clear();
        if dialect == ZicoDialect::Gen2 {
            self.methods.clear();
        }
    }

    fn string(&mut self, text: &'static str, kind: u64, dialect: ZicoDialect) -> u64 {
        let next = self.ids.len() as u64 + 1;
        let id = *self.ids.entry(text).or_insert(next);
        if self.defined.insert(text) {
            let mut fields = vec![id.into(), text.into()];
            if dialect != ZicoDialect::Gen2 {
                fields.push(kind.into());
            }
            let tag = if dialect == ZicoDialect::Doc { 0x0D } else { 1 };
            write(&mut self.definitions, &Value::Tag(tag, Box::new(Value::Array(fields))));
        }
        id
    }

    fn method(&mut self, place: usize, dialect: ZicoDialect) -> u64 {
        let next = self.methods.len() as u64 + 1;
        let id = *self.methods.entry(place).or_insert(next);
        if self.defined_methods.insert(place) {
            let known = &METHODS[place];
            let names = [(known.class, CLASS), (known.name, METHOD), (known.signature, SIGNATURE)];
            let [class, name, signature] = names.map(|(text, kind)| self.string(text, kind, dialect));
            let fields = [id, class, name, signature].map(Value::from).to_vec();
            let tag = if dialect == ZicoDialect::Doc { 0x0E } else { 2 };
            write(&mut self.definitions, &Value::Tag(tag, Box::new(Value::Array(fields))));
        }
        id
    }
}

/// Writes one trace.
pub(super) struct Writer<'a> {
    pub(super) dialect: ZicoDialect,
    /// gen1: the streaming tracer, or the local one.
    pub(super) is_streaming: bool,
    pub(super) symbols: &'a mut Symbols,
    /// Subtracted from the calendar time, this gives the agent's monotonic clock.
    pub(super) behind_nanos: u64,
    pub(super) ids: Ids<'a>,
    /// The ends of inner traces: places where the trace may be divided.
    pub(super) cuts: Vec<usize>,
}

/// The span ids of begins (gen2).
pub(super) enum Ids<'a> {
    /// Those of the distributed context; a begin names the enclosing span, which is this one of the outermost begin.
    Of(Option<i64>),
    /// Other ones with each copy.
    Random(&'a mut Rng),
}

/// Nanoseconds per tick.
const TICK_NANOS: u64 = 1 << 16;
const MASK_40: u64 = (1 << 40) - 1;
/// Flags of traces (gen2, section 2.4): those of every trace, of one that was submitted, of one that failed.
const DEFAULT_FLAGS: u64 = 0x0108;
const SENT: u64 = 0x2000;
const FAILED: u64 = 0x1002;

impl Writer<'_> {
    /// Appends the records of a trace to `out`.
    pub(super) fn trace(&mut self, root: &Call, out: &mut Vec<u8>) {
        let parent = if let Ids::Of(parent) = self.ids { parent } else { None };
        let start = if self.is_local() { 0 } else { root.start_nanos.saturating_sub(self.behind_nanos) };
        self.record(root, true, start, parent, 0, out);
    }

    /// The local tracer of gen1.
    fn is_local(&self) -> bool {
        self.dialect == ZicoDialect::Gen1 && !self.is_streaming
    }

    /// A record that starts at `start` on the agent's clock. `parent` is the span of the enclosing begin, and `flags` are those
    /// of its trace.
    fn record(
        &mut self,
        call: &Call,
        is_root: bool,
        start: u64,
        mut parent: Option<i64>,
        mut flags: u64,
        out: &mut Vec<u8>,
    ) {
        let method = self.symbols.method(call.method, self.dialect);
        let end = start + (call.end_nanos - call.start_nanos);
        match self.dialect {
            ZicoDialect::Gen2 => {
                out.extend_from_slice(&[0xC3, 0x9F]);
                write(out, &start.into());
                write(out, &method.into());
            }
            ZicoDialect::Gen1 => {
                out.extend_from_slice(&[0xC8, 0x9F, if self.is_streaming { 0xCB } else { 0xCA }, 0x48]);
                self.word(start / TICK_NANOS, method, out);
            }
            ZicoDialect::Doc | ZicoDialect::Fressian => {
                out.extend_from_slice(&[0xCB, 0x9F, 0x48]);
                self.word(start / TICK_NANOS, method, out);
            }
        }
        let begins = call.begins();
        if let Some(kind) = begins {
            parent = self.begin(kind, call, parent, out);
            flags = DEFAULT_FLAGS
                | if is_root || call.is_submitted() { SENT } else { 0 }
                | if call.has_failed() { FAILED } else { 0 };
            if self.is_local() && call.has_failed() {
                out.extend_from_slice(&[0xCF, 0x08]);
            }
        }
        self.attributes(call, out);
        let mut elapsed = 0;
        for child in &call.children {
            // The local tracer of gen1 lays children back to back.
            let after = if self.is_local() { elapsed } else { child.start_nanos - call.start_nanos };
            self.record(child, false, start + after, parent, flags, out);
            elapsed += child.end_nanos - child.start_nanos;
        }
        match &call.thrown {
            Some(Thrown::New(exception)) => self.exception(exception, out),
            Some(Thrown::Passed { id }) if self.dialect == ZicoDialect::Gen2 => tagged(8, (*id).into(), out),
            Some(Thrown::Passed { id }) => tagged(0x23, (*id).into(), out),
            None => {}
        }
        self.end(end, call.calls, flags, out);
        if begins.is_some() && !is_root {
            self.cuts.push(out.len());
        }
    }

    /// Writes a begin. Returns its span id, which inner begins name as their parent.
    fn begin(&mut self, kind: &'static str, call: &Call, parent: Option<i64>, out: &mut Vec<u8>) -> Option<i64> {
        let clock = call.start_nanos / 1_000_000;
        let kind = self.symbols.string(kind, KEYWORD, self.dialect);
        let mut fields = vec![clock.into(), kind.into()];
        let mut inner_parent = None;
        if self.dialect == ZicoDialect::Gen2 {
            match &mut self.ids {
                Ids::Of(_) => {
                    fields.push(call.span.into());
                    fields.extend(parent.map(Value::from));
                    inner_parent = Some(call.span);
                }
                Ids::Random(rng) => fields.push((rng.next() as i64 | 1).into()),
            }
        }
        let tag = if self.dialect == ZicoDialect::Gen2 { 5 } else { 0x21 };
        tagged(tag, Value::Array(fields), out);
        inner_parent
    }

    fn attributes(&mut self, call: &Call, out: &mut Vec<u8>) {
        if self.dialect == ZicoDialect::Gen2 {
            for (key, given) in &call.attributes {
                let key = self.symbols.string(key, STRING, self.dialect);
                tagged(6, Value::Array(vec![key.into(), as_text(given).into()]), out);
            }
            return;
        }
        let mut pairs: Vec<(Value, Value)> =
            call.attributes.iter().map(|(key, given)| (self.key(key), value(given))).collect();
        if self.is_streaming {
            for pair in pairs {
                tagged(9, Value::Map(vec![pair]), out);
            }
        } else if !pairs.is_empty() {
            pairs.retain(|(_, given)| !given.is_null());
            tagged(9, Value::Map(pairs), out);
        }
        if let Some((kind, key, given)) = &call.upward {
            let kind = kind.map_or(0, |kind| self.symbols.string(kind, KEYWORD, self.dialect));
            let map = Value::Map(vec![(self.key(key), value(given))]);
            tagged(0x26, Value::Array(vec![kind.into(), map]), out);
        }
    }

    /// The key of an attribute: a text in the documented dialect, a reference in others.
    fn key(&mut self, text: &'static str) -> Value {
        match self.dialect {
            ZicoDialect::Doc | ZicoDialect::Fressian => text.into(),
            _ => Value::Tag(6, Box::new(self.symbols.string(text, STRING, self.dialect).into())),
        }
    }

    fn exception(&mut self, exception: &Exception, out: &mut Vec<u8>) {
        let dialect = self.dialect;
        let class = match dialect {
            ZicoDialect::Doc | ZicoDialect::Fressian => exception.class.into(),
            ZicoDialect::Gen1 => Value::Tag(6, Box::new(self.symbols.string(exception.class, CLASS, dialect).into())),
            ZicoDialect::Gen2 => self.symbols.string(exception.class, CLASS, dialect).into(),
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
        tagged(if dialect == ZicoDialect::Gen2 { 7 } else { 0x22 }, Value::Array(fields), out);
    }

    fn end(&mut self, end: u64, calls: u64, flags: u64, out: &mut Vec<u8>) {
        match self.dialect {
            ZicoDialect::Gen2 => tagged(4, Value::Array([end, calls, flags].map(Value::from).to_vec()), out),
            ZicoDialect::Gen1 => {
                out.extend_from_slice(&[if self.is_streaming { 0xCD } else { 0xCC }, 0x48]);
                self.word(end / TICK_NANOS, calls, out);
            }
            ZicoDialect::Doc | ZicoDialect::Fressian => {
                out.extend_from_slice(&[0xCD, 0x48]);
                self.word(end / TICK_NANOS, calls, out);
            }
        }
        out.push(0xFF);
    }

    /// A word of 40 bits of time and 24 other bits, little-endian or big-endian (section 2.3).
    fn word(&self, ticks: u64, high: u64, out: &mut Vec<u8>) {
        let word = ticks & MASK_40 | high << 40;
        let is_big = self.dialect == ZicoDialect::Gen1 && !self.is_streaming;
        out.extend_from_slice(&if is_big { word.to_be_bytes() } else { word.to_le_bytes() });
    }
}

/// The source file of a class.
pub(super) fn file(class: &str) -> &'static str {
    match class {
        "shop.web.Controller" => "Controller.java",
        "org.h2.jdbc.JdbcPreparedStatement" => "JdbcPreparedStatement.java",
        "shop.net.Client" => "Client.java",
        _ => "Shop.java",
    }
}

fn value(given: &AttributeValue) -> Value {
    match given {
        AttributeValue::Text(text) => text.as_str().into(),
        AttributeValue::Int(number) => (*number).into(),
        AttributeValue::Float(number) => (*number).into(),
        AttributeValue::Bool(flag) => (*flag).into(),
        AttributeValue::List(list) => Value::Array(list.iter().map(value).collect()),
        AttributeValue::Nothing => Value::Null,
    }
}

/// The local tracer of gen2 writes all values as text.
fn as_text(given: &AttributeValue) -> String {
    match given {
        AttributeValue::Text(text) => text.clone(),
        AttributeValue::Int(number) => number.to_string(),
        AttributeValue::Float(number) => number.to_string(),
        AttributeValue::Bool(flag) => flag.to_string(),
        AttributeValue::List(list) => format!("[{}]", list.iter().map(as_text).collect::<Vec<_>>().join(", ")),
        AttributeValue::Nothing => "null".to_owned(),
    }
}

fn tagged(tag: u64, inner: Value, out: &mut Vec<u8>) {
    write(out, &Value::Tag(tag, Box::new(inner)));
}

fn write(out: &mut Vec<u8>, value: &Value) {
    // Writing to memory does not fail.
    let _ = ciborium::into_writer(value, out);
}
