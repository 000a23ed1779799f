//! Requests in the quarantines of listeners: they are listed, read, and decoded again once a newer version can.
//!
//! A request is delivered only if all of it can be decoded now, and its file is removed only after that. Events that could be
//! read at first, beside the fault, are delivered a second time.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::config::{ListenerConfig, ProtocolOptions};
use tributary_datadog_agent::DatadogAgentExchange;
use tributary_driver::decode;
use tributary_endless::EndlessExchange;
use tributary_event::{Batch, Origin, UnixNanos};
use tributary_memory::MemoryBudget;
use tributary_otlp::OtlpExchange;
use tributary_pipeline::DeliveryOutcome;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::nats::NatsExchange;
use tributary_protocol::{Exchange, Now, Protocol, Request};
use tributary_system::blocking::Job;
use tributary_transport::context::ListenerContext;
use tributary_transport::options::QuarantineOptions;
use tributary_transport::quarantine::RECEIVED_HEADER;
use tributary_zico::ZicoExchange;

/// The extension of complete files.
const SUFFIX: &str = "http";
/// The longest head of a stored request that is read.
const MAX_HEAD_BYTES: u64 = 4 << 20;

/// A request in a quarantine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// The name of its file, without the extension.
    pub id: String,
    /// Its file.
    pub path: PathBuf,
    /// The size of the file.
    pub bytes: u64,
    /// The head, as in the file.
    pub head: String,
}

impl Stored {
    /// The value of a header.
    pub fn header(&self, name: &str) -> &str {
        let mut headers = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        headers.find(|(found, _)| found.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value.trim())
    }

    /// Why it could not be decoded.
    pub fn reason(&self) -> &str {
        self.header("x-tributary-reason")
    }

    /// The request.
    ///
    /// # Errors
    /// The system's, or the file has no request.
    pub fn read(&self) -> io::Result<Request> {
        let bytes = fs::read(&self.path)?;
        let request = decode::requests(&bytes).and_then(|requests| requests.into_iter().next());
        request.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the file does not begin with a request"))
    }
}

/// The requests of a directory, oldest first. It may not exist.
///
/// # Errors
/// The system's.
pub fn list(directory: &Path) -> io::Result<Vec<Stored>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
    // Names begin with the time.
    paths.sort();
    let stored = |path: PathBuf| match stored(path) {
        // The listener or another process has removed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        stored => Some(stored),
    };
    paths.into_iter().filter_map(stored).collect()
}

/// The request with this id. `None`: there is none, or this cannot be an id. An id is never more than a part of a name.
///
/// # Errors
/// The system's.
fn find(directory: &Path, id: &str) -> io::Result<Option<Stored>> {
    let is_name = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    match is_name.then(|| stored(directory.join(format!("{id}.{SUFFIX}")))) {
        None => Ok(None),
        Some(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Some(stored) => stored.map(Some),
    }
}

fn stored(path: PathBuf) -> io::Result<Stored> {
    let file = File::open(&path)?;
    let bytes = file.metadata()?.len();
    let (mut head, mut block, mut file) = (Vec::new(), [0; 4096], file.take(MAX_HEAD_BYTES));
    let end = loop {
        let searched = head.len().saturating_sub(3);
        match file.read(&mut block)? {
            0 => break head.len(),
            read => head.extend_from_slice(&block[..read]),
        }
        if let Some(at) = head[searched..].windows(4).position(|window| window == b"\r\n\r\n") {
            break searched + at;
        }
    };
    let id = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Stored { id, bytes, head: String::from_utf8_lossy(&head[..end]).into_owned(), path })
}

/// Decodes requests of one listener again, each by itself.
pub(crate) struct Decoder(Box<Decode>);

type Decode =
    dyn Fn(Request, &Arc<Origin>, &ListenerCounters, Now, &mut dyn FnMut(Batch)) -> Result<(), String> + Send + Sync;

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decoder")
    }
}

