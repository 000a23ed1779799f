//! Which connections a listener admits, and what the connections of one address share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;

use tributary_memory::log_throttle::LogThrottle;
use tributary_memory::{Allowance, address_group};

use super::clock::Clock;
use super::options::{ListenerOptions, MAX_REMEMBERED_ADDRESSES};

/// Connections of one address where the operator has not set a number. Loopback is exempt then: a relay on this
/// machine connects for many agents.
const DEFAULT_PER_ADDRESS: usize = 64;

/// Admits connections by their address, and counts them.
#[derive(Debug)]
pub(super) struct Admission {
    allow: Vec<IpNet>,
    proxies: Vec<IpNet>,
    per_address: Option<usize>,
    clock: Clock,
    addresses: Mutex<Addresses>,
    /// For the log line that a connection is refused.
    pub(super) refusals: LogThrottle,
}

/// The addresses with connections, and those whose allowance is not full yet.
#[derive(Debug, Default)]
struct Addresses {
    known: HashMap<IpAddr, Address>,
    /// Addresses are forgotten when this many are known: twice what was left the last time, so that each costs constant
    /// time on average.
    forget_at: usize,
}

/// What the connections of one address (of one IPv6 /64) share.
#[derive(Debug, Default)]
struct Address {
    connections: usize,
    allowance: Allowance,
}

impl Admission {
    pub(super) fn new(options: &ListenerOptions, clock: Clock) -> Self {
        Admission {
            allow: options.allow.clone(),
            proxies: options.proxy_protocol.clone(),
            per_address: options.max_connections_per_address,
            clock,
            addresses: Mutex::default(),
            refusals: LogThrottle::new(),
        }
    }

