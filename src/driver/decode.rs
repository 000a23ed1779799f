//! Offline decoding: drives the sessions and exchanges of the daemon over recorded bytes instead of a socket.
//!
//! It is the same code as on a live connection, so a capture decodes to the same events, losses included. Only limits that
//! protect the daemon from its peers do not apply (`max_losses_per_second`, `amplification`).

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::{Account, DriverStep, SessionDriver, call};
use tributary_event::{Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, semconv};
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::{
    End, Exchange, Flow, Frame, HeadDecision, Now, Output, PacketAction, Packets, Request, RequestHead, RequestOutcome,
    Response, Session, Work,
};

/// One recorded connection that is decoded.
#[derive(Debug)]
pub struct Offline<S> {
    driver: SessionDriver<S>,
    input: BytesMut,
}

impl<S: Session> Offline<S> {
    /// A connection from its first byte, counted in `counters`.
    pub fn new(session: S, origin: Arc<Origin>, counters: Arc<ListenerCounters>) -> Self {
        let mut driver = SessionDriver::new(session, origin, counters);
        driver.output().set_allowance(None);
        Offline { driver, input: BytesMut::new() }
    }

    /// The next bytes of the connection, in pieces of any size: the events do not depend on the sizes.
    pub fn feed(&mut self, bytes: &[u8], now: Now, take: &mut impl FnMut(Batch)) {
        self.driver.received(bytes.len() as u64);
        self.input.extend_from_slice(bytes);
        loop {
            let step = self.driver.receive(&self.input, now);
            self.input.advance(step.consumed);
            if self.hand_over(step, take) != Flow::Again {
                return;
            }
        }
    }

    /// When [`Offline::pass_time`] has something to do, on the clock of [`Now::elapsed`].
    pub fn due(&self) -> Option<Duration> {
        self.driver.poll_timeout()
    }

    /// Time passes without a byte: every timeout until `now` is handled.
    pub fn pass_time(&mut self, now: Now, take: &mut impl FnMut(Batch)) {
        while self.due().is_some_and(|due| due <= now.elapsed) {
            let mut flow = Flow::Again;
            while flow == Flow::Again {
                let step = self.driver.handle_timeout(now, false);
                flow = self.hand_over(step, take);
            }
        }
    }

    /// The connection ends.
    pub fn finish(mut self, end: End, now: Now, take: &mut impl FnMut(Batch)) {
        let rest = self.input.split();
        let mut flow = Flow::Again;
        while flow == Flow::Again {
            let step = self.driver.finish(&rest, end, now);
            flow = self.hand_over(step, take);
        }
    }

    fn hand_over(&mut self, step: DriverStep, take: &mut impl FnMut(Batch)) -> Flow {
        // The replies of a recording are not sent, and no peer is throttled.
        self.driver.output().reply.clear();
        step.batch.into_iter().for_each(take);
        step.flow
    }
}

/// The calls of one recorded request, or of an exchange between requests.
struct ExchangeCalls<'a> {
    out: Output,
    account: Account,
    counters: &'a ListenerCounters,
}

impl<'a> ExchangeCalls<'a> {
    fn new(origin: Arc<Origin>, counters: &'a ListenerCounters) -> Self {
        let mut out = Output::new(BatchBuilder::new(origin));
        out.set_allowance(None);
        ExchangeCalls { out, account: Account::default(), counters }
    }

    /// Repeats a call while it has more to write.
    fn repeat(&mut self, now: Now, take: &mut impl FnMut(Batch), mut method: impl FnMut(&mut Output) -> Flow) {
        let mut flow = Flow::Again;
        while flow == Flow::Again {
            let step = call(&mut self.out, &mut self.account, self.counters, now, &mut method);
            step.batch.into_iter().for_each(&mut *take);
            flow = step.flow;
        }
    }

