//! One message: from its delivery to its acknowledgement.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use async_nats::Message;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use super::{NatsListener, SharedListener};
use crate::context::ListenerContext;
use crate::nats::delivery::{self, Acknowledgement, Delivered};
use crate::nats::session::Session;
use crate::quarantine::QuarantineRecord;
use tributary_driver::{Account, call, loss_batch};
use tributary_event::{BatchBuilder, Loss, MessagePart, Reason};
use tributary_memory::MemoryLease;
use tributary_pipeline::DeliveryOutcome;
use tributary_protocol::{Exchange as _, Flow, Output, Request, Work as _};

/// A message that has been decoded for this long yields to the other tasks.
const YIELD_AFTER: Duration = Duration::from_micros(500);
/// The longest excerpt of a message that is not decoded.
const EXCERPT_BYTES: usize = 64;

/// What became of the events of a message.
enum Outcome {
    /// Every sink has them.
    Delivered,
    /// The same, but for what cannot be read: the message goes to the quarantine.
    Unreadable(String),
    /// Another attempt can succeed. Why not this one.
    Failed(&'static str),
}

/// Decodes a message. Dropped, it counts what is not decided as not received: the message comes again.
struct Decoding<'a> {
    shared: &'a SharedListener,
    out: Output,
    account: Account,
}

impl Drop for Decoding<'_> {
    fn drop(&mut self) {
        self.out.inflated(self.account.buffered(), 0);
        self.account.settle(&self.shared.context.counters, &mut self.out);
    }
}

impl NatsListener {
    /// Delivers the events of a message and answers it. Nothing is answered if the future is dropped.
    pub(super) async fn handle(
        &self,
        session: &Session,
        message: &Message,
        lease: MemoryLease,
        stop: &CancellationToken,
    ) {
        let shared = &*self.0;
        let Some((reply, delivered)) = message.reply.as_ref().and_then(|of| Some((of.as_str(), Delivered::of(of)?)))
        else {
            if let Some(suppressed) = shared.failing.permit() {
                let (listener, subject) = (shared.context.counters.name(), message.subject.as_str());
                warn!(listener, subject, suppressed, "a message is none of JetStream; it is ignored");
            }
            return;
        };
        let Some(_claim) = shared.in_flight.claim(delivered.sequence) else { return };
        if delivered.times > 1 {
            shared.context.counters.stream().add_redelivered();
        }
        let ack_wait = session.consumer.ack_wait;
        let sessions = shared.sessions.subscribe();
        let work = self.work_on(session, message, delivered);
        tokio::pin!(work);
        let answer = loop {
            match timeout(ack_wait / 3, &mut work).await {
                Ok(answer) => break answer,
                Err(_) => delivery::note_progress(&sessions, reply).await,
            }
        };
        drop(lease);
        if !delivery::answer(sessions, reply, answer, ack_wait, stop).await {
            debug!(sequence = delivered.sequence, ?answer, "the server has not confirmed the answer to a message");
        }
    }

    /// The answer to a message.
    async fn work_on(&self, session: &Session, message: &Message, delivered: Delivered) -> Acknowledgement {
        let shared = &*self.0;
        let began = shared.context.clock.now();
        let options = &shared.options;
        let request = delivery::request(message, &options.stream, delivered);
        let max_deliver = options.max_deliver as u64;
        let limit = options.limits.max_message_bytes;
        let outcome = if delivered.times > max_deliver {
            let times = delivered.times - 1;
            let why = format!("it was delivered {times} times, and never with success (max_deliver)");
            self.refuse(&request, Reason::Failed, why).await
        } else if request.body.len() as u64 > limit {
            let why = format!("it has more than {limit} bytes (max_message_bytes)");
            self.refuse(&request, Reason::TooLarge, why).await
        } else {
            let (stream, sequence) = (session.consumer.stream.number(), delivered.sequence);
            let part = MessagePart { stream, sequence, first_line: 0, end_line: 0 };
            match self.decode(request.clone(), part, delivered.times > 1).await {
                Outcome::Failed(why) if delivered.times >= max_deliver => {
                    let why = format!("{why} at the last of {max_deliver} deliveries (max_deliver)");
                    self.refuse(&request, Reason::Failed, why).await
                }
                outcome => outcome,
            }
        };
        match outcome {
            Outcome::Delivered => {
                let level = shared.context.sender.delivery().level();
                shared.context.counters.acknowledged(level, shared.context.clock.now().elapsed - began.elapsed);
                Acknowledgement::Accepted
            }
            Outcome::Unreadable(why) => {
                if !self.keep(request, &why).await {
                    return self.again(delivered);
                }
                shared.context.counters.stream().add_quarantined();
                if let Some(suppressed) = shared.failing.permit() {
                    let (listener, sequence) = (shared.context.counters.name(), delivered.sequence);
                    error!(
                        listener,
                        sequence,
                        error = why,
                        suppressed,
                        "a message cannot be delivered; it is in the quarantine"
                    );
                }
                Acknowledgement::Never
            }
            Outcome::Failed(why) => {
                debug!(
                    sequence = delivered.sequence,
                    times = delivered.times,
                    why,
                    "a message must be delivered again"
                );
                self.again(delivered)
            }
        }
    }

