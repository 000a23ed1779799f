//! Which requests the endpoint accepts.
//!
//! A web page in a browser on the same machine can send requests to loopback addresses. Three checks refuse them:
//!
//! - **Host.** A page of `evil.example` whose name resolves to a loopback address (DNS rebinding) sends `Host: evil.example`.
//!   Only known hosts are accepted, or any host with the token, which such a page does not have.
//! - **Origin, Sec-Fetch-Site.** Browsers name the site that a request comes from. Only the endpoint's own is accepted, but for
//!   a link of another site to the page, which opens it in a tab: it has no data, and the other site cannot read it.
//! - **A command header.** HTML forms cannot send `X-Tributary`, a token or a JSON content type, so commands require one of
//!   them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode, Version};
use subtle::ConstantTimeEq;

use super::response::{AdminResponse, error};

/// The header of commands. Its value has no meaning.
pub(crate) const COMMAND_HEADER: &str = "x-tributary";
/// Where browsers say from which site a request comes.
const FETCH_SITE: &str = "sec-fetch-site";

/// Why a request is refused.
#[derive(Debug)]
pub(super) struct GuardError {
    status: StatusCode,
    line: String,
}

impl GuardError {
    fn new(status: StatusCode, line: impl Into<String>) -> Box<GuardError> {
        Box::new(GuardError { status, line: line.into() })
    }

    /// The response to the request.
    pub(super) fn response(&self, is_api: bool) -> AdminResponse {
        let mut response = error(is_api, self.status, &self.line);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The checks of a request before it is handled.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    token: Option<Arc<[u8]>>,
    /// Accepted hosts besides loopback, in lower case.
    hosts: Arc<[String]>,
}

impl Guard {
    pub(super) fn new(token: Option<Vec<u8>>, hosts: &[String]) -> Guard {
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Guard { token: token.map(Into::into), hosts }
    }

    /// Checks a request that was received on the address `local`. `is_public`: it needs no token. `is_page`: it is for a file
    /// of the page, which holds no data.
    ///
    /// # Errors
    /// Why the request is refused.
    pub(super) fn check<B>(
        &self,
        request: &Request<B>,
        local: SocketAddr,
        is_public: bool,
        is_page: bool,
    ) -> Result<(), Box<GuardError>> {
        let has_token = self.has_token(request.headers());
        self.check_host(request, local.ip(), has_token && self.token.is_some())?;
        if !(is_page && is_navigation(request)) {
            check_site(request.headers())?;
        }
        if is_public || has_token {
            return Ok(());
        }
        let line = "the token is missing or wrong: send `Authorization: Bearer TOKEN` ([admin] token_file)";
        Err(GuardError::new(StatusCode::UNAUTHORIZED, line))
    }

    /// Whether the request has the token, or no token is configured.
    fn has_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        bearer(headers).is_some_and(|given| given.ct_eq(token).into())
    }

    fn check_host<B>(&self, request: &Request<B>, local: IpAddr, is_trusted: bool) -> Result<(), Box<GuardError>> {
        let refuse = |status, line: &str| Err(GuardError::new(status, line));
        let mut headers = request.headers().get_all(HOST).iter();
        let host = match (headers.next(), headers.next()) {
            (Some(host), None) => host.to_str().ok(),
            // Browsers do not speak HTTP/1.0.
            (None, _) if request.version() == Version::HTTP_10 && request.uri().authority().is_none() => return Ok(()),
            _ => return refuse(StatusCode::BAD_REQUEST, "the request must have one Host header"),
        };
        let named = [host, request.uri().authority().map(Authority::as_str)];
        let known = |host: &str| host_of(host).is_some_and(|host| self.is_known(&host, local));
        match named.into_iter().flatten().find(|host| !known(host)) {
            None if host.is_some() => Ok(()),
            _ if is_trusted => Ok(()),
            unknown => {
                let host = unknown.unwrap_or("in the request").escape_default();
                let line = format!(
                    "the host {host} is not known, so this request may come from a web page: add its name to [admin] hosts, \
                     or use a loopback address"
                );
                refuse(StatusCode::FORBIDDEN, &line)
            }
        }
    }

