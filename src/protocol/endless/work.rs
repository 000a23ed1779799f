//! One upload: decompress, check the hash, read the bundle, write its events; each call does a bounded part.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest::{self, SHA512};

use tributary_codec::gvariant::{self, Scratch, Skip, Slice};
use tributary_codec::inflate::{Gunzip, InflateError};
use tributary_event::{Header, Loss, Position, Reason, UnixNanos, semconv};
use tributary_memory::MemoryLease;
use tributary_protocol::{Flow, Now, Output, Request, RequestOutcome, Response, Work};

use super::reading::{BundleProgress, BundleReader};
use super::repeats;
use super::shared::SharedExchange;
use super::shared_deliveries::{LookUp, Noting};
use super::target::{Encoding, Target};
use super::wire::{self, Bundle, BundleLayout, UploadVersion};

/// The refusal of a body for whose content there is no memory.
const NO_MEMORY: &str = "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)";

/// Bytes hashed per step.
const HASH_STEP_BYTES: usize = 1 << 20;

/// One upload.
#[derive(Debug)]
pub struct EndlessWork {
    shared: Arc<SharedExchange>,
    request: Request,
    target: Target,
    stage: UploadStage,
    /// The decompressed bundle; `None`: the body is the bundle.
    inflated: Option<Vec<u8>>,
    lease: MemoryLease,
    /// Transmitted bytes that were not yet charged to the allowance. They are charged as output is written, because the
    /// allowance is bounded.
    unearned: u64,
    /// When the whole request was received.
    received: Option<UnixNanos>,
    /// Why the request goes to the quarantine.
    quarantine_reason: Option<String>,
    /// The delivered events that are reported to other daemons.
    noting: Noting,
    /// The answer if the events are delivered.
    answer: Response,
}

#[derive(Debug)]
enum UploadStage {
    Start(Encoding),
    Inflating(Box<Gunzip>),
    Hashing {
        hash: Hash,
        at: usize,
    },
    /// Other daemons are asked what they have delivered.
    LookingUp(LookUp, Box<BundleReader>),
    Reading(Box<BundleReader>),
    Done(Option<Box<BundleReader>>),
}

/// A SHA-512 in progress.
struct Hash(Box<digest::Context>);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hash")
    }
}

impl EndlessWork {
    pub(super) fn new(
        request: Request,
        target: Target,
        encoding: Encoding,
        lease: MemoryLease,
        shared: Arc<SharedExchange>,
    ) -> Self {
        EndlessWork {
            lease,
            unearned: request.body.len() as u64,
            shared,
            request,
            target,
            stage: UploadStage::Start(encoding),
            inflated: None,
            received: None,
            quarantine_reason: None,
            noting: Noting::default(),
            answer: Response::empty(200),
        }
    }

    /// The bundle, once it is decompressed; before that, the body.
    fn bundle(&self) -> &[u8] {
        self.inflated.as_deref().unwrap_or(&self.request.body)
    }
}

impl Work for EndlessWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let _ = self.received.get_or_insert(now.unix);
        match replace(&mut self.stage, UploadStage::Done(None)) {
            UploadStage::Start(encoding) => self.start(encoding, out),
            UploadStage::Inflating(gunzip) => self.inflate(gunzip, out),
            UploadStage::Hashing { hash, at } => self.hash(hash, at, now, out),
            UploadStage::LookingUp(mut look_up, mut reading) => match look_up.take() {
                Some(known) => {
                    reading.set_delivered_by_others(known);
                    self.stage = UploadStage::Reading(reading);
                }
                // Not before [`Work::poll_ready`] has returned that it is known.
                None => self.stage = UploadStage::LookingUp(look_up, reading),
            },
            UploadStage::Reading(reading) => self.read_events(reading, now, out),
            UploadStage::Done(reading) => self.stage = UploadStage::Done(reading),
        }
        if let UploadStage::Done(_) = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &mut self.stage {
            UploadStage::LookingUp(look_up, _) => look_up.poll(context),
            _ => self.noting.poll(context),
        }
    }

    fn conclude(&mut self, outcome: RequestOutcome) {
        if let UploadStage::Done(Some(reading)) = &mut self.stage
            && let Some(shared_deliveries) = &self.shared.shared_deliveries
            && outcome == RequestOutcome::Delivered
        {
            let delivered = reading.take_delivered();
            if !delivered.is_empty() {
                self.noting = Noting::new(shared_deliveries.note(delivered));
            }
        }
    }

    fn quarantine_reason(&self) -> Option<&str> {
        self.quarantine_reason.as_deref()
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(mut self, outcome: RequestOutcome, now: Now) -> Response {
        if let UploadStage::Done(Some(reading)) = &mut self.stage {
            reading.end(outcome, now.elapsed, &self.shared.dedup);
        }
        match outcome {
            RequestOutcome::Delivered => self.answer.clone(),
            RequestOutcome::Unkept | RequestOutcome::Failed => {
                Response::unavailable("the bundle cannot be stored now; send it again")
            }
        }
    }
}

