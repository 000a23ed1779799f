//! The reply to `handshake`: the identity of the process, and which profiles are on.

use std::sync::Arc;

use tributary_codec::msgpack::{MsgpackValue as Wire, Reader};
use tributary_codec::reader::DecodeError;
use tributary_codec::text::repair;
use tributary_event::{Name, Resource, ResourceValue, SampleClock, semconv as names};

use super::wire::{Family, MessageHead, Type, wrong, wrong_type};

/// A handshake reply (field notes, section 2). A field that the agent does not send is None.
#[derive(Clone, Debug, PartialEq, Default)]
pub(super) struct Handshake {
    /// The family of the agent's event numbers; never derived from its version (rule 1). Always set after reading.
    pub(super) family: Option<Family>,
    pub(super) server_version: Option<String>,
    pub(super) protocol_version: Option<String>,
    pub(super) process: Option<String>,
    pub(super) directory: Option<String>,
    pub(super) pid: Option<u64>,
    pub(super) memory_profile: Option<bool>,
    pub(super) cpu_profile: Option<bool>,
    pub(super) clock: Option<String>,
    pub(super) mode: Option<String>,
    /// One of its texts was repaired.
    pub(super) is_repaired: bool,
}

impl Handshake {
    /// Reads a reply. Returns it with its time, in milliseconds since the epoch.
    pub(super) fn read(body: &[u8]) -> Result<(Handshake, Option<f64>), DecodeError> {
        let mut reader = Reader::new(body, 0);
        let Wire::Map(pairs) = reader.next("reply")? else {
            return Err(wrong("reply", body, 0, "a map"));
        };
        let head = MessageHead::read(reader, pairs)?;
        let family = match head.kind {
            Some(Type::Number(number)) => Family::of_handshake(number),
            Some(Type::Name(b"handshake")) => Some(Family::Master),
            _ => None,
        };
        let Some(family) = family else {
            return Err(wrong_type(head.kind, "a handshake (7 or 8)"));
        };
        let Some(payload) = head.payload else {
            return Err(wrong("reply", body, 0, "a map with a payload"));
        };
        let mut reader = payload.reader;
        let start = reader.offset();
        let Wire::Map(pairs) = reader.next("payload")? else {
            return Err(wrong("payload", body, start, "a map"));
        };
        let mut handshake = Handshake { family: Some(family), ..Handshake::default() };
        for _ in 0..pairs {
            let mut key = reader;
            reader.skip("key")?;
            let mut value = reader;
            reader.skip("value")?;
            if let Wire::Text(key) = key.next("key")? {
                handshake.take(key, value.next("value")?);
            }
        }
        for _ in 0..payload.after {
            reader.skip("key")?;
            reader.skip("value")?;
        }
        if !reader.is_at_end() {
            return Err(wrong("reply", body, reader.offset(), "its end"));
        }
        Ok((handshake, head.time))
    }

    fn take(&mut self, key: &[u8], value: Wire<'_>) {
        let text = match value {
            Wire::Text(text) => {
                let (text, is_repaired) = repair(text);
                self.is_repaired |= is_repaired;
                Some(text.into_owned())
            }
            _ => None,
        };
        let number = if let Wire::Unsigned(number) = value { Some(number) } else { None };
        let flag = match value {
            Wire::Bool(flag) => Some(flag),
            _ => number.map(|number| number != 0),
        };
        match key {
            b"rbkit_server_version" => self.server_version = text,
            b"rbkit_protocol_version" => self.protocol_version = text,
            b"process_name" => self.process = text,
            b"pwd" => self.directory = text,
            b"pid" => self.pid = number,
            b"object_trace_enabled" => self.memory_profile = flag,
            b"cpu_profiling_enabled" => self.cpu_profile = flag,
            b"clock_type" => self.clock = text,
            b"cpu_profiling_mode" => self.mode = text,
            _ => {}
        }
    }

    /// Whether it is the released gem, which has no CPU profile and listens on every interface (rule 28).
    pub(super) fn is_released(&self) -> bool {
        self.family == Some(Family::Master) && self.protocol_version.is_none()
    }

    /// The clock of the CPU profile; `None`: the agent does not send it, or it is unknown.
    pub(super) fn sample_clock(&self) -> Option<SampleClock> {
        [SampleClock::Cpu, SampleClock::Wall].into_iter().find(|clock| self.clock.as_deref() == Some(clock.as_str()))
    }

    /// The resource of the process's events.
    pub(super) fn resource(&self) -> Arc<Resource> {
        let text = |name: Name, value: &Option<String>| {
            value.as_ref().map(|value| (name.as_str().to_owned(), ResourceValue::Text(value.clone())))
        };
        let pid = self.pid.map(|pid| (names::PROCESS_PID.as_str().to_owned(), ResourceValue::U64(pid)));
        let runtime = (names::PROCESS_RUNTIME_NAME.as_str().to_owned(), ResourceValue::from("ruby"));
        let attributes = [
            pid,
            text(names::PROCESS_EXECUTABLE_NAME, &self.process),
            text(names::PROCESS_WORKING_DIRECTORY, &self.directory),
            Some(runtime),
            text(names::RBKIT_SERVER_VERSION, &self.server_version),
            text(names::RBKIT_PROTOCOL_VERSION, &self.protocol_version),
        ];
        Arc::new(Resource::new(attributes.into_iter().flatten()))
    }
}
