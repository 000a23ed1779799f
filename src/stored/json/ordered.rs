//! Lines whose members are in the order in which the JSON encoder writes them, without spaces. They are read in one pass; what few lines
//! have is left to `serde_json`, and so is every other line.

use std::borrow::Cow;

use serde::Deserialize;

use super::line::{JsonText, Members, Origin, StoredLine, StoredSpan, Text};
use super::time::TIME_LEN;
use crate::Rebuilder;
use tributary_event::is_plain;

/// Fills an empty line from one in our own order. `None`: it is another one, or no JSON, and a part is filled.
pub(super) fn line<'a>(json: &'a str, out: &mut Rebuilder, line: &mut StoredLine<'a>) -> Option<()> {
    let mut cursor = LineCursor { json, at: 0 };
    if cursor.takes(b"{\"time\":\"") {
        line.time = Some(cursor.text_of::<TIME_LEN>()?);
    } else {
        cursor.take(b"{\"time\":null")?;
    }
    if cursor.takes(b",\"observed_time\":\"") {
        line.observed_time = Some(cursor.text_of::<TIME_LEN>()?);
    }
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
        span(&mut cursor, line.span.insert(StoredSpan::default()))?;
    }
    line.metric = cursor.member(b",\"metric\":")?;
    if cursor.takes(b",\"sample\":") {
        line.sample = Some(cursor.any()?);
    }
    if cursor.takes(b",\"loss\":") {
        line.loss = Some(cursor.any()?);
    }
    if cursor.takes(b",\"attributes\":{\"") {
        members(&mut cursor, &mut line.attributes)?;
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
        origin(&mut cursor, out, line)?;
    }
    cursor.take(b"}")?;
    matches!(&json.as_bytes()[cursor.at..], b"" | b"\n").then_some(())
}

fn span<'a>(cursor: &mut LineCursor<'a>, span: &mut StoredSpan<'a>) -> Option<()> {
    span.trace_id = cursor.text_of::<32>()?;
    cursor.take(b",\"span_id\":\"")?;
    span.span_id = cursor.text_of::<16>()?;
    if cursor.takes(b",\"parent_span_id\":\"") {
        span.parent_span_id = Some(cursor.text_of::<16>()?);
    }
    span.kind = cursor.text_after(b",\"kind\":\"")?;
    if cursor.takes(b",\"end_time\":\"") {
        span.end_time = Some(cursor.text_of::<TIME_LEN>()?);
    }
    span.duration_ns = cursor.number_after(b",\"duration_ns\":")?;
    cursor.take(b",\"status\":\"")?;
    span.status = cursor.text()?;
    if cursor.takes(b"}") {
        return Some(());
    }
    span.status_message = cursor.member(b",\"status_message\":")?;
    span.trace_state = cursor.member(b",\"trace_state\":")?;
    span.flags = cursor.member(b",\"flags\":")?.unwrap_or_default();
    span.dropped = cursor.member(b",\"dropped\":")?.unwrap_or_default();
    span.links = cursor.member(b",\"links\":")?.unwrap_or_default();
    span.events = cursor.member(b",\"events\":")?.unwrap_or_default();
    cursor.take(b"}")
}

/// The members of an object after its first quote.
fn members<'a>(cursor: &mut LineCursor<'a>, members: &mut Members<'a>) -> Option<()> {
    members.reserve();
    loop {
        let Text(key) = cursor.text()?;
        cursor.take(b":")?;
        members.set(key, cursor.value()?);
        if cursor.takes(b"}") {
            return Some(());
        }
        cursor.take(b",\"")?;
    }
}

