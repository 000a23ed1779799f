//! Registered agents, their keys, and the sessions that they open (sections 1.1 and 4).
//!
//! An exchange uses the trait [`Agents`]. The daemon implements it with a file per listener, offline decoding with
//! [`Recorded`].
//!
//! A registration returns a key, and a session belongs to a key. A JVM registers once, when it starts. So two JVMs with the
//! same name have separate keys and sessions, and their symbols, which both number from 1, do not mix.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tributary_codec::digest::short_digest;
use tributary_event::{ResourceValue, UnixNanos};

/// The agents of one listener, their keys and sessions.
///
/// A method may take as long as a small write to a disk. Its result holds also after the process is killed.
pub trait Agents: Send + Sync + 'static {
    /// Registers an agent that sends from `address` (without a port). An agent with the same registration key, name, app
    /// and env, or with the UUID and a key of a registered agent, is that agent. It gets a new key every time, and its
    /// earlier keys stay valid (up to `max_sessions_per_agent`).
    ///
    /// # Errors
    /// [`ZicoAgentError`].
    fn register(&self, asked: &Registration, address: &str, now: UnixNanos) -> Result<Registered, ZicoAgentError>;

    /// Opens a session for a key, or returns the key's live session. Where every registration key is accepted, an unknown agent
    /// is registered with the UUID and the key of the request.
    ///
    /// # Errors
    /// [`ZicoAgentError`]; [`UNKNOWN_AGENT`] both for an unknown agent and for a wrong key, so that neither can be guessed.
    fn open(&self, asked: &Opening, now: UnixNanos) -> Result<Opened, ZicoAgentError>;

    /// The agent of a live session; marks the session as used at `now`. `agent` is the UUID or number in the request; if
    /// present, it must be the session's agent.
    ///
    /// # Errors
    /// [`ZicoAgentError::Denied`] for a session that is unknown, over, or another agent's: the agent opens another one.
    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError>;

    /// The registered agent with this UUID or number: for `host` of a form, which is not authenticated.
    ///
    /// # Errors
    /// [`ZicoAgentError::Broken`].
    fn agent(&self, name: &str) -> Result<Option<Arc<ZicoAgent>>, ZicoAgentError>;

    /// Whether agents may connect with this pass phrase (Fressian). Compared in constant time.
    fn admits(&self, pass_phrase: &str) -> bool;

    /// Counts a request, for operators. Never waits. A kill of the process may lose the latest second.
    fn seen(&self, requester: Requester<'_>, more: Counters, now: UnixNanos);

    /// The listener stops: stores what hosts may send again to the next process, in place of what was stored before.
    fn store_hosts(&self, hosts: &[StoredHost]);

    /// What was stored last.
    fn stored_hosts(&self) -> Vec<StoredHost>;
}

/// What the agents of a host may send again (Fressian): the packets whose answer they may not have read, and traces that come again inside
/// others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredHost {
    /// The host that a hello named.
    pub host: String,
    /// The digests of the records of each packet.
    pub packets: Vec<Vec<[u8; 16]>>,
    /// The traces, in a form of this package.
    pub traces: Vec<u8>,
}

/// A registered agent. Contains no key.
#[derive(Clone, PartialEq, Debug)]
pub struct ZicoAgent {
    /// Its number, from 1.
    pub id: u64,
    /// Its UUID, in lower case with hyphens.
    pub uuid: String,
    /// Its name, usually its host's name.
    pub name: String,
    /// The application.
    pub app: String,
    /// The environment.
    pub env: String,
    /// Its further attributes, in the order sent. Nested values are JSON.
    pub attrs: Vec<(String, ResourceValue)>,
}

/// The body of a registration (`/agent/register`). Its `Debug` shows no key.
#[derive(Clone, PartialEq, Default)]
pub struct Registration {
    /// The registration key.
    pub rkey: String,
    /// As in [`ZicoAgent`].
    pub name: String,
    /// As in [`ZicoAgent`].
    pub app: String,
    /// As in [`ZicoAgent`].
    pub env: String,
    /// The UUID from an earlier registration.
    pub uuid: Option<String>,
    /// The key from that registration.
    pub akey: Option<String>,
    /// As in [`ZicoAgent`].
    pub attrs: Vec<(String, ResourceValue)>,
}

