//! `/tap`: a live view of events, or of the received bytes with annotations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::timeout;

use tributary_codec::lru::Lru;
use tributary_datadog_agent as datadog_agent;
use tributary_endless as endless;
use tributary_event::{Batch, DataView, Kind, Origin};
use tributary_explain::{DecoderError, Explain, Sheet, http};
use tributary_memory::MemoryLease;
use tributary_otlp as otlp;
use tributary_pipeline::tap::{Dropped, MAX_TAPS, MAX_WAITING_BYTES, Piece, Reader, TapFilter, TapItem, TapRequest};
use tributary_protocol::Protocol;
use tributary_sink::encode::{Encoder, Format};
use tributary_sink::{Kinds, Selection};
use tributary_transport::clock::Clock;
use tributary_zico as zico;

use super::Subject;
use super::response::{AdminResponse, text};

/// What is sent when there is nothing to send: an empty line, which programs that read lines of JSON skip.
pub(crate) const KEEP_ALIVE: &[u8] = b"\n";
/// Connections whose explainers are kept. When there are more, the one idle for longest is dropped, and its bytes are
/// explained without the names that it defined before.
const MAX_FOLLOWED: usize = 4;
/// The most bytes of an incomplete message.
const MAX_REST_BYTES: usize = 256 * 1024;
/// The memory of a tap: items in its queue, and explainers with their names and incomplete messages.
pub(super) const WIRE_BYTES: u64 = (MAX_WAITING_BYTES + MAX_FOLLOWED * (MAX_REST_BYTES + EXPLAINER_BYTES)) as u64;
/// The memory of an explainer.
const EXPLAINER_BYTES: usize = 2 << 20;

