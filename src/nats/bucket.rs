//! A key-value bucket of JetStream: values by key, compared and set.
//!
//! A bucket is a stream with one message for each key, whose subject contains the key. A task keeps a connection to it; while there is
//! none, each call fails at once, so that nothing waits for a server that is away.

use std::time::Duration;

use async_nats::{HeaderMap, Request, RequestErrorKind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::api::{self, ApiError, Reply, call, code, nanos};
use super::{BucketOptions, NatsConnection, NatsError};
use tributary_codec::base64;
use tributary_memory::log_throttle::LogThrottle;
use tributary_options::units::format_duration;

/// Pauses between attempts to connect: the first and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// JetStream's headers of a message that is only stored if its subject has not changed.
const EXPECTED_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// Says that a message removes its key.
const OPERATION: &str = "KV-Operation";

/// A bucket that is kept connected until it is dropped.
#[derive(Debug)]
pub struct Bucket {
    options: BucketOptions,
    state: watch::Receiver<BucketState>,
    keeping: AbortHandle,
}

/// Whether a bucket can be used.
#[derive(Clone, Debug)]
enum BucketState {
    /// The first attempt to connect is not over.
    Starting,
    Open(NatsConnection),
    /// It was lost, or could not be opened.
    Away(NatsError),
}

/// The value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BucketEntry {
    /// The number of its last change; 0: the key was never set.
    pub revision: u64,
    /// `None`: it has none, or was removed.
    pub value: Option<Vec<u8>>,
}

