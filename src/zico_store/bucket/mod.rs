//! Registered agents that several daemons share, in a key-value bucket of NATS JetStream.
//!
//! Agents and the hashes of their keys are in the bucket, so an agent that registered with one daemon can open a session at each. A
//! session belongs to the daemon that opened it: the definitions of its agent are there. At another daemon it is unknown, and the agent
//! opens one there. The bucket notes the latest session of each key.
//!
//! | key | value |
//! |---|---|
//! | `salt` | of the digests of registration keys |
//! | `name.<hash of registration key, name, app, env>` | the UUID of the agent; the number of the entry that created it is the agent's number |
//! | `agent.<uuid>` | the agent, its keys, its latest sessions: [`AgentRecord`] |
//! | `network.<hash>.<uuid>` | an agent that registered first from this network |
//!
//! Every change compares what it was made from, so no daemon undoes that of another one. Entries that no daemon renews for
//! `agent_retention` are removed by JetStream.

mod record;
mod register;
mod sessions;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tracing::warn;

use tributary_event::UnixNanos;
use tributary_memory::log_throttle::LogThrottle;
use tributary_nats::{Bucket, BucketOptions, NatsError};
use tributary_system::blocking;
use tributary_zico::agents::{
    Counters, Opened, Opening, Registered, Registration, Requester, UNKNOWN_AGENT, ZicoAgent, ZicoAgentError,
};
use tributary_zico::registrations::{Registrations, Reply};

use super::adoption::OpeningLog;
use super::error::StoreError;
use super::keys::{self, AdmittedKeys, RkeyDigests};
use super::options::StoreOptions;
use super::time::millis;
use record::AgentRecord;
use sessions::{LocalSessions, Use};

pub(super) use record::is_uuid;

/// How many agents are written at the same time because they were seen.
const MAX_TOUCHES: usize = 16;
/// The answer while the bucket cannot be used. The log says why.
const AWAY: &str = "the registered agents cannot be looked up now; try again";

/// The agents of one listener, which other daemons share.
#[derive(Debug)]
pub struct SharedStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    listener: String,
    options: StoreOptions,
    bucket: Bucket,
    /// This daemon, since its start: its sessions are unknown to any other.
    owner: String,
    admitted: Option<AdmittedKeys>,
    digests: OnceCell<RkeyDigests>,
    /// When the salt was written last.
    salted: Mutex<i64>,
    sessions: Mutex<LocalSessions>,
    touches: Arc<Semaphore>,
    runtime: Handle,
    away: LogThrottle,
    full: LogThrottle,
    openings: OpeningLog,
}

impl SharedStore {
    /// The agents in this bucket, for a listener that keeps the definitions of at most `max_sessions` sessions. It connects on
    /// `runtime`, and calls `note` with the reason when it cannot; meanwhile registrations are refused.
    ///
    /// # Errors
    /// The file of keys cannot be used, or the system has no random numbers.
    pub fn start(
        options: &StoreOptions,
        bucket: &BucketOptions,
        listener: &str,
        max_sessions: usize,
        note: impl Fn(Option<&NatsError>) + Send + Sync + 'static,
        runtime: &Handle,
    ) -> Result<SharedStore, StoreError> {
        let admitted = options.keys_file.as_deref().map(AdmittedKeys::read).transpose()?;
        let no_random = |_| StoreError::new(Path::new(&bucket.shown()), "the system has no random numbers");
        let user = format!("agents of listener {listener}");
        Ok(SharedStore(Arc::new(Inner {
            listener: listener.to_owned(),
            bucket: Bucket::start(&user, bucket, Some(options.agent_retention), note, runtime),
            options: options.clone(),
            owner: keys::key().map_err(no_random)?,
            admitted,
            digests: OnceCell::new(),
            salted: Mutex::default(),
            sessions: Mutex::new(LocalSessions::new(max_sessions, options.session_timeout)),
            touches: Arc::new(Semaphore::new(MAX_TOUCHES)),
            runtime: runtime.clone(),
            away: LogThrottle::new(),
            full: LogThrottle::new(),
            openings: OpeningLog::new(listener),
        })))
    }
}