impl Drop for EndlessWork {
    /// Dropped without an outcome: the bundle was not delivered.
    fn drop(&mut self) {
        if let UploadStage::LookingUp(_, reading) | UploadStage::Reading(reading) | UploadStage::Done(Some(reading)) =
            &mut self.stage
        {
            reading.end(RequestOutcome::Failed, Default::default(), &self.shared.dedup);
        }
    }
}

impl EndlessWork {
    fn start(&mut self, encoding: Encoding, out: &mut Output) {
        let origin = out.batch.origin().with_version(self.target.version.as_str());
        out.batch.set_origin(origin.into());
        match encoding {
            _ if self.request.body.is_empty() => self.refuse(400, Reason::Malformed, "the body is empty", out),
            Encoding::Unknown => self.refuse(415, Reason::Unsupported, "the body is neither plain nor gzip", out),
            Encoding::Plain => self.start_hash(),
            Encoding::Gzip => {
                let limit = usize::try_from(self.shared.options.max_inflated_bytes).unwrap_or(usize::MAX);
                self.stage = UploadStage::Inflating(Box::new(Gunzip::new(limit)));
            }
        }
    }

    fn inflate(&mut self, mut gunzip: Box<Gunzip>, out: &mut Output) {
        match gunzip.step(&self.request.body) {
            Ok(false) if self.lease.resize(gunzip.memory_bytes() as u64) => self.stage = UploadStage::Inflating(gunzip),
            Ok(false) => self.refuse_temporarily(NO_MEMORY, out),
            Ok(true) => match gunzip.into_output() {
                empty if empty.is_empty() => self.refuse(400, Reason::Malformed, "the body inflates to nothing", out),
                bundle => {
                    out.inflated(self.request.body.len() as u64, bundle.len() as u64);
                    self.inflated = Some(bundle);
                    self.start_hash();
                }
            },
            Err(InflateError::TooLarge { limit }) => {
                let detail = format!("the body inflates to more than {limit} bytes (max_inflated_bytes)");
                self.refuse_whole(413, Reason::TooLarge, &detail, out);
            }
            Err(error) => self.refuse(400, Reason::Malformed, &error.to_string(), out),
        }
    }

    fn start_hash(&mut self) {
        self.stage = UploadStage::Hashing { hash: Hash(Box::new(digest::Context::new(&SHA512))), at: 0 };
    }

    fn hash(&mut self, mut hash: Hash, at: usize, now: Now, out: &mut Output) {
        let rest = &self.bundle()[at..];
        let step = rest.len().min(HASH_STEP_BYTES);
        hash.0.update(&rest[..step]);
        if step < rest.len() {
            self.stage = UploadStage::Hashing { hash, at: at + step };
            return;
        }
        let hash = hash.0.finish();
        if self.target.hash.is_some_and(|expected| hash.as_ref() == expected) {
            self.start_reading(now, out);
        } else {
            self.refuse(400, Reason::Malformed, "the bundle's SHA-512 is not the one in the path", out);
        }
    }

    fn start_reading(&mut self, now: Now, out: &mut Output) {
        let body = self.inflated.as_deref().unwrap_or(&self.request.body);
        let shipped = self.target.version.layout();
        let (layout, bundle) = match wire::bundle(body, shipped) {
            Ok(bundle) => (shipped, bundle),
            // The draft layout is used only if the whole body is in normal form (section 3).
            Err(fault) => match draft(body, self.target.version, self.shared.options.max_payload_bytes) {
                Some(bundle) => (BundleLayout::V3Draft, bundle),
                None => return self.quarantine_whole(Reason::Malformed, &format!("at {}: {fault}", fault.offset), out),
            },
        };
        let channel_bytes = bundle.head.channel.map_or(0, |channel| channel.image.len() + channel.site_bytes) as u64;
        if channel_bytes > self.shared.options.max_channel_bytes {
            let detail = format!("image and site are {channel_bytes} bytes long, over max_channel_bytes");
            return self.quarantine_whole(Reason::TooLarge, &detail, out);
        }
        let received = self.received.unwrap_or(now.unix);
        let reading =
            BundleReader::new(&bundle, body, self.target.version, layout, received, &self.request, &self.shared);
        out.batch.set_resource(reading.resource(&bundle.head).into());
        out.batch.set_content(repeats::content(&bundle, body, layout));
        self.stage = UploadStage::Reading(Box::new(reading));
    }

