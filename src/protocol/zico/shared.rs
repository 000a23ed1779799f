//! What all requests of one listener share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::agents::{ZicoAgent, ZicoAgentError};
use super::body::OpenLimits;
use super::options::Options;
use super::profile::Profiles;
use super::registrations::Registrations;
use super::sessions::{SessionKey, SessionSlot, Sessions, bytes};
use super::wire::Carries;
use tributary_memory::MemoryBudget;
use tributary_protocol::{Now, RequestHead, Response};

/// Options, agents and sessions.
pub(super) struct SharedExchange {
    pub(super) options: Options,
    pub(super) emit_definitions: bool,
    pub(super) agents: Arc<dyn Registrations>,
    pub(super) sessions: Sessions,
    pub(super) profiles: Profiles,
    pub(super) budget: Arc<MemoryBudget>,
    /// Another collector answered the requests: every session is accepted.
    pub(super) is_recorded: bool,
    /// The listener has stopped, and its sessions have ended.
    pub(super) is_finished: AtomicBool,
}

impl fmt::Debug for SharedExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The session that a request names.
pub(super) struct RequestSession {
    key: SessionKey,
    agent: Option<Arc<ZicoAgent>>,
    /// `None`: the session is new, and is accepted.
    slot: Option<Arc<SessionSlot>>,
}

impl SharedExchange {
    /// The session of a request, and whether it is new (rules 4, 7 and 8).
    ///
    /// # Errors
    /// The request names no session, or an unknown one: the agent opens another one or resets its own.
    pub(super) fn find(
        &self,
        head: &RequestHead,
        carries: Carries,
        now: Now,
    ) -> Result<(Arc<SessionSlot>, bool), ZicoAgentError> {
        let RequestSession { key, agent, slot } = self.look_up(head, carries, now)?;
        let found = match slot {
            Some(slot) => (slot, false),
            None => self.sessions.find_or_open(key, agent.clone(), now.elapsed),
        };
        if let Some(agent) = agent {
            found.0.lock().set_agent(&agent);
        }
        Ok(found)
    }

    /// The session named by a request's head. It opens none, because the body may never arrive.
    pub(super) fn look_up(
        &self,
        head: &RequestHead,
        carries: Carries,
        now: Now,
    ) -> Result<RequestSession, ZicoAgentError> {
        if let Some(own) = head.header("x-zorka-session-id") {
            let key = SessionKey::Own(name(own)?);
            let slot = self.sessions.find(&key, now.elapsed);
            let may_begin = self.is_recorded || carries == Carries::Definitions && is_reset(head);
            return if slot.is_some() || may_begin {
                Ok(RequestSession { key, agent: None, slot })
            } else {
                Err(UNKNOWN)
            };
        }
        let opened =
            head.header("x-zorka-session-uuid").ok_or(ZicoAgentError::Denied("the request names no session"))?;
        let opened = name(opened)?;
        let agent = head.header("x-zorka-agent-uuid").or_else(|| head.header("x-zorka-agent-id"));
        let agent = self.agents.session(&opened, agent, now.unix)?;
        let key = SessionKey::Opened(opened);
        let slot = self.sessions.find(&key, now.elapsed);
        // Its definitions were forgotten, for example at a restart, so its agent must send them again.
        if slot.is_none() && !self.is_recorded {
            return Err(UNKNOWN);
        }
        Ok(RequestSession { key, agent: Some(agent), slot })
    }

    /// The definitions that a host sent in forms.
    pub(super) fn host(&self, uuid: &str, now: Now) -> Option<Arc<SessionSlot>> {
        self.sessions.find(&SessionKey::Host(name(uuid).ok()?), now.elapsed)
    }

    pub(super) fn open_limits(&self) -> OpenLimits {
        OpenLimits { record_bytes: bytes(self.options.max_record_bytes), bytes: bytes(self.options.max_open_bytes) }
    }
}

/// Whether a gen2 agent resets its session.
pub(super) fn is_reset(head: &RequestHead) -> bool {
    head.header("x-zorka-session-reset").is_some_and(|reset| reset.eq_ignore_ascii_case("true"))
}

/// The answer to a refused request, in the form that gen2 agents read.
pub(super) fn refused(refusal: &ZicoAgentError) -> Response {
    let response = json(refusal.status(), &serde_json::json!({ "reason": refusal.to_string() }));
    if response.status == 503 { response.again_later() } else { response }
}

/// A JSON answer.
pub(super) fn json(status: u16, value: &serde_json::Value) -> Response {
    let mut response = Response::empty(status).with("content-type", "application/json".to_owned());
    response.body = value.to_string().into_bytes().into();
    response
}

/// The name of a session or host in lower case: agents write hexadecimal digits in either case.
pub(super) fn name(text: &str) -> Result<Box<str>, ZicoAgentError> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err(ZicoAgentError::Denied("the id of the session or host is empty or too long"));
    }
    Ok(text.to_ascii_lowercase().into())
}

const UNKNOWN: ZicoAgentError = ZicoAgentError::Denied("the session is unknown here; reset it or open another one");
const MAX_NAME_BYTES: usize = 128;
