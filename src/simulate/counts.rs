//! What agents have sent, in numbers.

use std::fmt;
use std::ops::AddAssign;

/// Objects of the protocol, and the events that the daemon writes for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Objects on the wire, definitions included; for HTTP, requests.
    pub messages: u64,
    /// Events; definitions are not counted.
    pub events: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Counts) {
        self.messages += more.messages;
        self.events += more.events;
    }
}

/// What was sent, to compare with the other side.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sent {
    /// The name of the protocol.
    pub protocol: &'static str,
    /// Objects on the wire, definitions included.
    pub messages: u64,
    /// Events that the daemon writes for them. For `datadog`: one per connection, trace object and span. For
    /// `bytefrog`: one per hello, heartbeat, class, numbered message and end of a run. For `endless`: one per singular
    /// and aggregate event and per element of a sequence. For `zico`: one per registration, session, record and
    /// exception.
    pub events: u64,
    /// Bytes, without those of TCP.
    pub bytes: u64,
    /// Seconds from the call until the system had accepted the last byte; for `bytefrog` the last byte of data.
    pub seconds: f64,
}

impl Sent {
    /// One line of JSON, without a line end.
    pub fn to_json(&self) -> String {
        let Sent { protocol, messages, events, bytes, seconds } = self;
        format!(
            r#"{{"protocol":"{protocol}","messages":{messages},"events":{events},"bytes":{bytes},"seconds":{seconds:.6}}}"#
        )
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sent { protocol, messages, events, bytes, seconds } = self;
        write!(f, "{protocol}: {events} events in {messages} messages, {bytes} bytes, {seconds:.3} s")
    }
}
