//! The messages of a connection, named field by field: a reading of the layouts (field notes, section 2) beside that of
//! `wire.rs`.

use std::collections::HashMap;

use crate::explain::words::{counted, duration};
use crate::explain::{Explain, Fields, Raw, Sheet, value};

use super::Hq;
use super::wire::{NO_LINE, Version};

/// Names, and bytes of them, that are remembered; further ones are shown by their ids.
const MAX_NAMES: usize = 16_384;
const MAX_NAME_BYTES: usize = 1 << 20;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// Names the messages of a connection.
#[derive(Debug)]
pub(super) struct Explainer {
    hq: Hq,
    phase: Phase,
    names: Names,
}

#[derive(Debug)]
enum Phase {
    /// A hello comes.
    Opening,
    Control,
    /// Messages of this run, whose version is asked for when the first comes.
    Joined(u8),
    Data(Version),
    /// There is no resynchronisation (rule 14).
    Lost(Raw),
}

impl Explainer {
    /// From the first byte of a connection on.
    pub(super) fn new(hq: Hq) -> Self {
        Explainer { hq, phase: Phase::Opening, names: Names::default() }
    }

    /// From a message of a control connection on.
    pub(super) fn control(hq: Hq) -> Self {
        Explainer { phase: Phase::Control, ..Explainer::new(hq) }
    }

    /// From the first message of a data connection on, behind the hello for this run.
    pub(super) fn joined(hq: Hq, run: u8) -> Self {
        Explainer { phase: Phase::Joined(run), ..Explainer::new(hq) }
    }

    /// From a message of a data connection on.
    pub(super) fn data(hq: Hq, version: Version) -> Self {
        Explainer { phase: Phase::Data(version), ..Explainer::new(hq) }
    }

    /// Behind a fault.
    pub(super) fn lost(hq: Hq) -> Self {
        let mut explainer = Explainer::new(hq);
        explainer.lose("behind a fault nothing can be read");
        explainer
    }

    fn lose(&mut self, why: &'static str) {
        self.phase = Phase::Lost(Raw::new(why));
    }

    /// Names what is at the front of `input`. `None`: not all of it is here.
    fn step(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        let kind = *input.first()?;
        match &mut self.phase {
            Phase::Joined(run) => {
                match self.hq.version_of(*run) {
                    Some(version) => self.phase = Phase::Data(version),
                    None => self.lose("no hello has told the version"),
                }
                return Some(0);
            }
            Phase::Lost(raw) => return Some(raw.explain(input, sheet)).filter(|size| *size > 0),
            _ => {}
        }
        let Some(message) = self.expected(kind) else {
            self.lose("no message that agents send here");
            return Some(0);
        };
        let size = size(message, input)?;
        self.message(message, input.get(..size)?, sheet);
        if let Phase::Opening = self.phase {
            let second = input.get(1).copied().unwrap_or_default();
            match kind {
                30 => self.phase = Phase::Joined(second),
                _ if Version::new(second).is_none() || (kind == 16 && second != 4) => {
                    self.lose("of a version that is not known");
                }
                _ => self.phase = Phase::Control,
            }
        }
        Some(size)
    }

    /// A message, or what there is of one.
    fn message(&mut self, message: &Message, bytes: &[u8], sheet: &mut Sheet) {
        sheet.title(message.name);
        sheet.nested(|sheet| {
            let mut fields = Fields::new(bytes, sheet);
            fields.u8("type", |kind| format!("{kind}, {}", message.name))?;
            let mut defined = None;
            message
                .fields
                .iter()
                .try_for_each(|(name, kind)| self.field(name, *kind, message.defines, &mut defined, &mut fields))
        });
    }

