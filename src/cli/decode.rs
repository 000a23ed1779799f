//! `tributary decode`: recorded bytes to the events that the daemon would write, and stored events again.

mod explained;
mod filter;
mod output;
mod recorded;
mod requests;
mod stored;

use std::io::{self, Read};
use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use crate::config::{Config, ListenerConfig, ProtocolOptions};
use tributary_bytefrog::Hq;
use tributary_codec::terminal;
use tributary_datadog::DatadogSession;
use tributary_datadog_agent::DatadogAgentExchange;
use tributary_driver::capture;
use tributary_driver::decode::{self, Offline, OfflinePackets, PacketAnswer};
use tributary_endless::EndlessExchange;
use tributary_event::{Batch, Identity, Origin, UnixNanos};
use tributary_explain::http;
use tributary_memory::MemoryBudget;
use tributary_otlp::OtlpExchange;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::{End, Exchange, Now, Protocol, Request, Session};
use tributary_rbkit::{AgentOptions, Channel, Player, RbkitAgent};
use tributary_transport::clock::Clock;
use tributary_transport::options::ListenerOptions;
use tributary_transport::quarantine::RECEIVED_HEADER;
use tributary_zico::ZicoExchange;

use super::captures::{Captures, FileContent};
use super::input::Input;
use super::{CommandLineError, NamedProtocol, OutputFormat, counted, profile, say};
use output::{DecodeOutput, StdoutEncoder};
use requests::{export, submitted, traces, upload};

/// The size of reads.
const PIECE_BYTES: usize = 64 * 1024;
/// The start of a capture that has the first received bytes.
const START_BYTES: usize = 2 << 20;
/// The version of endless bundles without `--protocol-version`.
const ENDLESS_VERSION: u8 = 3;

