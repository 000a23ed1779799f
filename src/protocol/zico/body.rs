//! A body being read: where it stands, and what is told about it.

use crate::event::{Header, Loss, Position, Reason, semconv};
use crate::protocol::Output;

use super::delivered::Fingerprint;
use super::normalize::{Context, Workroom};
use super::wire::WireError;

/// Limits of what is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenLimits {
    /// Bytes of attributes or of an exception that one record may have.
    pub(super) record_bytes: usize,
    /// Memory of all that is open.
    pub(super) bytes: usize,
}

/// What reading one body needs beside the trace, and what it comes to.
#[derive(Debug)]
pub(super) struct BodyState {
    pub(super) context: Context,
    pub(super) limits: OpenLimits,
    pub(super) room: Workroom,
    /// Offset of the next item.
    pub(super) at: usize,
    /// Bytes reported lost.
    pub(super) lost: u64,
    /// Records with ids that are not defined.
    pub(super) unresolved: u64,
    /// What is known of copies once this body is delivered.
    pub(super) fresh: Vec<Fingerprint>,
    /// The agent's trace id, where the header has one.
    pub(super) known_trace: bool,
    /// Items that belong to no record, as long as they follow each other.
    orphans: Option<Orphans>,
    /// Where attributes stand for which there is no room, as long as they follow each other.
    surplus: Option<(usize, usize)>,
    /// Bytes that may yet be read ahead.
    pub(super) ahead: usize,
}

#[derive(Clone, Copy, Debug)]
struct Orphans {
    start: usize,
    end: usize,
    epilogs: u64,
    others: u64,
}

/// Why a body is not read to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TraceFault {
    Wire(WireError),
    /// What is open takes more memory than it may.
    TooMuchOpen {
        offset: usize,
        limit: usize,
    },
    /// No memory is left for it just now.
    NoMemory {
        offset: usize,
    },
}

impl BodyState {
    pub(super) fn new(context: Context, limits: OpenLimits, body_bytes: usize, known_trace: bool) -> Self {
        BodyState {
            context,
            limits,
            room: Workroom::new(limits.record_bytes),
            at: 0,
            lost: 0,
            unresolved: 0,
            fresh: Vec::new(),
            known_trace,
            orphans: None,
            surplus: None,
            ahead: 2 * body_bytes,
        }
    }

    /// Reports something lost.
    pub(super) fn lose(
        &mut self,
        reason: Reason,
        (start, end): (usize, usize),
        events: Option<u64>,
        detail: &str,
        body: &[u8],
        out: &mut Output,
    ) {
        let bytes = end.saturating_sub(start) as u64;
        self.lost += bytes;
        let excerpt = body.get(start..end).unwrap_or_default();
        let loss = Loss { reason, bytes, events, detail, excerpt };
        out.loss(self.context.untimed(semconv::LOSS, start, end), loss);
    }

    /// Reports what it has come to that is told in one for many items.
    pub(super) fn tell(&mut self, body: &[u8], out: &mut Output) {
        self.tell_orphans(body, out);
        self.tell_surplus(body, out);
    }

    /// Attributes for which there is no room.
    pub(super) fn surplus(&mut self, start: usize, end: usize, body: &[u8], out: &mut Output) {
        if self.surplus.is_some_and(|surplus| surplus.1 != start) {
            self.tell_surplus(body, out);
        }
        self.surplus = Some((self.surplus.map_or(start, |surplus| surplus.0), end));
    }

    fn tell_surplus(&mut self, body: &[u8], out: &mut Output) {
        let Some(place) = self.surplus.take() else { return };
        let OpenLimits { record_bytes, bytes } = self.limits;
        let detail = format!(
            "attributes are over {record_bytes} bytes of one record (max_record_bytes), or {bytes} of all that are open \
             (max_open_bytes)"
        );
        self.lose(Reason::TooLarge, place, None, &detail, body, out);
    }

    /// Items that belong to no record (rule 20).
    fn tell_orphans(&mut self, body: &[u8], out: &mut Output) {
        let Some(Orphans { start, end, epilogs, others }) = self.orphans.take() else { return };
        let detail = format!("{epilogs} ends of records and {others} other items belong to no record that is open");
        // An end without a beginning is a record that never goes out; what a break or attribute belonged to is not known.
        let events = (others == 0).then_some(epilogs);
        self.lose(Reason::Malformed, (start, end), events, &detail, body, out);
    }

    pub(super) fn orphan(&mut self, start: usize, end: usize, is_epilog: bool, body: &[u8], out: &mut Output) {
        if self.orphans.is_some_and(|orphans| orphans.end != start) {
            self.tell_orphans(body, out);
        }
        let orphans = self.orphans.get_or_insert(Orphans { start, end, epilogs: 0, others: 0 });
        orphans.end = end;
        orphans.epilogs += u64::from(is_epilog);
        orphans.others += u64::from(!is_epilog);
    }

    /// Reports records whose ids are not defined.
    pub(super) fn tell_unresolved(&mut self, out: &mut Output) {
        let events = std::mem::take(&mut self.unresolved);
        if events == 0 {
            return;
        }
        let detail = "records name methods or strings that were not defined";
        let loss = Loss { reason: Reason::Unresolved, bytes: 0, events: Some(events), detail, excerpt: &[] };
        let position = Position { sequence: Some(self.context.request), offset: 0, length: 0 };
        out.loss(Header::observed_at(semconv::LOSS, self.context.observed, position), loss);
    }
}

impl TraceFault {
    /// As a loss tells it: the reason, the offset from which on, and a sentence.
    pub(super) fn told(&self) -> (Reason, usize, String) {
        match self {
            TraceFault::Wire(error) => {
                let reason = match error {
                    _ if error.is_cut() => Reason::Truncated,
                    _ if error.is_too_deep() => Reason::TooLarge,
                    _ => Reason::Malformed,
                };
                (reason, error.offset, error.to_string())
            }
            TraceFault::TooMuchOpen { offset, limit } => {
                let detail = format!("at {offset}: open records take the limit of {limit} bytes (max_open_bytes)");
                (Reason::TooLarge, *offset, detail)
            }
            TraceFault::NoMemory { offset } => {
                let detail = format!("at {offset}: the memory for requests is used up (limits.memory_bytes)");
                (Reason::Failed, *offset, detail)
            }
        }
    }
}
