//! Connections that a load balancer passes on: the PROXY header before everything else, which tells whose each is.
//!
//! Only the header is taken off the socket, so what follows (TLS, or the protocol itself) is as if nothing had been
//! before it. Its bytes belong to the transport, as those of TLS do, and are in no counters, unless it comes to nothing.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout_at;
use tracing::debug;

use crate::codec::proxy;
use crate::event::{Origin, Reason};

use super::connection::ConnectionContext;
use super::tcp::refuse;

/// The buffer grows by so much.
const MORE_BYTES: usize = 256;

/// Takes the header off the stream. `Some(None)`: the proxy speaks for itself, or for nobody that has an address. `None`:
/// there is none, and if there were bytes, a loss has told so. `origin` is the proxy's.
pub(super) async fn told(
    stream: &mut TcpStream,
    origin: &Arc<Origin>,
    context: &ConnectionContext,
    opened: Duration,
) -> Option<Option<SocketAddr>> {
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let mut header = Vec::new();
    let mut taken = 0;
    let why = loop {
        // Room for one header as balancers send them, and for a longer one as it comes: `proxy::read` takes none that is
        // longer than its limit.
        if taken == header.len() {
            header.resize(taken + MORE_BYTES, 0);
        }
        let peeked = tokio::select! {
            () = context.stop.cancelled() => break "the collector stops".to_owned(),
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
        if let Err(error) = take(stream, &mut header[taken..until]).await {
            debug!(%error, "reading failed");
            break "the connection ended".to_owned();
        }
        taken = until;
        if let Ok(Some(header)) = read {
            return Some(header.source);
        }
    };
    if taken > 0 {
        let detail = format!("the PROXY header is cut at {taken}: {why}");
        refuse(origin, context, Reason::Truncated, &header[..taken], &detail).await;
    }
    None
}

/// Reads what was peeked, so it is there.
async fn take(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<()> {
    stream.read_exact(bytes).await.map(drop)
}
