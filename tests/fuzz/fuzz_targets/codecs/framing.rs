//! Framing: ZMTP, HTTP heads, PROXY headers, and capture files. Each gives the same result for any cuts of its bytes, and no
//! length exceeds the input.

use std::time::Duration;

use bytes::BytesMut;
use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader};
use tributary::capture::{self, CaptureHead, CaptureRecord, MAGIC, MAX_CONTENT_BYTES, Reader, What};
use tributary::codec::proxy;
use tributary::codec::zmtp::{GREETING_BYTES, Peer, Socket, ZmtpElement, ZmtpLimits};
use tributary::decode::whole_request;
use tributary::event::UnixNanos;
use tributary::protocol::{End, Protocol};

pub fn property(input: &[u8]) {
    let Some((&[which, number], bytes)) = input.split_first_chunk() else { return };
    match which % 5 {
        0 => zmtp(bytes, number),
        1 => request(bytes, number),
        2 => capture_file(bytes),
        3 => recorded(bytes, number),
        _ => proxied(bytes, number),
    }
}

/// The steps of a stream do not depend on how much of it has arrived.
fn zmtp(bytes: &[u8], setting: u8) {
    let ours = if setting & 1 == 0 { Socket::Sub } else { Socket::Req };
    let (max_message_bytes, max_frames) = [(1 << 30, 16), (100, 2), (0, 1)][usize::from(setting >> 1) % 3];
    let limits = ZmtpLimits { max_message_bytes, message_key: "key", max_frames, max_command_bytes: 200 };
    let run = |is_bytewise: bool| {
        let mut peer = Peer::new(ours, limits);
        let (mut at, mut here) = (0, if is_bytewise { 0 } else { bytes.len() });
        let (mut steps, mut reply) = (Vec::new(), BytesMut::new());
        loop {
            let before = reply.len();
            let step = peer.next(&bytes[at..here], &mut reply);
            // READY, with the greeting in front if it was not sent before.
            assert!(reply.len() - before <= GREETING_BYTES + 27, "a long answer");
            match step {
                Ok(ZmtpElement::More) if here < bytes.len() => here += 1,
                Ok(ZmtpElement::More) => return (steps, None, reply),
                Err(fault) => {
                    assert!(fault.offset <= here - at, "{fault:?}");
                    return (steps, Some((at, fault)), reply);
                }
                Ok(step) => {
                    steps.push((at, step));
                    at += match step {
                        ZmtpElement::Taken { bytes } => bytes,
                        ZmtpElement::Frame { head, length, .. } => {
                            assert!(length <= max_message_bytes);
                            // The body may be incomplete.
                            head + usize::try_from(length).unwrap_or(usize::MAX).min(bytes.len() - at - head)
                        }
                        ZmtpElement::More => 0,
                    };
                    here = here.max(at);
                }
            }
        }
    };
    assert_eq!(run(false), run(true));
}

/// A request is complete exactly at its last byte.
fn request(bytes: &[u8], cut: u8) {
    match whole_request(bytes, 1) {
        Some((request, size)) => {
            assert!(size <= bytes.len() && request.body.len() <= size);
            let shorter = size * usize::from(cut) / 256;
            assert!(whole_request(&bytes[..shorter], 1).is_none(), "whole with {shorter} of {size} bytes");
            let (again, end) = whole_request(&bytes[..size], 1).expect("it is all there");
            assert_eq!((again.head, again.body, end), (request.head, request.body, size));
        }
        None => {
            let shorter = bytes.len() * usize::from(cut) / 256;
            assert!(whole_request(&bytes[..shorter], 1).is_none(), "whole with {shorter} bytes, and not with more");
        }
    }
}

