//! The options of an OTLP sink.

use std::io;
use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderMap;

use super::encode::Signal;
use tributary_event::{Kind, MOST_BATCH_BYTES};
use tributary_options::{Bounds, Endpoint, LONGEST, Secret, Section};
use tributary_sink::Kinds;
use tributary_sink::headers;
use tributary_sink_forward::client::{ClientTls, HttpVersion, endpoint};
use tributary_sink_forward::{Compression, GiveUp, MAX_RETRY_DELAY, Proxy, SpoolOptions};

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

/// The options of an [`super::Otlp`].
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The receiver: `http://host:port` or `https://…`. Required. With `http/protobuf` a path can follow, to which
    /// `/v1/logs` and so on are appended.
    pub endpoint: Endpoint,
    /// The transport. Default [`Protocol::Grpc`].
    pub protocol: Protocol,
    /// How requests are compressed. Default gzip, which every receiver takes.
    pub compression: Compression,
    /// Headers of each request. Default none.
    pub headers: Vec<(String, Secret)>,
    /// The TLS options of `https`.
    pub tls: ClientTls,
    /// The proxy of requests. Default what the environment says.
    pub proxy: Proxy,
    /// The signals that are sent. None, as by default: all, but profiles only to a receiver that takes them.
    pub signals: Vec<Signal>,
    /// The length of a request before compression, at most. Default 3 MiB; most receivers take 4 MiB.
    pub max_request_bytes: usize,
    /// The time from the first event of a request until it is complete, at most. Default 1 second.
    pub max_request_delay: Duration,
    /// Requests that are sent at the same time. Default 4.
    pub max_in_flight: usize,
    /// How long a request may take, connecting and the response included. Default 10 seconds.
    pub timeout: Duration,
    /// The pause after the first failed attempt. It doubles with each failure. Default 100 milliseconds.
    pub retry_min: Duration,
    /// The longest such pause. Default 30 seconds.
    pub retry_max: Duration,
    /// The longest pause that the destination can ask for, and the longest one while it refuses everything. Default 5 minutes.
    pub max_retry_delay: Duration,
    /// When a request is given up that the destination does not take, although it takes others.
    pub give_up: GiveUp,
    /// Whether events carry where they came from. Default yes.
    pub origin: bool,
    /// The queue on disk. Default none.
    pub spool: Option<SpoolOptions>,
    /// The listeners whose heap dumps come as samples, too (`heap = "both"`): no profiles are made of the logs of their objects.
    /// No option: it follows from the listeners.
    pub summed_heaps: Vec<String>,
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
        Options {
            endpoint: endpoint.into(),
            protocol: Protocol::default(),
            compression: Compression::Gzip,
            headers: Vec::new(),
            tls: ClientTls::default(),
            proxy: Proxy::default(),
            signals: Vec::new(),
            max_request_bytes: 3 << 20,
            max_request_delay: Duration::from_secs(1),
            max_in_flight: 4,
            timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            max_retry_delay: MAX_RETRY_DELAY,
            give_up: GiveUp::default(),
            origin: true,
            spool: None,
            summed_heaps: Vec::new(),
        }
    }

    /// The version of HTTP that the transport needs.
    pub(super) fn version(&self) -> HttpVersion {
        match self.protocol {
            Protocol::Grpc => HttpVersion::Http2,
            Protocol::Http => HttpVersion::Http1,
        }
    }

    /// Reads the options of `type = "otlp"`; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Options {
        let default = Options::to(endpoint(section, "http://host:4317"));
        let positive = Duration::from_millis(1)..=LONGEST;
        let options = Options {
            protocol: section.choice("protocol", default.protocol, &Protocol::ALL.map(|of| (of.as_str(), of))),
            compression: section.choice(
                "compression",
                default.compression,
                &Compression::ALL.map(|compression| (compression.as_str(), compression)),
            ),
            headers: headers::read(section, &OWN_HEADERS),
            tls: section.section("tls", |section| ClientTls {
                server_name: section.optional_text("server_name"),
                ..ClientTls::read(section)
            }),
            proxy: Proxy::read(section),
            signals: section.choices("signals", &Signal::ALL.map(|signal| (signal.as_str(), signal))),
            max_request_bytes: section.size("max_request_bytes", default.max_request_bytes, 4 << 10..=64 << 20),
            max_request_delay: section.duration("max_request_delay", default.max_request_delay, positive.clone()),
            max_in_flight: section.count("max_in_flight", default.max_in_flight, 1..=256),
            timeout: section.duration("timeout", default.timeout, positive.clone()),
            retry_min: section.duration("retry_min", default.retry_min, positive.clone()),
            retry_max: section.duration("retry_max", default.retry_max, positive.clone()),
            max_retry_delay: section.duration("max_retry_delay", default.max_retry_delay, positive),
            give_up: GiveUp::read(section),
            origin: section.bool("origin", default.origin),
            spool: section.optional_section("spool", SpoolOptions::read),
            endpoint: default.endpoint,
            summed_heaps: default.summed_heaps,
        };
        section.check_retry(options.retry_min, options.retry_max);
        options.check_path(section);
        options
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
