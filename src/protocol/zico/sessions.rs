//! The sessions of one listener: definitions, traces in several parts, delivered traces (section 2.7).
//!
//! They end with the process. After that agents are answered 401, on which agents of all dialects open or reset their session
//! and send their definitions again (rule 8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_event::{Origin, Resource, ResourceValue, TraceId, UnixNanos};
use tributary_memory::{Allowance, MemoryBudget, MemoryLease};

use super::Options;
use super::agents::{StoredHost, ZicoAgent, session_digest};
use super::delivered::Delivered;
use super::fressian::resends::Resends;
use super::normalize;
use super::symbols::{SymbolLimits, SymbolTable};
use super::trace::OpenTrace;
use super::wire::ZicoDialect;

/// The key of a session. Two sessions share nothing (rule 29).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum SessionKey {
    /// A session that was opened here (doc and gen1), by its id.
    Opened(Box<str>),
    /// A session whose id a gen2 agent chose.
    Own(Box<str>),
    /// The forms of a host.
    Host(Box<str>),
    /// The connections of a host (Fressian). Symbols are those of each connection.
    Connected(Box<str>),
}

/// The sessions of one listener.
#[derive(Debug)]
pub(super) struct Sessions {
    options: Options,
    timeout: Duration,
    budget: Arc<MemoryBudget>,
    live: Mutex<HashMap<SessionKey, Arc<SessionSlot>, RandomState>>,
    /// Traces whose next part is no longer awaited.
    retired: Mutex<Vec<Parked>>,
}

/// A session, and the time of its latest use.
#[derive(Debug)]
pub(super) struct SessionSlot {
    session: Mutex<Session>,
    /// On the clock of `Now::elapsed`, in microseconds.
    used: AtomicU64,
}

/// The state of a session.
#[derive(Debug)]
pub(super) struct Session {
    /// Its id; empty for a host. Never shown.
    pub(super) name: Box<str>,
    /// The digest of its id, as events show it; empty for a host.
    pub(super) digest: Box<str>,
    /// The dialect of the latest body whose first bytes show one (rule 6).
    pub(super) dialect: Option<ZicoDialect>,
    pub(super) table: SymbolTable,
    pub(super) agent: Option<Arc<ZicoAgent>>,
    /// Attributes that the agent sent as definitions.
    agent_attributes: Vec<(String, ResourceValue)>,
    pub(super) resource: Arc<Resource>,
    pub(super) delivered: Delivered,
    /// What may be sent again (Fressian).
    pub(super) resends: Resends,
    /// The number of traces without an id so far.
    pub(super) unnamed: u64,
    parked: HashMap<TraceId, Parked, RandomState>,
    /// Memory of the agent's attributes and the resource.
    resource_bytes: usize,
    lease: MemoryLease,
}

/// A trace whose next part is awaited.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) trace: OpenTrace,
    /// Origin and resource of its latest part.
    pub(super) origin: Arc<Origin>,
    pub(super) resource: Arc<Resource>,
    /// Number and receive time of that part's request.
    pub(super) request: u64,
    pub(super) observed: UnixNanos,
    /// The allowance of the address that has sent it. `None`: output has no limit.
    pub(super) allowance: Option<Allowance>,
    since: Duration,
    bytes: usize,
}

impl Sessions {
    pub(super) fn new(options: Options, timeout: Duration, budget: Arc<MemoryBudget>) -> Self {
        Sessions { options, timeout, budget, live: Mutex::default(), retired: Mutex::default() }
    }

    /// A live session; marks it as used now.
    pub(super) fn find(&self, key: &SessionKey, now: Duration) -> Option<Arc<SessionSlot>> {
        let slot = lock(&self.live).get(key)?.clone();
        if slot.is_over(now, self.timeout) {
            return None;
        }
        slot.touch(now);
        Some(slot)
    }

    /// The same; a new session is opened if there is none. Returns whether it is new.
    pub(super) fn find_or_open(
        &self,
        key: SessionKey,
        agent: Option<Arc<ZicoAgent>>,
        now: Duration,
    ) -> (Arc<SessionSlot>, bool) {
        if let Some(slot) = self.find(&key, now) {
            return (slot, false);
        }
        let session = self.session(&key, agent);
        let slot = Arc::new(SessionSlot { session: Mutex::new(session), used: AtomicU64::new(0) });
        slot.touch(now);
        let mut live = lock(&self.live);
        if live.len() >= self.options.max_sessions {
            self.evict(&mut live, u64::MAX);
        }
        if let Some(over) = live.insert(key, slot.clone()) {
            self.retire_all(&over);
        }
        (slot, true)
    }

