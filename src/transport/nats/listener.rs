//! Messages of a stream of NATS JetStream: pulled from a durable consumer, decoded, handed over, and acknowledged when every
//! sink that takes their events has them.
//!
//! `max_in_flight` tasks each pull one message, deliver it, answer it, and pull the next one. One more task keeps the connection.
//! A message that is not answered comes again, to this daemon or to another one with the same consumer.

mod message;

use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, StatusCode, Subscriber};
use futures_core::Stream as _;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use tributary_event::Origin;
use tributary_memory::MemoryLease;
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::nats::NatsExchange;

use super::options::NatsOptions;
use super::session::{self, Session};
use crate::context::ListenerContext;
use crate::quarantine::Quarantine;

/// How long a request for a message stays open at the server.
const PULL: Duration = Duration::from_secs(5);
/// The listener waits this much longer for the end of such a request.
const PULL_MARGIN: Duration = Duration::from_secs(2);
/// The pause before memory for a message is asked for again.
const MEMORY_RETRY: Duration = Duration::from_millis(50);
/// How long giving up the answers may take, when the server is away.
const UNSUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Receives the messages of one listener. Clones are the same.
#[derive(Clone, Debug)]
pub struct NatsListener(Arc<SharedListener>);

#[derive(Debug)]
struct SharedListener {
    options: NatsOptions,
    /// Of losses, which are the only events of the listener itself.
    origin: Arc<Origin>,
    exchange: NatsExchange,
    quarantine: Option<Quarantine>,
    context: ListenerContext,
    sessions: watch::Sender<Option<Arc<Session>>>,
    in_flight: InFlight,
    failing: LogThrottle,
    panicking: LogThrottle,
}

impl NatsListener {
    /// A listener of this context.
    pub fn new(options: NatsOptions, context: ListenerContext) -> NatsListener {
        NatsListener(Arc::new(SharedListener {
            origin: Arc::new(context.origin(&options.servers.shown(), 0)),
            exchange: NatsExchange::new(options.limits, &context.memory),
            quarantine: Quarantine::new(&options.quarantine, context.counters.name()),
            options,
            context,
            sessions: watch::Sender::new(None),
            in_flight: InFlight::default(),
            failing: LogThrottle::new(),
            panicking: LogThrottle::new(),
        }))
    }

    /// Receives until it stops, then finishes the messages that are in flight, unless they are aborted.
    pub async fn serve(self) {
        let shared = &self.0;
        let ListenerContext { stop, abort, counters, .. } = &shared.context;
        counters.stream().set_fault(Some("it has not connected yet".to_owned()));
        let mut tasks = JoinSet::new();
        for _ in 0..shared.options.max_in_flight {
            let (listener, stop) = (self.clone(), stop.clone());
            tasks.spawn(async move { listener.receive(&stop).await });
        }
        let finished = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = finished => {}
            () = session::keep_open(&shared.options, counters, &shared.sessions) => {}
            () = abort.cancelled() => {}
        }
        counters.stream().set_fault(None);
        shared.sessions.send_replace(None);
    }

    /// Receives one message after the other until `stop` is cancelled.
    async fn receive(&self, stop: &CancellationToken) {
        let mut sessions = self.0.sessions.subscribe();
        while !stop.is_cancelled() {
            let opened = stop.run_until_cancelled(sessions.wait_for(Option::is_some)).await;
            let Some(session) = opened.and_then(Result::ok).and_then(|session| session.clone()) else { return };
            self.receive_on(&session, stop).await;
            // Until it is known why this session is not used any longer, and there is another one.
            let is_other = |now: &Option<Arc<Session>>| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, &session));
            let _ = stop.run_until_cancelled(sessions.wait_for(is_other)).await;
        }
    }

    async fn receive_on(&self, session: &Session, stop: &CancellationToken) {
        let client = &session.connection.client;
        let inbox = client.new_inbox();
        let mut replies = match stop.run_until_cancelled(client.subscribe(inbox.clone())).await {
            Some(Ok(replies)) => replies,
            Some(Err(_)) => return session.doubt.cancel(),
            None => return,
        };
        while session.is_open() && !stop.is_cancelled() {
            let Some(lease) = stop.run_until_cancelled(self.memory_for_message()).await else { break };
            let pulled = tokio::select! {
                pulled = self.pull(session, &inbox, &mut replies) => pulled,
                () = session.connection.lost.cancelled() => return,
                () = session.doubt.cancelled() => None,
                () = stop.cancelled() => None,
            };
            if let Some(message) = pulled {
                self.handle(session, &message, lease, stop).await;
            }
        }
        if !stop.is_cancelled() {
            // The connection may be closed without a report of its loss.
            session.doubt.cancel();
        }
        // What the server sends from here on comes again.
        let _ = timeout(UNSUBSCRIBE_TIMEOUT, replies.unsubscribe()).await;
    }

    /// Waits for a message. `None`: there is none now.
    async fn pull(&self, session: &Session, inbox: &str, replies: &mut Subscriber) -> Option<Message> {
        let NatsOptions { stream, consumer, .. } = &self.0.options;
        let call = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        let body = json!({ "batch": 1, "expires": PULL.as_nanos() as u64 }).to_string();
        if session.connection.client.publish_with_reply(call, inbox.to_owned(), body.into()).await.is_err() {
            session.doubt.cancel();
            return None;
        }
        let next = poll_fn(|context| Pin::new(&mut *replies).poll_next(context));
        let message = timeout(PULL + PULL_MARGIN, next).await.ok()??;
        match message.status {
            None => Some(message),
            // No message came in this time, or the server has forgotten the request: the next one follows.
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND | StatusCode::IDLE_HEARTBEAT) => None,
            // The consumer was deleted, its leader has changed, JetStream is off: it is looked at again.
            Some(_) => {
                session.doubt.cancel();
                None
            }
        }
    }

    /// The memory of a message, as soon as there is some.
    async fn memory_for_message(&self) -> MemoryLease {
        let SharedListener { options, context: ListenerContext { memory, clock, .. }, .. } = &*self.0;
        let mut lease = memory.passing(0);
        while !lease.try_resize(options.limits.max_message_bytes) {
            lease.note_refusal(clock.now().elapsed);
            sleep(MEMORY_RETRY).await;
        }
        lease
    }
}

/// The messages that are worked on, by their numbers in the stream.
#[derive(Debug, Default)]
struct InFlight(Mutex<HashSet<u64>>);

/// A message is worked on until this is dropped.
#[derive(Debug)]
struct Claim<'a> {
    in_flight: &'a InFlight,
    sequence: u64,
}

impl InFlight {
    /// `None`: the message is worked on already. Then the answer to its earlier delivery counts.
    fn claim(&self, sequence: u64) -> Option<Claim<'_>> {
        // Not `then_some`: a claim that is made and not used would be dropped while the numbers are locked.
        self.numbers().insert(sequence).then(|| Claim { in_flight: self, sequence })
    }

    fn numbers(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.in_flight.numbers().remove(&self.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_delivered_again_while_it_is_worked_on_is_left_alone() {
        let in_flight = InFlight::default();
        let claim = in_flight.claim(7);
        assert!(claim.is_some());
        for _ in 0..2 {
            assert!(in_flight.claim(7).is_none());
        }
        assert!(in_flight.claim(8).is_some());
        drop(claim);
        assert!(in_flight.claim(7).is_some());
    }
}
