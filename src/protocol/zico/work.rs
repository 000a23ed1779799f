//! One request: a registration, a session request, or a body that is decompressed and read in bounded steps.

mod packet;

use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll};

use serde_json::json;

use tributary_codec::base64;
use tributary_codec::inflate::InflateError;
use tributary_event::{ContentId, Header, Kind, Loss, Origin, Position, Reason, Resource, UnixNanos, semconv};
use tributary_memory::MemoryLease;
use tributary_protocol::{Flow, Now, Output, Request, RequestOutcome, Response, Work};

use super::agents::{Counters, Opened, Opening, Registered, Requester, ZicoAgent, ZicoAgentError};
use super::body::{BodyState, TraceError};
use super::definitions::{self, Definitions};
use super::delivered::Changes;
use super::forms::{self, Unpacking};
use super::fressian::connection::{self, Link};
use super::fressian::digest::RecordDigest;
use super::fressian::reading::PacketReader;
use super::fressian::resends::Resend;
use super::ids;
use super::normalize::{self, BodyContext};
use super::profile::BodyCalls;
use super::reading::{BodyProgress, TraceReader};
use super::registrations::Reply;
use super::route::Route;
use super::sessions::{Parked, Session, SessionKey, SessionSlot, bytes};
use super::shared::{SharedExchange, is_reset, json, name, refused};
use super::trace::OpenTrace;
use super::wire::{self, Carries, ZicoDialect};

/// One request.
#[derive(Debug)]
pub struct ZicoWork {
    shared: Arc<SharedExchange>,
    request: Request,
    route: Route,
    stage: RequestStage,
    /// The decoded body; `None`: the body as transmitted.
    unpacked: Option<Vec<u8>>,
    /// The session, once it is known.
    slot: Option<Arc<SessionSlot>>,
    lease: MemoryLease,
    /// Transmitted bytes that were not yet charged to the allowance. They are charged as output is written, because the
    /// allowance is bounded.
    unearned: u64,
    /// When the whole request was received.
    received: UnixNanos,
    /// The sender's address.
    peer: Arc<str>,
    /// What is remembered of its traces once they are delivered.
    changes: Changes,
    counters: Counters,
    /// The connection of a packet.
    link: Option<Arc<Mutex<Link>>>,
    /// That a packet is being worked on, and its records when it was read.
    resend: Option<(Resend, Vec<RecordDigest>)>,
    /// Its calls, and whose they are, if they are summed up.
    calls: Option<(BodyCalls, Arc<Resource>, Arc<Origin>)>,
    /// Why the request goes to the quarantine.
    quarantine_reason: Option<String>,
    /// The answer if the events are delivered.
    answer: Response,
}

#[derive(Debug)]
enum RequestStage {
    Start,
    Registering(Reply<Registered>),
    Opening(Reply<Opened>),
    LookingUp(Reply<Option<Arc<ZicoAgent>>>, Box<Form>),
    Unpacking(Box<Unpacking>),
    Definitions(Box<Definitions>),
    Trace(Box<TraceReader>),
    Packet(Box<PacketReader>),
    Done,
}

/// The content of a form, whose host is being looked up.
#[derive(Debug)]
struct Form {
    host: Box<str>,
    submission: forms::Submission,
}

impl ZicoWork {
    pub(super) fn new(
        request: Request,
        route: Route,
        now: Now,
        lease: MemoryLease,
        shared: Arc<SharedExchange>,
    ) -> Self {
        ZicoWork {
            lease,
            unearned: request.body.len() as u64,
            counters: Counters { requests: 1, bytes: request.body.len() as u64, ..Counters::default() },
            shared,
            request,
            route,
            stage: RequestStage::Start,
            unpacked: None,
            slot: None,
            received: now.unix,
            peer: "".into(),
            changes: Changes::default(),
            link: None,
            resend: None,
            calls: None,
            quarantine_reason: None,
            answer: Response::empty(202),
        }
    }
}

