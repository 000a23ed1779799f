//! `tributary decode --explain`: annotated bytes, with the losses of the decoder at their offsets.
//!
//! Files are read whole and decoded, because only the decoder knows its losses. Then explainers, which are a second reading
//! of the layouts, annotate the bytes.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use crate::config::{Config, ListenerConfig, ProtocolOptions};
use tributary_bytefrog::Hq;
use tributary_codec::terminal;
use tributary_datadog::DatadogSession;
use tributary_datadog_agent as datadog_agent;
use tributary_driver::capture::{self, CaptureRecord, Reader, What};
use tributary_endless as endless;
use tributary_endless::EndlessExchange;
use tributary_event::{Batch, DataView, EventView, UnixNanos};
use tributary_explain::http::{Body, RequestError, Requests};
use tributary_explain::words::{counted, moment};
use tributary_explain::{DecoderError, Explain, Sheet};
use tributary_memory::MemoryBudget;
use tributary_otlp as otlp;
use tributary_protocol::{Exchange, Protocol, Request, RequestHead, Session};
use tributary_rbkit::{AgentOptions, Player, RbkitAgent};
use tributary_transport::options::ListenerOptions;
use tributary_zico as zico;
use tributary_zico::ZicoExchange;

use crate::cli::input::Input;
use crate::cli::{CommandLineError, printed};

use super::output::DecodeOutput;
use super::requests::{export, submitted, traces, upload};
use super::{Arguments, ENDLESS_VERSION, PIECE_BYTES, START_BYTES, decode, listener};

/// Explains all files on stdout.
pub(super) fn run(arguments: &Arguments, protocol: Protocol) -> Result<(), CommandLineError> {
    let stdin = [PathBuf::from("-")];
    let paths = if arguments.files.is_empty() { &stdin[..] } else { &arguments.files };
    let files = paths.iter().map(|path| Received::read(path)).collect::<Result<Vec<_>, _>>()?;
    let mut faults = faults(arguments, protocol, &files)?;
    let mut explainers = Explainers::new(arguments, protocol, &files)?;
    let mut out = BufWriter::new(io::stdout());
    let mut write = || {
        for (number, file) in (1..).zip(&files) {
            if files.len() > 1 {
                let line = if number == 1 { "" } else { "\n" };
                writeln!(out, "{line}==> {} <==", terminal::shown(&file.name))?;
            }
            let faults = faults.remove(&number).unwrap_or_default();
            explainers.show(file, number == files.len() as u64, faults, &mut out)?;
        }
        // Losses that belong to no file.
        let mut sheet = Sheet::new(0, faults.values().flatten().map(|fault| fault.fault.clone()));
        sheet.end();
        out.write_all(sheet.take().as_bytes())?;
        out.flush()
    };
    printed(write())
}

/// A file and its received bytes.
struct Received {
    name: String,
    file: Bytes,
    pieces: Vec<Piece>,
    is_capture: bool,
}

/// Bytes that were received together, with the time if it is known.
struct Piece {
    at: Option<UnixNanos>,
    bytes: Bytes,
}

impl Received {
    fn read(path: &Path) -> Result<Received, CommandLineError> {
        let name = path.display().to_string();
        let mut file = Vec::new();
        let read = Input::new(path).open().and_then(|mut input| input.read_to_end(&mut file));
        let failed = |error: io::Error| CommandLineError::Failed(format!("{name}: {error}"));
        read.map_err(failed)?;
        let file = Bytes::from(file);
        let is_capture = file.starts_with(capture::MAGIC);
        let pieces = if is_capture {
            captured(file.slice(capture::MAGIC.len()..)).map_err(failed)?
        } else {
            vec![Piece { at: None, bytes: file.clone() }]
        };
        Ok(Received { name, file, pieces, is_capture })
    }

    /// The version in the hello, if the file is a bytefrog control connection.
    fn bytefrog_version(&self) -> Option<u8> {
        let mut bytes = self.pieces.iter().flat_map(|piece| &piece.bytes);
        bytes.next().filter(|kind| [0, 16].contains(*kind)).and(bytes.next()).copied()
    }
}

