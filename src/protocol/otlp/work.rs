//! One request: its body is decompressed, checked as a whole, and then written in bounded steps.

use std::fmt;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use bytes::Bytes;

use tributary_codec::decompress::Decompressor;
use tributary_codec::inflate::InflateError;
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_event::{Header, Loss, Position, Reason, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::repeats::{BodyLookup, Digest, FirstBody};
use tributary_protocol::{Flow, Now, Output, Request, RequestOutcome, Response, Work};

use super::answer;
use super::check::check;
use super::json;
use super::listener::OtlpListener;
use super::profile::ProfileReader;
use super::profile_dictionary::{ProfileDictionary, TableSizes};
use super::route::{Encoding, GRPC_HEAD_BYTES, Signal};
use super::writer::RecordWriter;

/// One request.
#[derive(Debug)]
pub struct OtlpWork {
    shared: Arc<OtlpListener>,
    request: Request,
    signal: Signal,
    encoding: Encoding,
    /// The memory of what is decompressed.
    lease: MemoryLease,
    stage: OtlpStage,
    /// `None`: a repeat, or a request whose repeats are not recognised.
    first: Option<FirstBody>,
    events: u64,
    /// Transmitted bytes that were not yet charged to the allowance.
    unearned: u64,
    /// Why the request goes to the quarantine.
    quarantine_reason: Option<String>,
    /// The answer if the events are delivered.
    answer: Response,
}

#[derive(Debug)]
enum OtlpStage {
    Start,
    /// The same request is being worked on.
    WaitingForFirst(Digest),
    /// The compressed message.
    Decompressing(Bytes, Box<Decompressor>),
    Writing(Box<RecordWriter>),
    Done,
}

/// Why a request is refused.
#[derive(Debug)]
enum BodyError {
    /// Its compression is none of those that are read.
    Encoding(String),
    Frame(&'static str),
    Inflate(InflateError),
    Json(serde_json::Error),
    Decode(DecodeError),
    /// There is no memory for it now.
    NoMemory,
}

impl OtlpWork {
    pub(super) fn new(
        request: Request,
        signal: Signal,
        encoding: Encoding,
        shared: Arc<OtlpListener>,
        memory: Option<&Arc<MemoryBudget>>,
    ) -> Self {
        OtlpWork {
            lease: memory.unwrap_or(&shared.memory).passing(MemoryLease::FLOOR),
            answer: answer::delivered(encoding),
            unearned: request.body.len() as u64,
            shared,
            request,
            signal,
            encoding,
            stage: OtlpStage::Start,
            first: None,
            events: 0,
            quarantine_reason: None,
        }
    }
}

impl Work for OtlpWork {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let before = out.batch.total_expanded_bytes();
        let stage = std::mem::replace(&mut self.stage, OtlpStage::Done);
        match self.advance(stage, now, out) {
            Ok(stage) => self.stage = stage,
            Err(error) => self.refuse(&error, now, out),
        }
        let expanded = out.batch.total_expanded_bytes() - before;
        out.charge_request(self.shared.options.amplification, &mut self.unearned, expanded, now.elapsed);
        if let OtlpStage::Done = self.stage { Flow::Continue } else { Flow::Again }
    }

    fn poll_ready(&mut self, context: &mut TaskContext<'_>) -> Poll<()> {
        match &self.stage {
            OtlpStage::WaitingForFirst(digest) => self.shared.repeats.poll_ended(*digest, context),
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
            first.delivered(self.events, now.elapsed);
        }
        self.answer
    }
}

impl OtlpWork {
    fn advance(&mut self, stage: OtlpStage, now: Now, out: &mut Output) -> Result<OtlpStage, BodyError> {
        match stage {
            OtlpStage::Start => {
                let digest = self.shared.repeats.digest(self.request.head.path(), &self.request.body);
                self.begin(digest, now, out)
            }
            OtlpStage::WaitingForFirst(digest) => self.begin(Some(digest), now, out),
            OtlpStage::Decompressing(input, mut decompressor) => {
                let is_over = decompressor.step(&input).map_err(BodyError::Inflate)?;
                if !self.lease.resize(decompressor.memory_bytes() as u64) {
                    return Err(BodyError::NoMemory);
                }
                match is_over {
                    true => self.open(decompressor.into_output().into(), out),
                    false => Ok(OtlpStage::Decompressing(input, decompressor)),
                }
            }
            OtlpStage::Writing(mut writer) => match writer.step(now, out) {
                Flow::Again => Ok(OtlpStage::Writing(writer)),
                _ => {
                    self.events = writer.records();
                    Ok(OtlpStage::Done)
                }
            },
            OtlpStage::Done => Ok(OtlpStage::Done),
        }
    }

    /// Begins to read the body, unless the same one was delivered or is being worked on.
    fn begin(&mut self, digest: Option<Digest>, now: Now, out: &mut Output) -> Result<OtlpStage, BodyError> {
        if let Some(digest) = digest {
            match self.shared.repeats.find(digest, now.elapsed) {
                BodyLookup::First(first) => self.first = Some(first),
                BodyLookup::InProgress => return Ok(OtlpStage::WaitingForFirst(digest)),
                BodyLookup::Repeat(events) => {
                    out.repeats[0] += events;
                    out.ignore(self.signal.as_str(), self.request.body.len() as u64);
                    return Ok(OtlpStage::Done);
                }
            }
        }
        let (input, compression) = self.message()?;
        if let "" | "identity" = compression {
            return self.open(input, out);
        }
        let limit = usize::try_from(self.shared.options.max_inflated_bytes).unwrap_or(usize::MAX);
        let decompressor = Decompressor::new(&input, limit);
        match (compression, &decompressor) {
            ("gzip", Decompressor::Gzip(_)) | ("zstd", Decompressor::Zstd(_)) => {
                Ok(OtlpStage::Decompressing(input, Box::new(decompressor)))
            }
            ("gzip" | "zstd", _) => {
                let what = "it does not begin as its Content-Encoding does";
                Err(BodyError::Inflate(InflateError::Corrupt { offset: 0, what }))
            }
            (other, _) => Err(BodyError::Encoding(other.chars().take(40).collect())),
        }
    }

    /// The message of the body, and how it is compressed.
    fn message(&self) -> Result<(Bytes, &str), BodyError> {
        let body = &self.request.body;
        if self.encoding != Encoding::Grpc {
            return Ok((body.clone(), self.request.head.header("content-encoding").unwrap_or_default()));
        }
        let Some(([flag, length @ ..], message)) = body.split_first_chunk::<GRPC_HEAD_BYTES>() else {
            return Err(BodyError::Frame("it has no complete message of gRPC"));
        };
        if u32::from_be_bytes(*length) as usize != message.len() {
            return Err(BodyError::Frame("the length of its message of gRPC is not that of its rest"));
        }
        let compression = match flag {
            0 => "",
            1 => self.request.head.header("grpc-encoding").unwrap_or("a message without the header grpc-encoding"),
            _ => return Err(BodyError::Frame("the first byte of its message of gRPC is neither 0 nor 1")),
        };
        Ok((body.slice(GRPC_HEAD_BYTES..), compression))
    }

    /// Checks a whole message.
    fn open(&mut self, message: Bytes, out: &mut Output) -> Result<OtlpStage, BodyError> {
        let decoded = message.len() as u64;
        let of = self.signal.message();
        let mut memory = decoded;
        let message = match self.encoding {
            Encoding::Json => {
                let written = json::to_protobuf(&message, of).map_err(BodyError::Json)?;
                memory += written.capacity() as u64;
                if !self.lease.resize(memory) {
                    return Err(BodyError::NoMemory);
                }
                written.into()
            }
            Encoding::Protobuf | Encoding::Grpc => message,
        };
        let profiles = self.check(&message, memory)?;
        if decoded != self.request.body.len() as u64 {
            out.inflated(self.request.body.len() as u64, decoded);
        }
        out.decoded_bytes += decoded;
        let (limits, resources) = (self.shared.limits(), self.shared.resources.clone());
        let writer = RecordWriter::new(self.signal, message, profiles, limits, resources);
        Ok(OtlpStage::Writing(Box::new(writer)))
    }

    /// Checks all of a message, which has this much memory. `Some`: the reader of its profiles.
    fn check(&mut self, message: &Bytes, memory: u64) -> Result<Option<ProfileReader>, BodyError> {
        let of = self.signal.message();
        if self.signal != Signal::Profiles {
            return check(message, 0, of, None, 0).map(|()| None).map_err(BodyError::Decode);
        }
        let max_entries = self.shared.options.max_profile_entries;
        let read = || {
            let sizes = TableSizes::count(message, max_entries)?;
            check(message, 0, of, Some(&sizes), 0)?;
            ProfileDictionary::read(message, max_entries)
        };
        let reader = ProfileReader::new(read().map_err(BodyError::Decode)?);
        if self.lease.resize(memory + reader.memory_bytes() as u64) {
            Ok(Some(reader))
        } else {
            Err(BodyError::NoMemory)
        }
    }

    /// All of the body is lost, or the sender has it still.
    fn refuse(&mut self, error: &BodyError, now: Now, out: &mut Output) {
        self.first = None;
        let body = &self.request.body;
        let bytes = body.len() as u64;
        let detail = error.to_string();
        if let BodyError::NoMemory = error {
            out.ignore(self.signal.as_str(), bytes);
            self.answer = Response::unavailable(detail);
            return;
        }
        let excerpt = &body[error.offset().min(body.len())..];
        let position = Position { sequence: Some(self.request.number), offset: 0, length: bytes };
        let loss = Loss { reason: error.reason(), bytes, events: None, detail: &detail, excerpt };
        out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
        let status = match error {
            BodyError::Encoding(_) => 415,
            _ if error.reason() == Reason::TooLarge => 413,
            _ => 400,
        };
        self.answer = Response::text(status, detail.clone());
        self.quarantine_reason = Some(detail);
    }
}

impl BodyError {
    fn reason(&self) -> Reason {
        match self {
            BodyError::Encoding(_) => Reason::Unsupported,
            BodyError::Inflate(InflateError::TooLarge { .. }) => Reason::TooLarge,
            BodyError::Decode(DecodeError { kind: DecodeErrorKind::TooLarge { .. }, .. }) => Reason::TooLarge,
            _ => Reason::Malformed,
        }
    }

    /// Where it was found, if the body is not compressed.
    fn offset(&self) -> usize {
        match self {
            BodyError::Decode(error) => error.offset,
            _ => 0,
        }
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BodyError::Encoding(name) => write!(f, "the Content-Encoding is none of gzip, zstd and identity: {name:?}"),
            BodyError::Frame(what) => write!(f, "the body: {what}"),
            BodyError::Inflate(error @ InflateError::TooLarge { .. }) => write!(f, "{error} (max_inflated_bytes)"),
            BodyError::Inflate(error) => write!(f, "{error}"),
            BodyError::Json(error) => write!(f, "JSON: {error}"),
            BodyError::Decode(error) => write!(f, "at {}: {error}", error.offset),
            BodyError::NoMemory => f.write_str("there is no memory for the request now (limits.memory_bytes)"),
        }
    }
}
