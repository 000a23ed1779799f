//! Annotates the bytes of an HTTP connection: requests, their headers, and bodies, which a function of the protocol
//! annotates.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::mem::{replace, take};

use tributary_codec::http::RequestHead;

use super::words::counted;
use super::{DecoderError, Explain, Raw, Sheet, value};

/// A longer head is not annotated.
const MAX_HEAD_BYTES: usize = 1 << 20;
/// A longer line of a chunked body is not annotated.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Annotates a body as it was transmitted, at the current offset of the sheet. Its decoded content has its own offsets, as
/// in events. The faults refer to these offsets and belong to [`Sheet::inner`].
pub type Body = fn(&RequestHead, &[u8], Vec<DecoderError>, &mut Sheet);

/// A fault in a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestError {
    /// The number of the request on its connection, from 1; `None`: the incomplete request.
    pub request: Option<u64>,
    /// The fault, with its offset in the body.
    pub fault: DecoderError,
}

/// Annotates the requests of a connection.
pub struct Requests {
    bodies: Body,
    is_secret: Box<dyn Fn(&RequestHead) -> bool + Send>,
    faults: BTreeMap<Option<u64>, Vec<DecoderError>>,
    /// A body without a length extends to the end, as in files that hold one request.
    takes_rest: bool,
    number: u64,
    phase: HttpPhase,
    /// This many bytes at the front were searched for a line end.
    searched: usize,
}

#[derive(Debug)]
enum HttpPhase {
    Head,
    /// A body of this many bytes follows.
    Body(RequestHead, usize),
    /// The line with the size of a chunk, or trailers after the last chunk.
    Line(Chunked),
    /// A chunk of this size.
    Chunk(Chunked, usize),
    Lost(Raw),
}

/// The received part of a chunked body.
#[derive(Debug)]
struct Chunked {
    head: RequestHead,
    body: Vec<u8>,
    is_over: bool,
}

impl Requests {
    /// Requests from the first byte of a connection. `bodies` annotates the bodies, except those for which `is_secret` is
    /// true;
    /// `faults` are the faults that a decoder reported.
    pub fn new(
        bodies: Body,
        is_secret: impl Fn(&RequestHead) -> bool + Send + 'static,
        faults: Vec<RequestError>,
    ) -> Self {
        let is_secret = Box::new(is_secret);
        let mut sorted = BTreeMap::<_, Vec<_>>::new();
        for RequestError { request, fault } in faults {
            sorted.entry(request).or_default().push(fault);
        }
        Requests {
            bodies,
            is_secret,
            faults: sorted,
            takes_rest: false,
            number: 0,
            phase: HttpPhase::Head,
            searched: 0,
        }
    }

    /// The same for a file with one request: a body without a length extends to the end, and a body that is shorter than its
    /// length is accepted.
    #[must_use]
    pub fn of_file(self) -> Self {
        Requests { takes_rest: true, ..self }
    }

    /// Annotates what is at the front of `input`. `None`: it is incomplete.
    fn step(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        match replace(&mut self.phase, HttpPhase::Head) {
            HttpPhase::Head => self.head(input, sheet),
            HttpPhase::Body(head, length) => match input.get(..length) {
                Some(body) => {
                    let end = sheet.offset() + length as u64;
                    self.body(&head, body, sheet);
                    sheet.skip_to(end);
                    Some(length)
                }
                None => self.wait(HttpPhase::Body(head, length)),
            },
            HttpPhase::Line(chunked) => self.line(chunked, input, sheet),
            HttpPhase::Chunk(mut chunked, size) => match input.get(..size + 2) {
                Some(chunk) => {
                    match (self.is_secret)(&chunked.head) {
                        true => sheet.secret(&chunk[..size], "chunk", "hidden"),
                        false => sheet.field(&chunk[..size], "chunk", ""),
                    }
                    sheet.field(&chunk[size..], "end of chunk", "");
                    chunked.body.extend_from_slice(&chunk[..size]);
                    self.phase = HttpPhase::Line(chunked);
                    Some(size + 2)
                }
                None => self.wait(HttpPhase::Chunk(chunked, size)),
            },
            HttpPhase::Lost(mut raw) => {
                let size = raw.explain(input, sheet);
                self.phase = HttpPhase::Lost(raw);
                Some(size).filter(|size| *size > 0)
            }
        }
    }

    fn wait(&mut self, phase: HttpPhase) -> Option<usize> {
        self.phase = phase;
        None
    }

    fn lose(&mut self, why: &'static str) -> Option<usize> {
        self.phase = HttpPhase::Lost(Raw::new(why).secret());
        Some(0)
    }

