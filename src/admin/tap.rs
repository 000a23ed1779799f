//! `/tap`: what passes, live, as events or as annotated bytes of the wire.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::channel::{Channel, Sender};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue};

use crate::codec::lru::Lru;
use crate::event::{Batch, DataView, Kind, Origin};
use crate::explain::{Explain, Fault, Sheet, http};
use crate::pipeline::tap::{Dropped, Filter, MAX_WAITING_BYTES, Piece, Reader, TapItem, TapRequest};
use crate::protocol::{Protocol, endless, zico};
use crate::sink::encode::{Encoder, Format};
use crate::sink::{Kinds, Selection};
use crate::transport::clock::Clock;

use super::{Answer, Subject, text};

/// Connections whose bytes are named with what was seen of them before; of more, those start anew that were quiet for
/// longest.
const MAX_FOLLOWED: usize = 4;
/// Bytes of a message that has not come whole.
const MAX_REST_BYTES: usize = 256 * 1024;
/// What a tap may take: what waits for its reader, and what is remembered of connections: names, and half messages.
const MOST_BYTES: u64 = (MAX_WAITING_BYTES + MAX_FOLLOWED * (MAX_REST_BYTES + EXPLAINER_BYTES)) as u64;
/// What an explainer may remember, with what is around it.
const EXPLAINER_BYTES: usize = 2 << 20;

/// Opens a tap, as the query of the request wants it; its answer goes on until somebody ends it.
pub(super) fn open(subject: &Subject, query: &str) -> Answer {
    let wanted = match Wanted::read(query) {
        Ok(wanted) => wanted,
        Err(why) => return text(StatusCode::BAD_REQUEST, &why),
    };
    if let Some(listener) = &wanted.filter.listener
        && !subject.accounting.listeners().iter().any(|counters| counters.name() == listener)
    {
        return text(StatusCode::NOT_FOUND, &format!("there is no listener {listener}"));
    }
    let is_wire = wanted.filter.wire;
    let mut memory = subject.memory.bare_lease();
    if !memory.try_resize(MOST_BYTES) {
        return text(StatusCode::SERVICE_UNAVAILABLE, "there is no memory for it just now (limits.memory_bytes)");
    }
    let Some(reader) = subject.taps.open(wanted.filter) else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "there are as many taps as there may be already");
    };
    let (body, channel) = Channel::new(1);
    let show = Show::new(is_wire, wanted.format);
    tokio::spawn(async move {
        stream(reader, show, body).await;
        drop(memory);
    });
    let mut answer = Answer::new(channel.boxed_unsync());
    let is_json = !is_wire && wanted.format == Format::Json;
    let content_type = if is_json { "application/x-ndjson" } else { "text/plain; charset=utf-8" };
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// What a query asks for.
struct Wanted {
    filter: Filter,
    format: Format,
}

impl Wanted {
    fn read(query: &str) -> Result<Wanted, String> {
        let (mut listener, mut kinds, mut wire, mut format) = (None, Vec::new(), false, Format::Json);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=').unwrap_or((pair, "")) {
                ("listener", name) => listener = Some(name.to_owned()),
                ("kind", name) => match Kind::ALL.into_iter().find(|kind| kind.as_str() == name) {
                    Some(kind) => kinds.push(kind),
                    None => {
                        return Err(format!(
                            "there is no kind {name}; there are {}",
                            Kind::ALL.map(Kind::as_str).join(", ")
                        ));
                    }
                },
                ("wire", "" | "1" | "true") => wire = true,
                ("format", "json") => format = Format::Json,
                ("format", "text") => format = Format::Text,
                _ => {
                    return Err(format!(
                        "what is {pair}? there are listener=, kind=, wire, format=json and format=text"
                    ));
                }
            }
        }
        let kinds = if kinds.is_empty() { Kinds::ALL } else { kinds.into_iter().collect() };
        Ok(Wanted { filter: Filter::new(listener, kinds, wire), format })
    }
}

/// Until nothing more passes, or nobody reads on.
async fn stream(mut reader: Reader, mut show: Show, mut body: Sender<Bytes>) {
    let kinds = reader.filter.kinds;
    while let Some(passing) = reader.next().await {
        let mut shown = Vec::new();
        if let Some(missed) = reader.missed() {
            show.missed(&missed, &mut shown);
        }
        show.passing(passing, kinds, &mut shown);
        if !shown.is_empty() && body.send_data(shown.into()).await.is_err() {
            return;
        }
    }
}

/// How what passes is shown.
enum Show {
    Events { encoder: Encoder, clock: Clock },
    Wire(Wire),
}

impl Show {
    fn new(is_wire: bool, format: Format) -> Self {
        if is_wire {
            Show::Wire(Wire::default())
        } else {
            Show::Events { encoder: Encoder::new(format), clock: Clock::start() }
        }
    }