/// A PROXY header: the same result as with another library, and while it is incomplete.
fn proxied(bytes: &[u8], how: u8) {
    let begin = [&b""[..], b"PROXY TCP", b"\r\n\r\n\0\r\nQUIT\n\x21"][usize::from(how) % 3];
    let input = [begin, bytes].concat();
    let here = input.len() * usize::from(how) / 256;
    let whole = proxy::read(&input);
    match (proxy::read(&input[..here]), whole) {
        (Ok(None), Ok(Some(header))) => assert!(here < header.length && header.length <= input.len()),
        (Ok(None), Ok(None)) => assert!(input.len() < proxy::MAX_BYTES),
        (Ok(None), Err(error)) => assert!(error.offset <= input.len()),
        (part, whole) => assert_eq!(part, whole, "with {here} of {} bytes", input.len()),
    }
    if let Ok(Some(ours)) = whole {
        match ProxyHeader::parse(&input, ParseConfig::default()) {
            Ok((theirs, length)) => {
                let is_stream = |address: &&ProxiedAddress| address.protocol == proxy_header::Protocol::Stream;
                let source = theirs.proxied_address().filter(is_stream).map(|address| address.source);
                assert_eq!((ours.length, ours.source), (length, source));
            }
            // The other library rejects more address families than the specification.
            Err(_) => assert_eq!(ours.source, None),
        }
    }
}

/// Any bytes as the rest of a capture file: the records are the same after writing and reading them again.
fn capture_file(bytes: &[u8]) {
    drop(Reader::new(bytes));
    let head = head("fuzz", 1).to_bytes();
    let read = |bytes: &[u8]| {
        let file = [&head[MAGIC.len()..], bytes].concat();
        let mut reader = Reader::new(&file[..]).expect("our own head");
        let mut records = Vec::new();
        while let Ok(Some(record)) = reader.record() {
            // An empty piece is not written.
            if record.what != What::Bytes(Vec::new()) {
                records.push(record);
            }
        }
        assert!(reader.torn() <= bytes.len() as u64);
        records
    };
    let records = read(bytes);
    let mut written = Vec::new();
    records.iter().for_each(|record| write(&mut written, record));
    assert_eq!(read(&written), records);
}

/// Records are read as they were written, wherever the file is cut.
fn recorded(bytes: &[u8], cut: u8) {
    let name = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]);
    let head = head(&name, bytes.len() as u64);
    let mut file = head.to_bytes();
    let start = file.len();
    let (mut records, mut ends) = (Vec::new(), vec![start]);
    for piece in bytes.chunks(1 + usize::from(cut)) {
        let at = Duration::from_nanos(u64::from(piece[0]) << (piece.len() % 50));
        let what = match piece[0] % 8 {
            0 => What::Missing(piece.len() as u64),
            1 => What::Full,
            2 => What::End([End::Closed, End::Reset, End::TimedOut, End::TooLarge, End::Stopped][piece.len() % 5]),
            _ => What::Bytes(piece.to_vec()),
        };
        let record = CaptureRecord { at, what };
        write(&mut file, &record);
        records.push(record);
        ends.push(file.len());
    }
    let torn = start + (file.len() - start) * usize::from(cut) / 255;
    let whole = ends.iter().filter(|end| **end <= torn).count() - 1;
    let mut reader = Reader::new(&file[MAGIC.len()..torn]).expect("a head");
    assert_eq!(*reader.head(), head);
    for record in &records[..whole] {
        assert_eq!(reader.record().expect("a record").as_ref(), Some(record));
    }
    assert_eq!(reader.record().expect("no record"), None);
    assert_eq!(reader.torn(), (torn - ends[whole]) as u64);
}

fn head(listener: &str, connection: u64) -> CaptureHead {
    let opened = UnixNanos(1_795_176_900_000_000_000 + connection);
    CaptureHead {
        protocol: Protocol::Zico,
        listener: listener.to_owned(),
        peer: "192.0.2.1:9".into(),
        connection,
        opened,
    }
}

fn write(file: &mut Vec<u8>, record: &CaptureRecord) {
    match &record.what {
        What::Bytes(bytes) => {
            assert!(bytes.len() <= MAX_CONTENT_BYTES);
            capture::put_bytes(file, record.at, bytes);
        }
        What::Missing(bytes) => capture::put_missing(file, record.at, *bytes),
        What::Full => capture::put_full(file, record.at),
        What::End(end) => capture::put_end(file, record.at, *end),
    }
}
