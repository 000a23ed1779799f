//! Responses of the admin endpoint.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

use tributary_codec::terminal::write_json;

/// A response with its body.
pub(super) type AdminResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A response with one line of text.
pub(super) fn text(status: StatusCode, line: &str) -> AdminResponse {
    response(status, "text/plain; charset=utf-8", format!("{line}\n"))
}

/// A response with a JSON value. Texts of agents cannot control the terminal of a reader.
pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> AdminResponse {
    let mut body = Vec::new();
    // Neither writing into memory nor a JSON value fails.
    let _ = write_json(&mut body, value);
    body.push(b'\n');
    response(status, "application/json", body)
}

/// A response with this body.
pub(super) fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> AdminResponse {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    no_sniffing(response.headers_mut());
    response
}

/// Browsers take the content for what its type says.
pub(super) fn no_sniffing(headers: &mut HeaderMap) {
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// An error: a sentence in JSON under `/api/`, else one line of text.
pub(super) fn error(is_api: bool, status: StatusCode, line: &str) -> AdminResponse {
    match is_api {
        true => json(status, &serde_json::json!({ "error": line, "status": status.as_u16() })),
        false => text(status, line),
    }
}

/// The response to a method that the path does not have.
pub(super) fn method_not_allowed(is_api: bool, methods: &'static str) -> AdminResponse {
    let mut response = error(is_api, StatusCode::METHOD_NOT_ALLOWED, &format!("this path takes {methods}"));
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    response
}
