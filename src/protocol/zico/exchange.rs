//! Decides about request heads, and ends sessions (sections 1.1, 1.2 and 1.4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tributary_event::Reason;
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{Exchange, Flow, HeadDecision, Now, Output, Packets, Request, RequestHead, Response};

use super::agents::Recorded;
use super::body::BodyState;
use super::fressian::connection::Connection;
use super::fressian::packet::{HEADER_BYTES, MAGIC};
use super::normalize::BodyContext;
use super::options::Options;
use super::profile::Profiles;
use super::registrations::Registrations;
use super::route::Route;
use super::sessions::Sessions;
use super::shared::{SharedExchange, refused};
use super::symbols::{SymbolLimits, SymbolTable, Symbols};
use super::work::ZicoWork;

/// The protocol of one `zico` listener.
#[derive(Debug)]
pub struct ZicoExchange {
    shared: Arc<SharedExchange>,
}

impl ZicoExchange {
    /// A listener without sessions. Sessions that are unused for `session_timeout` end.
    pub fn new(
        options: Options,
        session_timeout: Duration,
        agents: Arc<dyn Registrations>,
        emit_definitions: bool,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        ZicoExchange::make(options, session_timeout, agents, emit_definitions, budget, false)
    }

    /// For recorded requests, which another collector answered: every session is accepted.
    pub fn recorded(options: Options, emit_definitions: bool, budget: &Arc<MemoryBudget>) -> Self {
        let agents = Arc::new(Recorded::new());
        ZicoExchange::make(options, Duration::MAX, agents, emit_definitions, budget, true)
    }

    fn make(
        options: Options,
        timeout: Duration,
        agents: Arc<dyn Registrations>,
        emit_definitions: bool,
        budget: &Arc<MemoryBudget>,
        is_recorded: bool,
    ) -> Self {
        let sessions = Sessions::new(options.clone(), timeout, budget.clone());
        sessions.restore(agents.stored_hosts());
        let profiles = Profiles::new(options.profile, options.amplification, budget.clone());
        let budget = budget.clone();
        let is_finished = AtomicBool::new(false);
        let shared =
            SharedExchange { options, emit_definitions, agents, sessions, profiles, budget, is_recorded, is_finished };
        ZicoExchange { shared: Arc::new(shared) }
    }

    /// Writes traces whose further parts are no longer awaited, until the batch is full.
    fn write_retired(&self, now: Now, out: &mut Output) -> Flow {
        while let Some(mut parked) = self.shared.sessions.next_retired() {
            out.batch.set_origin(parked.origin.clone());
            out.batch.set_resource(parked.resource.clone());
            let context =
                BodyContext { dialect: parked.trace.dialect, observed: parked.observed, request: parked.request };
            let mut state = BodyState::new(context, self.shared.open_limits(), 0, true, 0).with(&self.shared.options);
            parked.trace.begin_body();
            // Its symbols were filled in when it was parked.
            let mut nothing = SymbolTable::new(SymbolLimits { entries: 0, bytes: 0, text: 0 });
            let symbols = &mut Symbols { own: &mut nothing, host: None };
            let is_closed = parked.trace.flush(&[], symbols, &mut state, out);
            state.report_unresolved(out);
            if let Some(calls) = &mut state.calls {
                calls.allowance.clone_from(&parked.allowance);
                self.shared.profiles.add(calls, 0, &parked.resource, &parked.origin, now);
            }
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

    /// Registrations and session requests contain keys (rule 27), also if they are sent to a wrong path, and forms can.
    fn is_secret(&self, head: &RequestHead) -> bool {
        !matches!(Route::read(head.path()), Some(Route::Submit(_) | Route::Packet))
    }

    fn is_explained_without_keys(&self, head: &RequestHead) -> bool {
        matches!(Route::read(head.path()), Some(Route::Form))
    }

    /// Agents up to 1.90.6 send the binary protocol, and to the same port.
    fn packet_magic(&self) -> Option<&'static [u8]> {
        Some(&MAGIC)
    }

    fn packets(&self) -> Option<Box<dyn Packets<ZicoWork>>> {
        Some(Box::new(Connection::new(self.shared.clone())))
    }

    fn admit(&self, head: &RequestHead, now: Now) -> HeadDecision {
        // There is no hello over HTTP.
        let route = Route::read(head.path()).filter(|route| *route != Route::Packet || self.shared.is_recorded);
        let Some(route) = route else {
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
            Route::Packet => {
                let max_body_bytes = options.max_packet_bytes.saturating_add(HEADER_BYTES as u64);
                HeadDecision::Take { max_body_bytes, key: "max_packet_bytes" }
            }
        }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, now: Now) -> ZicoWork {
        // Only admitted requests get here, and they have a route.
        let route = Route::read(request.head.path()).unwrap_or(Route::Form);
        let lease = memory.unwrap_or(&self.shared.budget).passing(MemoryLease::FLOOR);
        ZicoWork::new(request, route, now, lease, self.shared.clone())
    }

    fn tick(&self, now: Now, out: &mut Output) -> Flow {
        self.shared.sessions.sweep(Some(now.elapsed));
        match self.write_retired(now, out) {
            Flow::Continue => self.shared.profiles.write(now, false, out),
            flow => flow,
        }
    }

    fn finish(&self, now: Now, out: &mut Output) -> Flow {
        if !self.shared.is_finished.swap(true, Ordering::Relaxed) {
            self.shared.agents.store_hosts(&self.shared.sessions.stored_hosts());
        }
        self.shared.sessions.sweep(None);
        match self.write_retired(now, out) {
            Flow::Continue => self.shared.profiles.write(now, true, out),
            flow => flow,
        }
    }
}

impl ZicoExchange {
    fn take_body(&self) -> HeadDecision {
        let max_body_bytes = self.shared.options.max_body_bytes;
        HeadDecision::Take { max_body_bytes, key: "max_body_bytes" }
    }
}
