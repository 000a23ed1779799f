//! The control connection of an agent: hello, configuration, heartbeats, commands.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::{Counts, tcp};
use super::Options;
use super::agent::Remarks;
use super::configuration::Configuration;
use super::harm::Harm;
use super::modes::{Command, Gate, Mode, Modes};
use super::tally::Tally;
use super::wire::{self, ClassFate};

/// What the traced program has said on the control connection.
#[derive(Debug)]
pub(super) enum Said {
    /// A class was loaded.
    Class(ClassFate, &'static str),
    /// Events were left out before this number.
    Break(u32),
}

/// The control connection.
pub(super) struct Control {
    stream: TcpStream,
    options: Options,
    tally: Arc<Tally>,
    said: mpsc::UnboundedReceiver<Said>,
    gate: watch::Sender<Gate>,
    modes: Modes,
    configuration: Option<Configuration>,
    input: BytesMut,
    /// When what stands in `input`, half a message, came.
    half_since: Option<Instant>,
    /// Reads that the message at the front of `input` has taken.
    reads: u32,
    next_heartbeat: Option<Instant>,
    /// When the mode became X.
    ended: Option<Instant>,
    /// Whether a heartbeat has said so.
    end_told: bool,
    /// The collector has closed it.
    closed: bool,
    remarks: Remarks,
}

enum Happened {
    Read(io::Result<usize>),
    Heartbeat,
    Said(Said),
}

impl Control {
    /// Dials and says hello.
    pub(super) async fn dial(
        to: SocketAddr,
        options: Options,
        tally: Arc<Tally>,
        said: mpsc::UnboundedReceiver<Said>,
        gate: watch::Sender<Gate>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let mut control = Control {
            stream,
            options,
            tally,
            said,
            gate,
            modes: Modes::new(),
            configuration: None,
            input: BytesMut::new(),
            half_since: None,
            reads: 0,
            next_heartbeat: None,
            ended: None,
            end_told: false,
            closed: false,
            remarks: Remarks::default(),
        };
        let event = Counts { messages: 1, events: 1 };
        match options {
            Options { version, project: 0, .. } => control.write(&wire::hello(version), event).await?,
            Options { version, project, .. } => control.write(&wire::project_hello(version, project), event).await?,
        }
        Ok(control)
    }

    /// Waits for the configuration and for `start`.
    pub(super) async fn until_start(&mut self) -> io::Result<Configuration> {
        let deadline = Instant::now() + self.options.patience;
        loop {
            if let Some(configuration) = self.configuration.filter(|_| self.modes.is_started()) {
                return Ok(configuration);
            }
            let Ok(happened) = timeout_at(deadline, self.event()).await else {
                let missing = if self.configuration.is_none() { "configuration" } else { "start" };
                return Err(Harm::Hang(format!("no {missing} within {:?}", self.options.patience)).into());
            };
            self.handle(happened).await?;
        }
    }

    /// The program has ended.
    pub(super) fn end(&mut self) {
        self.modes.end();
        self.ended.get_or_insert_with(Instant::now);
    }

