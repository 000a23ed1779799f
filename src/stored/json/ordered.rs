//! Lines whose members are in the order in which the JSON encoder writes them, without spaces. They are read in one pass; what few lines
//! have is left to `serde_json`, and so is every other line.

use std::borrow::Cow;

use serde::Deserialize;

use super::line::{JsonText, Members, Origin, StoredLine, StoredSpan, Text};
use crate::Rebuilder;

/// A line in our own order. `None`: it is another one, or no JSON.
pub(super) fn line<'a>(json: &'a str, out: &mut Rebuilder) -> Option<StoredLine<'a>> {
    let mut cursor = LineCursor { json, at: 0 };
    let mut line = StoredLine::default();
    if cursor.takes(b"{\"time\":\"") {
        line.time = Some(cursor.text()?);
    } else {
        cursor.take(b"{\"time\":null")?;
    }
    line.observed_time = cursor.text_after(b",\"observed_time\":\"")?;
    cursor.take(b",\"kind\":\"")?;
    line.kind = Some(cursor.text()?);
    cursor.take(b",\"name\":\"")?;
    line.name = Some(cursor.text()?);
    line.severity = cursor.text_after(b",\"severity\":\"")?;
    line.severity_number = cursor.number_after(b",\"severity_number\":")?;
    line.trace_id = cursor.text_after(b",\"trace_id\":\"")?;
    line.span_id = cursor.text_after(b",\"span_id\":\"")?;
    if cursor.takes(b",\"body\":") {
        line.body = Some(cursor.value()?);
    }
    if cursor.takes(b",\"span\":{\"trace_id\":\"") {
        line.span = Some(span(&mut cursor)?);
    }
    line.metric = cursor.member(b",\"metric\":")?;
    line.sample = cursor.member(b",\"sample\":")?;
    line.loss = cursor.member(b",\"loss\":")?;
    if cursor.takes(b",\"attributes\":{\"") {
        line.attributes = members(&mut cursor)?;
    }
    if cursor.takes(b",\"resource\":") {
        line.resource = Some(match out.stored_resource_len(&cursor.json.as_bytes()[cursor.at..]) {
            Some(len) => cursor.skip(len)?,
            None => cursor.value()?,
        });
    }
    if cursor.takes(b",\"source\":\"") {
        line.source = Some(cursor.text()?);
        line.position = cursor.member(b",\"position\":")?;
        if cursor.takes(b",\"delay_ns\":") {
            line.delay_ns = cursor.any()?;
        }
    } else {
        line.origin = Some(origin(&mut cursor)?);
    }
    cursor.take(b"}")?;
    matches!(&json.as_bytes()[cursor.at..], b"" | b"\n").then_some(line)
}

fn span<'a>(cursor: &mut LineCursor<'a>) -> Option<StoredSpan<'a>> {
    let mut span = StoredSpan { trace_id: cursor.text()?, ..StoredSpan::default() };
    cursor.take(b",\"span_id\":\"")?;
    span.span_id = cursor.text()?;
    span.parent_span_id = cursor.text_after(b",\"parent_span_id\":\"")?;
    span.kind = cursor.text_after(b",\"kind\":\"")?;
    span.end_time = cursor.text_after(b",\"end_time\":\"")?;
    span.duration_ns = cursor.number_after(b",\"duration_ns\":")?;
    cursor.take(b",\"status\":\"")?;
    span.status = cursor.text()?;
    span.status_message = cursor.member(b",\"status_message\":")?;
    span.trace_state = cursor.member(b",\"trace_state\":")?;
    span.flags = cursor.member(b",\"flags\":")?.unwrap_or_default();
    span.dropped = cursor.member(b",\"dropped\":")?.unwrap_or_default();
    span.links = cursor.member(b",\"links\":")?.unwrap_or_default();
    span.events = cursor.member(b",\"events\":")?.unwrap_or_default();
    cursor.take(b"}")?;
    Some(span)
}

/// The members of an object after its first quote.
fn members<'a>(cursor: &mut LineCursor<'a>) -> Option<Members<'a>> {
    let mut members = Members::new();
    loop {
        let Text(key) = cursor.text()?;
        cursor.take(b":")?;
        members.set(key, cursor.value()?);
        if cursor.takes(b"}") {
            return Some(members);
        }
        cursor.take(b",\"")?;
    }
}

