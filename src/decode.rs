//! Offline decoding: the sessions and exchanges of the daemon, driven over bytes from anywhere instead of a socket.
//!
//! The same code as on a live connection, so a capture decodes to the same events, losses included.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};

use crate::event::{Batch, BatchBuilder, Header, Loss, Origin, Position, Reason, semconv};
use crate::pipeline::accounting::ListenerCounters;
use crate::protocol::{
    End, Exchange, Flow, Head, HeadDecision, Now, Output, Request, RequestOutcome, Response, Session, Work,
};

/// One recorded connection being decoded.
#[derive(Debug)]
pub struct Offline<S> {
    session: S,
    input: BytesMut,
    out: Output,
    counters: Arc<ListenerCounters>,
}

impl<S: Session> Offline<S> {
    /// A connection from its first byte, booked in `counters`.
    pub fn new(session: S, origin: Arc<Origin>, counters: Arc<ListenerCounters>) -> Self {
        Offline { session, input: BytesMut::new(), out: Output::new(BatchBuilder::new(origin)), counters }
    }

    /// The next bytes of the connection, in pieces of any size: the events do not depend on how it is cut.
    pub fn feed(&mut self, bytes: &[u8], now: Now, take: &mut impl FnMut(Batch)) {
        self.counters.received(bytes.len() as u64);
        self.input.extend_from_slice(bytes);
        loop {
            let progress = self.session.receive(&self.input, now, &mut self.out);
            self.input.advance(progress.consumed);
            self.hand_over(take);
            if progress.flow != Flow::Again {
                return;
            }
        }
    }

    /// When [`Offline::pass_time`] has something to do, on the clock of [`Now::elapsed`].
    pub fn due(&self) -> Option<Duration> {
        self.session.poll_timeout()
    }

    /// Time passes without a byte: what the session waits for until `now` happens.
    pub fn pass_time(&mut self, now: Now, take: &mut impl FnMut(Batch)) {
        while self.session.poll_timeout().is_some_and(|due| due <= now.elapsed) {
            let mut flow = Flow::Again;
            while flow == Flow::Again {
                flow = self.session.handle_timeout(now, &mut self.out);
                self.hand_over(take);
            }
        }
    }

    /// The connection ends.
    pub fn finish(mut self, end: End, now: Now, take: &mut impl FnMut(Batch)) {
        let rest = self.input.split();
        let mut rest: &[u8] = &rest;
        while self.session.finish(rest, end, now, &mut self.out) == Flow::Again {
            rest = &[];
            self.hand_over(take);
        }
        self.hand_over(take);
    }

    fn hand_over(&mut self, take: &mut impl FnMut(Batch)) {
        hand_over(&mut self.out, &self.counters, take);
    }
}

/// Books what was decided, and gives its events away.
fn hand_over(out: &mut Output, counters: &ListenerCounters, take: &mut impl FnMut(Batch)) {
    counters.settle(out);
    if !out.batch.is_empty() {
        let batch = out.batch.take();
        counters.handed_over(&batch);
        take(batch);
    }
}

/// One recorded request on its way through an exchange: the answer that the daemon would give if the sinks took its
/// events, and why it would be kept aside.
pub fn answer<E: Exchange>(
    exchange: &E,
    request: Request,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) -> (Response, Option<String>) {
    let mut out = Output::new(BatchBuilder::new(origin));
    let bytes = request.body.len() as u64;
    counters.received(bytes);
    let refusal = match exchange.admit(&request.head, now) {
        HeadDecision::Take { max_body_bytes, .. } if bytes <= max_body_bytes => None,
        HeadDecision::Take { key, .. } => {
            Some((Response::text(413, format!("the body is over its limit ({key})")), Reason::TooLarge))
        }
        HeadDecision::Answer(response, reason) => Some((response, reason)),
    };
    if let Some((response, reason)) = refusal {
        if bytes > 0 {
            let position = Position { sequence: Some(request.number), offset: 0, length: bytes };
            let detail = format!("the request was refused: {}", String::from_utf8_lossy(&response.body).trim_end());
            let excerpt = if exchange.is_secret(&request.head) { &[][..] } else { &request.body };
            let loss = Loss { reason, bytes, events: None, detail: &detail, excerpt };
            out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
            hand_over(&mut out, counters, take);
        }
        return (response, None);
    }
    let mut work = exchange.work(request, now);
    loop {
        let flow = work.step(now, &mut out);
        hand_over(&mut out, counters, take);
        if flow != Flow::Again {
            break;
        }
    }
    let aside = work.quarantine_reason().map(str::to_owned);
    (work.respond(RequestOutcome::Delivered, now), aside)
}

/// A recorded connection that ended inside a request: `rest` is what is there of it.
pub fn cut(rest: &[u8], origin: Arc<Origin>, counters: &ListenerCounters, now: Now, take: &mut impl FnMut(Batch)) {
    // Heads are no part of the counters.
    let (reason, body) = match head_of(rest) {
        Some((_, size)) => (Reason::Truncated, &rest[size..]),
        None => (Reason::Malformed, &[][..]),
    };
    if reason == Reason::Truncated && body.is_empty() {
        return;
    }
    let bytes = body.len() as u64;
    counters.received(bytes);
    let mut out = Output::new(BatchBuilder::new(origin));
    let detail = match reason {
        Reason::Truncated => "the connection ended inside the body of a request",
        _ => "this is no head of a request, or half of one",
    };
    let position = Position { sequence: None, offset: 0, length: bytes };
    let loss = Loss { reason, bytes, events: None, detail, excerpt: &[] };
    out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
    hand_over(&mut out, counters, take);
}

/// A moment passes for the exchange.
pub fn tick<E: Exchange>(
    exchange: &E,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) {
    told(origin, counters, take, |out| exchange.tick(now, out));
}

/// No further request comes: what the exchange still waits with goes out.
pub fn finish<E: Exchange>(
    exchange: &E,
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut impl FnMut(Batch),
) {
    told(origin, counters, take, |out| exchange.finish(now, out));
}

fn told(
    origin: Arc<Origin>,
    counters: &ListenerCounters,
    take: &mut impl FnMut(Batch),
    mut say: impl FnMut(&mut Output) -> Flow,
) {
    let mut out = Output::new(BatchBuilder::new(origin));
    let mut flow = Flow::Again;
    while flow == Flow::Again {
        flow = say(&mut out);
        hand_over(&mut out, counters, take);
    }
}

/// The requests that a connection carried, as their bytes were; `None` when the bytes do not begin with one. A body has
/// the length that its head says, or else all that is left.
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

/// The request that a connection's bytes begin with, and how many of them it takes; `None` while it is not whole. For
/// captures: here a body ends where HTTP says that it does.
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

/// A body in chunks, and how many bytes it takes; `None` while it is not whole.
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

/// The head that bytes begin with, and its size.
fn head_of(bytes: &[u8]) -> Option<(Head, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((head(&bytes[..end])?, end + 4))
}

fn head(bytes: &[u8]) -> Option<Head> {
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
    Some(Head { method: method.to_owned(), target: target.to_owned(), headers: lines.filter_map(header).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_a_connection_are_found_one_by_one_in_chunks_or_not() {
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
    fn lengths_that_cannot_be_are_no_request() {
        for head in ["content-length: 18446744073709551615", "transfer-encoding: chunked"] {
            let text = format!("PUT /1 HTTP/1.1\r\n{head}\r\n\r\nffffffffffffffff\r\nabc");
            assert!(whole_request(text.as_bytes(), 1).is_none());
        }
    }
}
