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
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::super::{Counts, tcp};
use super::Options;
use super::configuration::Configuration;
use super::harm::Harm;
use super::modes::{CollectorMessage, Mode, Modes, RunMode};
use super::observations::Observations;
use super::tally::Tally;
use super::wire::{self, ClassOutcome};

/// News of the traced program for the control connection.
#[derive(Debug)]
pub(super) enum ControlEvent {
    /// A class was loaded.
    Class(ClassOutcome, &'static str),
    /// Events before this number were dropped.
    Break(u32),
}

/// The control connection.
pub(super) struct Control {
    stream: TcpStream,
    options: Options,
    tally: Arc<Tally>,
    control_events: mpsc::UnboundedReceiver<ControlEvent>,
    run_mode: watch::Sender<RunMode>,
    modes: Modes,
    configuration: Option<Configuration>,
    input: BytesMut,
    /// When the incomplete message in `input` arrived.
    half_since: Option<Instant>,
    /// The number of reads of the message at the front of `input`.
    reads: u32,
    next_heartbeat: Option<Instant>,
    /// When the mode became X.
    ended: Option<Instant>,
    /// Whether a heartbeat has reported it.
    end_reported: bool,
    /// The collector has closed the connection.
    closed: bool,
    /// The agent has reported an error that the collector has caused: it waits for no buffer any longer.
    is_killed: bool,
    observations: Observations,
}

enum ControlStep {
    Read(io::Result<usize>),
    Heartbeat,
    Send(ControlEvent),
}

impl Control {
    /// Connects and sends the hello.
    pub(super) async fn dial(
        to: SocketAddr,
        options: Options,
        tally: Arc<Tally>,
        control_events: mpsc::UnboundedReceiver<ControlEvent>,
        run_mode: watch::Sender<RunMode>,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        sleep(options.pause).await;
        let mut control = Control {
            stream,
            options,
            tally,
            control_events,
            run_mode,
            modes: Modes::new(),
            configuration: None,
            input: BytesMut::new(),
            half_since: None,
            reads: 0,
            next_heartbeat: None,
            ended: None,
            end_reported: false,
            closed: false,
            is_killed: false,
            observations: Observations::default(),
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
        let deadline = Instant::now() + self.options.timeout;
        loop {
            if let Some(configuration) = self.configuration.filter(|_| self.modes.is_started()) {
                return Ok(configuration);
            }
            let Ok(step) = timeout_at(deadline, self.event()).await else {
                let missing = if self.configuration.is_none() { "configuration" } else { "start" };
                return Err(Harm::Hang(format!("no {missing} within {:?}", self.options.timeout)).into());
            };
            self.handle(step).await?;
        }
    }

    /// The program has ended.
    pub(super) fn end(&mut self) {
        self.modes.end();
        self.ended.get_or_insert_with(Instant::now);
    }

    /// All data connections are open, and commands have their effect.
    pub(super) fn settle(&mut self) {
        self.modes.settle();
    }

    /// What becomes of the program when the data connections cannot be opened because of `error`. An agent that has lost
    /// its control connection before counts as ended already: it ignores the error, and its threads fill the buffers,
    /// which no thread sends.
    pub(super) fn without_senders(&self, error: io::Error) -> io::Error {
        match self.closed {
            true => Harm::Hang(format!("control was lost before the buffers existed, and then: {error}")).into(),
            false => error,
        }
    }

    /// Serves the connection until `work` is done.
    pub(super) async fn serve_during<T>(&mut self, work: impl Future<Output = T>) -> io::Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let step = tokio::select! {
                done = &mut work => return Ok(done),
                step = self.event() => step,
            };
            self.handle(step).await?;
        }
    }

    /// Waits until a heartbeat has reported the end and a whole interval has passed since, as real agents do.
    pub(super) async fn wait_for_end(&mut self) -> io::Result<()> {
        let ended = *self.ended.get_or_insert_with(Instant::now);
        let interval = self.interval();
        self.serve_during(sleep_until(ended + interval)).await?;
        if self.end_reported { Ok(()) } else { self.heartbeat().await }
    }

    /// Sends what is left and closes.
    pub(super) async fn close(mut self) -> io::Result<()> {
        while let Ok(control_events) = self.control_events.try_recv() {
            self.report(control_events).await?;
        }
        if self.closed { Ok(()) } else { tcp::close(self.stream).await }
    }

    /// Reports an error of the agent, as a trace that ends does. It does not matter whether the collector receives it.
    pub(super) async fn report_failure(&mut self, text: &str) -> io::Result<()> {
        let mut message = Vec::new();
        wire::error(text, &mut message);
        self.write(&message, Counts { messages: 1, events: 1 }).await?;
        self.end();
        self.heartbeat().await
    }

    /// Whether the agent waits for no buffer at the exit of its program.
    pub(super) fn is_killed(&self) -> bool {
        self.is_killed
    }

    /// Counts an event that the collector writes without a message.
    pub(super) fn count(&self, counts: Counts) {
        self.tally.sent(counts, 0);
    }

