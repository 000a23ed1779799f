//! The sink that sends events over a TCP connection, as JSON lines or with length prefixes.
//!
//! "Written" means that the kernel of this machine has taken the bytes. What the kernel still has when a connection
//! breaks is lost, and TCP does not report how much that is. A reader that wants nothing lost when it restarts shuts
//! down its sending side first and reads to the end: the sink then ends the connection after a whole record and
//! continues on the next one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use tributary_event::{EventView, MOST_BATCH_BYTES};
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_system::blocking;

use super::encode::json::JsonEncoder;
use super::records::Records;
use super::{ActionError, DestinationState, RemoteStatus, Selection, Sink, SinkError};

/// When more than this many encoded bytes wait, they are written without waiting for the worker's flush.
const FLUSH_BYTES: usize = 256 * 1024;
/// A peer that takes no byte for this long is reported as a sink that cannot write now.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// How long an orderly end of a connection may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

options! {
    /// The options of a [`Tcp`].
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct Options checked by check {
        /// Where to connect: a host's name or address, and a port. A name is resolved again for each connection.
        pub address: String = required_host().unwrap_or_default(),
        /// How records are separated: "ndjson", JSON lines, or "length_prefixed": before each record its length in bytes, 4 bytes
        /// big-endian; no line feed.
        pub framing: Framing =
            choice(Framing::default(), &Framing::ALL.map(|framing| (framing.as_str(), framing))),
        /// How long connecting may take.
        pub connect_timeout: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
        /// A connection on which the peer takes no byte for this long is given up, and a new one opened.
        pub write_timeout: Duration = duration(Duration::from_secs(30), Duration::from_millis(1)..=LONGEST),
        /// The least pause between two connection attempts. It doubles with each failure.
        pub reconnect_min: Duration = duration(Duration::from_millis(100), Duration::from_millis(1)..=LONGEST),
        /// The longest such pause.
        pub reconnect_max: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
    }
}

/// How records are separated in the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Framing {
    /// JSON lines: each record ends in a line feed.
    #[default]
    Ndjson,
    /// Before each record its length in bytes: 4 bytes, big-endian. The record is JSON without a line feed.
    LengthPrefixed,
}

impl Framing {
    /// Every framing.
    pub const ALL: [Framing; 2] = [Framing::Ndjson, Framing::LengthPrefixed];

    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Framing::Ndjson => "ndjson",
            Framing::LengthPrefixed => "length_prefixed",
        }
    }
}

impl Options {
    /// The default options of a sink that sends to `address`.
    pub fn to(address: impl Into<String>) -> Options {
        Options { address: address.into(), ..Options::default() }
    }

    fn check(&self, section: &mut Section<'_>) {
        if self.reconnect_min > self.reconnect_max {
            section.error("reconnect_min", "is more than reconnect_max", None);
        }
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        bounds.add(of, "records on their way to the connection", FLUSH_BYTES as u64 + MOST_BATCH_BYTES);
    }
}

/// Sends events over TCP. Connects with the first event, and again whenever a connection ends. A record that was sent in
/// part is sent again, whole, on the next connection.
#[derive(Debug)]
pub struct Tcp {
    options: Options,
    encoder: JsonEncoder,
    records: Records,
    connection: Option<SinkConnection>,
    /// The pause before the next attempt, and when that may begin.
    pause: Duration,
    next_attempt: Instant,
    status: Arc<RemoteStatus>,
}

#[derive(Debug)]
struct SinkConnection {
    stream: TcpStream,
    /// Since when the peer has taken no byte.
    stalled_since: Instant,
    /// The peer has taken at least one byte.
    has_progress: bool,
    /// The peer has shut down its sending side: it wants no further record.
    is_closing: bool,
}

/// Why writing to a connection stopped.
enum Stop {
    /// The peer takes nothing now. The connection stays.
    Stalled,
    /// The peer has closed its side, and no record is written in part.
    Closed,
    Failed(io::Error),
}

impl Tcp {
    /// A sink with these options. Connects with the first event.
    pub fn new(name: &str, options: Options) -> Tcp {
        Tcp {
            status: Arc::new(RemoteStatus::new(name, &options.address)),
            encoder: JsonEncoder::default(),
            records: Records::default(),
            connection: None,
            pause: options.reconnect_min,
            next_attempt: Instant::now(),
            options,
        }
    }

    fn push(&mut self, event: EventView<'_>) {
        let Tcp { options, encoder, records, .. } = self;
        records.push_with(|out| match options.framing {
            Framing::Ndjson => encoder.encode(event, out),
            Framing::LengthPrefixed => {
                let start = out.len();
                out.extend_from_slice(&[0; 4]);
                encoder.encode(event, out);
                // The line feed.
                out.pop();
                let len = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
                out[start..start + 4].copy_from_slice(&len.to_be_bytes());
            }
        });
    }