    /// The session of a host's connections.
    pub(super) fn of_host(&self, host: &str, now: Duration) -> Arc<SessionSlot> {
        // It has no id: its name is that of its machine.
        let agent = ZicoAgent {
            id: 0,
            uuid: String::new(),
            name: host.to_owned(),
            app: String::new(),
            env: String::new(),
            attrs: Vec::new(),
        };
        self.find_or_open(SessionKey::Connected(host.into()), Some(Arc::new(agent)), now).0
    }

    /// What hosts may send again.
    pub(super) fn stored_hosts(&self) -> Vec<StoredHost> {
        let mut hosts = Vec::new();
        for (key, slot) in &*lock(&self.live) {
            if let SessionKey::Connected(host) = key {
                let session = slot.lock();
                let packets = session.resends.delivered().map(<[_]>::to_vec).collect();
                let mut traces = Vec::new();
                session.delivered.store(&mut traces);
                hosts.push(StoredHost { host: host.to_string(), packets, traces });
            }
        }
        hosts
    }

    /// Remembers what hosts may have sent to the process before, as far as there is memory.
    pub(super) fn restore(&self, hosts: Vec<StoredHost>) {
        for StoredHost { host, packets, traces } in hosts {
            let slot = self.of_host(&host, Duration::ZERO);
            let mut session = slot.lock();
            if let Some(delivered) = Delivered::restore(self.options.max_remembered, &traces) {
                session.delivered = delivered;
            }
            for (number, records) in (0..).zip(packets) {
                // No connection has such a number.
                session.resends.end(u64::MAX - number, Some((Duration::ZERO, records)));
            }
            if !session.hold() {
                drop(session);
                lock(&self.live).remove(&SessionKey::Connected(host.into()));
            }
        }
    }

    fn session(&self, key: &SessionKey, agent: Option<Arc<ZicoAgent>>) -> Session {
        let options = &self.options;
        let limits = SymbolLimits {
            entries: options.max_symbols,
            bytes: bytes(options.max_symbol_bytes),
            text: bytes(options.max_text_bytes),
        };
        let (name, digest) = match key {
            SessionKey::Host(_) | SessionKey::Connected(_) => ("", String::new()),
            SessionKey::Opened(name) | SessionKey::Own(name) => (&**name, session_digest(name)),
        };
        let mut session = Session {
            name: name.into(),
            digest: digest.into(),
            dialect: None,
            table: SymbolTable::new(limits),
            agent,
            agent_attributes: Vec::new(),
            resource: Arc::default(),
            delivered: Delivered::new(options.max_remembered),
            resends: Resends::new(options.resend_time, options.max_remembered),
            unnamed: 0,
            parked: HashMap::default(),
            resource_bytes: 0,
            lease: self.budget.bare_lease(),
        };
        session.update_resource();
        session
    }

    /// Removes a sixteenth of the sessions, those unused for longest, as far as they are unused since this time. Many are
    /// removed together, so that the scan is rare.
    fn evict(&self, live: &mut HashMap<SessionKey, Arc<SessionSlot>, RandomState>, unused_since: u64) {
        let mut ages: Vec<u64> = live.values().map(|slot| slot.used.load(Ordering::Relaxed)).collect();
        if ages.is_empty() {
            return;
        }
        let removed = live.len() / 16;
        let (_, limit, _) = ages.select_nth_unstable(removed);
        let limit = unused_since.min(*limit);
        live.retain(|_, slot| {
            let is_kept = slot.used.load(Ordering::Relaxed) > limit;
            if !is_kept {
                self.retire_all(slot);
            }
            is_kept
        });
    }

    /// Retires all open traces of a session.
    pub(super) fn retire_all(&self, slot: &SessionSlot) {
        let parked: Vec<_> = slot.lock().parked.drain().map(|(_, parked)| parked).collect();
        lock(&self.retired).extend(parked);
    }

    /// Retires a trace: its next part is no longer awaited.
    pub(super) fn retire(&self, parked: Parked) {
        lock(&self.retired).push(parked);
    }

