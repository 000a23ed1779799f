//! The sums of a fleet, and whether they add up.

use std::path::PathBuf;

use hyper::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::scrape::CounterSums;
use crate::cli::CommandLineError;
use crate::cli::endpoint::Endpoint;
use tributary_nats::{NatsError, Servers};

/// What daemons and the stream say at about one moment.
#[derive(Debug)]
pub(super) struct Audit {
    daemons: Vec<(String, CounterSums)>,
    stream: Option<AuditedStream>,
}

/// A stream and its consumers.
#[derive(Debug)]
struct AuditedStream {
    name: String,
    state: StreamState,
    consumers: Vec<Consumer>,
}

#[cfg(feature = "fleet")]
#[derive(Debug, Deserialize)]
struct Info {
    state: StreamState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StreamState {
    messages: u64,
    bytes: u64,
    first_ts: String,
    first_seq: u64,
}

#[cfg(feature = "fleet")]
#[derive(Debug, Deserialize)]
struct Consumers {
    #[serde(default)]
    consumers: Vec<Consumer>,
}

#[derive(Debug, Deserialize)]
struct Consumer {
    name: String,
    #[serde(default)]
    num_pending: u64,
    #[serde(default)]
    num_ack_pending: u64,
}

impl Audit {
    pub(super) async fn read(
        addresses: &[String],
        (token_file, ca): (Option<PathBuf>, Option<PathBuf>),
        servers: Option<&Servers>,
        stream: &str,
    ) -> Result<Audit, CommandLineError> {
        let stream = match servers {
            Some(servers) => Some(
                AuditedStream::read(servers, stream)
                    .await
                    .map_err(|fault| CommandLineError::Failed(fault.why().to_owned()))?,
            ),
            None => None,
        };
        let mut daemons = Vec::new();
        for address in addresses {
            let endpoint = Endpoint::at(address, token_file.clone(), ca.clone())?;
            let (status, body) = endpoint.ask(Method::GET, "/metrics").await?;
            if status != StatusCode::OK {
                return Err(endpoint.refused(status, &body));
            }
            let sums = CounterSums::of(&String::from_utf8_lossy(&body));
            let sums = sums.ok_or_else(|| {
                CommandLineError::Failed(format!("{address} has no metrics of a daemon of this version"))
            })?;
            daemons.push((address.clone(), sums));
        }
        Ok(Audit { daemons, stream })
    }

    fn total(&self) -> CounterSums {
        let mut total = CounterSums::default();
        self.daemons.iter().for_each(|(_, sums)| total.add(sums));
        total
    }

    /// What waits in the daemons, in events, and in the stream, in messages.
    pub(super) fn waiting(&self) -> i64 {
        self.total().waiting + self.stream.as_ref().map_or(0, AuditedStream::waiting)
    }

    /// Published and not consumed. `None`: that cannot be known, because a daemon has started after the first message, or the stream
    /// has dropped that message, so its time is not known.
    fn difference(&self) -> Option<i64> {
        let state = &self.stream.as_ref()?.state;
        let first: Timestamp = state.first_ts.parse().ok()?;
        let total = self.total();
        let is_complete = state.first_seq <= 1 && total.started <= first.as_second() as f64;
        is_complete.then(|| total.not_consumed())
    }

    /// Why the sums do not add up. Empty: they do.
    pub(super) fn why(&self) -> Vec<String> {
        let mut why = Vec::new();
        for (address, sums) in &self.daemons {
            if sums.unaccounted_bytes != 0 {
                why.push(format!("{address} has {} unaccounted bytes", sums.unaccounted_bytes));
            }
            if sums.waiting < 0 {
                why.push(format!("{address} has {} events more in its sinks than it was given", -sums.waiting));
            }
        }
        let waits = self.stream.as_ref().is_some_and(|stream| stream.waiting() > 0);
        match self.difference() {
            Some(difference) if difference < 0 => {
                why.push(format!("{} events more were consumed than published", -difference));
            }
            Some(difference) if difference > 0 && !waits => {
                why.push(format!("{difference} events were published and not consumed, and none wait in the stream"));
            }
            _ => {}
        }
        why
    }