impl Decoder {
    /// With the options of a listener. `None`: its protocol has no requests.
    pub(crate) fn of(listener: &ListenerConfig, memory: &Arc<MemoryBudget>) -> Option<Decoder> {
        let (memory, definitions) = (memory.clone(), listener.options.emit_definitions);
        Some(Decoder(match listener.protocol.clone() {
            ProtocolOptions::Endless(options, ..) => Box::new(move |request, origin, counters, now, take| {
                again(&EndlessExchange::new(options.clone(), &memory), request, origin, counters, now, take)
            }),
            ProtocolOptions::DatadogAgent(options, _) => Box::new(move |request, origin, counters, now, take| {
                again(&DatadogAgentExchange::new(options.clone(), &memory), request, origin, counters, now, take)
            }),
            ProtocolOptions::Zico(options, ..) => Box::new(move |request, origin, counters, now, take| {
                let exchange = ZicoExchange::recorded(options.clone(), definitions, &memory);
                again(&exchange, request, origin, counters, now, take)
            }),
            ProtocolOptions::Otlp(options, _) => Box::new(move |request, origin, counters, now, take| {
                again(&OtlpExchange::new(options.clone(), &memory), request, origin, counters, now, take)
            }),
            ProtocolOptions::Nats(options) => Box::new(move |request, origin, counters, now, take| {
                again(&NatsExchange::new(options.limits, &memory), request, origin, counters, now, take)
            }),
            _ => return None,
        }))
    }

    /// Whether all of a request can be decoded.
    ///
    /// # Errors
    /// Why it cannot.
    pub(crate) fn check(&self, request: &Request, listener: &str, protocol: Protocol, now: Now) -> Result<(), String> {
        let counters = ListenerCounters::new(listener.into(), protocol);
        self.0(request.clone(), &origin(request, listener, protocol), &counters, received(request, now), &mut |_| {})
    }

    /// Decodes a request to batches.
    ///
    /// # Errors
    /// Why it cannot be decoded completely.
    pub(crate) fn decode(
        &self,
        request: Request,
        counters: &ListenerCounters,
        now: Now,
        take: &mut dyn FnMut(Batch),
    ) -> Result<(), String> {
        let origin = origin(&request, counters.name(), counters.protocol());
        let now = received(&request, now);
        self.0(request, &origin, counters, now, take)
    }
}

fn again<E: Exchange>(
    exchange: &E,
    request: Request,
    origin: &Arc<Origin>,
    counters: &ListenerCounters,
    now: Now,
    take: &mut dyn FnMut(Batch),
) -> Result<(), String> {
    let (response, reason) = decode::answer(exchange, request, origin.clone(), counters, now, &mut |batch| take(batch));
    decode::finish(exchange, origin.clone(), counters, now, &mut |batch| take(batch));
    match reason {
        Some(reason) => Err(reason),
        None if (200..300).contains(&response.status) => Ok(()),
        None => Err(format!("{}, {}", response.status, String::from_utf8_lossy(&response.body).trim_end())),
    }
}

/// The peer that sent the request first.
fn origin(request: &Request, listener: &str, protocol: Protocol) -> Arc<Origin> {
    let peer = request.head.header("x-tributary-peer").unwrap_or("quarantine");
    Arc::new(Origin::new(protocol.as_str(), listener.into(), peer.into(), 0))
}

/// The time of receipt, which some event times depend on.
fn received(request: &Request, now: Now) -> Now {
    let time = request.head.header(RECEIVED_HEADER).and_then(|time| time.parse::<Timestamp>().ok());
    let unix = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok()).map_or(now.unix, UnixNanos);
    Now { unix, ..now }
}

/// What became of a request that was tried again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Retried {
    /// Every sink that takes its events has them, and it was removed from the quarantine.
    Delivered(u64),
    /// It still cannot be decoded, and why. It stays.
    Refused(String),
    /// A sink could not write its events, or the file cannot be used. It stays.
    Failed(String),
    /// Not known yet: it is removed when the sinks have its events.
    Pending,
    /// There is no such request.
    Unknown,
}

/// The quarantine of a listener that serves.
#[derive(Debug)]
pub(crate) struct Quarantined {
    directory: PathBuf,
    longest: Duration,
    decoder: Decoder,
    context: ListenerContext,
    /// Held while a request is tried again: each is delivered once.
    one_by_one: tokio::sync::Mutex<()>,
}

impl Quarantined {
    /// `None`: the listener has no quarantine.
    pub(crate) fn of(listener: &ListenerConfig, context: ListenerContext) -> Option<Arc<Quarantined>> {
        let (options, longest) = options(listener).filter(|(options, _)| !options.dir.as_os_str().is_empty())?;
        let directory = options.dir.join(&listener.name);
        let decoder = Decoder::of(listener, &context.memory)?;
        let one_by_one = tokio::sync::Mutex::default();
        Some(Arc::new(Quarantined { directory, longest, decoder, context, one_by_one }))
    }