    /// `defined`: which id the message is about, if it tells the name of one.
    fn field(
        &mut self,
        name: &str,
        kind: Kind,
        defines: Option<Sort>,
        defined: &mut Option<u32>,
        fields: &mut Fields<'_, '_>,
    ) -> Option<()> {
        let value = match kind {
            Kind::U8 => fields.u8(name, |number| number)?.into(),
            Kind::Mode => fields.u8(name, mode)?.into(),
            Kind::Flag => fields.u8(name, |flag| flag != 0)?.into(),
            Kind::U16 => fields.u16(name, |number| number)?.into(),
            Kind::Line => fields.u16(name, line)?.into(),
            Kind::Character => fields.u16(name, |number| known(number.cast_signed().into()))?.into(),
            Kind::U32 => fields.u32(name, |number| number)?,
            Kind::I32 => fields.u32(name, u32::cast_signed)?,
            Kind::LineI32 => fields.u32(name, |number| known(number.cast_signed()))?,
            Kind::Time => {
                fields.u32(name, |time| format!("{} after the start", duration(i128::from(time) * NANOS_PER_MILLI)))?
            }
            Kind::Id(Sort::Thread) => fields.u16(name, |id| self.names.show(Sort::Thread, id.into()))?.into(),
            Kind::Id(sort) => fields.u32(name, |id| self.names.show(sort, id))?,
            Kind::Text => {
                let length = fields.u16("length", |length| counted(length.into(), "byte"))?;
                let text = fields.bytes(length.into(), name, value::java_text)?;
                if let (Some(sort), Some(id)) = (defines, *defined) {
                    self.names.learn(sort, id, text);
                }
                length.into()
            }
        };
        if let Kind::Id(sort) = kind
            && defines == Some(sort)
        {
            *defined = Some(value);
        }
        Some(())
    }

    /// The message that this type is of here, if any.
    fn expected(&self, kind: u8) -> Option<&'static Message> {
        match self.phase {
            Phase::Opening => opening(kind),
            Phase::Control => control(kind),
            Phase::Data(version) => data(kind, version),
            Phase::Joined(_) | Phase::Lost(_) => None,
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
        if let Phase::Lost(raw) = &mut self.phase {
            return raw.finish(rest, sheet);
        }
        if let Some(message) = rest.first().and_then(|kind| self.expected(*kind)) {
            self.message(message, rest, sheet);
        }
    }
}

/// A sort of message: its fields behind the type.
#[derive(Debug)]
struct Message {
    name: &'static str,
    fields: &'static [(&'static str, Kind)],
    /// It tells the name of an id of this sort.
    defines: Option<Sort>,
}

/// How a field is laid out, and what its number means.
#[derive(Clone, Copy, Debug)]
enum Kind {
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
    Id(Sort),
    /// Its length in two bytes, and modified UTF-8.
    Text,
}

/// What ids stand for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sort {
    Thread,
    Method,
    Exception,
    Location,
}

const TIME: (&str, Kind) = ("time", Kind::Time);
const SEQUENCE: (&str, Kind) = ("sequence", Kind::U32);
const METHOD: (&str, Kind) = ("method", Kind::Id(Sort::Method));
const EXCEPTION: (&str, Kind) = ("exception", Kind::Id(Sort::Exception));
const LOCATION: (&str, Kind) = ("location", Kind::Id(Sort::Location));
const THREAD: (&str, Kind) = ("thread", Kind::Id(Sort::Thread));
const LINE: (&str, Kind) = ("line", Kind::Line);

