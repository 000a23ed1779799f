//! The HTTP client of the sink: one request, one answer.

use std::io;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Uri;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use super::options::Options;
use tributary_sink_forward::client::{self, HttpClient, MAX_RESPONSE_BYTES, describe, retry_after, shown};
use tributary_sink_forward::{AttemptOutcome, Compression, Destination, EncodedRequest, divide_lines};

/// The media type of JSON lines.
const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The JSON lines of a request as it is sent.
///
/// # Errors
/// The compression is damaged, or the lines are longer than 256 MiB.
pub fn lines(body: &[u8]) -> io::Result<Vec<u8>> {
    Compression::of(body).decompress(body)
}

/// An HTTP server that takes JSON lines by POST.
#[derive(Debug)]
pub struct Server {
    endpoint: Uri,
    headers: HeaderMap,
    client: HttpClient,
}

impl Server {
    /// A client for the endpoint of these options.
    ///
    /// # Errors
    /// A file cannot be used, or the system has no authorities for `https`.
    pub(super) fn new(options: &Options) -> io::Result<Server> {
        let version = client::HttpVersion::Http1;
        let client = client::client(&options.endpoint, version, options.connect_timeout, &options.tls, &options.proxy)?;
        Ok(Server { endpoint: Uri::clone(&options.endpoint), headers: options.header_map()?, client })
    }
}

impl Destination for Server {
    async fn send(&self, request: &EncodedRequest) -> AttemptOutcome {
        let mut post = hyper::Request::post(self.endpoint.clone()).body(Full::new(request.payload.clone()));
        let Ok(post) = &mut post else { return AttemptOutcome::Bad("the endpoint is not valid".into()) };
        let headers = post.headers_mut();
        headers.insert(CONTENT_TYPE, NDJSON);
        headers.extend(self.headers.clone());
        match Compression::of(&request.payload) {
            Compression::None => {}
            compression => drop(headers.insert(CONTENT_ENCODING, HeaderValue::from_static(compression.as_str()))),
        }
        if let Ok(id) = HeaderValue::from_str(&request.id) {
            headers.insert(IDEMPOTENCY_KEY, id);
        }
        let response = match self.client.request(std::mem::take(post)).await {
            Ok(response) => response,
            Err(error) => return AttemptOutcome::Away(describe(&error), None),
        };
        let (head, body) = response.into_parts();
        // Read to the end, so that the connection can be used again.
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let why = format!("{} {}", head.status.as_u16(), shown(&body).trim()).trim().to_owned();
        let pause = head.headers.get(RETRY_AFTER).and_then(retry_after);
        AttemptOutcome::of_status(head.status.as_u16(), why, pause)
    }

    fn split(&self, request: &EncodedRequest) -> Option<[EncodedRequest; 2]> {
        let compression = Compression::of(&request.payload);
        let lines = compression.decompress(&request.payload).ok()?;
        divide_lines(request, &lines, |_, part| Some(compression.compress_to(part, Vec::new()).ok()?.into()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn server() -> Server {
        Server::new(&Options::to(Uri::from_static("http://127.0.0.1:9/"))).unwrap()
    }

    #[tokio::test]
    async fn a_body_is_divided_between_two_lines_in_its_own_compression() {
        let lines = b"{\"a\":1}\n{\"b\":22222222222222222}\n{}\n";
        for compression in Compression::ALL {
            let request = EncodedRequest {
                id: "7".into(),
                events: 3,
                payload: compression.compress_to(lines, Vec::new()).unwrap().into(),
            };
            let [first, second] = server().split(&request).unwrap();
            assert_eq!((first.id.as_str(), first.events, second.id.as_str(), second.events), ("7.1", 1, "7.2", 2));
            for (part, expected) in [(&first, &lines[..8]), (&second, &lines[8..])] {
                assert_eq!(Compression::of(&part.payload), compression);
                assert_eq!(compression.decompress(&part.payload).unwrap(), expected);
            }
            let [third, fourth] = server().split(&second).unwrap();
            assert_eq!((third.events, fourth.events), (1, 1));
            assert_eq!(server().split(&fourth), None, "one line cannot be divided");
        }
        let damaged = EncodedRequest { id: "7".into(), events: 3, payload: Bytes::from_static(b"\x1f\x8bxx") };
        assert_eq!(server().split(&damaged), None);
    }
}
