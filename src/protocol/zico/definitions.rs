//! Reads a body of definitions into its session's table.

use tributary_codec::cbor::Reader;
use tributary_event::{Loss, Reason, semconv};
use tributary_protocol::Output;

use super::agents::ZicoAgent;
use super::normalize::{self, BodyContext, Buffers};
use super::sessions::{Session, bytes};
use super::shared::SharedExchange;
use super::symbols::{Full, Symbols};
use super::wire::{self, Definition};

/// Definitions read per step.
const STEP: usize = 4096;

/// A body of definitions that is being read.
#[derive(Debug)]
pub(super) struct Definitions {
    context: BodyContext,
    buffers: Buffers,
    at: usize,
    lost: u64,
    /// Consecutive definitions that were refused by a limit.
    refused: Option<Refused>,
    fault: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    start: usize,
    end: usize,
    count: u64,
    why: Full,
}

/// The key in a refusal because of the memory budget.
const NO_MEMORY: &str = "limits.memory_bytes";

impl Definitions {
    pub(super) fn new(context: BodyContext, shared: &SharedExchange) -> Self {
        let buffers = Buffers::new(bytes(shared.options.max_record_bytes));
        Definitions { context, buffers, at: 0, lost: 0, refused: None, fault: None }
    }

    /// Bytes reported lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// The fault, if any.
    pub(super) fn into_fault(self) -> Option<String> {
        self.fault
    }

    /// Reads some definitions. Returns whether all are read.
    pub(super) fn read(
        &mut self,
        body: &[u8],
        session: &mut Session,
        shared: &SharedExchange,
        out: &mut Output,
    ) -> bool {
        let mut reader = Reader::at(body, self.at);
        let mut has_attributes = false;
        for _ in 0..STEP {
            if reader.is_at_end() || self.fault.is_some() || out.batch.is_full() {
                break;
            }
            let start = reader.offset();
            let definition = match wire::definition(&mut reader, self.context.dialect) {
                Ok(definition) => definition,
                Err(error) => {
                    self.report_refused(body, out);
                    let reason = if error.is_cut() { Reason::Truncated } else { Reason::Malformed };
                    self.lose(reason, (start, body.len()), None, &error.to_string(), body, out);
                    self.fault = Some(error.to_string());
                    break;
                }
            };
            let end = reader.offset();
            has_attributes |= matches!(definition, Definition::Attribute { .. });
            match self.apply(&definition, body, session, shared) {
                Ok(()) => {
                    self.report_refused(body, out);
                    if shared.emit_definitions {
                        let symbols = &mut Symbols { own: &mut session.table, host: None };
                        normalize::definition(&definition, (start, end), symbols, &self.context, out);
                    }
                }
                Err(why) => self.refuse(start, end, why, body, out),
            }
        }
        self.at = reader.offset();
        if has_attributes {
            session.update_resource();
            out.batch.set_resource(session.resource.clone());
        }
        let is_done = reader.is_at_end() || self.fault.is_some();
        if is_done {
            self.report_refused(body, out);
        }
        is_done
    }

    fn apply(
        &mut self,
        definition: &Definition<'_>,
        body: &[u8],
        session: &mut Session,
        shared: &SharedExchange,
    ) -> Result<(), Full> {
        if !session.hold() {
            return Err(Full { limit: bytes(shared.budget.limit()), key: NO_MEMORY });
        }
        match definition {
            Definition::String { id, text, .. } => session.table.define_string(*id, text),
            Definition::Method { id, parts } => session.table.define_method(*id, *parts),
            Definition::Attribute { key, value } => {
                let symbols = &mut Symbols { own: &mut session.table, host: None };
                let value = body.get(value.clone()).unwrap_or_default();
                let Some((key, value)) = self.buffers.agent_attribute(key, value, symbols) else { return Ok(()) };
                let limit = bytes(shared.options.max_text_bytes);
                let is_accepted = session.set_attribute(key, value, limit);
                is_accepted.then_some(()).ok_or(Full { limit, key: "max_text_bytes" })
            }
        }
    }

    fn refuse(&mut self, start: usize, end: usize, why: Full, body: &[u8], out: &mut Output) {
        match &mut self.refused {
            Some(refused) if refused.end == start && refused.why == why => {
                refused.end = end;
                refused.count += 1;
            }
            _ => {
                self.report_refused(body, out);
                self.refused = Some(Refused { start, end, count: 1, why });
            }
        }
    }

    fn report_refused(&mut self, body: &[u8], out: &mut Output) {
        let Some(Refused { start, end, count, why: Full { limit, key } }) = self.refused.take() else { return };
        let detail = format!("{count} definitions are over the limit of {limit} ({key})");
        self.lose(Reason::TooLarge, (start, end), None, &detail, body, out);
    }

    fn lose(
        &mut self,
        reason: Reason,
        (start, end): (usize, usize),
        events: Option<u64>,
        detail: &str,
        body: &[u8],
        out: &mut Output,
    ) {
        let bytes = (end - start) as u64;
        self.lost += bytes;
        let loss = Loss { reason, bytes, events, detail, excerpt: body.get(start..end).unwrap_or_default() };
        out.loss(self.context.untimed(semconv::LOSS, start, end), loss);
    }
}

/// The agent of a form whose host is not registered: only its UUID is known.
pub(super) fn unregistered(uuid: &str) -> ZicoAgent {
    ZicoAgent {
        id: 0,
        uuid: uuid.to_owned(),
        name: String::new(),
        app: String::new(),
        env: String::new(),
        attrs: Vec::new(),
    }
}
