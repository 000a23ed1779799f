//! Requests on their way to a destination over the network: they wait in memory or in a [spool](tributary_spool), are sent several
//! at a time, and are retried until the destination has answered.
//!
//! The sink that uses it encodes events to requests and knows the destination's protocol ([`Destination`]). A
//! `Forwarder` keeps the order in which requests are started, but with several in flight the destination can receive
//! them in another order.
#![forbid(unsafe_code)]

pub mod answer;
pub mod backoff;
pub mod client;
mod compression;
mod connector;
mod contents;
mod give_up;
mod lines;
mod outbox;
pub mod probe;
pub(crate) mod proxy;
mod sending;
mod sink;
mod spool_options;
mod store;
#[cfg(test)]
mod tests;

use std::future::{Future, ready};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

pub use answer::AttemptOutcome;
pub use backoff::RetryOptions;
pub use compression::Compression;
pub use contents::Contents;
use contents::{AllContents, Missed};
use give_up::Deliveries;
pub use give_up::GiveUp;
pub use lines::divide_lines;
use outbox::Outbox;
pub use proxy::Proxy;
pub use sink::{CompleteRequest, RemoteSink, RequestEncoder};
pub use spool_options::SpoolOptions;
use store::Reach;
pub(crate) use store::RequestStore;
pub use store::WhenFull;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{AckLevel, DestinationState, LossCause, RemoteStatus, SinkProgress};
use tributary_spool::Dropped;

/// One request, encoded as it is sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EncodedRequest {
    /// The same for each attempt, also after a restart from a spool, and different for every other request. A destination can
    /// recognize repeats by it.
    pub id: String,
    /// The number of its events.
    pub events: u32,
    /// The body.
    pub payload: Bytes,
}

/// The protocol of a destination.
pub trait Destination: Send + Sync + 'static {
    /// Called before the first request, and again until it is accepted: so that a destination which takes nothing is known
    /// before there are events.
    fn prepare(&self) -> impl Future<Output = AttemptOutcome> + Send {
        ready(AttemptOutcome::Accepted)
    }

    /// Sends a request once. Dropping the future gives the attempt up.
    fn send(&self, request: &EncodedRequest) -> impl Future<Output = AttemptOutcome> + Send;

    /// Divides a request that is too large. `None`: it has one event only.
    fn split(&self, request: &EncodedRequest) -> Option<[EncodedRequest; 2]>;
}

/// How requests are sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Requests that are sent at the same time.
    pub max_in_flight: usize,
    /// How long one attempt may take.
    pub request_timeout: Duration,
    /// The pauses between attempts.
    pub retry: RetryOptions,
    /// When a request is given up that the destination does not take, although it takes others.
    pub give_up: GiveUp,
}

impl Pace {
    /// The answer of a destination that has not answered in time.
    fn late(&self) -> AttemptOutcome {
        AttemptOutcome::Away(format!("no response within {:?}", self.request_timeout), None)
    }
}

/// Sends the requests of one sink.
#[derive(Debug)]
pub(crate) struct Forwarder {
    shared: Arc<SharedForwarder>,
    sending: AbortHandle,
}

#[derive(Debug)]
struct SharedForwarder {
    state: Mutex<ForwarderState>,
    /// Something was appended.
    appended: Notify,
    /// A request was settled, or an attempt has failed.
    changed: Notify,
    /// The same, for the sink: what the store has not taken may find space now.
    woken: Notify,
    status: Arc<RemoteStatus>,
    /// Reports that refused requests cannot be sent again.
    retrying: LogThrottle,
    /// The last request that was in the store at the start: an earlier process or sink may have sent those.
    last_resumed: u64,
    deliveries: Deliveries,
}

#[derive(Debug)]
struct ForwarderState {
    store: RequestStore,
    progress: SinkProgress,
    /// The last failed attempt, if no request has been settled since.
    fault: Option<String>,
    /// Each is a WARN of its own; taken by the sink.
    refusals: Vec<String>,
    contents: AllContents,
    /// The last request was dropped because the store was full.
    is_shedding: bool,
    /// The destination was ready once.
    is_prepared: bool,
    /// Requests that are being sent, and how many may be.
    in_flight: (usize, usize),
    /// Attempts that have failed since one has succeeded.
    failures: usize,
    /// What is not settled is not sent any more.
    is_closed: bool,
}

