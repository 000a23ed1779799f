//! An upload of a profiler, `/profiling/v1/input`: a form with `event.json` and files (contract, "Profiles").

use serde::Deserialize;

use tributary_codec::multipart::{FormPart, MultipartError, boundary, parts};
use tributary_event::UnixNanos;

/// The most parts of a form.
const MAX_PARTS: usize = 64;
/// The longest description of an upload.
const MAX_EVENT_BYTES: usize = 1 << 20;

/// What an upload says of itself.
#[derive(Debug, Default)]
pub(super) struct Upload {
    pub(super) family: String,
    /// Keys and values; a tag without a colon has an empty value.
    pub(super) tags: Vec<(String, String)>,
    /// Tags of the process, as they came.
    pub(super) process_tags: String,
    pub(super) start: Option<UnixNanos>,
    pub(super) end: Option<UnixNanos>,
    pub(super) attachments: Vec<Attachment>,
}

/// A file of an upload.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) name: String,
    pub(super) format: AttachmentFormat,
    /// Where it stands in the body.
    pub(super) range: std::ops::Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AttachmentFormat {
    Pprof,
    /// Recordings of Java, JSON about the code, and whatever else.
    Other,
}

/// Why a form cannot be read.
#[derive(Debug)]
pub(super) enum UploadError {
    /// Its content type names no boundary.
    NoForm,
    Form(MultipartError),
    /// What is wrong with its description.
    Event(String),
}

impl std::fmt::Display for UploadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UploadError::NoForm => f.write_str("the content type is not multipart/form-data with a boundary"),
            UploadError::Form(MultipartError { offset, expected }) => write!(f, "at {offset}: expected {expected}"),
            UploadError::Event(why) => write!(f, "event.json: {why}"),
        }
    }
}

/// `event.json`, as far as it is read.
#[derive(Deserialize, Default)]
#[serde(default)]
struct EventJson {
    start: Option<String>,
    end: Option<String>,
    family: Option<String>,
    tags_profiler: Option<String>,
    process_tags: Option<String>,
}

impl Upload {
    pub(super) fn read(content_type: Option<&str>, body: &[u8]) -> Result<Upload, UploadError> {
        let boundary = content_type.and_then(boundary).ok_or(UploadError::NoForm)?;
        let parts = parts(body, boundary, MAX_PARTS).map_err(UploadError::Form)?;
        let mut upload = Upload::default();
        let mut format = "";
        for part in &parts {
            let text = || std::str::from_utf8(part.content).unwrap_or_default();
            match part.name {
                "event" => upload.event(part.content)?,
                "tags[]" | "tags" => upload.add_tags(text()),
                "recording-start" | "start" => upload.start = time(text()),
                "recording-end" | "end" => upload.end = time(text()),
                "family" | "runtime" => upload.family = text().to_owned(),
                "format" => format = text(),
                _ => {}
            }
        }
        let files = parts.iter().filter(|part| is_file(part));
        upload.attachments = files.map(|part| Attachment::of(part, format, body)).collect();
        Ok(upload)
    }

    fn event(&mut self, json: &[u8]) -> Result<(), UploadError> {
        if json.len() > MAX_EVENT_BYTES {
            return Err(UploadError::Event(format!("it has {} bytes, over {MAX_EVENT_BYTES}", json.len())));
        }
        let event: EventJson = serde_json::from_slice(json).map_err(|error| UploadError::Event(error.to_string()))?;
        self.start = event.start.as_deref().and_then(time);
        self.end = event.end.as_deref().and_then(time);
        self.family = event.family.unwrap_or_default();
        self.process_tags = event.process_tags.unwrap_or_default();
        self.add_tags(&event.tags_profiler.unwrap_or_default());
        Ok(())
    }

    /// Tags that are separated by commas.
    fn add_tags(&mut self, tags: &str) {
        for tag in tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            let (key, value) = tag.split_once(':').unwrap_or((tag, ""));
            self.tags.push((key.to_owned(), value.to_owned()));
        }
    }

    /// The last value of a tag.
    pub(super) fn tag(&self, names: &[&str]) -> Option<&str> {
        let found = self.tags.iter().rev().find(|(key, value)| names.contains(&key.as_str()) && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    }
}

/// Older clients name files `data[0]` or `chunk-data`, and say beside them what they are.
fn is_file(part: &FormPart<'_>) -> bool {
    let is_named_so = part.name.starts_with("data[") || part.name == "chunk-data";
    part.name != "event" && (is_named_so || !part.file_name.is_empty())
}

impl Attachment {
    fn of(part: &FormPart<'_>, format: &str, body: &[u8]) -> Attachment {
        let start = part.content.as_ptr().addr() - body.as_ptr().addr();
        let name = if part.file_name.is_empty() { part.name } else { part.file_name };
        let is_pprof = name.contains("pprof") || (format == "pprof" && !name.contains('.'));
        let format = if is_pprof { AttachmentFormat::Pprof } else { AttachmentFormat::Other };
        Attachment { name: name.to_owned(), format, range: start..start + part.content.len() }
    }
}

fn time(text: &str) -> Option<UnixNanos> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok().map(UnixNanos)
}
