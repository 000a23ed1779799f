//! The options of every listener, of any protocol.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use tributary_event::Identity;
use tributary_options::{Bounds, LONGEST, Section};
use tributary_protocol::Protocol;
use tributary_sink::AckLevel;

/// Options of every listener. Times are measured per connection.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerOptions {
    /// Connections open at once; further peers wait in the system's queue. 1024 (bytefrog: 16,384). At
    /// least 1.
    pub max_connections: usize,
    /// Connections open at once from one address. A number, at least 1, holds for every address. Not set (None):
    /// 64, and no limit for loopback, where a relay may speak for many. (bytefrog: 16,384.)
    pub max_connections_per_address: Option<usize>,
    /// The longest message taken, in bytes; a longer one ends the connection as soon as its length is known. (rbkit: what
    /// of a message must be held at once.) 16 MiB. 1 KiB to 1 GiB.
    pub max_message_bytes: u64,
    /// How long the first message may take, the TLS handshake included. 20 s: a JVM that starts needs 0.2 s of CPU time for
    /// its first TLS handshake, and may have a small part of a processor. At least 1 ms.
    pub handshake_timeout: Duration,
    /// How long a message may take after its first byte, besides what `min_message_rate` grants its bytes. 30 s
    /// (bytefrog: 10 min, for a program may be halted inside one). At least 1 ms.
    pub message_timeout: Duration,
    /// Bytes per second at which a long message must at least arrive: it has `message_timeout` plus the
    /// time that its bytes take at this rate. 1 KiB. 0: it has `message_timeout` alone.
    pub min_message_rate: u64,
    /// How long a peer may be silent between messages. 10 min (bytefrog, rbkit: zero). Zero: no limit.
    pub idle_timeout: Duration,
    /// TCP keepalive: after this much silence the system asks whether the peer is still there. 60 s, in whole
    /// seconds, at most 9 h. Zero: off.
    pub keepalive: Duration,
    /// After the daemon has closed a connection: how long it reads and drops what the peer still sends, so that the peer
    /// receives the reply rather than a reset. Also how long a stopping daemon reads what has arrived. 500 ms. Zero: not at
    /// all; at most 1 min.
    pub close_linger: Duration,
    /// Networks whose peers are accepted. Empty, as by default: all networks.
    pub allow: Vec<IpNet>,
    /// Networks of proxies: connections from them begin with a PROXY header (version 1 or 2, before TLS), which names the
    /// peer's address. A header from any other address is not believed. Empty, as by default: there is no proxy.
    pub proxy_protocol: Vec<IpNet>,
    /// Whether to emit events for the protocol's own definitions (strings, processes, …) too. Off.
    pub emit_definitions: bool,
    /// Loss events of one connection that are reported one by one in a second; over HTTP, each further one of a request.
    /// Further losses of that second become one event for each reason, with their number and the sum of their bytes. 100.
    /// At least 1.
    pub max_losses_per_second: usize,
    /// Memory that no other listener can take, for connections and small messages when `limits.memory_bytes` is used up.
    /// One address can take half of it. 1 MiB. 0 to 1 GiB.
    pub reserved_bytes: u64,
    /// The attributes that the listener adds to the resource of every event (`resource`), and whether they replace those
    /// that agents send (`resource_wins`, off). None, as by default: none. At most 32, keys of 1 to 128 bytes, values:
    /// text of 1 to 1024 bytes, integers, booleans, finite doubles.
    pub identity: Option<Arc<Identity>>,
    /// TLS. None, as by default: plain TCP.
    pub tls: Option<TlsOptions>,
    /// Recording of what connections receive. None, as by default: nothing is recorded.
    pub capture: Option<CaptureOptions>,
}

/// Where a listener records what its connections receive.
#[derive(Clone, Debug, PartialEq)]
pub struct CaptureOptions {
    /// The directory; each listener has one of its own in it, by its name. Relative to the working directory, made when
    /// it is first needed. No default.
    pub dir: PathBuf,
    /// Bytes of all files of one listener; the oldest goes first. 256 MiB. At least 1 MiB.
    pub max_bytes: u64,
}

/// TLS of a listener. Relative paths are relative to the working directory.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsOptions {
    /// PEM file with the certificate chain, the listener's own first. No default.
    pub cert: PathBuf,
    /// PEM file with the private key. No default.
    pub key: PathBuf,
    /// PEM file with the authorities whose clients are accepted. None, as by default: no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Whether plain connections are accepted as well, recognised by their first byte. Off.
    pub allow_plain: bool,
}

