//! The options of every listener, of any protocol.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use tributary_event::Identity;
use tributary_options::{Bounds, LONGEST, Section, defaults, options};
use tributary_protocol::Protocol;
use tributary_sink::AckLevel;
use tributary_system::kept_files;

options! {
    /// Options of every listener. Times are measured per connection.
    #[derive(Clone, Debug, PartialEq)]
    pub struct ListenerOptions(protocol: Option<Protocol>) checked by check {
        /// Open connections; further connections wait in the queue of the system.
        pub max_connections: usize = count(if is_bytefrog(protocol) { 16_384 } else { 1024 }, 1..=1_000_000),
        /// Open connections from one address. Not set: 64, and no limit for loopback, where a relay may speak for many (bytefrog:
        /// 16384). Set: applies to every address.
        pub max_connections_per_address: Option<usize> =
            optional_count(1..=1_000_000).or(is_bytefrog(protocol).then_some(16_384)),
        /// The longest message. A longer one ends the connection as soon as its length is known.
        pub max_message_bytes: u64 = size(16 << 20, 1 << 10..=1 << 30),
        /// How long a new connection may take for its first message, the TLS handshake included. A JVM that starts needs 0.2 s of CPU
        /// time for its first TLS handshake, and may have a small part of a processor.
        pub handshake_timeout: Duration = duration(20 * SECOND, MOMENT..=LONGEST),
        /// How long a message may take from its first byte: this time, plus the time that its bytes need at min_message_rate.
        pub message_timeout: Duration = duration(
            // A traced program may be halted inside a message.
            if is_bytefrog(protocol) { 600 * SECOND } else { 30 * SECOND },
            MOMENT..=LONGEST
        ),
        /// The lowest rate, per second, at which a message may arrive. 0: only message_timeout limits it.
        pub min_message_rate: u64 = size(1 << 10, 0..=1 << 30),
        /// How long a connection may be idle between messages; then it is closed. "0s": no limit. Some agents never reconnect after
        /// their connection was closed.
        pub idle_timeout: Duration = duration(
            // An agent that is refused, or disconnected while its tracing is suspended, stops the traced program; a Ruby
            // process without events sends nothing.
            if matches!(protocol, Some(Protocol::Bytefrog | Protocol::Rbkit)) { Duration::ZERO } else { 600 * SECOND },
            Duration::ZERO..=LONGEST
        ),
        /// TCP keepalive: after this idle time the system checks whether the peer still exists. Whole seconds. "0s": off.
        pub keepalive: Duration = duration(60 * SECOND, Duration::ZERO..=9 * 3600 * SECOND),
        /// When the daemon ends a connection: how long it reads and discards the peer's further bytes, so that the peer gets the last
        /// reply instead of a reset. A stopping daemon reads bytes that have arrived for as long. "0s": it does not read.
        pub close_linger: Duration = duration(Duration::from_millis(500), Duration::ZERO..=60 * SECOND),
        /// Networks that may connect, e.g. ["10.0.0.0/8", "192.0.2.7"]. Empty: all.
        pub allow: Vec<IpNet> = cidrs(),
        /// Networks of load balancers, e.g. ["10.0.0.5"]. Their connections begin with a PROXY header, version 1 or 2, before TLS. The
        /// address in the header is the address of the peer, also for `allow` and the limit per address. From other networks a PROXY
        /// header is invalid input. Empty: no load balancers.
        pub proxy_protocol: Vec<IpNet> = cidrs(),
        /// Whether definitions of the protocol (strings, processes, …) become events too.
        pub emit_definitions: bool = bool(false),
        /// Loss events of one connection that are reported one by one in a second; over HTTP, those of a request. Further losses of
        /// that second become one event for each reason, with their number and the sum of their bytes.
        pub max_losses_per_second: usize = count(100, 1..=1_000_000),
        /// Memory that no other listener can take: for connections and small messages when limits.memory_bytes is used up. One address
        /// can take half of it.
        pub reserved_bytes: u64 = size(1 << 20, 0..=1 << 30),
        /// Attributes that the resource of every event of the listener has, e.g. { "service.name" = "shop",
        /// "deployment.environment.name" = "prod" }. What an agent sends of itself comes first. Keys with dots are written in quotes.
        /// At most 32; keys of 1 to 128 bytes; values: text of 1 to 1024 bytes, integers, true or false, finite floats.
        pub identity: Option<Arc<Identity>> = flat(identity),
        /// TLS is on when `tls` is set.
        pub tls: Option<TlsOptions> = optional_section(TlsOptions::read).filter(TlsOptions::is_complete),
        /// When `capture` is set, the received bytes of every connection are recorded, decrypted and with their times, for `decode` and
        /// `replay`.
        pub capture: Option<CaptureOptions> =
            optional_section(CaptureOptions::read).filter(CaptureOptions::is_complete),
    }
}

