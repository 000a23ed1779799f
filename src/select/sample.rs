//! Sampling: a share of the traces, or of the events, chosen without memory, so that every sink and daemon chooses the same.

use std::fmt;

use tributary_codec::mix::split_mix;
use tributary_event::{DataView, EventView, Kind, TraceId};

/// Which share is kept, and what of.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SampleRule {
    keep: f64,
    by: By,
    /// A random number of 64 bits at least this large is kept. 2^64 and more: none is.
    threshold: u128,
}

/// What is kept or left out as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum By {
    /// A trace: its spans and logs. Events that belong to none are kept.
    #[default]
    Trace,
    /// An event.
    Event,
}

impl By {
    /// Every way, with its name in configuration.
    pub(super) const NAMES: [(&'static str, By); 2] = [("trace_id", By::Trace), ("event", By::Event)];
}

impl SampleRule {
    /// Keeps this share: 0 to 1.
    pub(super) fn new(keep: f64, by: By) -> SampleRule {
        // Exact: a multiplication by a power of two.
        let threshold = ((1.0 - keep) * 18_446_744_073_709_551_616.0) as u128;
        SampleRule { keep, by, threshold }
    }

    /// Whether the event is kept. `ordinal` is its number, from 0, among the events of its batch that follow each other and
    /// have the same offset. Losses are kept: they report what is missing from the sample, too.
    pub(super) fn keeps(&self, event: EventView<'_>, ordinal: u64) -> bool {
        let random = match self.by {
            By::Trace => match trace_id(event) {
                Some(trace_id) => randomness(trace_id),
                None => return true,
            },
            By::Event if event.kind() == Kind::Loss => return true,
            By::Event => mixed(&[event.origin().connection, event.position().offset, ordinal]),
        };
        u128::from(random) >= self.threshold
    }

    /// Whether it needs to know the numbers of events.
    pub(super) fn is_by_event(&self) -> bool {
        self.by == By::Event
    }
}

impl fmt::Display for SampleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the digits that the multiplication adds: 0.07 is 7 %.
        let percent = (self.keep * 1e10).round() / 1e8;
        match self.by {
            By::Trace => write!(f, "{percent} % of the traces, events that belong to none"),
            By::Event => write!(f, "{percent} % of the events, all losses"),
        }
    }
}

/// The trace of a span or log. Zeros mean none.
fn trace_id(event: EventView<'_>) -> Option<TraceId> {
    let trace_id = match event.data() {
        DataView::Span(span) => span.trace_id,
        DataView::Log { context: Some(context), .. } => context.trace_id,
        DataView::Log { .. } | DataView::Metric(_) | DataView::Sample(_) | DataView::Loss(_) => return None,
    };
    (trace_id != TraceId::default()).then_some(trace_id)
}

/// The last 8 bytes of a trace id as a random number: bytes 9 to 15 (from 0), which W3C Trace Context calls random and
/// consistent probability sampling compares with its threshold, are its upper 56 bits. Byte 8, which is zero or constant in
/// the ids of some tracers, is its lower 8 bits: they decide only where the upper ones are equal to those of the threshold.
fn randomness(TraceId(bytes): TraceId) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = bytes;
    u64::from_be_bytes([b, c, d, e, f, g, h, a])
}

/// A number that depends on all of `parts`, the same in every process: SplitMix64 of each, in order.
fn mixed(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |state, part| split_mix(state ^ part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_random_bits_of_a_trace_id_are_those_of_w3c_first() {
        let id = TraceId([0xff, 1, 2, 3, 4, 5, 6, 7, 0xaa, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]);
        assert_eq!(randomness(id), 0x1122_3344_5566_77aa);
    }

    /// The example of the OpenTelemetry specification: 25 % has the threshold `c0…`.
    #[test]
    fn thresholds_are_those_of_consistent_probability_sampling() {
        let threshold = |keep| SampleRule::new(keep, By::Trace).threshold;
        assert_eq!(threshold(0.25), 0xc000_0000_0000_0000);
        assert_eq!(threshold(0.5), 0x8000_0000_0000_0000);
        assert_eq!((threshold(1.0), threshold(0.0)), (0, 1 << 64));
    }
}
