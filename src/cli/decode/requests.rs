//! Requests for bodies that were recorded without one.

use tributary_codec::base64;
use tributary_event::write_hex;
use tributary_protocol::{Request, RequestHead};
use tributary_zico::wire::{self, Carries, ZicoDialect};

/// The request of an endless bundle, as a machine uploads it.
pub(super) fn upload(version: u8, bundle: Vec<u8>) -> Request {
    let hash = ring::digest::digest(&ring::digest::SHA512, &bundle);
    let mut target = format!("/{version}/");
    let _ = write_hex(&mut target, hash.as_ref());
    Request {
        head: RequestHead { method: "PUT".to_owned(), target, headers: Vec::new() },
        body: bundle.into(),
        number: 1,
    }
}

/// The request of a zico body. All bodies of gen1 belong to one session, and so do all of gen2.
pub(super) fn submitted(body: Vec<u8>) -> Request {
    let is_text = body.first().is_some_and(|byte| *byte < 0x80);
    if ["host=", "data=", "zdata=", "ldata="].iter().any(|field| body.starts_with(field.as_bytes())) {
        let head = RequestHead { method: "POST".to_owned(), target: "/submit/agent".to_owned(), headers: Vec::new() };
        return Request { head, body: body.into(), number: 1 };
    }
    let start =
        if is_text { base64::decode(&body[..body.len().min(64) / 4 * 4]).unwrap_or_default() } else { Vec::new() };
    let start = if is_text { &start } else { &body };
    let (carries, path) = match wire::carries(start) {
        Carries::Definitions => (Carries::Definitions, "/agent/submit/agd"),
        Carries::Trace => (Carries::Trace, "/agent/submit/trc"),
    };
    let header = match wire::detect(start, carries) {
        Some(ZicoDialect::Gen2) => "x-zorka-session-id",
        _ => "x-zorka-session-uuid",
    };
    let headers = vec![(header.to_owned(), b"decode".to_vec())];
    let head = RequestHead { method: "POST".to_owned(), target: path.to_owned(), headers };
    Request { head, body: body.into(), number: 1 }
}

/// The request of a body of a Datadog tracer to this path.
pub(super) fn traces(path: Option<String>) -> impl Fn(Vec<u8>) -> Request {
    let target = path.unwrap_or_else(|| "/v0.4/traces".to_owned());
    move |body| Request {
        head: RequestHead { method: "PUT".to_owned(), target: target.clone(), headers: form_header(&body) },
        body: body.into(),
        number: 1,
    }
}

/// A request of OTLP: to a path of `/v1/…`, of protobuf or JSON, as its first byte says.
pub(super) fn export(path: Option<String>) -> impl Fn(Vec<u8>) -> Request {
    let target = path.unwrap_or_else(|| "/v1/traces".to_owned());
    move |body| {
        let is_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
        let content_type: &[u8] = if is_json { b"application/json" } else { b"application/x-protobuf" };
        let mut headers = vec![("content-type".to_owned(), content_type.to_vec())];
        if body.starts_with(&[0x1F, 0x8B]) {
            headers.push(("content-encoding".to_owned(), b"gzip".to_vec()));
        }
        let head = RequestHead { method: "POST".to_owned(), target: target.clone(), headers };
        Request { head, body: body.into(), number: 1 }
    }
}

/// The header of a form, which names the boundary with which its body begins.
fn form_header(body: &[u8]) -> Vec<(String, Vec<u8>)> {
    let boundary = body.strip_prefix(b"--").and_then(|rest| rest.split(|byte| *byte == b'\r').next());
    let value = boundary.map(|boundary| [b"multipart/form-data; boundary=", boundary].concat());
    value.map(|value| ("content-type".to_owned(), value)).into_iter().collect()
}
