//! The memory that all peers share, and the parts of it that belong to one listener or one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::address_group;

/// Memory for everything that grows with peers and load: connections, received bytes, and the state that they cause.
/// Shared by every session of the process.
///
/// Everything that grows takes a [`MemoryLease`]. Each use may fill the shared memory up to a part of it, so that no use
/// can take the last bytes from the more important ones:
///
/// - what lasts (dictionaries, waiting records) may fill twelve sixteenths,
/// - what passes (half messages, bodies, batches), which has time limits, fourteen,
/// - connections, and of what lasts the first [`MemoryLease::MINIMUM`] of each session, fifteen,
/// - small messages, up to [`MemoryLease::MINIMUM`] each, all of it.
///
/// Beside it, a listener has a reserve ([`MemoryBudget::with_reserve`]) that no other listener can take: for connections
/// and small leases that do not fit into the shared memory.
///
/// One address ([`MemoryBudget::of_address`]) may fill only a part of the shared memory: with what passes, a limit that can
/// be set; with what lasts, as much as is still free. So one address takes half of the part for what lasts, two take a third
/// each, and `n` leave one part of `n + 1` to the next.
#[derive(Debug)]
pub struct MemoryBudget {
    shared: Arc<SharedMemory>,
    reserve: Option<Arc<Reserve>>,
    address: Option<Arc<AddressMemory>>,
}

/// What all peers share.
#[derive(Debug)]
struct SharedMemory {
    limit: AtomicU64,
    used: AtomicU64,
    /// What the passing data of one address may take. [`HALF`]: half of `limit`.
    address_limit: AtomicU64,
    /// When something was refused last, in microseconds of `Now::elapsed`; 0: never.
    refused: AtomicU64,
    addresses: Mutex<HashMap<IpAddr, Weak<AddressMemory>>>,
}

/// What belongs to one listener.
#[derive(Debug)]
struct Reserve {
    limit: u64,
    used: AtomicU64,
}

/// What one address uses.
#[derive(Debug, Default)]
struct AddressMemory {
    /// Of the shared memory, for what passes …
    passing: AtomicU64,
    /// … and for what lasts.
    lasting: AtomicU64,
    /// Of reserves.
    reserved: AtomicU64,
    /// As in [`SharedMemory`].
    refused: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes, without reserves.
    pub fn new(limit: u64) -> Arc<Self> {
        let shared = SharedMemory {
            limit: AtomicU64::new(limit),
            used: AtomicU64::new(0),
            address_limit: AtomicU64::new(HALF),
            refused: AtomicU64::new(0),
            addresses: Mutex::default(),
        };
        Arc::new(MemoryBudget { shared: Arc::new(shared), reserve: None, address: None })
    }

    /// A budget without a limit: where memory is counted elsewhere, or not at all.
    pub fn unlimited() -> Arc<Self> {
        MemoryBudget::new(u64::MAX)
    }

    /// The same shared memory with a reserve of `bytes` beside it, for one listener.
    #[must_use]
    pub fn with_reserve(&self, bytes: u64) -> Arc<Self> {
        let reserve = Reserve { limit: bytes, used: AtomicU64::new(0) };
        Arc::new(MemoryBudget { shared: self.shared.clone(), reserve: Some(Arc::new(reserve)), address: None })
    }

    /// The same memory for the connections of one address.
    #[must_use]
    pub fn of_address(&self, address: IpAddr) -> Arc<Self> {
        let address = self.shared.address(address_group(address));
        Arc::new(MemoryBudget { shared: self.shared.clone(), reserve: self.reserve.clone(), address: Some(address) })
    }

    /// Bytes of the shared memory in use now.
    pub fn used(&self) -> u64 {
        self.shared.used.load(Relaxed)
    }

    /// The limit of the shared memory in bytes.
    pub fn limit(&self) -> u64 {
        self.shared.limit.load(Relaxed)
    }

    /// Sets the limit. Leases that are beyond it keep what they have.
    pub fn set_limit(&self, limit: u64) {
        self.shared.limit.store(limit, Relaxed);
    }

    /// Sets what the passing data of one address may take. None: half of the shared memory.
    pub fn set_address_limit(&self, limit: Option<u64>) {
        self.shared.address_limit.store(limit.unwrap_or(HALF), Relaxed);
    }

    /// Whether less is free than a further connection may need.
    pub fn is_full(&self) -> bool {
        self.used() + CONNECTION_BYTES > self.shared.part(CONNECTIONS)
    }

