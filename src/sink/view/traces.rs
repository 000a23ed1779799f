//! Which traces are kept: all spans of a trace or none, decided by its id, whichever listener and batch a span is in.

use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use super::recent::RecentKeys;
use tributary_codec::mix::mix;
use tributary_event::{TraceId, UnixNanos};

/// The memory of the traces that were left out lately.
const LEFT_OUT_BYTES: usize = 256 << 10;
/// Where fewer than one trace of this many is kept, slow and failed ones are not looked for: there are too many.
const LEAST_PART: u64 = 1024;
/// The numbers of traces there: all of one is missing, or a part.
const LEFT_OUT: u32 = 0;
const TORN: u32 = 1;
/// A trace is expected to be over after this time.
const TRACE_TIME: Duration = Duration::from_secs(60);
/// The least time between two steps to a larger part.
const STEP_TIME: Duration = Duration::from_secs(10);
/// The least time between two steps to a smaller part because there is no time.
const SLOW_TIME: Duration = Duration::from_secs(10);
/// The most traces that miss a part while another part is kept, until they are removed.
const MAX_TORN: usize = 4096;

/// The choice of traces.
#[derive(Debug)]
pub(super) struct TraceChoice {
    /// Traces whose hashes are at most this are kept.
    most: u64,
    /// Traces that were left out lately, and would be kept after the next step: the rest of one is no trace.
    left_out: RecentKeys,
    has_left_out: bool,
    torn: HashSet<u64, RandomState>,
    /// Spans of traces that are not kept any more have to go.
    is_smaller: bool,
    /// When there was no time the last time.
    slow: UnixNanos,
    /// When the choice became larger, and when the older traces in `left_out` were forgotten.
    grown: UnixNanos,
    turned: UnixNanos,
}

impl TraceChoice {
    /// All traces.
    pub(super) fn new() -> TraceChoice {
        TraceChoice {
            most: u64::MAX,
            left_out: RecentKeys::new(LEFT_OUT_BYTES),
            has_left_out: false,
            torn: HashSet::default(),
            is_smaller: false,
            slow: UnixNanos(0),
            grown: UnixNanos(0),
            turned: UnixNanos(0),
        }
    }

    /// The hash of a trace. Tracers with ids of 64 and of 128 bits have the lower half in common.
    pub(super) fn hash(id: TraceId) -> u64 {
        mix(u128::from_be_bytes(id.0) as u64).max(1)
    }

    /// Whether the spans of a trace are kept; remembers the traces whose spans are not.
    pub(super) fn keeps(&mut self, hash: u64) -> bool {
        if hash <= self.most {
            return !self.has_left_out || self.left_out.get(hash).is_none();
        }
        if hash / 2 <= self.most {
            self.leave_out(hash);
        }
        false
    }

    /// Whether the spans of a trace that are kept stay. `is_chosen`: whatever its hash is.
    pub(super) fn still_keeps(&self, hash: u64, is_chosen: bool) -> bool {
        (is_chosen || hash <= self.most) && !self.torn.contains(&hash)
    }

    /// Whether all traces are kept whose hashes have this upper half. Torn ones are not looked at.
    pub(super) fn keeps_all_of(&self, upper: u32) -> bool {
        self.has_all() || upper < high(self.most)
    }

    /// The hashes of torn traces.
    pub(super) fn torn(&self) -> impl Iterator<Item = u64> {
        self.torn.iter().copied()
    }

    /// Whether every trace is kept.
    pub(super) fn has_all(&self) -> bool {
        self.most == u64::MAX
    }

    /// Whether the part of the traces that is kept is not so small that there is no time to look at the others.
    pub(super) fn has_some(&self) -> bool {
        self.most > u64::MAX / LEAST_PART
    }

    /// Traces are not chosen any more: their spans go.
    pub(super) fn drop_others(&mut self) {
        self.is_smaller = true;
    }

    fn leave_out(&mut self, hash: u64) {
        if self.left_out.get(hash).is_none() {
            self.left_out.insert(hash, LEFT_OUT);
        }
        self.has_left_out = true;
    }

    /// Whether a part of a trace is missing since a moment ago.
    pub(super) fn is_torn(&self, hash: u64) -> bool {
        self.left_out.get(hash) == Some(TORN)
    }

    /// There was no time or no memory for a span of a kept trace: no other span of it is kept, and those that are have to go.
    pub(super) fn tear(&mut self, hash: u64) {
        self.left_out.insert(hash, TORN);
        self.has_left_out = true;
        if self.torn.len() < MAX_TORN {
            self.torn.insert(hash);
        }
    }

    /// Whether spans have to go: others of their traces are missing, or their traces are not kept any more.
    pub(super) fn has_to_drop(&self) -> bool {
        self.is_smaller || !self.torn.is_empty()
    }

    /// They are gone.
    pub(super) fn have_dropped(&mut self) {
        self.torn.clear();
        self.is_smaller = false;
    }

    /// There is no time for all traces that are kept: fewer are, until there are so few that the others are not looked at.
    pub(super) fn slow_down(&mut self, now: UnixNanos) {
        if self.has_some() && now.0.saturating_sub(self.slow.0) >= nanos(SLOW_TIME) {
            self.slow = now;
            self.is_smaller |= self.halve();
        }
    }

    /// Half as many traces are kept. `false`: there would be none.
    pub(super) fn halve(&mut self) -> bool {
        let most = self.most / 2;
        if most < 1 << 32 {
            return false;
        }
        self.most = most;
        true
    }

    /// Time passes. `has_memory`: twice as many traces may be kept.
    pub(super) fn advance(&mut self, now: UnixNanos, has_memory: bool) {
        let since = |at: UnixNanos| now.0.saturating_sub(at.0);
        if since(self.turned) >= nanos(TRACE_TIME) {
            self.left_out.turn();
            self.turned = now;
        }
        let has_time = since(self.slow) >= nanos(TRACE_TIME);
        if has_memory && has_time && self.most < u64::MAX && since(self.grown) >= nanos(STEP_TIME) {
            self.most = self.most.saturating_mul(2).saturating_add(1);
            self.grown = now;
        }
    }
}

/// The upper half of a hash.
pub(super) fn high(hash: u64) -> u32 {
    (hash >> 32) as u32
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
