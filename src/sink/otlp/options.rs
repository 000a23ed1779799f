//! The options of an OTLP sink.

use std::io;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderMap;

use super::encode::Signal;
use tributary_event::{Kind, MOST_BATCH_BYTES};
use tributary_options::{Bounds, Endpoint, LONGEST, Secret, Section, options};
use tributary_sink::Kinds;
use tributary_sink::headers;
use tributary_sink_forward::client::{ClientTls, HttpVersion, endpoint};
use tributary_sink_forward::{Compression, GiveUp, Proxy, RetryOptions, SpoolOptions};

/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 2 * 1024 * 1024;
/// Headers that the sink sets itself.
const OWN_HEADERS: [&str; 8] = [
    "content-type",
    "content-encoding",
    "content-length",
    "transfer-encoding",
    "host",
    "te",
    "user-agent",
    "grpc-encoding",
];

options! {
    /// The options of an [`super::Otlp`].
    #[derive(Clone, PartialEq, Debug)]
    pub struct Options checked by check {
        /// The receiver: http:// or https://. The port of gRPC is usually 4317, that of HTTP 4318. With "http/protobuf" a path can
        /// follow, to which /v1/logs, /v1/traces, /v1/metrics and /v1development/profiles are appended.
        pub endpoint: Endpoint = flat(|section| endpoint(section, "http://host:4317")).into(),
        /// The transport: "grpc", over HTTP/2, or "http/protobuf", over HTTP/1.1.
        pub protocol: Protocol = choice(Protocol::default(), &Protocol::ALL.map(|of| (of.as_str(), of))),
        /// The compression of requests: "gzip", which every receiver takes, "zstd" or "none".
        pub compression: Compression =
            choice(Compression::Gzip, &Compression::ALL.map(|compression| (compression.as_str(), compression))),
        /// Further headers of each request: { "x-scope-orgid" = "shop", "authorization" = { file = "/etc/tributary/token" } }. Values
        /// can also be { env = "NAME" }. They are never shown.
        pub headers: Vec<(String, Secret)> = flat(|section| headers::read(section, &OWN_HEADERS)),
        /// TLS of receivers with https.
        pub tls: ClientTls = section(read_tls),
        /// The HTTP proxy of requests.
        pub proxy: Proxy = flat(Proxy::read),
        /// The signals that are sent: "logs" (and losses), "traces", "metrics", "profiles". Empty: all, but profiles only to a receiver
        /// that takes them.
        pub signals: Vec<Signal> = choices(&Signal::ALL.map(|signal| (signal.as_str(), signal))),
        /// The length of a request before compression, at most. Most receivers take 4 MiB. An event that is longer alone counts as
        /// failed.
        pub max_request_bytes: usize = size(3 << 20, 4 << 10..=64 << 20),
        /// The time from the first event of a request until it is complete, at most.
        pub max_request_delay: Duration = duration(Duration::from_secs(1), Duration::from_millis(1)..=LONGEST),
        /// Requests that are sent at the same time.
        pub max_in_flight: usize = count(4, 1..=256),
        /// How long a request may take, connecting and the response included.
        pub timeout: Duration = duration(Duration::from_secs(10), Duration::from_millis(1)..=LONGEST),
        /// The pauses between attempts.
        pub retry: RetryOptions =
            flat(|section| RetryOptions::read(section, Duration::from_millis(100), Duration::from_secs(30))),
        /// When a request is given up that the destination does not take, although it takes others.
        pub give_up: GiveUp = flat(GiveUp::read),
        /// Whether events carry where they came from: the listener, the peer, the connection and the place in its stream.
        pub origin: bool = bool(true),
        /// A queue on disk for the time in which the destination is away. Not set: there is none.
        pub spool: Option<SpoolOptions> = optional_section(SpoolOptions::read),
        /// The listeners whose heap dumps come as samples, too (`heap = "both"`): no profiles are made of the logs of their objects.
        /// It follows from the listeners.
        pub summed_heaps: Vec<String> = no_option(Vec::new()),
    }
}

