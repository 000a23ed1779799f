//! Who may send: registered agents, their keys, and the sessions that they open (sections 1.1 and 4).
//!
//! An exchange asks through [`Agents`] and does not know where the answers are kept: the daemon keeps them in a file
//! ([`crate::zico_store`]), whoever decodes recorded requests in [`Recorded`].
//!
//! A registration answers a key, and a session belongs to a key. A JVM registers once, when it starts, so two JVMs that
//! call themselves the same have a key and a session each: their symbols, which both number from 1, do not mix.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::event::{ResourceValue, UnixNanos};

/// The agents of one listener, their keys and sessions.
///
/// A method may take as long as a small write to a disk; what it has answered holds, also after the process was killed.
pub trait Agents: Send + Sync + 'static {
    /// An agent introduces itself from `address` (without a port). One that is known by registration key, name, app and
    /// env, or else by its uuid and a key of it, is the same agent as before. It gets a key of its own every time, and keys
    /// that were answered before stay good (`max_sessions_per_agent` of an agent).
    ///
    /// # Errors
    /// [`Refusal`].
    fn register(&self, asked: &Registration, address: &str, now: UnixNanos) -> Result<Registered, Refusal>;

    /// An agent wants a session: the one that this key has, if it lives, or else a new one.
    ///
    /// # Errors
    /// [`Refusal`]; [`Refusal::Denied`] for an unknown agent, too: who asks is not told which of the two was wrong.
    fn open(&self, asked: &Opening, now: UnixNanos) -> Result<Opened, Refusal>;

    /// The agent of a session that lives, which lives on from `now`. `agent` is what the request names, by uuid or
    /// number; where it names one, it must be the session's.
    ///
    /// # Errors
    /// [`Refusal::Denied`] for a session that is not known, is over, or is another agent's: the agent opens another one.
    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<Agent>, Refusal>;

    /// The agent of this uuid or number, if it is registered: for `host` of a form, which proves nothing.
    ///
    /// # Errors
    /// [`Refusal::Broken`].
    fn agent(&self, name: &str) -> Result<Option<Arc<Agent>>, Refusal>;

    /// Counts what a request brought, for operators. Never waits; what was counted in the last second may be forgotten
    /// when the process is killed.
    fn seen(&self, whom: Whom<'_>, more: Counters, now: UnixNanos);
}

/// A registered agent: what it says of itself, and how it is called here. Never a key.
#[derive(Clone, PartialEq, Debug)]
pub struct Agent {
    /// Its number, from 1.
    pub id: u64,
    /// Its uuid, in lower case with hyphens.
    pub uuid: String,
    /// Its name, usually that of its host.
    pub name: String,
    /// The application.
    pub app: String,
    /// The environment.
    pub env: String,
    /// What else it says of itself, in its order. Nested values are JSON.
    pub attrs: Vec<(String, ResourceValue)>,
}

/// The body of a registration (`/agent/register`). Its `Debug` shows no key.
#[derive(Clone, PartialEq, Default)]
pub struct Registration {
    /// The registration key.
    pub rkey: String,
    /// As in [`Agent`].
    pub name: String,
    /// As in [`Agent`].
    pub app: String,
    /// As in [`Agent`].
    pub env: String,
    /// Who it was when it registered before.
    pub uuid: Option<String>,
    /// The key that it was given then.
    pub akey: Option<String>,
    /// As in [`Agent`].
    pub attrs: Vec<(String, ResourceValue)>,
}

/// The body of a session request (`/agent/session`). Its `Debug` shows no key.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Opening {
    /// The agent, by uuid or number (rule 3).
    pub agent: String,
    /// The key that it was given.
    pub authkey: String,
}

/// The answer to a registration: both `uuid` and `id` go out (rule 1). Its `Debug` shows no key.
#[derive(Clone, PartialEq)]
pub struct Registered {
    /// The agent.
    pub agent: Arc<Agent>,
    /// Its key, for sessions. Goes into the answer and nowhere else (rule 27).
    pub authkey: String,
    /// Whether it was not known before: 201 instead of 200.
    pub is_new: bool,
}

/// The answer to a session request.
#[derive(Clone, PartialEq, Debug)]
pub struct Opened {
    /// The session's uuid.
    pub session: String,
    /// Whose it is.
    pub agent: Arc<Agent>,
    /// Whether it was opened now. `false`: it lives on, and definitions that it was sent still hold.
    pub is_new: bool,
}

