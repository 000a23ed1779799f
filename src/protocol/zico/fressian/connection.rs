//! One connection: its hello, and what it has defined since (sections 6.2 and 6.4).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;

use tributary_codec::fressian::{Definitions as FressianDefinitions, FressianItem, FressianReader};
use tributary_codec::mutf8;
use tributary_event::{Header, Loss, Position, Reason, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{Frame, Now, Output, PacketAction, Packets, Request, RequestHead, Response};

use super::super::normalize::{self, BodyContext};
use super::super::route::{HOST_HEADER, PACKET_PATH, Route};
use super::super::sessions::{SessionKey, SessionSlot, bytes};
use super::super::shared::SharedExchange;
use super::super::symbols::{SymbolLimits, SymbolTable};
use super::super::wire::ZicoDialect;
use super::super::work::ZicoWork;
use super::metrics::Metrics;
use super::packet::{FrameLimits, HEADER_BYTES, PacketHeader, answer, code, frame};
use super::structs::{self, Tag};

/// The longest name of a host and the longest pass phrase, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// The packets of one connection.
pub(in super::super) struct Connection {
    shared: Arc<SharedExchange>,
    /// None before a hello was accepted.
    link: Option<Arc<Mutex<Link>>>,
}

/// What the data of a connection need: nothing of it outlives the connection, but the host.
#[derive(Debug)]
pub(in super::super) struct Link {
    pub(super) host: Box<str>,
    pub(super) slot: Arc<SessionSlot>,
    /// The number of the connection.
    pub(super) connection: u64,
    pub(super) symbols: SymbolTable,
    pub(super) metrics: Metrics,
    /// No data followed the hello yet: what follows may have been sent before.
    pub(in super::super) is_first: bool,
    lease: MemoryLease,
}

impl Link {
    /// The state of a host's connection that has defined nothing.
    pub(in super::super) fn open(shared: &SharedExchange, host: &str, connection: u64, now: Now) -> Self {
        let options = &shared.options;
        let limits = SymbolLimits {
            entries: options.max_symbols,
            bytes: bytes(options.max_symbol_bytes),
            text: bytes(options.max_text_bytes),
        };
        let slot = shared.sessions.of_host(host, now.elapsed);
        Link {
            host: host.into(),
            slot,
            connection,
            symbols: SymbolTable::new(limits),
            metrics: Metrics::new(limits.bytes),
            is_first: true,
            lease: shared.budget.bare_lease(),
        }
    }

    /// The state of the host. Marks it as used.
    pub(in super::super) fn session(&mut self, shared: &SharedExchange, now: Now) -> Arc<SessionSlot> {
        let agent = self.slot.lock().agent.clone();
        let key = SessionKey::Connected(self.host.clone());
        (self.slot, _) = shared.sessions.find_or_open(key, agent, now.elapsed);
        self.slot.clone()
    }

    /// Whether its next packet can be read: a first one that may come again waits for the one before.
    pub(in super::super) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_first {
            return Poll::Ready(());
        }
        self.slot.lock().resends.poll_others(self.connection, context)
    }

    /// Charges the memory of what the connection has defined to `budget`. `false`: it is exhausted.
    pub(in super::super) fn hold(&mut self, budget: &Arc<MemoryBudget>) -> bool {
        self.lease.move_to(budget);
        self.lease.resize((self.symbols.memory_bytes() + self.metrics.memory_bytes()) as u64)
    }
}

/// Locks a mutex. State behind a poisoned lock is still consistent: nothing that panics changes it partly.
pub(in super::super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    pub(in super::super) fn new(shared: Arc<SharedExchange>) -> Self {
        Connection { shared, link: None }
    }

    /// Section 6.2.
    fn hello(&mut self, packet: &Request, now: Now, out: &mut Output) -> (u16, Option<Reason>) {
        let content = packet.body.get(HEADER_BYTES..).unwrap_or_default();
        let (host, pass_phrase) = match read_hello(content) {
            Ok(hello) => hello,
            Err((detail, closes)) => {
                lose(packet, Reason::Malformed, detail, &[], now, out);
                return (code::BAD_REQUEST, closes.then_some(Reason::Malformed));
            }
        };
        if !self.shared.agents.admits(&pass_phrase) {
            self.link = None;
            let detail = "the pass phrase of a hello (tracer.net.pass) is not among the accepted keys (keys_file)";
            lose(packet, Reason::Unauthorized, detail, &[], now, out);
            return (code::UNAUTHORIZED, Some(Reason::Unauthorized));
        }
        let link = Link::open(&self.shared, &host, out.batch.origin().connection, now);
        out.batch.set_origin(out.batch.origin().with_version(ZicoDialect::Fressian.as_str()).into());
        out.batch.set_resource(link.slot.lock().resource.clone());
        self.link = Some(Arc::new(Mutex::new(link)));
        let context = BodyContext { dialect: ZicoDialect::Fressian, observed: now.unix, request: packet.number };
        normalize::lifecycle(semconv::ZICO_SESSION_OPENED, packet.body.len(), &context, out);
        out.decoded_bytes += packet.body.len() as u64;
        (code::OK, None)
    }
}