/// The received bytes of a capture up to the first missing bytes. The decoder skips the rest too.
fn captured(file: Bytes) -> io::Result<Vec<Piece>> {
    let mut reader = Reader::new(Cursor::new(file))?;
    let opened = reader.head().opened.0;
    let mut pieces = Vec::new();
    while let Some(CaptureRecord { at, what: What::Bytes(bytes) }) = reader.record()? {
        let at = opened.saturating_add(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        pieces.push(Piece { at: Some(UnixNanos(at)), bytes: bytes.into() });
    }
    Ok(pieces)
}

/// The losses of the decoder, by the number of the file.
fn faults(
    arguments: &Arguments,
    protocol: Protocol,
    files: &[Received],
) -> Result<BTreeMap<u64, Vec<RequestError>>, CommandLineError> {
    let mut faults = BTreeMap::<u64, Vec<RequestError>>::new();
    let mut take = |batch: &Batch| {
        for event in batch.events() {
            if let Some(fault) = fault(event) {
                faults.entry(event.origin().connection).or_default().push(fault);
            }
        }
    };
    let input = |file: &Received| Input {
        path: PathBuf::from(&file.name),
        opened: Some(Box::new(Cursor::new(file.file.clone()))),
    };
    decode(arguments, protocol, files.iter().map(input).collect(), DecodeOutput::Examined(&mut take))?;
    for faults in faults.values_mut() {
        faults.sort_by_key(|fault| fault.fault.offset);
    }
    Ok(faults)
}

fn fault(event: EventView<'_>) -> Option<RequestError> {
    let DataView::Loss(loss) = event.data() else { return None };
    let counts = match (loss.bytes, loss.events) {
        (0, None) => String::new(),
        (0, Some(events)) => format!(", {}", counted(events, "event")),
        (bytes, _) => format!(", {} lost", counted(bytes, "byte")),
    };
    let text = format!("{}{counts}: {}", loss.reason.as_str(), loss.detail.text());
    let position = event.position();
    Some(RequestError { request: position.sequence, fault: DecoderError { offset: position.offset, text } })
}

/// Makes the explainer of a file; `true`: it is the last file.
type Make = dyn Fn(&Received, bool) -> Box<dyn Explain>;

/// Makes the explainer of a connection of packets with these faults.
type MakePackets = fn(Vec<RequestError>) -> Box<dyn Explain>;

/// The explainers of a protocol.
enum Explainers {
    /// A file has the bytes of a connection, or a part of a conversation.
    Sessions(Box<Make>),
    /// A file has requests, or a body that `wrap` makes a request.
    Requests {
        bodies: Body,
        is_secret: Arc<dyn Fn(&RequestHead) -> bool + Send + Sync>,
        wrap: Box<dyn Fn(Vec<u8>) -> Request>,
        /// How connections begin that have packets instead, and their explainer.
        packets: Option<(&'static [u8], MakePackets)>,
    },
}

impl Explainers {
    fn new(arguments: &Arguments, protocol: Protocol, files: &[Received]) -> Result<Self, CommandLineError> {
        let memory = MemoryBudget::new(Config::builtin().memory_limit());
        let version = arguments.version(protocol)?;
        let listener = listener(protocol.as_str(), &arguments.options)?;
        let ListenerConfig { options: ListenerOptions { max_message_bytes, .. }, protocol, .. } = listener;
        Ok(match protocol {
            ProtocolOptions::Datadog(own) => Explainers::Sessions(Box::new(move |_, _| {
                DatadogSession::new(own.clone(), max_message_bytes, false, &memory).explainer()
            })),
            ProtocolOptions::Bytefrog(own) => {
                // All files are one run, and the hello of its control connection says the version.
                let hello = files.iter().find_map(Received::bytefrog_version);
                let hq = Hq::offline(own, false, memory, hello.or(version));
                Explainers::Sessions(Box::new(move |_, _| hq.session(None).explainer()))
            }
            ProtocolOptions::Rbkit(own) => {
                let (agent, own) = (RbkitAgent::new(AgentOptions::default()), Arc::new(own));
                let channel = arguments.channel.map(Into::into);
                Explainers::Sessions(Box::new(move |file, is_last| {
                    let all = file.pieces.iter().map(|piece| &*piece.bytes).collect::<Vec<_>>().concat();
                    let start = if file.is_capture { &all[..all.len().min(START_BYTES)] } else { &all[..] };
                    Player::new(agent.clone(), own.clone(), max_message_bytes, start, channel, is_last).explainer()
                }))
            }
            ProtocolOptions::DatadogAgent(..) => Explainers::Requests {
                bodies: datadog_agent::explain::body,
                is_secret: Arc::new(|_| false),
                wrap: Box::new(traces(arguments.path.clone())),
                packets: None,
            },
            ProtocolOptions::Otlp(..) => Explainers::Requests {
                bodies: otlp::explain::body,
                is_secret: Arc::new(|_| false),
                wrap: Box::new(export(arguments.path.clone())),
                packets: None,
            },
            ProtocolOptions::Endless(own, ..) => {
                let exchange = EndlessExchange::new(own, &memory);
                let version = version.unwrap_or(ENDLESS_VERSION);
                Explainers::Requests {
                    bodies: endless::explain::body,
                    is_secret: Arc::new(move |head| exchange.is_secret(head)),
                    wrap: Box::new(move |bundle| upload(version, bundle)),
                    packets: None,
                }
            }
            ProtocolOptions::Nats(_) => return Err(CommandLineError::Misused("nats: no agent speaks it".to_owned())),
            ProtocolOptions::Zico(own, ..) => {
                let exchange = ZicoExchange::recorded(own, false, &memory);
                Explainers::Requests {
                    bodies: zico::explain::body,
                    is_secret: Arc::new(move |head| {
                        exchange.is_secret(head) && !exchange.is_explained_without_keys(head)
                    }),
                    wrap: Box::new(submitted),
                    packets: Some((&zico::fressian::packet::MAGIC, |faults| {
                        Box::new(zico::explain::PacketsExplainer::new(faults))
                    })),
                }
            }
        })
    }

    fn show(
        &mut self,
        file: &Received,
        is_last: bool,
        faults: Vec<RequestError>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        match self {
            Explainers::Sessions(make) => {
                let sheet = Sheet::new(0, faults.into_iter().map(|fault| fault.fault));
                play(&mut *make(file, is_last), &file.pieces, PIECE_BYTES, sheet, out)
            }
            Explainers::Requests { bodies, is_secret, wrap, packets } => {
                let start: Vec<u8> = file.pieces.iter().flat_map(|piece| &piece.bytes).take(4).copied().collect();
                if let Some((_, make)) = packets.filter(|(magic, _)| start.starts_with(magic)) {
                    return play(&mut *make(faults), &file.pieces, PIECE_BYTES, Sheet::default(), out);
                }
                let is_secret = is_secret.clone();
                let requests = |faults| Requests::new(*bodies, move |head| is_secret(head), faults);
                if file.is_capture {
                    return play(&mut requests(faults), &file.pieces, PIECE_BYTES, Sheet::default(), out);
                }
                if decode::requests(&file.file).is_some() {
                    // A body without a length ends at the end of the file.
                    let all = file.file.len().max(1);
                    return play(&mut requests(faults).of_file(), &file.pieces, all, Sheet::default(), out);
                }
                let head = wrap(file.file.to_vec()).head;
                let mut sheet = Sheet::default();
                bodies(&head, &file.file, faults.into_iter().map(|fault| fault.fault).collect(), &mut sheet);
                sheet.end();
                out.write_all(sheet.take().as_bytes())
            }
        }
    }
}

/// Explains the bytes of a connection in pieces of `step` bytes or more.
fn play(
    explainer: &mut dyn Explain,
    pieces: &[Piece],
    step: usize,
    mut sheet: Sheet,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut input = BytesMut::new();
    for Piece { at, bytes } in pieces {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            // The pieces of a long incomplete message double, so that it is not read again too often.
            let (next, left) = rest.split_at(step.max(input.len()).min(rest.len()));
            rest = left;
            input.extend_from_slice(next);
            let named = explainer.explain(&input, &mut sheet);
            input.advance(named);
            let text = sheet.take_settled();
            if let Some(at) = at.filter(|_| !text.is_empty()) {
                writeln!(out, "{:10}received {}", "", moment(at.0.into()))?;
            }
            out.write_all(text.as_bytes())?;
        }
    }
    explainer.finish(&input, &mut sheet);
    sheet.end();
    out.write_all(sheet.take().as_bytes())
}