    /// Sees to the connection until `work` is done.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let happened = tokio::select! {
                done = &mut work => return Ok(done),
                happened = self.event() => happened,
            };
            self.handle(happened).await?;
        }
    }

    /// Waits until a heartbeat has told the end and a whole interval has passed since, as real agents do.
    pub(super) async fn linger(&mut self) -> io::Result<()> {
        let ended = *self.ended.get_or_insert_with(Instant::now);
        let interval = self.interval();
        self.during(sleep_until(ended + interval)).await?;
        if self.end_told { Ok(()) } else { self.heartbeat().await }
    }

    /// Says what is left and closes.
    pub(super) async fn close(mut self) -> io::Result<()> {
        while let Ok(said) = self.said.try_recv() {
            self.say(said).await?;
        }
        if self.closed { Ok(()) } else { tcp::close(self.stream).await }
    }

    /// Tells the collector about a fault of its own, as a dying trace does; whether it hears it does not matter.
    pub(super) async fn die(&mut self, text: &str) -> io::Result<()> {
        let mut message = Vec::new();
        wire::error(text, &mut message);
        self.write(&message, Counts { messages: 1, events: 1 }).await?;
        self.end();
        self.heartbeat().await
    }

    /// Counts what the collector makes of no message.
    pub(super) fn count(&self, counts: Counts) {
        self.tally.sent(counts, 0);
    }

    /// What was noticed so far.
    pub(super) fn remarks(&self) -> Remarks {
        Remarks { configuration: self.configuration, ..self.remarks }
    }

    /// What happens next; may be dropped at any time.
    async fn event(&mut self) -> Happened {
        let heartbeat = async {
            match self.next_heartbeat {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            read = self.stream.read_buf(&mut self.input), if !self.closed => Happened::Read(read),
            () = heartbeat => Happened::Heartbeat,
            Some(said) = self.said.recv() => Happened::Said(said),
        }
    }

    async fn handle(&mut self, happened: Happened) -> io::Result<()> {
        match happened {
            Happened::Read(Ok(1..)) => self.obey_all().await,
            Happened::Read(Ok(0)) => Ok(self.lose("was closed")?),
            Happened::Read(Err(error)) => Ok(self.lose(&format!("broke: {error}"))?),
            Happened::Heartbeat => {
                self.drop_half_a_message()?;
                self.heartbeat().await
            }
            Happened::Said(said) => self.say(said).await,
        }
    }

    async fn obey_all(&mut self) -> io::Result<()> {
        self.reads += 1;
        if self.tally.has_greeted() {
            self.modes.settle();
        }
        while let Some((command, length)) = Command::read(self.options.version, &self.input) {
            self.input.advance(length);
            self.modes.obey(&command)?;
            match command {
                Command::Configuration(body) => self.configure(&body).await?,
                Command::Stop => {
                    self.remarks.stopped = true;
                    self.ended.get_or_insert_with(Instant::now);
                }
                _ => {}
            }
            let gate = self.modes.gate;
            self.gate.send_if_modified(|now| std::mem::replace(now, gate) != gate);
            self.reads = u32::from(!self.input.is_empty());
        }
        self.half_since = if self.input.is_empty() { None } else { self.half_since.or_else(|| Some(Instant::now())) };
        Ok(())
    }

    /// Takes a configuration, which replaces an earlier one as a whole.
    async fn configure(&mut self, body: &[u8]) -> io::Result<()> {
        let configuration = Configuration::read(self.options.version, body)?;
        configuration.check(self.options.version, self.options.threads)?;
        self.configuration = Some(configuration);
        self.remarks.configuration_reads = self.reads;
        if self.next_heartbeat.is_none() { self.heartbeat().await } else { Ok(()) }
    }

    /// Section 1.4: agents forget what they have of a message when the time for a heartbeat comes.
    fn drop_half_a_message(&self) -> Result<(), Harm> {
        match self.half_since {
            Some(since) if since.elapsed() > self.interval() => {
                Err(Harm::TraceDies("a message that came in parts was dropped".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The collector has ended the connection.
    fn lose(&mut self, how: &str) -> Result<(), Harm> {
        self.closed = true;
        if self.configuration.is_none() {
            return Err(Harm::Abort(format!("the connection {how} after the hello")));
        }
        if !self.modes.is_started() {
            return Err(Harm::NeverRun(format!("the control connection {how} before start")));
        }
        self.remarks.control_lost |= self.modes.mode != Mode::ShuttingDown;
        Ok(())
    }

    async fn heartbeat(&mut self) -> io::Result<()> {
        let message = wire::heartbeat(self.modes.mode as u8, self.tally.readable_buffers());
        self.end_told |= self.modes.mode == Mode::ShuttingDown;
        self.next_heartbeat = Some(Instant::now() + self.interval());
        self.write(&message, Counts { messages: 1, events: 1 }).await
    }

    async fn say(&mut self, said: Said) -> io::Result<()> {
        match said {
            // A loss at the collector's, and no event.
            Said::Break(sequence) => self.write(&wire::data_break(sequence), Counts { messages: 1, events: 0 }).await,
            Said::Class(fate, name) => {
                let mut message = Vec::new();
                wire::class(fate, name, &mut message);
                self.write(&message, Counts { messages: 1, events: 1 }).await
            }
        }
    }

    async fn write(&mut self, message: &[u8], counts: Counts) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        match self.stream.write_all(message).await {
            Ok(()) => self.tally.sent(counts, message.len()),
            Err(error) => self.lose(&format!("broke: {error}"))?,
        }
        Ok(())
    }

    /// The time between heartbeats; zero before a configuration has told it.
    pub(super) fn interval(&self) -> Duration {
        let millis = self.configuration.map_or(0, |configuration| configuration.heartbeat_interval);
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }
}
