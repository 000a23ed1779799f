//! ZMTP: recorded streams of libzmq on both sockets, and bytes of hostile peers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use proptest::prelude::*;
use serde_json::Value;
use tributary::codec::zmtp::{self, Peer, Socket, ZmtpElement, ZmtpError, ZmtpLimits};
use tributary::event::{BatchBuilder, Origin, Reason, UnixNanos};
use tributary::protocol::rbkit::{AgentOptions, Control, Options, RbkitAgent, Subscription};
use tributary::protocol::{Flow, Now, Output, Session};

const LIMITS: ZmtpLimits =
    ZmtpLimits { max_message_bytes: 1 << 20, message_key: "key", max_frames: 16, max_command_bytes: 4096 };
const PUB_READY: &[u8] = b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB";

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/rbkit/zmtp").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The result of reading a stream: its frames with their offsets, and its end.
#[derive(Clone, PartialEq, Debug, Default)]
struct Outcome {
    /// Offset, body, more, first.
    frames: Vec<(usize, Vec<u8>, bool, bool)>,
    /// Offset and size of the greeting and of each command.
    taken: Vec<(usize, usize)>,
    reply: Vec<u8>,
    /// Its offset is that in the stream.
    fault: Option<ZmtpError>,
    is_ready: bool,
    rest: usize,
}

/// Reads a stream that arrives in pieces, which end at `cuts`.
fn read_stream(socket: Socket, limits: ZmtpLimits, stream: &[u8], cuts: &[usize]) -> Outcome {
    let mut peer = Peer::new(socket, limits);
    let (mut outcome, mut reply, mut at, mut body) = (Outcome::default(), BytesMut::new(), 0, None);
    // Only what follows our greeting is compared.
    peer.send_greeting(&mut reply);
    reply.clear();
    let ends = cuts.iter().copied().chain([stream.len()]);
    'stream: for end in ends {
        loop {
            if let Some((start, head, length, more, first)) = body {
                let from: usize = start + head;
                if end < from + length {
                    break;
                }
                outcome.frames.push((start, stream[from..from + length].to_vec(), more, first));
                (at, body) = (from + length, None);
            }
            match peer.next(&stream[at..end], &mut reply) {
                Ok(ZmtpElement::More) => break,
                Ok(ZmtpElement::Taken { bytes }) => {
                    outcome.taken.push((at, bytes));
                    at += bytes;
                }
                Ok(ZmtpElement::Frame { head, length, more, first }) => {
                    body = Some((at, head, length as usize, more, first));
                }
                Err(fault) => {
                    outcome.fault = Some(ZmtpError { offset: at + fault.offset, ..fault });
                    break 'stream;
                }
            }
        }
    }
    Outcome { reply: reply.to_vec(), is_ready: peer.is_ready(), rest: stream.len() - at, ..outcome }
}

fn read_whole(socket: Socket, stream: &[u8]) -> Outcome {
    read_stream(socket, LIMITS, stream, &[])
}

fn greeting() -> Vec<u8> {
    data("hostile/minor-9.bin")[..64].to_vec()
}

/// The greeting and READY of a publisher, and these bytes.
fn then(bytes: &[u8]) -> Vec<u8> {
    [&greeting()[..], PUB_READY, bytes].concat()
}

