//! Capture files: what one connection received, with its times. The format is documented in `docs/captures.md`.
//!
//! Written by `transport/capture.rs`; read by `tributary decode` and `tributary replay`. No socket, task or clock here.

use std::io::{self, Read};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use tributary_event::UnixNanos;
use tributary_protocol::{End, Protocol};

/// What every capture file begins with; the number is the version of the format.
pub const MAGIC: &[u8] = b"tributary capture 1\n";
/// The longest content of a record. Longer pieces become several records.
pub const MAX_CONTENT_BYTES: usize = 1 << 20;
/// The longest second line, which describes the connection.
const MAX_HEAD_BYTES: usize = 4096;
/// The size of a record's kind, time and length.
const RECORD_HEAD_BYTES: usize = 1 + 8 + 4;

const BYTES: u8 = b'd';
const MISSING: u8 = b'm';
const FULL: u8 = b'f';
const END: u8 = b'e';

/// Every end, and its name in a file.
const ENDS: [(End, &str); 6] = [
    (End::Closed, "closed"),
    (End::Reset, "reset"),
    (End::TimedOut, "timed_out"),
    (End::TooLarge, "too_large"),
    (End::NoMemory, "no_memory"),
    (End::Stopped, "stopped"),
];

/// The connection that was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureHead {
    /// Its protocol.
    pub protocol: Protocol,
    /// The operator's name for the listener.
    pub listener: String,
    /// The peer's address.
    pub peer: String,
    /// Its number in the daemon that recorded it.
    pub connection: u64,
    /// When it was opened.
    pub opened: UnixNanos,
}

/// Something that happened on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureRecord {
    /// Time since the connection was opened.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What happened on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// These bytes were received.
    Bytes(Vec<u8>),
    /// This number of bytes was received before this moment and is not in the file.
    Missing(u64),
    /// The record ends here: the file would be larger than `capture.max_bytes`.
    Full,
    /// The connection ended.
    End(End),
}

impl CaptureHead {
    /// The two lines that a file begins with.
    pub fn to_bytes(&self) -> Vec<u8> {
        let opened = Timestamp::from_nanosecond(i128::from(self.opened.0)).unwrap_or_default();
        let line = json!({
            "protocol": self.protocol.as_str(),
            "listener": self.listener,
            "peer": self.peer,
            "connection": self.connection,
            "opened": opened.to_string(),
        });
        [MAGIC, line.to_string().as_bytes(), b"\n"].concat()
    }

    fn from_line(line: &[u8]) -> Option<CaptureHead> {
        let line: Value = serde_json::from_slice(line).ok()?;
        let text = |key: &str| line.get(key)?.as_str();
        let opened: Timestamp = text("opened")?.parse().ok()?;
        Some(CaptureHead {
            protocol: Protocol::by_name(text("protocol")?)?,
            listener: text("listener")?.to_owned(),
            peer: text("peer")?.to_owned(),
            connection: line.get("connection")?.as_u64()?,
            opened: UnixNanos(u64::try_from(opened.as_nanosecond()).ok()?),
        })
    }
}

/// Writes received bytes as one record, or as several if they are longer than [`MAX_CONTENT_BYTES`].
pub fn put_bytes(out: &mut Vec<u8>, at: Duration, bytes: &[u8]) {
    bytes.chunks(MAX_CONTENT_BYTES).for_each(|piece| put_record(out, BYTES, at, piece));
}

/// Writes the record of a number of missing bytes.
pub fn put_missing(out: &mut Vec<u8>, at: Duration, bytes: u64) {
    put_record(out, MISSING, at, &bytes.to_be_bytes());
}

/// Writes the record after which nothing is recorded.
pub fn put_full(out: &mut Vec<u8>, at: Duration) {
    put_record(out, FULL, at, b"capture.max_bytes");
}

/// Writes the last record.
pub fn put_end(out: &mut Vec<u8>, at: Duration, end: End) {
    let name = ENDS.iter().find(|(known, _)| *known == end).map_or("", |(_, name)| name);
    put_record(out, END, at, name.as_bytes());
}

