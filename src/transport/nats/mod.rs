//! Listeners of streams of NATS JetStream. Without the feature `nats` there are only their options.

#[cfg(feature = "nats")]
mod consumer;
#[cfg(feature = "nats")]
mod delivery;
#[cfg(feature = "nats")]
mod listener;
pub mod options;
#[cfg(feature = "nats")]
mod session;

#[cfg(feature = "nats")]
pub use listener::NatsListener;