impl ForwarderState {
    fn reach(&self) -> Reach {
        let (sent, most) = self.in_flight;
        match self.failures {
            0 => Reach::Good,
            failures if !self.is_prepared || (sent >= most && failures >= most) => Reach::Away,
            _ => Reach::Doubtful,
        }
    }

    /// The store has dropped requests.
    fn shed(&mut self, dropped: &[Dropped]) {
        for dropped in dropped {
            self.progress.shed += dropped.events;
            self.contents.gone(dropped.numbers.clone(), LossCause::QueueFull, dropped.events);
        }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Default)]
struct Settled {
    number: u64,
    written: u64,
    failed: u64,
    duplicates: u64,
    uncertain_duplicates: u64,
}

impl Forwarder {
    /// Sends what `store` has and gets, as a task on the current runtime, until it is dropped. Others see in `status` what it
    /// does.
    pub(crate) fn start(
        store: RequestStore,
        pace: Pace,
        destination: impl Destination,
        status: Arc<RemoteStatus>,
    ) -> Forwarder {
        let (waiting, shed) = (store.waiting(), store.dropped());
        let progress = SinkProgress { resumed: waiting + shed, shed, waiting, ..SinkProgress::default() };
        let last_resumed = store.last_number();
        let mut contents = AllContents::default();
        contents.gone(0..0, LossCause::Removed, shed);
        let state = ForwarderState {
            store,
            progress,
            fault: None,
            refusals: Vec::new(),
            contents,
            is_shedding: false,
            is_prepared: false,
            in_flight: (0, pace.max_in_flight),
            failures: 0,
            is_closed: false,
        };
        let (appended, changed, woken) = (Notify::new(), Notify::new(), Notify::new());
        let (retrying, deliveries) = (LogThrottle::new(), Deliveries::default());
        let state = Mutex::new(state);
        let shared = SharedForwarder { state, appended, changed, woken, status, retrying, last_resumed, deliveries };
        shared.publish(&shared.state());
        let shared = Arc::new(shared);
        let sending = tokio::spawn(sending::run(shared.clone(), pace, destination)).abort_handle();
        Forwarder { shared, sending }
    }

    /// Appends a request; returns its number, or `None` when it was dropped. What the store drops of it or for it is in
    /// [`Forwarder::take_missed`].
    ///
    /// # Errors
    /// The store does not take it now. Nothing was appended.
    pub(crate) fn append(&self, payload: Bytes, events: u32, of: &Contents) -> io::Result<Option<u64>> {
        let mut state = self.shared.state();
        let reach = state.reach();
        let appended = state.store.append(payload, events, reach);
        state.shed(appended.as_ref().map_or(&[], |appended| &appended.dropped));
        let ForwarderState { store, progress, contents, is_shedding, .. } = &mut *state;
        let number = match &appended {
            Ok(appended) => {
                *is_shedding = appended.is_dropped && appended.fault.is_none();
                if appended.fault.is_some() {
                    // It stays with the sink.
                } else if appended.is_dropped {
                    progress.shed += u64::from(events);
                    contents.refused(of.clone(), events.into());
                } else {
                    contents.insert(store.last_number(), of.clone());
                }
                (!appended.is_dropped && appended.fault.is_none()).then(|| store.last_number())
            }
            Err(_) => None,
        };
        progress.waiting = store.waiting();
        self.shared.publish(&state);
        drop(state);
        if let Some(fault) = appended?.fault {
            return Err(fault);
        }
        self.shared.appended.notify_one();
        Ok(number)
    }

    /// Writes what is only in memory to the disk, if requests are kept there.
    ///
    /// # Errors
    /// Not all is written. It stays in memory.
    pub(crate) fn write_out(&self) -> io::Result<()> {
        self.kept(RequestStore::write_out)
    }

