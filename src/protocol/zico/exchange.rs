//! The listener: which requests agents may send, and what all others are told (sections 1.1, 1.2 and 1.4).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::event::Reason;
use crate::memory::MemoryBudget;
use crate::protocol::{Exchange, Flow, Head, HeadDecision, Now, Output, Request, Response};

use super::Options;
use super::agents::{Agent, Agents, Recorded, Refusal};
use super::body::{BodyState, OpenLimits};
use super::normalize::Context;
use super::sessions::{Key, Sessions, Slot, bytes};
use super::symbols::{SymbolLimits, Symbols, Table};
use super::wire::Carries;
use super::work::ZicoWork;

/// What the requests of one listener share.
#[derive(Debug)]
pub struct ZicoExchange {
    shared: Arc<Shared>,
}

/// Options, agents and sessions.
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) emit_definitions: bool,
    pub(super) agents: Arc<dyn Agents>,
    pub(super) sessions: Sessions,
    pub(super) budget: Arc<MemoryBudget>,
    /// The requests were answered by another collector: no session is unknown.
    is_recorded: bool,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    Register,
    Session,
    Submit(Carries),
    Form,
}

/// The session that a request names.
struct Named {
    key: Key,
    agent: Option<Arc<Agent>>,
    /// None: it may begin.
    slot: Option<Arc<Slot>>,
}

impl ZicoExchange {
    /// A listener that has seen nothing yet, and knows agents as `agents` does. Sessions whose agents fall silent for
    /// `session_timeout` are forgotten.
    pub fn new(
        options: Options,
        session_timeout: Duration,
        agents: Arc<dyn Agents>,
        emit_definitions: bool,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        ZicoExchange::make(options, session_timeout, agents, emit_definitions, budget, false)
    }

    /// For requests that another collector has answered: sessions that they name are taken for good.
    pub fn recorded(options: Options, emit_definitions: bool, budget: &Arc<MemoryBudget>) -> Self {
        let agents = Arc::new(Recorded::new());
        ZicoExchange::make(options, Duration::MAX, agents, emit_definitions, budget, true)
    }

    fn make(
        options: Options,
        timeout: Duration,
        agents: Arc<dyn Agents>,
        emit_definitions: bool,
        budget: &Arc<MemoryBudget>,
        is_recorded: bool,
    ) -> Self {
        let sessions = Sessions::new(options.clone(), timeout, budget.clone());
        let shared = Shared { options, emit_definitions, agents, sessions, budget: budget.clone(), is_recorded };
        ZicoExchange { shared: Arc::new(shared) }
    }

    /// Writes what is not awaited any more, until the batch is full.
    fn let_go(&self, out: &mut Output) -> Flow {
        while let Some(mut parked) = self.shared.sessions.next_retired() {
            out.batch.set_origin(parked.origin.clone());
            out.batch.set_resource(parked.resource.clone());
            let context = Context { dialect: parked.trace.dialect, observed: parked.observed, request: parked.request };
            let mut state = BodyState::new(context, self.shared.open_limits(), 0, true);
            // Everything that it needs was filled in when it was parked.
            let mut nothing = Table::new(SymbolLimits { entries: 0, bytes: 0, text: 0 });
            let symbols = &mut Symbols { own: &mut nothing, host: None };
            let is_closed = parked.trace.flush(&[], symbols, &mut state, out);
            state.tell_unresolved(out);
            if !is_closed {
                self.shared.sessions.retire(parked);
                return Flow::Again;
            }
            if out.batch.is_full() {
                return Flow::Again;
            }
        }
        Flow::Continue
    }
}

impl Exchange for ZicoExchange {
    type Work = ZicoWork;

    /// Registrations and requests for sessions have keys in them (rule 27), also where they were sent to another path.
    fn is_secret(&self, head: &Head) -> bool {
        !matches!(Route::read(head.path()), Some(Route::Submit(_) | Route::Form))
    }

    fn admit(&self, head: &Head, now: Now) -> HeadDecision {
        let Some(route) = Route::read(head.path()) else {
            let sentence = "agents post to /agent/register, /agent/session, /agent/submit/agd, /agent/submit/trc, \
                            and /submit/agent";
            return HeadDecision::Answer(Response::text(404, sentence), Reason::Unsupported);
        };
        if head.method != "POST" {
            return HeadDecision::Answer(Response::not_allowed(&head.method, "POST"), Reason::Unsupported);
        }
        let options = &self.shared.options;
        match route {
            Route::Register | Route::Session => {
                HeadDecision::Take { max_body_bytes: options.max_registration_bytes, key: "max_registration_bytes" }
            }
            Route::Submit(carries) => match self.shared.look_up(head, carries, now) {
                Ok(_) => self.take_body(),
                Err(refusal) => HeadDecision::Answer(refused(&refusal), Reason::Unauthorized),
            },
            Route::Form => self.take_body(),
        }
    }

    fn work(&self, request: Request, now: Now) -> ZicoWork {
        // Only what was admitted gets here, and that has a route.
        let route = Route::read(request.head.path()).unwrap_or(Route::Form);
        ZicoWork::new(request, route, now, self.shared.clone())
    }