    pub(super) fn json(&self) -> Value {
        let daemons: Vec<_> = self
            .daemons
            .iter()
            .map(|(address, of)| {
                let mut daemon = sums(of);
                daemon["address"] = json!(address);
                daemon
            })
            .collect();
        json!({
            "daemons": daemons,
            "total": sums(&self.total()),
            "stream": self.stream.as_ref().map(AuditedStream::json),
            "published_and_not_consumed": self.difference(),
            "why": self.why(),
            "adds_up": self.why().is_empty(),
        })
    }
}

fn sums(of: &CounterSums) -> Value {
    json!({
        "received": of.received,
        "published": of.published,
        "duplicates": of.duplicates,
        "uncertain_duplicates": of.uncertain_duplicates,
        "consumed": of.consumed,
        "written": of.written,
        "waiting": of.waiting,
        "failed": of.failed,
        "shed": of.shed,
        "filtered": of.filtered,
        "repeats": of.repeats,
        "unaccounted_bytes": of.unaccounted_bytes,
    })
}

impl AuditedStream {
    /// # Errors
    /// There is no client of NATS.
    #[cfg(not(feature = "fleet"))]
    #[expect(clippy::unused_async, reason = "the signature of a whole build")]
    async fn read(_servers: &Servers, _name: &str) -> Result<AuditedStream, NatsError> {
        Err(NatsError::Blocked(tributary_nats::MISSING.unwrap_or_default().to_owned()))
    }

    #[cfg(feature = "fleet")]
    async fn read(servers: &Servers, name: &str) -> Result<AuditedStream, NatsError> {
        use tributary_nats::api::call;
        let connection = tributary_nats::NatsConnection::open("fleet audit", servers).await?;
        let fault = |error: tributary_nats::api::ApiError| error.fault(&format!("cannot look at the stream {name}"));
        let info: Info =
            call(&connection.client, &format!("STREAM.INFO.{name}"), String::new()).await?.map_err(fault)?;
        let list: Consumers =
            call(&connection.client, &format!("CONSUMER.LIST.{name}"), String::new()).await?.map_err(fault)?;
        Ok(AuditedStream { name: name.to_owned(), state: info.state, consumers: list.consumers })
    }

    fn waiting(&self) -> i64 {
        let waiting: u64 = self.consumers.iter().map(|of| of.num_pending + of.num_ack_pending).sum();
        i64::try_from(waiting).unwrap_or(i64::MAX)
    }

    fn json(&self) -> Value {
        let consumers: Vec<_> = self
            .consumers
            .iter()
            .map(|of| json!({ "name": of.name, "pending": of.num_pending, "unacknowledged": of.num_ack_pending }))
            .collect();
        let StreamState { messages, bytes, .. } = self.state;
        json!({ "name": self.name, "messages": messages, "bytes": bytes, "consumers": consumers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_and_consumed_are_compared_only_if_every_daemon_has_seen_the_first_message_of_the_stream() {
        let difference = |first_seq: u64, started: f64| {
            let text =
                json!({ "messages": 1, "bytes": 1, "first_seq": first_seq, "first_ts": "1970-01-01T00:01:40.5Z" });
            let state = serde_json::from_value(text).unwrap();
            let stream = Some(AuditedStream { name: "S".to_owned(), state, consumers: Vec::new() });
            let sums = CounterSums { published: 3, consumed: 2, started, ..CounterSums::default() };
            Audit { daemons: vec![("a".to_owned(), sums)], stream }.difference()
        };
        assert_eq!(difference(1, 100.0), Some(1));
        assert_eq!(difference(1, 101.0), None);
        assert_eq!(difference(2, 100.0), None, "the daemon may have started after the first message");
    }
}
