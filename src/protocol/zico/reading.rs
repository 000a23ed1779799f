//! A body of a trace, read as many records at a time as a batch takes.

use std::sync::Arc;

use crate::protocol::Output;

use super::body::{BodyState, TraceFault};
use super::sessions::{Session, Slot};
use super::symbols::{Symbols, Table};
use super::trace::Trace;

/// A trace being read.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) trace: Trace,
    pub(super) state: BodyState,
    /// What the agent has sent in forms (doc).
    pub(super) host: Option<Arc<Slot>>,
    /// The body is read, as far as it goes: what is open is going out, …
    pub(super) is_flushing: bool,
    /// … and this is why the rest of it cannot be read.
    pub(super) fault: Option<TraceFault>,
    /// Further parts may follow.
    pub(super) may_park: bool,
}

/// What a step of reading a trace has come to.
pub(super) enum Told {
    /// The batch is full, or much is open; call again.
    More,
    /// All is read, records are open, and further parts may follow. They take so much memory.
    Open { needed: usize },
    /// Everything has gone out.
    All,
}

impl Reading {
    pub(super) fn proceed(
        &mut self,
        body: &[u8],
        session: &mut Session,
        mut host: Option<&mut Table>,
        out: &mut Output,
    ) -> Told {
        if !self.is_flushing {
            let symbols = &mut Symbols { own: &mut session.table, host: host.as_deref_mut() };
            match self.trace.read(body, symbols, &session.delivered, &mut self.state, out) {
                Ok(false) => return Told::More,
                Ok(true) if self.may_park && !self.trace.is_closed() => {
                    let limit = self.state.limits.bytes;
                    if let Some(needed) = self.trace.settle(body, symbols, limit) {
                        return Told::Open { needed };
                    }
                    self.is_flushing = true;
                }
                Ok(true) => self.is_flushing = true,
                Err(fault) => self.give_up(fault),
            }
        }
        let symbols = &mut Symbols { own: &mut session.table, host };
        let is_closed = self.trace.flush(body, symbols, &mut self.state, out);
        if is_closed { Told::All } else { Told::More }
    }

    /// The rest of the body is not read.
    pub(super) fn give_up(&mut self, fault: TraceFault) {
        self.fault = Some(fault);
        self.is_flushing = true;
    }
}
