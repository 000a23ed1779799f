//! The bucket of a build without a client of NATS: it cannot be used. No configuration of such a build names one.

use std::future::pending;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{BucketOptions, MISSING, NatsError};

/// A bucket that cannot be used.
#[derive(Debug)]
pub struct Bucket(());

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEntry {
    /// The number of its last change.
    pub revision: u64,
    /// `None`: it has none, or was removed.
    pub value: Option<Vec<u8>>,
}

fn missing<T>() -> Result<T, NatsError> {
    Err(NatsError::Blocked(MISSING.unwrap_or_default().to_owned()))
}

#[expect(clippy::unused_async, reason = "the signatures of the bucket of a whole build")]
impl Bucket {
    /// Notes why it cannot be used.
    pub fn start(
        _user: &str,
        _options: &BucketOptions,
        _age: Option<Duration>,
        note: impl Fn(Option<&NatsError>) + Send + Sync + 'static,
        _runtime: &Handle,
    ) -> Bucket {
        note(missing::<()>().as_ref().err());
        Bucket(())
    }

    /// Never ends.
    pub async fn usable(&self) {
        pending::<()>().await;
    }

    /// Fails, as all that follow.
    ///
    /// # Errors
    /// There is no client.
    pub async fn get(&self, _key: &str) -> Result<BucketEntry, NatsError> {
        missing()
    }

    /// # Errors
    /// There is no client.
    pub async fn get_from_any(&self, _key: &str) -> Result<Option<Vec<u8>>, NatsError> {
        missing()
    }

    /// # Errors
    /// There is no client.
    pub async fn set_if(&self, _key: &str, _value: Vec<u8>, _revision: u64) -> Result<Option<u64>, NatsError> {
        missing()
    }

    /// # Errors
    /// There is no client.
    pub async fn set(&self, _key: &str, _value: Vec<u8>) -> Result<(), NatsError> {
        missing()
    }

    /// # Errors
    /// There is no client.
    pub async fn count(&self) -> Result<u64, NatsError> {
        missing()
    }

    /// # Errors
    /// There is no client.
    pub async fn keys(&self, _prefix: &str) -> Result<Vec<String>, NatsError> {
        missing()
    }
}
