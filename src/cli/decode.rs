//! `tributary decode`: recorded wire bytes → the events that the daemon would write.

mod explained;
mod recorded;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::mem;
use std::mem::take;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;

use crate::capture;
use crate::codec::base64;
use crate::config::{Config, ListenerConfig, ProtocolOptions};
use crate::decode::{self, Offline};
use crate::event::{Batch, Origin, UnixNanos, write_hex};
use crate::memory::MemoryBudget;
use crate::pipeline::accounting::ListenerCounters;
use crate::protocol::bytefrog::Hq;
use crate::protocol::datadog::DatadogSession;
use crate::protocol::endless::EndlessExchange;
use crate::protocol::rbkit::{Agent, AgentOptions, Channel, Player};
use crate::protocol::zico::ZicoExchange;
use crate::protocol::zico::wire::{self, Carries, Dialect};
use crate::protocol::{self, End, Exchange, Now, Protocol, Request, Session};
use crate::sink::encode::{Encoder, Format};
use crate::transport::clock::Clock;
use crate::transport::options::ListenerOptions;
use crate::transport::quarantine::RECEIVED_HEADER;

use super::captures::{Captures, Source};
use super::{Failure, NamedProtocol, OutputFormat, counted, profile, quiet, say};

/// Files are read in pieces of this size, as a connection might be.
const PIECE_BYTES: usize = 64 * 1024;
/// So much of a capture has the first bytes that were received in it.
const START_BYTES: usize = 2 << 20;

