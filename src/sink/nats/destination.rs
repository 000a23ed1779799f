//! Publishes messages to JetStream, and reads its acknowledgements.

use async_nats::{HeaderMap, Request as NatsRequest, RequestErrorKind};
use serde::Deserialize;
use tokio::sync::Mutex;
use tracing::warn;

use super::message::{NatsMessage, divide};
use super::options::Options;
use super::stream::MessageStream;
use tributary_nats::api::{ApiError, Reply, code};
use tributary_nats::{NatsConnection, NatsError};
use tributary_sink_forward::{AttemptOutcome, Compression, Destination, EncodedRequest};

/// Of these headers JetStream knows the first two: repeats have the same id, and a message for another stream is refused.
const MESSAGE_ID: &str = "Nats-Msg-Id";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
const CONTENT_TYPE: &str = "Content-Type";
const CONTENT_ENCODING: &str = "Content-Encoding";
/// The media type of JSON lines.
const NDJSON: &str = "application/x-ndjson";

/// A stream of JetStream.
#[derive(Debug)]
pub struct JetStream {
    sink: String,
    options: Options,
    /// The connection in use. Locked while another one is made, so that all messages wait for that one.
    opened: Mutex<Option<Opened>>,
}

#[derive(Clone, Debug)]
struct Opened {
    connection: NatsConnection,
    stream: MessageStream,
}

/// JetStream's acknowledgement.
#[derive(Debug, Deserialize)]
struct PubAck {
    stream: String,
    #[serde(rename = "seq")]
    _sequence: u64,
    /// The stream had a message with this id, and has dropped this one.
    #[serde(default)]
    duplicate: bool,
}

impl JetStream {
    /// The stream of these options. It is looked at with the first connection.
    pub(super) fn new(sink: &str, options: &Options) -> JetStream {
        JetStream { sink: sink.to_owned(), options: options.clone(), opened: Mutex::default() }
    }

    /// The connection in use, or another one.
    async fn open(&self) -> Result<Opened, NatsError> {
        let mut opened = self.opened.lock().await;
        if let Some(opened) = opened.as_ref().filter(|opened| opened.connection.is_open()) {
            return Ok(opened.clone());
        }
        *opened = None;
        let connection = NatsConnection::open(&format!("sink {}", self.sink), &self.options.servers).await?;
        let stream = match MessageStream::open(&connection.client, &self.options).await {
            Ok(stream) => stream,
            Err(fault) => return Err(connection.explain(fault)),
        };
        if stream.is_in_memory {
            let (sink, stream) = (&self.sink, &self.options.stream);
            warn!(sink, stream, "the stream is in memory: what it has acknowledged is lost when its servers stop");
        }
        Ok(opened.insert(Opened { connection, stream }).clone())
    }

    /// The next message is sent on another connection than this one, and the stream is looked at again.
    async fn forget(&self, connection: &NatsConnection) {
        let mut opened = self.opened.lock().await;
        // Another message may have opened one already.
        if opened.as_ref().is_some_and(|opened| opened.connection.is_same(connection)) {
            *opened = None;
        }
    }

    fn headers(&self, id: &str, message: &NatsMessage) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(MESSAGE_ID, id);
        headers.insert(EXPECTED_STREAM, self.options.stream.as_str());
        headers.insert(CONTENT_TYPE, NDJSON);
        match message.compression() {
            Compression::None => {}
            compression => headers.insert(CONTENT_ENCODING, compression.as_str()),
        }
        headers
    }
}

impl Destination for JetStream {
    async fn prepare(&self) -> AttemptOutcome {
        self.open().await.map_or_else(answer_of, |_| AttemptOutcome::Accepted)
    }

