//! Sessions as this process knows them: definitions, traces in several parts, what was delivered (section 2.7).
//!
//! They end with the process: who sends on then is told to begin anew, which agents of all dialects understand (rule 8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;

use crate::event::{Origin, Resource, ResourceValue, TraceId, UnixNanos};
use crate::memory::{MemoryBudget, MemoryLease};

use super::Options;
use super::agents::Agent;
use super::delivered::Delivered;
use super::normalize;
use super::symbols::{SymbolLimits, Table};
use super::trace::Trace;
use super::wire::Dialect;

/// What a session is known by. Nothing is shared between two of them (rule 29).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    /// One that an agent opened here (doc and gen1), by its uuid.
    Opened(Box<str>),
    /// One that an agent of gen2 made up.
    Own(Box<str>),
    /// What a host has sent in forms.
    Host(Box<str>),
}

impl Key {
    fn name(&self) -> &str {
        match self {
            Key::Opened(name) | Key::Own(name) | Key::Host(name) => name,
        }
    }
}

/// The sessions of one listener.
#[derive(Debug)]
pub(super) struct Sessions {
    options: Options,
    timeout: Duration,
    budget: Arc<MemoryBudget>,
    live: Mutex<HashMap<Key, Arc<Slot>>>,
    /// Traces whose next part will not come, or comes too late.
    retired: Mutex<Vec<Parked>>,
}

/// A session, and when it was used last.
#[derive(Debug)]
pub(super) struct Slot {
    session: Mutex<Session>,
    /// On the clock of `Now::elapsed`, in microseconds.
    used: AtomicU64,
}

/// What is known of a session.
#[derive(Debug)]
pub(super) struct Session {
    /// Its id as events show it; empty for a host.
    pub(super) name: Box<str>,
    /// The dialect of its latest body whose first bytes showed one (rule 6).
    pub(super) dialect: Option<Dialect>,
    pub(super) table: Table,
    pub(super) agent: Option<Arc<Agent>>,
    /// What the agent said of itself in definitions.
    said: Vec<(String, ResourceValue)>,
    pub(super) resource: Arc<Resource>,
    pub(super) delivered: Delivered,
    /// Traces without an id so far.
    pub(super) unnamed: u64,
    parked: HashMap<TraceId, Parked>,
    /// Bytes of who speaks.
    own_bytes: usize,
    lease: MemoryLease,
}

/// A trace whose next part is awaited.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) trace: Trace,
    /// Where its last part came from, and who spoke.
    pub(super) origin: Arc<Origin>,
    pub(super) resource: Arc<Resource>,
    /// Number and time of that request.
    pub(super) request: u64,
    pub(super) observed: UnixNanos,
    since: Duration,
    bytes: usize,
}

impl Sessions {
    pub(super) fn new(options: Options, timeout: Duration, budget: Arc<MemoryBudget>) -> Self {
        Sessions { options, timeout, budget, live: Mutex::default(), retired: Mutex::default() }
    }

    /// A session that lives; now it is used.
    pub(super) fn find(&self, key: &Key, now: Duration) -> Option<Arc<Slot>> {
        let slot = lock(&self.live).get(key)?.clone();
        if slot.is_over(now, self.timeout) {
            return None;
        }
        slot.touch(now);
        Some(slot)
    }

    /// The same; made if there is none. Answers whether it was.
    pub(super) fn find_or_open(&self, key: Key, agent: Option<Arc<Agent>>, now: Duration) -> (Arc<Slot>, bool) {
        if let Some(slot) = self.find(&key, now) {
            return (slot, false);
        }
        let session = self.session(&key, agent);
        let slot = Arc::new(Slot { session: Mutex::new(session), used: AtomicU64::new(0) });
        slot.touch(now);
        let mut live = lock(&self.live);
        if live.len() >= self.options.max_sessions {
            self.make_room(&mut live, u64::MAX);
        }
        if let Some(over) = live.insert(key, slot.clone()) {
            self.retire_all(&over);
        }
        (slot, true)
    }

    fn session(&self, key: &Key, agent: Option<Arc<Agent>>) -> Session {
        let options = &self.options;
        let limits = SymbolLimits {
            entries: options.max_symbols,
            bytes: bytes(options.max_symbol_bytes),
            text: bytes(options.max_text_bytes),
        };
        let name = if let Key::Host(_) = key { "" } else { key.name() };
        let mut session = Session {
            name: name.into(),
            dialect: None,
            table: Table::new(limits),
            agent,
            said: Vec::new(),
            resource: Arc::default(),
            delivered: Delivered::new(options.max_remembered),
            unnamed: 0,
            parked: HashMap::default(),
            own_bytes: 0,
            lease: self.budget.bare_lease(),
        };
        session.describe();
        session
    }

    /// Some of the sessions that were unused for longest go, if they were unused since this moment: many at once, so that it
    /// is not to be done often.
    fn make_room(&self, live: &mut HashMap<Key, Arc<Slot>>, unused_since: u64) {
        let mut ages: Vec<u64> = live.values().map(|slot| slot.used.load(Ordering::Relaxed)).collect();
        if ages.is_empty() {
            return;
        }
        let going = live.len() / 16;
        let (_, limit, _) = ages.select_nth_unstable(going);
        let limit = unused_since.min(*limit);
        live.retain(|_, slot| {
            let stays = slot.used.load(Ordering::Relaxed) > limit;
            if !stays {
                self.retire_all(slot);
            }
            stays
        });
    }

