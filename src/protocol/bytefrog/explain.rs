//! Explains the messages of a connection field by field; `wire.rs` has the layouts (section 2).

use std::collections::HashMap;

use tributary_codec::reader::{DecodeError, DecodeErrorKind, Observer, Reader};
use tributary_explain::words::{counted, duration};
use tributary_explain::{Explain, Raw, Sheet, SheetObserver, number, value};
use tributary_memory::MemoryBudget;

use super::wire::{self, DataMessage, NO_LINE, ProtocolVersion};
use super::{Hq, Options};

/// Limits of the names that are kept; further ones are shown by their ids.
const MAX_NAMES: usize = 16_384;
const MAX_NAME_BYTES: usize = 1 << 20;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// Explains the messages of a connection.
#[derive(Debug)]
pub(super) struct Explainer {
    hq: Hq,
    state: ConnectionPhase,
    names: Names,
}

#[derive(Debug)]
enum ConnectionPhase {
    /// A hello is expected.
    Opening,
    Control,
    /// Messages of this run, whose version is looked up for the first one.
    Joined(u8),
    Data(ProtocolVersion),
    /// Nothing more can be decoded (rule 14).
    Lost(Raw),
}

/// Explains a connection from its first byte on; nothing else is known of it.
pub fn explainer() -> impl Explain {
    Explainer::new(Hq::offline(Options::default(), false, MemoryBudget::new(0), None))
}

impl Explainer {
    /// From the first byte of a connection on.
    pub(super) fn new(hq: Hq) -> Self {
        Explainer { hq, state: ConnectionPhase::Opening, names: Names::default() }
    }

    /// From a message of a control connection on.
    pub(super) fn control(hq: Hq) -> Self {
        Explainer { state: ConnectionPhase::Control, ..Explainer::new(hq) }
    }

    /// From the first message of a data connection on, behind its hello for this run.
    pub(super) fn joined(hq: Hq, run: u8) -> Self {
        Explainer { state: ConnectionPhase::Joined(run), ..Explainer::new(hq) }
    }

    /// From any message of a data connection on.
    pub(super) fn data(hq: Hq, version: ProtocolVersion) -> Self {
        Explainer { state: ConnectionPhase::Data(version), ..Explainer::new(hq) }
    }

    /// From an error on.
    pub(super) fn lost(hq: Hq) -> Self {
        let mut explainer = Explainer::new(hq);
        explainer.lose("behind a fault nothing can be read");
        explainer
    }

    fn lose(&mut self, why: &'static str) {
        self.state = ConnectionPhase::Lost(Raw::new(why));
    }

    /// Explains the message at the front of `input`. `None`: it is incomplete.
    fn step(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        let kind = *input.first()?;
        match &mut self.state {
            ConnectionPhase::Joined(run) => {
                match self.hq.version_of(*run) {
                    Some(version) => self.state = ConnectionPhase::Data(version),
                    None => self.lose("the version is unknown without a hello"),
                }
                return Some(0);
            }
            ConnectionPhase::Lost(raw) => return Some(raw.explain(input, sheet)).filter(|size| *size > 0),
            _ => {}
        }
        let mut reader = Reader::new(input);
        let read = self.read(&mut reader);
        match &read {
            Err(DecodeError { kind: DecodeErrorKind::Short { .. }, .. }) => return None,
            Err(DecodeError { offset: 0, .. }) => {
                self.lose("no message that agents send here");
                return Some(0);
            }
            _ => {}
        }
        let size = reader.offset();
        self.message(kind, &input[..size], sheet);
        if read.is_err() {
            self.lose("of a version that is not known");
        } else if let ConnectionPhase::Opening = self.state {
            self.state = if kind == 30 { ConnectionPhase::Joined(input[1]) } else { ConnectionPhase::Control };
        }
        Some(size)
    }

    /// Explains a message, or the part of it that is here.
    fn message(&mut self, kind: u8, bytes: &[u8], sheet: &mut Sheet) {
        let title = title(kind);
        sheet.title(title);
        let read = sheet.nested(|sheet| {
            let observer = SheetObserver::new(sheet, |field, bytes| self.names.describe(title, field, bytes));
            self.read(&mut Reader::observed(bytes, observer))
        });
        if let Ok(Some((kind, id, name))) = read {
            self.names.add(kind, id, name);
        }
    }

