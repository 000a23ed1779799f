//! Ids of traces and spans: the agent's, or else derived from what does not change when a body is sent again.

use ring::digest::{SHA256, digest};

use tributary_codec::mix::split_mix;
use tributary_event::{SpanId, TraceId};

use super::wire::Prolog;

/// A trace's id from its header: a UUID, or 32 or 16 hexadecimal digits in either case (rule 24). `None`: invalid.
pub(super) fn trace_id(text: &str) -> Option<TraceId> {
    let mut id = 0u128;
    let mut digits = 0;
    for character in text.trim().chars().filter(|character| *character != '-') {
        id = id << 4 | u128::from(character.to_digit(16)?);
        digits += 1;
    }
    (matches!(digits, 16 | 32) && id != 0).then_some(TraceId(id.to_be_bytes()))
}

/// An id for a trace without one: the same for the same position in the same session.
pub(super) fn derived(session: &str, sequence: u64) -> TraceId {
    let digest = digest(&SHA256, format!("{session}#{sequence}").as_bytes());
    TraceId(digest.as_ref().first_chunk().copied().unwrap_or([1; 16]))
}

/// The part of span ids that depends on their trace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn of(trace: TraceId) -> Self {
        let trace = u128::from_be_bytes(trace.0);
        Seed(split_mix(split_mix((trace >> 64) as u64) ^ trace as u64))
    }
}

/// The id of the record that was opened as number `index` of its trace, from 0. It does not depend on its place in a body.
#[inline]
pub(super) fn span_id(trace: Seed, index: u64, prolog: Option<Prolog>) -> SpanId {
    let Prolog { start, method } = prolog.unwrap_or(Prolog { start: 0, method: 0 });
    let id = [index, start, method].into_iter().fold(trace.0, |mixed, part| split_mix(mixed ^ part));
    SpanId(id.max(1).to_be_bytes())
}

/// The agent's own id (rule 28).
pub(super) fn given(id: u64) -> Option<SpanId> {
    (id != 0).then_some(SpanId(id.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_has_16_or_32_digits_with_or_without_hyphens() {
        let shown = |text: &str| trace_id(text).map(|id| id.to_string());
        let long = "1a4e24519af51247249a70e975bbfafe";
        assert_eq!(shown(long).as_deref(), Some(long));
        let upper = long.to_uppercase();
        assert_eq!(shown(&upper).as_deref(), Some(long));
        assert_eq!(shown(" 1a4e2451-9af5-1247-249a-70e975bbfafe ").as_deref(), Some(long));
        assert_eq!(shown("00c0ffee00c0ffee").as_deref(), Some("000000000000000000c0ffee00c0ffee"));
        for text in
            ["", "hello", "0", "00000000000000000000000000000000", &long[1..], "1a4e24519af51247249a70e975bbfafg"]
        {
            assert_eq!(shown(text), None, "{text}");
        }
    }

    #[test]
    fn derived_ids_are_equal_only_for_the_same_position() {
        assert_eq!(derived("s", 1), derived("s", 1));
        assert_ne!(derived("s", 1), derived("s", 2));
        assert_ne!(derived("s", 1), derived("t", 1));
        let [trace, other] = [1, 2].map(|number| Seed::of(derived("s", number)));
        let prolog = |start| Some(Prolog { start, method: 7 });
        let ids = [
            span_id(trace, 0, prolog(1)),
            span_id(trace, 1, prolog(1)),
            span_id(trace, 0, prolog(2)),
            span_id(trace, 0, None),
            span_id(other, 0, prolog(1)),
        ];
        assert_eq!(ids[0], span_id(trace, 0, prolog(1)));
        for (index, id) in ids.iter().enumerate() {
            assert!(!ids[index + 1..].contains(id));
        }
        assert_eq!(given(0), None);
        assert_eq!(given(-5i64 as u64).unwrap().to_string(), "fffffffffffffffb");
    }
}
