//! Answers and errors.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::{Serialize, Serializer};

use super::super::response::{AdminResponse, error, no_sniffing};
use tributary_codec::terminal::write_json;
use tributary_memory::{MemoryBudget, MemoryLease};

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    line: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, line: impl Into<String>) -> ApiError {
        ApiError { status, line: line.into() }
    }

    /// What was asked for does not exist, or not any more.
    pub(super) fn gone(what: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, format!("there is no such {what}, or it has left the window"))
    }

    pub(super) fn stopping() -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping")
    }

    pub(super) fn failed() -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "making the answer failed, which is a bug of tributary")
    }

    fn too_large(bytes: usize) -> ApiError {
        let line = format!(
            "the answer is larger than {bytes} bytes ([view] max_answer): ask for less, for example with limit="
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line)
    }

    pub(super) fn response(&self) -> AdminResponse {
        error(true, self.status, &self.line)
    }
}

/// The memory that one answer may take: what it is made of and its text, together `max_answer`.
#[derive(Debug)]
pub(super) struct ResponseMemory {
    limit: usize,
    taken: AtomicUsize,
}

impl ResponseMemory {
    pub(super) fn new(limit: usize) -> ResponseMemory {
        ResponseMemory { limit, taken: AtomicUsize::new(0) }
    }

    /// Takes `bytes` of it for good. `false`: less is left, and nothing is taken.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let fits = bytes <= self.left();
        if fits {
            self.taken.fetch_add(bytes, Relaxed);
        }
        fits
    }

    /// The same; an error says that the answer is too large.
    pub(super) fn require(&self, bytes: usize) -> Result<(), ApiError> {
        if self.take(bytes) { Ok(()) } else { Err(ApiError::too_large(self.limit)) }
    }

    /// Half of what is left, for what an answer is made of: the text of the answer has the other half.
    pub(super) fn half(&self) -> ResponseMemory {
        let half = ResponseMemory::new(self.left() / 2);
        let _ = self.take(half.limit);
        half
    }

    /// Bytes that are not taken.
    pub(super) fn left(&self) -> usize {
        self.limit - self.taken.load(Relaxed)
    }

    /// Bytes of the answer at most.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }
}

/// A list whose elements are made while it is written, so that they are never in memory together.
pub(super) struct Lazy<F>(pub(super) F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Lazy<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// An answer that is made.
#[derive(Debug)]
pub(super) struct Made {
    bytes: Vec<u8>,
    content_type: &'static str,
    /// The name under which a browser stores it.
    file: Option<String>,
}

impl Made {
    /// A JSON document. Texts of agents in it cannot control the terminal of a reader.
    pub(super) fn json(memory: &ResponseMemory, document: &impl Serialize) -> Result<Made, ApiError> {
        let mut out = Bounded::new(memory.left());
        match write_json(&mut out, document) {
            Ok(()) => Ok(Made { bytes: out.bytes, content_type: "application/json", file: None }),
            Err(_) if out.is_full => Err(ApiError::too_large(memory.limit())),
            Err(_) => Err(ApiError::failed()),
        }
    }

    /// A file, which `write` writes.
    pub(super) fn file(
        memory: &ResponseMemory,
        name: String,
        content_type: &'static str,
        write: impl FnOnce(&mut Bounded) -> io::Result<()>,
    ) -> Result<Made, ApiError> {
        let mut out = Bounded::new(memory.left());
        match write(&mut out) {
            Ok(()) => Ok(Made { bytes: out.bytes, content_type, file: Some(name) }),
            Err(_) if out.is_full => Err(ApiError::too_large(memory.limit())),
            Err(error) => Err(ApiError::new(StatusCode::NOT_FOUND, error.to_string())),
        }
    }

    /// The same, which a browser stores under this name.
    pub(super) fn named(self, file: Option<String>) -> Made {
        Made { file, ..self }
    }

    /// The response. Its memory counts as memory of peers until it is sent.
    pub(super) fn response(self, memory: &Arc<MemoryBudget>) -> Result<AdminResponse, ApiError> {
        let mut lease = memory.bare_lease();
        if !lease.try_resize(self.bytes.len() as u64) {
            let line = "not enough memory for the answer now (limits.memory_bytes); try again later";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line));
        }
        let body = Bytes::from_owner(Leased { bytes: self.bytes, _lease: lease });
        let mut response = Response::new(Full::new(body).boxed_unsync());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        no_sniffing(headers);
        if let Some(name) = self.file {
            let safe = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
            let value = format!("attachment; filename=\"{}\"", name.chars().map(safe).collect::<String>());
            headers.extend(HeaderValue::from_str(&value).ok().map(|value| (CONTENT_DISPOSITION, value)));
        }
        Ok(response)
    }
}

/// Bytes with the lease of their memory.
struct Leased {
    bytes: Vec<u8>,
    _lease: MemoryLease,
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Takes bytes up to a limit.
#[derive(Debug)]
pub(super) struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl Bounded {
    fn new(limit: usize) -> Self {
        Bounded { bytes: Vec::new(), limit, is_full: false }
    }
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        // Doubling would take more than the limit.
        let missing = (self.bytes.len() + bytes.len()).saturating_sub(self.bytes.capacity());
        if missing > 0 {
            let more = (self.bytes.capacity() / 2).max(4096).min(self.limit - self.bytes.len());
            self.bytes.reserve_exact(more.max(bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
