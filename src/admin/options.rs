//! `[admin]`: who may look into the daemon, and where.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::options::{Bounds, LONGEST, Section};
use crate::transport::options::TlsOptions;

/// The port that collectors' metrics are scraped from by custom.
const PORT: u16 = 9464;

/// Options of the admin endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct AdminOptions {
    /// Where it listens. Loopback, port 9464. None (empty in the file): there is none.
    pub listen: Option<SocketAddr>,
    /// `listen` is as by default: when that address is taken, the daemon does without.
    pub is_default: bool,
    /// A file with the token that requests must carry, but for those of `/livez` and `/readyz`. None: no token.
    pub token_file: Option<PathBuf>,
    /// TLS. None: plain TCP.
    pub tls: Option<TlsOptions>,
    /// Events that no sink has taken for so long make the daemon unready. 30 s. At least 1 s.
    pub stall_time: Duration,
}

impl AdminOptions {
    /// Reads the options; what is wrong is told to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = AdminOptions::default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
        let listen = section.address_or_none("listen", address);
        let options = AdminOptions {
            listen,
            is_default: listen == Some(address),
            token_file: section.optional_path("token_file"),
            tls: section.optional_section("tls", TlsOptions::read).flatten(),
            stall_time: section.duration("stall_time", default.stall_time, Duration::from_secs(1)..=LONGEST),
        };
        if options.tls.as_ref().is_some_and(|tls| tls.allow_plain) {
            section.error_at_name("the admin endpoint speaks TLS or does not: `tls.allow_plain` cannot be", None);
        }
        let is_exposed = options.listen.is_some_and(|listen| !listen.ip().is_loopback());
        if is_exposed && (options.token_file.is_none() || options.tls.is_none()) {
            section.error(
                "listen",
                "the admin endpoint commands agents: beyond loopback it needs `token_file` and `tls`",
                Some("or listen on 127.0.0.1, and forward the port".into()),
            );
        }
        options
    }
}

impl AdminOptions {
    /// Says what the endpoint may take of memory whatever happens.
    pub(crate) fn declare(&self, bounds: &mut Bounds) {
        if self.listen.is_some() {
            let connections = super::MAX_CONNECTIONS as u64;
            let what = format!("{connections} connections, each with a request and an answer");
            bounds.add("admin", what, connections * super::CONNECTION_BYTES);
        }
    }
}

impl Default for AdminOptions {
    fn default() -> Self {
        AdminOptions {
            listen: None,
            is_default: false,
            token_file: None,
            tls: None,
            stall_time: Duration::from_secs(30),
        }
    }
}