fn put_record(out: &mut Vec<u8>, kind: u8, at: Duration, content: &[u8]) {
    out.push(kind);
    out.extend_from_slice(&u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).to_be_bytes());
    // Callers pass at most MAX_CONTENT_BYTES.
    out.extend_from_slice(&(content.len() as u32).to_be_bytes());
    out.extend_from_slice(content);
}

/// A capture file being read.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    head: CaptureHead,
    /// Bytes read so far.
    offset: u64,
    torn: u64,
}

impl<R: Read> Reader<R> {
    /// Reads what follows [`MAGIC`].
    ///
    /// # Errors
    /// Those of the input, or the second line does not describe a connection.
    pub fn new(mut input: R) -> io::Result<Self> {
        let mut line = Vec::new();
        let mut byte = [0];
        while read_up_to(&mut input, &mut byte)? == 1 && byte != *b"\n" && line.len() < MAX_HEAD_BYTES {
            line.push(byte[0]);
        }
        let offset = (MAGIC.len() + line.len() + 1) as u64;
        let head = CaptureHead::from_line(&line)
            .ok_or_else(|| damaged("its second line does not describe a connection, as those of captures do"))?;
        Ok(Reader { input, head, offset, torn: 0 })
    }

    /// The connection.
    pub fn head(&self) -> &CaptureHead {
        &self.head
    }

    /// Reads the first bytes that were received: at least 4 KiB, or all of them.
    ///
    /// # Errors
    /// As for [`Reader::record`].
    pub fn start(&mut self) -> io::Result<Vec<u8>> {
        const ENOUGH: usize = 4096;
        let mut start = Vec::new();
        while start.len() < ENOUGH
            && let Some(record) = self.record()?
        {
            if let What::Bytes(bytes) = record.what {
                start.extend_from_slice(&bytes);
            }
        }
        Ok(start)
    }

    /// The next record; `None`: there is no further complete one.
    ///
    /// # Errors
    /// Those of the input, or the bytes are not a record; the message contains the offset.
    pub fn record(&mut self) -> io::Result<Option<CaptureRecord>> {
        loop {
            let mut head = [0; RECORD_HEAD_BYTES];
            let read = read_up_to(&mut self.input, &mut head)?;
            if read < head.len() {
                self.torn = read as u64;
                return Ok(None);
            }
            let [kind, rest @ ..] = head;
            let (at, length) = rest.split_at(8);
            let at = Duration::from_nanos(at.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)));
            let length = length.iter().fold(0, |number: usize, byte| number << 8 | usize::from(*byte));
            if length > MAX_CONTENT_BYTES {
                let place = self.offset;
                return Err(damaged(&format!(
                    "no record at offset {place}: {length} bytes, at most {MAX_CONTENT_BYTES}"
                )));
            }
            let mut content = vec![0; length];
            let read = read_up_to(&mut self.input, &mut content)?;
            if read < length {
                self.torn = (RECORD_HEAD_BYTES + read) as u64;
                return Ok(None);
            }
            let what = what(kind, content)
                .map_err(|content| damaged(&format!("no record at offset {}: {content:.40?}", self.offset)))?;
            self.offset += (RECORD_HEAD_BYTES + length) as u64;
            // Further fields are ignored: later versions may add some.
            if let Some(what) = what {
                return Ok(Some(CaptureRecord { at, what }));
            }
        }
    }

    /// Bytes at the end of the file that belong to an incomplete record.
    pub fn torn(&self) -> u64 {
        self.torn
    }
}

/// `None`: an unknown kind.
fn what(kind: u8, content: Vec<u8>) -> Result<Option<What>, Vec<u8>> {
    let what = match kind {
        BYTES => What::Bytes(content),
        MISSING => What::Missing(u64::from_be_bytes(content.as_slice().try_into().map_err(|_| content)?)),
        FULL => What::Full,
        END => match ENDS.iter().find(|(_, name)| name.as_bytes() == content) {
            Some((end, _)) => What::End(*end),
            None => return Err(content),
        },
        _ => return Ok(None),
    };
    Ok(Some(what))
}