    fn read_events(&mut self, mut reading: Box<BundleReader>, now: Now, out: &mut Output) {
        let before = out.batch.total_expanded_bytes();
        let body = self.inflated.as_deref().unwrap_or(&self.request.body);
        let progress = reading.write_events(body, now, &self.shared, out);
        let expanded = out.batch.total_expanded_bytes() - before;
        out.charge_request(self.shared.options.amplification, &mut self.unearned, expanded, now.elapsed);
        match progress {
            BundleProgress::BatchFull => self.stage = UploadStage::Reading(reading),
            BundleProgress::Done { lost, events, fault } => {
                out.decoded_bytes += (body.len() as u64).saturating_sub(lost);
                self.quarantine_reason = fault;
                self.answer = Response::text(200, format!("{events} events"));
                self.stage = UploadStage::Done(Some(reading));
            }
            BundleProgress::LookUp { first } => {
                self.stage = match &self.shared.shared_deliveries {
                    Some(shared_deliveries) => {
                        UploadStage::LookingUp(LookUp::new(shared_deliveries.look_up(first)), reading)
                    }
                    None => UploadStage::Reading(reading),
                };
            }
            BundleProgress::Repeat { events } => {
                out.repeats[0] += events;
                self.answer = Response::text(200, "a repeat of a stored bundle");
                self.lose_all(Reason::Duplicate, Some(events), "the bundle was delivered before", out);
            }
            BundleProgress::InFlight { events } => {
                self.answer = Response::unavailable("the same bundle is being stored by another request");
                self.lose_all(
                    Reason::Duplicate,
                    Some(events),
                    "the same bundle is being delivered by another request",
                    out,
                );
            }
        }
    }

    /// Refuses the request, unless its version is never refused (rule 4).
    fn refuse(&mut self, status: u16, reason: Reason, detail: &str, out: &mut Output) {
        if self.target.version <= UploadVersion::V1 {
            return self.quarantine_whole(reason, detail, out);
        }
        self.refuse_whole(status, reason, detail, out);
    }

    fn refuse_whole(&mut self, status: u16, reason: Reason, detail: &str, out: &mut Output) {
        self.answer = Response::text(status, detail);
        self.lose_all(reason, None, detail, out);
    }

    fn refuse_temporarily(&mut self, detail: &str, out: &mut Output) {
        self.answer = Response::unavailable(detail);
        self.lose_all(Reason::Failed, None, detail, out);
    }

    /// The body arrived as sent and cannot be read; a resend would not help. It goes to the quarantine, and the agent is
    /// answered 200 (rule 5).
    fn quarantine_whole(&mut self, reason: Reason, detail: &str, out: &mut Output) {
        if !self.bundle().is_empty() {
            self.quarantine_reason = Some(detail.to_owned());
        }
        self.answer = Response::text(200, "kept in the quarantine: it cannot be read");
        self.lose_all(reason, None, detail, out);
    }

    /// Reports the whole bundle as lost, and ends.
    fn lose_all(&mut self, reason: Reason, events: Option<u64>, detail: &str, out: &mut Output) {
        self.stage = UploadStage::Done(None);
        let bundle = self.inflated.as_deref().unwrap_or(&self.request.body);
        let bytes = bundle.len() as u64;
        // A report of this request, not a part of its content: each time that a bundle is repeated is reported.
        out.batch.set_content(None);
        if bytes > 0 || reason != Reason::Duplicate {
            let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
            let at = self.received.unwrap_or_default();
            let loss = Loss { reason, bytes, events, detail, excerpt: bundle };
            out.loss(Header::observed_at(semconv::LOSS, at, position), loss);
        }
    }
}

/// The bundle of a body that is wholly in the normal form of the draft layout.
fn draft(body: &[u8], version: UploadVersion, max_payload_bytes: u64) -> Option<Bundle<'_>> {
    let whole = Slice::new(body);
    let layout = BundleLayout::V3Draft;
    let mut scratch = Scratch::for_types_of(usize::try_from(max_payload_bytes).unwrap_or(usize::MAX));
    let mut is_normal = || gvariant::visit_type(layout.type_string(), whole, 0, &mut scratch, &mut Skip).is_ok();
    (version == UploadVersion::V3 && is_normal()).then(|| wire::bundle(body, layout).ok())?
}