    async fn send(&self, request: &EncodedRequest) -> AttemptOutcome {
        let Some(message) = NatsMessage::of(&request.payload) else {
            return AttemptOutcome::Bad("it is not a message of this sink".into());
        };
        let Opened { connection, stream } = match self.open().await {
            Ok(opened) => opened,
            Err(fault) => return answer_of(fault),
        };
        let (name, request_timeout) = (&self.options.stream, &self.options.servers.request_timeout);
        if !stream.takes(&message.subject) {
            self.forget(&connection).await;
            let (taken, subject) = (stream.subjects.join(", "), &message.subject);
            return AttemptOutcome::Refusing(format!(
                "the stream {name} takes the subjects [{taken}], and not {subject}"
            ));
        }
        let headers = self.headers(message.id.as_deref().unwrap_or(&request.id), &message);
        let publish = NatsRequest::new().headers(headers).payload(message.body).timeout(Some(*request_timeout));
        let published = tokio::select! {
            published = connection.client.send_request(message.subject.clone(), publish) => published,
            () = connection.lost.cancelled() => {
                return AttemptOutcome::Away(connection.explained("the connection to the server was lost"), None);
            }
        };
        match published {
            Ok(reply) => judge(&reply.payload, name, &message.subject),
            Err(error) => match error.kind() {
                RequestErrorKind::MaxPayloadExceeded => AttemptOutcome::TooLarge(error.to_string()),
                RequestErrorKind::InvalidSubject => AttemptOutcome::Bad(error.to_string()),
                RequestErrorKind::NoResponders => {
                    self.forget(&connection).await;
                    AttemptOutcome::Away(format!("no stream takes {}", message.subject), None)
                }
                RequestErrorKind::TimedOut => {
                    self.forget(&connection).await;
                    let fault = format!("no acknowledgement of {name} within {request_timeout:?}");
                    AttemptOutcome::Away(connection.explained(&fault), None)
                }
                RequestErrorKind::Other => {
                    self.forget(&connection).await;
                    AttemptOutcome::Away(connection.explained(&error.to_string()), None)
                }
            },
        }
    }

    fn split(&self, request: &EncodedRequest) -> Option<[EncodedRequest; 2]> {
        divide(request, self.options.compress_above)
    }
}

/// What an attempt achieves that ends with this fault.
fn answer_of(fault: NatsError) -> AttemptOutcome {
    match fault {
        NatsError::Later(why) => AttemptOutcome::Away(why, None),
        NatsError::Blocked(why) => AttemptOutcome::Refusing(why),
    }
}

/// What a reply means.
fn judge(reply: &[u8], stream: &str, subject: &str) -> AttemptOutcome {
    match serde_json::from_slice::<Reply<PubAck>>(reply) {
        Ok(Reply { error: Some(ApiError { err_code, description }), .. }) => match err_code {
            code::MESSAGE_TOO_LARGE => AttemptOutcome::TooLarge(description),
            code::OTHER_STREAM => {
                AttemptOutcome::Refusing(format!("another stream than {stream} takes {subject}: {description}"))
            }
            _ => AttemptOutcome::Away(
                format!("the stream {stream} does not take messages now: {description} ({err_code})"),
                None,
            ),
        },
        Ok(Reply { content: Some(PubAck { stream: other, .. }), .. }) if other != stream => {
            AttemptOutcome::Refusing(format!("the stream {other} has acknowledged a message for {stream}"))
        }
        Ok(Reply { content: Some(PubAck { duplicate: true, .. }), .. }) => AttemptOutcome::Duplicate,
        Ok(Reply { content: Some(_), .. }) => AttemptOutcome::Accepted,
        Ok(Reply { .. }) | Err(_) => {
            AttemptOutcome::Away(format!("{subject} was answered by something that is not JetStream"), None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_acknowledgement_of_the_stream_itself_counts() {
        let judge = |reply: &str| judge(reply.as_bytes(), "S", "a.b");
        assert_eq!(judge(r#"{"stream":"S","seq":7}"#), AttemptOutcome::Accepted);
        assert_eq!(judge(r#"{"stream":"S","seq":7,"duplicate":true,"domain":"x"}"#), AttemptOutcome::Duplicate);
        assert!(matches!(judge(r#"{"stream":"T","seq":7}"#), AttemptOutcome::Refusing(_)));
        let error = |code: u32| {
            format!(r#"{{"error":{{"code":400,"err_code":{code},"description":"why"}},"stream":"S","seq":0}}"#)
        };
        assert_eq!(judge(&error(10054)), AttemptOutcome::TooLarge("why".into()));
        assert!(matches!(judge(&error(10060)), AttemptOutcome::Refusing(_)));
        let full = "the stream S does not take messages now: why (10077)";
        assert_eq!(judge(&error(10077)), AttemptOutcome::Away(full.into(), None));
        for other in ["", "{}", "+OK", "[]", r#"{"stream":"S"}"#] {
            assert!(matches!(judge(other), AttemptOutcome::Away(..)), "{other}");
        }
    }
}