    /// What a session has open is not awaited any more.
    pub(super) fn retire_all(&self, slot: &Slot) {
        let parked: Vec<_> = slot.lock().parked.drain().map(|(_, parked)| parked).collect();
        lock(&self.retired).extend(parked);
    }

    /// A trace that cannot be parked beside another one of its id.
    pub(super) fn retire(&self, parked: Parked) {
        lock(&self.retired).push(parked);
    }

    /// Retires what has waited long enough, and forgets sessions that are over. `None`: all of them.
    ///
    /// Where the process has next to no memory left, sessions that are quiet go too: their agents are told to begin anew,
    /// and nobody goes without because somebody has filled sessions and left.
    pub(super) fn sweep(&self, now: Option<Duration>) {
        let mut live = lock(&self.live);
        if let Some(now) = now
            && self.budget.is_nearly_used_up()
        {
            self.make_room(&mut live, micros(now.saturating_sub(QUIET)));
        }
        live.retain(|_, slot| {
            let is_over = now.is_none_or(|now| slot.is_over(now, self.timeout));
            if is_over {
                self.retire_all(slot);
            } else if let Some(now) = now {
                let mut session = slot.lock();
                let late = session
                    .parked
                    .extract_if(|_, parked| now.saturating_sub(parked.since) >= self.options.trace_timeout)
                    .map(|(_, parked)| parked);
                lock(&self.retired).extend(late);
            }
            !is_over
        });
    }

    /// The next trace that is not awaited any more.
    pub(super) fn next_retired(&self) -> Option<Parked> {
        lock(&self.retired).pop()
    }
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Session> {
        lock(&self.session)
    }

    fn touch(&self, now: Duration) {
        self.used.store(micros(now), Ordering::Relaxed);
    }

    fn is_over(&self, now: Duration, timeout: Duration) -> bool {
        let unused = micros(now).saturating_sub(self.used.load(Ordering::Relaxed));
        unused >= micros(timeout)
    }
}

impl Session {
    /// Everything that was defined is forgotten (rule 7).
    pub(super) fn reset(&mut self) {
        self.table.reset();
        self.said.clear();
        self.describe();
    }

    /// Whose it is, where that was not known or has changed.
    pub(super) fn belongs_to(&mut self, agent: &Arc<Agent>) {
        if self.agent.as_ref() != Some(agent) {
            self.agent = Some(agent.clone());
            self.describe();
        }
    }

    /// The agent says something of itself. Answers whether there is room for it.
    pub(super) fn say(&mut self, key: String, value: ResourceValue, most_bytes: usize) -> bool {
        let size = |value: &ResourceValue| if let ResourceValue::Text(text) = value { text.len() } else { 8 };
        self.said.retain(|(known, _)| *known != key);
        let bytes: usize = self.said.iter().map(|(key, value)| key.len() + size(value)).sum();
        let has_room = self.said.len() < MOST_SAID && bytes + key.len() + size(&value) <= most_bytes;
        if has_room {
            self.said.push((key, value));
        }
        has_room
    }

    /// Makes the resource anew.
    pub(super) fn describe(&mut self) {
        let name = Some(&*self.name).filter(|name| !name.is_empty());
        self.resource = normalize::resource(self.agent.as_deref(), name, &self.said);
        // What the agent says of itself is kept as it was said, and as it is shown.
        self.own_bytes = 2 * self.resource.memory_bytes();
    }

    /// Tells the budget what the session takes. `false`: that is too much.
    pub(super) fn hold(&mut self) -> bool {
        let bytes = self.table.memory_bytes() + self.delivered.memory_bytes() + self.parked_bytes() + self.own_bytes;
        self.lease.resize(bytes as u64)
    }

    fn parked_bytes(&self) -> usize {
        self.parked.values().map(|parked| parked.bytes).sum()
    }

    /// The trace of this id that waits for its next part.
    pub(super) fn resume(&mut self, id: TraceId) -> Option<Parked> {
        self.parked.remove(&id)
    }

    /// Whether a trace that takes so much memory may wait, too.
    pub(super) fn has_room_for(&self, bytes: usize, options: &Options) -> bool {
        self.parked.len() < MOST_PARKED && self.parked_bytes() + bytes <= self::bytes(options.max_open_bytes)
    }

    /// Lets a trace wait for its next part. Answers another one that waits under the same id.
    pub(super) fn park(&mut self, mut parked: Parked, bytes: usize, now: Duration) -> Option<Parked> {
        (parked.since, parked.bytes) = (now, bytes);
        self.parked.insert(parked.trace.id, parked)
    }
}

impl Parked {
    /// A trace that is to wait.
    pub(super) fn new(
        trace: Trace,
        origin: Arc<Origin>,
        resource: Arc<Resource>,
        request: u64,
        observed: UnixNanos,
    ) -> Self {
        Parked { trace, origin, resource, request, observed, since: Duration::ZERO, bytes: 0 }
    }
}

/// A session that was unused for so long is quiet.
const QUIET: Duration = Duration::from_secs(10);
/// Attributes that an agent may say of itself.
const MOST_SAID: usize = 64;
/// Traces of one session that wait at once: an agent sends one after the other.
const MOST_PARKED: usize = 64;

/// A limit of the configuration in memory.
pub(super) fn bytes(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What is behind a lock stays whole: nothing that panics changes it half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
