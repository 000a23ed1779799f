//! The durable consumer of a stream: it is created if it does not exist, and never changed.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::Client;
use serde::Deserialize;
use serde_json::json;

use super::options::NatsOptions;
use tributary_nats::NatsError;
use tributary_nats::api::{self, call, code, nanos};
use tributary_nats::subject::overlap;

/// A consumer that can deliver messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Consumer {
    /// The stream, distinguished from one of the same name that was deleted.
    pub(super) stream: StreamId,
    /// How long it waits for an acknowledgement.
    pub(super) ack_wait: Duration,
}

/// A stream by its name and the time at which it was created.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct StreamId {
    name: String,
    created: String,
    number: u64,
}

/// What a consumer has not delivered, and what was delivered and is not acknowledged: numbers of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) struct Backlog {
    #[serde(default)]
    pub(super) num_pending: u64,
    #[serde(default)]
    pub(super) num_ack_pending: u64,
}

#[derive(Debug, Deserialize)]
struct StreamInfo {
    config: StreamConfig,
    #[serde(default)]
    created: String,
}

#[derive(Debug, Deserialize)]
struct StreamConfig {
    #[serde(default)]
    subjects: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ConsumerInfo {
    config: ConsumerConfig,
}

/// What matters of the configuration of a consumer. Durations are in nanoseconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConsumerConfig {
    deliver_subject: Option<String>,
    ack_policy: String,
    ack_wait: u64,
    max_deliver: i64,
    filter_subject: Option<String>,
    filter_subjects: Vec<String>,
    headers_only: bool,
}

impl StreamId {
    fn new(name: &str, created: &str) -> StreamId {
        let digest = ring::digest::digest(&ring::digest::SHA256, format!("{name}\n{created}").as_bytes());
        let (first, _) = digest.as_ref().split_first_chunk().unwrap_or((&[0; 8], &[]));
        StreamId { name: name.to_owned(), created: created.to_owned(), number: u64::from_be_bytes(*first) }
    }

    /// The same number for the same stream, and with the highest probability for no other one.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Consumer {
    /// The consumer of the options, which is created if it does not exist. `known` is the stream on which it has
    /// existed before: another one would deliver every message again.
    ///
    /// # Errors
    /// [`NatsError::Blocked`]: the stream or the consumer is missing or has another shape. [`NatsError::Later`]: the server
    /// gives no answer now.
    pub(super) async fn open(
        client: &Client,
        options: &NatsOptions,
        known: Option<&StreamId>,
    ) -> Result<Consumer, NatsError> {
        let NatsOptions { stream: name, consumer, .. } = options;
        let help = Err("create it, or start a sink that does");
        let (info, _) = api::stream::<StreamInfo>(client, name, &format!("the stream {name}"), help).await?;
        let taken = &info.config.subjects;
        if let Some(subject) =
            options.subjects.iter().find(|subject| !taken.iter().any(|taken| overlap(subject, taken)))
        {
            let why = format!("the stream {name} takes the subjects [{}], and none of {subject}", taken.join(", "));
            return Err(NatsError::Blocked(format!("{why}; change the stream or `subjects`")));
        }
        let stream = StreamId::new(name, &info.created);
        let found = match call(client, &format!("CONSUMER.INFO.{name}.{consumer}"), String::new()).await? {
            Ok(found) => found,
            Err(error) if error.err_code == code::CONSUMER_NOT_FOUND => {
                if known == Some(&stream) {
                    let why = format!("the consumer {consumer} of the stream {name} was deleted");
                    let help = "a new one delivers every message of the stream again: restart tributary if you want that, or \
                                create the consumer from the message at which it must begin";
                    return Err(NatsError::Blocked(format!("{why}; {help}")));
                }
                create(client, options).await?
            }
            Err(error) => return Err(error.fault(&format!("cannot look at the consumer {consumer} of {name}"))),
        };
        accepted(found, options, stream)
    }

    /// What waits at the server.
    pub(super) async fn backlog(client: &Client, options: &NatsOptions) -> Result<Backlog, NatsError> {
        let NatsOptions { stream, consumer, .. } = options;
        let name = format!("the consumer {consumer} of the stream {stream}");
        match call(client, &format!("CONSUMER.INFO.{stream}.{consumer}"), String::new()).await? {
            Ok(backlog) => Ok(backlog),
            Err(error) => Err(error.fault(&format!("cannot look at {name}"))),
        }
    }
}

async fn create(client: &Client, options: &NatsOptions) -> Result<ConsumerInfo, NatsError> {
    let NatsOptions { stream, consumer, .. } = options;
    match call(client, &format!("CONSUMER.DURABLE.CREATE.{stream}.{consumer}"), creation(options)).await? {
        Ok(info) => {
            tracing::info!(stream, consumer, "created the consumer");
            Ok(info)
        }
        Err(error) => Err(error.fault(&format!("cannot create the consumer {consumer} of {stream}"))),
    }
}