    /// Whether next to nothing is left for what lasts: then what is not in use must be dropped.
    pub fn is_nearly_used_up(&self) -> bool {
        self.used() > self.shared.part(LASTING) / 10 * 9
    }

    /// An empty lease of one session, for what lasts. The first [`MemoryLease::FLOOR`] bytes are not counted: the lease of
    /// the session's connection includes them.
    pub fn lease(self: &Arc<Self>) -> MemoryLease {
        self.leased(Use::Lasting, MemoryLease::FLOOR)
    }

    /// The same for data that belongs to no connection.
    pub fn bare_lease(self: &Arc<Self>) -> MemoryLease {
        self.leased(Use::Lasting, 0)
    }

    /// An empty lease for what passes. The first `floor` bytes are not counted: another lease includes them.
    pub fn passing(self: &Arc<Self>, floor: u64) -> MemoryLease {
        self.leased(Use::Passing, floor)
    }

    /// A lease of `bytes` for a further connection. `None`: there is no memory for it now.
    pub fn admit(self: &Arc<Self>, bytes: u64) -> Option<MemoryLease> {
        let mut lease = self.leased(Use::Connection, 0);
        lease.try_resize(bytes).then_some(lease)
    }

    /// Whether something was refused a moment ago. Then a connection that has much memory and makes no progress must give
    /// it back.
    pub fn is_short(&self, elapsed: Duration) -> bool {
        let is_recent = |refused: &AtomicU64| {
            let refused = refused.load(Relaxed);
            refused > 0 && micros(elapsed).saturating_sub(refused) < micros(SHORTAGE)
        };
        is_recent(&self.shared.refused) || self.address.as_ref().is_some_and(|address| is_recent(&address.refused))
    }

    fn leased(self: &Arc<Self>, of: Use, floor: u64) -> MemoryLease {
        MemoryLease { budget: self.clone(), of, floor, held: 0, reserved: 0, is_refused_by_address: false }
    }
}

impl SharedMemory {
    fn part(&self, sixteenths: u64) -> u64 {
        let limit = self.limit.load(Relaxed);
        limit / 16 * sixteenths + limit % 16 * sixteenths / 16
    }

    fn address_limit(&self) -> u64 {
        match self.address_limit.load(Relaxed) {
            HALF => self.limit.load(Relaxed) / 2,
            limit => limit,
        }
    }

    fn free_for_lasting(&self) -> u64 {
        self.part(LASTING).saturating_sub(self.used.load(Relaxed))
    }

    fn address(&self, address: IpAddr) -> Arc<AddressMemory> {
        let mut addresses = self.addresses();
        if let Some(known) = addresses.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        // Those without a connection are removed before the table grows.
        if addresses.len() == addresses.capacity() {
            addresses.retain(|_, memory| memory.strong_count() > 0);
        }
        let memory = Arc::<AddressMemory>::default();
        addresses.insert(address, Arc::downgrade(&memory));
        memory
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<IpAddr, Weak<AddressMemory>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AddressMemory {
    /// What this use takes of the shared memory, where it is limited for each address.
    fn used_for(&self, of: Use) -> Option<&AtomicU64> {
        match of {
            Use::Lasting => Some(&self.lasting),
            Use::Passing => Some(&self.passing),
            Use::Connection => None,
        }
    }
}

impl Reserve {
    fn try_take(&self, bytes: u64) -> bool {
        let has_memory = self.used.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.limit;
        if !has_memory {
            self.used.fetch_sub(bytes, Relaxed);
        }
        has_memory
    }
}

/// Value of `address_limit`: half of the shared memory.
const HALF: u64 = u64::MAX;
/// What a connection of any kind takes with small options.
const CONNECTION_BYTES: u64 = 72 << 10;
/// What [`MemoryBudget::is_short`] calls a moment.
const SHORTAGE: Duration = Duration::from_secs(2);
/// Sixteenths of the shared memory that each use may fill.
const LASTING: u64 = 12;
const PASSING: u64 = 14;
const CONNECTIONS: u64 = 15;
const ALL: u64 = 16;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What memory is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Lasting,
    Connection,
    Passing,
}

/// Memory taken of a [`MemoryBudget`]; given back when dropped.
#[derive(Debug)]
pub struct MemoryLease {
    budget: Arc<MemoryBudget>,
    of: Use,
    /// The bytes that another lease counts.
    floor: u64,
    /// Bytes beyond the floor …
    held: u64,
    /// … and how many of them are of the reserve.
    reserved: u64,
    is_refused_by_address: bool,
}

impl MemoryLease {
    /// Every session may have this much independent of all others: the lease of its connection includes it.
    pub const FLOOR: u64 = 8 * 1024;