    /// Counts bytes that are not decoded, and reports them.
    fn lose(&mut self, now: Now, sequence: Option<u64>, loss: Loss<'_>, take: &mut impl FnMut(Batch)) {
        self.account.received(self.counters, loss.bytes);
        let position = Position { sequence, offset: 0, length: loss.bytes };
        self.repeat(now, take, |out| {
            out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
            Flow::Continue
        });
    }
}

/// Decodes one recorded request. Returns the response that the daemon would send if the sinks wrote the events, and why it
/// would write the request to the quarantine.
pub fn answer<E: Exchange>(
    exchange: &E,
    request: Request,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) -> (Response, Option<String>) {
    let mut calls = ExchangeCalls::new(origin, counters);
    let bytes = request.body.len() as u64;
    let refusal = match exchange.admit(&request.head, now) {
        HeadDecision::Take { max_body_bytes, .. } if bytes <= max_body_bytes => None,
        HeadDecision::Take { key, .. } => {
            Some((Response::text(413, format!("the body is over its limit ({key})")), Reason::TooLarge))
        }
        HeadDecision::Answer(response, reason) => Some((response, reason)),
    };
    if let Some((response, reason)) = refusal {
        let ignored_as = exchange.ignored_as(&request.head).filter(|_| reason != Reason::TooLarge);
        if let Some(endpoint) = ignored_as {
            calls.account.received(counters, bytes);
            calls.account.ignore_buffered(counters, endpoint);
        } else if bytes > 0 {
            let detail = format!("the request was refused: {}", String::from_utf8_lossy(&response.body).trim_end());
            let excerpt = if exchange.is_secret(&request.head) { &[][..] } else { &request.body };
            let loss = Loss { reason, bytes, events: None, detail: &detail, excerpt };
            calls.lose(now, Some(request.number), loss, take);
        }
        return (response, None);
    }
    calls.account.received(counters, bytes);
    let mut work = exchange.work(request, None, now);
    calls.repeat(now, take, |out| work.step(now, out));
    let quarantine_reason = work.quarantine_reason().map(str::to_owned);
    // Nothing is looked up elsewhere for a recording, so its work never waits.
    work.conclude(RequestOutcome::Delivered);
    (work.respond(RequestOutcome::Delivered, now), quarantine_reason)
}

/// A recorded connection of packets that is decoded.
pub struct OfflinePackets<E: Exchange> {
    packets: Box<dyn Packets<E::Work>>,
    origin: Arc<Origin>,
    counters: Arc<ListenerCounters>,
    input: BytesMut,
    number: u64,
    /// The daemon would have closed the connection: what follows is lost for this reason.
    closed: Option<Reason>,
}

/// The answer to a packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PacketAnswer {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Why the daemon would write the packet to the quarantine.
    pub quarantine_reason: Option<String>,
}

impl<E: Exchange> OfflinePackets<E> {
    /// A connection that begins with these bytes; `None`: they begin no packet of this exchange.
    pub fn of(exchange: &E, first: &[u8], origin: Arc<Origin>, counters: Arc<ListenerCounters>) -> Option<Self> {
        let is_packet = exchange.packet_magic().is_some_and(|magic| first.starts_with(magic));
        let packets = exchange.packets().filter(|_| is_packet)?;
        Some(OfflinePackets { packets, origin, counters, input: BytesMut::new(), number: 0, closed: None })
    }

    /// The next bytes of the connection, in pieces of any size. Returns the answers that the daemon would send if the sinks wrote
    /// the events.
    pub fn feed(&mut self, bytes: &[u8], now: Now, take: &mut impl FnMut(Batch)) -> Vec<PacketAnswer> {
        self.input.extend_from_slice(bytes);
        let mut answers = Vec::new();
        while self.closed.is_none() {
            match self.packets.frame(&self.input) {
                Frame::Needs(_) => break,
                Frame::Whole(length) => {
                    let packet = self.input.split_to(length).freeze();
                    answers.push(self.answer(packet, now, take));
                }
                Frame::Refused { answer, reason, detail } => {
                    answers.push(PacketAnswer { bytes: answer, quarantine_reason: None });
                    self.closed = Some(reason);
                    self.lose_rest(reason, &detail, now, take);
                }
            }
        }
        if let Some(reason) = self.closed {
            self.lose_rest(reason, "a packet before was refused, and the connection closed", now, take);
        }
        answers
    }

