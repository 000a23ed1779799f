//! `[admin]`: the address of the admin endpoint, and the access to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tributary_options::{Bounds, LONGEST, Section};
use tributary_transport::options::TlsOptions;

/// The default port, which Prometheus exporters of OpenTelemetry use too.
const PORT: u16 = 9464;
/// The memory of a connection, with its request, its response and TLS.
const CONNECTION_BYTES: u64 = 128 << 10;

/// The memory of the last counters of a listener or sink.
pub(super) const HISTORY_BYTES: u64 = 180 * 160;

/// Options of the admin endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminOptions {
    /// The address that it binds. Default: loopback, port 9464. None (an empty string in the file): no endpoint.
    pub listen: Option<SocketAddr>,
    /// `listen` is the default: if another process has that address, the daemon runs without an endpoint.
    pub is_default: bool,
    /// A second address, which answers `/livez`, `/readyz` and `/metrics` only, to everyone and without a token; with the
    /// same `tls`. None, as by default: none.
    pub metrics_listen: Option<SocketAddr>,
    /// A file with the token that requests must have, except requests of `/livez` and `/readyz`. None: no token.
    pub token_file: Option<PathBuf>,
    /// Host names and IP addresses that requests may have in their Host header, besides loopback and the address of the
    /// connection. In lower case. Default: none.
    pub hosts: Vec<String>,
    /// Open connections; when there are more, one without a request is closed, or the slowest. Default: 16. 8 to 1024.
    pub max_connections: usize,
    /// How long a connection may take for its request, the TLS handshake included. Default: 5 s. At least 10 ms.
    pub head_timeout: Duration,
    /// How long a response may take, except that of a live view. Default: 2 min. At least 1 s.
    pub response_timeout: Duration,
    /// How long the reader of a live view (`/tap`, `/api/v1/events/live`, `/api/v1/wire`) may take nothing of what waits for
    /// it. Default: 20 s. At least 100 ms.
    pub tap_timeout: Duration,
    /// How long a connection is kept open for a further request. Default: 30 s. At least 10 ms.
    pub idle_timeout: Duration,
    /// Requests of one connection; after the last one it is closed. Default: 1,000. At least 1.
    pub max_requests_per_connection: u32,
    /// TLS. None: plain TCP.
    pub tls: Option<TlsOptions>,
    /// The daemon is not ready when a sink has events and has written none for this long. Default: 30 s. At least 1 s.
    pub stall_time: Duration,
}

impl AdminOptions {
    /// Reads the options. Errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = AdminOptions::default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let listen = section.address_or_none("listen", address);
        let second = Duration::from_secs(1);
        let short = Duration::from_millis(10)..=Duration::from_secs(3600);
        let options = AdminOptions {
            listen,
            is_default: listen == Some(address),
            metrics_listen: section.optional_address("metrics_listen"),
            token_file: section.optional_path("token_file"),
            hosts: section.list_of_text("hosts").iter().map(|host| host.to_ascii_lowercase()).collect(),
            max_connections: section.count("max_connections", default.max_connections, 8..=1024),
            head_timeout: section.duration("head_timeout", default.head_timeout, short.clone()),
            response_timeout: section.duration("response_timeout", default.response_timeout, second..=LONGEST),
            tap_timeout: section.duration(
                "tap_timeout",
                default.tap_timeout,
                Duration::from_millis(100)..=Duration::from_secs(3600),
            ),
            idle_timeout: section.duration("idle_timeout", default.idle_timeout, short),
            max_requests_per_connection: section.count(
                "max_requests_per_connection",
                default.max_requests_per_connection as usize,
                1..=1_000_000,
            ) as u32,
            tls: section.optional_section("tls", TlsOptions::read).flatten(),
            stall_time: section.duration("stall_time", default.stall_time, second..=LONGEST),
        };
        if let Some(host) = options.hosts.iter().find(|host| !is_host(host)) {
            let message = format!("an element of `hosts` is not a host: {host:?}");
            let help = "write names and IP addresses without ports, e.g. [\"collector.example.com\"]";
            section.error("hosts", message, Some(help.into()));
        }
        if options.tls.as_ref().is_some_and(|tls| tls.allow_plain) {
            section
                .error_at_name("the admin endpoint cannot have `tls.allow_plain`: with TLS it needs TLS always", None);
        }
        let is_exposed = options.listen.is_some_and(|listen| !listen.ip().is_loopback());
        if is_exposed && (options.token_file.is_none() || options.tls.is_none()) {
            section.error(
                "listen",
                "the admin endpoint commands agents: beyond loopback it needs `token_file` and `tls`",
                Some("set both, or listen on 127.0.0.1 and forward the port".into()),
            );
        }
        options
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

impl Default for AdminOptions {
    fn default() -> Self {
        AdminOptions {
            listen: None,
            is_default: false,
            metrics_listen: None,
            token_file: None,
            hosts: Vec::new(),
            max_connections: 16,
            head_timeout: Duration::from_secs(5),
            response_timeout: Duration::from_secs(120),
            tap_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(30),
            max_requests_per_connection: 1_000,
            tls: None,
            stall_time: Duration::from_secs(30),
        }
    }
}
