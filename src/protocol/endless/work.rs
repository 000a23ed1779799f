//! One upload: inflate, check the hash, read the bundle, write its events; a bounded step with every call.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;

use ring::digest::{self, SHA512};

use crate::codec::gvariant::{self, Scratch, Skip, Slice};
use crate::codec::inflate::{Gunzip, InflateError};
use crate::event::{Header, Loss, Position, Reason, UnixNanos, semconv};
use crate::memory::MemoryLease;
use crate::protocol::{Flow, Now, Output, Request, RequestOutcome, Response, Work};

use super::exchange::{Encoding, Shared, Target};
use super::reading::{Reading, Told};
use super::wire::{self, Bundle, Layout, Version};

/// Bytes that one step hashes.
const HASH_STEP_BYTES: usize = 1 << 20;

/// One upload on its way.
#[derive(Debug)]
pub struct EndlessWork {
    shared: Arc<Shared>,
    request: Request,
    target: Target,
    stage: Stage,
    /// The bundle, where it is not the body itself.
    inflated: Option<Vec<u8>>,
    lease: MemoryLease,
    /// Bytes transmitted that have not earned output yet. They do as output is made: a bucket holds only so much.
    unearned: u64,
    /// When all of it was here.
    received: Option<UnixNanos>,
    /// Why the request is to be kept.
    aside: Option<String>,
    /// The answer, unless the events cannot be delivered.
    answer: Response,
}

#[derive(Debug)]
enum Stage {
    Start(Encoding),
    Inflating(Box<Gunzip>),
    Hashing { hash: Hash, at: usize },
    Reading(Box<Reading>),
    Done(Option<Box<Reading>>),
}

/// A SHA-512 being made.
struct Hash(Box<digest::Context>);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl EndlessWork {
    pub(super) fn new(request: Request, target: Target, encoding: Encoding, shared: Arc<Shared>) -> Self {
        EndlessWork {
            lease: shared.budget.passing(MemoryLease::FLOOR),
            unearned: request.body.len() as u64,
            shared,
            request,
            target,
            stage: Stage::Start(encoding),
            inflated: None,
            received: None,
            aside: None,
            answer: Response::empty(200),
        }
    }

    /// The bundle, as soon as it is inflated; before, the body.
    fn bundle(&self) -> &[u8] {
        self.inflated.as_deref().unwrap_or(&self.request.body)
    }
}

impl Work for EndlessWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let _ = self.received.get_or_insert(now.unix);
        match replace(&mut self.stage, Stage::Done(None)) {
            Stage::Start(encoding) => self.start(encoding, out),
            Stage::Inflating(gunzip) => self.inflate(gunzip, out),
            Stage::Hashing { hash, at } => self.hash(hash, at, now, out),
            Stage::Reading(reading) => self.read_on(reading, now, out),
            Stage::Done(reading) => self.stage = Stage::Done(reading),
        }
        if let Stage::Done(_) = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn quarantine_reason(&self) -> Option<&str> {
        self.aside.as_deref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(mut self, fate: RequestOutcome, now: Now) -> Response {
        if let Stage::Done(Some(reading)) = &mut self.stage {
            reading.respond(fate, now.elapsed, &self.shared.memory);
        }
        match fate {
            RequestOutcome::Delivered => self.answer.clone(),
            RequestOutcome::Unkept | RequestOutcome::Failed => {
                Response::unavailable("the bundle cannot be stored just now; send it again")
            }
        }
    }
}

impl Drop for EndlessWork {
    /// A bundle whose fate nobody has told is not being delivered any more.
    fn drop(&mut self) {
        if let Stage::Reading(reading) | Stage::Done(Some(reading)) = &mut self.stage {
            reading.respond(RequestOutcome::Failed, Default::default(), &self.shared.memory);
        }
    }
}

impl EndlessWork {
    fn start(&mut self, encoding: Encoding, out: &mut Output) {
        let origin = out.batch.origin().with_version(self.target.version.as_str());
        out.batch.set_origin(origin.into());
        match encoding {
            _ if self.request.body.is_empty() => self.refuse(400, Reason::Malformed, "the body is empty", out),
            Encoding::Unknown => self.refuse(415, Reason::Unsupported, "the body is neither plain nor in gzip", out),
            Encoding::Plain => self.begin_hash(),
            Encoding::Gzip => {
                let limit = usize::try_from(self.shared.options.max_inflated_bytes).unwrap_or(usize::MAX);
                self.stage = Stage::Inflating(Box::new(Gunzip::new(limit)));
            }
        }
    }

    fn inflate(&mut self, mut gunzip: Box<Gunzip>, out: &mut Output) {
        match gunzip.step(&self.request.body) {
            Ok(false) if self.lease.resize(gunzip.memory_bytes() as u64) => self.stage = Stage::Inflating(gunzip),
            Ok(false) => self.refuse_for_now("the memory for requests is used up (limits.memory_bytes)", out),
            Ok(true) => match gunzip.into_output() {
                empty if empty.is_empty() => self.refuse(400, Reason::Malformed, "the body inflates to nothing", out),
                bundle => {
                    out.inflated(self.request.body.len() as u64, bundle.len() as u64);
                    self.inflated = Some(bundle);
                    self.begin_hash();
                }
            },
            Err(InflateError::TooLarge { limit }) => {
                let detail = format!("the body inflates to more than {limit} bytes (max_inflated_bytes)");
                self.refuse_whole(413, Reason::TooLarge, &detail, out);
            }
            Err(error) => self.refuse(400, Reason::Malformed, &error.to_string(), out),
        }
    }

    fn begin_hash(&mut self) {
        self.stage = Stage::Hashing { hash: Hash(Box::new(digest::Context::new(&SHA512))), at: 0 };
    }