    /// Retires traces that waited too long, and removes sessions that are over. `None`: all of them.
    ///
    /// If the memory budget is nearly used up, quiet sessions are removed too, so that abandoned sessions do not keep memory
    /// from others. Their agents are answered 401 and send their definitions again.
    pub(super) fn sweep(&self, now: Option<Duration>) {
        let mut live = lock(&self.live);
        if let Some(now) = now
            && self.budget.is_nearly_used_up()
        {
            self.evict(&mut live, micros(now.saturating_sub(QUIET)));
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

    /// The next retired trace.
    pub(super) fn next_retired(&self) -> Option<Parked> {
        lock(&self.retired).pop()
    }
}

impl SessionSlot {
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
    /// Removes all definitions (rule 7).
    pub(super) fn reset(&mut self) {
        self.table.reset();
        self.agent_attributes.clear();
        self.update_resource();
    }

    /// Sets the session's agent, if it changed.
    pub(super) fn set_agent(&mut self, agent: &Arc<ZicoAgent>) {
        if self.agent.as_ref() != Some(agent) {
            self.agent = Some(agent.clone());
            self.update_resource();
        }
    }

    /// Sets an attribute of the agent. Returns whether it is within the limits.
    pub(super) fn set_attribute(&mut self, key: String, value: ResourceValue, most_bytes: usize) -> bool {
        let size = |value: &ResourceValue| if let ResourceValue::Text(text) = value { text.len() } else { 8 };
        self.agent_attributes.retain(|(known, _)| *known != key);
        let bytes: usize = self.agent_attributes.iter().map(|(key, value)| key.len() + size(value)).sum();
        let is_accepted =
            self.agent_attributes.len() < MAX_AGENT_ATTRIBUTES && bytes + key.len() + size(&value) <= most_bytes;
        if is_accepted {
            self.agent_attributes.push((key, value));
        }
        is_accepted
    }

    /// Builds the resource.
    pub(super) fn update_resource(&mut self) {
        let digest = Some(&*self.digest).filter(|digest| !digest.is_empty());
        self.resource = normalize::resource(self.agent.as_deref(), digest, &self.agent_attributes);
        // The attributes are kept twice: as sent, and in the resource.
        self.resource_bytes = 2 * self.resource.memory_bytes();
    }

    /// Counts the session's memory for the address of its latest request, whose memory is `budget`.
    pub(super) fn charge_to(&mut self, budget: &Arc<MemoryBudget>) {
        self.lease.move_to(budget);
    }

    /// Charges the session's memory to the budget. `false`: the budget is exhausted.
    pub(super) fn hold(&mut self) -> bool {
        let bytes = self.table.memory_bytes()
            + self.delivered.memory_bytes()
            + self.parked_bytes()
            + self.resource_bytes
            + self.resends.memory_bytes();
        self.lease.resize(bytes as u64)
    }

    fn parked_bytes(&self) -> usize {
        self.parked.values().map(|parked| parked.bytes).sum()
    }

    /// Takes the trace of this id that waits for its next part.
    pub(super) fn resume(&mut self, id: TraceId) -> Option<Parked> {
        self.parked.remove(&id)
    }

    /// Whether a trace that takes this much memory may wait, too.
    pub(super) fn may_park(&self, bytes: usize, options: &Options) -> bool {
        self.parked.len() < MAX_PARKED && self.parked_bytes() + bytes <= self::bytes(options.max_open_bytes)
    }

    /// Keeps a trace until its next part. Returns another one with the same id.
    pub(super) fn park(&mut self, mut parked: Parked, bytes: usize, now: Duration) -> Option<Parked> {
        (parked.since, parked.bytes) = (now, bytes);
        self.parked.insert(parked.trace.id, parked)
    }
}

impl Parked {
    /// A trace that waits.
    pub(super) fn new(
        trace: OpenTrace,
        origin: Arc<Origin>,
        resource: Arc<Resource>,
        request: u64,
        observed: UnixNanos,
    ) -> Self {
        Parked { trace, origin, resource, request, observed, allowance: None, since: Duration::ZERO, bytes: 0 }
    }
}

/// A session that is unused for this long is quiet.
const QUIET: Duration = Duration::from_secs(10);
/// The number of attributes of an agent.
const MAX_AGENT_ATTRIBUTES: usize = 64;
/// The number of waiting traces of a session. An agent sends traces one after the other.
const MAX_PARKED: usize = 64;

/// A configured limit as a size in memory.
pub(super) fn bytes(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Locks a mutex. State behind a poisoned lock is still consistent: nothing that panics changes it partly.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