impl Work for ZicoWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let before = out.batch.total_expanded_bytes();
        match std::mem::replace(&mut self.stage, RequestStage::Done) {
            RequestStage::Start => self.start(now, out),
            RequestStage::Registering(Reply::Now(registered)) => self.registered(registered, out),
            RequestStage::Opening(Reply::Now(opened)) => self.opened(opened, now, out),
            RequestStage::LookingUp(Reply::Now(agent), form) => self.unpack_form(agent, *form, now, out),
            // Not before [`Work::poll_ready`] has returned that they are known.
            waiting @ (RequestStage::Registering(_) | RequestStage::Opening(_) | RequestStage::LookingUp(..)) => {
                self.stage = waiting;
            }
            RequestStage::Unpacking(unpacking) => self.unpack(unpacking, now, out),
            RequestStage::Definitions(definitions) => self.define(definitions, out),
            RequestStage::Trace(reading) => self.read(reading, now, out),
            RequestStage::Packet(reading) => self.read_packet(reading, now, out),
            RequestStage::Done => {}
        }
        let expanded = out.batch.total_expanded_bytes() - before;
        out.charge_request(self.shared.options.amplification, &mut self.unearned, expanded, now.elapsed);
        for kind in Kind::ALL {
            let count = if kind == Kind::Loss { &mut self.counters.losses } else { &mut self.counters.events };
            *count += out.batch.count(kind);
        }
        if let RequestStage::Done = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<()> {
        match &mut self.stage {
            RequestStage::Registering(reply) => reply.poll(context),
            RequestStage::Opening(reply) => reply.poll(context),
            RequestStage::LookingUp(reply, _) => reply.poll(context),
            RequestStage::Start => {
                self.link.as_ref().map_or(Poll::Ready(()), |link| connection::lock(link).poll(context))
            }
            _ => Poll::Ready(()),
        }
    }

    fn quarantine_reason(&self) -> Option<&str> {
        self.quarantine_reason.as_deref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(mut self, outcome: RequestOutcome, now: Now) -> Response {
        if let Some((resend, digests)) = self.resend.take() {
            resend.end((outcome != RequestOutcome::Failed).then_some((now.elapsed, digests)));
        }
        if let Some(slot) = &self.slot {
            let mut session = slot.lock();
            if outcome != RequestOutcome::Failed {
                session.delivered.apply(&self.changes);
                if let Some((calls, resource, origin)) = &self.calls {
                    self.shared.profiles.add(calls, self.unearned, resource, origin, now);
                }
            }
            let (agent, digest) = (session.agent.clone(), session.digest.clone());
            drop(session);
            let address = without_port(&self.peer);
            match agent {
                Some(agent) if self.route == Route::Packet => {
                    let requester = Requester::Unregistered { session: &agent.name, address };
                    self.shared.agents.seen(requester, self.counters, now.unix);
                }
                Some(agent) => {
                    let requester = Requester::Agent { id: agent.id };
                    self.shared.agents.seen(requester, self.counters, now.unix);
                }
                None if !digest.is_empty() => {
                    let requester = Requester::Unregistered { session: &digest, address };
                    self.shared.agents.seen(requester, self.counters, now.unix);
                }
                None => {}
            }
        }
        match (self.route, outcome) {
            // The agent is registered, whether or not the events were delivered.
            (Route::Register | Route::Session, _) => self.answer,
            (_, RequestOutcome::Delivered) => self.answer,
            // A resend could not be read either (rule 9).
            (_, RequestOutcome::Unkept) => self.answer,
            (_, RequestOutcome::Failed) => Response::unavailable("the events cannot be stored now"),
        }
    }
}

impl ZicoWork {
    fn start(&mut self, now: Now, out: &mut Output) {
        self.peer = out.batch.origin().peer.clone();
        match self.route {
            Route::Register => self.register(now, out),
            Route::Session => self.open_session(now, out),
            Route::Submit(carries) => match self.shared.find(&self.request.head, carries, now) {
                Ok((slot, is_new)) => self.submit(slot, is_new, carries, now, out),
                Err(refusal) => self.refuse(&refusal, out),
            },
            Route::Form => self.form(now, out),
            Route::Packet => self.packet(now, out),
        }
    }

