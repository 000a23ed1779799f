//! The admin endpoint of a running daemon, as a client.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::admin::COMMAND_HEADER;
use tributary_codec::terminal;

use super::{CommandLineError, run};

/// The most bytes of a short response that are read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Which admin endpoint, on the command line.
#[derive(Debug, clap::Args)]
pub(super) struct EndpointArguments {
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
}

impl EndpointArguments {
    /// The endpoint.
    pub(super) fn endpoint(&self) -> Result<Endpoint, CommandLineError> {
        let (token_file, ca) = (self.token_file.clone(), self.ca.clone());
        match &self.admin {
            Some(address) => Endpoint::at(address, token_file, ca),
            None => Endpoint::configured(self.config.clone(), token_file, ca),
        }
    }
}

/// An admin endpoint.
pub(super) struct Endpoint {
    host: String,
    address: String,
    token_file: Option<PathBuf>,
    ca: Option<PathBuf>,
}

impl Endpoint {
    /// The endpoint on this address.
    pub(super) fn at(
        address: &str,
        token_file: Option<PathBuf>,
        ca: Option<PathBuf>,
    ) -> Result<Endpoint, CommandLineError> {
        let Some((host, _)) = address.rsplit_once(':') else {
            return Err(CommandLineError::Misused(format!("--admin {address}: not HOST:PORT")));
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Endpoint { host, address: address.to_owned(), token_file, ca })
    }

    /// The endpoint of the daemon with this configuration.
    pub(super) fn configured(
        config: Option<PathBuf>,
        token_file: Option<PathBuf>,
        ca: Option<PathBuf>,
    ) -> Result<Endpoint, CommandLineError> {
        let (source, loaded) = run::load(config)?;
        let admin = loaded.config.admin;
        let Some(mut listen) = admin.listen else {
            return Err(CommandLineError::Failed(format!(
                "{source}: the admin endpoint is off ([admin] listen = \"\")"
            )));
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

    /// Sends a request; returns the response when its head has arrived.
    pub(super) async fn request(&self, method: Method, target: &str) -> Result<Response<Incoming>, CommandLineError> {
        let mut request =
            Request::builder().method(method).uri(target).header(HOST, &self.address).header(COMMAND_HEADER, "1");
        if let Some(path) = &self.token_file {
            let token = std::fs::read_to_string(path).map_err(|error| file(path, error))?;
            request = request.header(AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        let request = request.body(Empty::new()).map_err(|error| self.failed(error))?;
        let stream = TcpStream::connect(&self.address).await.map_err(|error| self.unreachable(&error))?;
        match &self.ca {
            None => self.send(stream, request).await,
            Some(path) => {
                let name = ServerName::try_from(self.host.clone()).map_err(|error| self.failed(error))?;
                let stream =
                    connector(path)?.connect(name, stream).await.map_err(|error| self.untrusted(&error, path))?;
                self.send(stream, request).await
            }
        }
    }

    /// Sends a request; returns the whole response.
    pub(super) async fn ask(&self, method: Method, target: &str) -> Result<(StatusCode, Bytes), CommandLineError> {
        let response = self.request(method, target).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        Ok((status, body.map_err(|error| self.failed(error))?.to_bytes()))
    }

    /// What the daemon answers at this path, as JSON.
    pub(super) async fn json(&self, target: &str) -> Result<Value, CommandLineError> {
        let (status, body) = self.ask(Method::GET, target).await?;
        if status != StatusCode::OK {
            return Err(self.refused(status, &body));
        }
        serde_json::from_slice(&body).map_err(|error| self.failed(format_args!("its answer cannot be read: {error}")))
    }

    async fn send(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, CommandLineError> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.failed(error))?;
        // Its error is an error of the response too.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(|error| match self.ca {
            // A TLS server answers a request without TLS with an alert, or closes.
            None => self.failed(format_args!("{error}; if the endpoint has TLS, pass --ca FILE")),
            Some(_) => self.failed(error),
        })
    }

    /// The failure for a response that is not the wanted one.
    pub(super) fn refused(&self, status: StatusCode, body: &[u8]) -> CommandLineError {
        let why = String::from_utf8_lossy(body);
        self.failed(format_args!("{status}: {}", terminal::shown(why.trim_end())))
    }

    fn unreachable(&self, error: &io::Error) -> CommandLineError {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                self.failed(format_args!("{error}; does the daemon run, and is this the address of [admin] listen?"))
            }
            _ => self.failed(error),
        }
    }

    /// The failure of a TLS handshake.
    fn untrusted(&self, error: &io::Error, ca: &Path) -> CommandLineError {
        let ca = ca.display();
        self.failed(format_args!(
            "{error}; {ca} must have the authority of the endpoint's certificate, and the endpoint TLS"
        ))
    }

    fn failed(&self, why: impl std::fmt::Display) -> CommandLineError {
        CommandLineError::Failed(format!("the admin endpoint on {}: {why}", self.address))
    }
}

/// A TLS connector that trusts the authorities in this file.
fn connector(path: &Path) -> Result<TlsConnector, CommandLineError> {
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

fn file(path: &Path, error: impl std::fmt::Display) -> CommandLineError {
    CommandLineError::Failed(format!("{}: {error}", path.display()))
}
