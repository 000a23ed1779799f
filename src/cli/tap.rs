//! `tributary tap`: what passes through a running daemon, live, through its admin endpoint.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::event::Kind;

use super::{Failure, OutputFormat, block_on, quiet, run};

/// What is read of an answer that is no tap.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// See what passes through a running daemon, live: its events, or the bytes of the wire, annotated
///
/// Nobody waits for it: what is read too slowly is left out, and a line says how much. With --wire, connections that are open
/// already are shown from their next message on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary tap                                all events of the daemon on this machine
  tributary tap --listener spans --kind loss   what cannot be decoded
  tributary tap --listener java --wire         every message: offset, bytes, field, value
  tributary tap --admin collector:9464 --token-file admin-token --ca ca.pem")]
pub(super) struct Arguments {
    /// The daemon's configuration, which says where its admin endpoint is [default: as for `run`]
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// The admin endpoint
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// The file with the endpoint's token [default: as configured]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// TLS, with a certificate of these authorities [default: as configured]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Only what comes through this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only events of this kind; may be repeated
    #[arg(long = "kind", value_name = "KIND", value_parser = kind, conflicts_with = "wire")]
    kinds: Vec<Kind>,
    /// Bytes of the wire instead of events, and what of them was lost
    #[arg(long, conflicts_with = "format")]
    wire: bool,
    /// How events are written
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
}

fn kind(name: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
    known.ok_or_else(|| format!("there are {}", Kind::ALL.map(Kind::as_str).join(", ")))
}

/// An admin endpoint.
struct Endpoint {
    host: String,
    address: String,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let endpoint = Endpoint::of(arguments)?;
    block_on(endpoint.follow(arguments))?
}

impl Endpoint {
    fn of(arguments: &Arguments) -> Result<Endpoint, Failure> {
        let Arguments { config, admin, token_file, ca, .. } = arguments;
        let (token_file, ca) = (token_file.clone(), ca.clone());
        if let Some(address) = admin {
            let Some((host, _)) = address.rsplit_once(':') else {
                return Err(Failure::Misused(format!("--admin {address}: write HOST:PORT")));
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            return Ok(Endpoint { host, address: address.clone(), token_file, ca });
        }
        let (source, loaded) = run::load(config.clone())?;
        let admin = loaded.config.admin;
        let Some(mut listen) = admin.listen else {
            return Err(Failure::Failed(format!("{source}: the daemon has no admin endpoint ([admin] listen = \"\")")));
        };
        // Who listens everywhere is found here.
        match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let token_file = token_file.or(admin.token_file);
        let ca = ca.or(admin.tls.map(|tls| tls.cert));
        Ok(Endpoint { host: listen.ip().to_string(), address: listen.to_string(), token_file, ca })
    }

    /// Writes what passes to stdout, until the daemon ends or nobody reads.
    async fn follow(&self, arguments: &Arguments) -> Result<(), Failure> {
        let answer = self.ask(&query(arguments)).await?;
        let (status, mut body) = (answer.status(), answer.into_body());
        if status != StatusCode::OK {
            let words = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map(|body| body.to_bytes());
            let words = words.unwrap_or_default();
            let words = String::from_utf8_lossy(&words);
            return Err(self.failed(format_args!("{status}: {}", words.trim_end())));
        }
        let mut stdout = io::stdout();
        // A daemon that is killed ends its stream without a word.
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            if let Err(error) = stdout.write_all(&data).and_then(|()| stdout.flush()) {
                return Ok(quiet(Err(error))?);
            }
        }
        Ok(())
    }

    async fn ask(&self, query: &str) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::get(format!("/tap?{query}")).header(HOST, &self.address);
        if let Some(path) = &self.token_file {
            let token = std::fs::read_to_string(path).map_err(|error| file(path, error))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Empty::new()).map_err(|error| self.failed(error))?;
        let stream = TcpStream::connect(&self.address).await.map_err(|error| self.failed(error))?;
        match &self.ca {
            None => self.send(stream, request).await,
            Some(path) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|error| self.failed(error))?;
                let stream = connector(path)?.connect(name, stream).await.map_err(|error| self.failed(error))?;
                self.send(stream, request).await
            }
        }
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, Failure> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(error))?;
        // It ends with the answer, which tells how.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| self.failed(error))
    }

    fn failed(&self, why: impl std::fmt::Display) -> Failure {
        Failure::Failed(format!("the admin endpoint on {}: {why}", self.address))
    }
}

fn query(arguments: &Arguments) -> String {
    let Arguments { listener, kinds, wire, format, .. } = arguments;
    let mut query = match wire {
        true => "wire".to_owned(),
        false => format!("format={}", crate::sink::encode::Format::from(*format).as_str()),
    };
    // Names of listeners need no escapes, and what is no such name is none of a listener.
    let is_plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if let Some(name) = listener {
        query.push_str("&listener=");
        query.push_str(Some(name).filter(is_plain).map_or("?", |name| name));
    }
    kinds.iter().for_each(|kind| query.push_str(&format!("&kind={}", kind.as_str())));
    query
}

/// What speaks TLS with whom one of these authorities vouches for.
fn connector(path: &Path) -> Result<TlsConnector, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| file(path, error))? {
        roots.add(certificate.map_err(|error| file(path, error))?).map_err(|error| file(path, error))?;
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| file(path, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn file(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{}: {error}", path.display()))
}
