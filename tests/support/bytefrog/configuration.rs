//! The messages of a collector on a control connection, read as an agent reads them.

use serde_json::Value;

use super::text;

/// One message of the collector.
#[derive(Clone, Debug, PartialEq)]
pub enum CollectorMessage {
    Configuration(Configuration),
    Start,
    Stop,
    Pause,
    Unpause,
    Suspend,
    Unsuspend,
    Error(String),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    pub buffer_bytes: i64,
    pub heartbeat_millis: i64,
    pub senders: i64,
    pub retries: i64,
    pub run: u8,
    pub exclusions: Vec<String>,
    pub inclusions: Vec<String>,
}

/// All complete messages, and how many bytes they have.
pub fn read(version: u8, received: &[u8]) -> (Vec<CollectorMessage>, usize) {
    let mut messages_received = Vec::new();
    let mut at = 0;
    while let Some((message, length)) = received.get(at..).and_then(|rest| next(version, rest)) {
        messages_received.push(message);
        at += length;
    }
    (messages_received, at)
}

fn next(version: u8, bytes: &[u8]) -> Option<(CollectorMessage, usize)> {
    let messages_received = match bytes.first()? {
        1 => {
            let body = body(version, bytes)?;
            let configuration = if version == 1 { of_java(body) } else { of_json(body) };
            return Some((
                CollectorMessage::Configuration(configuration),
                body.as_ptr_range().end as usize - bytes.as_ptr() as usize,
            ));
        }
        2 => CollectorMessage::Start,
        3 => CollectorMessage::Stop,
        4 => CollectorMessage::Pause,
        5 => CollectorMessage::Unpause,
        6 => CollectorMessage::Suspend,
        7 => CollectorMessage::Unsuspend,
        99 => {
            let length = 3 + usize::from(u16::from_be_bytes(bytes.get(1..3)?.try_into().unwrap()));
            bytes.get(..length)?;
            return Some((CollectorMessage::Error(text::read(text::at(bytes, 1))), length));
        }
        other => panic!("an agent would die of a message of type {other}"),
    };
    Some((messages_received, 1))
}

/// The body of a configuration that starts here, once it is complete.
pub fn body(version: u8, bytes: &[u8]) -> Option<&[u8]> {
    let (begin, length) = match version {
        1 => (5, u32::from_be_bytes(bytes.get(1..5)?.try_into().unwrap()) as usize),
        _ => (3, usize::from(u16::from_be_bytes(bytes.get(1..3)?.try_into().unwrap()))),
    };
    bytes.get(begin..begin + length)
}

/// The blob of a version 1 collector: everything but the lists has a fixed offset.
fn of_java(blob: &[u8]) -> Configuration {
    let number = |offset: usize| i64::from(i32::from_be_bytes(blob[offset..offset + 4].try_into().unwrap()));
    assert_eq!(text::at(blob, 6), b"com.secdec.bytefrog.common.config.RuntimeAgentConfigurationV1");
    let (exclusions, end) = java_list(blob, 0x114);
    assert_eq!(blob[end..end + 6], [0x73, 0x71, 0, 0x7e, 0, 3], "the second list is of the class of the first");
    let (inclusions, end) = java_list(blob, end + 6);
    assert_eq!(end, blob.len(), "nothing stands behind the second list");
    Configuration {
        buffer_bytes: number(0xd8),
        heartbeat_millis: number(0xdc),
        senders: number(0xe0),
        retries: number(0xe4),
        run: blob[0xe8],
        exclusions,
        inclusions,
    }
}

/// The texts of a list whose count is at `offset`, and the offset of its end.
fn java_list(blob: &[u8], offset: usize) -> (Vec<String>, usize) {
    let count = &blob[offset..offset + 4];
    assert_eq!(blob[offset + 4..offset + 10], [&[0x77, 4], count].concat());
    let mut at = offset + 10;
    let mut texts = Vec::new();
    for _ in 0..u32::from_be_bytes(count.try_into().unwrap()) {
        assert_eq!(blob[at], 0x74, "a string at {at:#x}");
        let text = text::at(blob, at + 1);
        texts.push(text::read(text));
        at += 3 + text.len();
    }
    assert_eq!(blob[at], 0x78, "the end of the list at {at:#x}");
    (texts, at + 1)
}

/// The text of versions 2 to 4. It panics at what the parser of a real agent rejects.
fn of_json(body: &[u8]) -> Configuration {
    let object: Value = serde_json::from_str(&text::read(body)).unwrap();
    let number = |key: &str| object[key].as_i64().unwrap_or_else(|| panic!("{key} is not an integer in {object}"));
    let list = |key: &str| {
        let elements = object[key].as_array().unwrap_or_else(|| panic!("{key} is not a list in {object}"));
        elements.iter().map(|element| element.as_str().unwrap().to_owned()).collect()
    };
    Configuration {
        buffer_bytes: number("bufferMemoryBudget"),
        heartbeat_millis: number("heartbeatInterval"),
        senders: number("numDataSenders"),
        retries: number("queueRetryCount"),
        run: u8::try_from(number("runId")).unwrap(),
        exclusions: list("exclusions"),
        inclusions: list("inclusions"),
    }
}
