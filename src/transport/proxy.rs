//! Connections that a load balancer forwards: each begins with a PROXY header that names the peer's address.
//!
//! Only the header is taken off the socket, so that TLS or the protocol reads its own first byte next. The bytes of the
//! header belong to the transport, as those of TLS do: no counter has them, unless the header is refused.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tracing::debug;

use tributary_codec::proxy;
use tributary_event::{Origin, Reason};

use super::context::ConnectionContext;
use super::tcp::refuse;

/// The buffer grows by this size.
const MORE_BYTES: usize = 256;

/// Reads the header and returns the peer's address. `Some(None)`: the proxy connects for itself, or for a peer without an
/// address. `None`: there is no header, and a loss reports the bytes that were received. `origin` is the proxy's.
pub(super) async fn read_header(
    stream: &mut TcpStream,
    origin: &Arc<Origin>,
    context: &ConnectionContext,
    opened: Duration,
) -> Option<Option<SocketAddr>> {
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let mut header = Vec::new();
    let mut taken = 0;
    let why = loop {
        // The buffer is large enough for a usual header, and grows with a longer one: `proxy::read` refuses a header
        // that is longer than its limit.
        if taken == header.len() {
            header.resize(taken + MORE_BYTES, 0);
        }
        let peeked = tokio::select! {
            () = context.stop_handshakes.cancelled() => break "the collector is stopping".to_owned(),
            peeked = timeout_at(deadline, stream.peek(&mut header[taken..])) => peeked,
        };
        let seen = match peeked {
            Err(_) => break "it took longer than handshake_timeout".to_owned(),
            Ok(Ok(0) | Err(_)) => break "the connection ended".to_owned(),
            Ok(Ok(peeked)) => taken + peeked,
        };
        let read = proxy::read(&header[..seen]);
        let until = match &read {
            Ok(Some(header)) => header.length,
            Ok(None) => seen,
            Err(error) => {
                let detail = format!("connections from here begin with a PROXY header (proxy_protocol): {error}");
                refuse(origin, context, Reason::Malformed, &header[..seen], &detail).await;
                return None;
            }
        };
        if let Err(error) = read_peeked(stream, &mut header[taken..until]).await {
            debug!(%error, "reading failed");
            break "the connection ended".to_owned();
        }
        taken = until;
        if let Ok(Some(header)) = read {
            return Some(header.source);
        }
    };
    if taken > 0 {
        let detail = format!("the PROXY header is cut at byte {taken}: {why}");
        refuse(origin, context, Reason::Truncated, &header[..taken], &detail).await;
    }
    None
}

/// Reads bytes that were peeked, so they have arrived.
async fn read_peeked(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    stream.read_exact(bytes).await.map(drop)
}
