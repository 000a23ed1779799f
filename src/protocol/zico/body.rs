//! The state of reading one body, and its losses.

use tributary_codec::fressian::Definitions as FressianDefinitions;
use tributary_event::{Header, Loss, Position, Reason, semconv};
use tributary_protocol::Output;

use super::delivered::{Changes, Delivered};
use super::normalize::{BodyContext, Buffers};
use super::options::{Options, Records};
use super::profile::BodyCalls;
use super::wire::WireError;

/// Limits of open records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenLimits {
    /// Bytes of attributes or of an exception that one record may have.
    pub(super) record_bytes: usize,
    /// Memory of all open records.
    pub(super) bytes: usize,
}

/// The state of reading one body, beside its trace.
#[derive(Debug)]
pub(super) struct BodyState {
    pub(super) context: BodyContext,
    pub(super) limits: OpenLimits,
    pub(super) buffers: Buffers,
    /// Offset of the next item.
    pub(super) at: usize,
    /// Bytes reported lost.
    pub(super) lost: u64,
    /// The number of records with undefined ids.
    pub(super) unresolved: u64,
    /// What is remembered of its traces once it is delivered.
    pub(super) changes: Changes,
    /// Whether the header has a trace id.
    pub(super) known_trace: bool,
    /// Consecutive items that belong to no record.
    orphans: Option<Orphans>,
    /// The place of consecutive attributes over a limit.
    surplus: Option<(usize, usize)>,
    /// How many bytes may still be read ahead.
    pub(super) ahead: usize,
    /// The calls of the body, if they are summed up.
    pub(super) calls: Option<BodyCalls>,
    /// Records become spans.
    pub(super) has_spans: bool,
    /// Shorter records are added to their parents, in nanoseconds.
    pub(super) min_nanos: u64,
    /// The traces of the packet, which may have copies in it (Fressian).
    pub(super) own: Option<Delivered>,
    /// What the packet has defined (Fressian).
    pub(super) defined: FressianDefinitions,
}

#[derive(Clone, Copy, Debug)]
struct Orphans {
    start: usize,
    end: usize,
    epilogs: u64,
    others: u64,
}

/// Why the rest of a body is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TraceError {
    Wire(WireError),
    /// Open records take more memory than allowed.
    TooMuchOpen {
        offset: usize,
        limit: usize,
    },
    /// The memory budget is exhausted.
    NoMemory {
        offset: usize,
    },
}

impl BodyState {
    /// The state before a body of `body_bytes`. At most `max_remembered` of its traces are remembered.
    pub(super) fn new(
        context: BodyContext,
        limits: OpenLimits,
        body_bytes: usize,
        known_trace: bool,
        max_remembered: usize,
    ) -> Self {
        BodyState {
            context,
            limits,
            buffers: Buffers::new(limits.record_bytes),
            at: 0,
            lost: 0,
            unresolved: 0,
            changes: Changes::new(max_remembered),
            known_trace,
            orphans: None,
            surplus: None,
            ahead: 2 * body_bytes,
            calls: None,
            has_spans: true,
            min_nanos: 0,
            own: None,
            defined: FressianDefinitions::default(),
        }
    }

    /// The same, with records as the options say.
    pub(super) fn with(mut self, options: &Options) -> Self {
        self.calls = (options.records != Records::Spans).then(|| BodyCalls::new(options.profile));
        self.has_spans = options.records != Records::Profile;
        self.min_nanos = u64::try_from(options.min_duration.as_nanos()).unwrap_or(u64::MAX);
        self
    }

    /// Whether there are records without an event.
    pub(super) fn omits_records(&self) -> bool {
        !self.has_spans || self.min_nanos > 0
    }

    /// Reports a loss.
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

    /// Reports losses that are collected over consecutive items.
    pub(super) fn report_collected(&mut self, body: &[u8], out: &mut Output) {
        self.report_orphans(body, out);
        self.report_surplus(body, out);
    }

    /// Notes attributes over a limit.
    pub(super) fn surplus(&mut self, start: usize, end: usize, body: &[u8], out: &mut Output) {
        if self.surplus.is_some_and(|surplus| surplus.1 != start) {
            self.report_surplus(body, out);
        }
        self.surplus = Some((self.surplus.map_or(start, |surplus| surplus.0), end));
    }

    fn report_surplus(&mut self, body: &[u8], out: &mut Output) {
        let Some(place) = self.surplus.take() else { return };
        let OpenLimits { record_bytes, bytes } = self.limits;
        let detail = format!(
            "attributes are over {record_bytes} bytes of one record (max_record_bytes), or {bytes} of all open records \
             (max_open_bytes)"
        );
        self.lose(Reason::TooLarge, place, None, &detail, body, out);
    }

    /// Reports items that belong to no record (rule 20).
    fn report_orphans(&mut self, body: &[u8], out: &mut Output) {
        let Some(Orphans { start, end, epilogs, others }) = self.orphans.take() else { return };
        let detail = format!("{epilogs} ends of records and {others} other items belong to no record");
        // An end without a start is one lost record. Which record a break or attribute belonged to is unknown.
        let events = (others == 0).then_some(epilogs);
        self.lose(Reason::Malformed, (start, end), events, &detail, body, out);
    }

    /// Notes an item that belongs to no record.
    pub(super) fn orphan(&mut self, start: usize, end: usize, is_epilog: bool, body: &[u8], out: &mut Output) {
        if self.orphans.is_some_and(|orphans| orphans.end != start) {
            self.report_orphans(body, out);
        }
        let orphans = self.orphans.get_or_insert(Orphans { start, end, epilogs: 0, others: 0 });
        orphans.end = end;
        orphans.epilogs += u64::from(is_epilog);
        orphans.others += u64::from(!is_epilog);
    }

    /// Reports records with undefined ids.
    pub(super) fn report_unresolved(&mut self, out: &mut Output) {
        let events = std::mem::take(&mut self.unresolved);
        if events == 0 {
            return;
        }
        let detail = "records use ids of methods or strings that were not defined";
        let loss = Loss { reason: Reason::Unresolved, bytes: 0, events: Some(events), detail, excerpt: &[] };
        let position = Position { sequence: Some(self.context.request), offset: 0, length: 0 };
        out.loss(Header::observed_at(semconv::LOSS, self.context.observed, position), loss);
    }
}

impl TraceError {
    /// The loss: reason, offset from which on, and text.
    pub(super) fn loss(&self) -> (Reason, usize, String) {
        match self {
            TraceError::Wire(error) => {
                let reason = match error {
                    _ if error.is_cut() => Reason::Truncated,
                    _ if error.is_too_deep() => Reason::TooLarge,
                    _ => Reason::Malformed,
                };
                (reason, error.offset, error.to_string())
            }
            TraceError::TooMuchOpen { offset, limit } => {
                let detail = format!("at {offset}: open records take the limit of {limit} bytes (max_open_bytes)");
                (Reason::TooLarge, *offset, detail)
            }
            TraceError::NoMemory { offset } => {
                let detail = format!(
                    "at {offset}: the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)"
                );
                (Reason::Failed, *offset, detail)
            }
        }
    }
}
