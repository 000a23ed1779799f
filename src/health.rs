//! Whether the daemon makes progress: a process that receives and writes nothing is not healthy, however busy it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use tributary_memory::MemoryBudget;
use tributary_options::ByteSize;
use tributary_pipeline::accounting::{Accounting, ListenerCounters, SharedStoreError, SinkTotals};
use tributary_sink::UploadTotals;
use tributary_sink::{DestinationState, RemoteState};
use tributary_system::wall_clock;

/// How often progress is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The checks behind `/livez`, `/readyz` and the watchdog, and the last known progress of each sink.
#[derive(Debug)]
pub struct Health {
    accounting: Accounting,
    memory: Arc<MemoryBudget>,
    /// Cancelled when the daemon stops.
    stop: CancellationToken,
    /// A sink that has events and finishes none of them for this long is stalled.
    stall_time: Mutex<Duration>,
    sinks: Mutex<Vec<SinkActivity>>,
    reloads: Mutex<Reloads>,
}

/// The configurations that were loaded since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reloads {
    /// Reloads that put a configuration into force.
    pub loaded: u64,
    /// Attempts whose configuration was invalid or could not be used.
    pub rejected: u64,
    /// The last attempt was one of these.
    pub is_last_rejected: bool,
    /// When the running configuration was loaded, in seconds since 1970.
    pub loaded_at: u64,
}

#[derive(Clone, Debug)]
struct SinkActivity {
    name: String,
    /// Events that the sink has written, shed or lost.
    done: u64,
    /// Since when this number has not changed although events are in flight. `None`: none are.
    stalled_since: Option<Instant>,
}

impl Health {
    pub(crate) fn new(
        accounting: Accounting,
        memory: Arc<MemoryBudget>,
        stop: CancellationToken,
        stall_time: Duration,
    ) -> Arc<Self> {
        let stall_time = Mutex::new(stall_time);
        let reloads = Mutex::new(Reloads { loaded_at: now(), ..Reloads::default() });
        Arc::new(Health { accounting, memory, stop, stall_time, sinks: Mutex::default(), reloads })
    }

    /// Checks the sinks periodically, without end.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut ticks = interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            wall_clock::observed();
            self.check();
        }
    }

    /// Sets the time without progress after which a sink is stalled.
    pub(crate) fn set_stall_time(&self, time: Duration) {
        *lock(&self.stall_time) = time;
    }

    /// Counts an attempt to load another configuration.
    pub fn note_reload(&self, is_loaded: bool) {
        let mut reloads = lock(&self.reloads);
        reloads.is_last_rejected = !is_loaded;
        if is_loaded {
            reloads.loaded += 1;
            reloads.loaded_at = now();
        } else {
            reloads.rejected += 1;
        }
    }

    /// The configurations that were loaded since the start.
    pub fn reloads(&self) -> Reloads {
        *lock(&self.reloads)
    }

    /// Checks which sinks have made progress since the last check.
    fn check(&self) {
        let mut sinks = lock(&self.sinks);
        let progress = |sink: SinkTotals| {
            let before = sinks.iter().find(|before| before.name == sink.name);
            let done = done(&sink);
            let has_events = sink.in_flight() > 0;
            let since = before.filter(|before| before.done == done).and_then(|before| before.stalled_since);
            let stalled_since = has_events.then(|| since.unwrap_or_else(Instant::now));
            SinkActivity { name: sink.name, done, stalled_since }
        };
        *sinks = self.accounting.totals().sinks.into_iter().map(progress).collect();
    }

    /// The reason why the daemon hangs, if it does: a sink has events, has finished none of them for too long, and does not
    /// report that it cannot write.
    pub fn hangs(&self) -> Option<String> {
        self.check();
        let limit = *lock(&self.stall_time);
        let sinks = lock(&self.sinks);
        stalled(&self.accounting.totals().sinks, &sinks, limit)
    }

    /// Why the daemon should not receive traffic now. `None`: it is ready.
    pub fn not_ready(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("the daemon is stopping".to_owned());
        }
        if self.memory.is_full() {
            return Some("memory is at its limit (limits.memory_bytes)".to_owned());
        }
        let remotes = self.accounting.remotes();
        let state = |name: &str| remotes.iter().find(|(of, ..)| of == name).map(|(_, state, _)| state);
        let sinks = self.accounting.totals().sinks;
        let down: Vec<String> = sinks.iter().filter_map(|sink| not_up(sink, state(&sink.name))).collect();
        let down = (!down.is_empty()).then(|| down.join("\n"));
        let unstarted = || remotes.iter().find(|(_, state, _)| state.cannot_start.is_some());
        let cannot_start =
            || unstarted().map(|(name, state, _)| format!("sink {name} cannot start, and its listeners wait: {state}"));
        let blocked = || {
            let blocked = remotes.iter().find(|(_, state, _)| state.is_not_ready());
            blocked.map(|(name, state, _)| format!("sink {name} cannot send: {state}"))
        };
        let full = || {
            let full = remotes
                .iter()
                .find(|(_, state, _)| state.full.is_some() && state.destination != DestinationState::Ready);
            full.map(|(name, state, _)| format!("sink {name} cannot write, and its listeners wait: {state}"))
        };
        let store = || {
            let faults = self.store_faults();
            let blocked = faults.into_iter().find(|(_, fault)| fault.is_blocked);
            blocked.map(|(name, fault)| format!("listener {name} cannot use what it shares: {}", fault.why))
        };
        let streams = self.accounting.listeners();
        let away = || {
            let fault =
                |listener: &Arc<ListenerCounters>| Some((listener.name().to_owned(), listener.stream().fault()?));
            let (name, why) = streams.iter().find_map(fault)?;
            Some(format!("listener {name} cannot receive: {why}"))
        };
        down.or_else(cannot_start).or_else(blocked).or_else(full).or_else(store).or_else(away).or_else(|| self.hangs())
    }

    /// The listeners that cannot use what they share with other daemons, by their names.
    fn store_faults(&self) -> Vec<(String, SharedStoreError)> {
        let listeners = self.accounting.listeners();
        listeners.iter().filter_map(|counters| Some((counters.name().to_owned(), counters.store_fault()?))).collect()
    }

    /// Notes for the operator of a daemon that is ready: the destinations that are away or refuse while spools have
    /// space, and the object stores that do not take files.
    pub fn notes(&self) -> Vec<String> {
        let remotes = self.accounting.remotes();
        let spooled = remotes.iter().filter(|(_, state, _)| state.is_spooled);
        let away = spooled.filter_map(|(name, state, _)| match state.destination {
            DestinationState::Ready => None,
            DestinationState::Away => Some(format!("sink {name}: its destination is away: {state}")),
            DestinationState::Refusing => Some(format!("sink {name}: its destination refuses what is sent: {state}")),
        });
        let short =
            remotes.iter().filter(|(_, state, _)| state.full.is_some() && state.destination == DestinationState::Ready);
        let short = short.map(|(name, state, _)| format!("sink {name}: its spool takes no requests: {state}"));
        let uploads = self.accounting.files().into_iter().filter_map(|(name, files)| Some((name, files.uploads?)));
        let behind = uploads.filter_map(|(name, UploadTotals { waiting, waiting_bytes, fault, .. })| {
            let size = ByteSize(waiting_bytes);
            Some(format!("sink {name}: {waiting} files ({size}) wait to be uploaded; last error: {}", fault?))
        });
        let stores = self.store_faults().into_iter();
        let stores = stores.map(|(name, fault)| format!("listener {name}: what it shares is away: {}", fault.why));
        away.chain(short).chain(behind).chain(stores).collect()
    }
}

