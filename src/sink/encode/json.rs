//! JSON lines.
use crate::event::EventView;

/// Encodes.
#[derive(Debug, Default)]
pub struct JsonEncoder {}

impl JsonEncoder {
    /// Appends one event as a JSON line.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"time":null,"name":""#);
        out.extend_from_slice(event.name().text.as_bytes());
        out.extend_from_slice(b"\"}\n");
    }
}
