//! ZMTP 3 of the bound side, byte by byte, and small messages written by hand.

pub const MORE: u8 = 1;
pub const LONG: u8 = 2;
pub const COMMAND: u8 = 4;

/// The greeting of a peer that announces 3.`minor` and no security.
pub fn greeting(minor: u8) -> Vec<u8> {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[8], greeting[9], greeting[10], greeting[11]) = (0xff, 1, 0x7f, 3, minor);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// A frame, in the short form if possible.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    match u8::try_from(body.len()) {
        Ok(length) => [&[flags, length], body].concat(),
        Err(_) => [&long_head(flags, body.len() as u64), body].concat(),
    }
}

/// The head of a long frame of this many bytes.
pub fn long_head(flags: u8, length: u64) -> Vec<u8> {
    [&[flags | LONG][..], &length.to_be_bytes()].concat()
}

pub fn command(name: &str, data: &[u8]) -> Vec<u8> {
    frame(COMMAND, &[&[name.len() as u8], name.as_bytes(), data].concat())
}

pub fn ready(socket: &str) -> Vec<u8> {
    let length = (socket.len() as u32).to_be_bytes();
    command("READY", &[&b"\x0bSocket-Type"[..], &length, socket.as_bytes()].concat())
}

/// The reply to a request.
pub fn reply(body: &[u8]) -> Vec<u8> {
    [frame(MORE, b""), frame(0, body)].concat()
}

/// The flags and the body of a frame.
pub type Frame = (u8, Vec<u8>);

/// The first frame in `bytes` and the rest.
pub fn split_frame(bytes: &[u8]) -> Option<(Frame, &[u8])> {
    let (&flags, rest) = bytes.split_first()?;
    let (length, rest) = if flags & LONG == 0 {
        rest.split_first().map(|(length, rest)| (u64::from(*length), rest))?
    } else {
        rest.split_first_chunk::<8>().map(|(length, rest)| (u64::from_be_bytes(*length), rest))?
    };
    let (body, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    Some(((flags, body.to_vec()), rest))
}

pub fn map(pairs: u8) -> u8 {
    0x80 | pairs
}

/// A time, which may be invalid.
pub fn time(millis: f64) -> Vec<u8> {
    [&[0xcb][..], &millis.to_be_bytes()].concat()
}

fn millis(millis: u64) -> Vec<u8> {
    time(millis as f64)
}

/// A text of less than 32 bytes.
pub fn text(text: &str) -> Vec<u8> {
    assert!(text.len() < 32);
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

/// 2026-11-20T12:15:00Z, the time of messages written by hand.
pub const MILLIS: u64 = 1_795_176_900_000;

/// A collection of the master family with these packed events, at most 15.
pub fn collection(counter: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let head = [&[map(4), 0, 7, 1][..], &millis(MILLIS), &[9, 0xcf], &counter.to_be_bytes(), &[2]].concat();
    [head, vec![0x90 | events.len() as u8], events.concat()].concat()
}

pub fn gc_start() -> Vec<u8> {
    [&[map(2), 0, 2, 1][..], &millis(MILLIS)].concat()
}

pub fn created(id: u64) -> Vec<u8> {
    [&[map(3), 0, 0, 1][..], &millis(MILLIS), &[2, map(2), 3, 0xcf], &id.to_be_bytes(), &[4, 0xa4], b"Shop"].concat()
}

/// One event of a dump of `complete` objects: `objects` objects from the id `first`.
pub fn dump(number: u8, complete: u8, first: u8, objects: u8) -> Vec<u8> {
    let head = [&[map(5), 0, 5, 1][..], &millis(MILLIS), &[10, number, 11, complete, 2, 0x90 | objects]].concat();
    let object = |id: u8| [&[map(6), 3, id, 4, 0xa4][..], b"Shop", &[5, 0x90, 6, 0xc0, 7, 0xc0, 8, 40]].concat();
    [head, (first..first + objects).flat_map(object).collect()].concat()
}

/// The handshake reply of the dialect master-2.1.
pub fn handshake(pid: u64, memory: bool, cpu: bool) -> Vec<u8> {
    let pairs = [
        [text("rbkit_server_version"), text("0.1.10")],
        [text("rbkit_protocol_version"), text("2.1")],
        [text("process_name"), text("app.rb")],
        [text("pwd"), text("/srv")],
        [text("pid"), [&[0xcf][..], &pid.to_be_bytes()].concat()],
        [text("object_trace_enabled"), vec![u8::from(memory)]],
        [text("cpu_profiling_enabled"), vec![u8::from(cpu)]],
        [text("clock_type"), text("cpu")],
        [text("cpu_profiling_mode"), text("sampling")],
    ];
    let head = [&[map(3), 0, 8, 1][..], &millis(MILLIS), &[2, map(9)]].concat();
    [head, pairs.concat().concat()].concat()
}