/// What matters of the stream of a bucket. Durations are in nanoseconds.
#[derive(Debug, Deserialize)]
struct Info {
    config: Config,
    #[serde(default)]
    state: Count,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(default)]
    subjects: Vec<String>,
    #[serde(default)]
    num_replicas: usize,
    #[serde(default)]
    max_age: u64,
    #[serde(default)]
    allow_direct: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Count {
    #[serde(default)]
    messages: u64,
    #[serde(default)]
    subjects: Option<serde_json::Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
struct Stored {
    message: StoredMessage,
}

#[derive(Debug, Deserialize)]
struct StoredMessage {
    seq: u64,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
}

#[derive(Debug, Deserialize)]
struct PubAck {
    #[serde(rename = "seq")]
    sequence: u64,
}

impl Bucket {
    /// A bucket for `user`, whose values are kept for at least `age`, or for ever. It is connected by a task on `runtime`.
    /// `note` gets the reason when it cannot be used, and `None` when it can.
    pub fn start(
        user: &str,
        options: &BucketOptions,
        age: Option<Duration>,
        note: impl Fn(Option<&NatsError>) + Send + Sync + 'static,
        runtime: &Handle,
    ) -> Bucket {
        let (sender, state) = watch::channel(BucketState::Starting);
        let keeping = runtime.spawn(keep(user.to_owned(), options.clone(), age, sender, note)).abort_handle();
        Bucket { options: options.clone(), state, keeping }
    }

    /// Waits until the bucket can be used.
    pub async fn usable(&self) {
        // The task that sends it lives as long as this.
        let _ = self.state.clone().wait_for(|state| matches!(state, BucketState::Open(_))).await;
    }

    /// The present value of a key, from the server that leads.
    ///
    /// # Errors
    /// NATS does not answer now.
    pub async fn get(&self, key: &str) -> Result<BucketEntry, NatsError> {
        let connection = self.connection().await?;
        let (stream, subject) = (self.stream(), self.subject(key));
        let body = json!({ "last_by_subj": subject }).to_string();
        match call::<Stored>(&connection.client, &format!("STREAM.MSG.GET.{stream}"), body).await? {
            Ok(Stored { message: StoredMessage { seq, hdrs, data } }) => {
                let decoded = |text: &str| base64::decode(text.as_bytes()).map_err(|_| self.invalid(key));
                let is_removed = decoded(&hdrs)?.windows(OPERATION.len()).any(|part| part == OPERATION.as_bytes());
                let value = if is_removed { None } else { Some(decoded(&data)?) };
                Ok(BucketEntry { revision: seq, value })
            }
            Err(error) if error.err_code == code::MESSAGE_NOT_FOUND => Ok(BucketEntry { revision: 0, value: None }),
            Err(error) => Err(error.fault(&format!("cannot read {key} of {}", self.options.shown()))),
        }
    }

    /// The value of a key from any of the servers: one that is behind can have an older one.
    ///
    /// # Errors
    /// NATS does not answer now.
    pub async fn get_from_any(&self, key: &str) -> Result<Option<Vec<u8>>, NatsError> {
        let connection = self.connection().await?;
        let subject = format!("$JS.API.DIRECT.GET.{}.{}", self.stream(), self.subject(key));
        let message = self.request(&connection, subject, HeaderMap::new(), Vec::new()).await?;
        match message.status {
            None => Ok(Some(message.payload.to_vec())),
            Some(status) if status.as_u16() == 404 => Ok(None),
            Some(status) => Err(NatsError::Later(format!("{} answers {status}", self.options.shown()))),
        }
    }

    /// Sets a value if the key has not changed since this revision, and returns the next one. `None`: it has changed.
    ///
    /// # Errors
    /// NATS does not answer now. The value may be set all the same.
    pub async fn set_if(&self, key: &str, value: Vec<u8>, revision: u64) -> Result<Option<u64>, NatsError> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_SEQUENCE, revision.to_string().as_str());
        self.publish(key, headers, value).await
    }

    /// Sets a value.
    ///
    /// # Errors
    /// NATS does not answer now. The value may be set all the same.
    pub async fn set(&self, key: &str, value: Vec<u8>) -> Result<(), NatsError> {
        self.publish(key, HeaderMap::new(), value).await.map(drop)
    }

    /// The number of values.
    ///
    /// # Errors
    /// NATS does not answer now.
    pub async fn count(&self) -> Result<u64, NatsError> {
        Ok(self.state("").await?.messages)
    }

    /// The keys that begin with `prefix`, which ends with a dot: at most 100,000.
    ///
    /// # Errors
    /// NATS does not answer now.
    pub async fn keys(&self, prefix: &str) -> Result<Vec<String>, NatsError> {
        let subjects = self.state(&self.subject(&format!("{prefix}>"))).await?.subjects.unwrap_or_default();
        let start = self.subject("").len();
        Ok(subjects.into_iter().filter_map(|(subject, _)| Some(subject.get(start..)?.to_owned())).collect())
    }

    async fn state(&self, filter: &str) -> Result<Count, NatsError> {
        let connection = self.connection().await?;
        let body = if filter.is_empty() { String::new() } else { json!({ "subjects_filter": filter }).to_string() };
        match call::<Info>(&connection.client, &format!("STREAM.INFO.{}", self.stream()), body).await? {
            Ok(info) => Ok(info.state),
            Err(error) => Err(error.fault(&format!("cannot look at {}", self.options.shown()))),
        }
    }

    async fn publish(&self, key: &str, mut headers: HeaderMap, value: Vec<u8>) -> Result<Option<u64>, NatsError> {
        let connection = self.connection().await?;
        headers.insert(EXPECTED_STREAM, self.stream().as_str());
        let message = self.request(&connection, self.subject(key), headers, value).await?;
        match serde_json::from_slice::<Reply<PubAck>>(&message.payload) {
            Ok(Reply { error: Some(ApiError { err_code: code::WRONG_LAST_SEQUENCE, .. }), .. }) => Ok(None),
            Ok(Reply { error: Some(error), .. }) => {
                Err(error.fault(&format!("cannot set {key} of {}", self.options.shown())))
            }
            Ok(Reply { content: Some(PubAck { sequence }), .. }) => Ok(Some(sequence)),
            Ok(Reply { .. }) | Err(_) => Err(self.invalid(key)),
        }
    }

    async fn request(
        &self,
        connection: &NatsConnection,
        subject: String,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<async_nats::Message, NatsError> {
        let limit = self.options.servers.request_timeout;
        let request = Request::new().headers(headers).payload(body.into()).timeout(Some(limit));
        let answered = tokio::select! {
            answered = connection.client.send_request(subject, request) => answered,
            () = connection.lost.cancelled() => {
                return Err(NatsError::Later(connection.explained("the connection to the server was lost")));
            }
        };
        answered.map_err(|error| {
            let why = match error.kind() {
                RequestErrorKind::NoResponders => "no stream answers".to_owned(),
                RequestErrorKind::TimedOut => format!("no answer within {limit:?}"),
                _ => error.to_string(),
            };
            NatsError::Later(connection.explained(&format!("{}: {why}", self.options.shown())))
        })
    }

    /// The connection in use. Waits for the first attempt to connect.
    async fn connection(&self) -> Result<NatsConnection, NatsError> {
        let mut state = self.state.clone();
        let known =
            timeout(self.options.longest(), state.wait_for(|state| !matches!(state, BucketState::Starting))).await;
        let none = || NatsError::Later(format!("there is no connection to {}", self.options.shown()));
        let Ok(Ok(known)) = known else { return Err(none()) };
        match &*known {
            BucketState::Open(connection) if connection.is_open() => Ok(connection.clone()),
            BucketState::Away(fault) => Err(fault.clone()),
            BucketState::Open(_) | BucketState::Starting => Err(none()),
        }
    }

    fn invalid(&self, key: &str) -> NatsError {
        NatsError::Later(format!("the answer of {} for {key} is not valid", self.options.shown()))
    }

    fn stream(&self) -> String {
        format!("KV_{}", self.options.bucket)
    }

    fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.options.bucket)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// Keeps a connection to a bucket, without end.
