//! Bounds the loss events of one connection: beyond a rate they are reported together.

use std::time::Duration;

use tributary_event::{BatchBuilder, Header, Loss, Position, Reason, TOGETHER, semconv};

/// The time within which losses are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Permits a number of loss events each second. Further losses of that second become one event for each reason, with
/// their number, the sum of their bytes, and the detail and excerpt of the first.
#[derive(Debug)]
pub struct LossLimit {
    per_second: u64,
    window: Duration,
    now: Duration,
    permitted: u64,
    combined: Vec<Combined>,
}

/// Losses of one reason that are reported together.
#[derive(Debug)]
struct Combined {
    reason: Reason,
    first: Header,
    count: u64,
    bytes: u64,
    /// None as soon as one of the losses does not know its number.
    events: Option<u64>,
    detail: String,
    excerpt: Vec<u8>,
}

impl LossLimit {
    /// A limit of `per_second` loss events.
    pub fn new(per_second: u64) -> Self {
        LossLimit { per_second, window: Duration::ZERO, now: Duration::ZERO, permitted: 0, combined: Vec::new() }
    }

    /// Whether this loss is to be reported by itself. If not, it is counted for the next report.
    pub(super) fn permit(&mut self, header: &Header, loss: &Loss<'_>) -> bool {
        if self.permitted < self.per_second {
            self.permitted += 1;
            return true;
        }
        match self.combined.iter_mut().find(|combined| combined.reason == loss.reason) {
            Some(combined) => {
                combined.count += 1;
                combined.bytes = combined.bytes.saturating_add(loss.bytes);
                combined.events = combined.events.zip(loss.events).map(|(one, other)| one.saturating_add(other));
            }
            None => self.combined.push(Combined {
                reason: loss.reason,
                // Other names may stand in the batch, which is gone by then.
                first: Header { name: semconv::LOSS.into(), ..*header },
                count: 1,
                bytes: loss.bytes,
                events: loss.events,
                detail: loss.detail.to_owned(),
                excerpt: loss.excerpt[..loss.excerpt.len().min(Loss::EXCERPT)].to_vec(),
            }),
        }
        false
    }

    /// Begins a new window when the last one is over. `true`: what it left is to be written.
    pub(super) fn advance(&mut self, elapsed: Duration) -> bool {
        self.now = elapsed;
        if elapsed.saturating_sub(self.window) < WINDOW {
            return false;
        }
        self.window = elapsed;
        self.permitted = 0;
        !self.combined.is_empty()
    }

    /// When the window is over, if something waits for that.
    pub(super) fn due(&self) -> Option<Duration> {
        (!self.combined.is_empty()).then_some(self.window + WINDOW)
    }

    /// Writes what is combined.
    pub(super) fn write(&mut self, batch: &mut BatchBuilder) {
        for Combined { reason, first, count, bytes, events, detail, excerpt } in self.combined.drain(..) {
            let detail = match count {
                1 => detail,
                count => format!("{count}{TOGETHER}{detail}"),
            };
            let header = Header { position: Position { length: bytes, ..first.position }, ..first };
            let loss = Loss { reason, bytes, events, detail: &detail, excerpt: &excerpt };
            match count {
                1 => batch.loss(header, loss),
                count => batch.loss_with(header, loss, &[(semconv::LOSS_COUNT.into(), count.into())]),
            }
        }
    }
}
