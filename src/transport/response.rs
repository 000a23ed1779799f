//! Responses as hyper sends them.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};

use tributary_protocol::Response;

/// The body of a response, and the trailers behind it.
#[derive(Debug)]
pub(super) struct ResponseBody {
    bytes: Bytes,
    trailers: HeaderMap,
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = if !self.bytes.is_empty() {
            Frame::data(std::mem::take(&mut self.bytes))
        } else if !self.trailers.is_empty() {
            Frame::trailers(std::mem::take(&mut self.trailers))
        } else {
            return Poll::Ready(None);
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_empty()
    }

    /// Of it hyper makes Content-Length, which no answer with trailers needs.
    fn size_hint(&self) -> SizeHint {
        if self.trailers.is_empty() { SizeHint::with_exact(self.bytes.len() as u64) } else { SizeHint::default() }
    }
}

/// A response of HTTP/1.1. Trailers are left out: few clients accept them.
pub(super) fn http1(response: Response) -> hyper::Response<ResponseBody> {
    http2(Response { trailers: Vec::new(), ..response })
}

/// A response of HTTP/2.
pub(super) fn http2(response: Response) -> hyper::Response<ResponseBody> {
    let (bytes, trailers) = (response.body.into_owned().into(), header_map(response.trailers));
    let mut answer = hyper::Response::new(ResponseBody { bytes, trailers });
    *answer.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    *answer.headers_mut() = header_map(response.headers);
    answer
}

/// Values that no header may have are left out.
fn header_map(headers: Vec<(&'static str, String)>) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::try_from(value).ok()?))
    };
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers.into_iter().filter_map(header) {
        map.insert(name, value);
    }
    map
}
