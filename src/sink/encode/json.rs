//! JSON lines.
use crate::event::EventView;

/// Encodes.
#[derive(Debug, Default)]
pub struct JsonEncoder {}

impl JsonEncoder {
    /// Appends one event as a JSON line.
    pub fn encode(&mut self, _event: EventView<'_>, _out: &mut Vec<u8>) {}
}