    /// The message comes again, later each time.
    fn again(&self, delivered: Delivered) -> Acknowledgement {
        let options = &self.0.options;
        let doublings = u32::try_from(delivered.times.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        Acknowledgement::Again(options.retry_min.saturating_mul(1 << doublings).min(options.retry_max))
    }

    /// Decodes a message and hands its events over; waits until every sink has them.
    async fn decode(&self, request: Request, mut part: MessagePart, is_repeated: bool) -> Outcome {
        let shared = &*self.0;
        let SharedListener { context: ListenerContext { counters, sender, clock, .. }, origin, .. } = shared;
        let delivery = sender.delivery();
        let out = Output::new(BatchBuilder::new(origin.clone()));
        let mut decoding = Decoding { shared, out, account: Account::default() };
        decoding.account.received(counters, request.body.len() as u64);
        let mut work = shared.exchange.work(request, None, clock.now());
        let mut since_yield = clock.now().elapsed;
        loop {
            sender.wait_for_capacity().await;
            let now = clock.now();
            let Decoding { out, account, .. } = &mut decoding;
            let step = catch_unwind(AssertUnwindSafe(|| call(out, account, counters, now, |out| work.step(now, out))));
            let Ok(step) = step else {
                if let Some(suppressed) = shared.panicking.permit() {
                    let (listener, sequence) = (counters.name(), part.sequence);
                    error!(
                        listener,
                        sequence, suppressed, "a bug of ours: decoding a message panicked; it is delivered again"
                    );
                }
                // What it has left may be half made.
                out.batch = BatchBuilder::new(origin.clone());
                return Outcome::Failed("decoding panicked");
            };
            if let Some(mut batch) = step.batch {
                if is_repeated {
                    counters.stream().add_redelivered_events(batch.len() as u64);
                }
                part.end_line = work.lines();
                batch.set_message(part);
                part.first_line = part.end_line;
                delivery.send(batch).await;
            }
            if step.flow != Flow::Again {
                break;
            }
            if now.elapsed.saturating_sub(since_yield) >= YIELD_AFTER {
                tokio::task::yield_now().await;
                since_yield = clock.now().elapsed;
            }
        }
        let is_delivered = delivery.outcome().await == DeliveryOutcome::Written;
        if work.is_short_of_memory() {
            // Others end, and give memory back.
            sleep(shared.options.retry_min).await;
            return Outcome::Failed("there was no memory for its lines (limits.memory_bytes)");
        }
        match work.quarantine_reason() {
            _ if !is_delivered => Outcome::Failed("a sink could not write its events"),
            Some(why) => Outcome::Unreadable(why.to_owned()),
            None => Outcome::Delivered,
        }
    }

    /// A message that is not decoded: its loss is reported.
    async fn refuse(&self, request: &Request, reason: Reason, why: String) -> Outcome {
        let SharedListener { context: ListenerContext { counters, sender, clock, .. }, origin, .. } = &*self.0;
        let bytes = request.body.len() as u64;
        counters.received(bytes);
        counters.lost(reason, bytes);
        let detail = &format!("message {}: {why}", request.number);
        let excerpt = &request.body[..request.body.len().min(EXCERPT_BYTES)];
        let loss = Loss { reason, bytes, events: None, detail, excerpt };
        let batch = loss_batch(counters, origin, clock.now().unix, 0, loss);
        match sender.deliver(batch).await {
            DeliveryOutcome::Written => Outcome::Unreadable(why),
            DeliveryOutcome::Shed | DeliveryOutcome::Failed => Outcome::Failed("a sink could not write its loss"),
        }
    }

    /// Writes a message to the quarantine, if there is one. `false`: that was not possible.
    async fn keep(&self, request: Request, reason: &str) -> bool {
        let shared = &*self.0;
        let Some(quarantine) = &shared.quarantine else { return true };
        let (at, origin) = (shared.context.clock.now().unix, shared.origin.clone());
        let kept = quarantine.keep(QuarantineRecord { at, origin, reason: reason.to_owned(), request }).await;
        if let Err(error) = &kept
            && let Some(suppressed) = quarantine.throttle.permit()
        {
            let listener = shared.context.counters.name();
            error!(listener, %error, suppressed, "cannot write a message to the quarantine; it is delivered again");
        }
        kept.is_ok()
    }
}