    /// Whether connections from this address, in its canonical form, begin with a PROXY header.
    pub(super) fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|net| net.contains(&address))
    }

    /// Whether peers of this address may send.
    pub(super) fn is_allowed(&self, address: IpAddr) -> bool {
        self.allow.is_empty() || self.allow.iter().any(|net| net.contains(&address))
    }

    /// Admits a connection from this address, in its canonical form, or returns why not.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, &'static str> {
        if !self.is_allowed(address) {
            return Err("its address is not allowed (allow)");
        }
        let limit = match self.per_address {
            Some(limit) => limit,
            None if address.is_loopback() => usize::MAX,
            None => DEFAULT_PER_ADDRESS,
        };
        let group = address_group(address);
        let mut addresses = self.addresses();
        if addresses.known.len() >= addresses.forget_at {
            self.forget(&mut addresses);
        }
        let known = addresses.known.entry(group).or_default();
        if known.connections >= limit {
            return Err("too many connections from its address (max_connections_per_address)");
        }
        known.connections += 1;
        Ok(ConnectionSlot { admission: self.clone(), group, allowance: known.allowance.clone() })
    }

    /// Removes addresses without connections: those with a full allowance, and those beyond [`MAX_REMEMBERED_ADDRESSES`].
    fn forget(&self, addresses: &mut Addresses) {
        let elapsed = self.clock.now().elapsed;
        let mut remembered = 0;
        addresses.known.retain(|_, address| {
            if address.connections > 0 {
                return true;
            }
            let is_kept = remembered < MAX_REMEMBERED_ADDRESSES && !address.allowance.is_full(elapsed);
            remembered += usize::from(is_kept);
            is_kept
        });
        addresses.forget_at = 2 * addresses.known.len().max(MAX_REMEMBERED_ADDRESSES);
    }

    fn addresses(&self) -> MutexGuard<'_, Addresses> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection for its address until it is dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    admission: Arc<Admission>,
    group: IpAddr,
    /// What the connections of its address share.
    pub(super) allowance: Allowance,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let elapsed = self.admission.clock.now().elapsed;
        let mut addresses = self.admission.addresses();
        if let Some(address) = addresses.known.get_mut(&self.group) {
            address.connections -= 1;
            if address.connections == 0 && address.allowance.is_full(elapsed) {
                addresses.known.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tributary_memory::Amplification;

    fn admission(allow: &[&str], per_address: Option<usize>) -> Arc<Admission> {
        let allow = allow.iter().map(|net| net.parse().unwrap()).collect();
        let options = ListenerOptions { allow, max_connections_per_address: per_address, ..Default::default() };
        Arc::new(Admission::new(&options, Clock::start()))
    }

    #[test]
    fn only_allowed_addresses_are_admitted() {
        let admission = admission(&["10.0.0.0/8", "::1/128"], None);
        assert!(admission.admit("10.1.2.3".parse().unwrap()).is_ok());
        assert!(admission.admit("11.0.0.1".parse().unwrap()).is_err());
        assert!(admission.admit("127.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn proxies_are_known_by_their_networks() {
        let proxy_protocol = vec!["10.0.0.0/8".parse().unwrap()];
        let admission = Admission::new(&ListenerOptions { proxy_protocol, ..Default::default() }, Clock::start());
        assert!(admission.is_proxy("10.1.2.3".parse().unwrap()));
        assert!(!admission.is_proxy("11.0.0.1".parse().unwrap()));
        let without = Admission::new(&ListenerOptions::default(), Clock::start());
        assert!(!without.is_proxy("10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn connections_of_an_address_are_limited_and_counted_back() {
        let address = "192.0.2.1".parse().unwrap();
        let admission = admission(&[], None);
        let mut slots: Vec<_> = (0..DEFAULT_PER_ADDRESS).map(|_| admission.admit(address).unwrap()).collect();
        assert!(admission.admit(address).is_err());
        slots.pop();
        slots.push(admission.admit(address).unwrap());
        slots.clear();
        assert!(admission.addresses().known.is_empty());
    }

    #[test]
    fn an_ipv6_network_of_64_bits_counts_as_one_address() {
        let admission = admission(&[], Some(2));
        let _first = admission.admit("2001:db8::1".parse().unwrap()).unwrap();
        let _second = admission.admit("2001:db8::ffff:0:0:1".parse().unwrap()).unwrap();
        assert!(admission.admit("2001:db8::2".parse().unwrap()).is_err());
        assert!(admission.admit("2001:db8:0:1::1".parse().unwrap()).is_ok(), "another network");
    }

    #[test]
    fn loopback_is_limited_only_when_the_operator_says_so() {
        let address = "127.0.0.1".parse().unwrap();
        let free = admission(&[], None);
        let slots: Vec<_> = (0..1000).map(|_| free.admit(address)).collect();
        assert!(slots.iter().all(Result::is_ok));
        let limited = admission(&[], Some(1));
        let _slot = limited.admit(address).unwrap();
        assert!(limited.admit(address).is_err());
    }

    #[test]
    fn an_address_that_has_used_its_allowance_up_does_not_get_a_new_one_by_reconnecting() {
        let admission = admission(&[], None);
        let address = "192.0.2.1".parse().unwrap();
        let limits = Amplification { ratio: 1, burst: 1 << 40, rate: 1 };
        let spend = |slot: &ConnectionSlot| slot.allowance.spend(limits, 0, 1 << 39, Duration::ZERO);
        for _ in 0..2 {
            assert_eq!(spend(&admission.admit(address).unwrap()), None);
        }
        assert!(spend(&admission.admit(address).unwrap()).is_some());
        // Other addresses come and go.
        for number in 0..3 * MAX_REMEMBERED_ADDRESSES as u32 {
            drop(admission.admit(IpAddr::V4(number.into())).unwrap());
        }
        assert!(admission.addresses().known.len() <= 2, "addresses with a full allowance are removed");
        assert!(spend(&admission.admit(address).unwrap()).is_some());
    }

    #[test]
    fn the_number_of_remembered_addresses_is_bounded() {
        let admission = admission(&[], None);
        let limits = Amplification { ratio: 1, burst: 1 << 40, rate: 1 };
        for number in 0..4 * MAX_REMEMBERED_ADDRESSES as u32 {
            let slot = admission.admit(IpAddr::V4(number.into())).unwrap();
            let _ = slot.allowance.spend(limits, 0, 1 << 30, Duration::ZERO);
        }
        assert!(
            admission.addresses().known.len() <= 2 * MAX_REMEMBERED_ADDRESSES,
            "{}",
            admission.addresses().known.len()
        );
    }
}
