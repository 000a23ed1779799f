//! What everything that uses NATS shares: how servers are reached, connections, JetStream's API, subjects.
//!
//! Of the client `async-nats` only connections, TLS and credentials are used. JetStream is spoken in its own JSON: `api::call`.
#![forbid(unsafe_code)]

pub mod api;
mod bucket;
mod bucket_options;
mod connection;
mod options;
pub mod subject;

pub use bucket::Bucket;
pub use bucket_options::BucketOptions;
pub use connection::Connection;
pub use options::Servers;
pub use options::check_name;

/// Why something did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Another attempt can succeed.
    Later(String),
    /// Nothing can succeed until an operator corrects something, here or there: a key, a name, a permission. Another attempt
    /// shows whether that was done.
    Blocked(String),
}

impl Fault {
    /// What happened.
    pub fn why(&self) -> &str {
        match self {
            Fault::Later(why) | Fault::Blocked(why) => why,
        }
    }
}
