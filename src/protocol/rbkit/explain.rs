//! Explains the bytes of a connection: the greeting, commands and frames of ZMTP, and the messages in them.

mod message;

use tributary_codec::zmtp::GREETING_BYTES;
use tributary_explain::value::text;
use tributary_explain::{Explain, Raw, Sheet};

use super::link::MAX_COMMAND_BYTES;
use super::wire::Channel;
use message::{ExplainStep, ExplainedMessage};

/// Flags of a frame.
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// A longer value, and the rest of its message, is not explained.
const MAX_VALUE_BYTES: usize = 1 << 20;

/// Explains what a socket of an agent sends.
#[derive(Debug)]
pub struct Explainer {
    channel: Channel,
    phase: ChannelPhase,
}

#[derive(Debug)]
enum ChannelPhase {
    /// The start of the connection.
    Greeting,
    /// A frame or a command is next. `is_first`: it would be the first frame of its message.
    Frame { is_first: bool },
    /// A message; `left` bytes of it are not explained yet.
    Message { left: u64, message: Box<ExplainedMessage> },
    /// `left` bytes of a frame that are shown without an explanation.
    Rest { left: u64, raw: Raw, ends_message: bool },
    /// The rest of the connection is shown without an explanation.
    Lost(Raw),
}

impl Explainer {
    /// Explains a connection from its first byte.
    pub fn new(channel: Channel) -> Self {
        Explainer { channel, phase: ChannelPhase::Greeting }
    }

    /// Explains a connection from inside a frame, `left` bytes before its end; 0: from the end of a frame.
    pub fn within(channel: Channel, left: u64) -> Self {
        let raw = Raw::new("the rest of a message that began before");
        Explainer { channel, phase: ChannelPhase::Rest { left, raw, ends_message: true } }
    }

    /// Explains a message of this many bytes, and what follows it.
    pub fn message(channel: Channel, bytes: u64) -> Self {
        Explainer {
            channel,
            phase: ChannelPhase::Message { left: bytes, message: Box::new(ExplainedMessage::new(channel, 0)) },
        }
    }

    /// Shows bytes after a fault that ends the connection.
    pub fn lost() -> Self {
        let raw = Raw::new("after the fault that ended the connection");
        Explainer { channel: Channel::Pub, phase: ChannelPhase::Lost(raw) }
    }

    /// Explains the element at the front of `input`. `None`: more input is needed.
    fn step(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        match &mut self.phase {
            ChannelPhase::Greeting => self.greeting(input, sheet),
            ChannelPhase::Frame { is_first } => {
                let is_first = *is_first;
                self.frame(is_first, input, sheet)
            }
            ChannelPhase::Message { left: 0, .. } | ChannelPhase::Rest { left: 0, ends_message: true, .. } => {
                self.phase = ChannelPhase::Frame { is_first: true };
                Some(0)
            }
            ChannelPhase::Rest { left: 0, .. } => {
                self.phase = ChannelPhase::Frame { is_first: false };
                Some(0)
            }
            ChannelPhase::Message { left, message } => {
                let here = first(input, *left);
                let why = match message.step(here, *left - here.len() as u64, sheet) {
                    ExplainStep::Taken(taken) => {
                        *left -= taken as u64;
                        return Some(taken);
                    }
                    ExplainStep::More if here.len() < MAX_VALUE_BYTES => return None,
                    ExplainStep::More => "a value of more than 1 MiB",
                    ExplainStep::Wrong(why) => why,
                    ExplainStep::Done => "after the end of the message",
                };
                self.phase = ChannelPhase::Rest { left: *left, raw: Raw::new(why), ends_message: true };
                Some(0)
            }
            ChannelPhase::Rest { left, raw, .. } => {
                let here = first(input, *left);
                let mut taken = raw.explain(here, sheet);
                if taken < here.len() && here.len() as u64 == *left {
                    raw.finish(&here[taken..], sheet);
                    taken = here.len();
                }
                *left -= taken as u64;
                Some(taken).filter(|taken| *taken > 0)
            }
            ChannelPhase::Lost(raw) => Some(raw.explain(input, sheet)).filter(|taken| *taken > 0),
        }
    }

