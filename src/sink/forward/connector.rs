//! Connections to servers of HTTP, direct or by a proxy. TLS is above them.

use std::error::Error;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::client::HttpVersion;
use super::proxy::{ProxyError, Rules, shown};
use tributary_system::blocking;

/// Connects to the server of an address, or to the proxy of that server.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    tcp: HttpConnector<Resolver>,
    rules: Arc<Rules>,
    version: HttpVersion,
}

type Connecting<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl Connector {
    pub(super) fn new(rules: Arc<Rules>, version: HttpVersion, connect_timeout: Duration) -> Connector {
        let mut tcp = HttpConnector::new_with_resolver(Resolver);
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(connect_timeout));
        Connector { tcp, rules, version }
    }
}

impl Service<Uri> for Connector {
    type Response = HttpStream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Connecting<HttpStream, Self::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Some(proxy) = self.rules.of(&server) else {
            let connecting = self.tcp.call(server);
            return Box::pin(
                async move { Ok(HttpStream { io: connecting.await?, is_forwarded: false, has_read: false }) },
            );
        };
        let name = shown(&proxy);
        if proxy.uri().scheme_str() != Some("http") {
            let why = format!(
                "the proxy {name} is not of HTTP: only http:// is supported; set the option proxy, or NO_PROXY"
            );
            return Box::pin(async move { Err(why.into()) });
        }
        // A proxy forwards requests of plain HTTP/1.1. For everything else it connects, and sees bytes only.
        if server.scheme_str() == Some("http") && self.version == HttpVersion::Http1 {
            let connecting = self.tcp.call(proxy.uri().clone());
            return Box::pin(async move {
                let failed = |error| ProxyError { proxy: name, destination: None, source: Box::new(error) };
                Ok(HttpStream { io: connecting.await.map_err(failed)?, is_forwarded: true, has_read: false })
            });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let destination = destination(&server);
        let connecting = destination.parse::<Uri>().map(|destination| tunnel.call(destination));
        Box::pin(async move {
            let failed = |source| ProxyError { proxy: name, destination: Some(destination), source };
            match connecting {
                Ok(connecting) => match connecting.await {
                    Ok(io) => Ok(HttpStream { io, is_forwarded: false, has_read: false }),
                    Err(error) => Err(failed(Box::new(error)).into()),
                },
                Err(error) => Err(failed(Box::new(error)).into()),
            }
        })
    }
}

/// `HOST:PORT` of a server.
fn destination(server: &Uri) -> String {
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("https") { 443 } else { 80 });
    format!("{}:{port}", server.host().unwrap_or_default())
}

/// A connection to a server, or to a proxy that forwards requests to it.
#[derive(Debug)]
pub(crate) struct HttpStream {
    io: TokioIo<TcpStream>,
    /// Requests have the whole address of the server.
    is_forwarded: bool,
    /// The last read has succeeded, so the next one lets others run.
    has_read: bool,
}

impl Connection for HttpStream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.is_forwarded)
    }
}

impl Read for HttpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // A server that sends interim responses for ever must not keep the sink from its other work, and from its end.
        if std::mem::take(&mut self.has_read) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.io).poll_read(context, buffer);
        self.has_read = read.is_ready();
        read
    }
}

impl Write for HttpStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }
}

/// Resolves names on threads that can be refused.
#[derive(Clone, Debug)]
pub(crate) struct Resolver;

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Connecting<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move { Ok(blocking::resolve(&format!("{name}:0")).await?.into_iter()) })
    }
}
