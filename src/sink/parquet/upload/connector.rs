//! The connections of object_store, by the HTTP client of the other sinks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt as _, Limited};
use hyper::Uri;
use hyper::header::{HeaderValue, USER_AGENT};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};

use super::options::UploadOptions;
use tributary_sink_forward::client::{self, HttpClient as Client, MAX_RESPONSE_BYTES, describe};

/// Connects to a store, and to the servers that give credentials for it.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    client: Client<HttpRequestBody>,
    request_timeout: Duration,
    /// The status of the last answer; 0: there was none.
    status: Arc<AtomicU16>,
}

impl Connector {
    /// # Errors
    /// The file of authorities cannot be used, or the system has none.
    pub(super) fn new(options: &UploadOptions, status: Arc<AtomicU16>) -> io::Result<Connector> {
        // Only the scheme counts: for https the authorities of the system are read.
        let endpoint = Uri::from_static(if options.is_plain() { "http://store" } else { "https://store" });
        let client = client::client(
            &endpoint,
            client::HttpVersion::Http1,
            options.connect_timeout,
            &options.tls,
            &options.proxy,
        )?;
        Ok(Connector { client, request_timeout: options.request_timeout, status })
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // Servers on this machine that give credentials are addressed by http in any case: object_store sets this for them.
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        Ok(HttpClient::new(Service { connector: self.clone(), allow_http }))
    }
}

/// Sends single requests.
#[derive(Debug)]
struct Service {
    connector: Connector,
    allow_http: bool,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let fault = |kind, why: &str| HttpError::new(kind, io::Error::other(why.to_owned()));
        if !self.allow_http && request.uri().scheme_str() != Some("https") {
            return Err(fault(HttpErrorKind::Unknown, "the address is not https; set allow_http = true"));
        }
        const AGENT: HeaderValue = HeaderValue::from_static(concat!("tributary/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        self.connector.status.store(0, Relaxed);
        let exchange = async {
            let response = self.connector.client.request(request).await.map_err(|error| {
                let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
                fault(kind, &describe(&error))
            })?;
            let (head, body) = response.into_parts();
            self.connector.status.store(head.status.as_u16(), Relaxed);
            let body = Limited::new(body, MAX_RESPONSE_BYTES + TAIL_BYTES).collect().await;
            let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Request, error))?;
            Ok(HttpResponse::from_parts(head, body.to_bytes().into()))
        };
        let late = |_| Err(fault(HttpErrorKind::Timeout, "there was no answer within request_timeout"));
        tokio::time::timeout(self.connector.request_timeout, exchange).await.unwrap_or_else(late)
    }
}

/// The end of an object that is compared with a file, at most: the largest response that is expected.
pub(super) const TAIL_BYTES: usize = 64 * 1024;