/// Decode recorded wire bytes into the events that the daemon would write
///
/// Each file is what one connection received, from its first byte to its end: its bytes as such, or a capture as
/// listeners record it, whose times are then those of the events. Bytes that are no events become loss events, here as
/// there; they are no failure.
///
/// Of bytefrog, all files are the connections of one run: control first, then data. Of endless, a file holds HTTP
/// requests, or one bundle without any. Of rbkit, all files are one conversation in its order: each the body of one message
/// or reply, or all that one connection received.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary decode datadog wire.bin
  tributary decode datadog captures/spans/*.capture
  nc -l 8136 | tributary decode datadog --format text
  tributary decode datadog --option list_layout=padded32 wire.bin
  tributary decode bytefrog --option calls=spans control.bin data-0.bin data-1.bin
  tributary decode bytefrog --bytefrog-version 1 data-0.bin
  tributary decode endless quarantine/desktops/*.http
  tributary decode endless --endless-version 2 bundle.bin
  tributary decode rbkit 001-rep.msgpack 002-pub.msgpack
  tributary decode datadog --explain wire.bin | less
  tributary decode bytefrog --explain control.bin data-0.bin
  tributary decode rbkit --as flamegraph events.ndjson > cpu.svg
  tributary decode rbkit --compare 1 2 events.ndjson")]
pub(super) struct Arguments {
    /// What the bytes speak
    protocol: NamedProtocol,
    /// Files of wire bytes; `-` is stdin [default: stdin]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// An option of the listener, as in the configuration; may be repeated
    #[arg(long = "option", short = 'o', value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// The version of bytefrog data files without a control file, 1 to 4
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=4))]
    bytefrog_version: Option<u8>,
    /// The version of an endless bundle without an HTTP request around it, 0 to 3
    #[arg(long, value_name = "NUMBER", default_value = "3", value_parser = clap::value_parser!(u8).range(0..=3))]
    endless_version: u8,
    /// Which socket rbkit messages came from, where their form does not tell
    #[arg(long, value_name = "CHANNEL")]
    channel: Option<ChannelName>,
    /// How events are written
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
    /// Show the bytes and what they mean instead of events: offset, bytes, field, value, and what is wrong with them
    #[arg(long, conflicts_with_all = ["format", "form", "compare", "sample", "dump"])]
    explain: bool,
    #[command(flatten)]
    profile: profile::Arguments,
}

/// A file to be decoded.
pub(super) struct Input {
    pub(super) path: PathBuf,
    /// When somebody has looked at its beginning already.
    pub(super) opened: Option<Box<dyn Read>>,
}

impl Input {
    pub(super) fn new(path: &Path) -> Self {
        Input { path: path.to_owned(), opened: None }
    }

    pub(super) fn open(&mut self) -> io::Result<Box<dyn Read>> {
        match self.opened.take() {
            Some(opened) => Ok(opened),
            None if self.path == Path::new("-") => Ok(Box::new(io::stdin())),
            None => Ok(Box::new(File::open(&self.path)?)),
        }
    }
}

/// A socket of an rbkit agent.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ChannelName {
    Pub,
    Rep,
}

impl From<ChannelName> for Channel {
    fn from(name: ChannelName) -> Self {
        match name {
            ChannelName::Pub => Channel::Pub,
            ChannelName::Rep => Channel::Rep,
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.explain {
        return explained::run(arguments);
    }
    if arguments.profile.is_wanted(arguments.protocol.0)? {
        let decode = |files, take: &mut dyn FnMut(&Batch)| decode(arguments, files, Output::Taken(take));
        return arguments.profile.run(&arguments.files, &decode);
    }
    let stdin = [PathBuf::from("-")];
    let files = if arguments.files.is_empty() { &stdin[..] } else { &arguments.files };
    let files = files.iter().map(|file| Input::new(file)).collect();
    decode(arguments, files, Output::Written(Box::new(Lines::new(arguments.format.into()))))
}

fn decode(arguments: &Arguments, files: Vec<Input>, output: Output<'_>) -> Result<(), Failure> {
    let protocol = arguments.protocol.0;
    let listener = listener(protocol.as_str(), &arguments.options)?;
    let memory = MemoryBudget::new(Config::builtin().limits.memory_bytes);
    let ListenerConfig { options: ListenerOptions { max_message_bytes, emit_definitions, .. }, protocol: own, .. } =
        listener;
    let listener = "decode".into();
    let mut decoder = Decoder { protocol, listener, files, clock: Clock::start(), played: None, output };
    match own {
        ProtocolOptions::Bytefrog(own) => {
            let hq = Hq::offline(own, emit_definitions, memory, arguments.bytefrog_version);
            decoder.together(|| hq.session(None))
        }
        ProtocolOptions::Datadog(own) => {
            decoder.one_by_one(|| DatadogSession::new(own.clone(), max_message_bytes, emit_definitions, &memory))
        }
        ProtocolOptions::Rbkit(own) => {
            let (agent, own) = (Agent::new(AgentOptions::default()), Arc::new(own));
            let channel = arguments.channel.map(Into::into);
            decoder.recordings(|bytes, is_last| {
                Player::new(agent.clone(), own.clone(), max_message_bytes, bytes, channel, is_last)
            })
        }
        ProtocolOptions::Zico(own, ..) => {
            let exchange = ZicoExchange::recorded(own, emit_definitions, &memory);
            decoder.requests(&exchange, submitted)?;
            decoder.rest(&exchange)
        }
        ProtocolOptions::Endless(own, _) => {
            let version = arguments.endless_version;
            decoder.requests(&EndlessExchange::new(own, &memory), |bundle| upload(version, bundle))
        }
    }
}

/// Files being decoded.
struct Decoder<'a> {
    protocol: Protocol,
    /// The listener's name: that of captures, if there are any.
    listener: Arc<str>,
    files: Vec<Input>,
    clock: Clock,
    /// The moment that captures have come to.
    played: Option<Now>,
    output: Output<'a>,
}

/// A file that has been opened.
struct Named {
    name: Arc<str>,
    origin: Arc<Origin>,
    counters: Arc<ListenerCounters>,
}

/// A file that has been read.
struct Decoded<S> {
    name: Arc<str>,
    offline: Offline<S>,
    counters: Arc<ListenerCounters>,
}

impl<S: Session> Decoded<S> {
    fn new(Named { name, origin, counters }: Named, session: S) -> Self {
        Decoded { name, offline: Offline::new(session, origin, counters.clone()), counters }
    }
}

impl Decoder<'_> {
    /// Connections that have nothing to do with each other.
    fn one_by_one<S: Session>(&mut self, make: impl Fn() -> S) -> Result<(), Failure> {
        for (number, file) in (1..).zip(take(&mut self.files)) {
            self.whole(number, file, make())?;
            if self.output.is_closed() {
                break;
            }
        }
        Ok(())
    }

    /// Connections that live at the same time: none ends before all are read, but captures when they did.
    fn together<S: Session>(&mut self, make: impl Fn() -> S) -> Result<(), Failure> {
        let (mut read, mut playing, mut captures) = (Vec::new(), Vec::new(), Captures::default());
        for (number, file) in (1..).zip(take(&mut self.files)) {
            let (named, source) = self.open(number, file)?;
            match source {
                Source::Wire(input) => read.push(self.read(named, input, make())?),
                Source::Capture(reader) => {
                    captures.add(named.name.clone(), reader)?;
                    playing.push(Decoded::new(named, make()));
                }
            }
        }
        self.play(captures, playing)?;
        read.into_iter().try_for_each(|decoded| self.finish(decoded, End::Closed))
    }

    /// One connection, from its first byte to its end.
    fn whole<S: Session>(&mut self, number: u64, file: Input, session: S) -> Result<(), Failure> {
        let (named, source) = self.open(number, file)?;
        match source {
            Source::Wire(input) => {
                let decoded = self.read(named, input, session)?;
                self.finish(decoded, End::Closed)
            }
            Source::Capture(reader) => {
                let mut captures = Captures::default();
                captures.add(named.name.clone(), reader)?;
                self.played = None;
                self.play(captures, vec![Decoded::new(named, session)])
            }
        }
    }

    /// Requests, each file's in their order; what is none is made one by `wrap`.
    fn requests<E: Exchange>(&mut self, exchange: &E, wrap: impl Fn(Vec<u8>) -> Request) -> Result<(), Failure> {
        let (mut captures, mut playing) = (Captures::default(), Vec::new());
        for (number, file) in (1..).zip(take(&mut self.files)) {
            let (named, source) = self.open(number, file)?;
            let mut input = match source {
                Source::Wire(input) => input,
                Source::Capture(reader) => {
                    captures.add(named.name.clone(), reader)?;
                    playing.push(named);
                    continue;
                }
            };
            let Named { name, origin, counters } = named;
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
            for request in decode::requests(&bytes).unwrap_or_else(|| vec![wrap(bytes)]) {
                let mut now = self.clock.now();
                // The quarantine says when it was: some clocks are judged by that.
                let received = request.head.header(RECEIVED_HEADER).and_then(|time| time.parse::<Timestamp>().ok());
                if let Some(received) = received.and_then(|time| u64::try_from(time.as_nanosecond()).ok()) {
                    now.unix = UnixNanos(received);
                }
                self.answer(exchange, request, &name, &origin, &counters, now);
            }
            self.output.flush()?;
            if self.output.is_closed() {
                return Ok(());
            }
            sum_up(&name, &counters);
        }
        self.play_requests(exchange, captures, playing)
    }

    /// One request; says what it would be answered.
    fn answer<E: Exchange>(
        &mut self,
        exchange: &E,
        request: Request,
        name: &str,
        origin: &Arc<Origin>,
        counters: &ListenerCounters,
        now: Now,
    ) {
        let shown = format!("{} {:.24}", request.head.method, request.head.target);
        let take = &mut |batch| self.output.write(&batch);
        let (answer, aside) = decode::answer(exchange, request, origin.clone(), counters, now, take);
        let words = aside.unwrap_or_else(|| String::from_utf8_lossy(&answer.body).trim_end().to_owned());
        say(format_args!("{name}: {shown}: {}, {words}", answer.status));
    }

    /// Recordings of one conversation with a process, each taken up where the one before ended.
    fn recordings(&mut self, play: impl Fn(&[u8], bool) -> Player) -> Result<(), Failure> {
        let files = take(&mut self.files);
        let last = files.len() as u64;
        for (number, mut file) in (1..).zip(files) {
            let mut bytes = Vec::new();
            let read = file.open().and_then(|mut input| input.read_to_end(&mut bytes));
            let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", file.path.display()));
            read.map_err(failed)?;
            // Which of the sockets it was is told by what came through it.
            let start = bytes[..bytes.len().min(START_BYTES)].to_vec();
            let start = Input { path: file.path.clone(), opened: Some(Box::new(io::Cursor::new(start))) };
            let player = match Source::of(start).map_err(failed)? {
                Source::Wire(_) => play(&bytes, number == last),
                Source::Capture(mut reader) => play(&reader.start().map_err(failed)?, number == last),
            };
            file.opened = Some(Box::new(io::Cursor::new(bytes)));
            match player {
                Player::Pub(session) => self.whole(number, file, *session)?,
                Player::Rep(session) => self.whole(number, file, *session)?,
            }
            if self.output.is_closed() {
                break;
            }
        }
        Ok(())
    }

    /// What an exchange still waits with when its last request is decoded.
    fn rest<E: Exchange>(&mut self, exchange: &E) -> Result<(), Failure> {
        if self.output.is_closed() {
            return Ok(());
        }
        let counters = ListenerCounters::new(self.listener.clone(), self.protocol);
        let origin = Arc::new(Origin::new(self.protocol.as_str(), self.listener.clone(), "".into(), 0));
        let now = self.now();
        decode::finish(exchange, origin, &counters, now, &mut |batch| self.output.write(&batch));
        Ok(self.output.flush()?)
    }

    /// Opens a file, and looks what it is.
    fn open(&mut self, number: u64, file: Input) -> Result<(Named, Source), Failure> {
        let name: Arc<str> = file.path.display().to_string().into();
        let failed = |error: io::Error| Failure::Failed(format!("{name}: {error}"));
        let source = Source::of(file).map_err(failed)?;
        let origin = match &source {
            Source::Wire(_) => Origin::new(self.protocol.as_str(), "decode".into(), name.clone(), number),
            Source::Capture(reader) => {
                let capture::Head { protocol, listener, peer, connection, .. } = reader.head();
                if *protocol != self.protocol {
                    let text = format!("{name} is a capture of {protocol}: tributary decode {protocol} …");
                    return Err(Failure::Misused(text));
                }
                self.listener = listener.as_str().into();
                let connection = if self.output.counts_files() { number } else { *connection };
                Origin::new(protocol.as_str(), self.listener.clone(), peer.as_str().into(), connection)
            }
        };
        let counters = ListenerCounters::new(origin.listener.clone(), self.protocol);
        Ok((Named { name, origin: origin.into(), counters }, source))
    }

    fn now(&self) -> Now {
        self.played.unwrap_or_else(|| self.clock.now())
    }

    fn read<S: Session>(&mut self, named: Named, input: Box<dyn Read>, session: S) -> Result<Decoded<S>, Failure> {
        let mut decoded = Decoded::new(named, session);
        let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", decoded.name));
        feed(input, &mut decoded.offline, self.clock, &mut self.output).map_err(failed)?;
        Ok(decoded)
    }

    fn finish<S: Session>(&mut self, decoded: Decoded<S>, end: End) -> Result<(), Failure> {
        let Decoded { name, offline, counters } = decoded;
        if self.output.is_closed() {
            return Ok(());
        }
        let now = self.now();
        offline.finish(end, now, &mut |batch| self.output.write(&batch));
        self.output.flush()?;
        sum_up(&name, &counters);
        Ok(())
    }
}

/// The listener that the options describe, read like one of the configuration.
fn listener(protocol: &str, options: &[String]) -> Result<ListenerConfig, Failure> {
    let mut text = format!("[listeners.decode]\nprotocol = \"{protocol}\"\n");
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            return Err(Failure::Misused(format!("--option {option}: write KEY=VALUE")));
        };
        // A bare word is a text; everything else is TOML as it stands.
        let is_toml = toml::from_str::<toml::Table>(&format!("value = {value}")).is_ok();
        let value = if is_toml { value.to_owned() } else { toml::Value::from(value).to_string() };
        text.push_str(&format!("{key} = {value}\n"));
    }
    let loaded = Config::parse("--option", &text);
    let mut listeners =
        loaded.map_err(|errors| Failure::Misused(format!("an option is wrong\n{errors}")))?.config.listeners;
    if listeners.len() != 1 {
        return Err(Failure::Misused("an --option may only set keys of one listener".to_owned()));
    }
    Ok(listeners.remove(0))
}

/// What became of a file's bytes.
fn sum_up(name: &str, counters: &ListenerCounters) {
    let totals = counters.totals();
    say(format_args!(
        "{name}: {} bytes = {} decoded + {} lost; {}",
        totals.bytes_in,
        totals.bytes_decoded,
        totals.lost(),
        counted(totals.events(), "event")
    ));
}

/// A bundle that is not wrapped in a request, as if it had been uploaded.
fn upload(version: u8, bundle: Vec<u8>) -> Request {
    let hash = ring::digest::digest(&ring::digest::SHA512, &bundle);
    let mut target = format!("/{version}/");
    let _ = write_hex(&mut target, hash.as_ref());
    Request {
        head: protocol::Head { method: "PUT".to_owned(), target, headers: Vec::new() },
        body: bundle.into(),
        number: 1,
    }
}

/// A body that is not wrapped in a request, as if it had been posted: all of gen1, and all of gen2, in one session.
fn submitted(body: Vec<u8>) -> Request {
    let is_text = body.first().is_some_and(|byte| *byte < 0x80);
    if ["host=", "data=", "zdata=", "ldata="].iter().any(|field| body.starts_with(field.as_bytes())) {
        let head =
            protocol::Head { method: "POST".to_owned(), target: "/submit/agent".to_owned(), headers: Vec::new() };
        return Request { head, body: body.into(), number: 1 };
    }
    let start =
        if is_text { base64::decode(&body[..body.len().min(64) / 4 * 4]).unwrap_or_default() } else { Vec::new() };
    let shown = if is_text { &start } else { &body };
    let (carries, path) = match wire::carries(shown) {
        Carries::Definitions => (Carries::Definitions, "/agent/submit/agd"),
        Carries::Trace => (Carries::Trace, "/agent/submit/trc"),
    };
    let header = match wire::detect(shown, carries) {
        Some(Dialect::Gen2) => "x-zorka-session-id",
        _ => "x-zorka-session-uuid",
    };
    let headers = vec![(header.to_owned(), b"decode".to_vec())];
    let head = protocol::Head { method: "POST".to_owned(), target: path.to_owned(), headers };
    Request { head, body: body.into(), number: 1 }
}

fn feed<S: Session>(
    mut input: impl Read,
    offline: &mut Offline<S>,
    clock: Clock,
    output: &mut Output<'_>,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    while !output.is_closed() {
        let bytes = match input.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        offline.feed(&piece[..bytes], clock.now(), &mut |batch| output.write(&batch));
        // Where the bytes come from a live source, so do the events.
        output.flush()?;
    }
    Ok(())
}

/// Where events go.
enum Output<'a> {
    /// To stdout.
    Written(Box<Lines>),
    /// To a profile.
    Taken(&'a mut dyn FnMut(&Batch)),
    /// To an explanation: `origin.connection` is the number of the file, of captures too.
    Examined(&'a mut dyn FnMut(&Batch)),
}

impl Output<'_> {
    fn write(&mut self, batch: &Batch) {
        match self {
            Output::Written(lines) => lines.write(batch),
            Output::Taken(take) | Output::Examined(take) => take(batch),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Written(lines) => lines.flush(),
            Output::Taken(_) | Output::Examined(_) => Ok(()),
        }
    }

    fn counts_files(&self) -> bool {
        matches!(self, Output::Examined(_))
    }

    /// The reader has left.
    fn is_closed(&self) -> bool {
        matches!(self, Output::Written(lines) if lines.is_closed)
    }
}

/// Encoded events on their way to stdout.
struct Lines {
    stdout: BufWriter<io::Stdout>,
    encoder: Encoder,
    lines: Vec<u8>,
    result: io::Result<()>,
    /// The reader has left.
    is_closed: bool,
}

impl Lines {
    fn new(format: Format) -> Self {
        Lines {
            stdout: BufWriter::new(io::stdout()),
            encoder: Encoder::new(format),
            lines: Vec::new(),
            result: Ok(()),
            is_closed: false,
        }
    }

    fn write(&mut self, batch: &Batch) {
        if self.result.is_err() {
            return;
        }
        self.lines.clear();
        batch.events().for_each(|event| self.encoder.encode(event, &mut self.lines));
        self.result = self.stdout.write_all(&self.lines);
    }

    /// What has become of the writes so far.
    fn check(&mut self) -> io::Result<()> {
        let result = mem::replace(&mut self.result, Ok(()));
        self.is_closed |= result.is_err();
        quiet(result)
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.is_closed && self.result.is_ok() {
            self.result = self.stdout.flush();
        }
        self.check()
    }
}