    fn answer(&mut self, packet: Bytes, now: Now, take: &mut impl FnMut(Batch)) -> PacketAnswer {
        self.number += 1;
        let mut calls = ExchangeCalls::new(self.origin.clone(), &self.counters);
        calls.account.received(&self.counters, packet.len() as u64);
        let request = self.packets.request(packet, self.number);
        let mut action = None;
        calls.repeat(now, take, |out| {
            action = Some(self.packets.take(request.clone(), None, now, out));
            Flow::Continue
        });
        match action {
            Some(PacketAction::Answer { answer, closes }) => {
                self.closed = closes;
                PacketAnswer { bytes: answer, quarantine_reason: None }
            }
            Some(PacketAction::Work(mut work)) => {
                calls.repeat(now, take, |out| work.step(now, out));
                let quarantine_reason = work.quarantine_reason().map(str::to_owned);
                work.conclude(RequestOutcome::Delivered);
                let response = work.respond(RequestOutcome::Delivered, now);
                PacketAnswer { bytes: self.packets.answer(&response), quarantine_reason }
            }
            None => PacketAnswer { bytes: Vec::new(), quarantine_reason: None },
        }
    }

    /// The connection ends.
    pub fn finish(mut self, now: Now, take: &mut impl FnMut(Batch)) {
        self.lose_rest(Reason::Truncated, "the connection ended inside a packet", now, take);
    }

    fn lose_rest(&mut self, reason: Reason, detail: &str, now: Now, take: &mut impl FnMut(Batch)) {
        let rest = self.input.split();
        if !rest.is_empty() {
            let shown = self.packets.shown(&rest);
            let excerpt = &shown[..shown.len().min(Loss::EXCERPT)];
            let loss = Loss { reason, bytes: rest.len() as u64, events: None, detail, excerpt };
            ExchangeCalls::new(self.origin.clone(), &self.counters).lose(now, Some(self.number + 1), loss, take);
        }
    }
}

/// A recorded connection ended inside a request; `rest` is the part that was received. A head that is complete is not
/// counted.
pub fn cut(rest: &[u8], origin: Arc<Origin>, counters: &ListenerCounters, now: Now, take: &mut impl FnMut(Batch)) {
    let (reason, lost, detail) = match head_of(rest) {
        Some((_, size)) if size == rest.len() => return,
        Some((_, size)) => (Reason::Truncated, &rest[size..], "the connection ended inside the body of a request"),
        None if head_end(rest).is_none() => (Reason::Truncated, rest, "the connection ended inside a head"),
        None => (Reason::Malformed, rest, "these bytes are not the head of a request"),
    };
    let loss = Loss { reason, bytes: lost.len() as u64, events: None, detail, excerpt: &[] };
    ExchangeCalls::new(origin, counters).lose(now, None, loss, take);
}

/// Calls [`Exchange::tick`].
pub fn tick<E: Exchange>(
    exchange: &E,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) {
    ExchangeCalls::new(origin, counters).repeat(now, take, |out| exchange.tick(now, out));
}

/// Calls [`Exchange::finish`]: no further request follows.
pub fn finish<E: Exchange>(
    exchange: &E,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) {
    ExchangeCalls::new(origin, counters).repeat(now, take, |out| exchange.finish(now, out));
}

/// The requests of one connection; `None` when the bytes do not begin with a request. A body has the length that its head
/// declares, or else is everything that follows.
pub fn requests(mut bytes: &[u8]) -> Option<Vec<Request>> {
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        let (head, size) = head_of(bytes)?;
        let rest = &bytes[size..];
        let declared = head.header("content-length").and_then(|length| length.parse::<usize>().ok());
        let has_no_body = ["GET", "HEAD", "DELETE"].contains(&head.method.as_str());
        let length = declared.unwrap_or(if has_no_body { 0 } else { rest.len() }).min(rest.len());
        let (body, rest) = rest.split_at(length);
        let number = requests.len() as u64 + 1;
        requests.push(Request { head, body: Bytes::copy_from_slice(body), number });
        bytes = rest;
    }
    Some(requests).filter(|requests| !requests.is_empty())
}

