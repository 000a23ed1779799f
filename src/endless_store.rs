//! What daemons share about the uploads of the `endless` protocol: the fingerprints of delivered events, in a key-value bucket of NATS
//! JetStream.
//!
//! An entry has the events of one section of an upload, 16 bytes each, under the fingerprint of the first one in hexadecimal digits.
//! JetStream removes it after `dedup.time`. While the bucket is away, nothing is recognized as delivered by others, and what this daemon
//! delivers is noted when the bucket is back.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::warn;

use tributary_endless::Fingerprint;
use tributary_endless::shared_deliveries::{Delivered, Later, SharedDeliveries};
use tributary_memory::log_throttle::LogThrottle;
use tributary_nats::{Bucket, BucketOptions, NatsError};
use tributary_options::{Bounds, options};

/// Bytes of a fingerprint.
const FINGERPRINT_BYTES: usize = 16;
/// The pause after a failed attempt to write an entry that waits.
const RETRY: Duration = Duration::from_secs(1);
/// The memory of an entry that waits, without its events.
const ENTRY_BYTES: u64 = 64;

options! {
    /// The options of what an `endless` listener shares.
    #[derive(Clone, PartialEq, Debug)]
    pub struct SeenOptions {
        /// A bucket of NATS JetStream in which several daemons note the events that they have delivered, for `dedup.time`: one that
        /// another daemon has delivered is left out. Not set: a daemon recognises only what it has delivered itself.
        pub seen: Option<BucketOptions> = flat(|section| BucketOptions::read(section, "seen")),
        /// How long a request waits for the answer of the bucket, before its events are written and again before it is answered.
        pub seen_timeout: Duration =
            duration(Duration::from_secs(1), Duration::from_millis(1)..=Duration::from_secs(60)),
        /// The number of events of one section of an upload that are noted; further ones are not recognised by other daemons.
        pub max_seen_events: usize = count(4096, 1..=32_768),
        /// The number of entries that wait while the bucket is away, of 1 KiB on average at most; the oldest is dropped first.
        pub max_seen_waiting: usize = count(4096, 1..=10_000_000),
    }
}

impl SeenOptions {
    /// Declares the memory that it takes at most beside the shared budget.
    pub(crate) fn declare(&self, of: &str, bounds: &mut Bounds) {
        if let Some(bucket) = &self.seen {
            bucket.declare(of, bounds);
            let what =
                format!("{} uploads that other daemons are to be told (max_seen_waiting)", self.max_seen_waiting);
            bounds.add(of, what, (self.max_seen_waiting as u64).saturating_mul(ENTRY_BYTES + WAITING_EVENT_BYTES));
        }
    }
}

/// The memory that the events of an entry take while it waits, on average at most: 64 events.
const WAITING_EVENT_BYTES: u64 = 64 * FINGERPRINT_BYTES as u64;

/// The events that daemons have delivered, for one listener.
pub struct SeenStore {
    shared: Arc<SharedSeenStore>,
    writing: AbortHandle,
}

struct SharedSeenStore {
    listener: String,
    options: SeenOptions,
    bucket: Arc<Bucket>,
    waiting: Mutex<WaitingDeliveries>,
    appended: Notify,
    failing: LogThrottle,
    dropping: LogThrottle,
}

/// Entries that could not be written at once.
#[derive(Default)]
struct WaitingDeliveries {
    entries: VecDeque<Delivered>,
    /// The number of their events.
    events: usize,
}

impl SeenStore {
    /// The events in this bucket, which are kept for `time`. It is connected by a task on `runtime`, which calls `note`
    /// with the reason when it cannot be used.
    pub(crate) fn start(
        options: &SeenOptions,
        bucket: &BucketOptions,
        listener: &str,
        time: Duration,
        note: impl Fn(Option<&NatsError>) + Send + Sync + 'static,
        runtime: &Handle,
    ) -> SeenStore {
        let user = format!("uploads of listener {listener}");
        let shared = Arc::new(SharedSeenStore {
            listener: listener.to_owned(),
            options: options.clone(),
            bucket: Arc::new(Bucket::start(&user, bucket, Some(time), note, runtime)),
            waiting: Mutex::default(),
            appended: Notify::new(),
            failing: LogThrottle::new(),
            dropping: LogThrottle::new(),
        });
        let writing = runtime.spawn(write_waiting(shared.clone())).abort_handle();
        SeenStore { shared, writing }
    }
}

impl Drop for SeenStore {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

impl fmt::Debug for SeenStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SeenStore").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl SharedDeliveries for SeenStore {
    fn max_events(&self) -> usize {
        self.shared.options.max_seen_events
    }