fn read_tls(section: &mut Section<'_>) -> ClientTls {
    section.about("The name that the certificate of the server must have. Not set: the host of the endpoint.");
    ClientTls { server_name: section.optional_text("server_name"), ..ClientTls::read(section) }
}

/// The transport of OTLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// gRPC, over HTTP/2. The usual port is 4317.
    #[default]
    Grpc,
    /// Protocol Buffers over HTTP/1.1. The usual port is 4318.
    Http,
}

impl Protocol {
    /// Every transport.
    pub const ALL: [Protocol; 2] = [Protocol::Grpc, Protocol::Http];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Grpc => "grpc",
            Protocol::Http => "http/protobuf",
        }
    }
}

impl Options {
    /// The default options of a sink that sends to `endpoint`.
    pub fn to(endpoint: Uri) -> Options {
        Options { endpoint: endpoint.into(), ..Options::default() }
    }

    /// The version of HTTP that the transport needs.
    pub(super) fn version(&self) -> HttpVersion {
        match self.protocol {
            Protocol::Grpc => HttpVersion::Http2,
            Protocol::Http => HttpVersion::Http1,
        }
    }

    fn check(&self, section: &mut Section<'_>) {
        self.check_path(section);
    }

    /// Reports a path that gRPC does not have, or that the sink appends itself.
    fn check_path(&self, section: &mut Section<'_>) {
        let path = self.endpoint.path().trim_end_matches('/');
        let of_signal = Signal::ALL.into_iter().find_map(|signal| Some((signal, path.strip_suffix(signal.path())?)));
        if let Some((signal, before)) = of_signal {
            let (scheme, authority) = (self.endpoint.scheme_str(), self.endpoint.authority());
            let endpoint = format!("{}://{}{before}", scheme.unwrap_or("http"), authority.map_or("", |of| of.as_str()));
            let help = match self.protocol {
                Protocol::Http => format!("write endpoint = \"{endpoint}\""),
                Protocol::Grpc => format!(
                    "write endpoint = \"{endpoint}\" and protocol = \"http/protobuf\", or the address of gRPC without a path"
                ),
            };
            let why = format!("`endpoint` ends in {}, which is appended for each signal", signal.path());
            section.error("endpoint", why, Some(help));
        } else if self.protocol == Protocol::Grpc && !path.is_empty() {
            let help = "remove the path, or set protocol = \"http/protobuf\"".to_owned();
            section.error("endpoint", "`endpoint` has a path, which gRPC does not have", Some(help));
        }
    }

    /// The kinds of events that the sink sends, of those that it is configured to take.
    pub fn kinds(&self, taken: Kinds) -> Kinds {
        let is_sent = |kind: &Kind| taken.contains(*kind) && self.sends(Signal::of(*kind));
        Kind::ALL.into_iter().filter(is_sent).collect()
    }

    /// Whether events of this signal are sent.
    pub(super) fn sends(&self, signal: Signal) -> bool {
        self.signals.is_empty() || self.signals.contains(&signal)
    }

    /// The headers of each request. Files and the environment are read.
    ///
    /// # Errors
    /// A value cannot be read, or is no value of a header.
    pub(super) fn header_map(&self) -> io::Result<HeaderMap> {
        headers::map(&self.headers)
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let request = self.max_request_bytes as u64;
        // One request of each signal is being made, and one with heap dumps, twice as long while its buffers grow.
        let made = (Signal::ALL.len() as u64 + 1) * request * 2;
        let sent = (request + MOST_BATCH_BYTES) * (2 + self.max_in_flight as u64);
        bounds.add(of, "requests being made and sent", made + sent + CLIENT_BYTES);
        if self.spool.is_some() {
            bounds.add(of, "requests that are not synced yet", tributary_spool::MAX_UNSYNCED_BYTES + request);
        }
    }
}