    fn greeting(&mut self, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        if input.first().is_some_and(|first| *first != 0xFF) {
            self.phase = ChannelPhase::Lost(Raw::new("not a ZeroMQ greeting"));
            return Some(0);
        }
        let greeting: &[u8; GREETING_BYTES] = input.first_chunk()?;
        let (mechanism, is_server) = (&greeting[12..32], greeting[32] != 0);
        let name = mechanism.split(|byte| *byte == 0).next().unwrap_or_default();
        sheet.title("greeting");
        sheet.nested(|sheet| {
            sheet.field(&greeting[..10], "signature", "");
            sheet.field(&greeting[10..12], "version", format_args!("ZMTP {}.{}", greeting[10], greeting[11]));
            sheet.field(mechanism, "mechanism", text(name));
            sheet.field(&greeting[32..33], "as-server", is_server);
            sheet.field(&greeting[33..], "filler", "");
        });
        self.phase = match (greeting[10], name) {
            (3.., b"NULL") => ChannelPhase::Frame { is_first: true },
            _ => ChannelPhase::Lost(Raw::new("an unsupported version or mechanism")),
        };
        Some(GREETING_BYTES)
    }

    fn frame(&mut self, is_first: bool, input: &[u8], sheet: &mut Sheet) -> Option<usize> {
        let flags = *input.first()?;
        let (head, length) = match flags & LONG {
            0 => (2, u64::from(*input.get(1)?)),
            _ => (9, u64::from_be_bytes(*input.get(1..)?.first_chunk()?)),
        };
        if flags & COMMAND != 0 {
            if length > MAX_COMMAND_BYTES {
                self.phase = ChannelPhase::Lost(Raw::new("a command that is too long"));
                return Some(0);
            }
            let size = head + usize::try_from(length).ok()?;
            let body = input.get(head..size)?;
            sheet.title("command");
            sheet.nested(|sheet| {
                write_head(&input[..head], flags, length, sheet);
                command(body, sheet);
            });
            return Some(size);
        }
        let has_more = flags & MORE != 0;
        // A reply is an empty frame and a body frame; a published message is one frame (rule 27).
        let what = match self.channel {
            Channel::Rep if is_first && has_more && length == 0 => "reply",
            _ if is_first => "message",
            _ => "next frame",
        };
        sheet.title(what);
        sheet.nested(|sheet| write_head(&input[..head], flags, length, sheet));
        let is_body = !has_more && (is_first || self.channel == Channel::Rep);
        self.phase = if is_body {
            ChannelPhase::Message { left: length, message: Box::new(ExplainedMessage::new(self.channel, 1)) }
        } else {
            let raw = Raw::new("a frame of a message of several frames, which rbkit does not send");
            ChannelPhase::Rest { left: length, raw, ends_message: !has_more }
        };
        Some(head)
    }
}

impl Explain for Explainer {
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize {
        let mut at = 0;
        while at < input.len() {
            let Some(taken) = self.step(&input[at..], sheet) else { break };
            at += taken;
        }
        at
    }

    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        match &mut self.phase {
            ChannelPhase::Rest { raw, .. } | ChannelPhase::Lost(raw) => raw.finish(rest, sheet),
            _ if !rest.is_empty() => sheet.raw(rest, "incomplete"),
            _ => {}
        }
    }
}

/// The available bytes of a frame.
fn first(input: &[u8], left: u64) -> &[u8] {
    &input[..input.len().min(usize::try_from(left).unwrap_or(usize::MAX))]
}

fn write_head(head: &[u8], flags: u8, length: u64, sheet: &mut Sheet) {
    let names = [(COMMAND, "command"), (LONG, "long"), (MORE, "more follows"), (!7, "reserved")];
    let names: Vec<_> = names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
    sheet.field(&head[..1], "flags", if names.is_empty() { "none".to_owned() } else { names.join(", ") });
    sheet.field(&head[1..], "size", length);
}

/// Explains a command: its name and its data.
fn command(body: &[u8], sheet: &mut Sheet) {
    let Some((named, mut rest)) = short(body) else { return bytes(body, "the name is longer than the command", sheet) };
    let name = &named[1..];
    sheet.field(named, "name", text(name));
    match name {
        b"READY" => {
            while !rest.is_empty() {
                let property = short(rest).and_then(|(name, rest)| {
                    let size = u32::from_be_bytes(*rest.first_chunk()?);
                    let (value, rest) = rest.split_at_checked(4usize.checked_add(usize::try_from(size).ok()?)?)?;
                    Some((name, value, rest))
                });
                let Some((name, value, after)) = property else {
                    return bytes(rest, "the property is longer than the command", sheet);
                };
                sheet.field(name, "property", text(&name[1..]));
                sheet.field(value, "value", text(&value[4..]));
                rest = after;
            }
        }
        b"ERROR" => match short(rest) {
            Some((reason, rest)) => {
                sheet.field(reason, "reason", text(&reason[1..]));
                bytes(rest, "after the reason", sheet);
            }
            None => bytes(rest, "the reason is longer than the command", sheet),
        },
        b"PING" if rest.len() >= 2 => {
            let tenths = u16::from_be_bytes([rest[0], rest[1]]);
            sheet.field(&rest[..2], "time to live", format_args!("{}.{} s", tenths / 10, tenths % 10));
            bytes(&rest[2..], "context", sheet);
        }
        _ => bytes(rest, "data", sheet),
    }
}

