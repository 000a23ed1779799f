//! The run ids of a listener: which run has which id, and which agent gets the next one.
//!
//! A run id is one byte (rule 7), so ids are scarce. An agent gets a free id. While few ids are free, an address with
//! agents that have sent no event gets none of them. When no id is free, one is taken from an agent that was started and
//! has opened no data connection in time, or has sent no event over it in time: that agent uses no id, and may be a peer
//! that only holds connections. It keeps its connections and its run. It may also still open data connections as long as
//! the new owner of the id has another address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tributary_memory::address_group;

use super::options::Options;
use super::run::{Run, UNTRACED_ID, lock};

/// Ids of traced runs: 0 to 126. Java reads the byte as signed.
const IDS: usize = 127;
/// The shortest time between two log lines about agents that get no id.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The runs of a listener.
#[derive(Debug)]
pub(super) struct RunTable {
    /// By run id.
    slots: Vec<Option<RunSlot>>,
    /// The search for a free id starts here, so that an id is not reused immediately.
    next: usize,
    /// Runs so far; a run's serial number is its place among them.
    opened: u64,
    /// Runs that have no slot and still expect data connections, by run id, address and serial number: those with
    /// [`UNTRACED_ID`], and those whose id was given to another run.
    unlisted: BTreeMap<(u8, Option<IpAddr>, u64), Weak<Mutex<Run>>>,
    last_warning: Option<Duration>,
    suppressed_warnings: u64,
}

#[derive(Debug)]
struct RunSlot {
    run: Arc<Mutex<Run>>,
    serial: u64,
    address: Option<IpAddr>,
    stage: AgentStage,
}

/// How far the agent of a run has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AgentStage {
    /// It waits for `start`.
    Held,
    /// `start` was sent at this time; there is no data connection.
    Started(Duration),
    /// It has opened a data connection, the first one at this time.
    Connected(Duration),
}

impl RunSlot {
    /// Whether its agent has sent no event.
    fn is_silent(&self) -> bool {
        !matches!(self.stage, AgentStage::Connected(_)) || lock(&self.run).events() == 0
    }
}

/// The id for a new run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Assignment {
    pub id: u8,
    /// Unique among all runs of the listener.
    pub serial: u64,
    /// Another agent had the id and lost it.
    pub is_taken_over: bool,
}

impl RunTable {
    pub(super) fn new() -> Self {
        let slots = (0..IDS).map(|_| None).collect();
        let unlisted = BTreeMap::new();
        RunTable { slots, next: 0, opened: 0, unlisted, last_warning: None, suppressed_warnings: 0 }
    }

    /// The id for a run of an agent at `address`: [`UNTRACED_ID`] if there is none for it.
    pub(super) fn assign(&mut self, address: Option<IpAddr>, options: &Options, elapsed: Duration) -> Assignment {
        self.opened += 1;
        let serial = self.opened;
        let free = self.slots.iter().filter(|slot| slot.is_none()).count();
        let reserved = options.reserved_runs;
        let is_reserved = reserved > 0 && free <= reserved && self.waiting_at(address) >= reserved;
        let free_id = if is_reserved { None } else { self.free_id() };
        if let Some(id) = free_id {
            return Assignment { id: id as u8, serial, is_taken_over: false };
        }
        match self.expired_id(address, options, elapsed) {
            Some(id) => {
                self.unlist(id);
                Assignment { id: id as u8, serial, is_taken_over: true }
            }
            None => Assignment { id: UNTRACED_ID, serial, is_taken_over: false },
        }
    }

    fn free_id(&mut self) -> Option<usize> {
        let id = (0..IDS).map(|step| (self.next + step) % IDS).find(|id| self.slots[*id].is_none())?;
        self.next = id + 1;
        Some(id)
    }

    /// Agents of the network of this address that have sent no event.
    fn waiting_at(&self, address: Option<IpAddr>) -> usize {
        let network = address.map(address_group);
        let is_waiting = |slot: &&RunSlot| slot.address.map(address_group) == network && slot.is_silent();
        self.slots.iter().flatten().filter(is_waiting).count()
    }

    /// The id of an agent that has opened no data connection, or sent no event, in time: one of another address if there is
    /// any, because a data connection is assigned by its address; of those the one that has waited longest.
    fn expired_id(&self, address: Option<IpAddr>, options: &Options, elapsed: Duration) -> Option<usize> {
        let expired = self.slots.iter().enumerate().filter_map(|(id, slot)| {
            let slot = slot.as_ref()?;
            let (since, wait) = match slot.stage {
                AgentStage::Held => return None,
                AgentStage::Started(since) => (since, options.data_connection_wait),
                AgentStage::Connected(since) => (since, options.first_event_wait),
            };
            let is_expired = elapsed >= since + wait && slot.is_silent();
            is_expired.then_some((slot.address == address, since, id))
        });
        expired.min().map(|(_, _, id)| id)
    }

