//! Reads a body of a trace; each call fills one batch.

use std::sync::Arc;

use tributary_protocol::Output;

use super::body::{BodyState, TraceError};
use super::sessions::{Session, SessionSlot};
use super::symbols::{SymbolTable, Symbols};
use super::trace::OpenTrace;

/// A body of a trace that is being read.
#[derive(Debug)]
pub(super) struct TraceReader {
    pub(super) trace: OpenTrace,
    pub(super) state: BodyState,
    /// The definitions that the agent sent in forms (doc).
    pub(super) host: Option<Arc<SessionSlot>>,
    /// The body is read, as far as possible, and open records are being written.
    pub(super) is_flushing: bool,
    /// Why the rest of the body cannot be read.
    pub(super) fault: Option<TraceError>,
    /// Further parts of the trace may follow.
    pub(super) may_park: bool,
}

/// The progress of reading a body.
pub(super) enum BodyProgress {
    /// The batch is full, or open records grew: call again.
    More,
    /// The body is read, records are open, and further parts may follow. Open records take `needed` bytes.
    Open { needed: usize },
    /// All records are written.
    Done,
}

impl TraceReader {
    /// Reads records until the batch is full or the body ends.
    pub(super) fn read(
        &mut self,
        body: &[u8],
        session: &mut Session,
        mut host: Option<&mut SymbolTable>,
        out: &mut Output,
    ) -> BodyProgress {
        if !self.is_flushing {
            let symbols = &mut Symbols { own: &mut session.table, host: host.as_deref_mut() };
            match self.trace.read(body, symbols, &session.delivered, &mut self.state, out) {
                Ok(false) => return BodyProgress::More,
                Ok(true) if self.may_park && !self.trace.is_closed() => {
                    let limit = self.state.limits.bytes;
                    if let Some(needed) = self.trace.settle(body, symbols, limit) {
                        return BodyProgress::Open { needed };
                    }
                    self.is_flushing = true;
                }
                Ok(true) => self.is_flushing = true,
                Err(fault) => self.give_up(fault),
            }
        }
        let symbols = &mut Symbols { own: &mut session.table, host };
        let is_closed = self.trace.flush(body, symbols, &mut self.state, out);
        if is_closed { BodyProgress::Done } else { BodyProgress::More }
    }

    /// Gives the rest of the body up.
    pub(super) fn give_up(&mut self, fault: TraceError) {
        self.fault = Some(fault);
        self.is_flushing = true;
    }
}
