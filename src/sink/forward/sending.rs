//! The tasks of a forwarder: requests are sent several at a time, and the store is kept tidy.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::give_up::FailedAttempts;
use super::{AttemptOutcome, Destination, EncodedRequest, ForwarderState, Pace, Settled, SharedForwarder};
use tributary_sink::DestinationState;

/// How often the store is tidied up.
const TICK: Duration = Duration::from_secs(1);

/// The pause after an attempt that failed.
pub(super) struct Pause<'a> {
    pub(super) time: Duration,
    /// A pause of the same request was ended because the destination took another one. If this one fails nevertheless, it is not
    /// because the destination was away.
    pub(super) was_ended: &'a mut bool,
}

/// Sends requests and keeps the store tidy until the task is aborted.
pub(super) async fn run<D: Destination>(shared: Arc<SharedForwarder>, pace: Pace, destination: D) {
    let sending = async {
        prepare(&shared, &pace, &destination).await;
        send_all(&shared, &pace, Arc::new(destination)).await;
    };
    tokio::select! { () = sending => {}, () = tick(&shared) => {} }
}

/// Does the periodic work.
async fn tick(shared: &SharedForwarder) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut state = shared.state();
        if let Err(error) = state.store.tidy() {
            state.fault = Some(error.to_string());
        }
        let retried = append_retried(&mut state);
        shared.publish(&state);
        drop(state);
        shared.note_retried(retried);
        shared.status.log();
    }
}

/// Appends the refused requests that an operator wants to be sent again, as far as the disk takes them. Returns their number, and that of
/// their events.
fn append_retried(state: &mut ForwarderState) -> io::Result<(u64, u64)> {
    let (mut requests, mut events) = (0, 0);
    while let Some(request) = state.store.take_retried()? {
        let payload = Bytes::copy_from_slice(&request.payload);
        let is_appended = state.store.append_again(payload, request.events()).is_ok();
        if is_appended {
            requests += 1;
            events += u64::from(request.events());
            state.progress.resumed += u64::from(request.events());
        }
        state.progress.waiting = state.store.waiting();
        state.store.end_retried(&request, is_appended)?;
        if !is_appended {
            break;
        }
    }
    Ok((requests, events))
}

/// Sends requests.
async fn send_all<D: Destination>(shared: &Arc<SharedForwarder>, pace: &Pace, destination: Arc<D>) {
    let mut in_flight = JoinSet::new();
    loop {
        // When all requests on their way are stuck, one more shows whether the destination takes others.
        let is_stuck = in_flight.len() == pace.max_in_flight && shared.deliveries.stuck() == in_flight.len();
        let most = pace.max_in_flight + usize::from(is_stuck);
        while in_flight.len() < most
            && let Some((number, request)) = shared.take()
        {
            in_flight.spawn(deliver(shared.clone(), pace.clone(), destination.clone(), number, request));
            shared.state().in_flight.0 = in_flight.len();
        }
        tokio::select! {
            Some(settled) = in_flight.join_next() => {
                shared.state().in_flight.0 = in_flight.len();
                // A delivery that panics leaves its request unsettled; it is sent again after the next start.
                if let Ok(settled) = settled {
                    shared.settle(settled);
                }
            }
            () = shared.appended.notified() => {}
            () = shared.deliveries.noticed.notified() => {}
            // After a fault of the store.
            () = sleep(TICK) => {}
        }
    }
}

/// Waits until the destination is ready.
async fn prepare(shared: &SharedForwarder, pace: &Pace, destination: &impl Destination) {
    let (mut pauses, mut was_ended) = (pace.retry.pauses(), false);
    loop {
        let answer = timeout(pace.request_timeout, destination.prepare()).await;
        let (state, why, time) = match answer.unwrap_or_else(|_| pace.late()) {
            AttemptOutcome::Away(why, asked) => (DestinationState::Away, why, pauses.away(asked)),
            AttemptOutcome::Refusing(why) => (DestinationState::Refusing, why, pauses.refusing()),
            _ => return shared.note_prepared(),
        };
        shared.wait_after(state, why, Pause { time, was_ended: &mut was_ended }).await;
    }
}

/// Sends one request, in parts if it is too large, until each part is accepted or refused.
async fn deliver<D: Destination>(
    shared: Arc<SharedForwarder>,
    pace: Pace,
    destination: Arc<D>,
    number: u64,
    request: EncodedRequest,
) -> Settled {
    let mut settled = Settled { number, ..Settled::default() };
    let mut parts = vec![request];
    while let Some(part) = parts.pop() {
        let mut is_first_attempt = number > shared.last_resumed;
        let (mut pauses, mut was_ended) = (pace.retry.pauses(), false);
        let mut failed = FailedAttempts::new(&shared.deliveries, pace.give_up);
        loop {
            let began = Instant::now();
            let answer = timeout(pace.request_timeout, destination.send(&part)).await;
            shared.status.attempted(began.elapsed());
            let is_first = std::mem::take(&mut is_first_attempt);
            let (why, is_too_large) = match failed.judge(answer.unwrap_or_else(|_| pace.late())) {
                AttemptOutcome::Accepted => {
                    settled.written += u64::from(part.events);
                    break;
                }
                AttemptOutcome::Duplicate => {
                    settled.written += u64::from(part.events);
                    let duplicates = if is_first { &mut settled.duplicates } else { &mut settled.uncertain_duplicates };
                    *duplicates += u64::from(part.events);
                    break;
                }
                AttemptOutcome::Partial(rejected, why) => {
                    let rejected = rejected.min(part.events.into());
                    settled.failed += rejected;
                    settled.written += u64::from(part.events) - rejected;
                    shared.state().refusals.extend(why);
                    break;
                }
                AttemptOutcome::Refusing(why) => {
                    let pause = Pause { time: pauses.refusing(), was_ended: &mut was_ended };
                    shared.wait_after(DestinationState::Refusing, why, pause).await;
                    continue;
                }
                AttemptOutcome::Away(why, asked) => {
                    let pause = Pause { time: pauses.away(asked), was_ended: &mut was_ended };
                    shared.wait_after(DestinationState::Away, why, pause).await;
                    continue;
                }
                AttemptOutcome::TooLarge(why) => (why, true),
                AttemptOutcome::Bad(why) => (why, false),
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