fn origin<'a>(cursor: &mut LineCursor<'a>) -> Option<Origin<'a>> {
    cursor.take(b",\"origin\":{\"protocol\":\"")?;
    let protocol = cursor.text()?;
    let version = cursor.text_after(b",\"version\":\"")?;
    cursor.take(b",\"listener\":\"")?;
    let listener = cursor.text()?;
    let peer = cursor.text_after(b",\"peer\":\"")?.unwrap_or_default();
    cursor.take(b",\"connection\":")?;
    let connection = cursor.number()?;
    let sequence = cursor.number_after(b",\"sequence\":")?;
    let offset = cursor.number_after(b",\"offset\":")?;
    let length = cursor.number_after(b",\"length\":")?;
    cursor.take(b"}")?;
    Some(Origin { protocol, version, listener, peer, connection, sequence, offset, length })
}

/// A line, and how much of it was read.
struct LineCursor<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> LineCursor<'a> {
    /// Whether this piece follows, which is skipped then.
    #[inline(always)]
    fn takes<const N: usize>(&mut self, piece: &[u8; N]) -> bool {
        let follows = self.json.as_bytes()[self.at..].first_chunk() == Some(piece);
        self.at += if follows { N } else { 0 };
        follows
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self, piece: &[u8; N]) -> Option<()> {
        self.takes(piece).then_some(())
    }

    /// The next `len` bytes.
    fn skip(&mut self, len: usize) -> Option<JsonText<'a>> {
        let skipped = self.json.get(self.at..self.at + len)?;
        self.at += len;
        Some(JsonText(skipped))
    }

    /// A text after its first quote. `None`: it has escapes, or is none.
    #[inline]
    fn text(&mut self) -> Option<Text<'a>> {
        let rest = &self.json.as_bytes()[self.at..];
        let len = memchr::memchr2(b'"', b'\\', rest)?;
        if rest[len] != b'"' || has_controls(&rest[..len]) {
            return None;
        }
        let text = self.json.get(self.at..self.at + len)?;
        self.at += len + 1;
        Some(Text(Cow::Borrowed(text)))
    }

    #[inline(always)]
    fn text_after<const N: usize>(&mut self, piece: &[u8; N]) -> Option<Option<Text<'a>>> {
        if self.takes(piece) { self.text().map(Some) } else { Some(None) }
    }

    /// A whole number from 0 on.
    #[inline]
    fn number(&mut self) -> Option<u64> {
        let digits = &self.json.as_bytes()[self.at..];
        let (mut number, mut len) = (0u64, 0);
        while let Some(digit) = digits.get(len).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            number = number.checked_mul(10)?.checked_add(digit.into())?;
            len += 1;
        }
        self.at += len;
        (len == 1 || len > 1 && digits[0] != b'0').then_some(number)
    }

    #[inline(always)]
    fn number_after<const N: usize>(&mut self, piece: &[u8; N]) -> Option<Option<u64>> {
        if self.takes(piece) { self.number().map(Some) } else { Some(None) }
    }

    /// Any value.
    #[inline]
    fn value(&mut self) -> Option<JsonText<'a>> {
        let start = self.at;
        let rest = &self.json.as_bytes()[start..];
        let len = match rest.first()? {
            b'"' => {
                self.at += 1;
                match self.text() {
                    Some(Text(text)) => text.len() + 2,
                    None => 0,
                }
            }
            b'-' | b'0'..=b'9' => {
                let len = rest.iter().take_while(|byte| !matches!(byte, b',' | b'}')).count();
                if is_number(&rest[..len]) { len } else { 0 }
            }
            b't' if rest.starts_with(b"true") => 4,
            b'f' if rest.starts_with(b"false") => 5,
            _ => 0,
        };
        self.at = start;
        if len == 0 { self.any() } else { self.skip(len) }
    }

    /// The value after this piece, if that follows.
    #[inline(always)]
    fn member<T: Deserialize<'a>, const N: usize>(&mut self, piece: &[u8; N]) -> Option<Option<T>> {
        if self.takes(piece) { self.any().map(Some) } else { Some(None) }
    }

    /// A value that `serde_json` reads.
    #[cold]
    fn any<T: Deserialize<'a>>(&mut self) -> Option<T> {
        let mut values = serde_json::Deserializer::from_str(self.json.get(self.at..)?).into_iter();
        let value = values.next()?.ok()?;
        self.at += values.byte_offset();
        Some(value)
    }
}