/// The body of a session request (`/agent/session`). Its `Debug` shows no key.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Opening {
    /// The agent's UUID or number (rule 3).
    pub agent: String,
    /// The agent's key.
    pub authkey: String,
    /// The address that it is sent from, without a port.
    pub address: String,
}

impl Opening {
    /// A request for a session with this agent's key, from an unknown address.
    pub fn new(agent: &str, authkey: &str) -> Self {
        Opening { agent: agent.to_owned(), authkey: authkey.to_owned(), address: String::new() }
    }
}

/// The refusal of an opening. Agents up to 1.90.6 write the id and the key of their registration into their properties, and never
/// register again while these are there.
pub const UNKNOWN_AGENT: ZicoAgentError = ZicoAgentError::Denied(
    "the agent is unknown here, or the key is not one of its keys; to let it register again, delete the lines tracer.net.agent.id \
     and tracer.net.sessn.key in its zorka.properties and restart its JVM",
);

/// The result of a registration. Its `Debug` shows no key.
#[derive(Clone, PartialEq)]
pub struct Registered {
    /// The agent.
    pub agent: Arc<ZicoAgent>,
    /// Its key for sessions. It is sent in the answer and nowhere else (rule 27).
    pub authkey: String,
    /// Whether the agent is new: the answer is 201 instead of 200.
    pub is_new: bool,
}

/// The result of a session request. Its `Debug` shows no session id.
#[derive(Clone, PartialEq)]
pub struct Opened {
    /// The session's id, a UUID. It authenticates submissions (rule 27).
    pub session: String,
    /// Its agent.
    pub agent: Arc<ZicoAgent>,
    /// Whether it was opened now. `false`: it was live already.
    pub is_new: bool,
}

/// The sender of a counted request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requester<'a> {
    /// A registered agent.
    Agent {
        /// The agent's number.
        id: u64,
    },
    /// An agent that does not register and chooses its session id itself (gen2).
    Unregistered {
        /// The digest of the session's id ([`session_digest`]); of an agent of the binary protocol, its host.
        session: &'a str,
        /// The sender's address, without a port.
        address: &'a str,
    },
}

/// Counters of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests.
    pub requests: u64,
    /// The bytes of their bodies, as received.
    pub bytes: u64,
    /// Events, without losses.
    pub events: u64,
    /// Losses.
    pub losses: u64,
}

/// Why a request is refused. The text is for the answer's body and the log; it contains no key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ZicoAgentError {
    /// The request is malformed.
    Invalid(String),
    /// The agent is not allowed, or its session is over.
    Denied(&'static str),
    /// A limit is reached; the text names it.
    Full(String),
    /// The store is away, and the request can be repeated.
    Away(String),
    /// The store cannot be used. The log has the cause, which is of this machine, and neither an agent nor an event.
    Broken,
}

impl ZicoAgentError {
    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            ZicoAgentError::Invalid(_) => 400,
            ZicoAgentError::Denied(_) => 401,
            ZicoAgentError::Broken => 500,
            ZicoAgentError::Full(_) | ZicoAgentError::Away(_) => 503,
        }
    }
}

impl fmt::Display for ZicoAgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ZicoAgentError::Invalid(why) | ZicoAgentError::Full(why) | ZicoAgentError::Away(why) => f.write_str(why),
            ZicoAgentError::Denied(why) => f.write_str(why),
            ZicoAgentError::Broken => {
                f.write_str("the store of agents cannot be used; the log of the collector has the cause")
            }
        }
    }
}

impl std::error::Error for ZicoAgentError {}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Registration { name, app, env, uuid, attrs, .. } = self;
        let mut shown = f.debug_struct("Registration");
        shown.field("name", name).field("app", app).field("env", env).field("uuid", uuid).field("attrs", attrs);
        shown.finish_non_exhaustive()
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Opened");
        shown.field("agent", &self.agent).field("is_new", &self.is_new).finish_non_exhaustive()
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Registered");
        shown.field("agent", &self.agent).field("is_new", &self.is_new).finish_non_exhaustive()
    }
}

