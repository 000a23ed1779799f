//! ZICO: every recorded conversation without a socket, compared with the result of an independent decoder.

use crate::zico_support::compare::compare;
use crate::zico_support::offline::Offline;
use crate::zico_support::{DEEPEST, cases};
use tributary::protocol::zico::Options;

#[test]
fn every_recorded_conversation_gives_the_expected_spans() {
    for case in cases() {
        let mut offline = Offline::new(Options::default());
        let (answers, rest) = offline.converse(&case);
        compare(&case, &answers, &rest);
        let totals = offline.counters.totals();
        assert_eq!(totals.buffered(), 0, "{}: {totals:?}", case.name);
    }
}

/// As recorded requests of another collector: every session and key is accepted.
#[test]
fn recorded_conversations_decode_offline_to_the_same_events() {
    let refusing = ["gen2-unknown-session", "gen1-unknown-session", "register-errors"];
    // The test above has the deepest one, too.
    let left_out = [&refusing[..], &[DEEPEST]].concat();
    for case in cases().into_iter().filter(|case| !left_out.contains(&case.name.as_str())) {
        let mut offline = Offline::recorded();
        let (answers, rest) = offline.converse(&case);
        compare(&case, &answers, &rest);
        assert_eq!(offline.counters.totals().buffered(), 0, "{}", case.name);
    }
}