    /// Section 1.1, step 1.
    fn register(&mut self, now: Now, out: &mut Output) {
        let content_type = self.request.head.header("content-type");
        let asked = match forms::registration(&self.request.body, content_type) {
            Ok(asked) => asked,
            Err(fault) => return self.refuse(&ZicoAgentError::Invalid(fault.to_string()), out),
        };
        match self.shared.agents.register(asked, without_port(&self.peer), now.unix) {
            Reply::Now(registered) => self.registered(registered, out),
            later => self.stage = RequestStage::Registering(later),
        }
    }

    fn registered(&mut self, registered: Result<Registered, ZicoAgentError>, out: &mut Output) {
        match registered {
            Ok(registered) => {
                out.batch.set_resource(normalize::resource(Some(&registered.agent), None, &[]));
                let event = if registered.is_new { semconv::ZICO_AGENT_REGISTERED } else { semconv::ZICO_AGENT_SEEN };
                normalize::lifecycle(event, self.request.body.len(), &self.context(ZicoDialect::Gen1), out);
                out.decoded_bytes += self.request.body.len() as u64;
                let uuid = &registered.agent.uuid;
                // Rule 1: some agent versions read `uuid`, others `id`.
                let answer = json!({ "uuid": uuid, "id": uuid, "authkey": registered.authkey });
                self.answer = json(if registered.is_new { 201 } else { 200 }, &answer);
            }
            Err(refusal) => self.refuse(&refusal, out),
        }
    }

    /// Section 1.1, step 2.
    fn open_session(&mut self, now: Now, out: &mut Output) {
        let content_type = self.request.head.header("content-type");
        let asked = match forms::opening(&self.request.body, content_type) {
            Ok(asked) => asked,
            Err(fault) => return self.refuse(&ZicoAgentError::Invalid(fault.to_string()), out),
        };
        let asked = Opening { address: without_port(&self.peer).to_owned(), ..asked };
        match self.shared.agents.open(asked, now.unix) {
            Reply::Now(opened) => self.opened(opened, now, out),
            later => self.stage = RequestStage::Opening(later),
        }
    }

    fn opened(&mut self, opened: Result<Opened, ZicoAgentError>, now: Now, out: &mut Output) {
        let opened = match opened {
            Ok(opened) => opened,
            Err(refusal) => return self.refuse(&refusal, out),
        };
        let Ok(key) = name(&opened.session) else {
            return self.refuse(&ZicoAgentError::Broken, out);
        };
        let (slot, _) =
            self.shared.sessions.find_or_open(SessionKey::Opened(key), Some(opened.agent.clone()), now.elapsed);
        // The agent sends its current trace again from the start, so no part of an older one follows.
        self.shared.sessions.retire_all(&slot);
        let mut session = slot.lock();
        session.set_agent(&opened.agent);
        out.batch.set_resource(session.resource.clone());
        drop(session);
        let event = if opened.is_new { semconv::ZICO_SESSION_OPENED } else { semconv::ZICO_SESSION_RESET };
        normalize::lifecycle(event, self.request.body.len(), &self.context(ZicoDialect::Gen1), out);
        out.decoded_bytes += self.request.body.len() as u64;
        self.answer = json(200, &json!({ "session": opened.session }));
    }

    /// Section 1.1, step 3; section 1.2.
    fn submit(&mut self, slot: Arc<SessionSlot>, is_new: bool, carries: Carries, now: Now, out: &mut Output) {
        let is_gen2 = self.request.head.header("x-zorka-session-id").is_some();
        let mut session = slot.lock();
        session.charge_to(self.lease.budget());
        if is_gen2 && (is_new || carries == Carries::Definitions && is_reset(&self.request.head)) {
            // Rule 7: before the body is read.
            session.reset();
            out.batch.set_resource(session.resource.clone());
            let event = if is_new { semconv::ZICO_SESSION_OPENED } else { semconv::ZICO_SESSION_RESET };
            out.batch.set_origin(out.batch.origin().with_version(ZicoDialect::Gen2.as_str()).into());
            normalize::lifecycle(event, 0, &self.context(ZicoDialect::Gen2), out);
        }
        drop(session);
        self.slot = Some(slot);
        let body = &self.request.body;
        match body.first() {
            None => {}
            // Rule 5.
            Some(0x80..) => self.begin(carries, now, out),
            Some(_) => {
                if !self.lease.resize(body.len() as u64) {
                    return self.out_of_memory(out);
                }
                match base64::decode(body) {
                    Ok(decoded) => self.unpacked(decoded, now, out),
                    Err(error) => self.lose_all(Reason::Malformed, &error.to_string(), out),
                }
            }
        }
    }