    fn hash(&mut self, mut hash: Hash, at: usize, now: Now, out: &mut Output) {
        let rest = &self.bundle()[at..];
        let step = rest.len().min(HASH_STEP_BYTES);
        hash.0.update(&rest[..step]);
        if step < rest.len() {
            self.stage = Stage::Hashing { hash, at: at + step };
            return;
        }
        let hash = hash.0.finish();
        if self.target.hash.is_some_and(|expected| hash.as_ref() == expected) {
            self.begin_reading(now, out);
        } else {
            self.refuse(400, Reason::Malformed, "the bundle's SHA-512 is not the one in the path", out);
        }
    }

    fn begin_reading(&mut self, now: Now, out: &mut Output) {
        let body = self.inflated.as_deref().unwrap_or(&self.request.body);
        let shipped = self.target.version.layout();
        let (layout, bundle) = match wire::bundle(body, shipped) {
            Ok(bundle) => (shipped, bundle),
            // The draft counts only where all of it is in order: nothing is salvaged from what nobody sends.
            Err(fault) => match draft(body, self.target.version, self.shared.options.max_payload_bytes) {
                Some(bundle) => (Layout::V3Draft, bundle),
                None => return self.accept_whole(Reason::Malformed, &format!("at {}: {fault}", fault.offset), out),
            },
        };
        let channel_bytes = bundle.head.channel.map_or(0, |channel| channel.image.len() + channel.site_bytes) as u64;
        if channel_bytes > self.shared.options.max_channel_bytes {
            let detail = format!("image and site are {channel_bytes} bytes long, over max_channel_bytes");
            return self.accept_whole(Reason::TooLarge, &detail, out);
        }
        let received = self.received.unwrap_or(now.unix);
        let reading = Reading::new(&bundle, body, self.target.version, layout, received, &self.request, &self.shared);
        out.batch.set_resource(reading.resource(&bundle.head).into());
        self.stage = Stage::Reading(Box::new(reading));
    }

    fn read_on(&mut self, mut reading: Box<Reading>, now: Now, out: &mut Output) {
        let before = out.batch.total_expanded_bytes();
        let body = self.inflated.as_deref().unwrap_or(&self.request.body);
        let told = reading.proceed(body, now, &self.shared, out);
        let expanded = out.batch.total_expanded_bytes() - before;
        let earning = expanded.div_ceil(self.shared.options.amplification.ratio).min(self.unearned);
        self.unearned -= earning;
        out.charge(self.shared.options.amplification, earning, expanded, now.elapsed);
        match told {
            Told::More => self.stage = Stage::Reading(reading),
            Told::All { lost, events, fault } => {
                out.decoded_bytes += (body.len() as u64).saturating_sub(lost);
                self.aside = fault;
                self.answer = Response::text(200, format!("{events} events"));
                self.stage = Stage::Done(Some(reading));
            }
            Told::Repeat { events } => {
                self.answer = Response::text(200, "a repeat of what is stored already");
                self.lose_all(Reason::Duplicate, Some(events), "the bundle was delivered before", out);
            }
            Told::InFlightRequest { events } => {
                self.answer = Response::unavailable("the same bundle is being stored at this moment");
                self.lose_all(Reason::Duplicate, Some(events), "the same bundle is being delivered", out);
            }
        }
    }

    /// Refuses the request, unless its version is one that is never refused (rule 4).
    fn refuse(&mut self, status: u16, reason: Reason, detail: &str, out: &mut Output) {
        if self.target.version <= Version::V1 {
            return self.accept_whole(reason, detail, out);
        }
        self.refuse_whole(status, reason, detail, out);
    }

    fn refuse_whole(&mut self, status: u16, reason: Reason, detail: &str, out: &mut Output) {
        self.answer = Response::text(status, detail);
        self.lose_all(reason, None, detail, out);
    }

    fn refuse_for_now(&mut self, detail: &str, out: &mut Output) {
        self.answer = Response::unavailable(detail);
        self.lose_all(Reason::Failed, None, detail, out);
    }

    /// The body is what was sent, and a resend would not help: it is kept, and the agent may go on (rule 5).
    fn accept_whole(&mut self, reason: Reason, detail: &str, out: &mut Output) {
        if !self.bundle().is_empty() {
            self.aside = Some(detail.to_owned());
        }
        self.answer = Response::text(200, "kept aside, for it cannot be read");
        self.lose_all(reason, None, detail, out);
    }

    /// Reports the whole bundle lost, and ends.
    fn lose_all(&mut self, reason: Reason, events: Option<u64>, detail: &str, out: &mut Output) {
        self.stage = Stage::Done(None);
        let bundle = self.inflated.as_deref().unwrap_or(&self.request.body);
        let bytes = bundle.len() as u64;
        if bytes > 0 || reason != Reason::Duplicate {
            let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
            let at = self.received.unwrap_or_default();
            let loss = Loss { reason, bytes, events, detail, excerpt: bundle };
            out.loss(Header::observed_at(semconv::LOSS, at, position), loss);
        }
    }
}

/// The bundle in a body that is one of the draft from end to end.
fn draft(body: &[u8], version: Version, max_payload_bytes: u64) -> Option<Bundle<'_>> {
    let whole = Slice::new(body);
    let layout = Layout::V3Draft;
    let mut scratch = Scratch::for_types_of(usize::try_from(max_payload_bytes).unwrap_or(usize::MAX));
    let mut is_normal = || gvariant::walk_type(layout.type_string(), whole, 0, &mut scratch, &mut Skip).is_ok();
    (version == Version::V3 && is_normal()).then(|| wire::bundle(body, layout).ok())?
}
