//! The quarantine: files with complete requests that were received and cannot be decoded.
//!
//! A file is the request as HTTP has it, head and body as transmitted, so it can be sent again or decoded offline. Further
//! headers contain the reason, the time and the peer. The oldest files are removed to free space for new ones.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use tributary_codec::digest::short_digest;
use tributary_event::{Origin, UnixNanos};
use tributary_explain::http::without_secrets;
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::Request;
use tributary_system::blocking;
use tributary_system::kept_files::{FILE_BYTES, KeptFiles};

use super::options::QuarantineOptions;

/// The header with the time at which a request was received.
pub const RECEIVED_HEADER: &str = "x-tributary-received";
/// The extension of complete files.
const SUFFIX: &str = "http";
/// Headers about the transfer of the body; the file has its own `content-length`.
const TRANSPORT_HEADERS: [&str; 3] = ["content-length", "transfer-encoding", "expect"];
/// Headers whose names contain one of these are stored without their value.
const SECRET_NAMES: [&str; 7] = ["auth", "cookie", "credential", "key", "password", "secret", "token"];
/// Headers whose names contain this identify a session. A digest is stored instead of their value, so that the requests of
/// one session can still be found and decoded together.
const SESSION_NAME: &str = "session";
/// The value of a header that is stored without its value.
const REDACTED: &[u8] = b"redacted";

/// The quarantine of one listener.
#[derive(Debug)]
pub struct Quarantine {
    dir: PathBuf,
    max_bytes: u64,
    kept: Arc<Mutex<Option<QuarantineFiles>>>,
    /// Throttles the log line about requests that cannot be written.
    pub(super) throttle: Arc<LogThrottle>,
}

/// The files of the directory.
#[derive(Debug, Default)]
struct QuarantineFiles {
    files: KeptFiles,
    /// Distinguishes files of the same time.
    count: u64,
    /// Throttles the log line about removed files.
    full: LogThrottle,
}

/// A request to write.
#[derive(Clone, Debug)]
pub struct QuarantineRecord {
    /// When it was received.
    pub at: UnixNanos,
    /// Where it came from.
    pub origin: Arc<Origin>,
    /// Why it cannot be read: one sentence.
    pub reason: String,
    /// The request.
    pub request: Request,
}

impl Quarantine {
    /// The quarantine of the listener of this name. `None`: there is none.
    pub fn new(options: &QuarantineOptions, listener: &str) -> Option<Self> {
        let is_on = !options.dir.as_os_str().is_empty();
        let (dir, max_bytes) = (options.dir.join(listener), options.max_bytes);
        is_on.then(|| Quarantine { dir, max_bytes, kept: Arc::default(), throttle: Arc::default() })
    }

    /// Writes a request: when this returns, it is on the disk.
    ///
    /// # Errors
    /// The request is larger than `quarantine.max_bytes`, or those of the system.
    pub async fn keep(&self, record: QuarantineRecord) -> io::Result<()> {
        let (dir, max_bytes, kept) = (self.dir.clone(), self.max_bytes, self.kept.clone());
        let job = move || {
            // One at a time, so that the counters about the directory are exact.
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *kept {
                Some(kept) => kept.keep(&dir, max_bytes, &record),
                unread => unread.insert(QuarantineFiles::read(&dir)?).keep(&dir, max_bytes, &record),
            }
        };
        blocking::Job::start("quarantine", job)?.await?
    }
}

impl QuarantineFiles {
    /// Reads what an earlier run has left in the directory, and creates it if it does not exist.
    fn read(dir: &Path) -> io::Result<QuarantineFiles> {
        Ok(QuarantineFiles { files: KeptFiles::read(dir, Some(SUFFIX))?, count: 0, full: LogThrottle::new() })
    }

    fn keep(&mut self, dir: &Path, max_bytes: u64, record: &QuarantineRecord) -> io::Result<()> {
        let head = head(record);
        let size = ((head.len() + record.request.body.len()) as u64).max(FILE_BYTES);
        if size > max_bytes {
            let why = format!("a request of {size} bytes is larger than quarantine.max_bytes");
            return Err(io::Error::other(why));
        }
        let removed = self.files.free_space(size, max_bytes)?;
        if removed > 0
            && let Some(suppressed) = self.full.permit()
        {
            let directory = dir.display();
            warn!(%directory, removed, suppressed, "the quarantine is full (quarantine.max_bytes); its oldest requests are removed");
        }
        self.count += 1;
        let path = dir.join(format!("{:020}-{:06}.{SUFFIX}", record.at.0, self.count));
        self.files.add(path, &[head.as_slice(), &record.request.body])
    }
}