    fn tick(&self, now: Now, out: &mut Output) -> Flow {
        self.shared.sessions.sweep(Some(now.elapsed));
        self.let_go(out)
    }

    fn finish(&self, _now: Now, out: &mut Output) -> Flow {
        self.shared.sessions.sweep(None);
        self.let_go(out)
    }
}

impl ZicoExchange {
    fn take_body(&self) -> HeadDecision {
        let max_body_bytes = self.shared.options.max_body_bytes;
        HeadDecision::Take { max_body_bytes, key: "max_body_bytes" }
    }
}

impl Shared {
    /// The session that a request is part of, and whether it is new (rules 4, 7 and 8).
    ///
    /// # Errors
    /// It names none, or one that is not known here: its agent is to begin anew.
    pub(super) fn find(&self, head: &Head, carries: Carries, now: Now) -> Result<(Arc<Slot>, bool), Refusal> {
        let Named { key, agent, slot } = self.look_up(head, carries, now)?;
        let found = match slot {
            Some(slot) => (slot, false),
            None => self.sessions.find_or_open(key, agent.clone(), now.elapsed),
        };
        if let Some(agent) = agent {
            found.0.lock().belongs_to(&agent);
        }
        Ok(found)
    }

    /// The session that the head of a request names. Opens none: a body may never come.
    fn look_up(&self, head: &Head, carries: Carries, now: Now) -> Result<Named, Refusal> {
        if let Some(own) = head.header("x-zorka-session-id") {
            let key = Key::Own(name(own)?);
            let slot = self.sessions.find(&key, now.elapsed);
            let may_begin = self.is_recorded || carries == Carries::Definitions && is_reset(head);
            return if slot.is_some() || may_begin { Ok(Named { key, agent: None, slot }) } else { Err(UNKNOWN) };
        }
        let opened = head.header("x-zorka-session-uuid").ok_or(Refusal::Denied("the request names no session"))?;
        let opened = name(opened)?;
        let agent = head.header("x-zorka-agent-uuid").or_else(|| head.header("x-zorka-agent-id"));
        let agent = self.agents.session(&opened, agent, now.unix)?;
        let key = Key::Opened(opened);
        let slot = self.sessions.find(&key, now.elapsed);
        // What it defined was forgotten, with a restart maybe, so it is not the session that its agent thinks it is.
        if slot.is_none() && !self.is_recorded {
            return Err(UNKNOWN);
        }
        Ok(Named { key, agent: Some(agent), slot })
    }

    /// What a host has sent in forms, if it did.
    pub(super) fn host(&self, uuid: &str, now: Now) -> Option<Arc<Slot>> {
        self.sessions.find(&Key::Host(name(uuid).ok()?), now.elapsed)
    }

    pub(super) fn open_limits(&self) -> OpenLimits {
        OpenLimits { record_bytes: bytes(self.options.max_record_bytes), bytes: bytes(self.options.max_open_bytes) }
    }
}

impl Route {
    pub(super) fn read(path: &str) -> Option<Route> {
        Some(match path.trim_end_matches('/') {
            "/agent/register" => Route::Register,
            "/agent/session" => Route::Session,
            "/agent/submit/agd" => Route::Submit(Carries::Definitions),
            "/agent/submit/trc" => Route::Submit(Carries::Trace),
            "/submit/agent" => Route::Form,
            _ => return None,
        })
    }
}

/// Whether an agent of gen2 says that it begins anew.
pub(super) fn is_reset(head: &Head) -> bool {
    head.header("x-zorka-session-reset").is_some_and(|reset| reset.eq_ignore_ascii_case("true"))
}

/// A refusal as agents of gen2 read it.
pub(super) fn refused(refusal: &Refusal) -> Response {
    json(refusal.status(), &serde_json::json!({ "reason": refusal.to_string() }))
}

/// An answer in JSON.
pub(super) fn json(status: u16, value: &serde_json::Value) -> Response {
    let mut response = Response::empty(status).with("content-type", "application/json".to_owned());
    response.body = value.to_string().into_bytes().into();
    response
}

/// A session or host as it is known by: agents write hex in either case.
pub(super) fn name(text: &str) -> Result<Box<str>, Refusal> {
    if text.is_empty() || text.len() > MOST_NAME_BYTES {
        return Err(Refusal::Denied("a session's or host's id is empty or too long"));
    }
    Ok(text.to_ascii_lowercase().into())
}

const UNKNOWN: Refusal = Refusal::Denied("this session is not known here; begin anew");
const MOST_NAME_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_a_path_with_or_without_a_slash_behind_it() {
        assert_eq!(Route::read("/agent/register"), Some(Route::Register));
        assert_eq!(Route::read("/agent/submit/trc/"), Some(Route::Submit(Carries::Trace)));
        for path in ["", "/", "/agent", "/agent/submit", "/agent/submit/trc/x", "agent/register"] {
            assert_eq!(Route::read(path), None, "{path}");
        }
    }
}