    /// Reads a message of the connection: what it maps, if it maps an id.
    fn read<'a, O: Observer>(&self, reader: &mut Reader<'a, O>) -> Result<Option<Mapping<'a>>, DecodeError> {
        match self.state {
            ConnectionPhase::Opening => wire::read_opening(reader).map(|_| None),
            ConnectionPhase::Control => wire::read_control(reader).map(|_| None),
            ConnectionPhase::Data(version) => match reader.rest().first() {
                Some(kind) if wire::is_call(*kind, version) => wire::read_call(reader, version).map(|_| None),
                _ => wire::read_data(reader, version).map(|message| match message {
                    DataMessage::ThreadName { thread, name, .. } => Some(("thread", thread.into(), name)),
                    DataMessage::Method { method, signature } => Some(("method", method, signature)),
                    DataMessage::Exception { exception, name } => Some(("exception", exception, name)),
                    _ => None,
                }),
            },
            ConnectionPhase::Joined(_) | ConnectionPhase::Lost(_) => Ok(None),
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
        if let ConnectionPhase::Lost(raw) = &mut self.state {
            return raw.finish(rest, sheet);
        }
        if let Some(kind) = rest.first() {
            self.message(*kind, rest, sheet);
        }
    }
}

/// The name of the field that has an id, the id, and its name.
type Mapping<'a> = (&'static str, u32, &'a [u8]);

/// The name of a message of this type.
fn title(kind: u8) -> &'static str {
    match kind {
        0 => "hello",
        8 => "heartbeat",
        9 => "data break",
        10 => "map thread name",
        11 => "map method signature",
        12 => "map exception",
        13 => "map source location",
        14 => "method visit",
        15 => "source location count",
        16 => "project hello",
        20 => "method entry",
        21 => "method exit",
        22 => "exception",
        23 => "exception bubble",
        30 => "data hello",
        40 => "class transformed",
        41 => "class ignored",
        42 => "class transform failed",
        50 => "marker",
        99 => "error",
        _ => "unknown",
    }
}

fn mode(mode: u8) -> String {
    let name = match mode {
        b'I' => "initializing",
        b'T' => "tracing",
        b'P' => "paused",
        b'S' => "suspended",
        b'X' => "shutting down",
        _ => return format!("{mode}, unknown"),
    };
    format!("{}, {name}", char::from(mode))
}

/// The names of ids that are kept.
#[derive(Debug, Default)]
struct Names {
    /// By the name of the field that has the id.
    texts: HashMap<(&'static str, u32), Box<str>>,
    bytes: usize,
}

impl Names {
    fn add(&mut self, field: &'static str, id: u32, text: &[u8]) {
        let text = value::java_text(text);
        let known = self.texts.remove(&(field, id));
        self.bytes -= known.map_or(0, |known| known.len());
        if self.texts.len() < MAX_NAMES && self.bytes + text.len() <= MAX_NAME_BYTES {
            self.bytes += text.len();
            self.texts.insert((field, id), text.into());
        }
    }

    /// The value of a field of a message with this title.
    fn describe(&self, title: &str, field: &'static str, bytes: &[u8]) -> String {
        let number = number(bytes);
        match field {
            "type" => format!("{number}, {title}"),
            "mode" => mode(number as u8),
            "threw" => (number != 0).to_string(),
            "time" => format!("{} after the start", duration(i128::from(number) * NANOS_PER_MILLI)),
            "length" => counted(number, "byte"),
            "class" | "text" | "name" | "signature" | "key" | "value" => value::java_text(bytes),
            // Rule 24.
            "line" if number == u64::from(NO_LINE) => "unknown".to_owned(),
            "start line" | "end line" => known((number as u32).cast_signed()),
            "start character" | "end character" => known((number as u16).cast_signed().into()),
            "project" => (number as u32).cast_signed().to_string(),
            _ => match self.texts.get(&(field, number as u32)) {
                Some(text) => format!("{number} {text}"),
                None => number.to_string(),
            },
        }
    }
}

/// Rule 24.
fn known(number: i32) -> String {
    if number == -1 { "unknown".to_owned() } else { number.to_string() }
}
