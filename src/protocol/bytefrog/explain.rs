//! Explains the messages of a connection field by field. It reads the layouts (section 2) independently of `wire.rs`.

use std::collections::HashMap;

use tributary_explain::words::{counted, duration};
use tributary_explain::{Explain, FieldAnnotator, Raw, Sheet, value};
use tributary_memory::MemoryBudget;

use super::wire::{NO_LINE, ProtocolVersion};
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
        let Some(message) = self.expected(kind) else {
            self.lose("no message that agents send here");
            return Some(0);
        };
        let size = size(message, input)?;
        self.message(message, input.get(..size)?, sheet);
        if let ConnectionPhase::Opening = self.state {
            let second = input.get(1).copied().unwrap_or_default();
            match kind {
                30 => self.state = ConnectionPhase::Joined(second),
                _ if ProtocolVersion::new(second).is_none() || (kind == 16 && second != 4) => {
                    self.lose("of a version that is not known");
                }
                _ => self.state = ConnectionPhase::Control,
            }
        }
        Some(size)
    }

    /// Explains a message, or the part of it that is here.
    fn message(&mut self, message: &MessageLayout, bytes: &[u8], sheet: &mut Sheet) {
        sheet.title(message.name);
        sheet.nested(|sheet| {
            let mut fields = FieldAnnotator::new(bytes, sheet);
            fields.u8("type", |kind| format!("{kind}, {}", message.name))?;
            let mut defined = None;
            message
                .fields
                .iter()
                .try_for_each(|(name, kind)| self.field(name, *kind, message.defines, &mut defined, &mut fields))
        });
    }

    /// Explains a field. `defined`: the id that the message maps, if it maps one.
    fn field(
        &mut self,
        name: &str,
        kind: FieldKind,
        defines: Option<IdKind>,
        defined: &mut Option<u32>,
        fields: &mut FieldAnnotator<'_, '_>,
    ) -> Option<()> {
        let value = match kind {
            FieldKind::U8 => fields.u8(name, |number| number)?.into(),
            FieldKind::Mode => fields.u8(name, mode)?.into(),
            FieldKind::Flag => fields.u8(name, |flag| flag != 0)?.into(),
            FieldKind::U16 => fields.u16(name, |number| number)?.into(),
            FieldKind::Line => fields.u16(name, line)?.into(),
            FieldKind::Character => fields.u16(name, |number| known(number.cast_signed().into()))?.into(),
            FieldKind::U32 => fields.u32(name, |number| number)?,
            FieldKind::I32 => fields.u32(name, u32::cast_signed)?,
            FieldKind::LineI32 => fields.u32(name, |number| known(number.cast_signed()))?,
            FieldKind::Time => {
                fields.u32(name, |time| format!("{} after the start", duration(i128::from(time) * NANOS_PER_MILLI)))?
            }
            FieldKind::Id(IdKind::Thread) => fields.u16(name, |id| self.names.show(IdKind::Thread, id.into()))?.into(),
            FieldKind::Id(sort) => fields.u32(name, |id| self.names.show(sort, id))?,
            FieldKind::Text => {
                let length = fields.u16("length", |length| counted(length.into(), "byte"))?;
                let text = fields.bytes(length.into(), name, value::java_text)?;
                if let (Some(sort), Some(id)) = (defines, *defined) {
                    self.names.add(sort, id, text);
                }
                length.into()
            }
        };
        if let FieldKind::Id(sort) = kind
            && defines == Some(sort)
        {
            *defined = Some(value);
        }
        Some(())
    }

    /// The message of this type here, if there is one.
    fn expected(&self, kind: u8) -> Option<&'static MessageLayout> {
        match self.state {
            ConnectionPhase::Opening => opening(kind),
            ConnectionPhase::Control => control(kind),
            ConnectionPhase::Data(version) => data(kind, version),
            ConnectionPhase::Joined(_) | ConnectionPhase::Lost(_) => None,
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
        if let Some(message) = rest.first().and_then(|kind| self.expected(*kind)) {
            self.message(message, rest, sheet);
        }
    }
}