/// Who sent a request that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whom<'a> {
    /// A registered agent in a session of it.
    Agent {
        /// The agent's number.
        id: u64,
        /// The session's uuid.
        session: &'a str,
    },
    /// An agent that registers nowhere and made up its session itself (gen2).
    Unregistered {
        /// The session's id.
        session: &'a str,
        /// Where it sends from, without a port.
        address: &'a str,
    },
}

/// What requests brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Requests.
    pub requests: u64,
    /// Bytes of their bodies, as received.
    pub bytes: u64,
    /// Events, without losses.
    pub events: u64,
    /// Losses.
    pub losses: u64,
}

/// Why an agent does not get what it asks for. The text is for the answer's body and the log; no key is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// What it says makes no sense.
    Invalid(String),
    /// It may not, or its session is over.
    Denied(&'static str),
    /// There is no room now (a limit, which the text names).
    Full(String),
    /// The store cannot be used: the text says which file, and why. Already logged.
    Broken(String),
}

impl Refusal {
    /// The HTTP status of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::Invalid(_) => 400,
            Refusal::Denied(_) => 401,
            Refusal::Broken(_) => 500,
            Refusal::Full(_) => 503,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Invalid(why) | Refusal::Full(why) => f.write_str(why),
            Refusal::Denied(why) => f.write_str(why),
            Refusal::Broken(why) => write!(f, "the store of agents cannot be used: {why}"),
        }
    }
}

impl std::error::Error for Refusal {}

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

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Registered");
        shown.field("agent", &self.agent).field("is_new", &self.is_new).finish_non_exhaustive()
    }
}

/// The agents of recorded requests, which were answered by another collector: whatever they registered as is believed,
/// and every session that they name lives. For decoding offline; ids are made up in order, so that output repeats.
#[derive(Debug, Default)]
pub struct Recorded {
    agents: Mutex<Vec<Arc<Agent>>>,
    opened: Mutex<Vec<String>>,
}

impl Recorded {
    /// Nobody yet.
    pub fn new() -> Self {
        Recorded::default()
    }

    /// The agent that a request calls `name`. It was another collector that gave it that name: where only one agent has
    /// registered here, it is that one.
    fn believed(&self, name: Option<&str>) -> Arc<Agent> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let own = agents.iter().find(|agent| name.is_some_and(|name| agent.is_called(name)));
        match (own, agents.as_slice(), name) {
            (Some(agent), ..) => agent.clone(),
            (None, [only], None) => only.clone(),
            (None, [only], Some(name)) => Arc::new(Agent { uuid: name.to_owned(), ..Agent::clone(only) }),
            (None, _, name) => Arc::new(Agent {
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

impl Agent {
    /// Whether `name` is its uuid or its number.
    pub fn is_called(&self, name: &str) -> bool {
        self.uuid.eq_ignore_ascii_case(name) || name.parse() == Ok(self.id)
    }

    /// Whether it registered with the same name, app and env.
    fn is_same(&self, asked: &Registration) -> bool {
        self.name == asked.name && self.app == asked.app && self.env == asked.env
    }
}

impl Agents for Recorded {
    fn register(&self, asked: &Registration, _address: &str, _now: UnixNanos) -> Result<Registered, Refusal> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let known = agents.iter().find(|agent| agent.is_same(asked)).cloned();
        let is_new = known.is_none();
        let agent = known.unwrap_or_else(|| {
            let id = agents.len() as u64 + 1;
            let Registration { name, app, env, attrs, .. } = asked.clone();
            let agent =
                Arc::new(Agent { id, uuid: format!("00000000-0000-4000-8000-{id:012x}"), name, app, env, attrs });
            agents.push(agent.clone());
            agent
        });
        Ok(Registered { authkey: format!("recorded-{}", agent.id), agent, is_new })
    }

    fn open(&self, asked: &Opening, _now: UnixNanos) -> Result<Opened, Refusal> {
        let agent = self.believed(Some(&asked.agent));
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let place = opened.iter().position(|uuid| *uuid == agent.uuid);
        if place.is_none() {
            opened.push(agent.uuid.clone());
        }
        let number = place.unwrap_or(opened.len() - 1) + 1;
        Ok(Opened { session: format!("00000000-0000-4000-9000-{number:012x}"), agent, is_new: place.is_none() })
    }

    fn session(&self, _session: &str, agent: Option<&str>, _now: UnixNanos) -> Result<Arc<Agent>, Refusal> {
        Ok(self.believed(agent))
    }

    fn agent(&self, name: &str) -> Result<Option<Arc<Agent>>, Refusal> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(agents.iter().find(|agent| agent.is_called(name)).cloned())
    }

    fn seen(&self, _whom: Whom<'_>, _more: Counters, _now: UnixNanos) {}
}
