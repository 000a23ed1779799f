//! `[admin]`: the address of the admin endpoint, and the access to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_transport::options::TlsOptions;

/// The default port, which Prometheus exporters of OpenTelemetry use too.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
const SECOND: Duration = Duration::from_secs(1);
/// The memory of a connection, with its request, its response and TLS.
const CONNECTION_BYTES: u64 = 128 << 10;

/// The memory of the last counters of a listener or sink.
pub(super) const HISTORY_BYTES: u64 = 180 * 160;

options! {
    /// Options of the admin endpoint.
    #[derive(Clone, Debug, PartialEq)]
    pub struct AdminOptions checked by check {
        /// An IP address and a port; "" for no endpoint. If another process has the default address, the daemon runs without an
        /// endpoint. An address that is not loopback requires token_file and tls.
        pub listen: Option<SocketAddr> = address_or_none(DEFAULT_ADDRESS),
        /// `listen` is the default: if another process has that address, the daemon runs without an endpoint.
        pub is_default: bool = no_option(listen == Some(DEFAULT_ADDRESS)),
        /// A second address for monitoring: it answers /livez, /readyz and /metrics, to everyone and without a token, and nothing else.
        /// With the same tls as `listen`.
        pub metrics_listen: Option<SocketAddr> = optional_address(),
        /// A file with the token that requests must have (Authorization: Bearer …), except requests of /livez and /readyz.
        pub token_file: Option<PathBuf> = optional_path(),
        /// Host names and IP addresses that requests may have in their Host header, without port, e.g. ["collector.example.com"]. Always
        /// allowed: localhost, loopback addresses, the address that the connection was made to, and every name if the request has the
        /// token. Other hosts are refused: a web page could use them to send requests from a browser.
        pub hosts: Vec<String> = flat(read_hosts),
        /// Open connections. When there are more, the connection that has waited longest for its request is closed.
        pub max_connections: usize = count(16, 8..=1024),
        /// How long a connection may take for its request, the TLS handshake included.
        pub head_timeout: Duration = duration(5 * SECOND, Duration::from_millis(10)..=3600 * SECOND),
        /// How long a response may take. A live view (`tributary tap`, the page) may last.
        pub response_timeout: Duration = duration(120 * SECOND, SECOND..=LONGEST),
        /// How long the reader of a live view may take nothing of what waits for it.
        pub tap_timeout: Duration = duration(20 * SECOND, Duration::from_millis(100)..=3600 * SECOND),
        /// How long a connection is kept open for a further request.
        pub idle_timeout: Duration = duration(30 * SECOND, Duration::from_millis(10)..=3600 * SECOND),
        /// How many requests a connection may have; after the last one it is closed.
        pub max_requests_per_connection: u32 = count(1_000, 1..=1_000_000),
        /// TLS is on when `tls` is set. As for listeners, but allow_plain must be false.
        pub tls: Option<TlsOptions> = optional_section(TlsOptions::read).filter(TlsOptions::is_complete),
        /// The daemon is not ready when a sink has events in its queue and has written none for this long.
        pub stall_time: Duration = duration(30 * SECOND, SECOND..=LONGEST),
    }
}

fn read_hosts(section: &mut Section<'_>) -> Vec<String> {
    section.list_of_text("hosts").iter().map(|host| host.to_ascii_lowercase()).collect()
}

impl AdminOptions {
    fn check(&self, section: &mut Section<'_>) {
        if let Some(host) = self.hosts.iter().find(|host| !is_host(host)) {
            let message = format!("an element of `hosts` is not a host: {host:?}");
            let help = "write names and IP addresses without ports, e.g. [\"collector.example.com\"]";
            section.error("hosts", message, Some(help.into()));
        }
        if self.tls.as_ref().is_some_and(|tls| tls.allow_plain) {
            section
                .error_at_name("the admin endpoint cannot have `tls.allow_plain`: with TLS it needs TLS always", None);
        }
        let is_exposed = self.listen.is_some_and(|listen| !listen.ip().is_loopback());
        if is_exposed && (self.token_file.is_none() || self.tls.is_none()) {
            section.error(
                "listen",
                "the admin endpoint commands agents: beyond loopback it needs `token_file` and `tls`",
                Some("set both, or listen on 127.0.0.1 and forward the port".into()),
            );
        }
    }

    /// Declares the memory that the endpoint can use.
    pub(crate) fn declare(&self, bounds: &mut Bounds) {
        let connections = self.max_connections as u64;
        for (address, whose) in [(self.listen, ""), (self.metrics_listen, " (metrics_listen)")] {
            if address.is_some() {
                let what = format!("{connections} connections, each with a request and a response{whose}");
                bounds.add("admin", what, connections * CONNECTION_BYTES);
            }
        }
    }
}

/// Whether it is a host name or an IP address, without a port.
fn is_host(host: &str) -> bool {
    let is_name = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    is_name || host.parse::<IpAddr>().is_ok()
}