/// What stands for a session's id in events, files and listings: the first 16 hexadecimal digits of its SHA-256. The id itself
/// authenticates submissions, so it is shown nowhere (rule 27).
pub fn session_digest(session: &str) -> String {
    short_digest(session)
}

/// The agents of recorded requests, which another collector answered: every registration is accepted, and every session is
/// live. For offline decoding. Ids are assigned in order, so that the output is reproducible.
#[derive(Debug, Default)]
pub struct Recorded {
    agents: Mutex<Vec<Arc<ZicoAgent>>>,
    opened: Mutex<Vec<String>>,
}

impl Recorded {
    /// No agents.
    pub fn new() -> Self {
        Recorded::default()
    }

    /// The agent that a request calls `name`. Another collector chose that name: if only one agent is registered here, it
    /// is that agent.
    fn assumed(&self, name: Option<&str>) -> Arc<ZicoAgent> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let own = agents.iter().find(|agent| name.is_some_and(|name| agent.is_called(name)));
        match (own, agents.as_slice(), name) {
            (Some(agent), ..) => agent.clone(),
            (None, [only], None) => only.clone(),
            (None, [only], Some(name)) => Arc::new(ZicoAgent { uuid: name.to_owned(), ..ZicoAgent::clone(only) }),
            (None, _, name) => Arc::new(ZicoAgent {
                id: 0,
                uuid: name.unwrap_or_default().to_owned(),
                name: String::new(),
                app: String::new(),
                env: String::new(),
                attrs: Vec::new(),
            }),
        }
    }
}

impl ZicoAgent {
    /// Whether `name` is its UUID or its number.
    pub fn is_called(&self, name: &str) -> bool {
        self.uuid.eq_ignore_ascii_case(name) || name.parse() == Ok(self.id)
    }

    /// Whether it registered with the same name, app and env.
    fn is_same(&self, asked: &Registration) -> bool {
        self.name == asked.name && self.app == asked.app && self.env == asked.env
    }
}

impl Agents for Recorded {
    fn register(&self, asked: &Registration, _address: &str, _now: UnixNanos) -> Result<Registered, ZicoAgentError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let known = agents.iter().find(|agent| agent.is_same(asked)).cloned();
        let is_new = known.is_none();
        let agent = known.unwrap_or_else(|| {
            let id = agents.len() as u64 + 1;
            let Registration { name, app, env, attrs, .. } = asked.clone();
            let agent =
                Arc::new(ZicoAgent { id, uuid: format!("00000000-0000-4000-8000-{id:012x}"), name, app, env, attrs });
            agents.push(agent.clone());
            agent
        });
        Ok(Registered { authkey: format!("recorded-{}", agent.id), agent, is_new })
    }

    fn open(&self, asked: &Opening, _now: UnixNanos) -> Result<Opened, ZicoAgentError> {
        let agent = self.assumed(Some(&asked.agent));
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let place = opened.iter().position(|uuid| *uuid == agent.uuid);
        if place.is_none() {
            opened.push(agent.uuid.clone());
        }
        let number = place.unwrap_or(opened.len() - 1) + 1;
        Ok(Opened { session: format!("00000000-0000-4000-9000-{number:012x}"), agent, is_new: place.is_none() })
    }

    fn session(&self, _session: &str, agent: Option<&str>, _now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError> {
        Ok(self.assumed(agent))
    }

    fn agent(&self, name: &str) -> Result<Option<Arc<ZicoAgent>>, ZicoAgentError> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(agents.iter().find(|agent| agent.is_called(name)).cloned())
    }

    fn admits(&self, _pass_phrase: &str) -> bool {
        true
    }

    fn seen(&self, _whom: Requester<'_>, _more: Counters, _now: UnixNanos) {}

    fn store_hosts(&self, _hosts: &[StoredHost]) {}

    fn stored_hosts(&self) -> Vec<StoredHost> {
        Vec::new()
    }
}
