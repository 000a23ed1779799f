//! JetStream's API: requests and answers in its JSON, with its error codes and words.

use std::time::Duration;

use async_nats::{Client, RequestErrorKind};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::NatsError;

/// Codes of JetStream's errors: <https://github.com/nats-io/nats-server/blob/main/server/errors.json>.
pub mod code {
    /// There is no such stream.
    pub(crate) const STREAM_NOT_FOUND: u32 = 10059;
    /// There is no such consumer.
    pub const CONSUMER_NOT_FOUND: u32 = 10014;
    /// The message is larger than the stream allows.
    pub const MESSAGE_TOO_LARGE: u32 = 10054;
    /// The message came to another stream than the expected one.
    pub const OTHER_STREAM: u32 = 10060;
    /// There is no message of that subject.
    pub(crate) const MESSAGE_NOT_FOUND: u32 = 10037;
    /// The subject has had another message since.
    pub(crate) const WRONG_LAST_SEQUENCE: u32 = 10071;
    /// JetStream is off, or off for this account.
    pub(crate) const OFF: [u32; 2] = [10039, 10076];
}

/// An answer of JetStream.
#[derive(Debug, Deserialize)]
pub struct Reply<T> {
    /// Why there is no content.
    pub error: Option<ApiError>,
    /// What was asked for.
    #[serde(flatten)]
    pub content: Option<T>,
}

/// An error of JetStream.
#[derive(Debug, Deserialize)]
pub struct ApiError {
    /// One of [`code`], or another.
    #[serde(default)]
    pub err_code: u32,
    /// In the words of the server.
    #[serde(default)]
    pub description: String,
}

impl ApiError {
    /// The fault that this error is, with what it prevented.
    pub fn fault(&self, what: &str) -> NatsError {
        let why = format!("{what}: {} ({})", self.description, self.err_code);
        if code::OFF.contains(&self.err_code) { NatsError::Blocked(why) } else { NatsError::Later(why) }
    }
}

/// A duration as JetStream has it, in nanoseconds.
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// What JetStream says of the stream `name`, and whether this call has created it, by `creation`. With a sentence in its place
/// that says what to do, a stream that does not exist is a fault. `shown`: the stream, for messages.
///
/// # Errors
/// [`NatsError::Blocked`]: it does not exist, or the server does not run JetStream. [`NatsError::Later`]: it does not answer now.
pub async fn stream<T: DeserializeOwned>(
    client: &Client,
    name: &str,
    shown: &str,
    creation: Result<String, &str>,
) -> Result<(T, bool), NatsError> {
    match call(client, &format!("STREAM.INFO.{name}"), String::new()).await? {
        Ok(info) => return Ok((info, false)),
        Err(error) if error.err_code == code::STREAM_NOT_FOUND => {}
        Err(error) => return Err(error.fault(&format!("cannot look at {shown}"))),
    }
    let body = creation.map_err(|help| NatsError::Blocked(format!("{shown} does not exist; {help}")))?;
    match call(client, &format!("STREAM.CREATE.{name}"), body).await? {
        Ok(info) => Ok((info, true)),
        Err(error) => Err(error.fault(&format!("cannot create {shown}"))),
    }
}

/// A request to JetStream's API, and its answer or error.
///
/// # Errors
/// [`NatsError::Blocked`]: the server does not run JetStream. [`NatsError::Later`]: it does not answer now.
pub async fn call<T: DeserializeOwned>(
    client: &Client,
    call: &str,
    body: String,
) -> Result<Result<T, ApiError>, NatsError> {
    let reply = client.request(format!("$JS.API.{call}"), body.into()).await.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => NatsError::Blocked("the server does not run JetStream".to_owned()),
        kind => NatsError::Later(format!("no answer of JetStream to {call}: {kind}")),
    })?;
    let invalid = |why: String| NatsError::Later(format!("the answer of JetStream to {call} is not valid: {why}"));
    let reply: Reply<T> = serde_json::from_slice(&reply.payload).map_err(|error| invalid(error.to_string()))?;
    match reply {
        Reply { error: Some(error), .. } => Ok(Err(error)),
        Reply { content: Some(content), .. } => Ok(Ok(content)),
        Reply { .. } => Err(invalid("something is missing in it".to_owned())),
    }
}
