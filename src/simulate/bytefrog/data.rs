//! The data connections of an agent, and the tasks that send over them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::super::{Counts, tcp};
use super::Options;
use super::buffers::Buffer;
use super::harm::Harm;
use super::tally::Tally;
use super::wire;

/// Opens data connections of `run`, one after the other.
pub(super) async fn open(
    to: SocketAddr,
    run: u8,
    count: i32,
    Options { timeout: limit, pause, .. }: Options,
    tally: &Tally,
) -> io::Result<Vec<TcpStream>> {
    let mut streams = Vec::new();
    for number in 0..count {
        let refused = |error| Harm::TraceDies(format!("data connection {number} was refused: {error}"));
        let mut stream = TcpStream::connect(to).await.map_err(refused)?;
        stream.set_nodelay(true)?;
        sleep(pause).await;
        let hello = wire::data_hello(run);
        stream.write_all(&hello).await.map_err(refused)?;
        tally.sent(Counts { messages: 1, events: 0 }, hello.len());
        let answer = timeout(limit, stream.read_u8())
            .await
            .map_err(|_| Harm::Hang(format!("data connection {number} got no answer within {limit:?}")))?;
        match answer {
            Ok(wire::DATA_HELLO_REPLY) => streams.push(stream),
            Ok(99) => {
                let text = refusal(&mut stream).await.unwrap_or_default();
                return Err(Harm::TraceDies(format!("data connection {number} was refused: {text}")).into());
            }
            Ok(other) => {
                return Err(Harm::TraceDies(format!("data connection {number} was answered with {other}")).into());
            }
            Err(error) => return Err(refused(error).into()),
        }
    }
    Ok(streams)
}

/// Reads the text of an error message behind its type.
async fn refusal(stream: &mut TcpStream) -> io::Result<String> {
    let length = stream.read_u16().await?;
    let mut text = vec![0; usize::from(length)];
    stream.read_exact(&mut text).await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The tasks that send full buffers: a free connection takes the next buffer.
pub(super) struct Senders {
    queue: mpsc::UnboundedSender<Buffer>,
    sent: mpsc::UnboundedReceiver<Buffer>,
    tasks: JoinSet<io::Result<TcpStream>>,
    /// Connections that carry no messages.
    silent: Vec<TcpStream>,
    tally: Arc<Tally>,
}

impl Senders {
    /// Sends over all of `streams`, or over the first one only.
    pub(super) fn new(mut streams: Vec<TcpStream>, only_the_first: bool, options: Options, tally: &Arc<Tally>) -> Self {
        let silent = if only_the_first { streams.split_off(1) } else { Vec::new() };
        let (queue, full) = mpsc::unbounded_channel();
        let (back, sent) = mpsc::unbounded_channel();
        let full = Arc::new(Mutex::new(full));
        let mut tasks = JoinSet::new();
        for stream in streams {
            tasks.spawn(send(stream, Arc::clone(&full), back.clone(), options, Arc::clone(tally)));
        }
        Senders { queue, sent, tasks, silent, tally: Arc::clone(tally) }
    }

    /// Queues a buffer. The memory of the agent bounds their number.
    pub(super) fn queue(&self, buffer: Buffer) {
        self.tally.queue();
        // Fails when all connections are broken, which is reported at the end.
        let _ = self.queue.send(buffer);
    }

    /// A buffer that was sent, if there is one.
    pub(super) fn try_sent(&mut self) -> Option<Buffer> {
        self.sent.try_recv().ok()
    }

    /// Waits for a buffer to be sent; `None` when all connections are broken.
    pub(super) async fn sent(&mut self) -> Option<Buffer> {
        self.sent.recv().await
    }

    /// Waits until everything has been sent. Returns the connections, which are still open.
    pub(super) async fn finish(self) -> io::Result<Vec<TcpStream>> {
        let Senders { queue, sent, mut tasks, mut silent, .. } = self;
        drop((queue, sent));
        let mut fault = None;
        while let Some(stream) = tasks.join_next().await {
            match stream.map_err(io::Error::other).flatten() {
                Ok(stream) => silent.push(stream),
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(silent), Err)
    }
}

/// Closes connections, and waits for the collector to close them too.
pub(super) async fn close(streams: Vec<TcpStream>) -> io::Result<()> {
    let mut closing: JoinSet<_> = streams.into_iter().map(tcp::close).collect();
    while let Some(closed) = closing.join_next().await {
        closed.map_err(io::Error::other)??;
    }
    Ok(())
}

async fn send(
    mut stream: TcpStream,
    full: Arc<Mutex<mpsc::UnboundedReceiver<Buffer>>>,
    back: mpsc::UnboundedSender<Buffer>,
    options: Options,
    tally: Arc<Tally>,
) -> io::Result<TcpStream> {
    loop {
        let buffer = full.lock().await.recv().await;
        let Some(buffer) = buffer else { return Ok(stream) };
        let written = timeout(options.timeout, stream.write_all(&buffer.bytes)).await;
        tally.buffer_sent();
        match written {
            Ok(Ok(())) => {}
            // No thread sends the buffers any longer, and the program waits for that at its exit.
            Ok(Err(error)) if options.error_handling_fails => {
                return Err(Harm::Hang(format!("a data connection broke before all buffers were sent: {error}")).into());
            }
            Ok(Err(error)) => {
                return Err(Harm::TraceDies(format!("a data connection broke, and buffers are lost: {error}")).into());
            }
            Err(_) => return Err(Harm::Hang(format!("no buffer was read within {:?}", options.timeout)).into()),
        }
        tally.sent(buffer.counts, buffer.bytes.len());
        // The program has ended and needs no buffer.
        let _ = back.send(buffer);
    }
}
