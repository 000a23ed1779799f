//! The proxy of a sink: its option, what the environment says, and which requests go through it.

use std::error::Error;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use hyper::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

use tributary_options::{Secret, Section};

/// The option `proxy` of everything that sends requests over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Proxy {
    /// Not set: what the environment says (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`, also in lower case).
    #[default]
    Environment,
    /// `""`: none, whatever the environment says.
    Direct,
    /// This one: `http://HOST:PORT`, in a file also with credentials.
    Url(Secret),
}

const EXAMPLE: &str = "write proxy = \"http://HOST:PORT\", or \"\" for none";
/// How a proxy with credentials is written.
const WITH_CREDENTIALS: &str =
    "write proxy = { file = \"…\" }, and http://USER:PASSWORD@HOST:PORT into the file, or { env = \"…\" }";

impl Proxy {
    /// Reads the option; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Proxy {
        section.about(
            "The HTTP proxy of requests: http://HOST:PORT. With credentials it is in a file or in the environment, as \
             http://USER:PASSWORD@HOST:PORT. \"\" for none. Not set: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY of the environment, but \
             not for what NO_PROXY names.",
        );
        match section.optional_secret("proxy", false) {
            None => Proxy::Environment,
            Some(Secret::Text(text)) if text.is_empty() => Proxy::Direct,
            Some(Secret::Text(text)) => {
                if let Err(why) = check(&text) {
                    section.error("proxy", why, Some(EXAMPLE.to_owned()));
                } else if text.contains('@') {
                    section.error("proxy", "has credentials, which the log would show", Some(WITH_CREDENTIALS.into()));
                }
                Proxy::Url(Secret::Text(text))
            }
            Some(secret) => Proxy::Url(secret),
        }
    }

    /// The file with its address, which may have credentials.
    pub fn secret_file(&self) -> Option<&Path> {
        match self {
            Proxy::Url(Secret::File(path)) => Some(path),
            _ => None,
        }
    }

    /// Which requests go through which proxy.
    ///
    /// # Errors
    /// The file or the variable with the address cannot be read, or has no address of a proxy.
    pub(crate) fn rules(&self) -> io::Result<Rules> {
        let matcher = match self {
            Proxy::Direct => None,
            Proxy::Environment => Some(Matcher::from_env()),
            Proxy::Url(secret) => {
                let text = secret.read()?;
                check(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("`proxy` {why}")))?;
                Some(Matcher::builder().all(text).build())
            }
        };
        Ok(Rules(matcher))
    }

    /// Through which proxy requests to `destination` go, without its credentials, and what says so. `None`: through none.
    pub fn describe(&self, destination: &Uri) -> Option<String> {
        let proxy = self.rules().ok()?.of(destination)?;
        let source = if *self == Proxy::Environment { "the environment" } else { "the option proxy" };
        Some(format!("{} ({source})", shown(&proxy)))
    }
}

/// Which requests go through a proxy.
#[derive(Debug)]
pub(crate) struct Rules(Option<Matcher>);

impl Rules {
    /// The proxy of requests to `destination`. Addresses of the link, as those of a cloud's metadata, have none.
    pub(super) fn of(&self, destination: &Uri) -> Option<Intercept> {
        if destination.host().is_some_and(is_of_link) {
            return None;
        }
        self.0.as_ref()?.intercept(destination)
    }
}

fn is_of_link(host: &str) -> bool {
    match host.trim_start_matches('[').trim_end_matches(']').parse() {
        Ok(IpAddr::V4(ip)) => ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => ip.is_unicast_link_local(),
        Err(_) => host == "metadata.google.internal",
    }
}

/// The address of a proxy, which is without credentials here.
pub(super) fn shown(proxy: &Intercept) -> String {
    let uri = proxy.uri();
    format!("{}://{}", uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |authority| authority.as_str()))
}

/// Whether the text is the address of a proxy. The error does not show it: it may have credentials.
fn check(text: &str) -> Result<(), &'static str> {
    let uri = text.parse::<Uri>().map_err(|_| "is not an address")?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(()),
        Some("http") | None => Err("is not the address of a proxy"),
        Some(_) => Err("is not the address of an HTTP proxy: only http:// is supported"),
    }
}

/// A proxy that gives no connection.
#[derive(Debug)]
pub(super) struct ProxyError {
    pub(super) proxy: String,
    /// `HOST:PORT`, if it was to connect there.
    pub(super) destination: Option<String>,
    pub(super) source: Box<dyn Error + Send + Sync>,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.destination {
            Some(destination) => write!(f, "no connection to {destination} by the proxy {}", self.proxy),
            None => write!(f, "no connection to the proxy {}", self.proxy),
        }
    }
}

impl Error for ProxyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(text: &str) -> Proxy {
        Proxy::Url(Secret::Text(text.to_owned()))
    }

    #[test]
    fn a_proxy_is_shown_without_its_credentials() {
        let proxy = proxy("http://user:secret@proxy.example:3128");
        let destination = Uri::from_static("https://tempo:4317");
        assert_eq!(proxy.describe(&destination).unwrap(), "http://proxy.example:3128 (the option proxy)");
        let found = proxy.rules().unwrap().of(&destination).unwrap();
        assert_eq!(found.basic_auth().unwrap(), "Basic dXNlcjpzZWNyZXQ=");
        assert!(!format!("{proxy:?} {found:?} {:?}", proxy.rules().unwrap()).contains("secret"));
    }

    #[test]
    fn addresses_of_the_link_have_no_proxy() {
        let rules = proxy("http://proxy:3128").rules().unwrap();
        let is_proxied = |uri: &'static str| rules.of(&Uri::from_static(uri)).is_some();
        assert!(is_proxied("http://10.0.0.1/") && is_proxied("https://[2001:db8::1]/"));
        for uri in ["http://169.254.169.254/latest", "http://[fe80::1]/", "http://metadata.google.internal/"] {
            assert!(!is_proxied(uri), "{uri}");
        }
        assert_eq!(Proxy::Direct.describe(&Uri::from_static("http://a/")), None);
    }

    #[test]
    fn other_addresses_are_refused_without_being_shown() {
        for text in ["socks5://u:secret@h:1080", "https://secret:8443", "secret:3128", "http://", "a b secret"] {
            let error = proxy(text).rules().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
