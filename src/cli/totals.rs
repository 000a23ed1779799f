//! The totals in the log when the daemon has stopped: one line per listener and sink, every number a field.

use std::fmt::Write as _;

use tracing::{info, warn};

use tributary_event::{Kind, Reason};
use tributary_pipeline::accounting::{Accounting, ListenerTotals, SinkTotals, Totals};

pub(super) fn log(totals: &Totals) {
    totals.listeners.iter().for_each(log_listener);
    totals.sinks.iter().for_each(log_sink);
}

/// One line per sink that still has events: what becomes of them when the daemon ends soon.
pub(super) fn log_waiting(accounting: &Accounting) {
    let remotes = accounting.remotes();
    for of in accounting.totals().sinks {
        let (sink, events) = (&of.name, of.waiting + u64::try_from(of.in_flight()).unwrap_or_default());
        match remotes.iter().find(|(name, state, _)| name == sink && state.is_spooled) {
            _ if events == 0 => {}
            Some((_, state, _)) => warn!(
                sink,
                events,
                requests = state.requests,
                bytes = state.bytes,
                "events wait in the spool; the next start sends them"
            ),
            None => warn!(
                sink,
                events, "events wait for the destination; those that it does not take in time count as failed"
            ),
        }
    }
}

/// `bytes_in = bytes_decoded + bytes_ignored + bytes_lost`, and the events. Counts that are usually 0 are left out then.
fn log_listener(of: &ListenerTotals) {
    let kind = |kind| if_any(of.count(kind));
    let by_reason =
        |counts: [u64; Reason::ALL.len()]| list(Reason::ALL.map(|reason| (reason.as_str(), counts[reason.index()])));
    info!(
        listener = of.name,
        protocol = %of.protocol,
        connections = of.connections,
        bytes_in = of.bytes_in,
        bytes_decoded = of.bytes_decoded,
        bytes_ignored = if_any(of.ignored()),
        bytes_lost = of.lost(),
        bytes_buffered = Some(of.buffered()).filter(|bytes| *bytes != 0),
        events = of.events(),
        log = kind(Kind::Log),
        span = kind(Kind::Span),
        metric = kind(Kind::Metric),
        sample = kind(Kind::Sample),
        loss = kind(Kind::Loss),
        bytes_lost_by_reason = by_reason(of.bytes_lost),
        events_missing_by_reason = by_reason(of.missing()),
        connections_refused = if_any(of.refused),
        warnings = list(of.warnings.iter().map(|(code, count)| (*code, *count))),
        "listener totals"
    );
}

/// `events + resumed = written + shed + failed + filtered + waiting`. Counts that are usually 0 are left out then.
fn log_sink(of: &SinkTotals) {
    info!(
        sink = of.name,
        events = of.events,
        resumed = if_any(of.resumed),
        written = of.written,
        shed = of.shed,
        failed = of.failed,
        filtered = (!of.filtered.is_empty()).then(|| of.filtered()),
        waiting = if_any(of.waiting),
        in_flight = Some(of.in_flight()).filter(|events| *events != 0),
        is_closed = of.is_closed.then_some(true),
        is_dead = of.is_dead.then_some(true),
        "sink totals"
    );
}

fn if_any(count: u64) -> Option<u64> {
    Some(count).filter(|count| *count > 0)
}

/// `name 1, name 2` of the counts that are not 0.
fn list<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Option<String> {
    let mut text = String::new();
    for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let separator = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{separator}{name} {count}");
    }
    Some(text).filter(|text| !text.is_empty())
}
