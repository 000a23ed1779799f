//! The sink that throws everything away: for measuring what comes before it.

use super::{Selection, Sink, SinkError};

/// Takes events and forgets them.
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
