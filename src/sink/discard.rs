//! The sink that drops all events: for measuring the cost of everything before it.

use super::{Selection, Sink, SinkError};

/// Drops all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl Sink for Discard {
    const BLOCKS: bool = false;

    async fn write(&mut self, _events: Selection<'_>) -> Result<(), SinkError> {
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}
