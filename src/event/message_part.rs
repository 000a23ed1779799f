//! Batches of messages that can be delivered several times.

/// What a batch is of a message that a stream stores, and that can be delivered several times: the events of these lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessagePart {
    /// The stream.
    pub stream: u64,
    /// The number of the message in the stream.
    pub sequence: u64,
    /// The number of its first line in the message, from 0.
    pub first_line: u32,
    /// The number of the line behind its last one.
    pub end_line: u32,
}