    fn head(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        let from = self.searched.min(input.len());
        let Some(end) = input[from..].windows(4).position(|window| window == b"\r\n\r\n") else {
            if input.len() > MAX_HEAD_BYTES {
                return self.lose("no end of a request head");
            }
            self.searched = input.len().saturating_sub(3);
            return None;
        };
        let size = from + end + 4;
        self.searched = 0;
        let Some(head) = parse(&input[..size]) else { return self.lose("not a request head") };
        self.number += 1;
        sheet.title(format_args!("request {}", self.number));
        write_head(&input[..size], sheet);
        let is_chunked = head.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let declared = head.header("content-length").and_then(|length| length.parse().ok());
        let has_no_body = ["GET", "HEAD", "DELETE"].contains(&head.method.as_str());
        let left = input.len() - size;
        self.phase = match declared {
            _ if is_chunked && !self.takes_rest => HttpPhase::Line(Chunked { head, body: Vec::new(), is_over: false }),
            None if self.takes_rest && !has_no_body => HttpPhase::Body(head, left),
            Some(declared) if self.takes_rest => HttpPhase::Body(head, left.min(declared)),
            declared => HttpPhase::Body(head, declared.unwrap_or(0)),
        };
        Some(size)
    }

    /// The size of a chunk, or a trailer.
    fn line(&mut self, mut chunked: Chunked, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        let from = self.searched.min(input.len());
        let Some(end) = input[from..].windows(2).position(|window| window == b"\r\n") else {
            if input.len() > MAX_LINE_BYTES {
                return self.lose("no end of a line of a chunked body");
            }
            self.searched = input.len().saturating_sub(1);
            return self.wait(HttpPhase::Line(chunked));
        };
        self.searched = 0;
        let line = &input[..from + end];
        let size = line.len() + 2;
        let whole = &input[..size];
        if chunked.is_over {
            if line.is_empty() {
                sheet.field(whole, "end of body", "");
                let Chunked { head, body, .. } = chunked;
                if !(self.is_secret)(&head) {
                    // The joined body has no offsets on the connection.
                    sheet.inner([], |sheet| self.body(&head, &body, sheet));
                }
                return Some(size);
            }
            write_header(whole, "trailer", sheet);
            self.phase = HttpPhase::Line(chunked);
            return Some(size);
        }
        let number = str::from_utf8(line).ok().and_then(|line| line.split(';').next()).map(str::trim);
        let Some(length) = number.and_then(|number| usize::from_str_radix(number, 16).ok()) else {
            return self.lose("not a chunk size");
        };
        if length.checked_add(2).is_none() {
            return self.lose("chunk size out of range");
        }
        sheet.field(whole, "chunk size", counted(length as u64, "byte"));
        chunked.is_over = length == 0;
        self.phase = if length == 0 { HttpPhase::Line(chunked) } else { HttpPhase::Chunk(chunked, length) };
        Some(size)
    }

    fn body(&mut self, head: &RequestHead, body: &[u8], sheet: &mut Sheet) {
        let faults = self.faults.remove(&Some(self.number)).unwrap_or_default();
        if body.is_empty() {
            sheet.inner(faults, |_| {});
        } else if (self.is_secret)(head) {
            sheet.secret(body, "body", "hidden");
            sheet.inner(faults, |_| {});
        } else {
            sheet.title(format_args!("body, {}", counted(body.len() as u64, "byte")));
            (self.bodies)(head, body, faults, sheet);
        }
    }
}