fn origin<'a>(cursor: &mut LineCursor<'a>, out: &mut Rebuilder, line: &mut StoredLine<'a>) -> Option<()> {
    cursor.take(b",\"origin\":")?;
    let start = cursor.at;
    if let Some(len) = out.stored_origin_len(&cursor.json.as_bytes()[start..]) {
        cursor.skip(len)?;
        line.has_known_origin = true;
        let sequence = cursor.number_after(b"\"sequence\":")?;
        if sequence.is_some() {
            cursor.take(b",")?;
        }
        cursor.take(b"\"offset\":")?;
        let offset = cursor.number()?;
        cursor.take(b",\"length\":")?;
        line.position = Some((sequence, offset, cursor.number()?));
        return cursor.take(b"}");
    }
    cursor.take(b"{\"protocol\":\"")?;
    let protocol = cursor.text()?;
    let version = cursor.text_after(b",\"version\":\"")?;
    cursor.take(b",\"listener\":\"")?;
    let listener = cursor.text()?;
    let peer = cursor.text_after(b",\"peer\":\"")?.unwrap_or_default();
    cursor.take(b",\"connection\":")?;
    let connection = cursor.number()?;
    // With the comma, so that it is no longer number in another line.
    line.origin_json = cursor.json.get(start..=cursor.at).filter(|json| json.ends_with(','));
    let sequence = cursor.number_after(b",\"sequence\":")?;
    let offset = cursor.number_after(b",\"offset\":")?;
    let length = cursor.number_after(b",\"length\":")?;
    line.origin = Some(Origin { protocol, version, listener, peer, connection, sequence, offset, length });
    cursor.take(b"}")
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
        Some(JsonText::Json(skipped))
    }

    /// A text after its first quote. `None`: it has escapes, or is none.
    #[inline]
    fn plain_text(&mut self) -> Option<&'a str> {
        let len = memchr::memchr(b'"', &self.json.as_bytes()[self.at..])?;
        let text = self.json.get(self.at..self.at + len)?;
        self.at += len + 1;
        let needs_no_escape = is_plain(text) || text.bytes().all(|byte| byte >= 0x20 && byte != b'\\');
        needs_no_escape.then_some(text)
    }

    #[inline]
    fn text(&mut self) -> Option<Text<'a>> {
        self.plain_text().map(|text| Text(Cow::Borrowed(text)))
    }

    /// The same of one that mostly has this length.
    #[inline]
    fn text_of<const LEN: usize>(&mut self) -> Option<Text<'a>> {
        match self.json.get(self.at..self.at + LEN) {
            Some(text) if self.json.as_bytes().get(self.at + LEN) == Some(&b'"') && is_plain(text) => {
                self.at += LEN + 1;
                Some(Text(Cow::Borrowed(text)))
            }
            _ => self.text(),
        }
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
                if let Some(text) = self.plain_text() {
                    return Some(JsonText::Text(text));
                }
                self.at = start;
                0
            }
            b'-' | b'0'..=b'9' => number_len(rest),
            b't' if rest.starts_with(b"true") => 4,
            b'f' if rest.starts_with(b"false") => 5,
            _ => 0,
        };
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

/// The length of a number of JSON without an exponent, before a comma or the end of an object; 0: it is none.
#[inline]
fn number_len(json: &[u8]) -> usize {
    let digits = |from: usize| json[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let sign = usize::from(json.first() == Some(&b'-'));
    let whole = digits(sign);
    let mut len = sign + whole;
    if whole == 0 || whole > 1 && json[sign] == b'0' {
        return 0;
    }
    if json.get(len) == Some(&b'.') {
        let fraction = digits(len + 1);
        if fraction == 0 {
            return 0;
        }
        len += 1 + fraction;
    }
    if matches!(json.get(len), Some(b',' | b'}')) { len } else { 0 }
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
        let mut is_read = |json: &str| line(json, &mut out, &mut StoredLine::default()).is_some();
        for json in [span, log, metric, sample, loss] {
            assert!(is_read(json), "{json}");
            assert!(is_read(&format!("{json}\n")));
            for other in [format!("{json} {{"), json.replacen("{", "{ ", 1), json.replacen("\"x\"", "\"\u{1}\"", 1)] {
                assert!(other == json || !is_read(&other), "{other}");
            }
        }
        let mut read = StoredLine::default();
        line(span, &mut out, &mut read).unwrap();
        assert_eq!((read.attributes.iter().count(), read.span.map(|span| span.events.len())), (7, Some(1)));
    }

    #[test]
    fn a_number_is_one_of_json() {
        for json in ["0", "-0", "10", "0.5", "-12.25"] {
            assert_eq!(number_len(format!("{json},").as_bytes()), json.len(), "{json}");
            assert_eq!(number_len(format!("{json}}}").as_bytes()), json.len(), "{json}");
            assert_eq!(number_len(json.as_bytes()), 0, "{json}");
        }
        for json in ["", "-", "01", "1.", ".5", "+1", "1e5", "0x1", "1.5.5", "- 1", "inf", "1 "] {
            assert_eq!(number_len(format!("{json},").as_bytes()), 0, "{json}");
        }
    }

    #[test]
    fn a_text_ends_at_its_quote_wherever_that_stands() {
        for before in 0..20 {
            for after in 0..10 {
                for character in [" ", "~", "é", "😀", "\u{7f}", "\"", "\\", "\n", "\u{1f}", "\u{0}"] {
                    let text = format!("{}{character}{}", "x".repeat(before), "x".repeat(after));
                    let expected = match character {
                        "\"" => Some(&text[..before]),
                        _ if character < " " || character == "\\" => None,
                        _ => Some(&*text),
                    };
                    let json = format!("{text}\",");
                    let mut cursor = LineCursor { json: &json, at: 0 };
                    assert_eq!(cursor.plain_text(), expected, "{text:?}");
                    assert!(expected.is_none_or(|text| cursor.at == text.len() + 1));
                    let mut cursor = LineCursor { json: &json, at: 0 };
                    assert_eq!(cursor.text_of::<12>().as_deref(), expected, "{text:?}");
                    let mut cursor = LineCursor { json: &text, at: 0 };
                    assert_eq!(cursor.plain_text(), expected.filter(|found| *found != text), "{text:?}");
                }
            }
        }
    }
}