    /// Forces what was appended to the disk, if it is kept there.
    ///
    /// # Errors
    /// The system's. What was appended since the last call is not confirmed.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.kept(RequestStore::sync)
    }

    /// The same, if a request has been waiting for `longest`, neither synced nor settled.
    ///
    /// # Errors
    /// As for [`Forwarder::sync`].
    pub(crate) fn sync_waiting(&self, longest: Duration) -> io::Result<()> {
        self.kept(|store| store.sync_waiting(longest))
    }

    fn kept(&self, keep: impl FnOnce(&mut RequestStore) -> io::Result<()>) -> io::Result<()> {
        let mut state = self.shared.state();
        let kept = keep(&mut state.store);
        self.shared.publish(&state);
        kept
    }

    /// Whether each of these requests is settled, or is kept on the disk at this level.
    pub(crate) fn has_kept(&self, numbers: Range<u64>, level: AckLevel) -> bool {
        self.shared.state().store.has_kept(numbers, level)
    }

    /// Whether the disk has not taken a request, and is to be tried again.
    pub(crate) fn is_short(&self) -> bool {
        self.shared.state().store.shortage().is_some()
    }

    /// Whether the last attempt has failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.shared.state().failures > 0
    }

    /// Waits until a request was settled or an attempt has failed since the last call.
    pub(crate) async fn woken(&self) {
        self.shared.woken.notified().await;
    }

    /// The events until now.
    pub(crate) fn progress(&self) -> SinkProgress {
        self.shared.state().progress
    }

    /// Why the last attempt failed, if nothing was settled since.
    pub(crate) fn fault(&self) -> Option<String> {
        self.shared.state().fault.clone()
    }

    /// The events that were shed or have failed since the last call. While the store has no space for a report of them,
    /// they stay here.
    pub(crate) fn take_missed(&self) -> Vec<Missed> {
        let mut state = self.shared.state();
        if state.is_shedding { Vec::new() } else { state.contents.take_missed() }
    }

    /// What destinations have refused since the last call.
    pub(crate) fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.state().refusals)
    }

    /// Waits until everything is settled, at most `longest`; returns whether it is.
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

    /// The same, but stuck requests of a store in memory are not waited for: the destination may take others.
    pub(crate) async fn settled_but_stuck_within(&self, longest: Duration) -> bool {
        let settled = async {
            loop {
                let changed = self.shared.changed.notified();
                let stuck = self.shared.deliveries.stuck() as u64;
                if self.shared.state().store.size().0 <= stuck {
                    return;
                }
                changed.await;
            }
        };
        timeout(longest, settled).await.is_ok()
    }

    /// Whether everything is settled.
    pub(crate) fn is_settled(&self) -> bool {
        self.shared.state().store.is_empty()
    }

    /// Stops sending, and saves what waits and what was acknowledged. Requests that the disk does not take are dropped as
    /// configured, or have failed.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn close(&self) -> io::Result<()> {
        self.sending.abort();
        let mut state = self.shared.state();
        if state.is_closed {
            return Ok(());
        }
        state.is_closed = true;
        let closed = state.store.close();
        state.shed(&closed.dropped);
        state.progress.failed += closed.lost;
        state.progress.waiting = closed.waiting;
        if closed.lost > 0 {
            let why = closed.fault.as_ref().map(ToString::to_string).unwrap_or_default();
            let refusal = format!("{} events were not sent, and the disk has not taken them: {why}", closed.lost);
            state.refusals.push(refusal);
        }
        closed.fault.map_or(Ok(()), Err)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.sending.abort();
    }
}

impl SharedForwarder {
    fn state(&self) -> MutexGuard<'_, ForwarderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the state to others.
    fn publish(&self, state: &ForwarderState) {
        let (requests, bytes) = state.store.size();
        let (events, oldest) = (state.store.waiting(), state.store.oldest());
        let retries = state.progress.retries;
        self.status.update(|status| {
            status.is_spooled = matches!(state.store, RequestStore::Spool(..));
            (status.requests, status.events, status.bytes) = (requests, events, bytes);
            (status.oldest, status.retries) = (oldest, retries);
            status.full = state.store.shortage().map(str::to_owned);
            // That of an attempt stays until the destination is ready again.
            if status.destination == DestinationState::Ready {
                status.fault.clone_from(&state.fault);
            }
        });
    }

