//! The address of a server.

use std::fmt;
use std::str::FromStr;

/// The port of a server, if its address has none.
pub(super) const PORT: u16 = 4222;

/// The address of a server: `nats://host:port`, or `tls://host:port` with TLS in any case. It has no credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerAddress {
    is_tls: bool,
    host: String,
    port: u16,
}

impl ServerAddress {
    /// The host. An address of IPv6 has brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether its connections are encrypted in any case. Otherwise they are when the server asks for it.
    pub(super) fn is_tls(&self) -> bool {
        self.is_tls
    }
}

impl FromStr for ServerAddress {
    type Err = &'static str;

    /// Reads an address. Without a scheme it is one of `nats`.
    fn from_str(text: &str) -> Result<ServerAddress, &'static str> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("nats", text));
        let is_tls = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return Err("is not an address of NATS"),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err("has credentials, which the log would show");
        }
        let port_at = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (host, port) = match port_at {
            Some(at) => (&authority[..at], authority[at + 1..].parse().map_err(|_| "has no valid port")?),
            None => (authority, PORT),
        };
        let is_ipv6 = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
        let is_name = |host: &str| {
            !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        if !is_ipv6 && !is_name(host) {
            return Err("is not an address of NATS");
        }
        Ok(ServerAddress { is_tls, host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}:{}", if self.is_tls { "tls" } else { "nats" }, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_perhaps_a_port_and_a_scheme() {
        for (text, shown) in [
            ("nats://a", "nats://a:4222"),
            ("nats.example.org", "nats://nats.example.org:4222"),
            ("127.0.0.1:5", "nats://127.0.0.1:5"),
            ("tls://B:5/", "tls://b:5"),
            ("nats://[::1]", "nats://[::1]:4222"),
            ("tls://[::1]:7", "tls://[::1]:7"),
        ] {
            assert_eq!(
                text.parse::<ServerAddress>().map(|address| address.to_string()),
                Ok(shown.to_owned()),
                "{text}"
            );
        }
        for text in [
            "",
            "nats://",
            "nats://:4222",
            "http://a",
            "nats://a:b",
            "nats://a:70000",
            "nats://a/b",
            "nats://::1",
            "[x]",
        ] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
        assert!("nats://user:password@a".parse::<ServerAddress>().unwrap_err().contains("credentials"));
    }
}
