//! Requests on their way to a destination over the network: they wait in memory or in a [spool](crate::spool), are sent several
//! at a time, and are retried until the destination has answered.
//!
//! The sink that uses it encodes events to requests and knows the destination's protocol ([`Destination`]). A
//! [`Forwarder`] keeps the order in which requests are started, but with several in flight the destination can receive
//! them in another order.

mod backoff;
pub(crate) mod client;
mod compression;
mod outbox;
mod spool_options;
mod store;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::{Progress, RemoteStatus};
use crate::event::Origin;
use backoff::Backoff;
pub use compression::Compression;
pub(crate) use outbox::Outbox;
pub use spool_options::SpoolOptions;
pub(crate) use store::Store;
pub use store::WhenFull;

/// How often the spool is tidied up.
const TICK: Duration = Duration::from_secs(1);
/// Of more requests than these, the first ones' origins are not kept.
const MAX_ORIGINS: usize = 64 * 1024;
/// The longest pause that a destination can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// One request, encoded as it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// The same for each attempt, also after a restart from a spool, and different for every other request. A destination can
    /// recognize repeats by it.
    pub(crate) id: String,
    /// The number of its events.
    pub(crate) events: u32,
    /// The body.
    pub(crate) payload: Bytes,
}

/// The protocol of a destination.
pub(crate) trait Destination: Send + Sync + 'static {
    /// Sends a request once. Dropping the future gives the attempt up.
    fn send(&self, request: &Request) -> impl Future<Output = Answer> + Send;

    /// Divides a request that is too large. `None`: it has one event only.
    fn split(&self, request: &Request) -> Option<[Request; 2]>;
}

/// What became of one attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The destination has the events.
    Accepted,
    /// The destination has the events except so many, which it does not want again, and why. None: that is known.
    Partial(u64, Option<String>),
    /// Another attempt can succeed, and the pause that the destination asks for.
    Later(String, Option<Duration>),
    /// The request is too large, smaller ones can succeed.
    TooLarge(String),
    /// No other attempt can succeed, in the destination's words.
    Refused(String),
}

/// How requests are sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// Requests that are sent at the same time.
    pub(crate) max_in_flight: usize,
    /// How long one attempt may take.
    pub(crate) request_timeout: Duration,
    /// The pause after the first failed attempt, and the longest one.
    pub(crate) retry: RangeInclusive<Duration>,
}

/// Sends the requests of one sink.
#[derive(Debug)]
pub(crate) struct Forwarder {
    shared: Arc<Shared>,
    sending: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something was appended.
    appended: Notify,
    /// A request was settled, or an attempt has failed.
    changed: Notify,
    status: Arc<RemoteStatus>,
}

#[derive(Debug)]
struct State {
    store: Store,
    progress: Progress,
    /// The last failed attempt, if no request has been settled since.
    fault: Option<String>,
    /// Each is a WARN of its own; taken by the sink.
    refusals: Vec<String>,
    /// Where the events of requests in the store come from, by the requests' numbers; as far as that is known.
    origins: BTreeMap<u64, Arc<Origin>>,
    /// Events that failed, of a known origin; taken by the sink.
    lost: Vec<(Arc<Origin>, u64)>,
}

/// What became of a request.
#[derive(Clone, Copy, Default)]
struct Settled {
    number: u64,
    written: u64,
    failed: u64,
}

impl Forwarder {
    /// Sends what `store` has and gets, as a task on the current runtime, until it is dropped.
    pub(crate) fn start(store: Store, pace: Pace, destination: impl Destination) -> Forwarder {
        let (waiting, shed) = (store.waiting(), store.dropped());
        let progress = Progress { resumed: waiting + shed, shed, waiting, ..Progress::default() };
        let state =
            State { store, progress, fault: None, refusals: Vec::new(), origins: BTreeMap::new(), lost: Vec::new() };
        let status = Arc::default();
        let shared = Shared { state: Mutex::new(state), appended: Notify::new(), changed: Notify::new(), status };
        shared.publish(&shared.state());
        let shared = Arc::new(shared);
        let sending = tokio::spawn(send_all(shared.clone(), pace, Arc::new(destination))).abort_handle();
        Forwarder { shared, sending }
    }