/// Decode recorded bytes to the events that the daemon would write, or read stored events again
///
/// A file has the received bytes of one connection, or is a capture of a listener, whose times the events then have. Bytes
/// that cannot be decoded become loss events; that is not a failure.
///
/// bytefrog: the files are the connections of one run, the control connection first. endless: a file has HTTP requests, or
/// one bundle. rbkit: the files are one conversation in order, each with one message or reply, or all bytes of a connection.
///
/// events: files of JSON lines that a file sink has written, also compressed. parquet: files of a sink of type parquet.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary decode datadog wire.bin
  tributary decode datadog captures/spans/*.capture
  nc -l 8136 | tributary decode datadog --format text
  tributary decode datadog --option list_layout=padded32 wire.bin
  tributary decode bytefrog --option calls=spans control.bin data-0.bin data-1.bin
  tributary decode bytefrog --protocol-version 1 data-0.bin
  tributary decode endless quarantine/desktops/*.http
  tributary decode endless --protocol-version 2 bundle.bin
  tributary decode rbkit 001-rep.msgpack 002-pub.msgpack
  tributary decode datadog --explain wire.bin | less
  tributary decode bytefrog --explain control.bin data-0.bin
  tributary decode rbkit --as flamegraph events.ndjson > cpu.svg
  tributary decode bytefrog --as top control.bin data-0.bin
  tributary decode zico --as pprof --agent shop events.ndjson > shop.pb.gz
  tributary decode rbkit --compare 1 2 events.ndjson
  tributary decode events --since 2026-11-20T14:00:00Z --until 2026-11-20T14:05:00Z events/*/*.ndjson
  tributary decode events --since -15m --where severity=error --format text events/*/*.ndjson
  tributary decode parquet --where kind=span --where min_duration=100ms archive/span/*/*/*.parquet
  tributary decode parquet --as flamegraph archive/span/*/datadog/*.parquet > spans.svg")]
pub(super) struct Arguments {
    /// The protocol of received bytes; or `events`, `parquet` for stored events
    #[arg(value_name = "CONTENT")]
    content: Content,
    /// The files; `-` is stdin [default: stdin]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A listener option as in the configuration; can be repeated
    #[arg(long = "option", short = 'o', value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// The protocol version, where the bytes do not say it: bytefrog data files without a control file, 1 to 4; an endless
    /// bundle without an HTTP request, 0 to 3 [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=4))]
    protocol_version: Option<u8>,
    #[arg(long, hide = true, value_name = "N", value_parser = renamed)]
    bytefrog_version: Option<u8>,
    #[arg(long, hide = true, value_name = "N", value_parser = renamed)]
    endless_version: Option<u8>,
    /// The socket of rbkit messages, where the bytes do not say it
    #[arg(long, value_name = "CHANNEL")]
    channel: Option<ChannelName>,
    /// The format of events
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
    /// Print annotated bytes instead of events: offset, bytes, field, value, and the losses
    #[arg(long, conflicts_with_all = ["format", "form", "compare", "sample", "dump", "agent"])]
    explain: bool,
    /// The path of the request of a datadog_agent body [default: /v0.4/traces]
    #[arg(long, value_name = "PATH")]
    path: Option<String>,
    #[command(flatten)]
    filter: filter::Arguments,
    #[command(flatten)]
    profile: profile::Arguments,
}

/// What the files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Received bytes.
    Received(NamedProtocol),
    /// Events as JSON lines.
    Events,
    /// Events as Parquet.
    Parquet,
}

impl clap::ValueEnum for Content {
    fn value_variants<'a>() -> &'a [Self] {
        const fn received(number: usize) -> Content {
            Content::Received(NamedProtocol(Protocol::OF_AGENTS[number]))
        }
        const ALL: [Content; 9] = [
            received(0),
            received(1),
            received(2),
            received(3),
            received(4),
            received(5),
            received(6),
            Content::Events,
            Content::Parquet,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            Content::Received(protocol) => return protocol.to_possible_value(),
            Content::Events => clap::builder::PossibleValue::new("events"),
            Content::Parquet => clap::builder::PossibleValue::new("parquet"),
        })
    }
}

/// A socket of an rbkit agent.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum ChannelName {
    Pub,
    Rep,
}

/// The error of an option that has another name now.
fn renamed(_: &str) -> Result<u8, String> {
    Err("this option was renamed to --protocol-version".to_owned())
}

impl Arguments {
    /// The options of the listener. A profile of Bytefrog needs its calls as spans, a timeline their entries and exits, and
    /// coverage the names of methods.
    fn listener_options(&self, protocol: Protocol) -> Vec<String> {
        let mut options = self.options.clone();
        let is_profile = matches!(self.profile.is_wanted(Some(protocol)), Ok(true));
        if protocol == Protocol::Bytefrog && is_profile {
            let wanted: &[_] = match self.profile.is_coverage() {
                true => &["calls=events", "emit_definitions=true"],
                false if self.profile.has_times() => &["calls=events"],
                false => &["calls=spans"],
            };
            for option in wanted {
                // A key cannot be repeated.
                let key = &option[..=option.find('=').unwrap_or(0)];
                if !options.iter().any(|set| set.starts_with(key)) {
                    options.push((*option).to_owned());
                }
            }
        }
        options
    }

    /// The version of `--protocol-version`.
    ///
    /// # Errors
    /// The protocol does not have this version, or its bytes say their version themselves.
    fn version(&self, protocol: Protocol) -> Result<Option<u8>, CommandLineError> {
        let Some(version) = self.protocol_version else { return Ok(None) };
        let versions = match protocol {
            Protocol::Bytefrog => 1..=4,
            Protocol::Endless => 0..=3,
            Protocol::Datadog
            | Protocol::DatadogAgent
            | Protocol::Rbkit
            | Protocol::Zico
            | Protocol::Otlp
            | Protocol::Nats => {
                let why =
                    format!("--protocol-version {version}: bytes of {protocol} say their version; omit the option");
                return Err(CommandLineError::Misused(why));
            }
        };
        if versions.contains(&version) {
            return Ok(Some(version));
        }
        let (first, last) = versions.into_inner();
        Err(CommandLineError::Misused(format!(
            "--protocol-version {version}: {protocol} has the versions {first} to {last}"
        )))
    }
}

impl From<ChannelName> for Channel {
    fn from(name: ChannelName) -> Self {
        match name {
            ChannelName::Pub => Channel::Pub,
            ChannelName::Rep => Channel::Rep,
        }
    }
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let Content::Received(NamedProtocol(protocol)) = arguments.content else { return stored::run(arguments) };
    if arguments.filter.is_any() {
        return Err(CommandLineError::Misused(
            "--since, --until and --where are for `decode events` and `decode parquet`".into(),
        ));
    }
    if arguments.explain {
        return explained::run(arguments, protocol);
    }
    if arguments.profile.is_wanted(Some(protocol))? {
        let decode =
            |files, take: &mut dyn FnMut(&Batch)| decode(arguments, protocol, files, DecodeOutput::Taken(take));
        return arguments.profile.run(&arguments.files, &profile::Decode { decode: &decode, takes_event_files: true });
    }
    let stdin = [PathBuf::from("-")];
    let files = if arguments.files.is_empty() { &stdin[..] } else { &arguments.files };
    let files = files.iter().map(|file| Input::new(file)).collect();
    decode(arguments, protocol, files, DecodeOutput::Written(Box::new(StdoutEncoder::new(arguments.format.into()))))
}

fn decode(
    arguments: &Arguments,
    protocol: Protocol,
    files: Vec<Input>,
    output: DecodeOutput<'_>,
) -> Result<(), CommandLineError> {
    let version = arguments.version(protocol)?;
    let listener = listener(protocol.as_str(), &arguments.listener_options(protocol))?;
    let memory = MemoryBudget::new(Config::builtin().memory_limit());
    let ListenerConfig { options, protocol: own, .. } = listener;
    let ListenerOptions { max_message_bytes, emit_definitions, identity, .. } = options;
    let listener = "decode".into();
    let mut decoder = Decoder { protocol, listener, identity, files, clock: Clock::start(), played: None, output };
    match own {
        ProtocolOptions::Bytefrog(own) => {
            let hq = Hq::offline(own, emit_definitions, memory, version);
            decoder.together(|| hq.session(None))
        }
        ProtocolOptions::Datadog(own) => {
            decoder.one_by_one(|| DatadogSession::new(own.clone(), max_message_bytes, emit_definitions, &memory))
        }
        ProtocolOptions::Rbkit(own) => {
            let (agent, own) = (RbkitAgent::new(AgentOptions::default()), Arc::new(own));
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
        ProtocolOptions::DatadogAgent(own, _) => {
            let exchange = DatadogAgentExchange::new(own, &memory);
            decoder.requests(&exchange, traces(arguments.path.clone()))?;
            decoder.rest(&exchange)
        }
        ProtocolOptions::Otlp(own, _) => {
            let exchange = OtlpExchange::new(own, &memory);
            decoder.requests(&exchange, export(arguments.path.clone()))
        }
        ProtocolOptions::Endless(own, ..) => {
            let version = version.unwrap_or(ENDLESS_VERSION);
            decoder.requests(&EndlessExchange::new(own, &memory), |bundle| upload(version, bundle))
        }
        ProtocolOptions::Nats(_) => {
            Err(CommandLineError::Misused("nats: no agent speaks it; decode its lines as `events`".to_owned()))
        }
    }
}

/// Decodes all files.
struct Decoder<'a> {
    protocol: Protocol,
    /// The name of the listener: `decode`, or that of the last capture.
    listener: Arc<str>,
    /// The attributes that it adds to resources.
    identity: Option<Arc<Identity>>,
    files: Vec<Input>,
    clock: Clock,
    /// The recorded time of the last step, if captures are decoded.
    played: Option<Now>,
    output: DecodeOutput<'a>,
}

/// A file that has been opened.
struct OpenedFile {
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
    fn new(OpenedFile { name, origin, counters }: OpenedFile, session: S) -> Self {
        Decoded { name, offline: Offline::new(session, origin, counters.clone()), counters }
    }
}

impl Decoder<'_> {
    /// Decodes independent connections.
    fn one_by_one<S: Session>(&mut self, make: impl Fn() -> S) -> Result<(), CommandLineError> {
        for (number, file) in (1..).zip(take(&mut self.files)) {
            self.whole(number, file, make())?;
            if self.output.is_closed() {
                break;
            }
        }
        Ok(())
    }

    /// Decodes connections of the same time: all are read before one ends. Captures end at their recorded times.
    fn together<S: Session>(&mut self, make: impl Fn() -> S) -> Result<(), CommandLineError> {
        let (mut read, mut playing, mut captures) = (Vec::new(), Vec::new(), Captures::default());
        for (number, file) in (1..).zip(take(&mut self.files)) {
            let (named, source) = self.open(number, file)?;
            match source {
                FileContent::Events => {}
                FileContent::Wire(input) => read.push(self.read(named, input, make())?),
                FileContent::Capture(reader) => {
                    captures.add(named.name.clone(), reader)?;
                    playing.push(Decoded::new(named, make()));
                }
            }
        }
        self.play(captures, playing)?;
        read.into_iter().try_for_each(|decoded| self.finish(decoded, End::Closed))
    }

    /// Decodes one connection.
    fn whole<S: Session>(&mut self, number: u64, file: Input, session: S) -> Result<(), CommandLineError> {
        let (named, source) = self.open(number, file)?;
        match source {
            FileContent::Events => Ok(()),
            FileContent::Wire(input) => {
                let decoded = self.read(named, input, session)?;
                self.finish(decoded, End::Closed)
            }
            FileContent::Capture(reader) => {
                let mut captures = Captures::default();
                captures.add(named.name.clone(), reader)?;
                self.played = None;
                self.play(captures, vec![Decoded::new(named, session)])
            }
        }
    }

    /// Decodes requests, those of each file in order. `wrap` makes a request of a body without one.
    fn requests<E: Exchange>(
        &mut self,
        exchange: &E,
        wrap: impl Fn(Vec<u8>) -> Request,
    ) -> Result<(), CommandLineError> {
        let (mut captures, mut playing) = (Captures::default(), Vec::new());
        for (number, file) in (1..).zip(take(&mut self.files)) {
            let (named, source) = self.open(number, file)?;
            let mut input = match source {
                FileContent::Events => continue,
                FileContent::Wire(input) => input,
                FileContent::Capture(reader) => {
                    captures.add(named.name.clone(), reader)?;
                    playing.push(named);
                    continue;
                }
            };
            let OpenedFile { name, origin, counters } = named;
            let mut bytes = Vec::new();
            input.read_to_end(&mut bytes).map_err(|error| CommandLineError::Failed(format!("{name}: {error}")))?;
            if let Some(mut packets) = OfflinePackets::of(exchange, &bytes, origin.clone(), counters.clone()) {
                let now = self.clock.now();
                self.packets(&mut packets, &bytes, &name, now);
                packets.finish(now, &mut |batch| self.output.write(&batch));
                bytes.clear();
            }
            let bodies = |bytes: Vec<u8>| if bytes.is_empty() { Vec::new() } else { vec![wrap(bytes)] };
            for request in decode::requests(&bytes).unwrap_or_else(|| bodies(bytes)) {
                let mut now = self.clock.now();
                // A file of the quarantine has the time of receipt, which some event times depend on.
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

    /// Decodes packets, and reports on stderr what the daemon would answer if that is no success.
    fn packets<E: Exchange>(&mut self, packets: &mut OfflinePackets<E>, bytes: &[u8], name: &str, now: Now) {
        let answers = packets.feed(bytes, now, &mut |batch| self.output.write(&batch));
        for PacketAnswer { bytes, quarantine_reason } in answers {
            let status = bytes.get(4..6).map_or(0, |status| u16::from_be_bytes([status[0], status[1]]));
            match quarantine_reason {
                Some(why) => say(terminal::shown(&format!("{name}: a packet: {status}, {why}"))),
                None if status != 0 => say(terminal::shown(&format!("{name}: a packet: {status}"))),
                None => {}
            }
        }
    }

    /// Decodes one request, and reports on stderr what the daemon would respond.
    fn answer<E: Exchange>(
        &mut self,
        exchange: &E,
        request: Request,
        name: &str,
        origin: &Arc<Origin>,
        counters: &ListenerCounters,
        now: Now,
    ) {
        let target = http::without_secrets(&request.head.target);
        let shown = format!("{} {target:.24}", request.head.method);
        let take = &mut |batch| self.output.write(&batch);
        let (answer, quarantined) = decode::answer(exchange, request, origin.clone(), counters, now, take);
        let why = quarantined.unwrap_or_else(|| String::from_utf8_lossy(&answer.body).trim_end().to_owned());
        say(terminal::shown(&format!("{name}: {shown}: {}, {why}", answer.status)));
    }

    /// Writes the events that an exchange holds after its last request.
    fn rest<E: Exchange>(&mut self, exchange: &E) -> Result<(), CommandLineError> {
        if self.output.is_closed() {
            return Ok(());
        }
        let counters = ListenerCounters::new(self.listener.clone(), self.protocol);
        let origin = Origin::new(self.protocol.as_str(), self.listener.clone(), "".into(), 0);
        let origin = Arc::new(origin.with_identity(self.identity.clone()));
        let now = self.now();
        decode::finish(exchange, origin, &counters, now, &mut |batch| self.output.write(&batch));
        self.output.flush()
    }

    /// Opens a file as received bytes or as a capture.
    fn open(&mut self, number: u64, file: Input) -> Result<(OpenedFile, FileContent), CommandLineError> {
        let name: Arc<str> = file.path.display().to_string().into();
        let failed = |error: io::Error| CommandLineError::Failed(format!("{name}: {error}"));
        let source = FileContent::of(file).map_err(failed)?;
        let origin = match &source {
            FileContent::Events => return Err(has_events(&name, self.protocol)),
            FileContent::Wire(_) => Origin::new(self.protocol.as_str(), "decode".into(), name.clone(), number),
            FileContent::Capture(reader) => {
                let capture::CaptureHead { protocol, listener, peer, connection, .. } = reader.head();
                if *protocol != self.protocol {
                    let text = format!("{name} is a capture of {protocol}: use `tributary decode {protocol}`");
                    return Err(CommandLineError::Misused(text));
                }
                self.listener = listener.as_str().into();
                let connection = if self.output.counts_files() { number } else { *connection };
                Origin::new(protocol.as_str(), self.listener.clone(), peer.as_str().into(), connection)
            }
        };
        let counters = ListenerCounters::new(origin.listener.clone(), self.protocol);
        let origin = Arc::new(origin.with_identity(self.identity.clone()));
        Ok((OpenedFile { name, origin, counters }, source))
    }

    fn now(&self) -> Now {
        self.played.unwrap_or_else(|| self.clock.now())
    }

    fn read<S: Session>(
        &mut self,
        named: OpenedFile,
        mut input: Box<dyn Read>,
        session: S,
    ) -> Result<Decoded<S>, CommandLineError> {
        let mut decoded = Decoded::new(named, session);
        let mut piece = vec![0; PIECE_BYTES];
        while !self.output.is_closed() {
            let bytes = match input.read(&mut piece) {
                Ok(0) => break,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(CommandLineError::Failed(format!("{}: {error}", decoded.name))),
            };
            decoded.offline.feed(&piece[..bytes], self.clock.now(), &mut |batch| self.output.write(&batch));
            // Events of a live source are written immediately.
            self.output.flush()?;
        }
        Ok(decoded)
    }

    fn finish<S: Session>(&mut self, decoded: Decoded<S>, end: End) -> Result<(), CommandLineError> {
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

/// The error of a file that has events instead of received bytes.
fn has_events(name: &str, protocol: Protocol) -> CommandLineError {
    let why =
        format!("it has events as JSON lines, not received bytes of {protocol}; `tributary decode events` reads them");
    CommandLineError::Failed(format!("{name}: {why}"))
}

/// Reads the options like a listener of the configuration.
pub(super) fn listener(protocol: &str, options: &[String]) -> Result<ListenerConfig, CommandLineError> {
    let mut text = format!("[listeners.decode]\nprotocol = \"{protocol}\"\n");
    for option in options {
        let Some((key, value)) = option.split_once('=') else {
            return Err(CommandLineError::Misused(format!("--option {option}: not KEY=VALUE")));
        };
        text.push_str(&format!("{key} = {}\n", toml_value(value)));
    }
    let loaded = Config::parse("--option", &text);
    let mut listeners =
        loaded.map_err(|errors| CommandLineError::Misused(format!("invalid --option\n{errors}")))?.config.listeners;
    if listeners.len() != 1 {
        return Err(CommandLineError::Misused("--option can set keys of one listener only".to_owned()));
    }
    Ok(listeners.remove(0))
}

/// The value of an argument as TOML: as it is if it is TOML, else as a string.
fn toml_value(value: &str) -> String {
    let is_toml = toml::from_str::<toml::Table>(&format!("value = {value}")).is_ok();
    if is_toml { value.to_owned() } else { toml::Value::from(value).to_string() }
}

/// Reports the counters of a file on stderr.
fn sum_up(name: &str, counters: &ListenerCounters) {
    let totals = counters.totals();
    let ignored = match totals.ignored() {
        0 => String::new(),
        bytes => format!(" + {bytes} ignored"),
    };
    say(format_args!(
        "{name}: {} bytes = {} decoded{ignored} + {} lost; {}",
        totals.bytes_in,
        totals.bytes_decoded,
        totals.lost(),
        counted(totals.events(), "event")
    ));
}
