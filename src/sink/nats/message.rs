//! Messages as the store keeps them: a head with the subject, and the body as it is sent.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TNat` |
//! | 4 | 1 | the version: 1, or 2 with an id |
//! | 5 | 2 | length of the subject, big-endian |
//! | 7 | | the subject |
//! | | 1 | version 2: length of the id |
//! | | | version 2: the id |
//! | | | the body, in the compression that its first bytes identify |

use std::io;
use std::ops::Range;

use bytes::Bytes;

use tributary_sink_forward::{Compression, EncodedRequest, divide_lines};

const MAGIC: [u8; 4] = *b"TNat";
/// Magic, version, length of the subject.
const HEAD_BYTES: usize = MAGIC.len() + 3;

/// What a stored message consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NatsMessage {
    pub(super) subject: String,
    /// The id of its content. `None`: it has that of the request.
    pub(super) id: Option<String>,
    pub(super) body: Bytes,
}

impl NatsMessage {
    /// Reads a stored message. `None`: it is none of this version.
    pub(super) fn of(stored: &Bytes) -> Option<NatsMessage> {
        let head = stored.get(..HEAD_BYTES).filter(|head| head.starts_with(&MAGIC))?;
        let end = HEAD_BYTES + usize::from(u16::from_be_bytes([head[5], head[6]]));
        let text = |range: Range<usize>| Some(str::from_utf8(stored.get(range)?).ok()?.to_owned());
        let subject = text(HEAD_BYTES..end)?;
        match head[4] {
            1 => Some(NatsMessage { subject, id: None, body: stored.slice(end..) }),
            2 => {
                let body = end + 1 + usize::from(*stored.get(end)?);
                Some(NatsMessage { subject, id: Some(text(end + 1..body)?), body: stored.slice(body..) })
            }
            _ => None,
        }
    }

    /// How the body is compressed.
    pub(super) fn compression(&self) -> Compression {
        Compression::of(&self.body)
    }
}

/// The JSON lines of a stored message. `None`: it is none of this version.
///
/// # Errors
/// The compression is damaged, or the lines are longer than 256 MiB.
pub fn lines(stored: &Bytes) -> Option<io::Result<Vec<u8>>> {
    let message = NatsMessage::of(stored)?;
    Some(message.compression().decompress(&message.body))
}

/// JSON lines as a stored message, with the id of their content if they have one. They are compressed when they have more than
/// `compress_above` bytes, and shorter when they are.
pub(super) fn store(subject: &str, id: Option<&str>, lines: &[u8], compress_above: usize) -> Bytes {
    let head = head(subject, id);
    if lines.len() > compress_above
        && let Ok(stored) = Compression::Zstd.compress_to(lines, head.clone())
        && stored.len() < head.len() + lines.len()
    {
        return stored.into();
    }
    [&head, lines].concat().into()
}

fn head(subject: &str, id: Option<&str>) -> Vec<u8> {
    let version = if id.is_some() { 2 } else { 1 };
    // Templates, names of listeners and ids are short.
    let mut head = [&MAGIC[..], &[version], &(subject.len() as u16).to_be_bytes(), subject.as_bytes()].concat();
    if let Some(id) = id {
        head.push(id.len() as u8);
        head.extend_from_slice(id.as_bytes());
    }
    head
}

/// The length of the body of a stored message.
pub(super) fn body_bytes(subject: &str, id: Option<&str>, stored: &Bytes) -> usize {
    stored.len() - HEAD_BYTES - subject.len() - id.map_or(0, |id| 1 + id.len())
}

/// Divides a stored message between two of its lines. `None`: it has one line only.
///
/// The id of a part contains the number of its lines: parts of equal messages that were divided differently have different ids.
pub(super) fn divide(request: &EncodedRequest, compress_above: usize) -> Option<[EncodedRequest; 2]> {
    let message = NatsMessage::of(&request.payload)?;
    let lines = message.compression().decompress(&message.body).ok()?;
    divide_lines(request, &lines, |number, part| {
        let count = memchr::memchr_iter(b'\n', part).count();
        let id = message.id.as_ref().map(|id| format!("{id}.{number}-{count}"));
        Some(store(&message.subject, id.as_deref(), part, compress_above))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_message_is_read_back_whether_it_is_compressed_or_not() {
        let text = "{\"name\":\"x\"}\n".repeat(100);
        for compress_above in [0, 1 << 20] {
            for id in [None, Some("an id")] {
                let stored = store("a.b", id, text.as_bytes(), compress_above);
                let message = NatsMessage::of(&stored).unwrap();
                assert_eq!((message.subject.as_str(), message.id.as_deref()), ("a.b", id));
                assert_eq!(message.body.len(), body_bytes("a.b", id, &stored));
                assert_eq!(message.compression() == Compression::Zstd, compress_above == 0);
                assert_eq!(lines(&stored).unwrap().unwrap(), text.as_bytes());
            }
        }
        let short = store("a.b", None, b"{}\n", 0);
        assert_eq!(NatsMessage::of(&short).unwrap().compression(), Compression::None, "it would be longer");
        for other in [
            &b""[..],
            b"{}\n",
            b"TNat\x01",
            b"TNat\x01\0\x05abc",
            b"TNat\x02\0\x01a",
            b"TNat\x02\0\x01a\x02b",
            b"TNat\x03\0\x01a\0",
        ] {
            assert_eq!(NatsMessage::of(&Bytes::copy_from_slice(other)), None);
        }
    }

    #[test]
    fn a_message_is_divided_with_its_subject_and_every_line_once() {
        let text: String = (0..9).map(|number| format!("{{\"number\":{number}}}\n")).collect();
        let stored = store("a.b", Some("content"), text.as_bytes(), 0);
        let [first, second] = divide(&EncodedRequest { id: "7".into(), events: 9, payload: stored }, 0).unwrap();
        assert_eq!((first.id.as_str(), second.id.as_str(), first.events + second.events), ("7.1", "7.2", 9));
        let both = [&first, &second].map(|part| lines(&part.payload).unwrap().unwrap()).concat();
        assert_eq!(both, text.as_bytes());
        assert_eq!(NatsMessage::of(&second.payload).unwrap().subject, "a.b");
        let ids = [&first, &second].map(|part| NatsMessage::of(&part.payload).unwrap().id.unwrap());
        assert_eq!(ids, ["content.1-4", "content.2-5"]);
    }
}
