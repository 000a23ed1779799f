//! Encoders of events: [`json`] for programs, [`text`] and [`terminal`] for people.

mod distribution;
pub mod escape;
pub mod json;
mod number;
mod observed;
pub mod source;
pub mod terminal;
pub mod text;
mod time;

use std::sync::Arc;

pub use source::{EventSource, LineFields};
use tributary_event::{EventView, TextView};
use tributary_options::Section;
use tributary_stored::row::RowEncoder;

/// The encoding of events: one record per event, each ends in a line feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// JSON lines, as specified in `docs/event-model.md`.
    #[default]
    Json,
    /// One human-readable line.
    Text,
    /// Binary rows, for journals: no format of the configuration.
    Rows,
}

impl Format {
    /// Every format of the configuration.
    pub const ALL: [Format; 2] = [Format::Json, Format::Text];

    /// Reads the option `format`.
    pub fn read(section: &mut Section<'_>) -> Format {
        section.about("The encoding of events: \"json\", JSON lines for programs, or \"text\", a human-readable line.");
        section.choice("format", Format::default(), &Format::ALL.map(|format| (format.as_str(), format)))
    }

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Text => "text",
            Format::Rows => "rows",
        }
    }
}

impl LineFields {
    /// Reads the option `fields` beside this format.
    pub fn read(section: &mut Section<'_>, format: Format) -> LineFields {
        section.about(
            "Which fields JSON lines have: \"full\", every one, or \"compact\": what is constant for a connection is in a line of its \
             own, which the events of the connection name. `tributary decode events` reads both.",
        );
        let all = LineFields::ALL.map(|fields| (fields.as_str(), fields));
        let fields = section.choice("fields", LineFields::default(), &all);
        if (format, fields) == (Format::Text, LineFields::Compact) {
            let help = "remove it, or set format = \"json\"";
            section.error("fields", "`fields` is for format = \"json\"", Some(help.to_owned()));
        }
        fields
    }
}

/// Encodes events in one format; caches what consecutive events share.
#[derive(Debug, Default)]
pub struct Encoder {
    format: Format,
    json: json::JsonEncoder,
    rows: RowEncoder,
    /// Text lines are made for this terminal.
    terminal: Option<terminal::Terminal>,
}

/// Appends a text as a JSON string.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    escape::push_string(out, TextView::unchecked(text));
}

impl Encoder {
    /// An encoder for `format`.
    pub fn new(format: Format) -> Self {
        Encoder { format, ..Encoder::default() }
    }

    /// The same; JSON lines have these fields.
    pub fn with_fields(self, fields: LineFields) -> Self {
        Encoder { json: json::JsonEncoder::new(fields), ..self }
    }

    /// The same; text lines are made for a terminal.
    pub fn for_terminal(self, terminal: terminal::Terminal) -> Self {
        Encoder { terminal: Some(terminal), ..self }
    }

    /// The source that the line of an event names; it must be defined before that line. `None`: the line names none.
    #[inline]
    pub fn source(&mut self, event: EventView<'_>) -> Option<&Arc<EventSource>> {
        match self.format {
            Format::Json => self.json.source(event),
            Format::Text | Format::Rows => None,
        }
    }

    /// Appends one event and a line feed.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        match self.format {
            Format::Json => self.json.encode(event, out),
            Format::Rows => self.rows.encode(event, out),
            Format::Text => match self.terminal {
                Some(terminal) => terminal::encode(event, terminal, out),
                None => text::encode(event, out),
            },
        }
    }
}
