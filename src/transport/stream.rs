//! One connection's bytes, plain or through TLS.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

/// A connection, plain or through TLS.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Reads into the spare room of `buffer` what is there now; `None` when nothing is.
    pub(super) async fn read_now(&mut self, buffer: &mut BytesMut) -> Option<io::Result<usize>> {
        poll_fn(|context| {
            let read = match self {
                Stream::Plain(stream) => poll_read_buf(Pin::new(stream), context, buffer),
                Stream::Tls(stream) => poll_read_buf(Pin::new(stream.as_mut()), context, buffer),
            };
            Poll::Ready(match read {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// Waits until reading may answer something, holding no buffer meanwhile.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.readable().await,
            Stream::Tls(stream) => stream.get_ref().0.readable().await,
        }
    }

    /// Writes everything.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        AsyncWriteExt::write_all(self, bytes).await?;
        self.flush().await
    }

    /// Tells the peer that nothing more will be written.
    pub(super) async fn shut_down(&mut self) -> io::Result<()> {
        self.shutdown().await
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
