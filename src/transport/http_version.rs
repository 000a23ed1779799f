//! Which version of HTTP a connection speaks: its first bytes are the preface of HTTP/2, or they are not.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncReadExt;
use tokio::time::timeout_at;

use super::context::ConnectionContext;
use super::stream::ConnectionStream;

/// The first bytes of every connection of HTTP/2 (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a listener that speaks both versions offers to TLS clients (ALPN). The first bytes count all the same.
pub(super) const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The first bytes of a connection that was opened at `opened`, and whether they are the preface of HTTP/2. Returns with the
/// first byte that is not of it; also when the connection ends, the daemon stops or `handshake_timeout` has passed, which are the
/// business of HTTP/1.1 then.
pub(super) async fn read_first(
    stream: &mut ConnectionStream,
    context: &ConnectionContext,
    opened: Duration,
) -> (Bytes, bool) {
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let (mut first, mut length) = ([0; PREFACE.len()], 0);
    while length < PREFACE.len() && first[..length] == PREFACE[..length] {
        let read = tokio::select! {
            biased;
            read = timeout_at(deadline, stream.read(&mut first[length..])) => read,
            () = context.stop.cancelled() => break,
        };
        let Ok(Ok(read @ 1..)) = read else { break };
        length += read;
    }
    (Bytes::copy_from_slice(&first[..length]), first == *PREFACE)
}
