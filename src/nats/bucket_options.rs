//! How a listener reaches a bucket of JetStream: keys that listeners of several protocols have in common.

use std::time::Duration;

use tributary_options::{Bounds, Section};

use super::options::{Servers, is_name, server_addresses};

/// The client's buffers, and requests that wait for their answers.
const CLIENT_BYTES: u64 = 4 << 20;

/// A key-value bucket, and how it is reached.
#[derive(Clone, PartialEq, Debug)]
pub struct BucketOptions {
    /// The servers, and how they are reached.
    pub servers: Servers,
    /// The name of the bucket.
    pub bucket: String,
    /// The bucket is created if it does not exist. Default yes.
    pub create: bool,
    /// The replicas of a bucket that is created, and the fewest of one that exists. Default 1.
    pub replicas: usize,
}

impl BucketOptions {
    /// Reads `key`, `nats://host:port,host:port/bucket`, and the section `nats`; errors are reported to the section. `None`: the
    /// key is not set.
    pub fn read(section: &mut Section<'_>, key: &str) -> Option<BucketOptions> {
        let text = section.optional_text(key);
        section.about("How the bucket is reached, if `state` or `seen` is set.");
        let mut options = section.section("nats", |section| BucketOptions {
            servers: Servers::read(section, false),
            bucket: String::new(),
            create: section
                .about("Whether the bucket is created if it does not exist. One that exists is never changed.")
                .bool("create", true),
            replicas: section
                .about("The replicas of a bucket that is created, and the fewest of one that exists.")
                .count("replicas", 1, 1..=5),
        });
        let text = text?;
        let example = format!("write {key} = \"nats://host:4222/bucket\"");
        let Some((addresses, bucket)) = text.rsplit_once('/').filter(|(addresses, _)| addresses.contains("://")) else {
            section.error(key, format!("`{text}` names no bucket"), Some(example));
            return None;
        };
        let is_bucket =
            |text: &str| is_name(text) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if !is_bucket(bucket) {
            section.error(key, format!("`{bucket}` is not the name of a bucket"), Some(example));
            return None;
        }
        let scheme = addresses.split("://").next().unwrap_or_default();
        let complete = |address: &str| {
            if address.contains("://") { address.to_owned() } else { format!("{scheme}://{address}") }
        };
        let addresses = addresses.split(',').map(complete).collect();
        options.servers.servers = server_addresses(section, key, addresses, &example);
        options.bucket = bucket.to_owned();
        Some(options)
    }

    /// The bucket, for messages.
    pub fn shown(&self) -> String {
        format!("the bucket {} at {}", self.bucket, self.servers.shown())
    }

    /// How long connecting and two requests take at most.
    pub(crate) fn longest(&self) -> Duration {
        self.servers.connect_timeout + 2 * self.servers.request_timeout
    }

    /// Declares the memory that it takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        bounds.add(of, format!("the connection to the bucket {}", self.bucket), CLIENT_BYTES);
    }
}
