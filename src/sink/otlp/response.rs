//! What receivers answer.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};

use tributary_codec::base64;
use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, bytes_of, varint_of};
use tributary_sink_forward::AttemptOutcome;
use tributary_sink_forward::answer::grpc;
use tributary_sink_forward::client::{retry_after, shown};

/// What a receiver means by its answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    Answer(AttemptOutcome),
    /// It does not take this signal, in its words.
    NoSignal(String),
}

/// The type of the detail that asks for a pause.
const RETRY_INFO: &[u8] = b"type.googleapis.com/google.rpc.RetryInfo";
/// The longest text that is decoded.
const MAX_DETAILS_BYTES: usize = 64 * 1024;

/// An answer of gRPC: the status stands in the trailers, or in the headers when there is no message.
pub(super) fn of_grpc(status: StatusCode, headers: &HeaderMap, trailers: Option<&HeaderMap>, body: &[u8]) -> Meaning {
    let has_status = |map: &&HeaderMap| map.contains_key("grpc-status");
    let Some(map) = trailers.filter(has_status).or(Some(headers).filter(has_status)) else {
        return without_grpc_status(status, headers, body);
    };
    let code: Option<u64> = map["grpc-status"].to_str().ok().and_then(|code| code.trim().parse().ok());
    let text = map.get("grpc-message").map(|text| percent_decoded(text.as_bytes())).unwrap_or_default();
    if code == Some(grpc::OK) {
        // A message of a response has five bytes in front of it.
        return Meaning::Answer(accepted(body.get(5..)));
    }
    let why = match code {
        Some(code) => format!("gRPC status {code} {}", shown(&text)).trim().to_owned(),
        None => "an invalid gRPC status".to_owned(),
    };
    let pause = map.get("grpc-status-details-bin").and_then(pause_of_details);
    Meaning::Answer(match code {
        Some(grpc::UNIMPLEMENTED) => return Meaning::NoSignal(why),
        Some(grpc::RESOURCE_EXHAUSTED) if pause.is_some() => AttemptOutcome::Away(why, pause),
        // Some servers report a message that is too long as OUT_OF_RANGE.
        Some(grpc::RESOURCE_EXHAUSTED | grpc::INVALID_ARGUMENT | grpc::OUT_OF_RANGE) if is_about_size(&text) => {
            AttemptOutcome::TooLarge(why)
        }
        code => AttemptOutcome::of_grpc_code(code, why, pause),
    })
}