    /// Section 1.4.
    fn form(&mut self, now: Now, out: &mut Output) {
        // Base64 decodes to less, and this is the only copy.
        if !self.lease.resize(self.request.body.len() as u64) {
            return self.out_of_memory(out);
        }
        let submission = match forms::submission(&self.request.body) {
            Ok(submission) => submission,
            Err(fault) => return self.lose_all(Reason::Malformed, &fault.to_string(), out),
        };
        let Ok(host) = name(&submission.host) else {
            return self.lose_all(Reason::Malformed, "`host` is empty or too long", out);
        };
        let reply = self.shared.agents.agent(&host);
        let form = Form { host, submission };
        match reply {
            Reply::Now(agent) => self.unpack_form(agent, form, now, out),
            later => self.stage = RequestStage::LookingUp(later, Box::new(form)),
        }
    }

    fn unpack_form(
        &mut self,
        agent: Result<Option<Arc<ZicoAgent>>, ZicoAgentError>,
        form: Form,
        now: Now,
        out: &mut Output,
    ) {
        let Form { host, submission } = form;
        let agent = match agent {
            Ok(agent) => agent,
            Err(refusal) => return self.refuse(&refusal, out),
        };
        let agent = agent.unwrap_or_else(|| Arc::new(definitions::unregistered(&host)));
        let (slot, _) = self.shared.sessions.find_or_open(SessionKey::Host(host), Some(agent.clone()), now.elapsed);
        let mut session = slot.lock();
        session.set_agent(&agent);
        session.charge_to(self.lease.budget());
        drop(session);
        self.slot = Some(slot);
        let limit = bytes(self.shared.options.max_inflated_bytes);
        self.stage = RequestStage::Unpacking(Box::new(submission.unpack(limit)));
    }

    fn unpack(&mut self, mut unpacking: Box<Unpacking>, now: Now, out: &mut Output) {
        match unpacking.step() {
            Ok(false) if self.lease.resize(unpacking.memory_bytes() as u64) => {
                self.stage = RequestStage::Unpacking(unpacking);
            }
            Ok(false) => self.out_of_memory(out),
            Ok(true) => self.unpacked(unpacking.into_output(), now, out),
            Err(InflateError::TooLarge { limit }) => {
                let detail = format!("the body inflates to more than {limit} bytes (max_inflated_bytes)");
                self.answer = Response::text(413, detail.clone());
                self.lose_whole(Reason::TooLarge, &detail, out);
            }
            Err(error) => self.lose_all(Reason::Malformed, &error.to_string(), out),
        }
    }

    /// Continues with a decoded body.
    fn unpacked(&mut self, body: Vec<u8>, now: Now, out: &mut Output) {
        out.inflated(self.request.body.len() as u64, body.len() as u64);
        let carries = match self.route {
            Route::Submit(carries) => carries,
            _ => wire::carries(&body),
        };
        self.unpacked = Some(body);
        self.begin(carries, now, out);
    }

    /// The decoded body, once it is decoded; before that, the transmitted one.
    fn body(&self) -> &[u8] {
        self.unpacked.as_deref().unwrap_or(&self.request.body)
    }

    fn context(&self, dialect: ZicoDialect) -> BodyContext {
        BodyContext { dialect, observed: self.received, request: self.request.number }
    }