impl Explain for Requests {
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize {
        let mut at = 0;
        while let Some(size) = self.step(&input[at..], sheet) {
            at += size;
        }
        at
    }

    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        match replace(&mut self.phase, HttpPhase::Head) {
            HttpPhase::Lost(mut raw) => raw.finish(rest, sheet),
            _ if rest.is_empty() => {}
            HttpPhase::Head => sheet.secret(rest, "?", "not a request head, or an incomplete one"),
            // A trailer may be as secret as a header.
            HttpPhase::Body(head, _) | HttpPhase::Chunk(Chunked { head, .. }, _) if !(self.is_secret)(&head) => {
                sheet.raw(rest, "incomplete");
            }
            _ => sheet.secret(rest, "?", "incomplete"),
        }
        // Their offsets are relative to bodies.
        sheet.inner(take(&mut self.faults).into_values().flatten(), |_| {});
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("number", &self.number).field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Parses a head, including the empty line at its end.
fn parse(bytes: &[u8]) -> Option<RequestHead> {
    let mut lines = lines(bytes).map(<[u8]>::trim_ascii_end);
    let mut words = str::from_utf8(lines.next()?).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_request = version.starts_with("HTTP/1.") && method.bytes().all(|byte| byte.is_ascii_uppercase());
    is_request.then(|| RequestHead {
        method: method.to_owned(),
        target: target.to_owned(),
        headers: lines.filter_map(|line| header(line).map(|(name, value)| (name, value.to_vec()))).collect(),
    })
}

fn write_head(bytes: &[u8], sheet: &mut Sheet) {
    for (number, line) in lines(bytes).enumerate() {
        match (number, line) {
            (0, _) => sheet.field(line, "request line", value::text(line.trim_ascii_end())),
            (_, b"\r\n" | b"\n") => sheet.field(line, "end of head", ""),
            _ => write_header(line, "header", sheet),
        }
    }
}

fn write_header(line: &[u8], what: &str, sheet: &mut Sheet) {
    match header(line.trim_ascii_end()) {
        Some((name, _)) if is_secret_header(&name) => sheet.secret(line, what, format_args!("{name}: hidden")),
        Some((name, value)) => sheet.field(line, what, format_args!("{name}: {}", value::text(value))),
        None => sheet.field(line, what, value::text(line.trim_ascii_end())),
    }
}

fn header(line: &[u8]) -> Option<(String, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = str::from_utf8(&line[..colon]).ok()?.to_ascii_lowercase();
    Some((name, line[colon + 1..].trim_ascii()))
}

/// Whether a header of this name can be a credential.
pub fn is_secret_header(name: &str) -> bool {
    ["auth", "cookie", "token", "secret", "password", "credential", "key", "session"]
        .iter()
        .any(|part| name.contains(part))
}

/// Whether a parameter of this name, as it stands in a query or a form, can be a credential.
pub fn is_secret_parameter(name: &str) -> bool {
    is_secret_header(&percent_decoded(name).to_ascii_lowercase())
}

/// A request target in which the values of secret query parameters are replaced by `hidden`.
pub fn without_secrets(target: &str) -> Cow<'_, str> {
    let Some((path, query)) = target.split_once('?') else { return Cow::Borrowed(target) };
    let mut shown = format!("{path}?");
    for parameter in query.split_inclusive(['&', ';']) {
        match parameter.split_once('=') {
            Some((name, value)) if is_secret_parameter(name) => {
                shown.extend([name, "=hidden", &value[value.trim_end_matches(['&', ';']).len()..]]);
            }
            _ => shown.push_str(parameter),
        }
    }
    Cow::Owned(shown)
}

/// The text with `%41` and the like decoded. Bytes that are not UTF-8 are replaced.
fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The lines, each with its line end.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_query_parameters_are_hidden() {
        for (target, shown) in [
            ("/a", "/a"),
            ("/a?", "/a?"),
            ("/a?rkey=SECRET&name=h", "/a?rkey=hidden&name=h"),
            ("/a?name=h;%72Key=SECRET", "/a?name=h;%72Key=hidden"),
            ("/a?session=SECRET=SECRET&&=x&b", "/a?session=hidden&&=x&b"),
            ("/a?%=1&%zz=2&%é=3", "/a?%=1&%zz=2&%é=3"),
        ] {
            assert_eq!(without_secrets(target), shown);
        }
    }

    #[test]
    fn secrets_are_hidden_wherever_a_connection_ends() {
        let plain = "PUT /a HTTP/1.1\r\nX-Api-Key: SECRET\r\ncontent-length: 6\r\n\r\nSECRET";
        let chunked = "PUT /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n6\r\nSECRET\r\n0\r\nCookie: SECRET\r\n\r\n";
        let nothing = "SECRET PUT /a HTTP/1.1\r\n\r\nSECRET";
        for text in [plain, chunked, nothing] {
            for end in 0..=text.len() {
                let bytes = &text.as_bytes()[..end];
                let mut sheet = Sheet::new(0, []).without_secrets();
                let mut requests = Requests::new(|_, _, _, _| {}, |_| true, Vec::new());
                let named = requests.explain(bytes, &mut sheet);
                requests.finish(&bytes[named..], &mut sheet);
                assert_eq!(sheet.offset(), end as u64);
                let shown = sheet.take();
                let hex: String = shown.lines().map(|line| line.get(10..58).unwrap_or_default()).collect();
                let hex = hex.replace(' ', "");
                assert!(!shown.contains("SECRET") && !hex.contains("534543"), "{shown}");
            }
        }
    }
}
