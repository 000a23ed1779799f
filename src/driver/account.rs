//! The conservation law: every byte that is received is decoded, lost, or still buffered.
//!
//! `bytes_in = decoded + lost + buffered` holds for each session and each request, and so for each listener. An
//! [`Account`] is the only code that computes `buffered`.

use tributary_event::Reason;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::Output;

/// The bytes of one connection or of one request.
///
/// All numbers are in the size that is decoded: of a compressed body, that is its inflated size from the moment that the
/// decoder reports it ([`Output::inflated`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    received: u64,
    decided: u64,
}

impl Account {
    /// Bytes were received.
    pub fn received(&mut self, counters: &ListenerCounters, bytes: u64) {
        counters.received(bytes);
        self.received += bytes;
    }

    /// Takes over what a call has decided.
    pub fn settle(&mut self, counters: &ListenerCounters, out: &mut Output) {
        self.received = self.received.wrapping_add_signed(out.inflated_bytes);
        let ignored: u64 = out.ignored_bytes.iter().map(|(_, bytes)| bytes).sum();
        self.decided = self.decided.wrapping_add(out.decoded_bytes).wrapping_add(out.lost_bytes.iter().sum());
        self.decided = self.decided.wrapping_add(ignored);
        counters.settle(out);
    }

    /// Counts every buffered byte as lost; returns the offset of the first one and their number.
    pub fn lose_buffered(&mut self, counters: &ListenerCounters, reason: Reason) -> (u64, u64) {
        let (offset, bytes) = (self.decided, self.buffered());
        counters.lost(reason, bytes);
        self.decided += bytes;
        (offset, bytes)
    }

    /// Counts every buffered byte as ignored, of a request to this endpoint.
    pub fn ignore_buffered(&mut self, counters: &ListenerCounters, endpoint: &'static str) {
        let bytes = self.buffered();
        counters.ignored(endpoint, bytes);
        self.decided += bytes;
    }

    /// Bytes received.
    pub fn total_received(&self) -> u64 {
        self.received
    }

    /// Bytes received that are neither decoded nor lost. A session that reports more than it received (a bug) has none.
    pub fn buffered(&self) -> u64 {
        self.received.saturating_sub(self.decided)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tributary_event::{BatchBuilder, Header, Loss, Origin, Position, UnixNanos, semconv};
    use tributary_protocol::Protocol;

    fn output() -> Output {
        Output::new(BatchBuilder::new(Arc::new(Origin::new("endless", "test".into(), "peer".into(), 1))))
    }

    fn lose(out: &mut Output, bytes: u64) {
        let loss = Loss { reason: Reason::Malformed, bytes, events: None, detail: "", excerpt: &[] };
        out.loss(Header::observed_at(semconv::LOSS, UnixNanos(0), Position::default()), loss);
    }

    /// The law, as the counters of the listener state it.
    fn assert_balance(account: &Account, counters: &ListenerCounters) {
        let totals = counters.totals();
        let [bytes_in, rest] =
            [totals.bytes_in, totals.bytes_decoded + totals.ignored() + totals.lost() + account.buffered()];
        assert_eq!(bytes_in, rest, "{account:?}");
        assert_eq!(totals.bytes_in, account.total_received());
    }

    #[test]
    fn received_bytes_are_decoded_lost_or_buffered_after_every_step() {
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let (mut account, mut out) = (Account::default(), output());
        // Received, inflated from and to, decoded, lost in each step; a fixed generator makes the numbers.
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below.max(1)
        };
        for _ in 0..10_000 {
            account.received(&counters, random(100));
            assert_balance(&account, &counters);
            let from = random(account.buffered() + 1);
            let to = random(3 * from + 1);
            out.inflated(from, to);
            let left = account.buffered() - from + to;
            let decoded = random(left + 1);
            out.decoded_bytes += decoded;
            lose(&mut out, random(left - decoded + 1));
            account.settle(&counters, &mut out);
            assert_balance(&account, &counters);
        }
        account.lose_buffered(&counters, Reason::Failed);
        assert_eq!(account.buffered(), 0);
        assert_balance(&account, &counters);
        assert_eq!(counters.totals().buffered(), 0);
    }

    #[test]
    fn inflating_moves_the_offset_of_what_is_lost_by_nothing() {
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let (mut account, mut out) = (Account::default(), output());
        account.received(&counters, 10);
        out.inflated(10, 1000);
        account.settle(&counters, &mut out);
        assert_eq!(account.buffered(), 1000);
        out.decoded_bytes = 400;
        account.settle(&counters, &mut out);
        assert_eq!(account.lose_buffered(&counters, Reason::Failed), (400, 600));
        assert_balance(&account, &counters);
    }

    #[test]
    fn a_body_that_shrinks_when_it_is_unpacked_balances_too() {
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let (mut account, mut out) = (Account::default(), output());
        account.received(&counters, 30);
        out.inflated(30, 3);
        out.decoded_bytes = 3;
        account.settle(&counters, &mut out);
        assert_eq!(account.buffered(), 0);
        assert_balance(&account, &counters);
    }

    #[test]
    fn a_session_that_decides_more_than_it_received_leaves_nothing_buffered() {
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let (mut account, mut out) = (Account::default(), output());
        account.received(&counters, 10);
        out.decoded_bytes = 11;
        account.settle(&counters, &mut out);
        assert_eq!(account.buffered(), 0);
        assert_eq!(account.lose_buffered(&counters, Reason::Failed).1, 0);
    }
}
