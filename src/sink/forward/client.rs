//! The HTTP client of sinks: connections, TLS, and what all responses have.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Body;
use hyper::header::{HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{self, Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tower_service::Service as _;

use super::connector::Connector;
use super::proxy::{Proxy, Rules};
pub use tributary_options::ClientTls;
use tributary_options::Section;

/// Of the body of a response this much is read: its beginning explains a refusal.
pub const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// Of a text of the server, this much is shown.
const SHOWN_BYTES: usize = 200;
/// How long an unused connection stays open. Shorter than servers usually wait.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// How often an HTTP/2 connection with requests is checked, and how long the server may take to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);

/// A client of one server, or of several.
#[derive(Clone, Debug)]
pub struct HttpClient<B = Full<Bytes>> {
    client: Client<HttpsConnector<Connector>, B>,
    rules: Arc<Rules>,
    version: HttpVersion,
}

impl<B> HttpClient<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// Sends a request.
    pub fn request(&self, mut request: Request<B>) -> ResponseFuture {
        // A proxy that only connects has got its credentials by then.
        if request.uri().scheme_str() == Some("http")
            && self.version == HttpVersion::Http1
            && let Some(credentials) = self.rules.of(request.uri()).and_then(|proxy| proxy.basic_auth().cloned())
        {
            request.headers_mut().insert(PROXY_AUTHORIZATION, credentials);
        }
        self.client.request(request)
    }
}

/// The version of HTTP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A client for an endpoint.
///
/// # Errors
/// A file cannot be used, or the system has no authorities for `https`.
pub fn client<B: Body<Data: Send> + Send>(
    endpoint: &Uri,
    version: HttpVersion,
    connect_timeout: Duration,
    tls: &ClientTls,
    proxy: &Proxy,
) -> io::Result<HttpClient<B>> {
    let rules = Arc::new(proxy.rules()?);
    let connector = connector(endpoint, version, connect_timeout, tls, rules.clone())?;
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_timer(TokioTimer::new()).timer(TokioTimer::new()).pool_idle_timeout(IDLE_TIMEOUT);
    if version == HttpVersion::Http2 {
        client.http2_only(true).http2_keep_alive_interval(KEEP_ALIVE).http2_keep_alive_timeout(KEEP_ALIVE);
    }
    Ok(HttpClient { client: client.build(connector), rules, version })
}

/// Connects to an endpoint, with the handshake of TLS if it is of `https`, and disconnects.
///
/// # Errors
/// Those of [`client`]; there is no connection, or the handshake failed.
pub async fn connect(
    endpoint: &Uri,
    version: HttpVersion,
    connect_timeout: Duration,
    tls: &ClientTls,
    proxy: &Proxy,
) -> io::Result<()> {
    let mut connector = connector(endpoint, version, connect_timeout, tls, Arc::new(proxy.rules()?))?;
    connector.call(endpoint.clone()).await.map(drop).map_err(|error| io::Error::other(with_causes(&*error)))
}

fn connector(
    endpoint: &Uri,
    version: HttpVersion,
    connect_timeout: Duration,
    tls: &ClientTls,
    rules: Arc<Rules>,
) -> io::Result<HttpsConnector<Connector>> {
    let connector = Connector::new(rules, version, connect_timeout);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls_config(endpoint, tls)?).https_or_http();
    if let Some(name) = &tls.server_name {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, format!("tls.server_name `{name}`: {error}"));
        let name = ServerName::try_from(name.clone()).map_err(invalid)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(match version {
        HttpVersion::Http1 => builder.enable_http1().wrap_connector(connector),
        HttpVersion::Http2 => builder.enable_http2().wrap_connector(connector),
    })
}

/// An endpoint of HTTP. An invalid one is reported.
pub fn endpoint(section: &mut Section<'_>, example: &str) -> Uri {
    let help = format!("write endpoint = \"{example}\"");
    let Some(text) = section.required_address("endpoint", &help) else { return Uri::default() };
    let is_complete = |uri: &Uri| uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"));
    let has_credentials = |uri: &Uri| uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    match text.parse::<Uri>().ok().filter(is_complete) {
        Some(uri) if has_credentials(&uri) => {
            let help = "send them in a header, with its value in a file".to_owned();
            section.error("endpoint", "has credentials, which the log would show", Some(help));
            Uri::default()
        }
        Some(uri) => uri,
        None => {
            section.error("endpoint", "is not an address of HTTP", Some(help));
            Uri::default()
        }
    }
}

/// The beginning of a text of the server, without control characters.
pub fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(SHOWN_BYTES)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The value of `Retry-After`: seconds, or a date.
pub fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => httpdate::parse_http_date(text).ok()?.duration_since(SystemTime::now()).ok(),
    }
}

/// An error with its causes.
pub fn describe(error: &legacy::Error) -> String {
    with_causes(error)
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn tls_config(endpoint: &Uri, tls: &ClientTls) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| in_file(path, error))?;
            }
        }
        None if endpoint.scheme_str() == Some("https") => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = "this system has no certificates of authorities: install ca-certificates, or set `ca`";
                return Err(io::Error::new(io::ErrorKind::NotFound, why));
            }
        }
        None => {}
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(io::Error::other)?.with_root_certificates(roots);
    match &tls.identity {
        Some((cert, key)) => {
            let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| in_file(key, error))?;
            config.with_client_auth_cert(certificates(cert)?, key_der).map_err(|error| in_file(cert, error))
        }
        None => Ok(config.with_no_client_auth()),
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = certificates.map_err(|error| in_file(path, error))?;
    if certificates.is_empty() { Err(in_file(path, "it contains no certificate")) } else { Ok(certificates) }
}

fn in_file(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_of_a_response_is_in_seconds_or_a_date() {
        assert_eq!(retry_after(&HeaderValue::from_static(" 120 ")), Some(Duration::from_secs(120)));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(1000));
        let found = retry_after(&HeaderValue::from_str(&later).unwrap()).unwrap().as_secs();
        assert!((900..=1000).contains(&found), "{found}");
        for nonsense in ["", "-1", "soon", "Thu, 01 Jan 1970 00:00:00 GMT"] {
            assert_eq!(retry_after(&HeaderValue::from_static(nonsense)), None);
        }
    }
}
