//! Clients of HTTP/2: that of hyper for whole requests, that of h2 for single frames.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest as SendFrames};
use h2::{RecvStream, SendStream};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::within;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
    pub(crate) trailers: Option<HeaderMap>,
    /// Whether the headers have ended the stream.
    pub(crate) is_headers_only: bool,
}

impl Answer {
    /// The number of the request.
    pub(crate) fn number(&self) -> u64 {
        self.body.split(' ').next().unwrap().parse().unwrap()
    }
}

/// A connection of hyper's client.
#[derive(Clone)]
pub(crate) struct Client {
    requests: SendRequest<Full<Bytes>>,
}

impl Client {
    /// And the task of the connection, which ends with it.
    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> (Client, JoinHandle<()>) {
        let (requests, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
        (Client { requests }, tokio::spawn(async move { drop(connection.await) }))
    }

    pub(crate) async fn connect(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).await.unwrap()).await.0
    }

    pub(crate) async fn try_send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        let response = within("the answer", self.requests.clone().send_request(request)).await?;
        let (head, body) = response.into_parts();
        let is_headers_only = hyper::body::Body::is_end_stream(&body);
        let collected = within("the body", body.collect()).await?;
        let trailers = collected.trailers().cloned();
        let body = String::from_utf8(collected.to_bytes().to_vec()).unwrap();
        let body = body.trim_end().to_owned();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body, trailers, is_headers_only })
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        self.try_send(request).await.unwrap()
    }

    /// Sends a body of this length to a path.
    pub(crate) async fn post(&self, path: &str, length: usize) -> Answer {
        self.send(post(path, vec![b'x'; length])).await
    }
}

pub(crate) fn post(path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::post(format!("http://t.example{path}")).body(Full::new(body.into())).unwrap()
}

/// A stream that was opened.
pub(crate) type Opened = (ResponseFuture, SendStream<Bytes>);

/// A connection of h2's client.
pub(crate) struct Frames(SendFrames<Bytes>);

impl Frames {
    pub(crate) async fn connect(address: SocketAddr) -> Frames {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Frames(requests)
    }

    /// Opens a stream whose body has this length, and sends the first bytes of it.
    pub(crate) async fn open(&mut self, path: &str, length: usize, first: &'static [u8]) -> Opened {
        let (response, mut body) = self.try_open(path, Some(length)).await.unwrap();
        body.send_data(Bytes::from_static(first), first.len() == length).unwrap();
        (response, body)
    }

    /// Opens a stream. `length`: that of its body, if it is declared.
    pub(crate) async fn try_open(&mut self, path: &str, length: Option<usize>) -> Result<Opened, h2::Error> {
        let mut head = Request::post(format!("http://t.example{path}"));
        if let Some(length) = length {
            head = head.header("content-length", length);
        }
        let mut requests = self.0.clone().ready().await?;
        requests.send_request(head.body(()).unwrap(), false)
    }
}

/// The status and the body of a response.
pub(crate) async fn read(response: ResponseFuture) -> Result<(u16, String), h2::Error> {
    let (head, mut body): (_, RecvStream) = within("the answer", response).await?.into_parts();
    let mut text = Vec::new();
    while let Some(bytes) = within("the body", body.data()).await {
        text.extend_from_slice(&bytes?);
    }
    Ok((head.status.as_u16(), String::from_utf8(text).unwrap()))
}

/// A connection whose first bytes were written already: they are not written again.
pub(crate) struct StreamAfterPreface {
    pub(crate) stream: TcpStream,
    pub(crate) written: usize,
}

impl AsyncRead for StreamAfterPreface {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for StreamAfterPreface {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.written > 0 {
            let written = self.written.min(bytes.len());
            self.written -= written;
            return Poll::Ready(Ok(written));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
