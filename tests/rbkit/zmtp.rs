//! ZMTP against what libzmq really sends: recorded streams of both sockets, and bytes of peers that mean harm.

use std::path::PathBuf;

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::Value;
use tributary::codec::zmtp::{self, Fault, Limits, Peer, Socket, Step};
use tributary::event::Reason;

const LIMITS: Limits =
    Limits { max_message_bytes: 1 << 20, message_key: "key", max_frames: 16, max_command_bytes: 4096 };
const PUB_READY: &[u8] = b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB";

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/rbkit/zmtp").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a stream came to: its frames with their offsets, and how it ended.
#[derive(Clone, PartialEq, Debug, Default)]
struct Heard {
    /// Offset, body, more, first.
    frames: Vec<(usize, Vec<u8>, bool, bool)>,
    /// Offset and size of the greeting and of each command.
    taken: Vec<(usize, usize)>,
    reply: Vec<u8>,
    /// With the offset in the stream.
    fault: Option<Fault>,
    is_ready: bool,
    rest: usize,
}

/// Hears a stream that arrives in pieces which end at `cuts`.
fn hear(socket: Socket, limits: Limits, stream: &[u8], cuts: &[usize]) -> Heard {
    let mut peer = Peer::new(socket, limits);
    let (mut heard, mut reply, mut at, mut body) = (Heard::default(), BytesMut::new(), 0, None);
    let ends = cuts.iter().copied().chain([stream.len()]);
    'stream: for end in ends {
        loop {
            if let Some((start, head, length, more, first)) = body {
                let from: usize = start + head;
                if end < from + length {
                    break;
                }
                heard.frames.push((start, stream[from..from + length].to_vec(), more, first));
                (at, body) = (from + length, None);
            }
            match peer.next(&stream[at..end], &mut reply) {
                Ok(Step::More) => break,
                Ok(Step::Taken { bytes }) => {
                    heard.taken.push((at, bytes));
                    at += bytes;
                }
                Ok(Step::Frame { head, length, more, first }) => {
                    body = Some((at, head, length as usize, more, first));
                }
                Err(fault) => {
                    heard.fault = Some(Fault { offset: at + fault.offset, ..fault });
                    break 'stream;
                }
            }
        }
    }
    Heard { reply: reply.to_vec(), is_ready: peer.is_ready(), rest: stream.len() - at, ..heard }
}

fn hear_whole(socket: Socket, stream: &[u8]) -> Heard {
    hear(socket, LIMITS, stream, &[])
}

fn greeting() -> Vec<u8> {
    data("hostile/minor-9.bin")[..64].to_vec()
}

/// After greeting and READY of a publisher.
fn then(bytes: &[u8]) -> Vec<u8> {
    [&greeting()[..], PUB_READY, bytes].concat()
}

fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn recorded_streams_are_the_frames_that_an_independent_reader_found() {
    for recording in ["libzmq-client-3.1", "minimal-client-3.0"] {
        let expected: Value = serde_json::from_slice(&data(&format!("{recording}/expected.json"))).unwrap();
        for (stream, socket) in [("pub-agent-to-client", Socket::Sub), ("rep-agent-to-client", Socket::Req)] {
            let heard = hear_whole(socket, &data(&format!("{recording}/{stream}.bin")));
            assert!(heard.is_ready && heard.fault.is_none() && heard.rest == 0, "{recording} {stream}");
            let rows = expected[stream].as_array().unwrap();
            let messages: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "message").collect();
            assert!(messages.len() >= 4 && messages.len() == heard.frames.len(), "{recording} {stream}");
            let mut first = true;
            for (row, (offset, body, more, is_first)) in messages.iter().zip(&heard.frames) {
                assert_eq!(row["offset"], *offset);
                assert_eq!(row["size"], body.len());
                assert_eq!(row["more"], *more);
                assert_eq!(row["sha256"], sha256(body));
                assert_eq!(*is_first, first);
                first = !more;
            }
            let others: Vec<&Value> = rows.iter().filter(|row| row["kind"] != "message").collect();
            assert_eq!(others.len(), heard.taken.len());
            assert!(others.iter().zip(&heard.taken).all(|(row, (offset, _))| row["offset"] == *offset));
        }
    }
}