    /// Whether no web page of another site can have this host.
    fn is_known(&self, host: &str, local: IpAddr) -> bool {
        let is_own = match host.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback() || ip.to_canonical() == local.to_canonical(),
            Err(_) => host == "localhost",
        };
        is_own || self.hosts.iter().any(|known| known == host)
    }
}

/// The token that a request has.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer ";
    let (scheme, token) = headers.get(AUTHORIZATION)?.as_bytes().split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME).then_some(token.trim_ascii())
}

/// Whether a browser opens the response as a document of its own, in a tab: not in a frame, and for no script.
fn is_navigation<B>(request: &Request<B>) -> bool {
    let is = |name: &str, value: &[u8]| request.headers().get(name).is_some_and(|known| known.as_bytes() == value);
    request.method() == Method::GET && is("sec-fetch-mode", b"navigate") && is("sec-fetch-dest", b"document")
}

/// Refuses requests of web pages of other sites.
fn check_site(headers: &HeaderMap) -> Result<(), Box<GuardError>> {
    let host = headers.get(HOST).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_own = |origin: &HeaderValue| {
        let origin = origin.as_bytes();
        let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
        authority.is_some_and(|authority| !authority.is_empty() && authority.eq_ignore_ascii_case(host))
    };
    let is_same_site = |site: &HeaderValue| [&b"same-origin"[..], b"none"].contains(&site.as_bytes());
    if headers.get_all(ORIGIN).iter().all(is_own) && headers.get_all(FETCH_SITE).iter().all(is_same_site) {
        return Ok(());
    }
    let line = "requests of web pages of other sites are refused (Origin, Sec-Fetch-Site)";
    Err(GuardError::new(StatusCode::FORBIDDEN, line))
}

/// Refuses a command that a web page can have sent without the consent of the endpoint.
///
/// # Errors
/// Why it is refused.
pub(super) fn check_command<B>(request: &Request<B>) -> Result<(), Box<GuardError>> {
    let headers = request.headers();
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let media_type = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    let is_json = media_type.trim_ascii().eq_ignore_ascii_case(b"application/json");
    if headers.contains_key(COMMAND_HEADER) || is_json || bearer(headers).is_some() {
        return Ok(());
    }
    let line =
        "a command needs the header `X-Tributary: 1`, which web pages cannot send: curl -X POST -H 'X-Tributary: 1' …";
    Err(GuardError::new(StatusCode::FORBIDDEN, line))
}

/// The host of an authority in lower case, without port, brackets and final dot. None: it is not valid.
fn host_of(authority: &str) -> Option<String> {
    let is_port = |rest: &str| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (host, rest) = match authority.strip_prefix('[') {
        Some(literal) => literal.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    (is_port(rest) && !host.is_empty()).then(|| host.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_no_port_and_no_brackets() {
        for (authority, host) in [
            ("localhost:9464", Some("localhost")),
            ("LocalHost.", Some("localhost")),
            ("[::1]:9464", Some("::1")),
            ("127.0.0.1", Some("127.0.0.1")),
            ("", None),
            (":80", None),
            ("a:b", None),
            ("[::1", None),
            ("[::1]x", None),
            ("::1", None),
            ("user@localhost", Some("user@localhost")),
        ] {
            assert_eq!(host_of(authority).as_deref(), host, "{authority}");
        }
    }

    #[test]
    fn loopback_the_local_address_and_configured_hosts_are_known() {
        let guard = Guard::new(None, &["Collector.Example".to_owned(), "10.0.0.9".to_owned()]);
        let local = "192.0.2.7".parse().unwrap();
        for host in [
            "localhost",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "::ffff:127.0.0.1",
            "192.0.2.7",
            "collector.example",
            "10.0.0.9",
        ] {
            assert!(guard.is_known(host, local), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example", "192.0.2.8", "0.0.0.0", "127.1", "user@localhost", "2130706433"]
        {
            assert!(!guard.is_known(host, local), "{host}");
        }
    }
}