/// The head of the file.
fn head(record: &QuarantineRecord) -> Vec<u8> {
    let QuarantineRecord { at, origin, reason, request } = record;
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default();
    let target = without_secrets(&request.head.target);
    let mut head = format!("{} {target} HTTP/1.1\r\n", request.head.method).into_bytes();
    for (name, value) in &request.head.headers {
        if !TRANSPORT_HEADERS.contains(&name.as_str()) {
            head.extend_from_slice(&[name.as_bytes(), b": ", &stored_value(name, value), b"\r\n"].concat());
        }
    }
    let plain: String = reason.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
    let ours = format!(
        "content-length: {}\r\nx-tributary-reason: {plain}\r\n{RECEIVED_HEADER}: {time}\r\nx-tributary-peer: {}\r\n\
         x-tributary-listener: {}\r\n\r\n",
        request.body.len(),
        origin.peer,
        origin.listener,
    );
    head.extend_from_slice(ours.as_bytes());
    head
}

/// The value of a header as it is stored: secrets are not.
fn stored_value<'a>(name: &str, value: &'a [u8]) -> Cow<'a, [u8]> {
    if SECRET_NAMES.iter().any(|secret| name.contains(secret)) {
        return Cow::Borrowed(REDACTED);
    }
    if !name.contains(SESSION_NAME) {
        return Cow::Borrowed(value);
    }
    match str::from_utf8(value).map(str::trim) {
        // A flag of a session is no secret.
        Ok("true" | "false") => Cow::Borrowed(value),
        Ok(text) => Cow::Owned(short_digest(text).into_bytes()),
        Err(_) => Cow::Borrowed(REDACTED),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use tributary_protocol::RequestHead;

    fn record(at: u64, body: Vec<u8>) -> QuarantineRecord {
        let headers = vec![("content-length".to_owned(), b"1".to_vec()), ("host".to_owned(), b"h".to_vec())];
        let head = RequestHead { method: "PUT".into(), target: "/3/ab?c&api_key=SECRET".into(), headers };
        let origin = Arc::new(Origin::new("endless", "test".into(), "192.0.2.1:9".into(), 1));
        let request = Request { head, body: body.into(), number: 1 };
        QuarantineRecord { at: UnixNanos(at), origin, reason: "bad\r\nbytes".into(), request }
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_the_request_with_the_reason_among_its_headers() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = QuarantineFiles::read(dir.path()).unwrap();
        kept.keep(dir.path(), 1 << 20, &record(1_000_000_000, b"body".to_vec())).unwrap();
        let [name] = names(dir.path()).try_into().unwrap();
        assert_eq!(name, "00000000001000000000-000001.http");
        let text = fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            text,
            "PUT /3/ab?c&api_key=hidden HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\nx-tributary-reason: bad??bytes\r\n\
             x-tributary-received: 1970-01-01T00:00:01Z\r\nx-tributary-peer: 192.0.2.1:9\r\n\
             x-tributary-listener: test\r\n\r\nbody"
        );
    }

    #[test]
    fn secrets_in_headers_are_not_stored() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = QuarantineFiles::read(dir.path()).unwrap();
        let mut record = record(1_000_000_000, b"body".to_vec());
        let headers = [
            ("authorization", "Bearer hunter2"),
            ("proxy-authorization", "Basic aHVudGVyMg=="),
            ("cookie", "sid=hunter2"),
            ("x-api-key", "hunter2"),
            ("x-zorka-session-id", "675135e76025b0d2"),
            ("x-zorka-session-uuid", "ABC"),
            ("x-zorka-session-reset", "false"),
            ("x-zorka-trace-id", "1a4e24519af51247"),
            ("user-agent", "zorka/2.x"),
        ];
        record.request.head.headers.extend(headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())));
        record.request.head.headers.push(("x-session".to_owned(), vec![0xFF]));
        kept.keep(dir.path(), 1 << 20, &record).unwrap();
        let text = fs::read_to_string(dir.path().join(&names(dir.path())[0])).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("aHVu") && !text.contains("675135e7"), "{text}");
        for line in [
            "authorization: redacted",
            "proxy-authorization: redacted",
            "cookie: redacted",
            "x-api-key: redacted",
            "x-zorka-session-uuid: ba7816bf8f01cfea",
            "x-zorka-session-reset: false",
            "x-session: redacted",
            "x-zorka-trace-id: 1a4e24519af51247",
            "user-agent: zorka/2.x",
        ] {
            assert!(text.contains(&format!("{line}\r\n")), "{line} is missing in {text}");
        }
    }

    #[test]
    fn the_oldest_are_removed_also_those_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        // Small files count as one block of the disk each.
        let limit = 10_000;
        let mut kept = QuarantineFiles::read(dir.path()).unwrap();
        for at in 1..=3 {
            kept.keep(dir.path(), limit, &record(at, vec![0; 1000])).unwrap();
        }
        assert_eq!(names(dir.path()).len(), 2);
        let mut kept = QuarantineFiles::read(dir.path()).unwrap();
        kept.keep(dir.path(), limit, &record(4, vec![0; 8000])).unwrap();
        assert_eq!(names(dir.path()), ["00000000000000000004-000001.http"]);
        assert!(kept.keep(dir.path(), limit, &record(5, vec![0; 10_000])).is_err());
        assert_eq!(names(dir.path()).len(), 1, "a request that is too large removes no other");
    }
}
