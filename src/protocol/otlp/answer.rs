//! Answers (OTLP 1.10, "OTLP/HTTP Response" and "OTLP/gRPC Response").

use std::borrow::Cow;

use tributary_codec::base64::push_base64;
use tributary_codec::protobuf::{push_bytes_field, push_varint_field};
use tributary_protocol::{AnswerForm, RETRY_AFTER_SECONDS, Response};

use super::route::{Encoding, GRPC_HEAD_BYTES};

/// An empty message of gRPC: not compressed, of length 0.
const EMPTY_GRPC: [u8; GRPC_HEAD_BYTES] = [0; GRPC_HEAD_BYTES];

/// Statuses of gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrpcStatus {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl GrpcStatus {
    /// What a status of HTTP means.
    fn of(status: u16) -> GrpcStatus {
        match status {
            401 => GrpcStatus::Unauthenticated,
            403 => GrpcStatus::PermissionDenied,
            404 | 405 => GrpcStatus::Unimplemented,
            413 => GrpcStatus::ResourceExhausted,
            408 | 429 | 502 | 503 | 504 => GrpcStatus::Unavailable,
            400..=499 => GrpcStatus::InvalidArgument,
            _ => GrpcStatus::Internal,
        }
    }
}

/// The answer to a request whose events are delivered: an empty message.
pub(super) fn delivered(encoding: Encoding) -> Response {
    let body: &'static [u8] = match encoding {
        Encoding::Protobuf => b"",
        Encoding::Json => b"{}",
        Encoding::Grpc => &EMPTY_GRPC,
    };
    Response { body: Cow::Borrowed(body), ..Response::empty(200) }
        .with("content-type", encoding.content_type().to_owned())
}

/// How answers to requests of this encoding are written.
pub(super) fn form(encoding: Encoding) -> AnswerForm {
    match encoding {
        Encoding::Protobuf => |response| refusal(Encoding::Protobuf, response),
        Encoding::Json => |response| refusal(Encoding::Json, response),
        Encoding::Grpc => in_grpc,
    }
}

/// A refusal: its sentence in a message `Status`.
fn refusal(encoding: Encoding, response: Response) -> Response {
    if response.status == 200 {
        return response;
    }
    let (status, sentence) = (GrpcStatus::of(response.status), sentence(&response));
    let body = match encoding {
        Encoding::Json => serde_json::json!({ "code": status as u8, "message": sentence }).to_string().into_bytes(),
        Encoding::Protobuf | Encoding::Grpc => status_message(status, &sentence, false),
    };
    let mut headers = response.headers;
    headers.retain(|(name, _)| *name != "content-type");
    Response { body: body.into(), headers, ..Response::empty(response.status) }
        .with("content-type", encoding.content_type().to_owned())
}

/// An answer of gRPC: its status is in the trailers, of a refusal in the headers, because nothing else follows.
fn in_grpc(response: Response) -> Response {
    if response.status == 200 {
        return response.with_trailer("grpc-status", "0".to_owned());
    }
    let (status, sentence) = (GrpcStatus::of(response.status), sentence(&response));
    let refused = Response::empty(200)
        .with("content-type", Encoding::Grpc.content_type().to_owned())
        .with("grpc-status", (status as u8).to_string())
        .with("grpc-message", percent_encoded(&sentence));
    if status != GrpcStatus::Unavailable {
        return refused;
    }
    let mut details = Vec::new();
    push_base64(&mut details, &status_message(status, &sentence, true));
    // Written without padding, as gRPC asks for.
    let details = String::from_utf8_lossy(&details).trim_end_matches('=').to_owned();
    refused.with("grpc-status-details-bin", details)
}

/// The body of an answer of this program.
fn sentence(response: &Response) -> String {
    String::from_utf8_lossy(&response.body).trim_end().to_owned()
}

/// A text as `grpc-message` has it: ASCII, with other bytes as `%` and two hex digits.
fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'%' => "%25".to_owned(),
        0x20..=0x7E => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

/// A message `google.rpc.Status`, with the detail `RetryInfo` if the request may be sent again.
fn status_message(status: GrpcStatus, sentence: &str, has_retry_info: bool) -> Vec<u8> {
    let mut out = Vec::new();
    push_varint_field(&mut out, 1, status as u64);
    push_bytes_field(&mut out, 2, sentence.as_bytes());
    if has_retry_info {
        let (mut duration, mut info, mut detail) = (Vec::new(), Vec::new(), Vec::new());
        push_varint_field(&mut duration, 1, RETRY_AFTER_SECONDS.into());
        push_bytes_field(&mut info, 1, &duration);
        push_bytes_field(&mut detail, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        push_bytes_field(&mut detail, 2, &info);
        push_bytes_field(&mut out, 3, &detail);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header<'a>(headers: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
        headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_delivered_request_of_grpc_has_an_empty_message_and_its_status_behind_it() {
        let answer = form(Encoding::Grpc)(delivered(Encoding::Grpc));
        assert_eq!((answer.status, &*answer.body), (200, &[0; 5][..]));
        assert_eq!(answer.trailers, [("grpc-status", "0".to_owned())]);
    }

    #[test]
    fn a_refusal_of_grpc_has_its_status_in_the_headers_and_says_when_to_come_again() {
        let answer = form(Encoding::Grpc)(Response::text(400, "at 3: 100 % \u{e9}"));
        assert_eq!((answer.status, answer.body.len(), answer.trailers.len()), (200, 0, 0));
        assert_eq!(header(&answer.headers, "grpc-status"), Some("3"));
        assert_eq!(header(&answer.headers, "grpc-message"), Some("at 3: 100 %25 %C3%A9"));
        assert_eq!(header(&answer.headers, "grpc-status-details-bin"), None);
        let answer = form(Encoding::Grpc)(Response::unavailable("later"));
        assert_eq!(header(&answer.headers, "grpc-status"), Some("14"));
        // {1: 14, 2: "later", 3: {1: "type.googleapis.com/google.rpc.RetryInfo", 2: {1: {1: 10}}}}
        let details = "CA4SBWxhdGVyGjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAo";
        assert_eq!(header(&answer.headers, "grpc-status-details-bin"), Some(details));
    }

    #[test]
    fn a_refusal_over_http_has_a_message_in_the_encoding_of_its_request() {
        let answer = form(Encoding::Protobuf)(Response::text(413, "too large"));
        assert_eq!((answer.status, &*answer.body), (413, &b"\x08\x08\x12\x09too large"[..]));
        let answer = form(Encoding::Json)(Response::unavailable("later"));
        assert_eq!(&*answer.body, br#"{"code":14,"message":"later"}"#);
        assert!(header(&answer.headers, "retry-after").is_some());
    }
}
