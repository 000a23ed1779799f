//! Annotates the objects of a connection field by field. It reads the layouts independently of `wire.rs`.

use std::collections::HashMap;

use tributary_codec::text::{cut_bytes, repair};
use tributary_event::SpanId;
use tributary_explain::words::{self, counted};
use tributary_explain::{Explain, FieldAnnotator, Raw, Sheet, value};

use super::ListLayout;
use super::wire::{ENTRY_BYTES, MAGIC, PROCESS_BYTES};

/// A longer string is annotated in parts: its start, then the rest as it arrives.
const WHOLE_STRING_BYTES: usize = 4096;
/// Bytes that are shown of such a string.
const STRING_START_BYTES: usize = 64;
/// Bytes before the text of a string.
const STRING_HEAD_BYTES: usize = 2 + 8 + 4;
/// Bytes before the entries of a list.
const LIST_HEAD_BYTES: usize = 2 + 1;
/// The number of entries in a list of the `padded32` layout.
const PADDED_ENTRIES: usize = 32;
/// The most strings, and bytes of strings, that are remembered. Further strings are shown by their ids.
const MAX_NAMES: usize = 16_384;
const MAX_NAME_BYTES: usize = 1 << 20;

/// Annotates the objects of a connection.
#[derive(Debug)]
pub struct Explainer {
    layout: ListLayout,
    state: ExplainState,
    names: Names,
}

#[derive(Debug)]
enum ExplainState {
    /// `process` is expected.
    Process,
    Objects,
    /// Inside a long string that began before the annotation, with this many bytes left.
    Within(usize),
    /// Inside a long string, with this many bytes left.
    Text(usize),
    /// The start of the next object is unknown (reading 31).
    Lost(Raw),
}

impl Explainer {
    /// Starts at the first byte of a connection.
    pub fn new(layout: ListLayout) -> Self {
        Explainer { layout, state: ExplainState::Process, names: Names::default() }
    }

    /// Starts at an object, or inside the text of a string, `text_left` bytes before its end.
    pub(super) fn within(layout: ListLayout, text_left: u32) -> Self {
        let state = if text_left == 0 { ExplainState::Objects } else { ExplainState::Within(text_left as usize) };
        Explainer { state, ..Explainer::new(layout) }
    }

    /// Starts at an object behind the first one.
    pub fn at_object(layout: ListLayout) -> Self {
        Explainer::within(layout, 0)
    }

    /// Starts after a fault.
    pub(super) fn lost() -> Self {
        let mut explainer = Explainer::new(ListLayout::default());
        explainer.lose("not decoded: it follows a fault");
        explainer
    }

    fn lose(&mut self, why: &'static str) {
        self.state = ExplainState::Lost(Raw::new(why));
    }

    /// Annotates what is at the front of `input`. `None`: it is not complete.
    fn step(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        match &mut self.state {
            ExplainState::Process => {
                // A wrong byte of the type is a fault immediately; a wrong version is shown with its four bytes.
                let known = input.len().min(2);
                if input[..known] != MAGIC[..known] {
                    self.lose("not a process object");
                    return Some(0);
                }
                let size = if *input.get(..6)? == MAGIC { PROCESS_BYTES } else { 6 };
                let object = input.get(..size)?;
                self.process(object, sheet);
                if size == PROCESS_BYTES {
                    self.state = ExplainState::Objects;
                } else {
                    self.lose("unknown protocol version");
                }
                Some(size)
            }
            ExplainState::Objects => {
                let Ok(size) = self.size(input)? else {
                    self.lose("not a valid object");
                    return Some(0);
                };
                self.object(input.get(..size)?, sheet);
                Some(size)
            }
            ExplainState::Within(left) => {
                input.first()?;
                sheet.title("string, continued");
                self.state = ExplainState::Text(*left);
                Some(0)
            }
            ExplainState::Text(0) => {
                self.state = ExplainState::Objects;
                Some(0)
            }
            ExplainState::Text(left) => {
                let size = input.len().min(*left);
                *left -= size;
                sheet.more(&input[..size]);
                Some(size).filter(|size| *size > 0)
            }
            ExplainState::Lost(raw) => Some(raw.explain(input, sheet)).filter(|size| *size > 0),
        }
    }

    /// The number of bytes to annotate together. `None`: not enough is here; `Err`: not an object.
    fn size(&self, input: &[u8]) -> Option<Result<usize, ()>> {
        if *input.first()? != 0xDD {
            return Some(Err(()));
        }
        let list_entries = |layout: ListLayout, count: u8| match layout {
            ListLayout::Exact => Ok(usize::from(count)),
            ListLayout::Padded32 if usize::from(count) <= PADDED_ENTRIES => Ok(PADDED_ENTRIES),
            ListLayout::Padded32 => Err(()),
        };
        Some(match *input.get(1)? {
            0x01 => Ok(2 + 16),
            0x02 => Ok(2 + 8 + 8 + 16 + 8 + 8 + 4 * 8 + 1),
            0x04 | 0x05 => list_entries(self.layout, *input.get(2)?).map(|count| LIST_HEAD_BYTES + count * ENTRY_BYTES),
            0x06 => {
                let length =
                    input.get(10..STRING_HEAD_BYTES)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                Ok(STRING_HEAD_BYTES + if length > WHOLE_STRING_BYTES { STRING_START_BYTES } else { length })
            }
            _ => Err(()),
        })
    }

