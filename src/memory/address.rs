//! Which addresses count as one peer.

use std::net::{IpAddr, Ipv6Addr};

/// The address under which limits for each address count `address`: an IPv4 address itself, also when it is mapped into
/// IPv6, and of an IPv6 address its /64 network, because one host can use every address of its network.
pub fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_peer_and_an_ipv4_address_is_itself() {
        for (address, group) in [
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
            ("2001:db8:1:3::1", "2001:db8:1:3::"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("::1", "::1"),
        ] {
            assert_eq!(address_group(address.parse().unwrap()), group.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