    /// Opens a connection, after the pause that the last failure asks for.
    async fn connect(&mut self) -> Result<SinkConnection, ActionError> {
        tokio::select! {
            () = sleep_until(self.next_attempt) => {}
            () = self.status.asked_again() => {}
        }
        let connecting = async { TcpStream::connect(&blocking::resolve(&self.options.address).await?[..]).await };
        let connecting = timeout(self.options.connect_timeout, connecting).await;
        let stream = connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.and_then(|stream| {
            stream.set_nodelay(true)?;
            // A port of this machine's own range can be given to both ends of one connection.
            let is_itself = stream.local_addr()? == stream.peer_addr()?;
            if is_itself { Err(io::ErrorKind::ConnectionRefused.into()) } else { Ok(stream) }
        });
        match stream {
            Ok(stream) => {
                // The last connection had this record only in part.
                self.records.restart_record();
                Ok(SinkConnection { stream, stalled_since: Instant::now(), has_progress: false, is_closing: false })
            }
            Err(source) => {
                self.postpone_attempt();
                Err(self.fault("connect to", source))
            }
        }
    }

    /// Ends the connection. One that took nothing counts as a failed attempt.
    fn disconnect(&mut self) {
        if let Some(connection) = self.connection.take() {
            if connection.has_progress {
                self.pause = self.options.reconnect_min;
                self.next_attempt = Instant::now();
            } else {
                self.postpone_attempt();
            }
        }
    }

    fn postpone_attempt(&mut self) {
        self.next_attempt = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(self.options.reconnect_max);
    }

    /// The peer takes nothing now.
    fn fault(&self, action: &str, source: io::Error) -> ActionError {
        let fault = ActionError { action: format!("{action} {}", self.options.address), source };
        self.status.update(|state| {
            state.events = self.records.waiting();
            state.retries += 1;
        });
        let pause = self.next_attempt.saturating_duration_since(Instant::now());
        self.status.note_outage(DestinationState::Away, fault.to_string(), pause);
        fault
    }
}

impl Sink for Tcp {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        events.events().for_each(|event| self.push(event));
        if self.records.bytes().len() > FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        while !self.records.is_empty() {
            let connection = match &mut self.connection {
                Some(connection) => connection,
                None => {
                    let connection = self.connect().await.map_err(SinkError::Retry)?;
                    self.connection.insert(connection)
                }
            };
            match connection.write(&mut self.records).await {
                Ok(()) => {
                    self.status.update(|state| state.events = 0);
                    self.status.note_ready();
                }
                Err(Stop::Closed) => {
                    connection.finish().await;
                    self.disconnect();
                }
                Err(Stop::Stalled) if connection.stalled_since.elapsed() < self.options.write_timeout => {
                    let why = io::Error::new(io::ErrorKind::TimedOut, "the peer takes no data");
                    return Err(SinkError::Retry(self.fault("write to", why)));
                }
                Err(Stop::Stalled) => {
                    self.disconnect();
                    let why = io::Error::new(io::ErrorKind::TimedOut, "the peer took no data within write_timeout");
                    return Err(SinkError::Retry(self.fault("write to", why)));
                }
                Err(Stop::Failed(error)) => {
                    self.disconnect();
                    return Err(SinkError::Retry(self.fault("write to", error)));
                }
            }
        }
        Ok(())
    }

    /// Notices that the peer has closed an idle connection, so that the next record goes to a new one.
    async fn tick(&mut self) -> Result<(), SinkError> {
        if let Some(connection) = &mut self.connection {
            connection.read();
            if connection.is_closing {
                connection.finish().await;
                self.disconnect();
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        if let Some(mut connection) = self.connection.take() {
            connection.finish().await;
        }
        Ok(())
    }

    fn written(&self) -> u64 {
        self.records.written()
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        Some(self.status.clone())
    }

    async fn give_up(&mut self) {
        if let Some(mut connection) = self.connection.take() {
            // The current record is completed, and no further one is started.
            connection.is_closing = true;
            let _ = connection.write(&mut self.records).await;
        }
    }
}

impl SinkConnection {
    /// Writes everything; when the peer has closed its side, only to the end of a record.
    async fn write(&mut self, records: &mut Records) -> Result<(), Stop> {
        while !records.is_empty() {
            self.read();
            let bytes = if self.is_closing { records.rest_of_record() } else { records.unwritten() };
            if bytes.is_empty() {
                return Err(Stop::Closed);
            }
            match self.stream.try_write(bytes) {
                Ok(0) => return Err(Stop::Failed(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    records.note_written(count);
                    self.has_progress = true;
                    self.stalled_since = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let interest = match self.is_closing {
                        true => Interest::WRITABLE,
                        false => Interest::WRITABLE | Interest::READABLE,
                    };
                    match timeout(REPORT_AFTER, self.stream.ready(interest)).await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => return Err(Stop::Failed(error)),
                        Err(_) => return Err(Stop::Stalled),
                    }
                }
                Err(error) => return Err(Stop::Failed(error)),
            }
            tokio::task::coop::consume_budget().await;
        }
        Ok(())
    }

    /// Reads what the peer has sent and drops it. The end of its stream means that it wants no further record. An error
    /// is found again by the next write.
    fn read(&mut self) {
        let mut buffer = [0; 1024];
        while !self.is_closing {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => self.is_closing = true,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Ends the connection in order: the peer reads everything up to the end of the stream, then closes its own side.
    async fn finish(&mut self) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let _ = timeout(CLOSE_TIMEOUT, async {
            self.stream.shutdown().await?;
            let mut buffer = [0; 1024];
            while self.stream.read(&mut buffer).await? > 0 {}
            io::Result::Ok(())
        })
        .await;
    }
}
