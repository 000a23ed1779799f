//! Events as bytes: [`json`] for machines, [`text`] for eyes.

mod escape;
pub mod json;
mod number;
pub mod text;
mod time;

use crate::event::EventView;
use crate::options::Section;

/// How a sink writes events. One record per event, each ended by a line feed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// JSON lines, as `docs/event-model.md` says.
    #[default]
    Json,
    /// One line for eyes.
    Text,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 2] = [Format::Json, Format::Text];

    /// Reads the option `format`; its default is JSON lines.
    pub(super) fn read(section: &mut Section<'_>) -> Format {
        section.choice("format", Format::default(), &Format::ALL.map(|format| (format.as_str(), format)))
    }

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Format::Json => "json",
            Format::Text => "text",
        }
    }
}

/// Encodes events in one format; keeps what it can reuse from one event to the next.
#[derive(Debug, Default)]
pub struct Encoder {
    format: Format,
    json: json::JsonEncoder,
}

impl Encoder {
    /// An encoder for `format`.
    pub fn new(format: Format) -> Self {
        Encoder { format, json: json::JsonEncoder::default() }
    }

    /// Appends one event and a line feed.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        match self.format {
            Format::Json => self.json.encode(event, out),
            Format::Text => text::encode(event, out),
        }
    }
}