impl Registrations for SharedStore {
    fn register(&self, asked: Registration, address: &str, now: UnixNanos) -> Reply<Registered> {
        let (inner, address, now) = (self.0.clone(), address.to_owned(), millis(now));
        Reply::Later(Box::pin(async move { inner.register(&asked, &address, now).await }))
    }

    fn open(&self, asked: Opening, now: UnixNanos) -> Reply<Opened> {
        let (inner, now) = (self.0.clone(), millis(now));
        Reply::Later(Box::pin(async move {
            let opened = inner.open(&asked, now).await;
            if opened.as_ref().err() == Some(&UNKNOWN_AGENT) {
                inner.openings.refused(&asked);
            }
            opened
        }))
    }

    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError> {
        let (hash, now) = (keys::hash(session), millis(now));
        let Some(Use { agent: found, is_due }) = self.0.sessions().use_session(&hash, now) else {
            return Err(ZicoAgentError::Denied("the session is unknown here or over; open another one"));
        };
        if agent.is_some_and(|name| !found.is_called(name)) {
            return Err(ZicoAgentError::Denied("the session belongs to another agent"));
        }
        if is_due && let Ok(permit) = self.0.touches.clone().try_acquire_owned() {
            let (inner, uuid) = (self.0.clone(), found.uuid.clone());
            self.0.runtime.spawn(async move {
                inner.touch(&uuid, &hash, now).await;
                drop(permit);
            });
        }
        Ok(found)
    }

    fn agent(&self, name: &str) -> Reply<Option<Arc<ZicoAgent>>> {
        let uuid = name.to_ascii_lowercase();
        if let Some(agent) = self.0.sessions().agent(&uuid) {
            return Reply::Now(Ok(Some(agent)));
        }
        if !is_uuid(&uuid) {
            return Reply::Now(Ok(None));
        }
        let inner = self.0.clone();
        Reply::Later(Box::pin(async move {
            let (record, _) = inner.record(&uuid).await?;
            Ok(record.map(|record| Arc::new(record.agent())))
        }))
    }

    fn admits(&self, pass_phrase: &str) -> bool {
        self.0.admitted.as_ref().is_none_or(|keys| blocking::run(|| keys.admit(pass_phrase)))
    }

    fn seen(&self, requester: Requester<'_>, more: Counters, _now: UnixNanos) {
        // The sessions of agents that do not register are known to one daemon only, which shows them on its page.
        if let Requester::Agent { id } = requester {
            self.0.sessions().count(id, more);
        }
    }
}

impl Inner {
    fn sessions(&self) -> MutexGuard<'_, LocalSessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of an agent, and its revision.
    async fn record(&self, uuid: &str) -> Result<(Option<AgentRecord>, u64), ZicoAgentError> {
        let entry = self.bucket.get(&record::agent_key(uuid)).await.map_err(|fault| self.refusal(fault))?;
        let read = |value: Vec<u8>| serde_json::from_slice(&value);
        match entry.value.map(read).transpose() {
            Ok(record) => Ok((record, entry.revision)),
            Err(error) => {
                let why = format!("agent.{uuid} of the bucket cannot be read: {error}");
                if let Some(suppressed) = self.away.permit() {
                    warn!(
                        listener = self.listener,
                        error = why,
                        suppressed,
                        "cannot use the bucket of registered agents"
                    );
                }
                Err(ZicoAgentError::Broken)
            }
        }
    }

    /// The answer to an agent when the bucket cannot be used.
    fn refusal(&self, fault: NatsError) -> ZicoAgentError {
        if let Some(suppressed) = self.away.permit() {
            let (listener, error) = (&self.listener, fault.why());
            warn!(listener, error, suppressed, "the registered agents cannot be looked up; answering 503");
        }
        ZicoAgentError::Away(AWAY.to_owned())
    }
}
