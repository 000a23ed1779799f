//! A fault that ends a connection, and the bytes that are lost with it.

use tributary_event::{Header, Loss, Position, Reason, semconv};

use super::{Now, Output};

/// Why a session has closed. It is reported once, at the end of the connection, so that the report does not depend on how
/// the stream was cut into reads.
#[derive(Debug)]
pub struct SessionError {
    /// The reason of the loss.
    pub reason: Reason,
    /// Offset of the message at fault in the peer's stream.
    pub(super) offset: u64,
    bytes: u64,
    /// What is wrong, in words.
    pub detail: String,
    excerpt: Vec<u8>,
}

impl SessionError {
    /// A fault without lost bytes.
    pub fn new(reason: Reason, offset: u64, detail: String) -> Self {
        SessionError { reason, offset, bytes: 0, detail, excerpt: Vec::new() }
    }

    /// Adds lost bytes.
    pub fn count(&mut self, bytes: &[u8]) {
        let space = Loss::EXCERPT - self.excerpt.len();
        self.excerpt.extend_from_slice(&bytes[..bytes.len().min(space)]);
        self.bytes += bytes.len() as u64;
    }

    /// Adds a number of lost bytes that no excerpt shows.
    pub fn count_unseen(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Whether bytes are lost.
    pub fn has_bytes(&self) -> bool {
        self.bytes > 0
    }

    /// Writes the loss event.
    pub fn report(&self, now: Now, out: &mut Output) {
        let SessionError { reason, offset, bytes, detail, excerpt } = self;
        let position = Position { sequence: None, offset: *offset, length: *bytes };
        let loss = Loss { reason: *reason, bytes: *bytes, events: None, detail, excerpt };
        out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
    }
}