    /// A small lease has at most this much beyond its floor. It is granted where a larger one is not, so that sessions
    /// with much state cannot stop those with little.
    pub const MINIMUM: u64 = 64 * 1024;

    /// Sets the size to `bytes`, in any case. `false` when there is not enough memory for that: then the owner drops
    /// something and calls this again.
    #[must_use]
    pub fn resize(&mut self, bytes: u64) -> bool {
        let bytes = bytes.saturating_sub(self.floor);
        if bytes >= self.held {
            self.take(bytes - self.held);
        } else {
            self.give_back(self.held - bytes);
        }
        if bytes == self.reserved {
            return true;
        }
        let MemoryBudget { shared, address, .. } = &*self.budget;
        if let Some(address) = address.as_ref().filter(|_| bytes > MemoryLease::MINIMUM) {
            self.is_refused_by_address = match self.of {
                Use::Passing => address.passing.load(Relaxed) > shared.address_limit(),
                Use::Lasting => address.lasting.load(Relaxed) > shared.free_for_lasting(),
                Use::Connection => false,
            };
            if self.is_refused_by_address {
                return false;
            }
        }
        let (sixteenths, is_small) = match self.of {
            Use::Lasting if bytes > MemoryLease::MINIMUM => (LASTING, false),
            Use::Passing if bytes > MemoryLease::MINIMUM => (PASSING, false),
            Use::Lasting | Use::Connection => (CONNECTIONS, true),
            Use::Passing => (ALL, true),
        };
        shared.used.load(Relaxed) <= shared.part(sixteenths) || is_small && self.move_to_reserve()
    }

    /// Sets the size to `bytes` if there is memory for that; otherwise the size stays as it is, and the result is
    /// `false`. A smaller size always succeeds.
    #[must_use]
    pub fn try_resize(&mut self, bytes: u64) -> bool {
        let before = self.held;
        let has_memory = self.resize(bytes) || self.held <= before;
        if !has_memory {
            let is_refused_by_address = self.is_refused_by_address;
            let _ = self.resize(before + self.floor);
            self.is_refused_by_address = is_refused_by_address;
        }
        has_memory
    }

    /// Remembers that the last size was refused at this time (see [`MemoryBudget::is_short`]): for everybody, or, if the
    /// address has used its part up, for that address.
    pub fn note_refusal(&self, elapsed: Duration) {
        let MemoryBudget { shared, address, .. } = &*self.budget;
        let refused = match address {
            Some(address) if self.is_refused_by_address => &address.refused,
            _ => &shared.refused,
        };
        refused.store(micros(elapsed).max(1), Relaxed);
    }

    /// Counts the lease of a connection for its address, once that is known. `false`: it is of the reserve, and the address
    /// has half of the reserve already.
    #[must_use]
    pub fn assign(&mut self, budget: &Arc<MemoryBudget>) -> bool {
        let (Some(reserve), Some(address)) = (&budget.reserve, &budget.address) else { return true };
        let reserved = address.reserved.fetch_add(self.reserved, Relaxed) + self.reserved;
        self.budget = budget.clone();
        self.reserved == 0 || reserved <= reserve.limit / 2
    }

    /// Counts it for the address of this budget from now on. Both budgets are of the same listener.
    pub fn move_to(&mut self, budget: &Arc<MemoryBudget>) {
        let same = match (&self.budget.address, &budget.address) {
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            (own, other) => own.is_none() && other.is_none(),
        };
        if same {
            return;
        }
        let (held, floor) = (self.held, self.floor);
        self.give_back(held);
        self.budget = budget.clone();
        let _ = self.resize(held + floor);
    }

    /// Whether it has more than its floor.
    pub fn is_beyond_floor(&self) -> bool {
        self.held > 0
    }

    /// The budget it is of.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    fn take(&mut self, bytes: u64) {
        let MemoryBudget { shared, address, .. } = &*self.budget;
        shared.used.fetch_add(bytes, Relaxed);
        if let Some(used) = address.as_ref().and_then(|address| address.used_for(self.of)) {
            used.fetch_add(bytes, Relaxed);
        }
        self.held += bytes;
    }