    /// Starts to read a body of CBOR.
    fn begin(&mut self, carries: Carries, now: Now, out: &mut Output) {
        let Some(slot) = self.slot.clone() else { return };
        let mut session = slot.lock();
        let shown = wire::detect(self.body(), carries);
        // Rule 6. If no body showed a dialect yet, the request determines it.
        let assumed = match self.route {
            Route::Form => ZicoDialect::Doc,
            _ if self.request.head.header("x-zorka-session-id").is_some() => ZicoDialect::Gen2,
            _ => ZicoDialect::Gen1,
        };
        let dialect = shown.or(session.dialect).unwrap_or(assumed);
        session.dialect = shown.or(session.dialect);
        out.batch.set_origin(out.batch.origin().with_version(dialect.as_str()).into());
        out.batch.set_resource(session.resource.clone());
        let context = self.context(dialect);
        self.stage = match carries {
            Carries::Definitions => RequestStage::Definitions(Box::new(Definitions::new(context, &self.shared))),
            Carries::Trace => {
                let mut reading = self.begin_trace(&mut session, context);
                out.batch.set_content(content(&session, &reading));
                let agent = session.agent.clone().filter(|_| dialect == ZicoDialect::Doc && self.route != Route::Form);
                // The sweep locks the table and then each session, so no session may be locked while the table is used.
                drop(session);
                reading.host = agent.and_then(|agent| self.shared.host(&agent.uuid, now));
                RequestStage::Trace(Box::new(reading))
            }
        };
    }

    fn begin_trace(&self, session: &mut Session, context: BodyContext) -> TraceReader {
        let head = &self.request.head;
        let header = head.header("x-zorka-trace-uuid").or_else(|| head.header("x-zorka-trace-id"));
        let known = header.and_then(ids::trace_id);
        let id = known.unwrap_or_else(|| {
            session.unnamed += 1;
            ids::derived(&session.name, session.unnamed)
        });
        let dialect = context.dialect;
        // Rule 19: gen2 agents send each trace in one part.
        let may_park = known.is_some() && dialect != ZicoDialect::Gen2 && self.route != Route::Form;
        let resumed = match may_park.then(|| session.resume(id)).flatten() {
            Some(mut parked) if parked.trace.dialect == dialect => {
                parked.trace.begin_body();
                Some(parked.trace)
            }
            Some(other) => {
                self.shared.sessions.retire(other);
                None
            }
            None => None,
        };
        TraceReader {
            trace: resumed.unwrap_or_else(|| OpenTrace::new(id, dialect)),
            state: BodyState::new(
                context,
                self.shared.open_limits(),
                self.body().len(),
                known.is_some(),
                self.shared.options.max_remembered,
            )
            .with(&self.shared.options),
            host: None,
            is_flushing: false,
            fault: None,
            may_park,
        }
    }

    fn define(&mut self, mut definitions: Box<Definitions>, out: &mut Output) {
        let Some(slot) = self.slot.clone() else { return };
        let mut session = slot.lock();
        let body = self.unpacked.as_deref().unwrap_or(&self.request.body);
        if !definitions.read(body, &mut session, &self.shared, out) {
            self.stage = RequestStage::Definitions(definitions);
            return;
        }
        out.decoded_bytes += (body.len() as u64).saturating_sub(definitions.lost());
        self.quarantine_reason = definitions.into_fault();
    }

    fn read(&mut self, mut reading: Box<TraceReader>, now: Now, out: &mut Output) {
        let Some(slot) = self.slot.clone() else { return };
        let mut session = slot.lock();
        let host = reading.host.clone();
        let mut host = host.as_ref().map(|host| host.lock());
        let host = host.as_mut().map(|host| &mut host.table);
        let body = self.unpacked.as_deref().unwrap_or(&self.request.body);
        match reading.read(body, &mut session, host, out) {
            BodyProgress::More => {
                let calls = reading.state.calls.as_ref().map_or(0, BodyCalls::memory_bytes);
                let held = self.unpacked.as_ref().map_or(0, Vec::capacity) + reading.trace.memory_bytes() + calls;
                if !self.lease.resize(held as u64) && !reading.is_flushing {
                    reading.give_up(TraceError::NoMemory { offset: reading.state.at });
                }
                self.stage = RequestStage::Trace(reading);
            }
            BodyProgress::Open { needed } if session.may_park(needed, &self.shared.options) => {
                let TraceReader { trace, state, .. } = *reading;
                self.park(trace, needed, &mut session, now, out);
                let resource = session.resource.clone();
                self.end(state, None, resource, out);
            }
            BodyProgress::Open { .. } => {
                reading.is_flushing = true;
                self.stage = RequestStage::Trace(reading);
            }
            BodyProgress::Done => {
                let TraceReader { state, fault, .. } = *reading;
                let resource = session.resource.clone();
                self.end(state, fault, resource, out);
            }
        }
    }