/// Why a sink cannot write, if it cannot: each path or address, with the reason.
fn not_up(sink: &SinkTotals, remote: Option<&RemoteState>) -> Option<String> {
    let name = &sink.name;
    match (&sink.fault, remote) {
        (Some(fault), _) if sink.is_dead => Some(format!("sink {name} has failed and is not started again: {fault}")),
        (None, _) if sink.is_dead => Some(format!("sink {name} has failed and is not started again")),
        (_, Some(state)) if sink.is_retrying => {
            Some(format!("sink {name} cannot write, and its listeners wait: {state}"))
        }
        (Some(fault), _) => Some(format!("sink {name}: {fault}")),
        (None, _) if sink.is_retrying => Some(format!("sink {name} cannot write; buffering and retrying")),
        (None, _) => sink.is_shedding.then(|| format!("sink {name} is full and sheds events")),
    }
}

/// The reason for [`Health::hangs`]. A reload may have changed the sinks since `progress` was taken.
fn stalled(sinks: &[SinkTotals], progress: &[SinkActivity], limit: Duration) -> Option<String> {
    sinks.iter().find_map(|sink| {
        let progress = progress.iter().find(|progress| progress.name == sink.name)?;
        let time = progress.stalled_since?.elapsed();
        let (name, events, seconds) = (&sink.name, sink.in_flight(), time.as_secs());
        let is_stalled = sink.fault.is_none() && !sink.is_retrying && time >= limit;
        is_stalled.then(|| format!("sink {name} has {events} events and has finished none for {seconds} s"))
    })
}

/// Seconds since 1970.
fn now() -> u64 {
    wall_clock::now().0 / 1_000_000_000
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done(sink: &SinkTotals) -> u64 {
    sink.written + sink.shed + sink.failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_pipeline::accounting::SinkCounters;

    #[test]
    fn a_stalled_sink_is_found_by_its_name_after_a_reload_has_changed_the_order() {
        let sinks = ["a", "b"].map(|name| SinkCounters::new(name.into()).totals());
        let progress = |name: &str, stalled_since| SinkActivity { name: name.to_owned(), done: 0, stalled_since };
        let progress =
            [progress("b", Some(Instant::now())), progress("removed", Some(Instant::now())), progress("a", None)];
        let why = stalled(&sinks, &progress, Duration::ZERO).unwrap();
        assert!(why.starts_with("sink b has 0 events"), "{why}");
        assert_eq!(stalled(&sinks[..1], &progress, Duration::ZERO), None);
    }
}