/// Whether a text has characters that must be escaped in JSON.
#[inline]
fn has_controls(text: &[u8]) -> bool {
    text.iter().fold(false, |has, byte| has | (*byte < 0x20))
}

/// Whether this is a number of JSON without an exponent.
#[inline]
fn is_number(json: &[u8]) -> bool {
    let digits = json.strip_prefix(b"-").unwrap_or(json);
    let whole = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_whole = whole == 1 || whole > 1 && digits[0] != b'0';
    is_whole
        && match &digits[whole..] {
            [] => true,
            [b'.', fraction @ ..] => !fraction.is_empty() && fraction.iter().all(u8::is_ascii_digit),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_in_our_order_are_read_and_others_are_left() {
        let span = r#"{"time":"2026-11-20T12:15:00.000000001Z","observed_time":"2026-11-20T12:15:00.6Z","kind":"span","name":"a","span":{"trace_id":"6b0d2138000000007a4d456004a96fc9","span_id":"10cfdc92fe11be4d","parent_span_id":"10cfdc92fe11be4e","kind":"server","end_time":"2026-11-20T12:15:00.7Z","duration_ns":11532109,"status":"error","status_message":"a\nb","dropped":{"links":1},"links":[{"trace_id":"6b0d2138000000007a4d456004a96fc9","span_id":"10cfdc92fe11be4d"}],"events":[{"name":"e"}]},"attributes":{"a":1,"b":-1.5,"c":"d","e":[1,{"f":null}],"g":"h\"","i":true,"j":1e9},"resource":{"k":"l"},"origin":{"protocol":"datadog","version":"1","listener":"l","peer":"p","connection":1,"sequence":0,"offset":0,"length":14}}"#;
        let log = r#"{"time":null,"observed_time":"2026-11-20T12:15:00.6Z","kind":"log","name":"x","severity":"INFO","severity_number":10,"trace_id":"6b0d2138000000007a4d456004a96fc9","span_id":"10cfdc92fe11be4d","body":null,"origin":{"protocol":"datadog","listener":"l","connection":1,"offset":0,"length":0}}"#;
        let metric = r#"{"time":null,"kind":"metric","name":"x","metric":{"type":"gauge","value":1},"source":"s","position":[1,2,3],"delay_ns":-4}"#;
        let sample = r#"{"time":null,"observed_time":"2026-11-20T12:15:00.6Z","kind":"sample","name":"x","sample":{"type":"cpu","value":1,"frames":[]},"origin":{"protocol":"datadog","listener":"l","connection":1,"offset":0,"length":0}}"#;
        let loss = r#"{"time":null,"observed_time":"2026-11-20T12:15:00.6Z","kind":"loss","name":"x","loss":{"reason":"shed","bytes":1},"origin":{"protocol":"datadog","listener":"l","connection":1,"offset":0,"length":0}}"#;
        let mut out = Rebuilder::default();
        for json in [span, log, metric, sample, loss] {
            assert!(line(json, &mut out).is_some(), "{json}");
            assert!(line(&format!("{json}\n"), &mut out).is_some());
            for other in [format!("{json} {{"), json.replacen("{", "{ ", 1), json.replacen("\"x\"", "\"\u{1}\"", 1)] {
                assert!(other == json || line(&other, &mut out).is_none(), "{other}");
            }
        }
        let span = line(span, &mut out).and_then(|line| Some((line.attributes.members.len(), line.span?.events.len())));
        assert_eq!(span, Some((7, 1)));
    }

    #[test]
    fn a_number_is_one_of_json() {
        for json in ["0", "-0", "10", "0.5", "-12.25"] {
            assert!(is_number(json.as_bytes()), "{json}");
        }
        for json in ["", "-", "01", "1.", ".5", "+1", "1e5", "0x1", "1.5.5", "- 1", "inf"] {
            assert!(!is_number(json.as_bytes()), "{json}");
        }
    }
}
