//! One request: a body of traces that is checked and then written in bounded steps, or something that is not kept.

use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;

use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_event::{Header, Loss, Position, Reason, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{Flow, Now, Output, Request, RequestOutcome, Response, Work};

use super::body::{BodyLimits, Layout, TraceBody};
use super::json_body;
use super::options::ProfileMode;
use super::profile::{ProfileError, ProfileWriter};
use super::resources::SenderHeaders;
use super::route::Route;
use super::shared::SharedExchange;
use super::stats::StatsWriter;
use super::telemetry::Telemetry;
use super::trace_writer::TraceWriter;
use tributary_protocol::repeats::{BodyLookup, Digest, FirstBody};

/// One request.
#[derive(Debug)]
pub struct DatadogAgentWork {
    shared: Arc<SharedExchange>,
    request: Request,
    route: Route,
    /// The memory of what is decompressed.
    memory: Arc<MemoryBudget>,
    stage: RequestStage,
    /// `None`: a repeat, or a body whose repeats are not recognised.
    first: Option<FirstBody>,
    spans: u64,
    /// Transmitted bytes that were not yet charged to the allowance.
    unearned: u64,
    /// Why the request goes to the quarantine.
    quarantine_reason: Option<String>,
    /// The answer if the events are delivered.
    answer: Response,
}

#[derive(Debug)]
enum RequestStage {
    Start,
    /// The same body is being worked on.
    WaitingForFirst(Digest),
    Writing(Box<TraceWriter>),
    WritingStats(Box<StatsWriter>),
    WritingProfile(Box<ProfileWriter>),
    /// The next line begins here.
    ReadingLines(usize),
    Done,
}

impl DatadogAgentWork {
    pub(super) fn new(
        request: Request,
        route: Route,
        shared: Arc<SharedExchange>,
        memory: Option<&Arc<MemoryBudget>>,
    ) -> Self {
        DatadogAgentWork {
            memory: memory.unwrap_or(&shared.memory).clone(),
            answer: shared.answer(route),
            unearned: request.body.len() as u64,
            shared,
            request,
            route,
            stage: RequestStage::Start,
            first: None,
            spans: 0,
            quarantine_reason: None,
        }
    }
}

impl Work for DatadogAgentWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let before = out.batch.total_expanded_bytes();
        match std::mem::replace(&mut self.stage, RequestStage::Done) {
            RequestStage::Start => self.start(now, out),
            RequestStage::WaitingForFirst(digest) => self.begin(Some(digest), now, out),
            RequestStage::Writing(mut writer) => match writer.step(&self.shared, now, out) {
                Ok(Flow::Again) => self.stage = RequestStage::Writing(writer),
                Ok(_) => {}
                Err(error) => report_contradiction(&error, now, out),
            },
            RequestStage::WritingStats(mut writer) => match writer.step(now, out) {
                Ok(Flow::Again) => self.stage = RequestStage::WritingStats(writer),
                Ok(_) => {}
                Err(error) => report_contradiction(&error, now, out),
            },
            RequestStage::WritingProfile(writer) => self.step_profile(writer, now, out),
            RequestStage::ReadingLines(at) => self.read_lines(at, now, out),
            RequestStage::Done => {}
        }
        let expanded = out.batch.total_expanded_bytes() - before;
        out.charge_request(self.shared.options.amplification, &mut self.unearned, expanded, now.elapsed);
        if let RequestStage::Done = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<()> {
        match &mut self.stage {
            RequestStage::WaitingForFirst(digest) => self.shared.repeats.poll_ended(*digest, context),
            RequestStage::WritingProfile(writer) => writer.poll_ready(context),
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
        if outcome == RequestOutcome::Failed {
            return Response::unavailable("the events cannot be stored now");
        }
        if let Some(first) = self.first.take() {
            first.delivered(self.spans, now.elapsed);
        }
        self.answer
    }
}

impl DatadogAgentWork {
    fn start(&mut self, now: Now, out: &mut Output) {
        match self.route {
            Route::Profile if self.shared.options.profiles == ProfileMode::Off => {
                self.ignore("profiles is \"off\"", out);
            }
            // What a client sends every few seconds may well be the same.
            Route::DogStatsD => self.read_lines(0, now, out),
            Route::Traces { .. } | Route::Stats | Route::Profile => {
                let digest = self.shared.repeats.digest(self.request.head.path(), &self.request.body);
                self.begin(digest, now, out);
            }
            Route::Telemetry => self.telemetry(now, out),
            Route::Ignored(endpoint) => self.ignore(endpoint.why(), out),
            Route::Info => out.ignore(self.route.endpoint(), self.request.body.len() as u64),
        }
    }

    /// Begins to write the spans, unless the same body was delivered or is being worked on.
    fn begin(&mut self, digest: Option<Digest>, now: Now, out: &mut Output) {
        if let Some(digest) = digest {
            match self.shared.repeats.find(digest, now.elapsed) {
                BodyLookup::First(first) => self.first = Some(first),
                BodyLookup::InProgress => {
                    self.stage = RequestStage::WaitingForFirst(digest);
                    return;
                }
                BodyLookup::Repeat(spans) => {
                    out.repeats[0] += spans;
                    out.ignore(self.route.endpoint(), self.request.body.len() as u64);
                    return;
                }
            }
        }
        match self.route {
            Route::Stats => return self.begin_stats(now, out),
            Route::Profile => return self.begin_profile(now, out),
            _ => {}
        }
        match self.check() {
            Ok(body) => {
                out.decoded_bytes += self.request.body.len() as u64;
                self.spans = body.spans;
                let headers = SenderHeaders::read(&self.request.head);
                let writer = TraceWriter::new(body, headers, &self.shared);
                self.stage = RequestStage::Writing(Box::new(writer));
            }
            Err(error) => self.refuse(&error, now, out),
        }
    }

    fn begin_stats(&mut self, now: Now, out: &mut Output) {
        let limit = self.shared.max_text_bytes();
        let headers = SenderHeaders::read(&self.request.head);
        match StatsWriter::check(self.request.body.clone(), headers, limit, &self.shared.resources) {
            Ok(writer) => {
                out.decoded_bytes += self.request.body.len() as u64;
                self.stage = RequestStage::WritingStats(Box::new(writer));
            }
            Err(error) => self.refuse(&BodyError::Decode(error), now, out),
        }
    }

    fn begin_profile(&mut self, now: Now, out: &mut Output) {
        let lease = self.memory.passing(MemoryLease::FLOOR);
        let SharedExchange { options, profile_files, .. } = &*self.shared;
        match ProfileWriter::new(&self.request, options, profile_files.clone(), lease) {
            Ok(writer) => self.stage = RequestStage::WritingProfile(Box::new(writer)),
            Err(error) => self.refuse(&BodyError::Profile(error), now, out),
        }
    }

    /// The request is answered and not kept. The log says so once for each client.
    fn ignore(&mut self, why: &str, out: &mut Output) {
        let endpoint = self.route.endpoint();
        out.ignore(endpoint, self.request.body.len() as u64);
        let origin = out.batch.origin();
        let (client, _) = origin.peer_address();
        if self.shared.ignored.is_new(|| format!("{client} {endpoint}")) {
            let path: String = self.request.head.path().chars().take(100).collect();
            let line = format!("requests of {client} to {path} are answered, and not kept: {why}");
            out.log(line);
        }
    }

    fn telemetry(&mut self, now: Now, out: &mut Output) {
        if !self.shared.options.telemetry {
            return self.ignore("telemetry is false", out);
        }
        let body = self.request.body.clone();
        match Telemetry::read(&body) {
            Some(telemetry) => {
                let bytes = body.len() as u64;
                out.decoded_bytes += bytes;
                let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
                telemetry.write(&self.request.head, self.shared.max_text_bytes(), position, now, out);
            }
            None => self.ignore("it is no JSON of telemetry", out),
        }
    }

    fn read_lines(&mut self, at: usize, now: Now, out: &mut Output) {
        let body = &self.request.body;
        let at = self.shared.dogstatsd.receive(body, at, Some(self.request.number), now, out);
        if at < body.len() {
            self.stage = RequestStage::ReadingLines(at);
        }
    }

    fn step_profile(&mut self, mut writer: Box<ProfileWriter>, now: Now, out: &mut Output) {
        match writer.step(now, out) {
            Ok(Flow::Again) => self.stage = RequestStage::WritingProfile(writer),
            Ok(_) => {
                let ignored = writer.ignored_bytes();
                out.decoded_bytes += self.request.body.len() as u64 - ignored;
                out.ignore(self.route.endpoint(), ignored);
            }
            Err(error @ (ProfileError::NoMemory | ProfileError::NotKept(_))) => {
                // The profiler has it still, and may send it again.
                out.ignore(self.route.endpoint(), self.request.body.len() as u64);
                self.first = None;
                self.answer = Response::unavailable(error.to_string());
            }
            Err(error) => self.refuse(&BodyError::Profile(error), now, out),
        }
    }

    fn check(&self) -> Result<TraceBody, BodyError> {
        let Route::Traces { layout, .. } = self.route else { return Err(BodyError::Empty) };
        let options = &self.shared.options;
        let limits = BodyLimits { max_strings: options.max_strings, max_entries: options.max_span_entries };
        let mut bytes = self.request.body.clone();
        if bytes.is_empty() {
            return Err(BodyError::Empty);
        }
        if is_json(&self.request) {
            if !matches!(layout, Layout::Spans | Layout::Chunks) {
                return Err(BodyError::JsonOfLaterVersion);
            }
            bytes = Bytes::from(json_body::to_msgpack(&bytes).map_err(BodyError::Json)?);
        }
        TraceBody::check(bytes, layout, limits).map_err(BodyError::Decode)
    }

    /// All of the body is lost.
    fn refuse(&mut self, error: &BodyError, now: Now, out: &mut Output) {
        let body = &self.request.body;
        let detail = error.to_string();
        let bytes = body.len() as u64;
        let excerpt = &body[error.offset().min(body.len())..];
        let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
        let loss = Loss { reason: error.reason(), bytes, events: None, detail: &detail, excerpt };
        let count = self.request.head.header("x-datadog-trace-count").and_then(|count| count.parse::<u64>().ok());
        let attributes: Vec<_> =
            count.into_iter().map(|count| (semconv::DATADOG_TRACE_COUNT.into(), count.into())).collect();
        out.loss_with(Header::observed_at(semconv::LOSS, now.unix, position), loss, &attributes);
        self.first = None;
        let status = if error.reason() == Reason::TooLarge { 413 } else { 400 };
        self.answer = Response::text(status, detail.clone());
        self.quarantine_reason = Some(detail);
    }
}

/// A body that was checked cannot be read: a fault of this program, which must not be silent.
fn report_contradiction(error: &DecodeError, now: Now, out: &mut Output) {
    let detail = format!("read otherwise than when it was checked: {error}");
    let loss = Loss { reason: Reason::Failed, bytes: 0, events: None, detail: &detail, excerpt: &[] };
    let position = Position { sequence: None, offset: error.offset as u64, length: 0 };
    out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
}

/// Why a body is refused.
#[derive(Debug)]
enum BodyError {
    Empty,
    JsonOfLaterVersion,
    Json(serde_json::Error),
    Decode(DecodeError),
    Profile(ProfileError),
}

impl BodyError {
    fn reason(&self) -> Reason {
        match self {
            BodyError::JsonOfLaterVersion => Reason::Unsupported,
            BodyError::Decode(error) => match error.kind {
                DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
                _ => Reason::Malformed,
            },
            BodyError::Profile(error) if error.is_too_large() => Reason::TooLarge,
            BodyError::Empty | BodyError::Json(_) | BodyError::Profile(_) => Reason::Malformed,
        }
    }

    /// Where it was found.
    fn offset(&self) -> usize {
        match self {
            BodyError::Decode(error) => error.offset,
            _ => 0,
        }
    }
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BodyError::Empty => f.write_str("the body is empty"),
            BodyError::JsonOfLaterVersion => f.write_str("JSON bodies exist up to version 0.4"),
            BodyError::Json(error) => write!(f, "JSON: {error}"),
            BodyError::Decode(error) => write!(f, "at {}: {error}", error.offset),
            BodyError::Profile(error) => write!(f, "{error}"),
        }
    }
}

/// Old clients send JSON; a body without a type is MessagePack.
fn is_json(request: &Request) -> bool {
    request
        .head
        .header("content-type")
        .is_some_and(|of| of.starts_with("application/json") || of.starts_with("text/json"))
}
