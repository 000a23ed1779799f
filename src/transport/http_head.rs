//! Heads of requests: what RFC 9112 has a server refuse and hyper accepts, and bytes that are no head.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Version};
use tokio::io::AsyncReadExt;
use tokio::time::{timeout, timeout_at};

use tributary_event::{Loss, Origin, Reason};
use tributary_protocol::{RequestHead, Response};

use super::body::{MAX_DRAINED_BYTES, UndecidedBytes};
use super::context::ConnectionContext;
use super::stream::ConnectionStream;

/// The response to a head that cannot be read, where hyper sends none.
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// The bytes behind a bad head are read with this buffer.
const READ_BYTES: usize = 16 << 10;
/// How long the peer may take to read the last response.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The head as exchanges see it: that of HTTP/1.1 in any case.
pub(super) fn head(parts: &Parts) -> RequestHead {
    let mut headers = headers(&parts.headers);
    // RFC 9113, 8.3.1: `:authority` of HTTP/2 is what Host is in HTTP/1.1.
    if parts.version == Version::HTTP_2
        && !parts.headers.contains_key(HOST)
        && let Some(authority) = parts.uri.authority()
    {
        headers.insert(0, (HOST.as_str().to_owned(), authority.as_str().as_bytes().to_vec()));
    }
    RequestHead {
        method: parts.method.as_str().to_owned(),
        // Proxies name the host as well.
        target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        headers,
    }
}

/// The head of a request with a body of this length, in HTTP/1.1, as captures have it.
pub(super) fn recorded(head: &RequestHead, body: usize) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", head.method, head.target).into_bytes();
    for (name, value) in head.headers.iter().filter(|(name, _)| name != CONTENT_LENGTH.as_str()) {
        text.extend_from_slice(&[name.as_bytes(), b": ", value, b"\r\n"].concat());
    }
    text.extend_from_slice(format!("{CONTENT_LENGTH}: {body}\r\n\r\n").as_bytes());
    text
}

fn headers(map: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

/// Checks what hyper does not: `Some` is the response to a head that is invalid.
pub(super) fn check(parts: &Parts) -> Option<Response> {
    // RFC 9112, 3.2: 400 for a request of HTTP/1.1 without Host, and for any request with more than one.
    let hosts = parts.headers.get_all(HOST).iter().count();
    if hosts > 1 || hosts == 0 && parts.version == Version::HTTP_11 {
        return Some(Response::text(400, format!("a request has one Host header, this one has {hosts}")));
    }
    // RFC 9112, 6.1: `chunked` is applied once, and last. A coding that we do not know could be answered by 501 as well;
    // without the coding the body cannot be read, so it is 400 like every other body that cannot be read.
    let codings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    let codings: Vec<_> = codings.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).collect();
    let is_chunked = |coding: &&[u8]| coding.trim_ascii().eq_ignore_ascii_case(b"chunked");
    if codings.len() > 1 || !codings.iter().all(is_chunked) {
        return Some(Response::text(400, "the only Transfer-Encoding that is accepted is `chunked`, once"));
    }
    None
}

/// Why bytes are no head of a request.
pub(super) enum BadHead {
    /// They break the format; hyper has answered, or not.
    Malformed { error: hyper::Error, is_answered: bool },
    /// The connection ended inside the head.
    Incomplete(&'static str),
}

/// Reports bytes that are no head, and everything behind them, as lost. `unread` is what hyper had received of them.
pub(super) async fn report_bad_head(
    bad: BadHead,
    unread: &[u8],
    mut stream: ConnectionStream,
    origin: &Arc<Origin>,
    context: &ConnectionContext,
) {
    let mut undecided = UndecidedBytes::new(context.clone(), origin.clone(), false);
    undecided.received(unread.len());
    let mut excerpt = unread[..unread.len().min(Loss::EXCERPT)].to_vec();
    let (reason, detail) = match bad {
        BadHead::Incomplete(why) => (Reason::Truncated, format!("the head of a request is incomplete: {why}")),
        BadHead::Malformed { error, is_answered } => {
            if !is_answered {
                let _ = timeout(RESPONSE_TIMEOUT, stream.write_all(BAD_REQUEST)).await;
            }
            read_rest(&mut stream, &mut excerpt, &mut undecided, context).await;
            (Reason::Malformed, format!("the peer does not send valid HTTP/1.1: {error}"))
        }
    };
    drop(stream);
    undecided.lose(reason, &detail, without_secrets(&excerpt)).await;
}

/// Ends our side and reads for a moment what the peer still sends, so that the peer receives the response rather than a
/// reset.
pub(super) async fn read_rest(
    stream: &mut ConnectionStream,
    excerpt: &mut Vec<u8>,
    undecided: &mut UndecidedBytes,
    context: &ConnectionContext,
) {
    let until = context.clock.instant(context.clock.now().elapsed + context.options.close_linger);
    let (mut bytes, mut buffer) = (0, vec![0; READ_BYTES]);
    if timeout_at(until, stream.shut_down()).await.is_err() {
        return;
    }
    while bytes < MAX_DRAINED_BYTES {
        let read = tokio::select! {
            read = timeout_at(until, stream.read(&mut buffer)) => read,
            () = context.stop.cancelled() => break,
        };
        let Ok(Ok(read @ 1..)) = read else { break };
        bytes += read as u64;
        undecided.received(read);
        let space = Loss::EXCERPT - excerpt.len();
        excerpt.extend_from_slice(&buffer[..read.min(space)]);
    }
}

/// The first line up to its query: queries and headers may contain keys and tokens.
fn without_secrets(head: &[u8]) -> &[u8] {
    let end = head.iter().position(|byte| b"?\r\n".contains(byte)).unwrap_or(head.len());
    &head[..end]
}
