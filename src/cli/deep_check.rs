//! `tributary check --deep`: what a configuration needs of this machine and of others.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::Uri;
use rustix::fs::{Access, access};

use crate::config::{Config, ListenerConfig, ProtocolOptions, SinkConfig, SinkKind};
use crate::sink::parquet::{self, UploadOptions};
use tributary_sink_http as http;
use tributary_sink_otlp as otlp;
use tributary_transport::options::TlsOptions;
use tributary_transport::port_holder;
use tributary_transport::tls::Tls;

use super::counted;

/// How long a destination may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// How long a destination may take for the connection, the TLS handshake and its answers.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long an object store may take to answer, attempts to get credentials included.
const STORE_TIME: Duration = Duration::from_secs(15);
/// A certificate that ends sooner is a warning.
const CERTIFICATE_TIME: Duration = Duration::from_secs(30 * 24 * 3600);
const SECONDS_PER_DAY: i64 = 24 * 3600;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// What cannot work, each with the option that it is about.
    pub(super) errors: Vec<String>,
    /// What works now and may not later, or only in part.
    pub(super) warnings: Vec<String>,
    /// What destinations have answered.
    pub(super) notes: Vec<String>,
    checked: u64,
}

/// Binds and releases each address, reads each file, examines each directory and connects to each destination. Changes
/// nothing.
pub(super) fn run(config: &Config) -> Report {
    let mut report = Report::default();
    for (option, listen) in
        [("admin.listen", config.admin.listen), ("admin.metrics_listen", config.admin.metrics_listen)]
    {
        listen.into_iter().for_each(|listen| report.bind(option, listen));
    }
    if let Some(tls) = &config.admin.tls {
        report.certificate("admin.tls", tls);
    }
    config.listeners.iter().for_each(|listener| report.listener(listener));
    config.sinks.iter().for_each(|sink| report.sink(sink));
    for (option, path) in config.secrets() {
        report.readable(&option, path);
    }
    report.warnings.extend(config.memory_warning());
    for exposed in config.exposed_secrets() {
        let (option, path, mode) = (exposed.option, exposed.path.display(), exposed.mode);
        report
            .warnings
            .push(format!("{option}: every user of this machine can access {path} ({mode:04o}); run `chmod o= FILE`"));
    }
    report
}

impl Report {
    /// How much was looked at, and what was found.
    pub(super) fn summary(&self) -> String {
        let (errors, warnings) = (self.errors.len() as u64, self.warnings.len() as u64);
        format!("{}: {}, {}", counted(self.checked, "check"), counted(errors, "error"), counted(warnings, "warning"))
    }

    fn listener(&mut self, listener: &ListenerConfig) {
        let of = format!("listeners.{}", listener.name);
        if let Some(listen) = listener.listen {
            self.bind(&format!("{of}.listen"), listen);
        }
        if let Some(tls) = &listener.options.tls {
            self.certificate(&format!("{of}.tls"), tls);
        }
        if let Some(capture) = &listener.options.capture {
            self.directory(&format!("{of}.capture.dir"), &capture.dir);
        }
        for server in listener.protocol.bucket().iter().flat_map(|bucket| &bucket.servers.servers) {
            self.destination(&format!("{of}.nats"), &format!("{}:{}", server.host(), server.port()));
        }
        let quarantine = match &listener.protocol {
            ProtocolOptions::DatadogAgent(_, http)
            | ProtocolOptions::Endless(_, _, http)
            | ProtocolOptions::Otlp(_, http) => Some(&http.quarantine.dir),
            ProtocolOptions::Nats(options) => {
                for server in &options.servers.servers {
                    let address = format!("{}:{}", server.host(), server.port());
                    let reached = self.connect(&address);
                    let why = |why| {
                        format!("{of}.servers: {address} cannot be reached: {why}; the daemon tries again until it can")
                    };
                    self.warnings.extend(reached.err().map(why));
                }
                Some(&options.quarantine.dir)
            }
            ProtocolOptions::Zico(_, store, http) => {
                self.state(&of, store.state_dir.as_deref());
                Some(&http.quarantine.dir)
            }
            ProtocolOptions::Rbkit(options) => {
                self.state(&of, options.state_dir.as_deref());
                if let Some(listen) = options.listen_publish {
                    self.bind(&format!("{of}.listen_publish"), listen);
                }
                for address in options.agents.iter().flat_map(|agent| [&agent.publish, &agent.request]).flatten() {
                    // A process that does not run now is dialled again and again.
                    let reached = self.connect(address);
                    let why = |why| {
                        format!("{of}.agents: {address} cannot be reached: {why}; the daemon tries again until it can")
                    };
                    self.warnings.extend(reached.err().map(why));
                }
                None
            }
            ProtocolOptions::Bytefrog(_) | ProtocolOptions::Datadog(_) => None,
        };
        if let Some(dir) = quarantine.filter(|dir| !dir.as_os_str().is_empty()) {
            self.directory(&format!("{of}.quarantine.dir"), dir);
        }
    }