impl Packets<ZicoWork> for Connection {
    fn frame(&self, input: &[u8]) -> Frame {
        let options = &self.shared.options;
        let limits =
            FrameLimits { hello: bytes(options.max_registration_bytes), data: bytes(options.max_packet_bytes) };
        frame(input, limits)
    }

    /// A hello contains a pass phrase.
    fn shown<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        match PacketHeader::read(input) {
            Some(PacketHeader { kind: code::DATA, .. }) => input,
            _ => &input[..input.len().min(HEADER_BYTES)],
        }
    }

    fn request(&self, packet: Bytes, number: u64) -> Request {
        let host = self.link.as_ref().map(|link| lock(link).host.as_bytes().to_vec());
        let headers = host.map(|host| (HOST_HEADER.to_owned(), host)).into_iter().collect();
        let head = RequestHead { method: "POST".to_owned(), target: PACKET_PATH.to_owned(), headers };
        Request { head, body: packet, number }
    }

    fn take(
        &mut self,
        packet: Request,
        memory: Option<&Arc<MemoryBudget>>,
        now: Now,
        out: &mut Output,
    ) -> PacketAction<ZicoWork> {
        let content = packet.body.get(HEADER_BYTES..).unwrap_or_default();
        let Some(header) = PacketHeader::read(&packet.body) else {
            lose(&packet, Reason::Malformed, "a packet without a header", &[], now, out);
            return PacketAction::Answer { answer: answer(code::BAD_MAGIC), closes: Some(Reason::Malformed) };
        };
        let (status, closes) = if !header.is_intact(content) {
            let detail = "the checksum of a packet is not that of its content";
            lose(&packet, Reason::Malformed, detail, self.shown(&packet.body), now, out);
            (code::BAD_CHECKSUM, Some(Reason::Malformed))
        } else {
            match (header.kind, &self.link) {
                (code::DATA, Some(link)) => {
                    let lease = memory.unwrap_or(&self.shared.budget).passing(MemoryLease::FLOOR);
                    let work = ZicoWork::new(packet, Route::Packet, now, lease, self.shared.clone());
                    return PacketAction::Work(work.with_link(link.clone()));
                }
                // The agent says hello on another connection, and sends the same again.
                (code::DATA, None) => {
                    out.decoded_bytes += packet.body.len() as u64;
                    (code::UNAUTHORIZED, None)
                }
                (code::HELLO, _) => self.hello(&packet, now, out),
                (code::PING, _) => {
                    out.decoded_bytes += packet.body.len() as u64;
                    (code::PONG, None)
                }
                (kind, _) => {
                    let detail = format!("packets of type {kind} are unknown");
                    lose(&packet, Reason::Unsupported, &detail, self.shown(&packet.body), now, out);
                    (code::BAD_REQUEST, None)
                }
            }
        };
        let (expanded, mut unearned) = (out.batch.total_expanded_bytes(), packet.body.len() as u64);
        out.charge_request(self.shared.options.amplification, &mut unearned, expanded, now.elapsed);
        PacketAction::Answer { answer: answer(status), closes }
    }

    /// After its time limit an agent sends data without a hello, and on the same connection. It connects again before it sends other
    /// packets.
    fn drop_late(&mut self, packet: &Request, out: &mut Output) -> bool {
        let is_hello = PacketHeader::read(&packet.body).is_some_and(|header| header.kind == code::HELLO);
        if is_hello {
            out.decoded_bytes += packet.body.len() as u64;
        }
        is_hello
    }

    fn answer(&self, response: &Response) -> Vec<u8> {
        answer(match response.status {
            200..300 => code::OK,
            401 | 403 => code::UNAUTHORIZED,
            400 | 404 | 405 | 413 => code::BAD_REQUEST,
            _ => code::INTERNAL,
        })
    }
}

/// The host and the pass phrase of a hello; else what is wrong, and whether the connection is closed.
fn read_hello(content: &[u8]) -> Result<(String, String), (&'static str, bool)> {
    let (mut reader, mut known) = (FressianReader::at(content, 0), FressianDefinitions::default());
    let is_hello = matches!(reader.item(&mut known), Ok(FressianItem::Struct(tag, _)) if Tag::of(tag) == Tag::Hello);
    let hello = is_hello.then(|| structs::hello(&mut reader, &mut known).ok()).flatten();
    let Some(hello) = hello else { return Err(("a hello contains something else", false)) };
    let text = |text: Option<std::borrow::Cow<'_, [u8]>>| {
        text.map(|text| mutf8::read(&text).0.into_owned()).unwrap_or_default()
    };
    let (host, pass_phrase) = (text(hello.host), text(hello.pass_phrase));
    if host.is_empty() || host.len() > MAX_TEXT_BYTES || pass_phrase.len() > MAX_TEXT_BYTES {
        return Err(("the host of a hello is missing, or it or the pass phrase is longer than 1024 bytes", true));
    }
    Ok((host, pass_phrase))
}

/// Reports a whole packet as lost.
fn lose(packet: &Request, reason: Reason, detail: &str, excerpt: &[u8], now: Now, out: &mut Output) {
    let bytes = packet.body.len() as u64;
    let position = Position { sequence: Some(packet.number), offset: 0, length: bytes };
    let excerpt = &excerpt[..excerpt.len().min(Loss::EXCERPT)];
    let loss = Loss { reason, bytes, events: None, detail, excerpt };
    out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
}
