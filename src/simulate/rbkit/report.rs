//! What a simulated process has sent, and what it has received from collectors.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use super::super::Sent;
use super::dialect::RbkitDialect;

/// The number of different requests that are counted by name.
const MAX_REQUEST_NAMES: usize = 64;

/// What a process has received from collectors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// Requests by name.
    pub requests: BTreeMap<String, u64>,
    /// Requests without a body. After one of them the gem never answers again, except for the released version.
    pub empty_requests: u64,
    /// Requests that arrived before the previous one was answered.
    pub second_requests: u64,
    /// Messages without a delimiter frame, which are not requests.
    pub undelimited: u64,
    /// Requests that are not commands.
    pub unknown_requests: u64,
    /// Commands to stop a profile that was off.
    pub needless_stops: u64,
    /// Connections on which something besides greeting and READY arrived before our READY: libzmq closes them.
    pub pipelined: u64,
}

impl Received {
    /// The number of faults of collectors.
    pub fn faults(&self) -> u64 {
        let Received { requests: _, empty_requests, second_requests, undelimited, .. } = self;
        let Received { unknown_requests, needless_stops, pipelined, .. } = self;
        empty_requests + second_requests + undelimited + unknown_requests + needless_stops + pipelined
    }

    /// Whether the process answers no requests any more.
    pub(super) fn is_stuck(&self, dialect: RbkitDialect) -> bool {
        self.empty_requests > 0 && dialect != RbkitDialect::V0110
    }

    pub(super) fn count_request(&mut self, name: String) {
        if self.requests.len() < MAX_REQUEST_NAMES || self.requests.contains_key(&name) {
            *self.requests.entry(name).or_default() += 1;
        }
    }
}

/// The result of a simulation.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Messages are those of both sockets. Events are those of the program, and one for each handshake whose reply was new
    /// on its connection.
    pub sent: Sent,
    /// What was received from collectors.
    pub received: Received,
}

impl Report {
    /// One line of JSON, without a line end: the fields of [`Sent`], and what was received.
    pub fn to_json(&self) -> String {
        let Received { requests, empty_requests, second_requests, undelimited, .. } = &self.received;
        let Received { unknown_requests, needless_stops, pipelined, .. } = &self.received;
        let mut line = self.sent.to_json();
        line.pop();
        line.push_str(",\"requests\":{");
        for (number, (name, count)) in requests.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(line, "{comma}{}:{count}", serde_json::Value::from(name.as_str()));
        }
        let _ = write!(
            line,
            "}},\"faults\":{{\"empty_requests\":{empty_requests},\"second_requests\":{second_requests},\
             \"undelimited\":{undelimited},\"unknown_requests\":{unknown_requests},\
             \"needless_stops\":{needless_stops},\"pipelined\":{pipelined}}}}}"
        );
        line
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} faults of collectors", self.sent, self.received.faults())
    }
}
