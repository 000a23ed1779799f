//! The options of an HTTP sink.

use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderMap;

use tributary_event::MOST_BATCH_BYTES;
use tributary_options::{Bounds, Endpoint, LONGEST, Secret, Section};
use tributary_sink::headers;
use tributary_sink_forward::client::{ClientTls, endpoint};
use tributary_sink_forward::{Compression, GiveUp, MAX_RETRY_DELAY, Proxy, SpoolOptions};

/// The headers that a request has in any case.
const OWN_HEADERS: [&str; 5] = ["content-type", "content-encoding", "content-length", "transfer-encoding", "host"];
/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 1024 * 1024;

/// The options of a [`super::Http`].
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Where requests are sent: `http://host:port/path` or `https://…`. Required.
    pub endpoint: Endpoint,
    /// Further headers of each request. Default none.
    pub headers: Vec<(String, Secret)>,
    /// How bodies are compressed. Default not at all.
    pub compression: Compression,
    /// A request is sent when its lines have this many bytes, or when no further event waits. Default 1 MiB.
    pub batch_bytes: usize,
    /// Requests that are sent at the same time. Default 4.
    pub max_in_flight: usize,
    /// How long connecting may take. Default 5 seconds.
    pub connect_timeout: Duration,
    /// How long a request may take, connecting and the response included. Default 30 seconds.
    pub request_timeout: Duration,
    /// The pause after the first failed attempt. It doubles with each failure. Default 100 milliseconds.
    pub retry_min: Duration,
    /// The longest such pause. Default 30 seconds.
    pub retry_max: Duration,
    /// The longest pause that the destination can ask for, and the longest one while it refuses everything. Default 5 minutes.
    pub max_retry_delay: Duration,
    /// When a request is given up that the destination does not take, although it takes others.
    pub give_up: GiveUp,
    /// The authorities of server certificates, and a client certificate: `ca`, `cert` and `key`.
    pub tls: ClientTls,
    /// The proxy of requests. Default what the environment says.
    pub proxy: Proxy,
    /// The queue on disk. Default none.
    pub spool: Option<SpoolOptions>,
}

impl Options {
    /// The default options of a sink that sends to `endpoint`.
    pub fn to(endpoint: Uri) -> Options {
        Options {
            endpoint: endpoint.into(),
            headers: Vec::new(),
            compression: Compression::default(),
            batch_bytes: 1024 * 1024,
            max_in_flight: 4,
            connect_timeout: Duration::from_secs(5),
            proxy: Proxy::default(),
            request_timeout: Duration::from_secs(30),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            max_retry_delay: MAX_RETRY_DELAY,
            give_up: GiveUp::default(),
            tls: ClientTls::default(),
            spool: None,
        }
    }

    /// Reads the options of `type = "http"`; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Options {
        let default = Options::to(endpoint(section, "http://host:port/path"));
        let positive = Duration::from_millis(1)..=LONGEST;
        let options = Options {
            headers: headers::read(section, &OWN_HEADERS),
            compression: section.choice(
                "compression",
                default.compression,
                &Compression::ALL.map(|compression| (compression.as_str(), compression)),
            ),
            batch_bytes: section.size("batch_bytes", default.batch_bytes, 1024..=64 << 20),
            max_in_flight: section.count("max_in_flight", default.max_in_flight, 1..=256),
            connect_timeout: section.duration("connect_timeout", default.connect_timeout, positive.clone()),
            request_timeout: section.duration("request_timeout", default.request_timeout, positive.clone()),
            retry_min: section.duration("retry_min", default.retry_min, positive.clone()),
            retry_max: section.duration("retry_max", default.retry_max, positive.clone()),
            max_retry_delay: section.duration("max_retry_delay", default.max_retry_delay, positive),
            give_up: GiveUp::read(section),
            tls: ClientTls::read(section),
            proxy: Proxy::read(section),
            spool: section.optional_section("spool", SpoolOptions::read),
            endpoint: default.endpoint,
        };
        section.removed("header_files", "write headers = { NAME = { file = \"…\" } }");
        section.check_retry(options.retry_min, options.retry_max);
        options
    }

    /// The headers of each request. Files and the environment are read.
    ///
    /// # Errors
    /// A value cannot be read, or is no value of a header.
    pub(super) fn header_map(&self) -> std::io::Result<HeaderMap> {
        headers::map(&self.headers)
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let batch = self.batch_bytes as u64 + MOST_BATCH_BYTES;
        bounds.add(of, "requests being made and sent", batch * (2 + self.max_in_flight as u64) + CLIENT_BYTES);
        if self.spool.is_some() {
            bounds.add(of, "requests that are not synced yet", tributary_spool::MAX_UNSYNCED_BYTES + batch);
        }
    }
}