fn creation(options: &NatsOptions) -> String {
    let mut config = json!({
        "durable_name": options.consumer,
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": nanos(options.ack_wait),
        // The listener counts deliveries: what the server gives up is reported nowhere.
        "max_deliver": -1,
        "max_waiting": 4096,
        "replay_policy": "instant",
    });
    match options.subjects.as_slice() {
        [] => {}
        [subject] => config["filter_subject"] = json!(subject),
        subjects => config["filter_subjects"] = json!(subjects),
    }
    json!({ "stream_name": options.stream, "config": config }).to_string()
}

/// Checks the shape of a consumer.
fn accepted(info: ConsumerInfo, options: &NatsOptions, stream: StreamId) -> Result<Consumer, NatsError> {
    let (config, NatsOptions { consumer, stream: name, .. }) = (info.config, options);
    let filters: BTreeSet<&str> = config
        .filter_subject
        .iter()
        .chain(&config.filter_subjects)
        .map(String::as_str)
        .filter(|of| !of.is_empty())
        .collect();
    let wanted: BTreeSet<&str> = options.subjects.iter().map(String::as_str).collect();
    let wrong = if config.deliver_subject.is_some_and(|subject| !subject.is_empty()) {
        Some("pushes its messages to a subject; it must be a pull consumer".to_owned())
    } else if config.ack_policy != "explicit" {
        Some(format!("has ack_policy = \"{}\"; it must be explicit", config.ack_policy))
    } else if config.headers_only {
        Some("delivers headers only".to_owned())
    } else if config.max_deliver > 0 {
        Some(format!("has max_deliver = {}, after which the server drops a message; it must be -1", config.max_deliver))
    } else if filters != wanted && filters.is_empty() && wanted.len() > 1 {
        Some("has no subjects: several `subjects` need servers of version 2.10 or newer".to_owned())
    } else if filters != wanted {
        let listed = |subjects: BTreeSet<&str>| subjects.into_iter().collect::<Vec<_>>().join(", ");
        Some(format!("takes the subjects [{}], and [{}] are configured", listed(filters), listed(wanted)))
    } else {
        None
    };
    match wrong {
        Some(why) => {
            let help = "name another consumer, change it, or delete it";
            Err(NatsError::Blocked(format!("the consumer {consumer} of the stream {name} {why}; {help}")))
        }
        None => Ok(Consumer { stream, ack_wait: Duration::from_nanos(config.ack_wait).max(Duration::from_secs(1)) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_nats::Servers;

    #[test]
    fn a_consumer_must_be_pulled_acknowledged_and_take_the_configured_subjects() {
        let options = |subjects: &[&str]| NatsOptions {
            subjects: subjects.iter().map(|subject| (*subject).to_owned()).collect(),
            ..NatsOptions::new(Servers::new(Vec::new()))
        };
        let stream = StreamId::new("S", "now");
        let judged = |json: &str, subjects: &[&str]| {
            let info = serde_json::from_str(&format!("{{\"config\":{{{json}}}}}")).unwrap();
            accepted(info, &options(subjects), stream.clone())
        };
        let ours =
            serde_json::from_str::<serde_json::Value>(&creation(&options(&["a.*"]))).unwrap()["config"].to_string();
        let ours = ours.trim_matches(['{', '}']);
        assert_eq!(judged(ours, &["a.*"]).unwrap().ack_wait, Duration::from_secs(30));
        assert!(judged(r#""ack_policy":"explicit""#, &[]).is_ok());
        assert!(judged(r#""ack_policy":"explicit","filter_subjects":["b","a"]"#, &["a", "b"]).is_ok());
        for (json, subjects, why) in [
            (r#""ack_policy":"explicit","deliver_subject":"x""#, &[][..], "pushes its messages"),
            (r#""ack_policy":"none""#, &[], "ack_policy = \"none\""),
            (r#""ack_policy":"explicit","max_deliver":3"#, &[], "max_deliver = 3"),
            (r#""ack_policy":"explicit","headers_only":true"#, &[], "headers only"),
            (r#""ack_policy":"explicit""#, &["a", "b"], "version 2.10"),
            (r#""ack_policy":"explicit","filter_subject":"c""#, &["a"], "takes the subjects [c], and [a] are"),
        ] {
            match judged(json, subjects) {
                Err(NatsError::Blocked(text)) => assert!(text.contains(why), "{text}"),
                other => panic!("{json}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_stream_that_was_created_again_is_another_one() {
        let [one, same, other] = ["1", "1", "2"].map(|created| StreamId::new("S", created));
        assert!(one.number() == same.number() && one.number() != other.number());
    }
}
