//! The messages of agents, byte by byte (section 2).

/// An event of a thread: every numbered message but the marker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    /// Milliseconds since the start.
    pub(super) time: u32,
    /// The number.
    pub(super) sequence: u32,
    pub(super) method: u32,
    pub(super) thread: u16,
}

pub(super) fn hello(version: u8) -> [u8; 2] {
    [0, version]
}

pub(super) fn project_hello(version: u8, project: i32) -> [u8; 6] {
    let mut message = [16, version, 0, 0, 0, 0];
    message[2..].copy_from_slice(&project.to_be_bytes());
    message
}

pub(super) fn data_hello(run: u8) -> [u8; 2] {
    [30, run]
}

/// The collector's answer to a data hello.
pub(super) const DATA_HELLO_REPLY: u8 = 31;

pub(super) fn heartbeat(mode: u8, readable_buffers: u16) -> [u8; 4] {
    let [high, low] = readable_buffers.to_be_bytes();
    [8, mode, high, low]
}

pub(super) fn data_break(sequence: u32) -> [u8; 5] {
    let mut message = [9; 5];
    message[1..].copy_from_slice(&sequence.to_be_bytes());
    message
}

#[inline]
pub(super) fn entry(stamp: Stamp) -> [u8; 15] {
    let mut message = [0; 15];
    begin(20, stamp, &mut message);
    message[13..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

/// A method exit of version 1.
#[inline]
pub(super) fn exit_at_line(stamp: Stamp, line: u16) -> [u8; 17] {
    let mut message = [0; 17];
    begin(21, stamp, &mut message);
    message[13..15].copy_from_slice(&line.to_be_bytes());
    message[15..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

/// A method exit of versions 2 to 4.
#[inline]
pub(super) fn exit(stamp: Stamp, threw: bool) -> [u8; 16] {
    let mut message = [0; 16];
    begin(21, stamp, &mut message);
    message[13] = u8::from(threw);
    message[14..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

pub(super) fn exception(stamp: Stamp, exception: u32, line: u16) -> [u8; 21] {
    let mut message = [0; 21];
    begin(22, stamp, &mut message);
    message[13..17].copy_from_slice(&exception.to_be_bytes());
    message[17..19].copy_from_slice(&line.to_be_bytes());
    message[19..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

pub(super) fn exception_bubble(stamp: Stamp, exception: u32) -> [u8; 19] {
    let mut message = [0; 19];
    begin(23, stamp, &mut message);
    message[13..17].copy_from_slice(&exception.to_be_bytes());
    message[17..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

#[inline]
pub(super) fn method_visit(stamp: Stamp, location: u32) -> [u8; 19] {
    let mut message = [0; 19];
    begin(14, stamp, &mut message);
    message[13..17].copy_from_slice(&location.to_be_bytes());
    message[17..].copy_from_slice(&stamp.thread.to_be_bytes());
    message
}

pub(super) fn marker(time: u32, sequence: u32, key: &str, value: &str, out: &mut Vec<u8>) {
    out.push(50);
    out.extend_from_slice(&time.to_be_bytes());
    out.extend_from_slice(&sequence.to_be_bytes());
    text(key, out);
    text(value, out);
}

pub(super) fn map_thread_name(thread: u16, time: u32, name: &str, out: &mut Vec<u8>) {
    out.push(10);
    out.extend_from_slice(&thread.to_be_bytes());
    out.extend_from_slice(&time.to_be_bytes());
    text(name, out);
}

pub(super) fn map_method_signature(method: u32, signature: &str, out: &mut Vec<u8>) {
    out.push(11);
    out.extend_from_slice(&method.to_be_bytes());
    text(signature, out);
}

pub(super) fn map_exception(exception: u32, name: &str, out: &mut Vec<u8>) {
    out.push(12);
    out.extend_from_slice(&exception.to_be_bytes());
    text(name, out);
}

/// One line of a method; agents send no columns.
pub(super) fn map_source_location(location: u32, method: u32, line: u16, out: &mut Vec<u8>) {
    out.push(13);
    out.extend_from_slice(&location.to_be_bytes());
    out.extend_from_slice(&method.to_be_bytes());
    out.extend_from_slice(&u32::from(line).to_be_bytes());
    out.extend_from_slice(&u32::from(line).to_be_bytes());
    out.extend_from_slice(&(-1i16).to_be_bytes());
    out.extend_from_slice(&(-1i16).to_be_bytes());
}

pub(super) fn source_location_count(method: u32, count: u32, out: &mut Vec<u8>) {
    out.push(15);
    out.extend_from_slice(&method.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
}

/// The result of loading a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClassOutcome {
    Transformed = 40,
    Ignored = 41,
    TransformFailed = 42,
}

pub(super) fn class(outcome: ClassOutcome, name: &str, out: &mut Vec<u8>) {
    out.push(outcome as u8);
    text(name, out);
}

pub(super) fn error(message: &str, out: &mut Vec<u8>) {
    out.push(99);
    text(message, out);
}

/// The first fields of numbered messages.
#[inline]
fn begin(kind: u8, stamp: Stamp, message: &mut [u8]) {
    message[0] = kind;
    message[1..5].copy_from_slice(&stamp.time.to_be_bytes());
    message[5..9].copy_from_slice(&stamp.sequence.to_be_bytes());
    message[9..13].copy_from_slice(&stamp.method.to_be_bytes());
}

/// A text as Java writes it: its length in bytes, then each UTF-16 unit in one to three bytes. The texts here are far
/// shorter than 65535 bytes.
fn text(text: &str, out: &mut Vec<u8>) {
    let length = out.len();
    out.extend_from_slice(&[0, 0]);
    for unit in text.encode_utf16() {
        match unit {
            1..0x80 => out.push(unit as u8),
            0 | 0x80..0x800 => out.extend_from_slice(&[0xC0 | (unit >> 6) as u8, continued(unit)]),
            _ => out.extend_from_slice(&[0xE0 | (unit >> 12) as u8, continued(unit >> 6), continued(unit)]),
        }
    }
    let bytes = (out.len() - length - 2) as u16;
    out[length..length + 2].copy_from_slice(&bytes.to_be_bytes());
}

fn continued(bits: u16) -> u8 {
    0x80 | (bits & 0x3F) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_java_does() {
        let mut out = Vec::new();
        text("a\0\u{fc}\u{20ac}\u{1f600}", &mut out);
        assert_eq!(out, b"\x00\x0e\x61\xC0\x80\xC3\xBC\xE2\x82\xAC\xED\xA0\xBD\xED\xB8\x80");
    }
}