/// A kind of message: its fields behind the type.
#[derive(Debug)]
struct MessageLayout {
    name: &'static str,
    fields: &'static [(&'static str, FieldKind)],
    /// It maps an id of this kind.
    defines: Option<IdKind>,
}

/// The layout of a field and the meaning of its number.
#[derive(Clone, Copy, Debug)]
enum FieldKind {
    U8,
    Mode,
    Flag,
    U16,
    Line,
    Character,
    U32,
    I32,
    LineI32,
    /// Milliseconds on the agent's clock (section 1.8).
    Time,
    Id(IdKind),
    /// A length in two bytes, and modified UTF-8.
    Text,
}

/// What an id names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum IdKind {
    Thread,
    Method,
    Exception,
    Location,
}

const TIME: (&str, FieldKind) = ("time", FieldKind::Time);
const SEQUENCE: (&str, FieldKind) = ("sequence", FieldKind::U32);
const METHOD: (&str, FieldKind) = ("method", FieldKind::Id(IdKind::Method));
const EXCEPTION: (&str, FieldKind) = ("exception", FieldKind::Id(IdKind::Exception));
const LOCATION: (&str, FieldKind) = ("location", FieldKind::Id(IdKind::Location));
const THREAD: (&str, FieldKind) = ("thread", FieldKind::Id(IdKind::Thread));
const LINE: (&str, FieldKind) = ("line", FieldKind::Line);