    fn sink(&mut self, sink: &SinkConfig) {
        let of = format!("sinks.{}", sink.name);
        if let Some(spool) = sink.kind.spool() {
            self.directory(&format!("{of}.spool.dir"), &spool.directory(&sink.name));
            let never_keeps = spool.never_keeps(&sink.name);
            self.errors.extend(never_keeps.map(|why| format!("{of}.spool.min_free_bytes: {why}")));
        }
        match &sink.kind {
            SinkKind::File(options) => self.directory(&format!("{of}.path"), &options.directory()),
            SinkKind::Parquet(options) => {
                self.directory(&format!("{of}.path"), &options.directory());
                if let Some(upload) = &options.upload {
                    self.bucket(&format!("{of}.upload"), upload);
                }
            }
            SinkKind::Tcp(options) => self.destination(&format!("{of}.address"), &options.address),
            SinkKind::Http(options) => {
                let connected = self.reached(&of, &options.endpoint, http::probe(options, CONNECT_TIME, ANSWER_TIME));
                if connected.is_some() {
                    let what = if is_https(&options.endpoint) { "connection and TLS handshake" } else { "connection" };
                    self.notes
                        .push(format!("{of}: {what} with {}; no request was sent", address_of(&options.endpoint)));
                }
            }
            SinkKind::Otlp(options) => {
                let answers = self.reached(&of, &options.endpoint, otlp::probe(options, CONNECT_TIME, ANSWER_TIME));
                let is_optional = |signal| signal == otlp::Signal::Profiles && options.signals.is_empty();
                answers.into_iter().for_each(|answers| self.exports(&of, answers, &is_optional));
            }
            SinkKind::Nats(options) => {
                for server in &options.servers.servers {
                    self.destination(&format!("{of}.servers"), &format!("{}:{}", server.host(), server.port()));
                }
            }
            SinkKind::Stdout(_) | SinkKind::Discard => {}
        }
    }

    /// What became of a look at the server of an endpoint.
    fn reached<T>(&mut self, of: &str, endpoint: &Uri, looked: io::Result<T>) -> Option<T> {
        self.checked += 1;
        let unreached = |why| format!("{of}.endpoint: {} cannot be reached: {why}", address_of(endpoint));
        looked.map_err(|why| self.errors.push(unreached(why))).ok()
    }

