//! The options of an HTTP sink.

use std::time::Duration;

use hyper::Uri;
use hyper::header::HeaderMap;

use tributary_event::MOST_BATCH_BYTES;
use tributary_options::{Bounds, Endpoint, LONGEST, Secret, Section, options};
use tributary_sink::headers;
use tributary_sink_forward::client::{ClientTls, endpoint};
use tributary_sink_forward::{Compression, GiveUp, Proxy, RetryOptions, SpoolOptions};

/// The headers that a request has in any case.
const OWN_HEADERS: [&str; 5] = ["content-type", "content-encoding", "content-length", "transfer-encoding", "host"];
/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 1024 * 1024;

options! {
    /// The options of a [`super::Http`].
    #[derive(Clone, PartialEq, Debug)]
    pub struct Options checked by check {
        /// Where requests are sent by POST: http:// or https://.
        pub endpoint: Endpoint = flat(|section| endpoint(section, "http://host:port/path")).into(),
        /// Further headers of each request: { "x-tenant" = "shop", "authorization" = { file = "/etc/tributary/token" } }. Values can
        /// also be { env = "NAME" }. They are never shown.
        pub headers: Vec<(String, Secret)> = flat(|section| headers::read(section, &OWN_HEADERS)),
        /// The compression of bodies: "none", "gzip" or "zstd".
        pub compression: Compression =
            choice(Compression::default(), &Compression::ALL.map(|compression| (compression.as_str(), compression))),
        /// A request is complete when its lines have this many bytes, or when no further event waits.
        pub batch_bytes: usize = size(1 << 20, 1024..=64 << 20),
        /// Requests that are sent at the same time.
        pub max_in_flight: usize = count(4, 1..=256),
        /// How long connecting may take.
        pub connect_timeout: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
        /// How long a request may take, connecting and the response included.
        pub request_timeout: Duration = duration(Duration::from_secs(30), Duration::from_millis(1)..=LONGEST),
        /// The pauses between attempts.
        pub retry: RetryOptions =
            flat(|section| RetryOptions::read(section, Duration::from_millis(100), Duration::from_secs(30))),
        /// When a request is given up that the destination does not take, although it takes others.
        pub give_up: GiveUp = flat(GiveUp::read),
        /// For https: the authorities of server certificates, and a client certificate.
        pub tls: ClientTls = flat(ClientTls::read),
        /// The HTTP proxy of requests.
        pub proxy: Proxy = flat(Proxy::read),
        /// A queue on disk for the time in which the destination is away. Not set: there is none.
        pub spool: Option<SpoolOptions> = optional_section(SpoolOptions::read),
    }
}

impl Options {
    /// The default options of a sink that sends to `endpoint`.
    pub fn to(endpoint: Uri) -> Options {
        Options { endpoint: endpoint.into(), ..Options::default() }
    }

    fn check(&self, section: &mut Section<'_>) {
        section.removed("header_files", "write headers = { NAME = { file = \"…\" } }");
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
