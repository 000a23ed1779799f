//! Which protocol a connection to an HTTP listener speaks, by its first bytes: HTTP/1.1, HTTP/2, or packets instead of HTTP.

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

/// What a connection speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaks {
    /// HTTP/1.1, or nothing that is known: hyper refuses that at once.
    Http1,
    Http2,
    Packets,
}

/// What a listener speaks beside HTTP/1.1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spoken {
    pub(super) http2: bool,
    /// The first bytes of connections that speak packets.
    pub(super) packet_magic: Option<&'static [u8]>,
}

/// The first bytes of a connection that was opened at `opened`, and what it speaks. Returns with the first byte that decides,
/// however the bytes are cut; also when the connection ends, the daemon stops or `handshake_timeout` has passed, which are the
/// business of HTTP/1.1 then.
///
/// Bytes that cannot begin a request of HTTP are not kept waiting for more: hyper looks at a head again only when it is complete.
pub(super) async fn read_first(
    stream: &mut ConnectionStream,
    context: &ConnectionContext,
    opened: Duration,
    spoken: Spoken,
) -> (Bytes, Speaks) {
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let (mut first, mut length) = ([0; PREFACE.len()], 0);
    let speaks = loop {
        if let Some(speaks) = spoken.decide(&first[..length]) {
            break speaks;
        }
        let read = tokio::select! {
            biased;
            read = timeout_at(deadline, stream.read(&mut first[length..])) => read,
            () = context.stop.cancelled() => break Speaks::Http1,
        };
        let Ok(Ok(read @ 1..)) = read else { break Speaks::Http1 };
        length += read;
    };
    (Bytes::copy_from_slice(&first[..length]), speaks)
}

impl Spoken {
    /// What a connection that begins with these bytes speaks, [`PREFACE`] at most. `None`: that is not decided.
    fn decide(self, first: &[u8]) -> Option<Speaks> {
        if self.http2 && PREFACE.starts_with(first) {
            return (first.len() == PREFACE.len()).then_some(Speaks::Http2);
        }
        if let Some(magic) = self.packet_magic {
            if first.starts_with(magic) {
                return Some(Speaks::Packets);
            }
            if magic.starts_with(first) {
                return None;
            }
        }
        // A method of HTTP ends with a space.
        let may_be_method = first.len() < PREFACE.len() && first.iter().all(|byte| is_of_token(*byte));
        (!may_be_method).then_some(Speaks::Http1)
    }
}

/// Whether a byte may be part of a method (RFC 9110, 5.6.2).
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_that_can_be_nothing_else_decide() {
        let all = Spoken { http2: true, packet_magic: Some(b"!\xC0\xBA\xBE") };
        let only_http1 = Spoken { http2: false, packet_magic: None };
        for (first, of_all, of_http1) in [
            (&b""[..], None, None),
            (b"!", None, None),
            (b"!\xC0", None, Some(Speaks::Http1)),
            (b"!\xC0\xBA\xBE", Some(Speaks::Packets), Some(Speaks::Http1)),
            (b"!\xC0\xBA\xBE\0\x10", Some(Speaks::Packets), Some(Speaks::Http1)),
            (b"!\xC0\0", Some(Speaks::Http1), Some(Speaks::Http1)),
            (b"!GET", None, None),
            (b"PRI", None, None),
            (b"PRI ", None, Some(Speaks::Http1)),
            (PREFACE, Some(Speaks::Http2), Some(Speaks::Http1)),
            (b"POST", None, None),
            (b"POST /", Some(Speaks::Http1), Some(Speaks::Http1)),
            (b"G\0", Some(Speaks::Http1), Some(Speaks::Http1)),
            (b"\x16\x03", Some(Speaks::Http1), Some(Speaks::Http1)),
            (&[b'A'; 24], Some(Speaks::Http1), Some(Speaks::Http1)),
        ] {
            assert_eq!((all.decide(first), only_http1.decide(first)), (of_all, of_http1), "{first:02x?}");
        }
    }
}