impl ListenerOptions {
    /// The defaults of a protocol's listeners.
    pub fn of(protocol: Option<Protocol>) -> Self {
        let default = ListenerOptions::default();
        match protocol {
            // An agent that is refused, or disconnected while its tracing is suspended, stops the traced program.
            Some(Protocol::Bytefrog) => ListenerOptions {
                max_connections: 16_384,
                max_connections_per_address: Some(16_384),
                message_timeout: Duration::from_secs(600),
                idle_timeout: Duration::ZERO,
                ..default
            },
            // A process without events sends nothing.
            Some(Protocol::Rbkit) => ListenerOptions { idle_timeout: Duration::ZERO, ..default },
            _ => default,
        }
    }

    /// Reads the options; errors are reported to the section.
    pub fn read(section: &mut Section<'_>, default: ListenerOptions) -> Self {
        let moment = Duration::from_millis(1);
        let options = ListenerOptions {
            max_connections: section.count("max_connections", default.max_connections, 1..=1_000_000),
            max_connections_per_address: section
                .optional_count("max_connections_per_address", 1..=1_000_000)
                .or(default.max_connections_per_address),
            max_message_bytes: section.size("max_message_bytes", default.max_message_bytes, 1 << 10..=1 << 30),
            handshake_timeout: section.duration("handshake_timeout", default.handshake_timeout, moment..=LONGEST),
            message_timeout: section.duration("message_timeout", default.message_timeout, moment..=LONGEST),
            min_message_rate: section.size("min_message_rate", default.min_message_rate, 0..=1 << 30),
            idle_timeout: section.duration("idle_timeout", default.idle_timeout, Duration::ZERO..=LONGEST),
            keepalive: section.duration("keepalive", default.keepalive, Duration::ZERO..=9 * HOUR),
            close_linger: section.duration("close_linger", default.close_linger, Duration::ZERO..=HOUR / 60),
            allow: section.cidrs("allow"),
            proxy_protocol: section.cidrs("proxy_protocol"),
            emit_definitions: section.bool("emit_definitions", default.emit_definitions),
            max_losses_per_second: section.count("max_losses_per_second", default.max_losses_per_second, 1..=1_000_000),
            reserved_bytes: section.size("reserved_bytes", default.reserved_bytes, 0..=1 << 30),
            identity: identity(section),
            tls: section.optional_section("tls", TlsOptions::read).flatten(),
            capture: section.optional_section("capture", CaptureOptions::read).flatten(),
        };
        if options.keepalive.subsec_nanos() != 0 {
            section.error(
                "keepalive",
                "`keepalive` must be whole seconds",
                Some("the system counts in seconds".into()),
            );
        }
        options
    }
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions {
            max_connections: 1024,
            max_connections_per_address: None,
            max_message_bytes: 16 << 20,
            handshake_timeout: Duration::from_secs(20),
            message_timeout: Duration::from_secs(30),
            min_message_rate: 1 << 10,
            idle_timeout: Duration::from_secs(600),
            keepalive: Duration::from_secs(60),
            close_linger: Duration::from_millis(500),
            allow: Vec::new(),
            proxy_protocol: Vec::new(),
            emit_definitions: false,
            max_losses_per_second: 100,
            reserved_bytes: 1 << 20,
            identity: None,
            tls: None,
            capture: None,
        }
    }
}

impl ListenerOptions {
    /// Declares the memory that a listener may take.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        if self.reserved_bytes > 0 {
            bounds.add(of, "its reserve for connections (reserved_bytes)", self.reserved_bytes);
        }
        bounds.add(of, "addresses that have used their allowance up", REMEMBERED_ADDRESSES_BYTES);
        if let Some(capture) = &self.capture {
            bounds.add(of, "what waits to be recorded (capture)", super::capture::MOST_BYTES);
            let what = "the list of what was recorded (capture.max_bytes)";
            bounds.add(of, what, listed_files(capture.max_bytes));
        }
    }

    /// What a connection may buffer of an incomplete message, with the bytes that were read together with it.
    pub fn most_buffered_bytes(&self) -> u64 {
        super::read_buffer::most_bytes(self.max_message_bytes)
    }
}

/// Reads the attributes that a listener adds to resources.
fn identity(section: &mut Section<'_>) -> Option<Arc<Identity>> {
    let attributes = section.attributes("resource");
    let wins = section.bool("resource_wins", false);
    (!attributes.is_empty()).then(|| Arc::new(Identity::new(attributes, wins)))
}

/// The memory for the list of a directory whose files add up to `max_bytes`; each counts at least one block of the disk.
fn listed_files(max_bytes: u64) -> u64 {
    max_bytes.div_ceil(FILE_BYTES).saturating_mul(LISTED_FILE_BYTES)
}