    /// What a receiver of OTLP has answered to an empty export of each signal. An optional one that it does not take is not sent.
    fn exports(
        &mut self,
        of: &str,
        answers: Vec<(otlp::Signal, Result<(), String>)>,
        is_optional: &dyn Fn(otlp::Signal) -> bool,
    ) {
        let taken: Vec<_> =
            answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(signal, _)| signal.as_str()).collect();
        if !taken.is_empty() {
            self.notes.push(format!("{of}: the receiver has accepted an empty export of {}", taken.join(", ")));
        }
        for (signal, why) in answers.into_iter().filter_map(|(signal, answer)| Some((signal, answer.err()?))) {
            let line = format!("{of}: the receiver does not take an empty export of {}: {why}", signal.as_str());
            if is_optional(signal) { &mut self.warnings } else { &mut self.errors }.push(line);
        }
    }

    /// Whether the address can be bound.
    fn bind(&mut self, option: &str, address: SocketAddr) {
        self.checked += 1;
        let Err(error) = TcpListener::bind(address) else { return };
        let what_to_do = port_holder::remedy(address, &error);
        self.errors.push(format!("{option}: {address} cannot be bound: {error}{what_to_do}"));
    }

    /// Whether the files can be read and belong together, and how long the certificate is valid.
    fn certificate(&mut self, option: &str, options: &TlsOptions) {
        self.checked += 1;
        let tls = match Tls::open(options) {
            Ok(tls) => tls,
            Err(error) => return self.errors.push(format!("{option}: {error}")),
        };
        let path = options.cert.display();
        let Some(expires) = tls.expires() else {
            return self.warnings.push(format!("{option}: {path}: the end of its validity cannot be read"));
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
        match expires - now {
            ..=0 => self.errors.push(format!("{option}: {path}: the certificate has expired; agents refuse it")),
            left if left < CERTIFICATE_TIME.as_secs() as i64 => {
                let days = (left / SECONDS_PER_DAY) as u64;
                self.warnings.push(format!("{option}: {path}: the certificate expires in {}", counted(days, "day")));
            }
            _ => {}
        }
    }

    fn state(&mut self, of: &str, dir: Option<&Path>) {
        dir.into_iter().for_each(|dir| self.directory(&format!("{of}.state_dir"), dir));
    }

    /// Whether files can be created in the directory, or it can be created.
    fn directory(&mut self, option: &str, dir: &Path) {
        self.checked += 1;
        let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
        let mut existing = dir.to_owned();
        while let Err(error) = existing.metadata() {
            if error.kind() != ErrorKind::NotFound {
                return self.errors.push(format!("{option}: {}: {error}", existing.display()));
            }
            existing = match existing.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            };
        }
        if !existing.is_dir() {
            return self.errors.push(format!("{option}: {} is not a directory", existing.display()));
        }
        if let Err(error) = access(&existing, Access::WRITE_OK | Access::EXEC_OK) {
            let error = io::Error::from(error);
            self.errors.push(format!("{option}: files cannot be created in {}: {error}", existing.display()));
        }
    }

    /// Whether the file can be read.
    fn readable(&mut self, option: &str, path: &Path) {
        self.checked += 1;
        let read = File::open(path).and_then(|file| file.metadata());
        match read {
            Ok(metadata) if metadata.is_file() => {}
            Ok(_) => self.errors.push(format!("{option}: {} is not a file", path.display())),
            Err(error) => self.errors.push(format!("{option}: {} cannot be read: {error}", path.display())),
        }
    }

    /// Whether the destination accepts connections.
    fn destination(&mut self, option: &str, address: &str) {
        if let Err(why) = self.connect(address) {
            self.errors.push(format!("{option}: {address} cannot be reached: {why}"));
        }
    }

    /// Whether the store answers, has the bucket, and accepts the credentials.
    fn bucket(&mut self, option: &str, options: &UploadOptions) {
        self.checked += 1;
        if let Err(why) = parquet::probe(options, STORE_TIME) {
            self.errors.push(format!("{option}: {} cannot be used: {why}", options.url));
        }
    }

    /// Connects to `HOST:PORT`: to one of its addresses.
    fn connect(&mut self, address: &str) -> io::Result<()> {
        self.checked += 1;
        let mut failure = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(_) => return Ok(()),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

fn is_https(endpoint: &Uri) -> bool {
    endpoint.scheme_str() == Some("https")
}

/// `HOST:PORT` of a URL.
fn address_of(endpoint: &Uri) -> String {
    let port = endpoint.port_u16().unwrap_or(if is_https(endpoint) { 443 } else { 80 });
    format!("{}:{port}", endpoint.host().unwrap_or_default())
}
