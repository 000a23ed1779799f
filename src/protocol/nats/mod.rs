//! Messages of a stream of NATS: JSON lines of events that another collector has published. The events keep the origin that
//! they have.

mod exchange;
mod lines;
mod work;

use tributary_options::options;

pub use exchange::NatsExchange;
pub use work::NatsWork;

options! {
    /// Limits of a message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct MessageLimits {
        /// The longest message, as it is in the stream. A longer one goes to the quarantine. The default is the longest that a server
        /// takes unless it is configured otherwise.
        pub max_message_bytes: u64 = size(1 << 20, 1 << 10..=64 << 20),
        /// The most bytes of lines that a compressed message may have. A message with more goes to the quarantine.
        pub max_inflated_bytes: u64 = size(64 << 20, 1 << 10..=1 << 30),
        /// The longest line. A message with a longer one goes to the quarantine.
        pub max_line_bytes: u64 = size(4 << 20, 1 << 10..=64 << 20),
    }
}
