//! What everything that uses NATS shares: how servers are reached, connections, JetStream's API, subjects.
//!
//! Of the client `async-nats` only connections, TLS and credentials are used. JetStream is spoken in its own JSON: `api::call`.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "client"), expect(dead_code, reason = "only the client calls these functions"))]

mod address;
#[cfg(feature = "client")]
pub mod api;
#[cfg(feature = "client")]
mod bucket;
#[cfg(not(feature = "client"))]
#[path = "no_bucket.rs"]
mod bucket;
mod bucket_options;
#[cfg(feature = "client")]
mod connection;
mod options;
pub mod subject;

pub use address::ServerAddress;
pub use bucket::Bucket;
pub use bucket_options::BucketOptions;
#[cfg(feature = "client")]
pub use connection::NatsConnection;
pub use options::Servers;
pub use options::check_name;

/// Why this build cannot connect to servers of NATS, if it cannot.
pub const MISSING: Option<&str> = if cfg!(feature = "client") {
    None
} else {
    Some("this build has no NATS: it was made without the feature `fleet`")
};

/// Why something did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NatsError {
    /// Another attempt can succeed.
    Later(String),
    /// Nothing can succeed until an operator corrects something, here or there: a key, a name, a permission. Another attempt
    /// shows whether that was done.
    Blocked(String),
}

impl NatsError {
    /// What happened.
    pub fn why(&self) -> &str {
        match self {
            NatsError::Later(why) | NatsError::Blocked(why) => why,
        }
    }
}
