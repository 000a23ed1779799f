//! The options of a NATS sink.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::ServerAddr;

use super::subject;
use crate::event::MOST_BATCH_BYTES;
use crate::options::{Bounds, LONGEST, Section};
use crate::sink::forward::SpoolOptions;
use crate::sink::forward::client::ClientTls;

/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 2 * 1024 * 1024;
/// When open messages of several subjects together have so many times `batch_bytes`, all are completed.
pub(super) const MAX_OPEN_BATCHES: usize = 4;
/// The port of a server, if its address has none.
const PORT: u16 = 4222;

/// The options of a [`super::Nats`].
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The servers: `nats://host:port` or `tls://host:port`. One of them is used, another when that is away. Required.
    pub servers: Vec<ServerAddr>,
    /// The stream. Default `TRIBUTARY`.
    pub stream: String,
    /// The subject of a message, with `{protocol}`, `{kind}`, `{listener}`. Default `tributary.{protocol}.{kind}`.
    pub subject: String,
    /// The stream is created if it does not exist. Default no.
    pub create: bool,
    /// The replicas of a stream that is created, and the fewest of one that exists. Default 1.
    pub replicas: usize,
    /// How long JetStream recognizes repeated messages: of a stream that is created, and the shortest of one that exists.
    /// Default 2 minutes.
    pub duplicate_window: Duration,
    /// How long a stream that is created keeps messages. 0: for ever. Default 0.
    pub max_age: Duration,
    /// How many bytes a stream that is created keeps. When it is full, it takes no more messages. 0: no limit. Default 0.
    pub max_bytes: u64,
    /// A file with the JWT of a user and its key, as `nsc` writes it. It is read for each connection. Default none.
    pub credentials_file: Option<PathBuf>,
    /// A file with a token. It is read for each connection. Default none.
    pub token_file: Option<PathBuf>,
    /// The authority of the servers' certificates, and a client certificate: `tls.ca`, `tls.cert`, `tls.key`. With any of them
    /// the connection is encrypted. Default those of the system, and none.
    pub tls: ClientTls,
    /// A message is complete when its lines have this many bytes before compression. Default 1 MiB.
    pub batch_bytes: usize,
    /// The longest body of a message, after compression. Default 512 KiB.
    pub max_message_bytes: usize,
    /// The time from the first event of a message until it is complete, at most. Default 100 milliseconds.
    pub max_message_delay: Duration,
    /// Messages with more bytes are compressed, with Zstandard. Default 4 KiB.
    pub compress_above: usize,
    /// Messages that wait for JetStream's acknowledgement at the same time. Default 16.
    pub max_in_flight: usize,
    /// How long connecting to a server may take. Default 5 seconds.
    pub connect_timeout: Duration,
    /// How long an acknowledgement may take. Default 10 seconds.
    pub request_timeout: Duration,
    /// The pause after the first failed attempt. It doubles with each failure. Default 100 milliseconds.
    pub retry_min: Duration,
    /// The longest such pause. Default 5 seconds.
    pub retry_max: Duration,
    /// The queue on disk. Default none.
    pub spool: Option<SpoolOptions>,
}

impl Options {
    /// The default options of a sink that sends to these servers.
    pub fn to(servers: Vec<ServerAddr>) -> Options {
        Options {
            servers,
            stream: "TRIBUTARY".to_owned(),
            subject: "tributary.{protocol}.{kind}".to_owned(),
            create: false,
            replicas: 1,
            duplicate_window: Duration::from_secs(120),
            max_age: Duration::ZERO,
            max_bytes: 0,
            credentials_file: None,
            token_file: None,
            tls: ClientTls::default(),
            batch_bytes: 1 << 20,
            max_message_bytes: 512 << 10,
            max_message_delay: Duration::from_millis(100),
            compress_above: 4 << 10,
            max_in_flight: 16,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            spool: None,
        }
    }

