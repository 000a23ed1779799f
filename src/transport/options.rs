//! What an operator can set on every listener.

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

/// Options of every listener.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct ListenerOptions {
    pub max_connections: usize,
    pub max_connections_per_address: Option<usize>,
    pub max_message_bytes: u64,
    pub handshake_timeout: Duration,
    pub message_timeout: Duration,
    pub min_message_rate: u64,
    pub idle_timeout: Duration,
    pub keepalive: Duration,
    pub close_linger: Duration,
    pub allow: Vec<IpNet>,
    pub emit_definitions: bool,
    pub tls: Option<TlsOptions>,
}

/// TLS on a listener.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct TlsOptions {
    pub cert: PathBuf,
    pub key: PathBuf,
    pub client_ca: Option<PathBuf>,
    pub allow_plain: bool,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions {
            max_connections: 1024,
            max_connections_per_address: None,
            max_message_bytes: 16 << 20,
            handshake_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(30),
            min_message_rate: 1024,
            idle_timeout: Duration::from_secs(600),
            keepalive: Duration::from_secs(60),
            close_linger: Duration::from_millis(500),
            allow: Vec::new(),
            emit_definitions: false,
            tls: None,
        }
    }
}
