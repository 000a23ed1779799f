//! The network of an address: the unit to which the limits of registrations per address apply.

use std::net::IpAddr;

use tributary_memory::address_group;

/// The network of an address: the address itself for IPv4, the /64 for IPv6, because one host can use all addresses of a
/// /64. Another text, such as a file name in offline decoding, is its own network.
pub(super) fn network(address: &str) -> String {
    let text = address.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(address);
    // A link-local address may name its interface.
    let text = text.split('%').next().unwrap_or(text);
    match text.parse().map(address_group) {
        Ok(IpAddr::V6(address)) if !address.is_loopback() => format!("{address}/64"),
        Ok(address) => address.to_string(),
        Err(_) => address.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_an_ipv4_address_or_an_ipv6_prefix_of_64_bits() {
        assert_eq!(network("192.0.2.7"), "192.0.2.7");
        assert_eq!(network("::ffff:192.0.2.7"), "192.0.2.7");
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(network("[2001:db8:1:2::9]"), "2001:db8:1:2::/64");
        assert_eq!(network("fe80::1%eth0"), "fe80::/64");
        assert_eq!(network("::1"), "::1");
        assert_eq!(network("a file"), "a file");
    }
}