fn sha256(bytes: &[u8]) -> String {
    ring::digest::digest(&ring::digest::SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn recorded_streams_give_the_frames_of_an_independent_reader() {
    for recording in ["libzmq-client-3.1", "minimal-client-3.0"] {
        let expected: Value = serde_json::from_slice(&data(&format!("{recording}/expected.json"))).unwrap();
        for (stream, socket) in [("pub-agent-to-client", Socket::Sub), ("rep-agent-to-client", Socket::Req)] {
            let outcome = read_whole(socket, &data(&format!("{recording}/{stream}.bin")));
            assert!(outcome.is_ready && outcome.fault.is_none() && outcome.rest == 0, "{recording} {stream}");
            let rows = expected[stream].as_array().unwrap();
            let messages: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "message").collect();
            assert!(messages.len() >= 4 && messages.len() == outcome.frames.len(), "{recording} {stream}");
            let mut first = true;
            for (row, (offset, body, more, is_first)) in messages.iter().zip(&outcome.frames) {
                assert_eq!(row["offset"], *offset);
                assert_eq!(row["size"], body.len());
                assert_eq!(row["more"], *more);
                assert_eq!(row["sha256"], sha256(body));
                assert_eq!(*is_first, first);
                first = !more;
            }
            let others: Vec<&Value> = rows.iter().filter(|row| row["kind"] != "message").collect();
            assert_eq!(others.len(), outcome.taken.len());
            assert!(others.iter().zip(&outcome.taken).all(|(row, (offset, _))| row["offset"] == *offset));
        }
    }
}

#[test]
fn our_bytes_are_those_that_agents_have_answered() {
    let ours = |socket, then: &dyn Fn(&mut BytesMut)| {
        let mut peer = Peer::new(socket, LIMITS);
        let mut out = BytesMut::new();
        peer.send_greeting(&mut out);
        assert_eq!(peer.next(&greeting(), &mut out), Ok(ZmtpElement::Taken { bytes: 64 }));
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
    // The padding of the signature may have any value.
    let same = |found: &[u8], recorded: &[u8]| {
        assert_eq!((found[0], &found[9..]), (recorded[0], &recorded[9..]));
    };
    same(&subscriber, &data("minimal-client-3.0/pub-client-to-agent.bin"));
    same(&requester, &data("minimal-client-3.0/rep-client-to-agent.bin"));
}

/// The first reply of a session that reads the peer's greeting and READY before it has been able to send anything.
fn first_reply(mut session: impl Session, socket: &str) -> Vec<u8> {
    let origin = Arc::new(Origin::new("rbkit", "test".into(), "peer".into(), 1));
    let mut out = Output::new(BatchBuilder::new(origin));
    let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };
    let input = [greeting(), command_ready(socket)].concat();
    assert_eq!(session.receive(&input, now, &mut out).consumed, input.len());
    // The driver calls this when the session asks for it; it may not send the greeting again.
    assert_eq!(session.handle_timeout(now, &mut out), Flow::Continue);
    out.reply.to_vec()
}

fn command_ready(socket: &str) -> Vec<u8> {
    let length = (socket.len() as u32).to_be_bytes();
    let data = [&b"\x05READY\x0BSocket-Type"[..], &length, socket.as_bytes()].concat();
    [&[4, data.len() as u8][..], &data].concat()
}

#[test]
fn a_session_sends_its_greeting_first_even_if_the_peer_is_faster() {
    let agent = || RbkitAgent::new(AgentOptions { publish: Some("127.0.0.1:1".to_owned()), ..AgentOptions::default() });
    let options = || Arc::new(Options::default());
    let published = first_reply(Subscription::new(agent(), options(), 1 << 20), "PUB");
    assert_eq!((published.len(), published[0], published[9]), (64 + 27 + 3, 0xFF, 0x7F), "{published:02x?}");
    assert_eq!((&published[64..91], &published[91..]), (&command_ready("SUB")[..], &zmtp::subscribe_all()[..]));
    let replied = first_reply(Control::new(agent(), options()), "REP");
    assert_eq!((replied[0], replied[9]), (0xFF, 0x7F), "{replied:02x?}");
    let request = [&[1, 0, 0, 9][..], b"handshake"].concat();
    assert_eq!((&replied[64..91], &replied[91..]), (&command_ready("REQ")[..], &request[..]));
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

/// The expected outcomes are those of the manifest of the recordings.
#[test]
fn hostile_streams_are_rejected_at_the_fault_and_unusual_ones_are_read() {
    let refused = [
        ("huge-frame-length", Reason::TooLarge, 92, "1099511627776"),
        ("not-zmtp", Reason::Malformed, 0, "0x48"),
        ("zmtp-2", Reason::Unsupported, 10, "zmtp.version: 1"),
        ("mechanism-plain", Reason::Unsupported, 12, "\"PLAIN\""),
        ("wrong-socket-type", Reason::Unsupported, 88, "\"PUSH\""),
        ("ready-without-socket-type", Reason::Malformed, 72, "Socket-Type"),
        ("ready-name-overrun", Reason::Malformed, 67, "200 bytes, but only 5 are left"),
        ("error-command", Reason::Unsupported, 64, "\"not allowed\""),
        ("empty-command", Reason::Malformed, 93, "zmtp.command.name"),
    ];
    for (name, reason, offset, words) in refused {
        let outcome = read_whole(Socket::Sub, &data(&format!("hostile/{name}.bin")));
        let fault = outcome.fault.unwrap_or_else(|| panic!("{name}: no fault"));
        assert_eq!((fault.reason, fault.offset), (reason, offset), "{name}: {fault}");
        assert!(fault.to_string().contains(words), "{name}: {fault}");
        assert!(outcome.frames.is_empty(), "{name}");
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
        let outcome = read_whole(Socket::Sub, &data(&format!("hostile/{name}.bin")));
        assert_eq!((outcome.fault, outcome.rest, outcome.frames.len()), (None, 0, frames), "{name}");
        let (_, body, more, first) = &outcome.frames[frames - 1];
        assert_eq!((body.len(), body[0], *more, *first), (30, 0x84, false, frames == 1), "{name}");
    }
    let outcome = read_whole(Socket::Sub, &data("hostile/closed-mid-greeting.bin"));
    assert_eq!((outcome.fault, outcome.rest, outcome.is_ready), (None, 11, false));
    assert_eq!(outcome.reply, b"");
}

#[test]
fn a_wrong_greeting_is_reported_at_its_first_wrong_byte() {
    let fault = |bytes: &[u8]| read_whole(Socket::Sub, bytes).fault.map(|fault| (fault.reason, fault.offset));
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
fn sizes_are_rejected_before_the_body_arrives() {
    let fault = |bytes: &[u8]| {
        let outcome = read_whole(Socket::Sub, &then(bytes));
        outcome.fault.map(|fault| (fault.reason, fault.offset - 91))
    };
    // A frame that is one byte too long, in both forms; and 2^64 - 1.
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
    // Sixteen frames, and one more. The next message starts at 0.
    let frames = |more, last: &[u8]| [&[1, 0].repeat(more)[..], last].concat();
    assert_eq!(fault(&frames(15, &[0, 0]).repeat(3)), None);
    assert_eq!(fault(&frames(16, &[0])), Some((Reason::TooLarge, 32)));
    assert_eq!(fault(&frames(16, &[4, 3, 2, b'H', b'I'])), None);
}

#[test]
fn frames_and_commands_are_accepted_in_their_phases_only() {
    let fault = |bytes: &[u8]| read_whole(Socket::Sub, bytes).fault.map(|fault| (fault.reason, fault.offset));
    assert_eq!(fault(&[&greeting()[..], &[0]].concat()), Some((Reason::Malformed, 64)));
    assert_eq!(fault(&then(&[5])), Some((Reason::Malformed, 91)));
    // Reserved flags are ignored; so are a second READY, SUBSCRIBE and CANCEL with any content.
    let odd = [&b"\xF8\x01x"[..], PUB_READY, b"\x04\x07\x05READY\xFF", b"\x04\x0A\x09SUBSCRIBE", b"\x04\x07\x06CANCEL"];
    let outcome = read_whole(Socket::Sub, &then(&odd.concat()));
    assert_eq!((outcome.fault, outcome.rest, outcome.frames.len(), outcome.taken.len()), (None, 0, 1, 6));
    // Properties that are longer than their command, at every position.
    let ready = b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB";
    for cut in 8..ready.len() {
        let mut short = ready[..cut].to_vec();
        short[1] = cut as u8 - 2;
        let outcome = read_whole(Socket::Sub, &[&greeting()[..], &short].concat());
        assert_eq!(outcome.fault.map(|fault| fault.reason), Some(Reason::Malformed), "{cut}");
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
        assert_eq!(read_whole(Socket::Sub, &ready(name)).is_ready, sub, "{name}");
        assert_eq!(read_whole(Socket::Req, &ready(name)).is_ready, req, "{name}");
    }
}

#[test]
fn a_ping_is_answered_with_its_context_once_the_peer_is_ready() {
    let reply = |bytes: &[u8]| read_whole(Socket::Sub, &then(bytes)).reply[27..].to_vec();
    assert_eq!(reply(b"\x04\x0A\x04PING\0\x10abc"), b"\x04\x08\x04PONGabc");
    assert_eq!(reply(b"\x04\x07\x04PING\0\x10"), b"\x04\x05\x04PONG");
    // At most 16 bytes of it, as libzmq does.
    assert_eq!(reply(b"\x04\x18\x04PING\0\x100123456789abcdefg"), b"\x04\x15\x04PONG0123456789abcdef");
    let outcome = read_whole(Socket::Sub, &then(b"\x04\x06\x04PING\0"));
    assert_eq!(outcome.fault.map(|fault| fault.reason), Some(Reason::Malformed));
    let early = [&greeting()[..], b"\x04\x07\x04PING\0\x10", PUB_READY].concat();
    let outcome = read_whole(Socket::Sub, &early);
    assert_eq!((outcome.is_ready, outcome.reply.len()), (true, 27));
}

#[test]
fn an_error_command_is_reported_with_its_reason() {
    let fault = |bytes: &[u8]| read_whole(Socket::Sub, &[&greeting()[..], bytes].concat()).fault.unwrap();
    assert_eq!(fault(b"\x04\x09\x05ERROR\x02\xFF\n").detail, "zmtp: the peer sent ERROR: \"\u{FFFD}\\n\"");
    assert_eq!(fault(b"\x04\x08\x05ERROR\x02n").reason, Reason::Malformed);
    let longest = [&b"\x06\0\0\0\0\0\0\x01\x06\x05ERROR\xFF"[..], &[b'x'; 255]].concat();
    assert_eq!(fault(&longest).detail.len(), "zmtp: the peer sent ERROR: \"\"".len() + 255);
}

/// A stream of a publisher, not always a valid one.
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
        let whole = read_whole(Socket::Sub, &stream);
        prop_assert_eq!(&read_stream(Socket::Sub, LIMITS, &stream, &cuts), &whole);
        let bytewise: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&read_stream(Socket::Sub, LIMITS, &stream, &bytewise), &whole);
    }

    #[test]
    fn any_bytes_are_frames_or_a_fault_among_them(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let outcome = read_stream(Socket::Req, LIMITS, &then(&bytes), &[]);
        // READY names a PUB socket, which is not a peer of REQ.
        prop_assert_eq!(outcome.fault.map(|fault| fault.offset), Some(88));
        let outcome = read_stream(Socket::Sub, LIMITS, &then(&bytes), &[]);
        prop_assert!(outcome.fault.is_none_or(|fault| (91..=91 + bytes.len()).contains(&fault.offset)));
    }
}

#[test]
fn every_cut_of_every_hostile_stream_gives_the_same_result() {
    for name in
        ["multipart", "error-command", "wrong-socket-type", "empty-command", "huge-frame-length", "mechanism-plain"]
    {
        let stream = data(&format!("hostile/{name}.bin"));
        let whole = read_whole(Socket::Sub, &stream);
        for cut in 0..stream.len() {
            assert_eq!(read_stream(Socket::Sub, LIMITS, &stream, &[cut]), whole, "{name} cut at {cut}");
        }
    }
}
