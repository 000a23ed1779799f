//! Over which time an answer looks, and how much of the traffic it has.

use serde::Serialize;

use super::answer::ApiError;
use super::context::ApiContext;
use super::history::{CounterSample, POINTS, now_ms};
use super::query::bad;
use tributary_event::{Kind, UnixNanos};
use tributary_protocol::Protocol;
use tributary_sink_view::{Class, Snapshot};

/// The time over which an answer looks, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Window {
    pub(super) from_ms: u64,
    pub(super) to_ms: u64,
    pub(super) limit_ms: u64,
}

/// How many of the events that passed in the time are kept.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Coverage {
    passed: u64,
    kept: u64,
    one_in: Option<u64>,
    text: String,
}

impl Window {
    /// The whole window of the view.
    pub(super) fn whole(context: &ApiContext) -> Result<Window, ApiError> {
        let to_ms = now_ms();
        let limit_ms = u64::try_from(context.view()?.options().window.as_millis()).unwrap_or(u64::MAX);
        Ok(Window { from_ms: to_ms.saturating_sub(limit_ms), to_ms, limit_ms })
    }

    /// The part of it that the parameters `from_ms` and `to_ms`, with this prefix, name.
    pub(super) fn named(context: &ApiContext, prefix: &str) -> Result<Window, ApiError> {
        let whole = Window::whole(context)?;
        let (from_name, to_name) = (format!("{prefix}from_ms"), format!("{prefix}to_ms"));
        let from_ms = context.query.number(&from_name)?.unwrap_or(whole.from_ms).max(whole.from_ms);
        let to_ms = context.query.number(&to_name)?.unwrap_or(whole.to_ms);
        if to_ms < from_ms {
            return Err(bad(format!("{to_name} is before {from_name}, or before the window")));
        }
        Ok(Window { from_ms, to_ms, ..whole })
    }

    /// The same, of `from_ms` and `to_ms`.
    pub(super) fn of(context: &ApiContext) -> Result<Window, ApiError> {
        Window::named(context, "")
    }

    /// Whether it has this time.
    pub(super) fn has(self, at: UnixNanos) -> bool {
        let at_ms = at.0 / 1_000_000;
        self.from_ms <= at_ms && at_ms <= self.to_ms
    }

    /// Its beginning.
    pub(super) fn from(self) -> UnixNanos {
        UnixNanos(self.from_ms.saturating_mul(1_000_000))
    }
}

/// Takes the kept batches of these classes of the listeners for which `is_wanted`, in the window.
pub(super) fn snapshot(
    context: &ApiContext,
    window: Window,
    classes: &[Class],
    is_wanted: impl Fn(&str, &str) -> bool,
) -> Result<Snapshot, ApiError> {
    let view = context.view()?;
    let mut snapshot = view
        .snapshot(window.from(), |class, protocol, listener| classes.contains(&class) && is_wanted(protocol, listener));
    snapshot.batches.retain(|(_, kept)| window.has(kept.at));
    Ok(snapshot)
}

impl Coverage {
    /// Of the events of these kinds, of the listeners for which `is_wanted`.
    pub(super) fn of(
        context: &ApiContext,
        window: Window,
        kinds: &[Kind],
        is_wanted: impl Fn(&str, Protocol) -> bool,
        kept: u64,
    ) -> Coverage {
        Coverage::new(passed(context, window, kinds, is_wanted), kept)
    }

    pub(super) fn new(passed: u64, kept: u64) -> Coverage {
        let passed = passed.max(kept);
        let one_in = (kept > 0).then(|| (passed + kept / 2) / kept);
        let text = match one_in {
            _ if passed == 0 => "no events".to_owned(),
            _ if passed == kept => "all events".to_owned(),
            None => format!("none of {passed} events: they were counted, not kept"),
            Some(1) => format!("{kept} of {passed} events: the rest was counted, not kept"),
            Some(one_in) => format!("1 in {one_in} events: the rest was counted, not kept"),
        };
        Coverage { passed, kept, one_in, text }
    }
}

/// The number of events in a snapshot.
pub(super) fn kept(snapshot: &Snapshot) -> u64 {
    snapshot.batches.iter().map(|(_, kept)| kept.len() as u64).sum()
}

/// The events of these kinds of the listeners for which `is_wanted` that passed in the window.
pub(super) fn passed(
    context: &ApiContext,
    window: Window,
    kinds: &[Kind],
    is_wanted: impl Fn(&str, Protocol) -> bool,
) -> u64 {
    let samples = context.shared.history.with_present(&context.subject.accounting.totals());
    let events = |sample: &CounterSample| sample.events(kinds, &is_wanted);
    // The last counters before the window begins, or the first that are known, and the first after its end.
    let first = samples.first().filter(|_| samples.len() > POINTS);
    let before = samples.iter().rev().find(|sample| sample.at_ms <= window.from_ms).or(first).map_or(0, events);
    let after = samples.iter().find(|sample| sample.at_ms >= window.to_ms).or(samples.last()).map_or(0, events);
    after.saturating_sub(before)
}