/// The request at the front of a connection's bytes, and its size; `None` while it is incomplete. For captures: here a body
/// ends where HTTP says.
pub fn whole_request(bytes: &[u8], number: u64) -> Option<(Request, usize)> {
    let (head, size) = head_of(bytes)?;
    let rest = &bytes[size..];
    let is_chunked = head.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
    let (body, length) = if is_chunked {
        chunked(rest)?
    } else {
        let length = head.header("content-length").and_then(|length| length.parse::<usize>().ok()).unwrap_or(0);
        (Bytes::copy_from_slice(rest.get(..length)?), length)
    };
    Some((Request { head, body, number }, size + length))
}

/// A chunked body, and its size with the chunk heads; `None` while it is incomplete.
fn chunked(bytes: &[u8]) -> Option<(Bytes, usize)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    loop {
        let line = bytes.get(at..)?.windows(2).position(|window| window == b"\r\n")?;
        let size = str::from_utf8(&bytes[at..at + line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        at += line + 2;
        if size == 0 {
            break;
        }
        let end = at.checked_add(size)?;
        pieces.push(bytes.get(at..end)?);
        at = end + 2;
    }
    // Trailers, up to an empty line.
    loop {
        let line = bytes.get(at..)?.windows(2).position(|window| window == b"\r\n")?;
        at += line + 2;
        if line == 0 {
            return Some((pieces.concat().into(), at));
        }
    }
}

/// The head at the front of `bytes`, and its size.
fn head_of(bytes: &[u8]) -> Option<(RequestHead, usize)> {
    let end = head_end(bytes)?;
    Some((head(&bytes[..end])?, end + 4))
}

/// Where a head ends, without its empty line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n")
}

fn head(bytes: &[u8]) -> Option<RequestHead> {
    let mut lines = bytes.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut words = str::from_utf8(lines.next()?).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if !version.starts_with("HTTP/1.") || !method.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let header = |line: &[u8]| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = str::from_utf8(&line[..colon]).ok()?.to_ascii_lowercase();
        Some((name, line[colon + 1..].trim_ascii().to_vec()))
    };
    Some(RequestHead {
        method: method.to_owned(),
        target: target.to_owned(),
        headers: lines.filter_map(header).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_connection_are_found_one_by_one_chunked_or_not() {
        let chunked = b"PUT /1 HTTP/1.1\r\ntransfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0a\r\n0123456789\r\n0\r\nt: 1\r\n\r\n";
        let measured = b"PUT /2 HTTP/1.1\r\ncontent-length: 5\r\n\r\n\r\n\r\n!";
        let bare = b"GET /3 HTTP/1.1\r\n\r\n";
        let all = [&chunked[..], measured, bare].concat();
        let bodies = [(&chunked[..], &b"abc0123456789"[..]), (measured, b"\r\n\r\n!"), (bare, b"")];
        let mut at = 0;
        for (request, body) in bodies {
            let end = at + request.len();
            assert!((at..end).all(|cut| whole_request(&all[at..cut], 1).is_none()));
            let (found, size) = whole_request(&all[at..], 7).unwrap();
            assert_eq!((&found.body[..], size, found.number), (body, request.len(), 7));
            at = end;
        }
        assert_eq!(at, all.len());
    }

    #[test]
    fn impossible_lengths_are_no_request() {
        for head in ["content-length: 18446744073709551615", "transfer-encoding: chunked"] {
            let text = format!("PUT /1 HTTP/1.1\r\n{head}\r\n\r\nffffffffffffffff\r\nabc");
            assert!(whole_request(text.as_bytes(), 1).is_none());
        }
    }
}