/// A length byte with that many bytes, and the rest.
fn short(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(1 + usize::from(*bytes.first()?))
}

fn bytes(bytes: &[u8], why: &str, sheet: &mut Sheet) {
    if !bytes.is_empty() {
        sheet.raw(bytes, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that an explainer makes of `bytes`, without the spaces between their columns.
    fn rows(mut explainer: Explainer, bytes: &[u8]) -> Vec<String> {
        let mut sheet = Sheet::new(0, []);
        let named = explainer.explain(bytes, &mut sheet);
        explainer.finish(&bytes[named..], &mut sheet);
        assert_eq!(sheet.offset(), bytes.len() as u64);
        let rows = sheet.take();
        rows.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    fn message(channel: Channel, body: &[u8]) -> Vec<String> {
        rows(Explainer::message(channel, body.len() as u64), body)
    }

    /// RFC 23, as libzmq writes it: a greeting, READY, a reply of two frames.
    #[test]
    fn a_connection_is_named_from_its_greeting_on() {
        let bytes = [
            &b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..],
            &[0; 31],
            b"\x04\x1f\x05READY\x0bSocket-Type\0\0\0\x03REP\x01I\0\0\0\x01",
            b"\x01\x00\x00\x02ok",
            b"\x04\x07\x05ERROR\x03",
        ]
        .concat();
        assert_eq!(
            rows(Explainer::new(Channel::Rep), &bytes),
            [
                "greeting",
                "00000000 ff 00 00 00 00 00 00 00 01 7f signature",
                "0000000a 03 01 version: ZMTP 3.1",
                "0000000c 4e 55 4c 4c 00 00 00 00 00 00 00 00 00 00 00 00 mechanism: \"NULL\"",
                "0000001c 00 00 00 00",
                "00000020 00 as-server: false",
                "00000021 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 filler",
                "00000031 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
                "command",
                "00000040 04 flags: command",
                "00000041 1f size: 31",
                "00000042 05 52 45 41 44 59 name: \"READY\"",
                "00000048 0b 53 6f 63 6b 65 74 2d 54 79 70 65 property: \"Socket-Type\"",
                "00000054 00 00 00 03 52 45 50 value: \"REP\"",
                "0000005b 01 49 00 00 00 01 ?: the property is longer than the command",
                "reply",
                "00000061 01 flags: more follows",
                "00000062 00 size: 0",
                "next frame",
                "00000063 00 flags: none",
                "00000064 02 size: 2",
                "00000065 6f 6b reply: ok",
                "command",
                "00000067 04 flags: command",
                "00000068 07 size: 7",
                "00000069 05 45 52 52 4f 52 name: \"ERROR\"",
                "0000006f 03 ?: the reason is longer than the command",
            ]
        );
        assert_eq!(rows(Explainer::new(Channel::Pub), b"HTTP")[0], "00000000 48 54 54 50 ?: not a ZeroMQ greeting");
        assert_eq!(rows(Explainer::lost(), b"x"), ["00000000 78 ?: after the fault that ended the connection"]);
    }

    /// Section 2's own example, and a destroyed object.
    #[test]
    fn events_have_the_names_of_their_family() {
        let master = b"\x84\x00\x07\x01\xcb\x41\xcd\xcd\x65\0\0\0\0\x09\0\x02\x92\x82\0\x02\x01\x05\x83\0\x01\x01\x05\x02\x81\x03\x07";
        assert_eq!(
            message(Channel::Pub, master),
            [
                "00000000 84 message: 4 pairs",
                "00000001 00 07 event_type: 7 (event_collection)",
                "00000003 01 cb 41 cd cd 65 00 00 00 00 timestamp: 1970-01-12T13:46:40Z",
                "0000000d 09 00 message_counter: 0",
                "0000000f 02 92 payload: 2 elements",
                "00000011 82 event 0: 2 pairs",
                "00000012 00 02 event_type: 2 (gc_start)",
                "00000014 01 05 timestamp: 1970-01-01T00:00:00.005Z",
                "00000016 83 event 1: 3 pairs",
                "00000017 00 01 event_type: 1 (obj_destroyed)",
                "00000019 01 05 timestamp: 1970-01-01T00:00:00.005Z",
                "0000001b 02 81 payload: 1 pair",
                "0000001d 03 07 object_id: 7",
            ]
        );
        let spec = message(Channel::Pub, b"\x82\0\x06\x02\x92\x81\0\x01\x81\0\0");
        assert!(spec[1].ends_with("6 (event_collection)") && spec[4].ends_with("1 (gc_start)"), "{spec:?}");
        assert!(spec[6].ends_with("0 (allocation_snapshot)"), "{spec:?}");
        let named = message(Channel::Pub, b"\x81\x02\x91\x82\0\xb1object_space_dump\x02\x91\x81\x05\x91\x09");
        assert_eq!(
            named[3..],
            [
                "00000004 00 b1 6f 62 6a 65 63 74 5f 73 70 61 63 65 5f 64 event_type: \"object_space_dump\"",
                "00000014 75 6d 70",
                "00000017 02 91 payload: 1 element",
                "00000019 81 object 0: 1 pair",
                "0000001a 05 91 references: 1 element",
                "0000001c 09 reference 0: 9",
            ]
        );
    }

    /// Sections 2 and 3: keys that are names, ids or other values.
    #[test]
    fn keys_are_named_by_their_meaning() {
        let handshake = b"\x82\0\x08\x02\x82\xa3pid\x2a\xa3a b\xc3";
        assert_eq!(
            message(Channel::Rep, handshake)[1..],
            [
                "00000001 00 08 event_type: 8 (handshake)",
                "00000003 02 82 payload: 2 pairs",
                "00000005 a3 70 69 64 2a pid: 42",
                "0000000a a3 61 20 62 c3 pair: \"a b\": true",
            ]
        );
        let snapshot = b"\x82\x10\x81\x05\x91\x81\x07\x08\x91\x01\x81\x11\x02";
        assert_eq!(
            message(Channel::Pub, snapshot),
            [
                "00000000 82 message: 2 pairs",
                "00000001 10 81 stacktrace: 1 pair",
                "00000003 05 91 stack 5: 1 element",
                "00000005 81 frame 0: 1 pair",
                "00000006 07 08 line: 8",
                "00000008 91 key: 1 element",
                "00000009 01 element 0: 1",
                "0000000a 81 value: 1 pair",
                "0000000b 11 02 count: 2",
            ]
        );
    }

    /// Found by the fuzz target `explain`: the byte `o` is also a number in MessagePack.
    #[test]
    fn a_reply_that_arrives_in_two_pieces_is_recognised() {
        let mut explainer = Explainer::message(Channel::Rep, 2);
        let mut sheet = Sheet::new(0, []);
        assert_eq!(explainer.explain(b"o", &mut sheet), 0);
        assert_eq!(explainer.explain(b"ok", &mut sheet), 2);
        assert!(sheet.take().ends_with("reply: ok\n"));
    }

    #[test]
    fn bytes_that_are_not_a_message_are_shown_to_the_end_of_their_frame() {
        let bytes = b"\x00\x04\x81\xc1\x01\x02\x00\x01\x01\x01\x01\x00\x00\x01\x07\x02\0\0\0\0\0\0\0\x03\x92\x01";
        assert_eq!(
            rows(Explainer::within(Channel::Pub, 0), bytes),
            [
                "message",
                "00000000 00 flags: none",
                "00000001 04 size: 4",
                "00000002 81 message: 1 pair",
                "00000003 c1 01 02 ?: no value begins with the byte 0xc1",
                "message",
                "00000006 00 flags: none",
                "00000007 01 size: 1",
                "00000008 01 message: 1",
                "message",
                "00000009 01 flags: more follows",
                "0000000a 01 size: 1",
                "0000000b 00 ?: a frame of a message of several frames, which rbkit does not send",
                "next frame",
                "0000000c 00 flags: none",
                "0000000d 01 size: 1",
                "0000000e 07 ?: a frame of a message of several frames, which rbkit does not send",
                "message",
                "0000000f 02 flags: long",
                "00000010 00 00 00 00 00 00 00 03 size: 3",
                "00000018 92 message: 2 elements",
                "00000019 01 element 0: 1",
            ]
        );
        assert_eq!(message(Channel::Pub, b"\x01\x02")[1], "00000001 02 ?: after the end of the message");
        let rest = rows(Explainer::within(Channel::Pub, 2), b"xy\0\0");
        assert_eq!(rest[0], "00000000 78 79 ?: the rest of a message that began before");
        let deep = message(Channel::Pub, &[0x91; 5000]);
        assert!(deep.len() < 50 && deep.last().is_some_and(|row| row.ends_with("bytes more")), "{deep:?}");
    }
}
