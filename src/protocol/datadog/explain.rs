//! Annotates the objects of a connection field by field, as `wire.rs` reads them.

use std::collections::HashMap;

use tributary_codec::reader::{DecodeError, Reader};
use tributary_codec::text::{cut_bytes, repair};
use tributary_explain::words::{self, counted};
use tributary_explain::{Explain, Raw, Sheet, SheetObserver, number, value};

use super::ListLayout;
use super::wire::{self, MAGIC, PROCESS_BYTES, WireLimits, WireObject};

/// A longer string is annotated in parts: its start, then the rest as it arrives.
const WHOLE_STRING_BYTES: usize = 4096;
/// Bytes that are shown of such a string.
const STRING_START_BYTES: usize = 64;
/// The most strings, and bytes of strings, that are remembered. Further strings are shown by their ids.
const MAX_NAMES: usize = 16_384;
const MAX_NAME_BYTES: usize = 1 << 20;

/// Annotates the objects of a connection.
#[derive(Debug)]
pub struct Explainer {
    limits: WireLimits,
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
        let kept_string_bytes = WHOLE_STRING_BYTES as u64;
        let limits = WireLimits { max_string_bytes: u64::MAX, kept_string_bytes, list_layout: layout };
        Explainer { limits, state: ExplainState::Process, names: Names::default() }
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
                let size = match wire::decode_process(input) {
                    Ok(process) => process.map(|_| PROCESS_BYTES)?,
                    Err(error) if error.offset < 2 => {
                        self.lose("not a process object");
                        return Some(0);
                    }
                    Err(_) => MAGIC.len(),
                };
                self.object(input.get(..size)?, sheet);
                if size == PROCESS_BYTES {
                    self.state = ExplainState::Objects;
                } else {
                    self.lose("unknown protocol version");
                }
                Some(size)
            }
            ExplainState::Objects => {
                let Ok(decoded) = wire::decode(input, &self.limits) else {
                    self.lose("not a valid object");
                    return Some(0);
                };
                let (object, mut size) = decoded?;
                if let WireObject::LongString(..) = object {
                    size += STRING_START_BYTES;
                }
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

    /// Annotates an object, of a long string the start, or a part of one.
    fn object(&mut self, bytes: &[u8], sheet: &mut Sheet) {
        let is_process = matches!(self.state, ExplainState::Process);
        let object_type = bytes.get(1).and_then(|object_type| title(*object_type));
        let Some(title) = is_process.then_some("process").or(object_type) else {
            return sheet.raw(bytes, "incomplete");
        };
        sheet.title(title);
        let (names, mut is_long) = (&self.names, false);
        let read = sheet.nested(|sheet| {
            let observer = SheetObserver::new(sheet, |field, bytes| {
                is_long |= field == "len" && number(bytes) > WHOLE_STRING_BYTES as u64;
                match field {
                    "characters" if is_long => format!("{}…", value::text(cut_bytes(bytes, STRING_START_BYTES - 3))),
                    _ => names.describe(title, field, bytes),
                }
            });
            let mut reader = Reader::observed(bytes, observer);
            if is_process {
                wire::process(&mut reader)?;
                return Ok(None);
            }
            Ok(match wire::object(&mut reader, &self.limits)? {
                WireObject::String(id, text) => Some((id, text, 0)),
                WireObject::LongString(id, len) => {
                    let start = reader.bytes("string.characters", STRING_START_BYTES)?;
                    Some((id, start, len as usize - STRING_START_BYTES))
                }
                _ => None,
            })
        });
        // An error is a field that is incomplete, which was written.
        if let Ok::<_, DecodeError>(Some((id, text, left))) = read {
            self.names.learn(id.0, text);
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
            ExplainState::Process | ExplainState::Objects | ExplainState::Within(_) | ExplainState::Text(_) => {
                self.object(rest, sheet);
            }
            ExplainState::Lost(raw) => raw.finish(rest, sheet),
        }
    }
}

/// The name of an object, by the second byte of its type.
fn title(object_type: u8) -> Option<&'static str> {
    Some(match object_type {
        0x01 => "trace",
        0x02 => "span",
        0x04 => "metricsList",
        0x05 => "metaList",
        0x06 => "string",
        _ => return None,
    })
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

    /// The value of a field of an object with this title.
    fn describe(&self, title: &str, field: &'static str, bytes: &[u8]) -> String {
        match field {
            "object_type" => title.to_owned(),
            "protocol_version" | "error" | "metaLen" | "metricsLen" => number(bytes).to_string(),
            "string_cache_size" => counted(number(bytes), "entry"),
            "parent_id" if bytes.iter().all(|byte| *byte == 0) => "none".to_owned(),
            "span_id" | "parent_id" | "trace_id" | "id" => words::hex(bytes),
            "start" => words::moment(number(bytes).into()),
            "duration" => words::duration(number(bytes).into()),
            "name" | "type" | "resource" | "service" => self.show(bytes),
            "meta" => format!("{} = {}", self.show(&bytes[..8]), self.show(&bytes[8..])),
            "metric" => format!("{} = {:?}", self.show(&bytes[..8]), f64::from_bits(number(&bytes[8..]))),
            "len" => counted(number(bytes), "byte"),
            "characters" => value::text(bytes),
            _ => String::new(),
        }
    }

    /// An id, and its text if it is known.
    fn show(&self, id: &[u8]) -> String {
        match self.texts.get(id) {
            Some(text) => format!("{} {}", words::hex(id), value::quoted(text)),
            // Reading 5.
            None if id == [0; 8] => "absent".to_owned(),
            None => words::hex(id),
        }
    }
}