/// Fills `buffer`, or the part of it for which there are bytes.
fn read_up_to(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the capture is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> CaptureHead {
        CaptureHead {
            protocol: Protocol::Datadog,
            listener: "spans".into(),
            peer: "192.0.2.1:9\"\n".into(),
            connection: 7,
            opened: UnixNanos(1_795_176_900_000_000_001),
        }
    }

    /// A file with one record of each kind.
    fn file() -> Vec<u8> {
        let mut file = head().to_bytes();
        put_bytes(&mut file, Duration::from_nanos(1), b"abc");
        put_missing(&mut file, Duration::from_nanos(2), 300);
        put_full(&mut file, Duration::from_secs(3));
        put_end(&mut file, Duration::from_secs(4), End::TooLarge);
        file
    }

    fn records(file: &[u8]) -> io::Result<(Vec<What>, u64)> {
        let mut reader = Reader::new(&file[MAGIC.len()..])?;
        assert_eq!(reader.head(), &head());
        let mut records = Vec::new();
        while let Some(record) = reader.record()? {
            records.push(record.what);
        }
        Ok((records, reader.torn()))
    }

    #[test]
    fn the_format_is_as_documented() {
        let text = "tributary capture 1\n{\"connection\":7,\"listener\":\"spans\",\"opened\":\"2026-11-20T12:15:00.000000001Z\",\
                    \"peer\":\"192.0.2.1:9\\\"\\n\",\"protocol\":\"datadog\"}\n";
        let file = file();
        let line = |text: &[u8]| text.splitn(3, |byte| *byte == b'\n').nth(1).map(<[u8]>::to_vec).unwrap();
        let json = |text: &[u8]| serde_json::from_slice::<Value>(&line(text)).unwrap();
        assert_eq!(json(&file), json(text.as_bytes()));
        let records = &file[head().to_bytes().len()..];
        assert_eq!(records[..16], *b"d\0\0\0\0\0\0\0\x01\0\0\0\x03abc");
        assert_eq!(records[16..37], *b"m\0\0\0\0\0\0\0\x02\0\0\0\x08\0\0\0\0\0\0\x01\x2c");
        assert!(records.ends_with(b"\0\0\0\x09too_large"));
    }

    #[test]
    fn wherever_a_file_is_torn_what_is_whole_is_read() {
        let all = [What::Bytes(b"abc".into()), What::Missing(300), What::Full, What::End(End::TooLarge)];
        let file = file();
        let head = head().to_bytes().len();
        let mut begins = head;
        for end in head..=file.len() {
            let (found, torn) = records(&file[..end]).unwrap();
            assert_eq!(found, all[..found.len()]);
            if torn == 0 {
                begins = end;
            }
            assert_eq!(torn, (end - begins) as u64);
        }
        assert_eq!(begins, file.len());
        assert!((MAGIC.len()..head - 1).all(|end| Reader::new(&file[MAGIC.len()..end]).is_err()));
    }

    #[test]
    fn what_is_no_record_is_said_with_its_place_and_unknown_kinds_are_passed_over() {
        let mut other = head().to_bytes();
        put_record(&mut other, b'?', Duration::ZERO, b"whatever");
        put_end(&mut other, Duration::ZERO, End::Closed);
        assert_eq!(records(&other).unwrap(), (vec![What::End(End::Closed)], 0));
        for bad in [
            &b"d\0\0\0\0\0\0\0\x01\xff\xff\xff\xff"[..],
            b"e\0\0\0\0\0\0\0\x01\0\0\0\x01x",
            b"m\0\0\0\0\0\0\0\x01\0\0\0\0",
        ] {
            let file = [&head().to_bytes()[..], bad].concat();
            let error = records(&file).unwrap_err().to_string();
            assert!(error.contains(&format!("offset {}", head().to_bytes().len())), "{error}");
        }
    }

    #[test]
    fn long_pieces_become_several_records() {
        let mut file = head().to_bytes();
        let long = vec![7; 2 * MAX_CONTENT_BYTES + 1];
        put_bytes(&mut file, Duration::ZERO, &long);
        let (found, _) = records(&file).unwrap();
        assert_eq!(found.len(), 3);
        let joined: Vec<u8> =
            found.into_iter().flat_map(|what| if let What::Bytes(bytes) = what { bytes } else { vec![] }).collect();
        assert_eq!(joined, long);
    }
}