    /// The next request. Damaged ones are counted and passed over.
    fn take(&self) -> Option<(u64, EncodedRequest)> {
        let mut state = self.state();
        let taken = SharedForwarder::take_from(&mut state);
        self.publish(&state);
        taken
    }

    fn take_from(state: &mut ForwarderState) -> Option<(u64, EncodedRequest)> {
        let ForwarderState { store, progress, fault, refusals, contents, .. } = state;
        loop {
            let taken = store.take();
            progress.waiting = store.waiting();
            match taken {
                Ok(Some(store::StoreItem::Request(number, request))) => return Some((number, request)),
                Ok(Some(store::StoreItem::Settled(events))) => progress.written += events,
                Ok(Some(store::StoreItem::Damaged(damaged))) => {
                    progress.failed += damaged.events;
                    contents.gone(damaged.numbers, LossCause::Failed, damaged.events);
                    refusals.push(damaged.why);
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
        if state.is_closed {
            return;
        }
        state.store.settle(settled.number);
        // There is space again for a report of what was shed.
        state.is_shedding = false;
        state.progress.waiting = state.store.waiting();
        state.progress.written += settled.written;
        state.progress.failed += settled.failed;
        state.progress.duplicates += settled.duplicates;
        state.progress.uncertain_duplicates += settled.uncertain_duplicates;
        state.contents.settled(settled.number, settled.failed);
        (state.fault, state.failures) = (None, 0);
        self.publish(&state);
        drop(state);
        self.status.note_ready();
        self.note_change();
    }

    fn note_change(&self) {
        self.changed.notify_waiters();
        self.woken.notify_one();
    }

    fn note_prepared(&self) {
        let mut state = self.state();
        (state.fault, state.failures, state.is_prepared) = (None, 0, true);
        drop(state);
        self.status.note_ready();
        self.note_change();
    }

    fn note_retried(&self, retried: io::Result<(u64, u64)>) {
        let sink = self.status.sink();
        match retried {
            Ok((0, _)) => {}
            Ok((requests, events)) => {
                tracing::info!(sink, requests, events, "refused requests are sent again");
                self.appended.notify_one();
            }
            Err(error) => {
                if let Some(suppressed) = self.retrying.permit() {
                    tracing::warn!(sink, %error, suppressed, "cannot take refused requests that are to be sent again");
                }
            }
        }
    }

    fn note_outage(&self, destination: DestinationState, why: String, pause: Duration) {
        let mut state = self.state();
        state.progress.retries += 1;
        state.failures += 1;
        state.fault = Some(why.clone());
        // The destination may be leaving. What the disk does not take stays in memory.
        let _ = state.store.write_out();
        self.publish(&state);
        drop(state);
        self.status.note_outage(destination, why, pause);
        self.note_change();
    }

    /// An attempt has failed; waits until the next one.
    async fn wait_after(&self, destination: DestinationState, why: String, pause: sending::Pause<'_>) {
        let back = self.status.back();
        let (back, again) = (back.notified(), self.status.asked_again());
        self.note_outage(destination, why, pause.time);
        tokio::select! {
            () = sleep(pause.time) => {}
            () = again => {}
            () = back, if !*pause.was_ended => *pause.was_ended = true,
        }
    }

    fn note_refusal(&self, request: &EncodedRequest, why: &str) {
        self.status.update(|status| status.refused += 1);
        let mut state = self.state();
        let kept = state.store.keep_refused(request, why);
        let EncodedRequest { id, events, .. } = request;
        let kept = kept.unwrap_or_else(|error| format!("; it cannot be kept: {error}"));
        state.refusals.push(format!("request {id} with {events} events was refused: {why}{kept}"));
    }
}
