//! Server-Sent Events.

use std::convert::Infallible;
use std::io::Write;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::Response;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};

use crate::admin::response::{AdminResponse, no_sniffing};

/// Appends an event, whose data is one line.
pub(super) fn push(out: &mut Vec<u8>, name: &str, data: &str) {
    // Writing into a vector does not fail.
    let _ = write!(out, "event: {name}\ndata: {data}\n\n");
}

/// A response whose body is sent while it lasts.
pub(super) fn response() -> (AdminResponse, Sender<Bytes, Infallible>) {
    let (body, channel) = Channel::new(1);
    let mut response = Response::new(channel.boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    no_sniffing(headers);
    (response, body)
}