/// Addresses without a connection that a listener remembers because they have used their allowance up.
pub(super) const MAX_REMEMBERED_ADDRESSES: usize = 1024;
/// What they take at most.
const REMEMBERED_ADDRESSES_BYTES: u64 = MAX_REMEMBERED_ADDRESSES as u64 * 256;

/// What a file counts at least.
pub(super) const FILE_BYTES: u64 = 4096;
/// What a file takes in such a list.
const LISTED_FILE_BYTES: u64 = 160;

impl CaptureOptions {
    /// Reads the options; errors are reported to the section. None when the directory is not named.
    fn read(section: &mut Section<'_>) -> Option<Self> {
        let dir = section.required_path("dir");
        let max_bytes = section.size("max_bytes", 256 << 20, 1 << 20..=1 << 50);
        Some(CaptureOptions { dir: dir?, max_bytes })
    }
}

impl TlsOptions {
    /// Reads the options; errors are reported to the section. None when a file is not named.
    pub fn read(section: &mut Section<'_>) -> Option<Self> {
        let cert = section.required_path("cert");
        let key = section.required_path("key");
        let client_ca = section.optional_path("client_ca");
        let allow_plain = section.bool("allow_plain", false);
        Some(TlsOptions { cert: cert?, key: key?, client_ca, allow_plain })
    }
}

/// Options of listeners that speak HTTP, besides those of every listener.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOptions {
    /// Requests that are decoded and delivered at once; further ones wait, as long as `delivery_timeout`. 64. At least
    /// 1.
    pub max_requests: usize,
    /// The longest head of a request, in bytes. 16 KiB. 8 KiB to 1 MiB.
    pub max_head_bytes: usize,
    /// How long a peer waits for its response while sinks do not take its events; then the response is 503. 30 s. At
    /// least 1 ms.
    pub delivery_timeout: Duration,
    /// The level that the events of a request must have reached at every sink that takes them, before it is answered with a
    /// 2xx. None, as by default: durable if every sink that takes events of the listener can be durable, otherwise written.
    pub acknowledge: Option<AckLevel>,
    /// Where requests are kept that were received and cannot be decoded.
    pub quarantine: QuarantineOptions,
}

/// Where requests are kept that were received and cannot be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct QuarantineOptions {
    /// The directory; each listener has one of its own in it, by its name. Relative to the working directory, made when
    /// it is first needed. "quarantine". Empty: none is kept.
    pub dir: PathBuf,
    /// Bytes of all that one listener keeps; the oldest goes first. 256 MiB. At least 1 MiB.
    pub max_bytes: u64,
}

impl HttpOptions {
    /// Reads the options; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = HttpOptions::default();
        let moment = Duration::from_millis(1);
        HttpOptions {
            max_requests: section.count("max_requests", default.max_requests, 1..=100_000),
            max_head_bytes: section.size("max_head_bytes", default.max_head_bytes, 8 << 10..=1 << 20),
            delivery_timeout: section.duration("delivery_timeout", default.delivery_timeout, moment..=LONGEST),
            acknowledge: section.optional_choice("acknowledge", &AckLevel::ALL.map(|level| (level.as_str(), level))),
            quarantine: section.section("quarantine", QuarantineOptions::read),
        }
    }
}

impl HttpOptions {
    /// Declares the memory that a listener over HTTP may take.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} requests being decoded (max_requests)", self.max_requests);
        bounds.add(of, what, (self.max_requests as u64).saturating_mul(REQUEST_BYTES));
        self.quarantine.declare(of, bounds);
    }
}

/// What a request takes while it is decoded, beside its body: a window for inflating, buffers, a response.
const REQUEST_BYTES: u64 = 64 << 10;

impl QuarantineOptions {
    /// Declares the memory that a quarantine takes.
    pub(super) fn declare(&self, of: &str, bounds: &mut Bounds) {
        if !self.dir.as_os_str().is_empty() {
            let what = "the list of what is kept (quarantine.max_bytes)";
            bounds.add(of, what, listed_files(self.max_bytes));
        }
    }

    pub(super) fn read(section: &mut Section<'_>) -> Self {
        let default = QuarantineOptions::default();
        QuarantineOptions {
            dir: section.text("dir", &default.dir.to_string_lossy()).into(),
            max_bytes: section.size("max_bytes", default.max_bytes, 1 << 20..=1 << 50),
        }
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        HttpOptions {
            max_requests: 64,
            max_head_bytes: 16 << 10,
            delivery_timeout: Duration::from_secs(30),
            acknowledge: None,
            quarantine: QuarantineOptions::default(),
        }
    }
}

impl Default for QuarantineOptions {
    fn default() -> Self {
        QuarantineOptions { dir: "quarantine".into(), max_bytes: 256 << 20 }
    }
}

const HOUR: Duration = Duration::from_secs(3600);
