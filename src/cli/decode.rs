//! `tributary decode`: recorded wire bytes → the events that the daemon would write.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ListenerConfig, ProtocolOptions};
use crate::decode::{self, Offline};
use crate::event::{Batch, Origin, write_hex};
use crate::pipeline::ledger::ListenerBooks;
use crate::protocol::datadog::DatadogSession;
use crate::protocol::endless::EndlessExchange;
use crate::protocol::{End, Exchange, Head, MemoryBudget, Request, Session};
use crate::sink::encode::{Encoder, Format};
use crate::transport::clock::Clock;

use super::{Failure, NamedProtocol, OutputFormat, counted, quiet, say};

/// Files are read in pieces of this size, as a connection might be.
const PIECE_BYTES: usize = 64 * 1024;

/// Decode recorded wire bytes into the events that the daemon would write
///
/// Each file is what one connection received, from its first byte to its end: for endless HTTP requests, or one bundle. Bytes that are no events become loss
/// events, here as there; they are no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary decode datadog capture.bin
  nc -l 8136 | tributary decode datadog --format text
  tributary decode datadog --option list_layout=padded32 capture.bin
  tributary decode endless quarantine/desktops/*.http
  tributary decode endless --protocol-version 2 bundle.bin")]
pub(super) struct Arguments {
    /// What the bytes speak
    protocol: NamedProtocol,
    /// Files of wire bytes; `-` is stdin [default: stdin]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// An option of the listener, as in the configuration; may be repeated
    #[arg(long = "option", short = 'o', value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// endless: the version of a bundle that is not wrapped in an HTTP request
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u8).range(0..=3))]
    protocol_version: u8,
    /// How events are written
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let protocol = arguments.protocol.spoken()?;
    let listener = listener(protocol.as_str(), &arguments.options)?;
    let stdin = [PathBuf::from("-")];
    let files = if arguments.files.is_empty() { &stdin[..] } else { &arguments.files };
    let memory = MemoryBudget::new(Config::builtin().limits.memory_bytes);
    let mut output = Output::new(arguments.format.into());
    for (number, file) in (1..).zip(files) {
        let books = ListenerBooks::new("decode".into(), protocol);
        let name: Arc<str> = file.display().to_string().into();
        let origin = Arc::new(Origin::new(protocol.as_str(), "decode".into(), name.clone(), number));
        let input = open(file).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
        let ListenerConfig { options, protocol, .. } = &listener;
        let decoded = match protocol {
            ProtocolOptions::Datadog(own) => {
                let session =
                    DatadogSession::new(own.clone(), options.max_message_bytes, options.emit_definitions, &memory);
                drive(input, Offline::new(session, origin, books.clone()), &mut output)
            }
            ProtocolOptions::Endless(own, _) => {
                let exchange = EndlessExchange::new(own.clone(), &memory);
                let version = arguments.protocol_version;
                answer(input, &exchange, |body| upload(version, body), &origin, &books, &mut output)
            }
        };
        decoded.map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
        output.flush()?;
        if output.is_closed {
            return Ok(());
        }
        let account = books.account();
        say(format_args!(
            "{name}: {} bytes = {} decoded + {} lost; {}",
            account.bytes_in,
            account.bytes_decoded,
            account.lost(),
            counted(account.events(), "event")
        ));
    }
    Ok(())
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

/// The requests in `input`; or, where there are none, the one that `wrap` makes of it.
fn answer<E: Exchange>(
    mut input: impl Read,
    exchange: &E,
    wrap: impl Fn(Vec<u8>) -> Request,
    origin: &Arc<Origin>,
    books: &ListenerBooks,
    output: &mut Output,
) -> io::Result<()> {
    let clock = Clock::start();
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let requests = decode::requests(&bytes).unwrap_or_else(|| vec![wrap(bytes)]);
    for request in requests {
        let shown = format!("{} {:.24}", request.head.method, request.head.target);
        let take = &mut |batch| output.write(&batch);
        let (response, aside) = decode::answer(exchange, request, origin.clone(), books, clock.now(), take);
        let words = aside.unwrap_or_else(|| String::from_utf8_lossy(&response.body).trim_end().to_owned());
        say(format_args!("{shown}: {}, {words}", response.status));
    }
    output.check()
}

/// A bundle that is not wrapped in a request, as if it had been uploaded.
fn upload(version: u8, bundle: Vec<u8>) -> Request {
    let hash = ring::digest::digest(&ring::digest::SHA512, &bundle);
    let mut target = format!("/{version}/");
    let _ = write_hex(&mut target, hash.as_ref());
    Request { head: Head { method: "PUT".to_owned(), target, headers: Vec::new() }, body: bundle.into(), number: 1 }
}

fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    Ok(if path == Path::new("-") { Box::new(io::stdin()) } else { Box::new(File::open(path)?) })
}

fn drive<S: Session>(mut input: impl Read, mut offline: Offline<S>, output: &mut Output) -> io::Result<()> {
    let clock = Clock::start();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let bytes = match input.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        offline.feed(&piece[..bytes], clock.now(), &mut |batch| output.write(&batch));
        // Where the bytes come from a live source, so do the events.
        output.flush()?;
        if output.is_closed {
            return Ok(());
        }
    }
    offline.finish(End::Closed, clock.now(), &mut |batch| output.write(&batch));
    output.check()
}

/// Encoded events on their way to stdout.
struct Output {
    stdout: BufWriter<io::Stdout>,
    encoder: Encoder,
    lines: Vec<u8>,
    result: io::Result<()>,
    /// The reader has left.
    is_closed: bool,
}

impl Output {
    fn new(format: Format) -> Self {
        Output {
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
        let result = std::mem::replace(&mut self.result, Ok(()));
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
