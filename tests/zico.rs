//! ZICO: every recorded conversation without a socket, against what an independent decoder made of it.

#![allow(clippy::unwrap_used)]

mod zico_support;

use tributary::protocol::zico::Options;
use zico_support::cases;
use zico_support::compare::compare;
use zico_support::offline::Offline;

#[test]
fn every_recorded_conversation_comes_to_the_expected_spans() {
    for case in cases() {
        let mut offline = Offline::new(Options::default());
        let (answers, rest) = offline.converse(&case);
        compare(&case, &answers, &rest);
        let account = offline.books.account();
        assert_eq!(account.buffered(), 0, "{}: {account:?}", case.name);
    }
}