    /// Takes the id from the run that has it.
    fn unlist(&mut self, id: usize) {
        if let Some(RunSlot { run, serial, address, .. }) = self.slots[id].take() {
            self.unlisted.insert((id as u8, address, serial), Arc::downgrade(&run));
        }
    }

    /// Registers a run under its id.
    pub(super) fn insert(&mut self, run: &Arc<Mutex<Run>>, address: Option<IpAddr>, assignment: Assignment) {
        let Assignment { id, serial, .. } = assignment;
        match self.slots.get_mut(usize::from(id)) {
            Some(slot) => *slot = Some(RunSlot { run: run.clone(), serial, address, stage: AgentStage::Held }),
            None => drop(self.unlisted.insert((id, address, serial), Arc::downgrade(run))),
        }
    }

    /// `start` was sent to the agent of this run.
    pub(super) fn set_started(&mut self, id: u8, serial: u64, elapsed: Duration) {
        if let Some(slot) = self.slot(id, serial)
            && slot.stage == AgentStage::Held
        {
            slot.stage = AgentStage::Started(elapsed);
        }
    }

    /// The agent of this run has opened a data connection.
    pub(super) fn set_connected(&mut self, id: u8, serial: u64, elapsed: Duration) {
        if let Some(slot) = self.slot(id, serial)
            && !matches!(slot.stage, AgentStage::Connected(_))
        {
            slot.stage = AgentStage::Connected(elapsed);
        }
    }

    /// The slot of a run, as long as the run has it.
    fn slot(&mut self, id: u8, serial: u64) -> Option<&mut RunSlot> {
        self.slots.get_mut(usize::from(id))?.as_mut().filter(|slot| slot.serial == serial)
    }

    /// The run that has this id.
    pub(super) fn get(&self, id: u8) -> Option<Arc<Mutex<Run>>> {
        self.slots.get(usize::from(id))?.as_ref().map(|slot| slot.run.clone())
    }

    /// All runs that have an id, by id.
    pub(super) fn all(&self) -> Vec<Arc<Mutex<Run>>> {
        self.slots.iter().flatten().map(|slot| slot.run.clone()).collect()
    }

    /// The latest run of this id and address that has no slot and takes a data connection. It is admitted to the run.
    pub(super) fn admit_unlisted(&mut self, id: u8, address: Option<IpAddr>) -> Option<Arc<Mutex<Run>>> {
        loop {
            let (key, run) = self.unlisted.range((id, address, 0)..=(id, address, u64::MAX)).next_back()?;
            let (key, run) = (*key, run.upgrade());
            if let Some(run) = &run {
                let mut open = lock(run);
                let is_admitted = open.admit_data();
                if is_admitted && open.agent.expects_data() {
                    drop(open);
                    return Some(run.clone());
                }
                // It takes no further one.
                drop(open);
                self.unlisted.remove(&key);
                if is_admitted {
                    return Some(run.clone());
                }
            } else {
                self.unlisted.remove(&key);
            }
        }
    }

    /// Whether a run of this id and address has no slot and takes a data connection.
    pub(super) fn expects_unlisted(&self, id: u8, address: Option<IpAddr>) -> bool {
        self.unlisted.range((id, address, 0)..=(id, address, u64::MAX)).next().is_some()
    }

    /// The latest run without a slot that has this id, whatever its address.
    pub(super) fn latest_unlisted(&self, id: u8) -> Option<Arc<Mutex<Run>>> {
        let first = (id, None, 0);
        let last = (id, Some(IpAddr::V6(Ipv6Addr::from(u128::MAX))), u64::MAX);
        self.unlisted.range(first..=last).rev().find_map(|(_, run)| run.upgrade())
    }

    /// The run has ended: its id is free.
    pub(super) fn remove(&mut self, id: u8, address: Option<IpAddr>, serial: u64) {
        match self.slots.get_mut(usize::from(id)) {
            Some(slot) if slot.as_ref().is_some_and(|slot| slot.serial == serial) => *slot = None,
            _ => drop(self.unlisted.remove(&(id, address, serial))),
        }
    }

    /// Whether to log now that an agent got no id: once a minute. The number of times that it was not logged since.
    pub(super) fn permit_warning(&mut self, elapsed: Duration) -> Option<u64> {
        if self.last_warning.is_some_and(|last| elapsed < last + WARNING_INTERVAL) {
            self.suppressed_warnings += 1;
            return None;
        }
        self.last_warning = Some(elapsed);
        Some(std::mem::take(&mut self.suppressed_warnings))
    }
}