    /// Appends a request. If `origin` is that of all its events, [`Forwarder::take_lost`] names it when they fail.
    ///
    /// # Errors
    /// The store has no room, or the system's error. Nothing was appended.
    pub(crate) fn append(&self, payload: Bytes, events: u32, origin: Option<Arc<Origin>>) -> io::Result<()> {
        let mut state = self.shared.state();
        let State { store, progress, origins, .. } = &mut *state;
        let before = store.last_number();
        let appended = store.append(payload, events);
        let full = appended.as_ref().err().filter(|error| error.kind() == io::ErrorKind::StorageFull);
        let full = full.map(ToString::to_string);
        self.shared.status.update(|status| status.full = full);
        progress.shed += appended?;
        progress.waiting = store.waiting();
        if let Some(origin) = origin
            && store.last_number() > before
        {
            // Requests that a full spool has dropped are never settled.
            if origins.len() >= MAX_ORIGINS {
                origins.pop_first();
            }
            origins.insert(store.last_number(), origin);
        }
        self.shared.publish(&state);
        drop(state);
        self.shared.appended.notify_one();
        Ok(())
    }

    /// Forces what was appended to the disk, if it is kept there.
    ///
    /// # Errors
    /// The system's. What was appended since the last call is not confirmed.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.shared.state().store.sync()
    }

    /// The events until now.
    pub(crate) fn progress(&self) -> Progress {
        self.shared.state().progress
    }

    /// What it does, for others.
    pub(crate) fn status(&self) -> Arc<RemoteStatus> {
        self.shared.status.clone()
    }

    /// Why the last attempt failed, if nothing was settled since.
    pub(crate) fn fault(&self) -> Option<String> {
        self.shared.state().fault.clone()
    }

    /// The events that have failed since the last call, where their origin is known.
    pub(crate) fn take_lost(&self) -> Vec<(Arc<Origin>, u64)> {
        std::mem::take(&mut self.shared.state().lost)
    }

    /// What destinations have refused since the last call.
    pub(crate) fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state().refusals)
    }

    /// Waits until everything is settled, at most so long; returns whether it is.
    pub(crate) async fn settled_within(&self, longest: Duration) -> bool {
        let settled = async {
            loop {
                let changed = self.shared.changed.notified();
                if self.shared.state().store.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        timeout(longest, settled).await.is_ok()
    }

    /// Stops sending, and saves what was acknowledged.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.sending.abort();
        self.shared.state().store.close()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.sending.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the state to others.
    fn publish(&self, state: &State) {
        let (requests, bytes) = state.store.size();
        let (events, oldest) = (state.store.waiting(), state.store.oldest());
        let (retries, fault) = (state.progress.retries, &state.fault);
        self.status.update(|status| {
            status.is_spooled = matches!(state.store, Store::Spool(..));
            (status.requests, status.events, status.bytes) = (requests, events, bytes);
            (status.oldest, status.retries) = (oldest, retries);
            status.fault.clone_from(fault);
        });
    }

    /// The next request. Damaged ones are counted and passed over.
    fn take(&self) -> Option<(u64, Request)> {
        let mut state = self.state();
        let taken = Shared::take_from(&mut state);
        self.publish(&state);
        taken
    }

    fn take_from(state: &mut State) -> Option<(u64, Request)> {
        let State { store, progress, fault, refusals, .. } = state;
        loop {
            let taken = store.take();
            progress.waiting = store.waiting();
            match taken {
                Ok(Some(store::Item::Request(number, request))) => return Some((number, request)),
                Ok(Some(store::Item::Damaged(events, why))) => {
                    progress.failed += events;
                    refusals.push(why);
                }
                Ok(None) => return None,
                Err(error) => {
                    *fault = Some(error.to_string());
                    return None;
                }
            }
        }
    }

    fn settle(&self, settled: Settled) {
        let mut state = self.state();
        state.store.settle(settled.number);
        state.progress.waiting = state.store.waiting();
        state.progress.written += settled.written;
        state.progress.failed += settled.failed;
        let origin = state.origins.remove(&settled.number);
        if settled.failed > 0 {
            state.lost.extend(origin.map(|origin| (origin, settled.failed)));
        }
        state.fault = None;
        self.publish(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    fn note_fault(&self, why: String) {
        let mut state = self.state();
        state.progress.retries += 1;
        state.fault = Some(why);
        self.publish(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    fn note_refusal(&self, request: &Request, why: &str) {
        self.status.update(|status| status.refused += 1);
        let mut state = self.state();
        let kept = state.store.keep_refused(request, why);
        let Request { id, events, .. } = request;
        let kept = kept.unwrap_or_else(|error| format!("; it cannot be kept: {error}"));
        state.refusals.push(format!("request {id} with {events} events was refused: {why}{kept}"));
    }
}

/// Sends requests until the task is aborted.
async fn send_all<D: Destination>(shared: Arc<Shared>, pace: Pace, destination: Arc<D>) {
    let mut in_flight = JoinSet::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        while in_flight.len() < pace.max_in_flight
            && let Some((number, request)) = shared.take()
        {
            in_flight.spawn(deliver(shared.clone(), pace.clone(), destination.clone(), number, request));
        }
        tokio::select! {
            Some(settled) = in_flight.join_next() => {
                // A delivery that panics leaves its request unsettled; it is sent again after the next start.
                if let Ok(settled) = settled {
                    shared.settle(settled);
                }
            }
            () = shared.appended.notified() => {}
            _ = ticks.tick() => {
                let mut state = shared.state();
                if let Err(error) = state.store.tidy() {
                    state.fault = Some(error.to_string());
                }
                shared.publish(&state);
            }
        }
    }
}

/// Sends one request, in parts if it is too large, until each part is accepted or refused.
async fn deliver<D: Destination>(
    shared: Arc<Shared>,
    pace: Pace,
    destination: Arc<D>,
    number: u64,
    request: Request,
) -> Settled {
    let mut settled = Settled { number, ..Settled::default() };
    let mut parts = vec![request];
    while let Some(part) = parts.pop() {
        let mut backoff = Backoff::new(pace.retry.clone());
        loop {
            let began = Instant::now();
            let answer = timeout(pace.request_timeout, destination.send(&part)).await;
            shared.status.attempted(began.elapsed());
            let late = || Answer::Later(format!("no response within {:?}", pace.request_timeout), None);
            let (why, is_too_large) = match answer.unwrap_or_else(|_| late()) {
                Answer::Accepted => {
                    settled.written += u64::from(part.events);
                    break;
                }
                Answer::Partial(rejected, why) => {
                    let rejected = rejected.min(part.events.into());
                    settled.failed += rejected;
                    settled.written += u64::from(part.events) - rejected;
                    shared.state().refusals.extend(why);
                    break;
                }
                Answer::Later(why, after) => {
                    shared.note_fault(why);
                    let pause = backoff.next().max(after.unwrap_or_default().min(LONGEST_PAUSE));
                    sleep(pause).await;
                    continue;
                }
                Answer::TooLarge(why) => (why, true),
                Answer::Refused(why) => (why, false),
            };
            match Some(&part).filter(|_| is_too_large).and_then(|part| destination.split(part)) {
                // The first part is sent first.
                Some([first, second]) => parts.extend([second, first]),
                None => {
                    shared.note_refusal(&part, &why);
                    settled.failed += u64::from(part.events);
                }
            }
            break;
        }
    }
    settled
}
