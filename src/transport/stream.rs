//! The bytes of one connection, plain or through TLS, and their recording.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use tributary_protocol::End;

use super::capture::Recording;

/// A connection.
#[derive(Debug)]
pub(super) struct ConnectionStream {
    wire: Wire,
    recording: Option<Recording>,
}

/// The socket, and TLS if the connection has it.
#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl ConnectionStream {
    /// A connection without TLS.
    pub(super) fn plain(stream: TcpStream) -> Self {
        ConnectionStream { wire: Wire::Plain(stream), recording: None }
    }

    /// A connection through a Unix socket.
    pub(super) fn unix(stream: UnixStream) -> Self {
        ConnectionStream { wire: Wire::Unix(stream), recording: None }
    }

    /// A connection through TLS.
    pub(super) fn tls(stream: TlsStream<TcpStream>) -> Self {
        ConnectionStream { wire: Wire::Tls(Box::new(stream)), recording: None }
    }

    /// Passes everything that is read from now on to `recording`.
    pub(super) fn record(&mut self, recording: Option<Recording>) {
        self.recording = recording;
    }

    /// Ends recording what is read; the recording so far.
    pub(super) fn take_recording(&mut self) -> Option<Recording> {
        self.recording.take()
    }

    /// Records how the connection has ended.
    pub(super) fn ended(&mut self, end: End) {
        if let Some(recording) = &mut self.recording {
            recording.ended(end);
        }
    }

    /// Reads what has arrived into the spare capacity of `buffer`; `None` when nothing has.
    pub(super) async fn read_now(&mut self, buffer: &mut BytesMut) -> Option<io::Result<usize>> {
        poll_fn(|cx| {
            Poll::Ready(match poll_read_buf(Pin::new(&mut *self), cx, buffer) {
                Poll::Ready(result) => Some(result),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// Waits, without a buffer, until there may be something to read.
    pub(super) async fn readable(&self) -> io::Result<()> {
        match &self.wire {
            Wire::Plain(stream) => stream.readable().await,
            Wire::Unix(stream) => stream.readable().await,
            Wire::Tls(stream) => stream.get_ref().0.readable().await,
        }
    }

    /// Lets the system acknowledge what has arrived at once: a peer that writes a message in parts may wait for that before it
    /// sends the next part, 40 ms each time (Nagle's algorithm and delayed acknowledgements).
    pub(super) fn acknowledge_at_once(&self) {
        if let Wire::Plain(stream) = &self.wire {
            let _ = SockRef::from(stream).set_tcp_quickack(true);
        }
    }

    /// Writes everything.
    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        AsyncWriteExt::write_all(self, bytes).await?;
        self.flush().await
    }

    /// Ends our side: nothing more will be written.
    pub(super) async fn shut_down(&mut self) -> io::Result<()> {
        self.shutdown().await
    }
}

impl AsyncRead for ConnectionStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let ConnectionStream { wire, recording } = self.get_mut();
        let before = buffer.filled().len();
        let read = match wire {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Wire::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Wire::Tls(stream) => Pin::new(stream.as_mut()).poll_read(cx, buffer),
        };
        if let (Some(recording), Poll::Ready(read)) = (recording, &read) {
            match (read, &buffer.filled()[before..]) {
                (Err(_), _) => recording.read_ended(End::Reset),
                (Ok(()), []) => recording.read_ended(End::Closed),
                (Ok(()), bytes) => recording.received(bytes),
            }
        }
        read
    }
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().wire {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Tls(stream) => Pin::new(stream.as_mut()).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().wire {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().wire {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(cx),
        }
    }
}
