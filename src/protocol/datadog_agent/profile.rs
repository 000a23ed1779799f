//! Uploads of profilers: their files are decompressed and checked, kept where the listener keeps them, and written as samples.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use tributary_codec::decompress::Decompressor;
use tributary_codec::inflate::InflateError;
use tributary_codec::pprof::PprofReader;
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_codec::text::cut;
use tributary_event::{
    BatchBuilder, Header, InternedResource, Key, Name, Position, Resource, Severity, UnixNanos, Value, semconv,
};
use tributary_memory::MemoryLease;
use tributary_protocol::{Flow, Now, Output, Request};

use super::options::{Options, ProfileMode};
use super::process::ProcessDescription;
use super::profile_samples::{SampleLimits, SampleWriter};
use super::upload::{AttachmentFormat, Upload, UploadError};

/// Keeps files of uploads.
pub trait ProfileFiles: Send + Sync + fmt::Debug {
    /// Stores a file under this name, a relative path. The future ends when it is stored, with an error if it cannot be.
    fn keep(&self, name: String, content: Bytes) -> KeepingFile;
}

/// A file that is being stored.
pub type KeepingFile = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

/// The upload of one request.
pub(super) struct ProfileWriter {
    body: Bytes,
    upload: Upload,
    resource: (Arc<Resource>, InternedResource),
    limits: SampleLimits,
    max_entries: usize,
    /// Bytes that may still be decompressed.
    bytes_left: usize,
    mode: ProfileMode,
    files: Option<Arc<dyn ProfileFiles>>,
    /// Those of files that are decompressed.
    lease: MemoryLease,
    stage: ProfileStage,
    samples: Vec<SampleWriter>,
    kept: Vec<String>,
    position: Position,
}

enum ProfileStage {
    /// The next file to read.
    Next(usize),
    Decompressing(usize, Box<Decompressor>),
    Reading(usize, Box<PprofReader>),
    /// The next file to keep.
    Keep(usize),
    Keeping(usize, String, KeepingFile),
    Kept(usize, Result<(), String>),
    /// The profile that is being written.
    Writing(usize),
    Done,
}

/// Why an upload is refused.
#[derive(Debug)]
pub(super) enum ProfileError {
    Form(UploadError),
    Inflate(String, InflateError),
    Pprof(String, DecodeError),
    /// There is no memory for it now.
    NoMemory,
    /// It should be kept only, and was not.
    NotKept(String),
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileError::Form(error) => write!(f, "{error}"),
            ProfileError::Inflate(file, error @ InflateError::TooLarge { .. }) => {
                write!(f, "{file}: {error} (max_inflated_bytes)")
            }
            ProfileError::Inflate(file, error) => write!(f, "{file}: {error}"),
            ProfileError::Pprof(file, error) => write!(f, "{file}, at {} of the profile: {error}", error.offset),
            ProfileError::NoMemory => f.write_str("there is no memory for the profile now (limits.memory_bytes)"),
            ProfileError::NotKept(why) => write!(f, "the profile cannot be kept: {why}"),
        }
    }
}

impl ProfileError {
    pub(super) fn is_too_large(&self) -> bool {
        match self {
            ProfileError::Inflate(_, error) => matches!(error, InflateError::TooLarge { .. }),
            ProfileError::Pprof(_, error) => matches!(error.kind, DecodeErrorKind::TooLarge { .. }),
            _ => false,
        }
    }
}

impl fmt::Debug for ProfileWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileWriter").field("upload", &self.upload).finish_non_exhaustive()
    }
}

impl ProfileWriter {
    /// Reads the form.
    pub(super) fn new(
        request: &Request,
        options: &Options,
        files: Option<Arc<dyn ProfileFiles>>,
        lease: MemoryLease,
    ) -> Result<ProfileWriter, ProfileError> {
        let body = request.body.clone();
        let upload = Upload::read(request.head.header("content-type"), &body).map_err(ProfileError::Form)?;
        let resource = ProcessDescription::of_upload(&upload, &request.head).resource();
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        Ok(ProfileWriter {
            resource: (Arc::new(resource), InternedResource::default()),
            limits: SampleLimits {
                max_frames: options.max_frames,
                max_labels: options.max_span_entries,
                max_text_bytes: size(options.max_text_bytes),
            },
            max_entries: options.max_profile_entries,
            bytes_left: size(options.max_inflated_bytes),
            mode: options.profiles,
            files,
            lease,
            stage: ProfileStage::Next(0),
            samples: Vec::new(),
            kept: Vec::new(),
            position: Position { sequence: Some(request.number), offset: 0, length: body.len() as u64 },
            upload,
            body,
        })
    }