options! {
    /// Where a listener records what its connections receive.
    #[derive(Clone, Debug, PartialEq)]
    pub struct CaptureOptions {
        /// The directory, made when it is first needed. Each listener writes to a directory with its name in it.
        pub dir: PathBuf = required_path().unwrap_or_default(),
        /// Bytes of all files of a listener. When they have more, the oldest is removed.
        pub max_bytes: u64 = size(256 << 20, 1 << 20..=1 << 50),
    }
}

options! {
    /// TLS of a listener. Relative paths are relative to the working directory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TlsOptions {
        /// PEM file with the certificate chain, the listener's own first.
        pub cert: PathBuf = required_path().unwrap_or_default(),
        /// PEM file with the private key.
        pub key: PathBuf = required_path().unwrap_or_default(),
        /// PEM file with the authorities of client certificates. Not set: clients need no certificate.
        pub client_ca: Option<PathBuf> = optional_path(),
        /// Whether connections without TLS are accepted too. The first byte shows which they are.
        pub allow_plain: bool = bool(false),
    }
}

impl Default for ListenerOptions {
    fn default() -> Self {
        ListenerOptions::of(None)
    }
}

impl ListenerOptions {
    /// The defaults of a protocol's listeners.
    pub fn of(protocol: Option<Protocol>) -> Self {
        defaults(|section| ListenerOptions::read(section, protocol))
    }

    fn check(&self, section: &mut Section<'_>) {
        if self.keepalive.subsec_nanos() != 0 {
            section.error(
                "keepalive",
                "`keepalive` must be whole seconds",
                Some("the system counts in seconds".into()),
            );
        }
    }

    /// Declares the memory that a listener may take.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        if self.reserved_bytes > 0 {
            bounds.add(of, "its reserve for connections (reserved_bytes)", self.reserved_bytes);
        }
        bounds.add(of, "addresses that have used their allowance up", REMEMBERED_ADDRESSES_BYTES);
        if let Some(capture) = &self.capture {
            bounds.add(of, "what waits to be recorded (capture)", super::capture::MOST_BYTES);
            let what = "the list of what was recorded (capture.max_bytes)";
            bounds.add(of, what, kept_files::list_bytes(capture.max_bytes));
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
    let sentence = "Whether the attributes of `resource` replace those that agents send.";
    let wins = section.about(sentence).bool("resource_wins", false);
    (!attributes.is_empty()).then(|| Arc::new(Identity::new(attributes, wins)))
}

/// Addresses without a connection that a listener remembers because they have used their allowance up.
pub(super) const MAX_REMEMBERED_ADDRESSES: usize = 1024;
/// What they take at most.
const REMEMBERED_ADDRESSES_BYTES: u64 = MAX_REMEMBERED_ADDRESSES as u64 * 256;

impl CaptureOptions {
    fn is_complete(&self) -> bool {
        !self.dir.as_os_str().is_empty()
    }
}

impl TlsOptions {
    /// Whether the required files are named. Otherwise that was reported.
    pub fn is_complete(&self) -> bool {
        !self.cert.as_os_str().is_empty() && !self.key.as_os_str().is_empty()
    }
}

fn is_bytefrog(protocol: Option<Protocol>) -> bool {
    protocol == Some(Protocol::Bytefrog)
}

options! {
    /// Options of listeners that speak HTTP, besides those of every listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HttpOptions {
        /// Requests that are decoded and delivered at the same time; further ones wait, up to delivery_timeout.
        pub max_requests: usize = count(64, 1..=100_000),
        /// The longest head of a request.
        pub max_head_bytes: usize = size(16 << 10, 8 << 10..=1 << 20),
        /// Requests of one connection at the same time, if the listener speaks HTTP/2; a peer opens further ones when others are
        /// answered.
        pub max_concurrent_streams: usize = count(64, 1..=10_000),
        /// How long a peer waits for its answer while sinks do not take its events; then it is answered 503.
        pub delivery_timeout: Duration = duration(30 * SECOND, MOMENT..=LONGEST),
        /// When a request is answered with a 2xx: when every sink that takes its events has them "durable" on a disk, so that they
        /// survive a loss of power, or "written", so that they survive the end of the daemon. A file sink can be durable if it syncs
        /// at all, an http or otlp sink if it has a spool, a nats sink always. Not set: "durable" if all sinks of these events can be,
        /// otherwise "written".
        pub acknowledge: Option<AckLevel> = optional_choice(&AckLevel::ALL.map(|level| (level.as_str(), level))),
        /// Where requests are kept that were received and cannot be decoded.
        pub quarantine: QuarantineOptions = section(QuarantineOptions::read),
    }
}

options! {
    /// Where requests are kept that were received and cannot be decoded.
    #[derive(Clone, Debug, PartialEq)]
    pub struct QuarantineOptions {
        /// The directory, made when it is first needed; each listener has a subdirectory with its name. Empty: nothing is stored.
        pub dir: PathBuf = text("quarantine").into(),
        /// Bytes of all that one listener keeps; the oldest is removed first.
        pub max_bytes: u64 = size(256 << 20, 1 << 20..=1 << 50),
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
            bounds.add(of, what, kept_files::list_bytes(self.max_bytes));
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MOMENT: Duration = Duration::from_millis(1);