/// An answer without a status of gRPC comes from a proxy, or from a server that does not speak gRPC: no judgement of a request, so
/// nothing is lost while an operator corrects the endpoint.
fn without_grpc_status(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Meaning {
    let why = format!("{} without a gRPC status {}", status.as_u16(), shown(body).trim()).trim().to_owned();
    match status.as_u16() {
        404 => Meaning::NoSignal(why),
        status => Meaning::Answer(match AttemptOutcome::of_status(status, why.clone(), pause(headers)) {
            AttemptOutcome::Accepted | AttemptOutcome::Bad(_) => AttemptOutcome::Refusing(why),
            other => other,
        }),
    }
}

/// An answer of OTLP over HTTP.
pub(super) fn of_http(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Meaning {
    let is_protobuf = headers.get(CONTENT_TYPE).is_some_and(|of| of.as_bytes().starts_with(b"application/x-protobuf"));
    // The body of a failure is a google.rpc.Status; its field 2 is a text.
    let text = if is_protobuf { bytes_of(body, 2) } else { body };
    let why = format!("{} {}", status.as_u16(), shown(text).trim()).trim().to_owned();
    Meaning::Answer(match status.as_u16() {
        200..=299 => accepted(Some(body)),
        404 => return Meaning::NoSignal(why),
        400 if is_about_size(text) => AttemptOutcome::TooLarge(why),
        status => AttemptOutcome::of_status(status, why, pause(headers)),
    })
}

fn pause(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER).and_then(retry_after)
}

/// The response to a request that was accepted: field 1 is `partial_success` { 1: rejected, 2: message }. The request was
/// received, whatever the response has.
fn accepted(response: Option<&[u8]>) -> AttemptOutcome {
    let mut fields = ProtobufFields::of(response.unwrap_or_default());
    let partial = fields.by_ref().filter(|field| field.number == 1).last();
    if response.is_none() || !fields.is_valid() {
        return AttemptOutcome::Partial(0, Some("the response to an accepted request cannot be read".to_owned()));
    }
    let Some(ProtobufValue::Bytes(partial)) = partial.map(|field| field.value) else { return AttemptOutcome::Accepted };
    // The number is signed; a negative one makes no sense.
    let rejected = i64::try_from(varint_of(partial, 1)).unwrap_or(0).unsigned_abs();
    let text = shown(bytes_of(partial, 2));
    match (rejected, text.trim()) {
        (0, "") => AttemptOutcome::Accepted,
        (0, text) => AttemptOutcome::Partial(0, Some(format!("the receiver warns: {text}"))),
        (rejected, text) => {
            AttemptOutcome::Partial(rejected, Some(format!("the receiver rejected {rejected} records: {text}")))
        }
    }
}

/// Whether a text says that a message is too large. Receivers have no code for it.
fn is_about_size(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_lowercase();
    let exceeds = text.contains("exceed") && ["size", "byte", "length"].iter().any(|word| text.contains(word));
    exceeds || ["too large", "larger than", "too big", "too long"].iter().any(|words| text.contains(words))
}

/// The pause that `google.rpc.Status` asks for: field 3 are details { 1: type, 2: message }. The message of
/// RetryInfo has a duration { 1: seconds, 2: nanoseconds } as field 1.
fn pause_of_details(value: &HeaderValue) -> Option<Duration> {
    let text = value.as_bytes().get(..value.len().min(MAX_DETAILS_BYTES))?;
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let mut padded = text[..end].to_vec();
    padded.resize(end.next_multiple_of(4), b'=');
    let status = base64::decode(&padded).ok()?;
    let is_retry_info = |detail: &&[u8]| bytes_of(detail, 1) == RETRY_INFO;
    let details = ProtobufFields::of(&status).filter(|field| field.number == 3);
    let detail =
        details.filter_map(|field| if let ProtobufValue::Bytes(detail) = field.value { Some(detail) } else { None });
    let delay = detail.filter(|detail| is_retry_info(detail)).map(|detail| bytes_of(bytes_of(detail, 2), 1)).next()?;
    let (seconds, nanos) = (varint_of(delay, 1), varint_of(delay, 2));
    Some(
        Duration::from_secs(i64::try_from(seconds).ok()?.unsigned_abs()) + Duration::from_nanos(nanos.min(999_999_999)),
    )
}

/// The text of `grpc-message`.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grpc(code: &str, message: &'static str, details: Option<&'static str>) -> Meaning {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_str(code).unwrap());
        trailers.insert("grpc-message", HeaderValue::from_static(message));
        details.map(|details| trailers.insert("grpc-status-details-bin", HeaderValue::from_static(details)));
        of_grpc(StatusCode::OK, &HeaderMap::new(), Some(&trailers), b"")
    }

    /// A status with a RetryInfo of 5.5 seconds, without padding.
    const DETAILS: &str = "CAgaMgoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIGCgQIBRAB";

    #[test]
    fn codes_of_grpc_follow_the_rule_and_words_about_a_size_divide_the_request() {
        for code in ["1", "2", "4", "8", "10", "13", "14", "15", "99", "x"] {
            assert!(matches!(grpc(code, "busy", None), Meaning::Answer(AttemptOutcome::Away(_, None))), "{code}");
        }
        for code in ["5", "7", "9", "16"] {
            assert!(matches!(grpc(code, "no", None), Meaning::Answer(AttemptOutcome::Refusing(_))), "{code}");
        }
        for code in ["3", "6", "11"] {
            assert!(matches!(grpc(code, "no", None), Meaning::Answer(AttemptOutcome::Bad(_))), "{code}");
        }
        assert!(matches!(grpc("12", "unknown service", None), Meaning::NoSignal(_)));
        let pause = Some(Duration::new(5, 1));
        assert!(matches!(grpc("8", "", Some(DETAILS)), Meaning::Answer(AttemptOutcome::Away(_, of)) if of == pause));
        assert!(matches!(grpc("14", "", Some(DETAILS)), Meaning::Answer(AttemptOutcome::Away(_, of)) if of == pause));
        for (code, text) in [
            ("8", "grpc: received message larger than max (5000000 vs. 4194304)"),
            ("11", "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes"),
            ("3", "request%20body too large"),
        ] {
            assert!(matches!(grpc(code, text, None), Meaning::Answer(AttemptOutcome::TooLarge(_))), "{text}");
        }
        let meaning = grpc("7", "a%0Ab%zz", None);
        assert_eq!(meaning, Meaning::Answer(AttemptOutcome::Refusing("gRPC status 7 a b%zz".into())));
    }

    #[test]
    fn an_answer_that_is_no_grpc_makes_no_request_bad() {
        let of = |status: u16| of_grpc(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), None, b"<html>");
        for status in [200, 302, 400, 401, 403, 405, 415, 422] {
            assert!(matches!(of(status), Meaning::Answer(AttemptOutcome::Refusing(_))), "{status}");
        }
        for status in [408, 429, 500, 502, 503] {
            assert!(matches!(of(status), Meaning::Answer(AttemptOutcome::Away(..))), "{status}");
        }
        assert!(
            matches!(of(404), Meaning::NoSignal(_)) && matches!(of(413), Meaning::Answer(AttemptOutcome::TooLarge(_)))
        );
    }

    #[test]
    fn an_accepted_request_can_be_rejected_in_part() {
        let of = |body: &[u8]| of_http(StatusCode::OK, &HeaderMap::new(), body);
        assert_eq!(of(b""), Meaning::Answer(AttemptOutcome::Accepted));
        assert_eq!(of(&[0x0a, 0]), Meaning::Answer(AttemptOutcome::Accepted));
        let partly = of(&[0x0a, 6, 8, 3, 0x12, 2, b'n', b'o']);
        assert_eq!(
            partly,
            Meaning::Answer(AttemptOutcome::Partial(3, Some("the receiver rejected 3 records: no".into())))
        );
        let warned = of(&[0x0a, 4, 0x12, 2, b'n', b'o']);
        assert_eq!(warned, Meaning::Answer(AttemptOutcome::Partial(0, Some("the receiver warns: no".into()))));
        assert!(matches!(of(b"<html>"), Meaning::Answer(AttemptOutcome::Partial(0, Some(_)))));
    }
}