    /// Whether the next step can be done.
    pub(super) fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let ProfileStage::Keeping(index, name, keeping) = &mut self.stage else { return Poll::Ready(()) };
        let Poll::Ready(outcome) = keeping.as_mut().poll(context) else { return Poll::Pending };
        if outcome.is_ok() {
            self.kept.push(std::mem::take(name));
        }
        self.stage = ProfileStage::Kept(*index, outcome);
        Poll::Ready(())
    }

    /// Does a bounded part of the work. [`Flow::Continue`]: all is done.
    ///
    /// # Errors
    /// The upload is refused; nothing of it was written.
    pub(super) fn step(&mut self, now: Now, out: &mut Output) -> Result<Flow, ProfileError> {
        self.stage = match std::mem::replace(&mut self.stage, ProfileStage::Done) {
            ProfileStage::Next(index) => self.open(index),
            ProfileStage::Decompressing(index, decompressor) => self.decompress(index, decompressor)?,
            ProfileStage::Reading(index, reader) => self.read(index, reader)?,
            ProfileStage::Keep(index) => self.keep(index, now),
            // It is asked for when it is ready only.
            stage @ ProfileStage::Keeping(..) => stage,
            ProfileStage::Kept(index, Ok(())) => ProfileStage::Keep(index + 1),
            ProfileStage::Kept(index, Err(why)) => {
                if self.mode == ProfileMode::Keep {
                    return Err(ProfileError::NotKept(why));
                }
                out.warn("profile_not_kept");
                ProfileStage::Keep(index + 1)
            }
            ProfileStage::Writing(index) => self.write(index, now, out),
            ProfileStage::Done => ProfileStage::Done,
        };
        Ok(if let ProfileStage::Done = self.stage { Flow::Continue } else { Flow::Again })
    }

    fn open(&mut self, index: usize) -> ProfileStage {
        let is_pprof = |attachment: &super::upload::Attachment| attachment.format == AttachmentFormat::Pprof;
        match self.upload.attachments.get(index) {
            Some(attachment) if is_pprof(attachment) && self.mode == ProfileMode::Samples => {
                let input = &self.body[attachment.range.clone()];
                ProfileStage::Decompressing(index, Box::new(Decompressor::new(input, self.bytes_left)))
            }
            Some(_) => ProfileStage::Next(index + 1),
            None => ProfileStage::Keep(0),
        }
    }

    fn decompress(&mut self, index: usize, mut of: Box<Decompressor>) -> Result<ProfileStage, ProfileError> {
        let attachment = &self.upload.attachments[index];
        let is_over = of
            .step(&self.body[attachment.range.clone()])
            .map_err(|error| ProfileError::Inflate(shown(&attachment.name), error))?;
        self.charge(of.memory_bytes())?;
        if !is_over {
            return Ok(ProfileStage::Decompressing(index, of));
        }
        let message = of.into_output();
        self.bytes_left -= message.len();
        let reader = PprofReader::new(message, self.max_entries, "max_profile_entries");
        Ok(ProfileStage::Reading(index, Box::new(reader)))
    }

    fn read(&mut self, index: usize, mut reader: Box<PprofReader>) -> Result<ProfileStage, ProfileError> {
        let is_over =
            reader.step().map_err(|error| ProfileError::Pprof(shown(&self.upload.attachments[index].name), error))?;
        self.charge(reader.memory_bytes())?;
        if !is_over {
            return Ok(ProfileStage::Reading(index, reader));
        }
        self.samples.push(SampleWriter::new(reader.finish(), self.upload.end));
        Ok(ProfileStage::Next(index + 1))
    }

    /// Takes the memory of the file that is being read, and of those that were read.
    fn charge(&mut self, bytes: usize) -> Result<(), ProfileError> {
        let all = self.samples.iter().map(SampleWriter::memory_bytes).sum::<usize>() + bytes;
        if self.lease.resize(all as u64) { Ok(()) } else { Err(ProfileError::NoMemory) }
    }

    fn keep(&mut self, index: usize, now: Now) -> ProfileStage {
        let (Some(files), Some(attachment)) = (&self.files, self.upload.attachments.get(index)) else {
            return ProfileStage::Writing(0);
        };
        let name = file_name(&self.upload, &attachment.name, self.upload.end.unwrap_or(now.unix));
        let keeping = files.keep(name.clone(), self.body.slice(attachment.range.clone()));
        ProfileStage::Keeping(index, name, keeping)
    }

    /// The bytes of files that are neither decoded nor kept.
    pub(super) fn ignored_bytes(&self) -> u64 {
        let is_read = |format| format == AttachmentFormat::Pprof && self.mode == ProfileMode::Samples;
        let ignored = self.upload.attachments.iter().filter(|file| !is_read(file.format) && self.files.is_none());
        ignored.map(|file| file.range.len() as u64).sum()
    }

    fn write(&mut self, index: usize, now: Now, out: &mut Output) -> ProfileStage {
        let resource = out.batch.intern_resource(&mut self.resource.1, &self.resource.0);
        match self.samples.get_mut(index) {
            Some(samples) => match samples.step(self.limits, (self.position, resource), now, out) {
                Flow::Again => ProfileStage::Writing(index),
                _ => ProfileStage::Writing(index + 1),
            },
            None => {
                let attributes = self.attributes(&mut out.batch);
                let time = self.upload.end.or(Some(now.unix));
                let position = self.position;
                let header = Header { name: semconv::DATADOG_PROFILE.into(), time, observed: now.unix, position };
                let mut event = out.batch.event(header);
                event.resource(resource);
                attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
                event.log(Severity::Info, None);
                ProfileStage::Done
            }
        }
    }

    /// The attributes of the log about the upload.
    fn attributes(&self, batch: &mut BatchBuilder) -> Vec<(Key, Value)> {
        let mut all: Vec<(Key, Value)> = Vec::new();
        let texts = |texts: &mut dyn Iterator<Item = &str>, batch: &mut BatchBuilder| {
            let items: Vec<Value> = texts.map(|text| batch.push_text(text).into()).collect();
            batch.array(&items)
        };
        let upload = &self.upload;
        if !upload.family.is_empty() {
            all.push((semconv::DATADOG_PROFILE_FAMILY.into(), batch.push_text(shown(&upload.family).as_str()).into()));
        }
        let mut types: Vec<String> = Vec::new();
        for of in self.samples.iter().flat_map(SampleWriter::types) {
            let of = shown(&String::from_utf8_lossy(of));
            if !types.contains(&of) && types.len() < MAX_TYPES {
                types.push(of);
            }
        }
        let names: Vec<String> = upload.attachments.iter().map(|file| shown(&file.name)).collect();
        for (name, list) in [
            (semconv::DATADOG_PROFILE_TYPES, &types),
            (semconv::DATADOG_PROFILE_ATTACHMENTS, &names),
            (semconv::DATADOG_PROFILE_FILES, &self.kept),
        ] {
            if !list.is_empty() {
                all.push((name.into(), texts(&mut list.iter().map(String::as_str), batch)));
            }
        }
        let count = self.samples.iter().map(SampleWriter::sample_count).sum::<usize>();
        all.push((semconv::DATADOG_PROFILE_SAMPLES.into(), Value::U64(count as u64)));
        for (name, time) in [(semconv::DATADOG_PROFILE_START, upload.start), (semconv::DATADOG_PROFILE_END, upload.end)]
        {
            if let Some(time) = time {
                all.push((name.into(), batch.push_text(&rfc3339(time)).into()));
            }
        }
        let mut seen = HashSet::new();
        for (key, value) in upload.tags.iter().take(MAX_TAGS) {
            // What this program writes itself keeps its meaning.
            let is_other = !ProcessDescription::has_tag(key) && Name::of(key).is_none();
            if is_other && seen.insert(key) {
                let value = if value.is_empty() { true.into() } else { batch.push_text(&shown(value)).into() };
                all.push((batch.push_text(&shown(key)).into(), value));
            }
        }
        all
    }
}

