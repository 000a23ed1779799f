//! Whether the daemon makes progress: a process that takes in and gives nothing out is not well, however busy it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::memory::MemoryBudget;
use crate::pipeline::accounting::{Accounting, SinkTotals};

/// How often progress is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What is looked at, and what was seen of each sink's progress.
#[derive(Debug)]
pub struct Health {
    accounting: Accounting,
    memory: Arc<MemoryBudget>,
    /// Cancelled when the daemon stops.
    stop: CancellationToken,
    /// Events that a sink has for so long without taking any are no progress.
    stall_time: Mutex<Duration>,
    sinks: Mutex<Vec<Seen>>,
}

#[derive(Clone, Debug)]
struct Seen {
    name: String,
    /// Events that the sink is done with, one way or another.
    done: u64,
    /// Since when nothing has been added to them although there are more; None: there are none.
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
        Arc::new(Health { accounting, memory, stop, stall_time, sinks: Mutex::default() })
    }

    /// Looks from time to time, for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            self.look();
        }
    }

    /// From now on this much time without progress is too much.
    pub(crate) fn set_stall_time(&self, time: Duration) {
        *lock(&self.stall_time) = time;
    }

    /// Looks whether the sinks have moved since the last time.
    fn look(&self) {
        let mut sinks = lock(&self.sinks);
        let seen = |sink: SinkTotals| {
            let before = sinks.iter().find(|seen| seen.name == sink.name);
            let done = done(&sink);
            let is_owing = sink.in_flight() > 0;
            let since = before.filter(|before| before.done == done).and_then(|before| before.stalled_since);
            let stalled_since = is_owing.then(|| since.unwrap_or_else(Instant::now));
            Seen { name: sink.name, done, stalled_since }
        };
        *sinks = self.accounting.totals().sinks.into_iter().map(seen).collect();
    }

    /// A sink that has events, has taken none for too long, and has not said that it cannot: something hangs.
    pub fn hangs(&self) -> Option<String> {
        self.look();
        let limit = *lock(&self.stall_time);
        let sinks = lock(&self.sinks);
        self.accounting.totals().sinks.iter().zip(sinks.iter()).find_map(|(sink, seen)| {
            let time = seen.stalled_since?.elapsed();
            let (name, events, seconds) = (&sink.name, sink.in_flight(), time.as_secs());
            let is_stuck = !sink.holding && time >= limit;
            is_stuck.then(|| format!("sink {name} has {events} events and has taken none for {seconds} s"))
        })
    }

    /// Why the daemon should not be sent anything just now; None: it should.
    pub fn not_ready(&self) -> Option<String> {
        if self.stop.is_cancelled() {
            return Some("the daemon is stopping".to_owned());
        }
        if self.memory.is_full() {
            return Some("memory is at its limit (limits.memory_bytes)".to_owned());
        }
        let down = self.accounting.totals().sinks.iter().find_map(|sink| match sink {
            sink if sink.dead => Some(format!("sink {} has failed for good", sink.name)),
            sink if sink.holding => Some(format!("sink {} cannot write", sink.name)),
            _ => None,
        });
        down.or_else(|| self.hangs())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn done(sink: &SinkTotals) -> u64 {
    sink.written + sink.shed + sink.failed
}