    /// The observations so far.
    pub(super) fn observations(&self) -> Observations {
        Observations { configuration: self.configuration, ..self.observations }
    }

    /// The next thing that happens. It may be dropped at any time.
    async fn event(&mut self) -> ControlStep {
        let heartbeat = async {
            match self.next_heartbeat {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        tokio::select! {
            read = self.stream.read_buf(&mut self.input), if !self.closed => ControlStep::Read(read),
            () = heartbeat => ControlStep::Heartbeat,
            Some(control_events) = self.control_events.recv() => ControlStep::Send(control_events),
        }
    }

    async fn handle(&mut self, step: ControlStep) -> io::Result<()> {
        match step {
            ControlStep::Read(Ok(1..)) => self.handle_commands().await,
            ControlStep::Read(Ok(0)) => Ok(self.connection_lost("was closed")?),
            ControlStep::Read(Err(error)) => Ok(self.connection_lost(&format!("broke: {error}"))?),
            ControlStep::Heartbeat => {
                self.drop_half_a_message()?;
                self.heartbeat().await
            }
            ControlStep::Send(control_events) => self.report(control_events).await,
        }
    }

    async fn handle_commands(&mut self) -> io::Result<()> {
        // Heartbeats and commands share a thread.
        sleep(self.options.pause).await;
        self.reads += 1;
        while let Some((command, length)) = CollectorMessage::read(self.options.version, &self.input) {
            self.input.advance(length);
            self.modes.handle_command(&command)?;
            match command {
                CollectorMessage::Configuration(body) => self.configure(&body).await?,
                CollectorMessage::Stop => {
                    self.observations.stopped = true;
                    self.ended.get_or_insert_with(Instant::now);
                }
                CollectorMessage::Pause if self.modes.mode == Mode::ShuttingDown => {
                    self.kill("pause control message is only valid when tracing").await?;
                }
                _ => {}
            }
            let run_mode = self.modes.run_mode;
            self.run_mode.send_if_modified(|now| std::mem::replace(now, run_mode) != run_mode);
            self.reads = u32::from(!self.input.is_empty());
        }
        self.half_since = if self.input.is_empty() { None } else { self.half_since.or_else(|| Some(Instant::now())) };
        Ok(())
    }

    /// The agent reports an error, and waits for no buffer from now on.
    async fn kill(&mut self, error: &str) -> io::Result<()> {
        self.is_killed = true;
        let mut message = Vec::new();
        wire::error(error, &mut message);
        self.write(&message, Counts { messages: 1, events: 1 }).await
    }

    /// Takes a configuration, which replaces an earlier one completely.
    async fn configure(&mut self, body: &[u8]) -> io::Result<()> {
        let configuration = Configuration::read(self.options.version, body)?;
        configuration.check(self.options.version, self.options.threads)?;
        self.configuration = Some(configuration);
        self.observations.configuration_reads = self.reads;
        if self.next_heartbeat.is_none() { self.heartbeat().await } else { Ok(()) }
    }

    /// Section 1.4: agents drop an incomplete message when a heartbeat is due.
    fn drop_half_a_message(&self) -> Result<(), Harm> {
        match self.half_since {
            Some(since) if since.elapsed() > self.interval() => {
                Err(Harm::TraceDies("a message that came in parts was dropped".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The collector has closed the connection.
    fn connection_lost(&mut self, how: &str) -> Result<(), Harm> {
        self.closed = true;
        if self.configuration.is_none() {
            return Err(Harm::Abort(format!("the connection {how} after the hello")));
        }
        if !self.modes.is_started() {
            return Err(Harm::NeverRun(format!("the control connection {how} before start")));
        }
        self.observations.control_lost |= self.modes.mode != Mode::ShuttingDown;
        if self.modes.is_settled() && !self.options.error_handling_fails {
            return Err(Harm::TraceDies(format!("the control connection {how}, and the buffers are lost")));
        }
        Ok(())
    }

    async fn heartbeat(&mut self) -> io::Result<()> {
        let message = wire::heartbeat(self.modes.mode as u8, self.tally.readable_buffers());
        self.end_reported |= self.modes.mode == Mode::ShuttingDown;
        self.next_heartbeat = Some(Instant::now() + self.interval());
        self.write(&message, Counts { messages: 1, events: 1 }).await
    }

    async fn report(&mut self, control_events: ControlEvent) -> io::Result<()> {
        match control_events {
            // The collector writes a loss, which is not counted as an event.
            ControlEvent::Break(sequence) => {
                self.write(&wire::data_break(sequence), Counts { messages: 1, events: 0 }).await
            }
            ControlEvent::Class(outcome, name) => {
                let mut message = Vec::new();
                wire::class(outcome, name, &mut message);
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
            Err(error) => self.connection_lost(&format!("broke: {error}"))?,
        }
        Ok(())
    }

    /// The interval of heartbeats; zero before the configuration has arrived.
    pub(super) fn interval(&self) -> Duration {
        let millis = self.configuration.map_or(0, |configuration| configuration.heartbeat_interval);
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }
}