    /// Reads the options of `type = "nats"`; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Options {
        let default = Options::to(servers(section));
        let positive = Duration::from_millis(1)..=LONGEST;
        let options = Options {
            stream: section.text("stream", &default.stream),
            subject: section.text("subject", &default.subject),
            create: section.bool("create", default.create),
            replicas: section.count("replicas", default.replicas, 1..=5),
            duplicate_window: section.duration("duplicate_window", default.duplicate_window, positive.clone()),
            max_age: section.duration("max_age", default.max_age, Duration::ZERO..=LONGEST),
            max_bytes: section.size("max_bytes", default.max_bytes, 0..=1 << 50),
            credentials_file: section.optional_path("credentials_file"),
            token_file: section.optional_path("token_file"),
            tls: section.section("tls", ClientTls::read),
            batch_bytes: section.size("batch_bytes", default.batch_bytes, 1024..=16 << 20),
            max_message_bytes: section.size("max_message_bytes", default.max_message_bytes, 1024..=8 << 20),
            max_message_delay: section.duration("max_message_delay", default.max_message_delay, positive.clone()),
            compress_above: section.size("compress_above", default.compress_above, 0..=16 << 20),
            max_in_flight: section.count("max_in_flight", default.max_in_flight, 1..=256),
            connect_timeout: section.duration("connect_timeout", default.connect_timeout, positive.clone()),
            request_timeout: section.duration("request_timeout", default.request_timeout, positive.clone()),
            retry_min: section.duration("retry_min", default.retry_min, positive.clone()),
            retry_max: section.duration("retry_max", default.retry_max, positive),
            spool: section.optional_section("spool", SpoolOptions::read),
            servers: default.servers,
        };
        options.check(section);
        options
    }

    fn check(&self, section: &mut Section<'_>) {
        if self.retry_min > self.retry_max {
            section.error("retry_min", "is more than retry_max", None);
        }
        let is_name = |c: char| !c.is_whitespace() && !c.is_control() && !['.', '*', '>', '/', '\\'].contains(&c);
        if self.stream.is_empty() || self.stream.len() > 255 || !self.stream.chars().all(is_name) {
            let message = "is not the name of a stream: 1 to 255 characters without white space and . * > / \\";
            section.error("stream", message, None);
        }
        if let Err(why) = subject::check(&self.subject) {
            section.error("subject", why, Some("write subject = \"tributary.{protocol}.{kind}\"".into()));
        }
        if self.max_age > Duration::ZERO && self.max_age < self.duplicate_window {
            section.error("duplicate_window", "is more than max_age, which JetStream does not allow", None);
        }
    }

    /// Whether connections are encrypted in any case. Otherwise they are when the server asks for it.
    pub(super) fn requires_tls(&self) -> bool {
        self.tls != ClientTls::default() || self.servers.iter().any(ServerAddr::tls_required)
    }

    /// The servers, for messages.
    pub fn shown_servers(&self) -> String {
        let shown = |server: &ServerAddr| format!("{}://{}:{}", server.scheme(), server.host(), server.port());
        self.servers.iter().map(shown).collect::<Vec<_>>().join(", ")
    }

    /// Declares the memory that such a sink takes at most.
    pub(crate) fn declare(&self, of: &str, bounds: &mut Bounds) {
        let made = (MAX_OPEN_BATCHES * self.batch_bytes) as u64 + MOST_BATCH_BYTES;
        let message = self.max_message_bytes as u64;
        // While they are sent, the client has a copy.
        let sent = 2 * message * (2 + self.max_in_flight as u64);
        bounds.add(of, "messages being made and sent", 2 * made + sent + CLIENT_BYTES);
        if self.spool.is_some() {
            bounds.add(of, "messages that are not synced yet", crate::spool::MAX_UNSYNCED_BYTES + message);
        }
    }
}

fn servers(section: &mut Section<'_>) -> Vec<ServerAddr> {
    let example = format!("write servers = [\"nats://host:{PORT}\"]");
    let texts = section.list_of_text("servers");
    if texts.is_empty() {
        section.error("servers", "`servers` is missing or empty", Some(example.clone()));
    }
    let mut servers = Vec::new();
    for text in texts {
        match text.parse::<ServerAddr>() {
            Ok(server) if server.has_user_pass() || server.username().is_some() => {
                let help = "use credentials_file or token_file".to_owned();
                section.error("servers", "has credentials, which the log would show", Some(help));
            }
            Ok(server) if matches!(server.scheme(), "nats" | "tls") && !server.host().is_empty() => {
                servers.push(server);
            }
            _ => section.error("servers", format!("`{text}` is not an address of NATS"), Some(example.clone())),
        }
    }
    servers
}
