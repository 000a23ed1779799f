//! What sessions and exchanges write: events, replies, numbers of bytes.

use std::time::Duration;

use bytes::BytesMut;

use tributary_event::{BatchBuilder, Header, Key, Loss, Reason, Value};
use tributary_memory::{Allowance, Amplification};

use super::loss_limit::LossLimit;

/// What a call of a session or an exchange produced. The driver takes from it after every call.
#[derive(Debug)]
pub struct Output {
    /// Events.
    pub batch: BatchBuilder,
    /// Bytes for the peer.
    pub reply: BytesMut,
    /// Bytes that became events or protocol state since the driver last took the number.
    pub decoded_bytes: u64,
    /// Bytes reported lost, by reason, since the driver last took the numbers.
    pub lost_bytes: [u64; Reason::ALL.len()],
    /// Bytes of requests that are answered and not kept, by endpoint, since the driver last took them.
    pub ignored_bytes: Vec<(&'static str, u64)>,
    /// By how many bytes inflating made more of what was received, since the driver last took the number.
    pub inflated_bytes: i64,
    /// Events that were left out because this daemon, or another one, has delivered them before, since the driver last took the
    /// numbers.
    pub repeats: [u64; 2],
    /// Events that have arrived after a loss reported them as missing, since the driver last took the number.
    pub found_events: u64,
    /// Warnings that are no loss, by code, since the driver last took them.
    pub warnings: Vec<(&'static str, u64)>,
    /// Lines for the log, which the caller writes. What makes them bounds their number.
    pub log_lines: Vec<String>,
    /// How long to wait before reading on: the peer caused more output than its allowance.
    pub throttle: Option<Duration>,
    /// The peer's allowance of output. `None`: it has no limit.
    allowance: Option<Allowance>,
    /// Bounds the number of loss events. None: there is no bound.
    loss_limit: Option<Box<LossLimit>>,
}

impl Output {
    /// An empty output that writes into `batch`, with an allowance of its own and no bound on loss events.
    pub fn new(batch: BatchBuilder) -> Self {
        Output {
            batch,
            reply: BytesMut::new(),
            decoded_bytes: 0,
            lost_bytes: [0; Reason::ALL.len()],
            ignored_bytes: Vec::new(),
            inflated_bytes: 0,
            repeats: [0; 2],
            found_events: 0,
            warnings: Vec::new(),
            log_lines: Vec::new(),
            throttle: None,
            allowance: Some(Allowance::default()),
            loss_limit: None,
        }
    }

    /// Shares `allowance` with other outputs: those of all connections of one address. `None`: output has no limit.
    pub fn set_allowance(&mut self, allowance: Option<Allowance>) {
        self.allowance = allowance;
    }

    /// The peer's allowance of output. `None`: it has no limit.
    #[inline]
    pub fn allowance(&self) -> Option<&Allowance> {
        self.allowance.as_ref()
    }

    /// The output bytes that the peer may cause at once, together with what `received` bytes of its input will earn.
    pub fn allowance_left(&self, limits: Amplification, received: u64, elapsed: Duration) -> u64 {
        self.allowance.as_ref().map_or(u64::MAX, |allowance| allowance.left(limits, received, elapsed))
    }

    /// Bounds the number of loss events by `limit`, and returns the limit that was set before.
    pub fn set_loss_limit(&mut self, limit: Option<Box<LossLimit>>) -> Option<Box<LossLimit>> {
        std::mem::replace(&mut self.loss_limit, limit)
    }

    /// Charges the peer for `expanded` bytes of output, which `received` bytes of input have caused. A peer that has used
    /// its allowance up is throttled.
    #[inline]
    pub fn charge(&mut self, limits: Amplification, received: u64, expanded: u64, elapsed: Duration) {
        let allowance = self.allowance.as_ref();
        self.throttle = allowance.and_then(|allowance| allowance.spend(limits, received, expanded, elapsed));
    }

    /// The same for a part of a request. The bytes of its body that are not charged yet, `unearned`, are charged as output is
    /// written, because the allowance is bounded.
    pub fn charge_request(&mut self, limits: Amplification, unearned: &mut u64, expanded: u64, elapsed: Duration) {
        let earning = expanded.div_ceil(limits.ratio).min(*unearned);
        *unearned -= earning;
        self.charge(limits, earning, expanded, elapsed);
    }

    /// Writes a loss event and counts its bytes. With [`Output::loss_with`] the only way to report lost bytes.
    pub fn loss(&mut self, header: Header, loss: Loss<'_>) {
        self.loss_with(header, loss, &[]);
    }

    /// The same, with attributes whose values were made for this batch.
    pub fn loss_with(&mut self, header: Header, loss: Loss<'_>, attributes: &[(Key, Value)]) {
        self.lost_bytes[loss.reason.index()] += loss.bytes;
        if self.loss_limit.as_mut().is_none_or(|limit| limit.permit(&header, &loss)) {
            self.batch.loss_with(header, loss, attributes);
        } else {
            self.batch.note_combined_loss();
        }
    }

    /// The time of the next call: losses that waited to be reported together are written when they are due.
    #[inline]
    pub fn advance(&mut self, elapsed: Duration) {
        if let Some(limit) = &mut self.loss_limit
            && limit.advance(elapsed)
        {
            self.write_combined_losses();
        }
    }

    /// When [`Output::advance`] has something to write.
    pub fn losses_due(&self) -> Option<Duration> {
        self.loss_limit.as_ref().and_then(|limit| limit.due())
    }

    /// Writes the losses that wait to be reported together: nothing follows.
    pub fn write_combined_losses(&mut self) {
        if let Some(limit) = &mut self.loss_limit {
            limit.write(&mut self.batch);
        }
    }

    /// What was received as `from` bytes is decoded as `to` bytes: from here on those count.
    pub fn inflated(&mut self, from: u64, to: u64) {
        // Both are bounded by limits far below 2^63.
        self.inflated_bytes += (to as i64).wrapping_sub(from as i64);
    }

    /// Counts a warning that is no loss.
    pub fn warn(&mut self, code: &'static str) {
        add(&mut self.warnings, code, 1);
    }

    /// Writes a line to the log.
    pub fn log(&mut self, line: String) {
        self.log_lines.push(line);
    }

    /// Counts bytes of a request to this endpoint that is answered and not kept.
    pub fn ignore(&mut self, endpoint: &'static str, bytes: u64) {
        if bytes > 0 {
            add(&mut self.ignored_bytes, endpoint, bytes);
        }
    }
}

fn add(counts: &mut Vec<(&'static str, u64)>, of: &'static str, count: u64) {
    match counts.iter_mut().find(|(known, _)| *known == of) {
        Some((_, known)) => *known += count,
        None => counts.push((of, count)),
    }
}
