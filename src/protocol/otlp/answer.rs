//! Answers (OTLP 1.10, "OTLP/HTTP Response" and "OTLP/gRPC Response").

use std::borrow::Cow;

use tributary_codec::protobuf::{push_bytes_field, push_varint_field};
use tributary_protocol::Response;

use super::route::Encoding;

/// An empty message of gRPC: not compressed, of length 0.
const EMPTY_GRPC: [u8; 5] = [0; 5];
/// How long a sender waits before it sends a request again that cannot be taken now, in seconds.
const RETRY_SECONDS: u64 = 10;

/// Statuses of gRPC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrpcStatus {
    InvalidArgument = 3,
    NotFound = 5,
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
            404 => GrpcStatus::Unimplemented,
            405 => GrpcStatus::Unimplemented,
            410 => GrpcStatus::NotFound,
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
    let headers = vec![("content-type", encoding.content_type().to_owned())];
    Response { status: 200, headers, body: Cow::Borrowed(body) }
}

/// A refusal with a sentence, in the encoding of its request: a message `Status`.
pub(super) fn refused(encoding: Encoding, response: Response) -> Response {
    let sentence = String::from_utf8_lossy(&response.body).trim_end().to_owned();
    let status = GrpcStatus::of(response.status);
    let mut headers: Vec<_> = response.headers.into_iter().filter(|(name, _)| *name != "content-type").collect();
    headers.push(("content-type", encoding.content_type().to_owned()));
    let body = match encoding {
        Encoding::Protobuf => status_message(status, &sentence, false),
        Encoding::Json => serde_json::json!({ "code": status as u8, "message": sentence }).to_string().into_bytes(),
        Encoding::Grpc => Vec::new(),
    };
    Response { status: response.status, headers, body: body.into() }
}

/// A message `google.rpc.Status`, with the detail `RetryInfo` if the request may be sent again.
fn status_message(status: GrpcStatus, sentence: &str, has_retry_info: bool) -> Vec<u8> {
    let mut out = Vec::new();
    push_varint_field(&mut out, 1, status as u64);
    push_bytes_field(&mut out, 2, sentence.as_bytes());
    if has_retry_info {
        let (mut duration, mut info, mut detail) = (Vec::new(), Vec::new(), Vec::new());
        push_varint_field(&mut duration, 1, RETRY_SECONDS);
        push_bytes_field(&mut info, 1, &duration);
        push_bytes_field(&mut detail, 1, b"type.googleapis.com/google.rpc.RetryInfo");
        push_bytes_field(&mut detail, 2, &info);
        push_bytes_field(&mut out, 3, &detail);
    }
    out
}
