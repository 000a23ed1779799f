//! The stream that takes the messages: it is created if that is configured, and never changed.

use std::time::Duration;

use async_nats::{Client, RequestErrorKind};
use serde::Deserialize;
use serde_json::json;

use super::options::Options;
use super::subject::{is_taken_by, overlap, pattern};
use crate::options::units::format_duration;
use crate::sink::forward::Answer;

/// Codes of JetStream's errors: <https://github.com/nats-io/nats-server/blob/main/server/errors.json>.
pub(super) mod code {
    /// There is no such stream.
    pub(in super::super) const STREAM_NOT_FOUND: u32 = 10059;
    /// The message is larger than the stream allows.
    pub(in super::super) const MESSAGE_TOO_LARGE: u32 = 10054;
    /// The message came to another stream than the expected one.
    pub(in super::super) const OTHER_STREAM: u32 = 10060;
    /// JetStream is off, or off for this account.
    pub(in super::super) const OFF: [u32; 2] = [10039, 10076];
}

/// An answer of JetStream.
#[derive(Debug, Deserialize)]
pub(super) struct Reply<T> {
    pub(super) error: Option<ApiError>,
    #[serde(flatten)]
    pub(super) content: Option<T>,
}

/// An error of JetStream.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    pub(super) err_code: u32,
    #[serde(default)]
    pub(super) description: String,
}

#[derive(Debug, Deserialize)]
struct Info {
    config: Config,
}

/// What matters of the configuration of a stream. Durations are in nanoseconds.
#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    num_replicas: usize,
    #[serde(default)]
    duplicate_window: u64,
    #[serde(default)]
    storage: String,
    #[serde(default)]
    no_ack: bool,
    #[serde(default)]
    sealed: bool,
}

/// A stream that can take messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stream {
    pub(super) subjects: Vec<String>,
    /// Its messages do not survive a restart of its servers.
    pub(super) is_in_memory: bool,
}

impl Stream {
    /// The stream of the options, which is created if that is configured.
    ///
    /// # Errors
    /// [`Answer::Blocked`]: it does not exist, or has another shape. [`Answer::Later`]: the server does not tell now.
    pub(super) async fn open(client: &Client, options: &Options) -> Result<Stream, Answer> {
        let name = &options.stream;
        let (call, body) = match request(client, &format!("STREAM.INFO.{name}"), String::new()).await? {
            Ok(info) => return accepted(info, options),
            Err(error) if error.err_code == code::STREAM_NOT_FOUND => {
                if !options.create {
                    let why = format!("the stream {name} does not exist; create it, or set create = true");
                    return Err(Answer::Blocked(why));
                }
                (format!("STREAM.CREATE.{name}"), creation(options))
            }
            Err(error) => return Err(refusal(&format!("cannot look at the stream {name}"), &error)),
        };
        match request(client, &call, body).await? {
            Ok(info) => {
                tracing::info!(stream = name, replicas = options.replicas, "created the stream");
                accepted(info, options)
            }
            Err(error) => Err(refusal(&format!("cannot create the stream {name}"), &error)),
        }
    }

    /// Whether it takes messages with this subject.
    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|taken| is_taken_by(subject, taken))
    }
}

fn creation(options: &Options) -> String {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let max_bytes = if options.max_bytes == 0 { json!(-1) } else { json!(options.max_bytes) };
    let config = json!({
        "name": options.stream,
        "subjects": [pattern(&options.subject)],
        "retention": "limits",
        // A full stream refuses messages, and they wait at their sender.
        "discard": "new",
        "storage": "file",
        "num_replicas": options.replicas,
        "duplicate_window": nanos(options.duplicate_window),
        "max_age": nanos(options.max_age),
        "max_bytes": max_bytes,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
    });
    config.to_string()
}

/// Checks the shape of a stream.
fn accepted(info: Info, options: &Options) -> Result<Stream, Answer> {
    let (config, name) = (info.config, &options.stream);
    let window = Duration::from_nanos(config.duplicate_window);
    let subjects = pattern(&options.subject);
    let wrong = if config.sealed {
        Some("is sealed, so it takes no messages".to_owned())
    } else if config.no_ack {
        Some("has no_ack, so it acknowledges no messages".to_owned())
    } else if !config.subjects.iter().any(|taken| overlap(&subjects, taken)) {
        Some(format!("takes the subjects [{}], and not {subjects}", config.subjects.join(", ")))
    } else if config.num_replicas < options.replicas {
        Some(format!("has num_replicas = {}, and replicas = {} is configured", config.num_replicas, options.replicas))
    } else if window < options.duplicate_window {
        let (window, configured) = (format_duration(window), format_duration(options.duplicate_window));
        Some(format!("recognizes repeats for {window}, and duplicate_window = \"{configured}\" is configured"))
    } else {
        None
    };
    match wrong {
        Some(why) => Err(Answer::Blocked(format!("the stream {name} {why}; change the stream or the sink"))),
        None => Ok(Stream { subjects: config.subjects, is_in_memory: config.storage == "memory" }),
    }
}

fn refusal(what: &str, error: &ApiError) -> Answer {
    let why = format!("{what}: {} ({})", error.description, error.err_code);
    if code::OFF.contains(&error.err_code) { Answer::Blocked(why) } else { Answer::Later(why, None) }
}

/// A request to JetStream's API.
async fn request(client: &Client, call: &str, body: String) -> Result<Result<Info, ApiError>, Answer> {
    let reply = client.request(format!("$JS.API.{call}"), body.into()).await.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => Answer::Blocked("the server does not run JetStream".to_owned()),
        kind => Answer::Later(format!("no answer of JetStream to {call}: {kind}"), None),
    })?;
    let invalid = |why: String| Answer::Later(format!("the answer of JetStream to {call} is not valid: {why}"), None);
    let reply: Reply<Info> = serde_json::from_slice(&reply.payload).map_err(|error| invalid(error.to_string()))?;
    match reply {
        Reply { error: Some(error), .. } => Ok(Err(error)),
        Reply { content: Some(info), .. } => Ok(Ok(info)),
        Reply { .. } => Err(invalid("there is no configuration".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_must_take_acknowledge_and_keep_messages_as_configured() {
        let options = Options { replicas: 2, ..Options::to(Vec::new()) };
        let judged = |json: &str| {
            let defaults = "\"num_replicas\":2,\"duplicate_window\":120000000000,\"storage\":\"file\"";
            let info =
                serde_json::from_str(&format!("{{\"config\":{{{json}}}}}").replace("DEFAULTS", defaults)).unwrap();
            accepted(info, &options)
        };
        let stream = judged(r#""subjects":["other","tributary.zico.>"],DEFAULTS"#).unwrap();
        assert!(stream.takes("tributary.zico.span") && !stream.takes("tributary.rbkit.span") && !stream.is_in_memory);
        for (json, why) in [
            (r#""subjects":["tributary.>"],"sealed":true,DEFAULTS"#, "is sealed"),
            (r#""subjects":["tributary.>"],"no_ack":true,DEFAULTS"#, "has no_ack"),
            (r#""subjects":["tributary"],DEFAULTS"#, "takes the subjects [tributary], and not tributary.*.*"),
            (r#"DEFAULTS"#, "takes the subjects []"),
            (r#""subjects":["tributary.>"],"num_replicas":1,"duplicate_window":120000000000"#, "has num_replicas = 1"),
            (
                r#""subjects":["tributary.>"],"num_replicas":3,"duplicate_window":1000000000"#,
                "recognizes repeats for 1s",
            ),
        ] {
            match judged(json) {
                Err(Answer::Blocked(text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{json}: {other:?}"),
            }
        }
    }
}