#[test]
fn what_we_say_is_what_agents_have_answered() {
    let ours = |socket, then: &dyn Fn(&mut BytesMut)| {
        let mut peer = Peer::new(socket, LIMITS);
        let mut out = BytesMut::from(&peer.greeting()[..]);
        assert_eq!(peer.next(&greeting(), &mut out), Ok(Step::Taken { bytes: 64 }));
        assert!(!peer.is_ready());
        then(&mut out);
        out
    };
    let subscriber = ours(Socket::Sub, &|out| out.extend_from_slice(&zmtp::subscribe_all()));
    let requester = ours(Socket::Req, &|out| {
        for body in ["handshake", "start_memory_profile", "stop_memory_profile"] {
            assert_eq!(zmtp::request(body, out), Some(()));
        }
    });
    // The padding of the signature is the sender's own business.
    let same = |found: &[u8], recorded: &[u8]| {
        assert_eq!((found[0], &found[9..]), (recorded[0], &recorded[9..]));
    };
    same(&subscriber, &data("minimal-client-3.0/pub-client-to-agent.bin"));
    same(&requester, &data("minimal-client-3.0/rep-client-to-agent.bin"));
}

#[test]
fn a_request_is_never_empty_and_long_ones_take_the_long_form() {
    let mut out = BytesMut::new();
    assert_eq!(zmtp::request("", &mut out), None);
    assert!(out.is_empty());
    assert_eq!(zmtp::request(&"x".repeat(256), &mut out), Some(()));
    assert_eq!(out[..11], [1, 0, 2, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(out.len(), 11 + 256);
}

/// The outcomes are those of the recordings' manifest.
#[test]
fn hostile_peers_are_refused_where_they_are_wrong_and_odd_ones_are_understood() {
    let refused = [
        ("huge-frame-length", Reason::TooLarge, 92, "1099511627776"),
        ("not-zmtp", Reason::Malformed, 0, "0x48"),
        ("zmtp-2", Reason::Unsupported, 10, "zmtp.version: 1"),
        ("mechanism-plain", Reason::Unsupported, 12, "\"PLAIN\""),
        ("wrong-socket-type", Reason::Unsupported, 88, "\"PUSH\""),
        ("ready-without-socket-type", Reason::Malformed, 72, "Socket-Type"),
        ("ready-name-overrun", Reason::Malformed, 67, "takes 200 bytes, 5 are left"),
        ("error-command", Reason::Unsupported, 64, "\"not allowed\""),
        ("empty-command", Reason::Malformed, 93, "zmtp.command.name"),
    ];
    for (name, reason, offset, words) in refused {
        let heard = hear_whole(Socket::Sub, &data(&format!("hostile/{name}.bin")));
        let fault = heard.fault.unwrap_or_else(|| panic!("{name}: no fault"));
        assert_eq!((fault.reason, fault.offset), (reason, offset), "{name}: {fault}");
        assert!(fault.to_string().contains(words), "{name}: {fault}");
        assert!(heard.frames.is_empty(), "{name}");
    }
    let understood = [
        ("unknown-command", 1),
        ("multipart", 2),
        ("signature-padding", 1),
        ("minor-9", 1),
        ("ready-extra-properties", 1),
        ("long-form-short-body", 1),
    ];
    for (name, frames) in understood {
        let heard = hear_whole(Socket::Sub, &data(&format!("hostile/{name}.bin")));
        assert_eq!((heard.fault, heard.rest, heard.frames.len()), (None, 0, frames), "{name}");
        let (_, body, more, first) = &heard.frames[frames - 1];
        assert_eq!((body.len(), body[0], *more, *first), (30, 0x84, false, frames == 1), "{name}");
    }
    let heard = hear_whole(Socket::Sub, &data("hostile/closed-mid-greeting.bin"));
    assert_eq!((heard.fault, heard.rest, heard.is_ready), (None, 11, false));
    assert_eq!(heard.reply, b"");
}

#[test]
fn a_wrong_greeting_is_told_as_soon_as_the_wrong_byte_is_there() {
    let fault = |bytes: &[u8]| hear_whole(Socket::Sub, bytes).fault.map(|fault| (fault.reason, fault.offset));
    assert_eq!(fault(b"H"), Some((Reason::Malformed, 0)));
    assert_eq!(fault(b"\xFF\0\0\0\0\0\0\0\x01\x7E"), Some((Reason::Malformed, 9)));
    assert_eq!(fault(b"\xFF\0\0\0\0\0\0\0\x01\x7F\x02"), Some((Reason::Unsupported, 10)));
    assert_eq!(fault(b"\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0"), None);
    assert_eq!(
        fault(b"\xFF\0\0\0\0\0\0\0\x01\x7F\x03\0CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        Some((Reason::Unsupported, 12))
    );
}

#[test]
fn sizes_are_refused_before_a_body_has_come() {
    let fault = |bytes: &[u8]| {
        let heard = hear_whole(Socket::Sub, &then(bytes));
        heard.fault.map(|fault| (fault.reason, fault.offset - 91))
    };
    // A frame of one byte too many, in both forms; 2^64 - 1.
    assert_eq!(fault(&[2, 0, 0, 0, 0, 0, 0x10, 0, 1]), Some((Reason::TooLarge, 1)));
    assert_eq!(fault(&[2, 0, 0, 0, 0, 0, 0x10, 0, 0]), None);
    assert_eq!(fault(&[2, 255, 255, 255, 255, 255, 255, 255, 255]), Some((Reason::TooLarge, 1)));
    // A command of 4097 and of 4096 bytes.
    assert_eq!(fault(&[6, 0, 0, 0, 0, 0, 0, 16, 1]), Some((Reason::TooLarge, 1)));
    assert_eq!(fault(&[6, 0, 0, 0, 0, 0, 0, 16, 0]), None);
    // Frames of one message count together: 1 MiB - 1, then 2 bytes.
    let mut two = vec![3, 0, 0, 0, 0, 0, 0x0F, 0xFF, 0xFF];
    two.resize(9 + (1 << 20) - 1, b'x');
    two.extend_from_slice(&[0, 2]);
    assert_eq!(fault(&two), Some((Reason::TooLarge, two.len() - 1)));
    *two.last_mut().unwrap() = 1;
    assert_eq!(fault(&two), None);
    // Sixteen frames, and one more. The next message counts anew.
    let frames = |more, last: &[u8]| [&[1, 0].repeat(more)[..], last].concat();
    assert_eq!(fault(&frames(15, &[0, 0]).repeat(3)), None);
    assert_eq!(fault(&frames(16, &[0])), Some((Reason::TooLarge, 32)));
    assert_eq!(fault(&frames(16, &[4, 3, 2, b'H', b'I'])), None);
}

#[test]
fn frames_and_commands_stand_where_they_may() {
    let fault = |bytes: &[u8]| hear_whole(Socket::Sub, bytes).fault.map(|fault| (fault.reason, fault.offset));
    assert_eq!(fault(&[&greeting()[..], &[0]].concat()), Some((Reason::Malformed, 64)));
    assert_eq!(fault(&then(&[5])), Some((Reason::Malformed, 91)));
    // Reserved flags are nothing to us; a second READY, a subscription, a cancelled one, of whatever content.
    let odd = [&b"\xF8\x01x"[..], PUB_READY, b"\x04\x07\x05READY\xFF", b"\x04\x0A\x09SUBSCRIBE", b"\x04\x07\x06CANCEL"];
    let heard = hear_whole(Socket::Sub, &then(&odd.concat()));
    assert_eq!((heard.fault, heard.rest, heard.frames.len(), heard.taken.len()), (None, 0, 1, 6));
    // Properties that end past their command, at every place.
    let ready = b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB";
    for cut in 8..ready.len() {
        let mut short = ready[..cut].to_vec();
        short[1] = cut as u8 - 2;
        let heard = hear_whole(Socket::Sub, &[&greeting()[..], &short].concat());
        assert_eq!(heard.fault.map(|fault| fault.reason), Some(Reason::Malformed), "{cut}");
    }
    let huge = b"\x04\x18\x05READY\x0BSocket-Type\xFF\xFF\xFF\xFFPU";
    assert_eq!(fault(&[&greeting()[..], huge].concat()), Some((Reason::Malformed, 64 + 24)));
}

#[test]
fn each_socket_has_its_own_peers() {
    let ready = |name: &str| {
        let data = [b"\x05READY\x0BSOCKET-TYPE\0\0\0", &[name.len() as u8][..], name.as_bytes()].concat();
        [&greeting()[..], &[4, data.len() as u8], &data].concat()
    };
    for (name, sub, req) in
        [("PUB", true, false), ("xpub", true, false), ("REP", false, true), ("Router", false, true), ("", false, false)]
    {
        assert_eq!(hear_whole(Socket::Sub, &ready(name)).is_ready, sub, "{name}");
        assert_eq!(hear_whole(Socket::Req, &ready(name)).is_ready, req, "{name}");
    }
}

#[test]
fn a_ping_is_answered_with_its_context_once_the_peer_is_ready() {
    let reply = |bytes: &[u8]| hear_whole(Socket::Sub, &then(bytes)).reply[27..].to_vec();
    assert_eq!(reply(b"\x04\x0A\x04PING\0\x10abc"), b"\x04\x08\x04PONGabc");
    assert_eq!(reply(b"\x04\x07\x04PING\0\x10"), b"\x04\x05\x04PONG");
    // No more than 16 bytes of it, as libzmq does.
    assert_eq!(reply(b"\x04\x18\x04PING\0\x100123456789abcdefg"), b"\x04\x15\x04PONG0123456789abcdef");
    let heard = hear_whole(Socket::Sub, &then(b"\x04\x06\x04PING\0"));
    assert_eq!(heard.fault.map(|fault| fault.reason), Some(Reason::Malformed));
    let early = [&greeting()[..], b"\x04\x07\x04PING\0\x10", PUB_READY].concat();
    let heard = hear_whole(Socket::Sub, &early);
    assert_eq!((heard.is_ready, heard.reply.len()), (true, 27));
}

#[test]
fn an_error_says_what_there_is_of_its_reason() {
    let fault = |bytes: &[u8]| hear_whole(Socket::Sub, &[&greeting()[..], bytes].concat()).fault.unwrap();
    assert_eq!(fault(b"\x04\x09\x05ERROR\x02\xFF\n").detail, "zmtp: the peer refuses: \"\u{FFFD}\\n\"");
    assert_eq!(fault(b"\x04\x08\x05ERROR\x02n").reason, Reason::Malformed);
    let longest = [&b"\x06\0\0\0\0\0\0\x01\x06\x05ERROR\xFF"[..], &[b'x'; 255]].concat();
    assert_eq!(fault(&longest).detail.len(), "zmtp: the peer refuses: \"\"".len() + 255);
}

/// What a publisher may say, more or less.
fn conversation() -> impl Strategy<Value = Vec<u8>> {
    let frame = (any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(flags, body)| {
        let head = match flags & 2 {
            0 => vec![flags & !4, body.len() as u8],
            _ => [&[flags & !4][..], &(body.len() as u64).to_be_bytes()].concat(),
        };
        [head, body].concat()
    });
    let command = prop::sample::select(vec![
        b"\x04\x0A\x04PING\0\x10abc".to_vec(),
        b"\x04\x04\x03ODD".to_vec(),
        b"\x04\x00".to_vec(),
        b"\x04\x12\x05ERROR\x0Bnot allowed".to_vec(),
        b"\x02\xFF".to_vec(),
    ]);
    let parts = prop::collection::vec(prop_oneof![4 => frame, 1 => command], 0..12);
    let greetings = ["minor-9", "zmtp-2", "mechanism-plain", "wrong-socket-type", "not-zmtp"];
    (prop::sample::select(greetings.to_vec()), parts).prop_map(|(start, parts)| {
        let start = data(&format!("hostile/{start}.bin"));
        [&start[..start.len().min(91)], &parts.concat()].concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_change_nothing(stream in conversation(), mut cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8)) {
        cuts.sort_by_key(|cut| cut.index(stream.len() + 1));
        let cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        let whole = hear_whole(Socket::Sub, &stream);
        prop_assert_eq!(&hear(Socket::Sub, LIMITS, &stream, &cuts), &whole);
        let bytewise: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&hear(Socket::Sub, LIMITS, &stream, &bytewise), &whole);
    }

    #[test]
    fn any_bytes_are_frames_or_a_fault_among_them(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let heard = hear(Socket::Req, LIMITS, &then(&bytes), &[]);
        // READY names a publisher, which answers no request.
        prop_assert_eq!(heard.fault.map(|fault| fault.offset), Some(88));
        let heard = hear(Socket::Sub, LIMITS, &then(&bytes), &[]);
        prop_assert!(heard.fault.is_none_or(|fault| (91..=91 + bytes.len()).contains(&fault.offset)));
    }
}

#[test]
fn every_cut_of_every_hostile_stream_tells_the_same() {
    for name in
        ["multipart", "error-command", "wrong-socket-type", "empty-command", "huge-frame-length", "mechanism-plain"]
    {
        let stream = data(&format!("hostile/{name}.bin"));
        let whole = hear_whole(Socket::Sub, &stream);
        for cut in 0..stream.len() {
            assert_eq!(hear(Socket::Sub, LIMITS, &stream, &[cut]), whole, "{name} cut at {cut}");
        }
    }
}