const fn message(name: &'static str, fields: &'static [(&'static str, Kind)]) -> Message {
    Message { name, fields, defines: None }
}

const fn mapping(name: &'static str, of: Sort, fields: &'static [(&'static str, Kind)]) -> Message {
    Message { name, fields, defines: Some(of) }
}

static HELLO: Message = message("hello", &[("version", Kind::U8)]);
static PROJECT_HELLO: Message = message("project hello", &[("version", Kind::U8), ("project", Kind::I32)]);
static DATA_HELLO: Message = message("data hello", &[("run", Kind::U8)]);

static HEARTBEAT: Message = message("heartbeat", &[("mode", Kind::Mode), ("buffers", Kind::U16)]);
static DATA_BREAK: Message = message("data break", &[SEQUENCE]);
static TRANSFORMED: Message = message("class transformed", &[("class", Kind::Text)]);
static IGNORED: Message = message("class ignored", &[("class", Kind::Text)]);
static FAILED: Message = message("class transform failed", &[("class", Kind::Text)]);
static ERROR: Message = message("error", &[("text", Kind::Text)]);

static THREAD_NAME: Message = mapping("map thread name", Sort::Thread, &[THREAD, TIME, ("name", Kind::Text)]);
static SIGNATURE: Message = mapping("map method signature", Sort::Method, &[METHOD, ("signature", Kind::Text)]);
static EXCEPTION_NAME: Message = mapping("map exception", Sort::Exception, &[EXCEPTION, ("name", Kind::Text)]);
static SOURCE_LOCATION: Message = message(
    "map source location",
    &[
        LOCATION,
        METHOD,
        ("start line", Kind::LineI32),
        ("end line", Kind::LineI32),
        ("start character", Kind::Character),
        ("end character", Kind::Character),
    ],
);
static VISIT: Message = message("method visit", &[TIME, SEQUENCE, METHOD, LOCATION, THREAD]);
static LOCATION_COUNT: Message = message("source location count", &[METHOD, ("count", Kind::U32)]);
static ENTRY: Message = message("method entry", &[TIME, SEQUENCE, METHOD, THREAD]);
static EXIT_AT_LINE: Message = message("method exit", &[TIME, SEQUENCE, METHOD, LINE, THREAD]);
static EXIT: Message = message("method exit", &[TIME, SEQUENCE, METHOD, ("threw", Kind::Flag), THREAD]);
static THROWN: Message = message("exception", &[TIME, SEQUENCE, METHOD, EXCEPTION, LINE, THREAD]);
static BUBBLED: Message = message("exception bubble", &[TIME, SEQUENCE, METHOD, EXCEPTION, THREAD]);
static MARKER: Message = message("marker", &[TIME, SEQUENCE, ("key", Kind::Text), ("value", Kind::Text)]);

fn opening(kind: u8) -> Option<&'static Message> {
    match kind {
        0 => Some(&HELLO),
        16 => Some(&PROJECT_HELLO),
        30 => Some(&DATA_HELLO),
        _ => None,
    }
}

fn control(kind: u8) -> Option<&'static Message> {
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

fn data(kind: u8, version: Version) -> Option<&'static Message> {
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

/// The bytes of the message at the front of `input`. `None`: not enough is here to tell.
fn size(message: &Message, input: &[u8]) -> Option<usize> {
    message.fields.iter().try_fold(1, |at, (_, kind)| {
        Some(match kind {
            Kind::U8 | Kind::Mode | Kind::Flag => at + 1,
            Kind::U16 | Kind::Line | Kind::Character | Kind::Id(Sort::Thread) => at + 2,
            Kind::U32 | Kind::I32 | Kind::LineI32 | Kind::Time | Kind::Id(_) => at + 4,
            Kind::Text => {
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
        _ => return format!("{mode}, none that is known"),
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

/// The names that were told, as far as they are remembered.
#[derive(Debug, Default)]
struct Names {
    texts: HashMap<(Sort, u32), Box<str>>,
    bytes: usize,
}

impl Names {
    fn learn(&mut self, sort: Sort, id: u32, text: &[u8]) {
        let text = value::java_text(text);
        let known = self.texts.remove(&(sort, id));
        self.bytes -= known.map_or(0, |known| known.len());
        if self.texts.len() < MAX_NAMES && self.bytes + text.len() <= MAX_NAME_BYTES {
            self.bytes += text.len();
            self.texts.insert((sort, id), text.into());
        }
    }

    /// An id, and its name if that is known.
    fn show(&self, sort: Sort, id: u32) -> String {
        match self.texts.get(&(sort, id)) {
            Some(text) => format!("{id} {text}"),
            None => id.to_string(),
        }
    }
}