    /// Annotates an object, or a part of one.
    fn object(&mut self, object: &[u8], sheet: &mut Sheet) {
        match object.get(1) {
            Some(0x01) => self.trace(object, sheet),
            Some(0x02) => self.span(object, sheet),
            Some(0x04) => self.list(object, "metricsList", sheet),
            Some(0x05) => self.list(object, "metaList", sheet),
            Some(0x06) => self.string(object, sheet),
            _ => sheet.raw(object, "incomplete"),
        }
    }

    fn process(&self, object: &[u8], sheet: &mut Sheet) {
        sheet.title("process");
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(object, sheet);
            fields.u16("object_type", |_| "process")?;
            fields.u32("protocol_version", |version| version)?;
            // After an unknown version nothing is known.
            if !fields.rest().is_empty() {
                fields.u64("string_cache_size", |entries| counted(entries, "entry"))?;
            }
            Some(())
        });
    }

    fn trace(&self, object: &[u8], sheet: &mut Sheet) {
        sheet.title("trace");
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(object, sheet);
            fields.u16("object_type", |_| "trace")?;
            fields.bytes(16, "trace_id", words::hex)
        });
    }

    fn span(&self, object: &[u8], sheet: &mut Sheet) {
        sheet.title("span");
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(object, sheet);
            fields.u16("object_type", |_| "span")?;
            fields.bytes(8, "span_id", words::hex)?;
            fields.array("parent_id", |id| if SpanId(id).is_zero() { "none".to_owned() } else { words::hex(&id) })?;
            fields.bytes(16, "trace_id", words::hex)?;
            fields.u64("start", |start| words::moment(start.into()))?;
            fields.u64("duration", |duration| words::duration(duration.into()))?;
            for name in ["name", "type", "resource", "service"] {
                fields.array(name, |id| self.names.show(id))?;
            }
            fields.u8("error", |error| error)
        });
    }

    fn list(&self, object: &[u8], name: &str, sheet: &mut Sheet) {
        sheet.title(name);
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(object, sheet);
            fields.u16("object_type", |_| name.to_owned())?;
            let is_meta = name == "metaList";
            let count = fields.u8(if is_meta { "metaLen" } else { "metricsLen" }, |count| count)?;
            for _ in 0..count {
                fields.array(if is_meta { "meta" } else { "metric" }, |entry: [u8; ENTRY_BYTES]| {
                    let (halves, _) = entry.as_chunks::<8>();
                    let [key, value] = [0, 1].map(|half| halves.get(half).copied().unwrap_or_default());
                    let value = match is_meta {
                        true => self.names.show(value),
                        false => format!("{:?}", f64::from_be_bytes(value)),
                    };
                    format!("{} = {value}", self.names.show(key))
                })?;
            }
            if self.layout == ListLayout::Padded32 {
                let unused = PADDED_ENTRIES.saturating_sub(usize::from(count)) * ENTRY_BYTES;
                fields.bytes(unused, "unused", |_| "")?;
            }
            Some(())
        });
    }

    fn string(&mut self, object: &[u8], sheet: &mut Sheet) {
        sheet.title("string");
        let mut defined = None;
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(object, sheet);
            fields.u16("object_type", |_| "string")?;
            let id = fields.array("id", |id: [u8; 8]| words::hex(&id))?;
            let length = fields.u32("len", |length| counted(length.into(), "byte"))? as usize;
            let is_long = length > WHOLE_STRING_BYTES;
            let shown = if is_long { STRING_START_BYTES } else { length };
            let text = fields.bytes(shown, "characters", |text| match is_long {
                true => format!("{}…", value::text(cut_bytes(text, STRING_START_BYTES - 3))),
                false => value::text(text),
            })?;
            defined = Some((id, text, length - shown));
            Some(())
        });
        if let Some((id, text, left)) = defined {
            self.names.learn(id, text);
            if left > 0 {
                self.state = ExplainState::Text(left);
            }
        }
    }
}

impl Explain for Explainer {
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize {
        let mut at = 0;
        while let Some(size) = self.step(&input[at..], sheet) {
            at += size;
        }
        at
    }

    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        match &mut self.state {
            _ if rest.is_empty() => {}
            ExplainState::Process => self.process(rest, sheet),
            ExplainState::Objects | ExplainState::Within(_) | ExplainState::Text(_) => self.object(rest, sheet),
            ExplainState::Lost(raw) => raw.finish(rest, sheet),
        }
    }
}

/// The strings that were defined, within the limits.
#[derive(Debug, Default)]
struct Names {
    texts: HashMap<[u8; 8], Box<str>>,
    bytes: usize,
}

impl Names {
    fn learn(&mut self, id: [u8; 8], text: &[u8]) {
        let kept = cut_bytes(text, value::TEXT_BYTES);
        let (kept_text, _) = repair(kept);
        let text = if kept.len() < text.len() { format!("{kept_text}…") } else { kept_text.into_owned() };
        let known = self.texts.remove(&id);
        self.bytes -= known.map_or(0, |known| known.len());
        if self.texts.len() < MAX_NAMES && self.bytes + text.len() <= MAX_NAME_BYTES {
            self.bytes += text.len();
            self.texts.insert(id, text.into());
        }
    }

    /// An id, and its text if it is known.
    fn show(&self, id: [u8; 8]) -> String {
        match self.texts.get(&id) {
            Some(text) => format!("{} {}", words::hex(&id), value::quoted(text)),
            // Reading 5.
            None if id == [0; 8] => "absent".to_owned(),
            None => words::hex(&id),
        }
    }
}