    /// Gives bytes back, those of the reserve first.
    fn give_back(&mut self, bytes: u64) {
        let MemoryBudget { shared, reserve, address } = &*self.budget;
        let reserved = bytes.min(self.reserved);
        if let Some(reserve) = reserve {
            reserve.used.fetch_sub(reserved, Relaxed);
        }
        shared.used.fetch_sub(bytes - reserved, Relaxed);
        if let Some(address) = address {
            address.reserved.fetch_sub(reserved, Relaxed);
            if let Some(used) = address.used_for(self.of) {
                used.fetch_sub(bytes - reserved, Relaxed);
            }
        }
        self.reserved -= reserved;
        self.held -= bytes;
    }

    /// Moves all bytes from the shared memory to the reserve of the listener, if they fit there.
    fn move_to_reserve(&mut self) -> bool {
        let MemoryBudget { shared, reserve: Some(reserve), address } = &*self.budget else { return false };
        let bytes = self.held - self.reserved;
        let is_over_half =
            |address: &Arc<AddressMemory>| address.reserved.load(Relaxed).saturating_add(bytes) > reserve.limit / 2;
        if address.as_ref().is_some_and(is_over_half) || !reserve.try_take(bytes) {
            return false;
        }
        shared.used.fetch_sub(bytes, Relaxed);
        if let Some(address) = address {
            address.reserved.fetch_add(bytes, Relaxed);
            if let Some(used) = address.used_for(self.of) {
                used.fetch_sub(bytes, Relaxed);
            }
        }
        self.reserved = self.held;
        true
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const FLOOR: u64 = MemoryLease::FLOOR;
    const MINIMUM: u64 = MemoryLease::MINIMUM;

    #[test]
    fn each_use_leaves_memory_for_the_more_important_ones_and_all_is_given_back() {
        let budget = MemoryBudget::new(1600 * KIB);
        let mut large = budget.lease();
        assert!(large.resize(FLOOR + 1200 * KIB));
        assert!(!large.resize(FLOOR + 1200 * KIB + 1));
        assert!(large.resize(FLOOR + 1200 * KIB), "what fits again is accepted again");
        let mut body = budget.passing(10);
        assert!(body.try_resize(10 + 200 * KIB));
        assert!(!body.try_resize(10 + 200 * KIB + 1), "bodies leave memory for connections");
        let mut small = budget.lease();
        assert!(small.resize(FLOOR + MINIMUM));
        assert!(!small.resize(FLOOR + MINIMUM + 1));
        assert!(small.resize(FLOOR + MINIMUM));
        let connection = budget.admit(36 * KIB).expect("fifteen sixteenths are for connections");
        assert!(budget.is_full() && budget.admit(1).is_none());
        let mut message = budget.passing(0);
        assert!(message.try_resize(MINIMUM), "connections leave memory for small messages");
        assert_eq!(budget.used(), (1200 + 200 + 64 + 36 + 64) * KIB, "what was refused was not taken");
        assert!(body.try_resize(10 + KIB) && body.is_beyond_floor());
        drop((large, body, small, connection, message));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_floor_needs_no_memory() {
        let budget = MemoryBudget::new(0);
        let mut lease = budget.lease();
        assert!(lease.resize(FLOOR));
        assert!(!lease.resize(FLOOR + 1));
        let mut passing = budget.passing(100);
        assert!(passing.try_resize(100) && !passing.try_resize(101) && !passing.is_beyond_floor());
        assert!(budget.admit(1).is_none());
    }

    #[test]
    fn a_smaller_size_always_succeeds_also_when_the_limit_was_lowered() {
        let budget = MemoryBudget::new(1000);
        let mut lease = budget.passing(0);
        assert!(lease.try_resize(1000));
        budget.set_limit(100);
        assert!(!lease.try_resize(1001) && lease.try_resize(900));
        assert_eq!(budget.used(), 900);
    }

    #[test]
    fn a_listener_has_its_reserve_when_others_have_taken_everything() {
        let budget = MemoryBudget::new(1600 * KIB);
        let [one, other] = [budget.with_reserve(100 * KIB), budget.with_reserve(100 * KIB)];
        let mut everything = one.lease();
        assert!(!everything.resize(FLOOR + 1600 * KIB));
        let connection = other.admit(30 * KIB).expect("the reserve");
        let mut message = other.passing(0);
        assert!(message.try_resize(MINIMUM));
        assert!(!message.try_resize(MINIMUM + 1), "a long message finds no memory");
        assert!(other.admit(30 * KIB).is_none(), "the reserve is used up");
        assert!(one.admit(30 * KIB).is_some(), "its own is not");
        assert_eq!(budget.used(), 1600 * KIB, "the reserve is not of the shared memory");
        drop((connection, message));
        assert_eq!(other.reserve.as_ref().unwrap().used.load(Relaxed), 0);
        drop(everything);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_passes_of_one_address_takes_half_and_others_get_memory() {
        let budget = MemoryBudget::new(1600 * KIB);
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| budget.of_address(address.parse().unwrap()));
        let same = budget.of_address("::ffff:192.0.2.1".parse().unwrap());
        let (mut body, mut second) = (one.passing(0), same.passing(0));
        assert!(body.try_resize(800 * KIB));
        assert!(!second.try_resize(100 * KIB));
        second.note_refusal(Duration::from_secs(1));
        assert!(one.is_short(Duration::from_secs(1)) && !other.is_short(Duration::from_secs(1)));
        assert!(second.try_resize(MINIMUM), "small messages are served");
        let mut third = other.passing(0);
        assert!(third.try_resize(500 * KIB));
        budget.set_address_limit(Some(1000 * KIB));
        assert!(second.try_resize(100 * KIB));
        drop((body, second, third));
        assert_eq!((budget.used(), one.address.as_ref().unwrap().passing.load(Relaxed)), (0, 0));
    }

    #[test]
    fn what_lasts_of_each_address_takes_as_much_as_it_leaves_free() {
        let budget = MemoryBudget::new(1600 * KIB);
        let [one, two, three] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|address| budget.of_address(address.parse().unwrap()));
        let fill = |address: &Arc<MemoryBudget>| {
            let mut lease = address.lease();
            let largest = (0..1600).rev().map(|kib| FLOOR + kib * KIB).find(|bytes| lease.resize(*bytes));
            (lease, (largest.unwrap() - FLOOR) / KIB)
        };
        // Twelve sixteenths are 1,200 KiB.
        let (first, second) = (fill(&one), fill(&two));
        assert_eq!((first.1, second.1), (600, 300), "the first one was there alone");
        let mut honest = three.lease();
        assert!(honest.resize(FLOOR + 140 * KIB) && !honest.resize(FLOOR + 160 * KIB));
        assert!(honest.resize(FLOOR + 140 * KIB));
        let mut small = two.lease();
        assert!(small.resize(FLOOR + MINIMUM), "sessions with little state are served");
        let mut configured = budget.lease();
        assert!(configured.resize(FLOOR + 90 * KIB), "without an address only the shared memory is a limit");
        configured.move_to(&two);
        assert!(!configured.resize(FLOOR + 90 * KIB), "the address has its part already");
        configured.move_to(&three);
        drop((first, second, honest, small));
        assert_eq!(three.address.as_ref().unwrap().lasting.load(Relaxed), 90 * KIB);
        drop(configured);
        for address in [one, two, three] {
            assert_eq!(address.address.as_ref().unwrap().lasting.load(Relaxed), 0);
        }
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn one_address_takes_half_of_a_reserve() {
        let listener = MemoryBudget::new(0).with_reserve(100 * KIB);
        let address = listener.of_address("2001:db8::1".parse().unwrap());
        let admit = || {
            let mut lease = listener.admit(20 * KIB)?;
            lease.assign(&address).then_some(lease)
        };
        let leases = [admit().unwrap(), admit().unwrap()];
        assert!(admit().is_none());
        assert!(!address.passing(0).try_resize(20 * KIB));
        assert!(listener.admit(60 * KIB).is_some(), "the other half");
        drop(leases);
        assert!(admit().is_some());
        assert_eq!(address.address.as_ref().unwrap().reserved.load(Relaxed), 0);
    }

    #[test]
    fn addresses_without_a_connection_are_forgotten() {
        let budget = MemoryBudget::new(0);
        for number in 0..10_000_u32 {
            drop(budget.of_address(IpAddr::V4(number.into())));
        }
        assert!(budget.shared.addresses().len() < 100);
    }

    #[test]
    fn memory_is_short_for_a_moment_after_something_was_refused() {
        let budget = MemoryBudget::new(0);
        assert!(!budget.is_short(Duration::ZERO));
        budget.passing(0).note_refusal(Duration::ZERO);
        assert!(budget.is_short(SHORTAGE - Duration::from_micros(2)));
        assert!(!budget.is_short(SHORTAGE + Duration::from_micros(2)));
    }
}
