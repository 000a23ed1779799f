//! The sink that publishes events to a stream of NATS JetStream, as JSON lines.
//!
//! A message has events of one subject: of one protocol and kind. It stays open for more events until its lines have
//! `batch_bytes`, until `max_message_delay` after the first event, or until a peer waits for the acknowledgement of its events.
//! A batch whose content has an id is in messages of its own.
//!
//! With a spool, events are written when their message is in its file, and durable when that is synced. Without one they are
//! written, and durable, when JetStream has acknowledged the message.
//!
//! Without the feature `client` there are only its options, and the reader of its requests in a spool.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "client"), expect(dead_code, reason = "only the client calls these functions"))]

#[cfg(feature = "client")]
mod destination;
mod message;
#[cfg(feature = "client")]
mod open;
mod options;
#[cfg(feature = "client")]
mod sink;
#[cfg(feature = "client")]
mod stream;
mod subject;

#[cfg(feature = "client")]
pub use destination::JetStream;
pub use message::lines;
pub use options::Options;
#[cfg(feature = "client")]
pub use sink::{Nats, NatsEncoder};
pub use tributary_sink_forward::{GiveUp, RetryOptions, SpoolOptions, WhenFull};
