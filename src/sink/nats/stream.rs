//! The stream that takes the messages: it is created if that is configured, and never changed.

use std::time::Duration;

use async_nats::Client;
use serde::Deserialize;
use serde_json::json;

use super::options::Options;
use super::subject::pattern;
use tributary_nats::NatsError;
use tributary_nats::api::{self, nanos};
use tributary_nats::subject::{is_taken_by, overlap};
use tributary_options::units::format_duration;

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
pub(super) struct MessageStream {
    pub(super) subjects: Vec<String>,
    /// Its messages do not survive a restart of its servers.
    pub(super) is_in_memory: bool,
}

impl MessageStream {
    /// The stream of the options, which is created if that is configured.
    ///
    /// # Errors
    /// [`NatsError::Blocked`]: it does not exist, or has another shape. [`NatsError::Later`]: the server gives no answer now.
    pub(super) async fn open(client: &Client, options: &Options) -> Result<MessageStream, NatsError> {
        let (name, help) = (&options.stream, "create it, or set create = true");
        let creation = if options.create { Ok(creation(options)) } else { Err(help) };
        let (info, is_created) = api::stream(client, name, &format!("the stream {name}"), creation).await?;
        if is_created {
            tracing::info!(stream = name, replicas = options.replicas, "created the stream");
        }
        accepted(info, options)
    }

    /// Whether it takes messages with this subject.
    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|taken| is_taken_by(subject, taken))
    }
}

fn creation(options: &Options) -> String {
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
fn accepted(info: Info, options: &Options) -> Result<MessageStream, NatsError> {
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
        Some(why) => Err(NatsError::Blocked(format!("the stream {name} {why}; change the stream or the sink"))),
        None => Ok(MessageStream { subjects: config.subjects, is_in_memory: config.storage == "memory" }),
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
                Err(NatsError::Blocked(text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{json}: {other:?}"),
            }
        }
    }
}