/// Opens a tap with the filter in the query. The response ends when its reader or the daemon ends it. A reader that has left
/// is noticed because an empty line is sent after each `keep_alive` without an item.
pub(super) fn open(subject: &Subject, query: &str, keep_alive: Duration) -> AdminResponse {
    let query = match Query::read(query) {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, &why),
    };
    if let Some(listener) = &query.filter.listener
        && !subject.accounting.listeners().iter().any(|counters| counters.name() == listener)
    {
        return text(StatusCode::NOT_FOUND, &format!("there is no listener {listener}"));
    }
    let is_wire = query.filter.wire;
    let (reader, memory) = match open_reader(subject, query.filter, WIRE_BYTES) {
        Ok(opened) => opened,
        Err(why) => return text(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    let (body, channel) = Channel::new(1);
    let view = View::new(is_wire, query.format);
    tokio::spawn(async move {
        stream(reader, view, body, keep_alive).await;
        drop(memory);
    });
    let mut response = AdminResponse::new(channel.boxed_unsync());
    let is_json = !is_wire && query.format == Format::Json;
    let content_type = if is_json { "application/x-ndjson" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Opens a tap, with a lease of `bytes` of memory.
///
/// # Errors
/// Why there is none now.
pub(super) fn open_reader(subject: &Subject, filter: TapFilter, bytes: u64) -> Result<(Reader, MemoryLease), String> {
    let mut memory = subject.memory.bare_lease();
    if !memory.try_resize(bytes) {
        return Err("not enough memory for a tap now (limits.memory_bytes); try again later".to_owned());
    }
    let reader = subject.taps.open(filter);
    let reader = reader.ok_or_else(|| format!("{MAX_TAPS} taps are open already; close one of them"))?;
    Ok((reader, memory))
}

/// The query of a request.
struct Query {
    filter: TapFilter,
    format: Format,
}

impl Query {
    fn read(query: &str) -> Result<Query, String> {
        let (mut listener, mut kinds, mut wire, mut format) = (None, Vec::new(), false, Format::Json);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("listener", name) => listener = Some(name.to_owned()),
                ("kind", name) => match Kind::ALL.into_iter().find(|kind| kind.as_str() == name) {
                    Some(kind) => kinds.push(kind),
                    None => {
                        return Err(format!(
                            "there is no kind {name}; the kinds are {}",
                            Kind::ALL.map(Kind::as_str).join(", ")
                        ));
                    }
                },
                ("wire", "" | "1" | "true") => wire = true,
                ("format", "json") => format = Format::Json,
                ("format", "text") => format = Format::Text,
                _ => {
                    return Err(format!(
                        "unknown parameter {pair}; the parameters are listener=, kind=, wire, format=json and format=text"
                    ));
                }
            }
        }
        let kinds = if kinds.is_empty() { Kinds::ALL } else { kinds.into_iter().collect() };
        Ok(Query { filter: TapFilter::new(listener, kinds, wire), format })
    }
}

/// Sends the items of a tap until it is closed or its reader has disconnected.
async fn stream(mut reader: Reader, mut view: View, mut body: Sender<Bytes>, keep_alive: Duration) {
    let kinds = reader.filter.kinds;
    loop {
        let mut out = Vec::new();
        match timeout(keep_alive, reader.next()).await {
            Ok(Some(item)) => {
                if let Some(dropped) = reader.take_dropped() {
                    view.dropped(&dropped, &mut out);
                }
                view.item(item, kinds, &mut out);
            }
            Ok(None) => return,
            Err(_) => out.extend_from_slice(KEEP_ALIVE),
        }
        if !out.is_empty() && body.send_data(out.into()).await.is_err() {
            return;
        }
    }
}

/// How items are written.
enum View {
    Events { encoder: Box<Encoder>, clock: Clock },
    Wire(Wire),
}

impl View {
    fn new(is_wire: bool, format: Format) -> Self {
        if is_wire {
            View::Wire(Wire::default())
        } else {
            View::Events { encoder: Box::new(Encoder::new(format)), clock: Clock::start() }
        }
    }

    /// Writes how much the reader was too slow for.
    fn dropped(&mut self, dropped: &Dropped, out: &mut Vec<u8>) {
        match self {
            View::Events { encoder, clock } => {
                if let Some(loss) = dropped.loss(clock.now().unix) {
                    loss.events().for_each(|event| encoder.encode(event, out));
                }
            }
            View::Wire(wire) => {
                let (bytes, losses) = (dropped.bytes, dropped.events);
                wire.titled = None;
                out.extend(
                    format!("!! the reader of this tap is too slow: {bytes} bytes and {losses} losses are not shown\n")
                        .bytes(),
                );
            }
        }
    }

    fn item(&mut self, item: TapItem, kinds: Kinds, out: &mut Vec<u8>) {
        match (self, item) {
            (View::Events { encoder, .. }, TapItem::Events(batch)) => {
                Selection::new(&batch, kinds).events().for_each(|event| encoder.encode(event, out));
            }
            (View::Events { .. }, TapItem::Bytes(_) | TapItem::Request(_)) => {}
            (View::Wire(wire), item) => wire.item(item, out),
        }
    }
}

/// The bytes of all connections, explained.
#[derive(Default)]
pub(super) struct Wire {
    followed: Lru<u64, Followed>,
    /// The connection of the last title.
    titled: Option<u64>,
}

/// A connection with its explainer.
struct Followed {
    explainer: Box<dyn Explain>,
    /// The bytes of an incomplete message.
    rest: Vec<u8>,
    /// The offset of the next byte after them.
    next: u64,
    /// The next byte is inside a message whose start was not explained.
    lost: bool,
}

impl Wire {
    /// Writes what was received.
    pub(super) fn item(&mut self, item: TapItem, out: &mut Vec<u8>) {
        match item {
            TapItem::Events(batch) => self.losses(&batch, out),
            TapItem::Bytes(piece) => self.bytes(piece, out),
            TapItem::Request(request) => self.request(&request, out),
        }
    }

    fn bytes(&mut self, piece: Piece, out: &mut Vec<u8>) {
        let Piece { origin, offset, explainer, bytes } = piece;
        self.title(&origin, out);
        let number = origin.connection;
        let fresh = Followed { explainer, rest: Vec::new(), next: offset, lost: false };
        let followed = match self.followed.get(&number) {
            Some(known) if known.next == offset && !known.lost => known,
            Some(known) => {
                *known = fresh;
                known
            }
            None => {
                if self.followed.len() >= MAX_FOLLOWED {
                    self.followed.pop_oldest();
                }
                self.followed.insert(number, fresh);
                let Some(known) = self.followed.get(&number) else { return };
                known
            }
        };
        let mut sheet = Sheet::new(offset - followed.rest.len() as u64, []).without_secrets();
        followed.next = offset + bytes.len() as u64;
        followed.rest.extend_from_slice(&bytes);
        let mut at = 0;
        while at < followed.rest.len() {
            match followed.explainer.explain(&followed.rest[at..], &mut sheet) {
                0 => break,
                taken => at += taken,
            }
        }
        followed.rest.drain(..at);
        if followed.rest.len() > MAX_REST_BYTES {
            sheet.raw(&std::mem::take(&mut followed.rest), "a message that is too long to be explained");
            followed.lost = true;
        }
        sheet.end();
        out.extend(sheet.take().bytes());
    }

    fn request(&mut self, request: &TapRequest, out: &mut Vec<u8>) {
        let TapRequest { origin, number, head, body, is_secret, is_cut } = request;
        self.title(origin, out);
        let mut sheet = Sheet::new(0, []).without_secrets();
        let rest = match is_cut {
            true => format!(", of whose body {} bytes were received", body.len()),
            false => String::new(),
        };
        sheet.title(format_args!("request {number}: {} {}{rest}", head.method, http::without_secrets(&head.target)));
        sheet.nested(|sheet| {
            for (name, value) in &head.headers {
                let is_secret = http::is_secret_header(name);
                let value = if is_secret { "hidden".into() } else { String::from_utf8_lossy(value) };
                sheet.title(format_args!("{name}: {value}"));
            }
        });
        match body_of(origin.protocol) {
            _ if *is_secret => sheet.secret(body, "body", "hidden"),
            _ if *is_cut => sheet.raw(body, "the part of the body that was received"),
            Some(name) if !body.is_empty() => name(head, body, Vec::new(), &mut sheet),
            _ => {}
        }
        sheet.end();
        out.extend(sheet.take().bytes());
    }

    fn losses(&mut self, batch: &Batch, out: &mut Vec<u8>) {
        for event in batch.events() {
            let DataView::Loss(loss) = event.data() else { continue };
            self.title(event.origin(), out);
            let mut sheet = Sheet::default().without_secrets();
            if let Some(followed) = self.followed.get(&event.origin().connection) {
                // The bytes that are not explained yet are those of the loss.
                sheet = Sheet::new(followed.next - followed.rest.len() as u64, []).without_secrets();
                followed.lost = !followed.rest.is_empty();
                followed.explainer.finish(&std::mem::take(&mut followed.rest), &mut sheet);
            }
            let (reason, bytes, detail) = (loss.reason.as_str(), loss.bytes, loss.detail.text());
            let request =
                event.position().sequence.map(|number| format!("request or message {number}: ")).unwrap_or_default();
            let text = format!("{request}{reason}, {bytes} bytes lost: {detail}");
            sheet.fault(&DecoderError { offset: event.position().offset, text });
            out.extend(sheet.take().bytes());
        }
    }

    /// Writes the connection of the following lines, if it is not that of the lines before.
    fn title(&mut self, origin: &Arc<Origin>, out: &mut Vec<u8>) {
        if self.titled != Some(origin.connection) {
            self.titled = Some(origin.connection);
            let Origin { protocol, listener, peer, connection, .. } = &**origin;
            out.extend(format!("== {listener} ({protocol}) {peer} #{connection}\n").bytes());
        }
    }
}

/// The explainer of request bodies.
fn body_of(protocol: &str) -> Option<http::Body> {
    match Protocol::by_name(protocol)? {
        Protocol::DatadogAgent => Some(datadog_agent::explain::body),
        Protocol::Endless => Some(endless::explain::body),
        Protocol::Zico => Some(zico::explain::body),
        Protocol::Otlp => Some(otlp::explain::body),
        Protocol::Bytefrog | Protocol::Datadog | Protocol::Rbkit | Protocol::Nats => None,
    }
}