    fn missed(&mut self, missed: &Dropped, shown: &mut Vec<u8>) {
        match self {
            Show::Events { encoder, clock } => {
                if let Some(loss) = missed.loss(clock.now().unix) {
                    loss.events().for_each(|event| encoder.encode(event, shown));
                }
            }
            Show::Wire(wire) => {
                let (bytes, losses) = (missed.bytes, missed.events);
                wire.shown = None;
                shown.extend(
                    format!("!! this tap is read too slowly: {bytes} bytes and {losses} losses are not shown\n")
                        .bytes(),
                );
            }
        }
    }

    fn passing(&mut self, passing: TapItem, kinds: Kinds, shown: &mut Vec<u8>) {
        match (self, passing) {
            (Show::Events { encoder, .. }, TapItem::Events(batch)) => {
                Selection::new(&batch, kinds).events().for_each(|event| encoder.encode(event, shown));
            }
            (Show::Events { .. }, TapItem::Bytes(_) | TapItem::Request(_)) => {}
            (Show::Wire(wire), TapItem::Events(batch)) => wire.losses(&batch, shown),
            (Show::Wire(wire), TapItem::Bytes(piece)) => wire.bytes(piece, shown),
            (Show::Wire(wire), TapItem::Request(asked)) => wire.request(&asked, shown),
        }
    }
}

/// Bytes of all connections, named.
#[derive(Default)]
struct Wire {
    followed: Lru<u64, Followed>,
    /// The connection that was shown last.
    shown: Option<u64>,
}

/// A connection in its midst.
struct Followed {
    explainer: Box<dyn Explain>,
    /// What has come of a message that is not whole.
    rest: Vec<u8>,
    /// Offset of what follows that.
    next: u64,
    /// What follows begins in the midst of a message.
    lost: bool,
}

impl Wire {
    fn bytes(&mut self, piece: Piece, shown: &mut Vec<u8>) {
        let Piece { origin, offset, explainer, bytes } = piece;
        self.title(&origin, shown);
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
            sheet.raw(&std::mem::take(&mut followed.rest), "of a message that is too long to be shown");
            followed.lost = true;
        }
        sheet.end();
        shown.extend(sheet.take().bytes());
    }

    fn request(&mut self, asked: &TapRequest, shown: &mut Vec<u8>) {
        let TapRequest { origin, number, head, body, is_secret } = asked;
        self.title(origin, shown);
        let mut sheet = Sheet::new(0, []).without_secrets();
        sheet.title(format_args!("request {number}: {} {}", head.method, head.target));
        sheet.nested(|sheet| {
            for (name, value) in &head.headers {
                let is_secret = http::is_secret_header(name);
                let value = if is_secret { "hidden".into() } else { String::from_utf8_lossy(value) };
                sheet.title(format_args!("{name}: {value}"));
            }
        });
        match body_of(origin.protocol) {
            _ if *is_secret => sheet.secret(body, "body", "hidden"),
            Some(name) if !body.is_empty() => name(head, body, Vec::new(), &mut sheet),
            _ => {}
        }
        sheet.end();
        shown.extend(sheet.take().bytes());
    }

    fn losses(&mut self, batch: &Batch, shown: &mut Vec<u8>) {
        for event in batch.events() {
            let DataView::Loss(loss) = event.data() else { continue };
            self.title(event.origin(), shown);
            let mut sheet = Sheet::default().without_secrets();
            if let Some(followed) = self.followed.get(&event.origin().connection) {
                // What could not be named yet is what cannot be.
                sheet = Sheet::new(followed.next - followed.rest.len() as u64, []).without_secrets();
                followed.lost = !followed.rest.is_empty();
                followed.explainer.finish(&std::mem::take(&mut followed.rest), &mut sheet);
            }
            let (reason, bytes, detail) = (loss.reason.as_str(), loss.bytes, loss.detail.text());
            let request =
                event.position().sequence.map(|number| format!("request or message {number}: ")).unwrap_or_default();
            let text = format!("{request}{reason}, {bytes} bytes lost: {detail}");
            sheet.fault(&Fault { offset: event.position().offset, text });
            shown.extend(sheet.take().bytes());
        }
    }

    /// Says whose bytes follow, unless it is clear.
    fn title(&mut self, origin: &Arc<Origin>, shown: &mut Vec<u8>) {
        if self.shown != Some(origin.connection) {
            self.shown = Some(origin.connection);
            let Origin { protocol, listener, peer, connection, .. } = &**origin;
            shown.extend(format!("== {listener} ({protocol}) {peer} #{connection}\n").bytes());
        }
    }
}

/// What names the bodies of requests.
fn body_of(protocol: &str) -> Option<http::Body> {
    match Protocol::by_name(protocol)? {
        Protocol::Endless => Some(endless::explain::body),
        Protocol::Zico => Some(zico::explain::body),
        Protocol::Bytefrog | Protocol::Datadog | Protocol::Rbkit => None,
    }
}
