//! Outputs that requests of a listener use one after the other: most requests are too short to make their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tributary_event::{BatchBuilder, Origin};
use tributary_memory::Allowance;
use tributary_protocol::{LossLimit, Output};

/// The number of outputs that are kept …
const MAX_OUTPUTS: usize = 16;
/// … and the largest that is kept.
const MAX_OUTPUT_BYTES: usize = 128 << 10;

/// The outputs that no request uses. The batch of each is made with the capacity that its last batch has needed. The
/// [`Ticker`](super::ticker::Ticker) clears them every second.
#[derive(Default)]
pub(super) struct DecodeBuffers {
    free: Mutex<Vec<Output>>,
}

impl DecodeBuffers {
    /// An output for a request of `origin`, with the limits of its connection.
    pub(super) fn take(&self, origin: &Arc<Origin>, allowance: &Allowance, losses: Option<Box<LossLimit>>) -> Output {
        let free = self.free().pop();
        let mut out = free.unwrap_or_else(|| Output::new(BatchBuilder::new(origin.clone())));
        out.batch.set_origin(origin.clone());
        out.batch.set_resource(Arc::default());
        out.batch.set_content(None);
        // The pause that the last request asked for is not for this one.
        out.throttle = None;
        out.set_allowance(Some(allowance.clone()));
        out.set_loss_limit(losses);
        out
    }

    /// Keeps an output that a request has used.
    pub(super) fn put_back(&self, out: Output) {
        let mut free = self.free();
        if free.len() < MAX_OUTPUTS && out.batch.is_empty() && out.batch.memory_bytes() <= MAX_OUTPUT_BYTES {
            free.push(out);
        }
    }

    /// Releases all outputs.
    pub(super) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<Output>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_event::{ContentId, Header, Position, Severity, UnixNanos, semconv};

    #[test]
    fn the_batches_of_a_request_are_not_of_the_content_of_the_one_before() {
        let (buffers, allowance) = (DecodeBuffers::default(), Allowance::default());
        let origin = Arc::new(Origin::new("zico", "traces".into(), "peer".into(), 1));
        let contents = [Some(ContentId::of("test", b"a trace")), None].map(|content| {
            let mut out = buffers.take(&origin, &allowance, None);
            if content.is_some() {
                out.batch.set_content(content);
            }
            let position = Position { sequence: None, offset: 0, length: 1 };
            out.batch.event(Header::observed_at(semconv::LOSS, UnixNanos(7), position)).log(Severity::Info, None);
            let batch = out.batch.take();
            buffers.put_back(out);
            batch.content()
        });
        assert!(contents[0].is_some());
        assert_eq!(contents[1], None, "the second request has set no content");
        assert_eq!(buffers.free().len(), 1, "both have used the same output");
    }
}
