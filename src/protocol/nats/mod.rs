//! Messages of a stream of NATS: JSON lines of events that another collector has published. The events keep the origin that
//! they have.

mod exchange;
mod lines;
mod work;

pub use exchange::NatsExchange;
pub use work::NatsWork;

/// Limits of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// The longest message, as it is in the stream. 1 MiB, which is the longest that a server takes unless it is configured
    /// otherwise. 1 KiB to 64 MiB.
    pub max_message_bytes: u64,
    /// The most bytes of lines that a compressed message may have. 64 MiB. 1 KiB to 1 GiB.
    pub max_inflated_bytes: u64,
    /// The longest line. 4 MiB. 1 KiB to 64 MiB.
    pub max_line_bytes: u64,
}

impl Default for MessageLimits {
    fn default() -> Self {
        MessageLimits { max_message_bytes: 1 << 20, max_inflated_bytes: 64 << 20, max_line_bytes: 4 << 20 }
    }
}