    fn look_up(&self, first: Vec<Fingerprint>) -> Later<Vec<Fingerprint>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let mut reads = JoinSet::new();
            for fingerprint in first {
                let bucket = shared.bucket.clone();
                reads.spawn(async move { bucket.get_from_any(&key(fingerprint)).await });
            }
            let mut known = Vec::new();
            let read = async {
                while let Some(read) = reads.join_next().await {
                    match read {
                        Ok(Ok(value)) => known.extend(value.iter().flat_map(|value| fingerprints(value))),
                        Ok(Err(fault)) => return Err(fault),
                        Err(_) => return Err(NatsError::Later("a look-up was aborted".to_owned())),
                    }
                }
                Ok(())
            };
            if let Err(fault) = within(shared.options.seen_timeout, read).await {
                shared.warn(
                    &fault,
                    "it is not known which events other daemons have delivered; they may be written twice",
                );
            }
            known
        })
    }

    fn note(&self, sections: Vec<Delivered>) -> Later<()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let mut writes = Vec::new();
            for section in sections {
                let writer = shared.clone();
                // A task, so that a request which is aborted does not end it.
                writes.push(tokio::spawn(async move {
                    let written = within(writer.options.seen_timeout, writer.write(&section)).await;
                    if let Err(fault) = written {
                        writer.warn(&fault, "delivered events cannot be noted for other daemons; trying again later");
                        writer.keep(section);
                    }
                }));
            }
            for write in writes {
                let _ = write.await;
            }
        })
    }
}

impl SharedSeenStore {
    async fn write(&self, section: &Delivered) -> Result<(), NatsError> {
        self.bucket.set(&key(section.first), value(section)).await
    }

    /// Writes an entry that has waited. Another daemon may have noted more events of the same section meanwhile.
    async fn write_late(&self, section: &Delivered) -> Result<(), NatsError> {
        let key = key(section.first);
        let entry = self.bucket.get(&key).await?;
        let noted: HashSet<Fingerprint> = entry.value.iter().flat_map(|value| fingerprints(value)).collect();
        if section.events.iter().all(|event| noted.contains(event)) {
            return Ok(());
        }
        let written = self.bucket.set_if(&key, value(section), entry.revision).await?;
        written.map(drop).ok_or_else(|| NatsError::Later("another daemon has noted the same section".to_owned()))
    }

    /// Keeps an entry until the bucket is back.
    fn keep(&self, section: Delivered) {
        let mut waiting = self.waiting();
        waiting.events += section.events.len();
        waiting.entries.push_back(section);
        let limit = self.options.max_seen_waiting;
        let mut dropped = 0;
        while waiting.entries.len() > limit || waiting.events * FINGERPRINT_BYTES > limit * WAITING_EVENT_BYTES as usize
        {
            let Some(oldest) = waiting.entries.pop_front() else { break };
            waiting.events -= oldest.events.len();
            dropped += 1;
        }
        drop(waiting);
        if dropped > 0
            && let Some(suppressed) = self.dropping.permit()
        {
            let listener = &self.listener;
            warn!(listener, dropped, suppressed, "too many delivered uploads wait to be noted (max_seen_waiting)");
        }
        self.appended.notify_one();
    }

    fn take(&self) -> Option<Delivered> {
        let mut waiting = self.waiting();
        let oldest = waiting.entries.pop_front()?;
        waiting.events -= oldest.events.len();
        Some(oldest)
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingDeliveries> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn warn(&self, fault: &NatsError, what: &'static str) {
        if let Some(suppressed) = self.failing.permit() {
            warn!(listener = self.listener, error = fault.why(), suppressed, "{what}");
        }
    }
}

/// Writes entries that wait, as soon as the bucket can be used.
async fn write_waiting(shared: Arc<SharedSeenStore>) {
    loop {
        let Some(section) = shared.take() else {
            shared.appended.notified().await;
            continue;
        };
        shared.bucket.usable().await;
        if shared.write_late(&section).await.is_err() {
            shared.keep(section);
            sleep(RETRY).await;
        }
    }
}

/// The result of `work`, or that it takes too long.
async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, NatsError>>) -> Result<T, NatsError> {
    let late = |_| Err(NatsError::Later(format!("no answer within {limit:?} (seen_timeout)")));
    timeout(limit, work).await.unwrap_or_else(late)
}

fn key(fingerprint: Fingerprint) -> String {
    format!("{fingerprint:032x}")
}

/// The entry of a section.
fn value(section: &Delivered) -> Vec<u8> {
    section.events.iter().flat_map(|event| event.to_be_bytes()).collect()
}

/// The fingerprints in an entry.
fn fingerprints(value: &[u8]) -> impl Iterator<Item = Fingerprint> {
    value.as_chunks().0.iter().map(|bytes| Fingerprint::from_be_bytes(*bytes))
}