    /// Its requests, oldest first.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn list(&self) -> io::Result<Vec<Stored>> {
        let directory = self.directory.clone();
        Job::start("quarantine", move || list(&directory))?.await?
    }

    /// Decodes a request again and delivers it. Waits at most as long as a peer does; what is not done by then continues.
    pub(crate) async fn retry(self: Arc<Self>, id: String) -> Retried {
        let longest = self.longest;
        let tasks = self.context.tasks.clone();
        match timeout(longest, tasks.spawn(self.deliver(id))).await {
            Ok(Ok(retried)) => retried,
            Ok(Err(error)) => Retried::Failed(format!("a bug of ours: {error}")),
            Err(_) => Retried::Pending,
        }
    }

    async fn deliver(self: Arc<Self>, id: String) -> Retried {
        let _one = self.one_by_one.lock().await;
        let delivery = self.context.sender.delivery();
        let (runtime, quarantined) = (Handle::current(), self.clone());
        let decoded = Job::start("quarantine", move || {
            let Quarantined { directory, decoder, context: ListenerContext { counters, clock, .. }, .. } =
                &*quarantined;
            let unreadable = |error: io::Error| Retried::Failed(error.to_string());
            let stored = find(directory, &id).map_err(unreadable)?.ok_or(Retried::Unknown)?;
            let request = stored.read().map_err(unreadable)?;
            let refused = Retried::Refused;
            decoder.check(&request, counters.name(), counters.protocol(), clock.now()).map_err(refused)?;
            let mut events = 0;
            let mut send = |batch: Batch| {
                events += batch.len() as u64;
                runtime.block_on(delivery.send(batch));
            };
            decoder.decode(request, counters, clock.now(), &mut send).map_err(refused)?;
            Ok((delivery, events, stored.path))
        });
        let decoded = match decoded {
            Ok(job) => job.await,
            Err(error) => Err(error),
        };
        let (delivery, events, path) = match decoded {
            Ok(Ok(decoded)) => decoded,
            Ok(Err(retried)) => return retried,
            Err(error) => return Retried::Failed(error.to_string()),
        };
        if delivery.outcome().await != DeliveryOutcome::Written {
            return Retried::Failed("a sink could not write its events".to_owned());
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Retried::Failed(format!("its events are delivered, but {} cannot be removed: {error}", path.display()))
            }
            _ => Retried::Delivered(events),
        }
    }
}

/// The quarantine of a listener whose protocol has requests or messages, and how long delivering one may take.
pub(crate) fn options(listener: &ListenerConfig) -> Option<(&QuarantineOptions, Duration)> {
    match &listener.protocol {
        ProtocolOptions::DatadogAgent(_, http)
        | ProtocolOptions::Endless(_, _, http)
        | ProtocolOptions::Zico(_, _, http)
        | ProtocolOptions::Otlp(_, http) => Some((&http.quarantine, http.delivery_timeout)),
        ProtocolOptions::Nats(options) => Some((&options.quarantine, options.ack_wait)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_only_a_file_of_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("desktops");
        fs::create_dir(&inner).unwrap();
        let text = "PUT /3/x HTTP/1.1\r\nX-Tributary-Reason: at 1: no\r\ncontent-length: 2\r\n\r\nab";
        for path in [directory.path().join("secret.http"), inner.join("00001-000001.http"), inner.join("half.part")] {
            fs::write(path, text).unwrap();
        }
        let [stored] = list(&inner).unwrap().try_into().unwrap();
        assert_eq!(
            (stored.id.as_str(), stored.reason(), stored.bytes),
            ("00001-000001", "at 1: no", text.len() as u64)
        );
        assert_eq!(&stored.read().unwrap().body[..], b"ab");
        assert_eq!(find(&inner, "00001-000001").unwrap(), Some(stored));
        for id in ["", "..", "../secret", "/etc/passwd", "secret", "half", "00001-000001.http"] {
            assert_eq!(find(&inner, id).unwrap(), None, "{id}");
        }
        assert_eq!(list(&inner.join("none")).unwrap(), []);
    }
}