/// The most types of values and tags that the log names, and the longest text.
const MAX_TYPES: usize = 256;
const MAX_TAGS: usize = 256;
const MAX_SHOWN_BYTES: usize = 256;

fn shown(text: &str) -> String {
    cut(text, MAX_SHOWN_BYTES).to_owned()
}

fn rfc3339(time: UnixNanos) -> String {
    jiff::Timestamp::from_nanosecond(time.0.into()).map(|time| time.to_string()).unwrap_or_default()
}

/// `<service>/<time>-<runtime id>-<attachment>`, of characters that every file system has.
fn file_name(upload: &Upload, attachment: &str, time: UnixNanos) -> String {
    let service = plain(upload.tag(&["service"]).unwrap_or("unknown"));
    let time: String = rfc3339(time).chars().filter(|it| it.is_ascii_alphanumeric() || *it == '.').collect();
    let runtime = plain(upload.tag(&["runtime-id", "runtime_id"]).unwrap_or("unknown"));
    format!("{service}/{time}-{runtime}-{}", plain(attachment))
}

/// A text as a part of a name of a file (contract, "Decided" 9).
fn plain(text: &str) -> String {
    let is_plain = |it: &char| it.is_ascii_alphanumeric() || "._-".contains(*it);
    let plain: String = text.chars().map(|it| if is_plain(&it) { it } else { '_' }).take(100).collect();
    match plain.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None if plain.is_empty() => "_".to_owned(),
        None => plain,
    }
}