const fn message(name: &'static str, fields: &'static [(&'static str, FieldKind)]) -> MessageLayout {
    MessageLayout { name, fields, defines: None }
}

const fn mapping(name: &'static str, of: IdKind, fields: &'static [(&'static str, FieldKind)]) -> MessageLayout {
    MessageLayout { name, fields, defines: Some(of) }
}

static HELLO: MessageLayout = message("hello", &[("version", FieldKind::U8)]);
static PROJECT_HELLO: MessageLayout =
    message("project hello", &[("version", FieldKind::U8), ("project", FieldKind::I32)]);
static DATA_HELLO: MessageLayout = message("data hello", &[("run", FieldKind::U8)]);

static HEARTBEAT: MessageLayout = message("heartbeat", &[("mode", FieldKind::Mode), ("buffers", FieldKind::U16)]);
static DATA_BREAK: MessageLayout = message("data break", &[SEQUENCE]);
static TRANSFORMED: MessageLayout = message("class transformed", &[("class", FieldKind::Text)]);
static IGNORED: MessageLayout = message("class ignored", &[("class", FieldKind::Text)]);
static FAILED: MessageLayout = message("class transform failed", &[("class", FieldKind::Text)]);
static ERROR: MessageLayout = message("error", &[("text", FieldKind::Text)]);

static THREAD_NAME: MessageLayout =
    mapping("map thread name", IdKind::Thread, &[THREAD, TIME, ("name", FieldKind::Text)]);
static SIGNATURE: MessageLayout =
    mapping("map method signature", IdKind::Method, &[METHOD, ("signature", FieldKind::Text)]);
static EXCEPTION_NAME: MessageLayout =
    mapping("map exception", IdKind::Exception, &[EXCEPTION, ("name", FieldKind::Text)]);
static SOURCE_LOCATION: MessageLayout = message(
    "map source location",
    &[
        LOCATION,
        METHOD,
        ("start line", FieldKind::LineI32),
        ("end line", FieldKind::LineI32),
        ("start character", FieldKind::Character),
        ("end character", FieldKind::Character),
    ],
);
static VISIT: MessageLayout = message("method visit", &[TIME, SEQUENCE, METHOD, LOCATION, THREAD]);
static LOCATION_COUNT: MessageLayout = message("source location count", &[METHOD, ("count", FieldKind::U32)]);
static ENTRY: MessageLayout = message("method entry", &[TIME, SEQUENCE, METHOD, THREAD]);
static EXIT_AT_LINE: MessageLayout = message("method exit", &[TIME, SEQUENCE, METHOD, LINE, THREAD]);
static EXIT: MessageLayout = message("method exit", &[TIME, SEQUENCE, METHOD, ("threw", FieldKind::Flag), THREAD]);
static THROWN: MessageLayout = message("exception", &[TIME, SEQUENCE, METHOD, EXCEPTION, LINE, THREAD]);
static BUBBLED: MessageLayout = message("exception bubble", &[TIME, SEQUENCE, METHOD, EXCEPTION, THREAD]);
static MARKER: MessageLayout =
    message("marker", &[TIME, SEQUENCE, ("key", FieldKind::Text), ("value", FieldKind::Text)]);

fn opening(kind: u8) -> Option<&'static MessageLayout> {
    match kind {
        0 => Some(&HELLO),
        16 => Some(&PROJECT_HELLO),
        30 => Some(&DATA_HELLO),
        _ => None,
    }
}

fn control(kind: u8) -> Option<&'static MessageLayout> {
    match kind {
        8 => Some(&HEARTBEAT),
        9 => Some(&DATA_BREAK),
        40 => Some(&TRANSFORMED),
        41 => Some(&IGNORED),
        42 => Some(&FAILED),
        99 => Some(&ERROR),
        _ => None,
    }
}

fn data(kind: u8, version: ProtocolVersion) -> Option<&'static MessageLayout> {
    match (kind, version.number()) {
        (10, _) => Some(&THREAD_NAME),
        (11, _) => Some(&SIGNATURE),
        (12, _) => Some(&EXCEPTION_NAME),
        (13, 3..) => Some(&SOURCE_LOCATION),
        (14, 3..) => Some(&VISIT),
        (15, 3..) => Some(&LOCATION_COUNT),
        (20, _) => Some(&ENTRY),
        (21, 1) => Some(&EXIT_AT_LINE),
        (21, _) => Some(&EXIT),
        (22, _) => Some(&THROWN),
        (23, _) => Some(&BUBBLED),
        (50, _) => Some(&MARKER),
        _ => None,
    }
}

/// The size of the message at the front of `input`. `None`: its length field is not here yet.
fn size(message: &MessageLayout, input: &[u8]) -> Option<usize> {
    message.fields.iter().try_fold(1, |at, (_, kind)| {
        Some(match kind {
            FieldKind::U8 | FieldKind::Mode | FieldKind::Flag => at + 1,
            FieldKind::U16 | FieldKind::Line | FieldKind::Character | FieldKind::Id(IdKind::Thread) => at + 2,
            FieldKind::U32 | FieldKind::I32 | FieldKind::LineI32 | FieldKind::Time | FieldKind::Id(_) => at + 4,
            FieldKind::Text => {
                let length = input.get(at..)?.first_chunk::<2>()?;
                at + 2 + usize::from(u16::from_be_bytes(*length))
            }
        })
    })
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

/// Rule 24.
fn line(line: u16) -> String {
    if line == NO_LINE { "unknown".to_owned() } else { line.to_string() }
}

/// Rule 24.
fn known(number: i32) -> String {
    if number == -1 { "unknown".to_owned() } else { number.to_string() }
}

/// The names of ids that are kept.
#[derive(Debug, Default)]
struct Names {
    texts: HashMap<(IdKind, u32), Box<str>>,
    bytes: usize,
}

impl Names {
    fn add(&mut self, sort: IdKind, id: u32, text: &[u8]) {
        let text = value::java_text(text);
        let known = self.texts.remove(&(sort, id));
        self.bytes -= known.map_or(0, |known| known.len());
        if self.texts.len() < MAX_NAMES && self.bytes + text.len() <= MAX_NAME_BYTES {
            self.bytes += text.len();
            self.texts.insert((sort, id), text.into());
        }
    }

    /// An id with its name if that is known.
    fn show(&self, sort: IdKind, id: u32) -> String {
        match self.texts.get(&(sort, id)) {
            Some(text) => format!("{id} {text}"),
            None => id.to_string(),
        }
    }
}
