//! `tributary tap`: a live view of a running daemon, through its admin endpoint.

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

use crate::admin::COMMAND_HEADER;
use crate::codec::terminal;
use crate::event::Kind;

use super::{Failure, OutputFormat, block_on, quiet, run};

/// The most bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// Watch a running daemon live: its events, or annotated bytes of its connections
///
/// A tap delays no connection: if its reader is too slow, events are dropped, and a line says how many. With --wire, open
/// connections are shown from their next message on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary tap                                all events of the daemon on this machine
  tributary tap --listener spans --kind loss   losses only
  tributary tap --listener java --wire         every message: offset, bytes, field, value
  tributary tap --admin collector:9464 --token-file admin-token --ca ca.pem")]
pub(super) struct Arguments {
    /// Configuration file of the daemon, with the address of its admin endpoint [default: as for `run`]
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// Address of the admin endpoint
    #[arg(long, value_name = "HOST:PORT")]
    admin: Option<String>,
    /// File with the token of the endpoint [default: as configured]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities of the endpoint's certificate; with it, TLS is used [default: as configured]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Only this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only events of this kind; can be repeated
    #[arg(long = "kind", value_name = "KIND", value_parser = kind, conflicts_with = "wire")]
    kinds: Vec<Kind>,
    /// Annotated bytes and losses instead of events
    #[arg(long, conflicts_with = "format")]
    wire: bool,
    /// Format of events
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
}

fn kind(name: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
    known.ok_or_else(|| format!("the kinds are {}", Kind::ALL.map(Kind::as_str).join(", ")))
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
                return Err(Failure::Misused(format!("--admin {address}: not HOST:PORT")));
            };
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            return Ok(Endpoint { host, address: address.clone(), token_file, ca });
        }
        let (source, loaded) = run::load(config.clone())?;
        let admin = loaded.config.admin;
        let Some(mut listen) = admin.listen else {
            return Err(Failure::Failed(format!("{source}: the admin endpoint is off ([admin] listen = \"\")")));
        };
        // An endpoint on all addresses has the loopback address too.
        match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => listen.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => listen.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let token_file = token_file.or(admin.token_file);
        let ca = ca.or(admin.tls.map(|tls| tls.cert));
        Ok(Endpoint { host: listen.ip().to_string(), address: listen.to_string(), token_file, ca })
    }

    /// Writes the live view to stdout until the daemon ends or the reader closes stdout.
    async fn follow(&self, arguments: &Arguments) -> Result<(), Failure> {
        let response = self.request(&query(arguments)).await?;
        let (status, mut body) = (response.status(), response.into_body());
        if status != StatusCode::OK {
            let why = Limited::new(body, MAX_ERROR_BYTES).collect().await.map(|body| body.to_bytes());
            let why = why.unwrap_or_default();
            let why = String::from_utf8_lossy(&why);
            return Err(self.failed(format_args!("{status}: {}", terminal::shown(why.trim_end()))));
        }
        let mut stdout = io::stdout();
        // The stream of a daemon that is killed ends with an error.
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            if let Err(error) = stdout.write_all(&data).and_then(|()| stdout.flush()) {
                return Ok(quiet(Err(error))?);
            }
        }
        Ok(())
    }

    async fn request(&self, query: &str) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::get(format!("/tap?{query}")).header(HOST, &self.address).header(COMMAND_HEADER, "1");
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
        // Its error is an error of the response too.
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
    // Names of listeners need no escapes. No listener has another name.
    let is_plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if let Some(name) = listener {
        query.push_str("&listener=");
        query.push_str(Some(name).filter(is_plain).map_or("?", |name| name));
    }
    kinds.iter().for_each(|kind| query.push_str(&format!("&kind={}", kind.as_str())));
    query
}

/// A TLS connector that trusts the authorities in this file.
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