async fn keep(
    user: String,
    options: BucketOptions,
    age: Option<Duration>,
    state: watch::Sender<BucketState>,
    note: impl Fn(Option<&NatsError>),
) {
    let away = |fault: NatsError| {
        note(Some(&fault));
        state.send_replace(BucketState::Away(fault));
    };
    let failing = LogThrottle::new();
    let mut pause = RETRY.0;
    loop {
        match open(&user, &options, age).await {
            Ok(connection) => {
                info!(
                    user,
                    bucket = options.bucket,
                    servers = options.servers.shown(),
                    "connected to a bucket of NATS"
                );
                pause = RETRY.0;
                let lost = connection.lost.clone();
                state.send_replace(BucketState::Open(connection.clone()));
                note(None);
                lost.cancelled().await;
                let why = connection.explained(&format!("the connection to {} was lost", options.shown()));
                away(NatsError::Later(why));
            }
            Err(fault) => {
                if let Some(suppressed) = failing.permit() {
                    let (bucket, error) = (&options.bucket, fault.why());
                    warn!(user, bucket, error, suppressed, "cannot use a bucket of NATS; trying again");
                }
                away(fault);
                sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }
}

async fn open(user: &str, options: &BucketOptions, age: Option<Duration>) -> Result<NatsConnection, NatsError> {
    let connection = NatsConnection::open(user, &options.servers).await?;
    look(&connection, options, age).await.map_err(|fault| connection.explain(fault))?;
    Ok(connection)
}

/// Looks at the stream of a bucket, and creates it if that is configured.
async fn look(connection: &NatsConnection, options: &BucketOptions, age: Option<Duration>) -> Result<(), NatsError> {
    let (stream, help) = (format!("KV_{}", options.bucket), "create it, or set nats.create = true");
    let creation = if options.create { Ok(creation(options, age)) } else { Err(help) };
    let (info, is_created) = api::stream::<Info>(&connection.client, &stream, &options.shown(), creation).await?;
    if is_created {
        info!(bucket = options.bucket, replicas = options.replicas, "created the bucket");
    }
    accepted(&info.config, options, age)
}

/// The configuration that clients of NATS give a bucket.
fn creation(options: &BucketOptions, age: Option<Duration>) -> String {
    let age = age.map_or(0, nanos);
    let window = nanos(Duration::from_secs(120));
    let config = json!({
        "name": format!("KV_{}", options.bucket),
        "subjects": [format!("$KV.{}.>", options.bucket)],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "num_replicas": options.replicas,
        "max_msgs_per_subject": 1,
        "max_age": age,
        "duplicate_window": if age == 0 { window } else { window.min(age) },
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "allow_rollup_hdrs": true,
        "deny_delete": true,
        "allow_direct": true,
    });
    config.to_string()
}

/// Checks the shape of a bucket.
fn accepted(config: &Config, options: &BucketOptions, age: Option<Duration>) -> Result<(), NatsError> {
    let subjects = format!("$KV.{}.>", options.bucket);
    let kept = Duration::from_nanos(config.max_age);
    let wrong = if !config.subjects.contains(&subjects) {
        Some(format!("has the subjects [{}], and not {subjects}", config.subjects.join(", ")))
    } else if config.num_replicas < options.replicas {
        Some(format!("has num_replicas = {}, and replicas = {} is configured", config.num_replicas, options.replicas))
    } else if !config.allow_direct {
        Some("does not allow direct reads (allow_direct)".to_owned())
    } else if !kept.is_zero() && age.is_none_or(|age| kept < age) {
        let age = age.map_or("for ever".to_owned(), |age| format!("for {}", format_duration(age)));
        Some(format!("keeps values for {}, and they are needed {age}", format_duration(kept)))
    } else {
        None
    };
    match wrong {
        Some(why) => Err(NatsError::Blocked(format!("{} {why}; change the bucket or the listener", options.shown()))),
        None => Ok(()),
    }
}