    /// Keeps a trace until its next part.
    fn park(&self, trace: OpenTrace, needed: usize, session: &mut Session, now: Now, out: &Output) {
        let (origin, resource) = (out.batch.origin().clone(), session.resource.clone());
        let mut parked = Parked::new(trace, origin, resource, self.request.number, self.received);
        parked.allowance = out.allowance().cloned();
        if let Some(other) = session.park(parked, needed, now.elapsed) {
            self.shared.sessions.retire(other);
        }
        // Parked traces are bounded by their own limit; the budget is informed.
        let _ = session.hold();
    }

    /// Ends a trace's body.
    fn end(&mut self, mut state: BodyState, fault: Option<TraceError>, resource: Arc<Resource>, out: &mut Output) {
        let body = self.unpacked.as_deref().unwrap_or(&self.request.body);
        state.report_collected(body, out);
        state.report_unresolved(out);
        if let Some(fault) = fault {
            let (reason, offset, detail) = fault.loss();
            state.lose(reason, (offset, body.len()), None, &detail, body, out);
            if let TraceError::NoMemory { .. } = fault {
                self.answer = Response::unavailable(
                    "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)",
                );
            } else {
                self.quarantine_reason = Some(detail);
            }
        }
        self.settle(state, resource, out);
    }

    /// Counts what of a body was decoded, and keeps what counts when it is delivered.
    fn settle(&mut self, state: BodyState, resource: Arc<Resource>, out: &mut Output) {
        out.decoded_bytes += (self.body().len() as u64).saturating_sub(state.lost);
        self.changes = state.changes;
        self.calls = state.calls.map(|mut calls| {
            calls.allowance = out.allowance().cloned();
            (calls, resource, out.batch.origin().clone())
        });
    }

    /// Refuses the request.
    fn refuse(&mut self, refusal: &ZicoAgentError, out: &mut Output) {
        self.answer = refused(refusal);
        let reason = match refusal {
            ZicoAgentError::Invalid(_) => Reason::Malformed,
            ZicoAgentError::Denied(_) => Reason::Unauthorized,
            ZicoAgentError::Full(_) => Reason::TooLarge,
            ZicoAgentError::Broken | ZicoAgentError::Away(_) => Reason::Failed,
        };
        self.lose_whole(reason, &refusal.to_string(), out);
    }

    fn out_of_memory(&mut self, out: &mut Output) {
        let detail = "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)";
        self.answer = Response::unavailable(detail);
        self.lose_whole(Reason::Failed, detail, out);
    }

    /// The body arrived as sent and cannot be read; a resend would not help. It goes to the quarantine, and the agent is
    /// answered 202 (rule 9).
    fn lose_all(&mut self, reason: Reason, detail: &str, out: &mut Output) {
        self.quarantine_reason = Some(detail.to_owned());
        self.lose_whole(reason, detail, out);
    }

    /// Reports the whole body as lost. A body with keys is not shown (rule 27).
    fn lose_whole(&mut self, reason: Reason, detail: &str, out: &mut Output) {
        let is_secret = !matches!(self.route, Route::Submit(_) | Route::Packet);
        let bytes = self.request.body.len() as u64;
        let excerpt = if is_secret { &[][..] } else { &self.request.body };
        let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
        let loss = Loss { reason, bytes, events: None, detail, excerpt };
        out.loss(Header::observed_at(semconv::LOSS, self.received, position), loss);
    }
}

/// The id of a trace's body: the agent or the session that it chose itself, the id of the trace, and the part. `None`: the trace has
/// no id that an agent would send again.
fn content(session: &Session, reading: &TraceReader) -> Option<ContentId> {
    let sender = session.agent.as_ref().map_or(&*session.digest, |agent| &*agent.uuid);
    let is_named = reading.state.known_trace && !sender.is_empty();
    let part = u64::from(reading.trace.body).to_be_bytes();
    is_named.then(|| ContentId::of("zico", sender.as_bytes()).with(&reading.trace.id.0).with(&part))
}

/// An address without its port.
fn without_port(peer: &str) -> &str {
    peer.rsplit_once(':').map_or(peer, |(address, _)| address)
}
