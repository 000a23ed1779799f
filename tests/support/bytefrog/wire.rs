//! Messages of an agent, written independently of the decoder.

use super::text;

pub fn hello(version: u8) -> Vec<u8> {
    vec![0, version]
}

pub fn project_hello(project: i32) -> Vec<u8> {
    [&[16, 4][..], &project.to_be_bytes()].concat()
}

pub fn data_hello(run: u8) -> Vec<u8> {
    vec![30, run]
}

/// `mode` is one of `I T P S X`.
pub fn heartbeat(mode: u8) -> Vec<u8> {
    vec![8, mode, 0, 0]
}

pub fn data_break(sequence: u32) -> Vec<u8> {
    [&[9][..], &sequence.to_be_bytes()].concat()
}

pub fn class_ignored(name: &str) -> Vec<u8> {
    [vec![41], text::write(name)].concat()
}

pub fn error(message: &str) -> Vec<u8> {
    [vec![99], text::write(message)].concat()
}

pub fn thread_name(thread: u16, time: u32, name: &str) -> Vec<u8> {
    [&[10][..], &thread.to_be_bytes(), &time.to_be_bytes(), &text::write(name)].concat()
}

pub fn method(id: u32, signature: &str) -> Vec<u8> {
    [&[11][..], &id.to_be_bytes(), &text::write(signature)].concat()
}

pub fn exception(id: u32, name: &str) -> Vec<u8> {
    [&[12][..], &id.to_be_bytes(), &text::write(name)].concat()
}

pub fn location(id: u32, method: u32, line: i32) -> Vec<u8> {
    [&[13][..], &id.to_be_bytes(), &method.to_be_bytes(), &line.to_be_bytes(), &line.to_be_bytes(), &[0xff; 4]].concat()
}

fn timed(kind: u8, time: u32, sequence: u32, method: u32) -> Vec<u8> {
    [&[kind][..], &time.to_be_bytes(), &sequence.to_be_bytes(), &method.to_be_bytes()].concat()
}

pub fn visit(time: u32, sequence: u32, method: u32, location: u32, thread: u16) -> Vec<u8> {
    [timed(14, time, sequence, method), location.to_be_bytes().into(), thread.to_be_bytes().into()].concat()
}

pub fn entry(time: u32, sequence: u32, method: u32, thread: u16) -> Vec<u8> {
    [timed(20, time, sequence, method), thread.to_be_bytes().into()].concat()
}

/// An exit without an exception, in the layout of the version.
pub fn exit(version: u8, time: u32, sequence: u32, method: u32, thread: u16) -> Vec<u8> {
    let place: &[u8] = if version == 1 { &[0, 7] } else { &[0] };
    [timed(21, time, sequence, method), place.into(), thread.to_be_bytes().into()].concat()
}

pub fn thrown(time: u32, sequence: u32, method: u32, exception: u32, thread: u16) -> Vec<u8> {
    let place = [exception.to_be_bytes().to_vec(), vec![0, 7], thread.to_be_bytes().into()].concat();
    [timed(22, time, sequence, method), place].concat()
}

pub fn bubbled(time: u32, sequence: u32, method: u32, exception: u32, thread: u16) -> Vec<u8> {
    [timed(23, time, sequence, method), exception.to_be_bytes().into(), thread.to_be_bytes().into()].concat()
}

pub fn marker(time: u32, sequence: u32, key: &str, value: &str) -> Vec<u8> {
    [&[50][..], &time.to_be_bytes(), &sequence.to_be_bytes(), &text::write(key), &text::write(value)].concat()
}
