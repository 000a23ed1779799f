//! The workloads of the benches: wire bytes of each protocol, and the session or exchange that decodes them.
//!
//! The work is the same in every process: nothing is random, and no clock is read.
#![allow(missing_docs, clippy::unwrap_used, reason = "the inputs are constant")]
#![forbid(unsafe_code)]

pub mod bytefrog;
pub mod datadog;
pub mod datadog_agent;
pub mod endless;
pub mod otlp;
pub mod rbkit;
pub mod zico;
pub mod zico_packets;

use std::sync::Arc;
use std::time::Duration;

use tributary_driver::decode::Offline;
use tributary_event::{Batch, Origin, UnixNanos};
use tributary_memory::MemoryBudget;
use tributary_pipeline::accounting::ListenerCounters;
use tributary_protocol::{End, Now, Protocol, Session};
use tributary_simulate::datadog_agent::TracerDialect;
use tributary_simulate::otlp::OtlpDialect;
use tributary_zico::wire::ZicoDialect;

/// Events of a generated workload.
pub const EVENTS: u64 = 20_000;
/// The size of reads from a busy socket.
const PIECE_BYTES: usize = 256 * 1024;
pub const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// Bytes that a peer sends, and how they are decoded.
pub struct Workload {
    pub name: &'static str,
    pub wire_bytes: u64,
    /// Events that the daemon decodes from the bytes.
    pub events: u64,
    decode: Box<Decode>,
    /// Parses the bytes as the decoder does, without making events, and returns the number of items. `None` for `bytefrog`,
    /// whose parsing cannot be separated.
    pub read: Option<Box<dyn Fn() -> usize>>,
}

type Decode = dyn Fn(&Arc<ListenerCounters>, &mut dyn FnMut(Batch));

impl Workload {
    fn new(
        name: &'static str,
        wire_bytes: usize,
        decode: impl Fn(&Arc<ListenerCounters>, &mut dyn FnMut(Batch)) + 'static,
    ) -> Self {
        let (mut events, counters) = (0, counters(name));
        decode(&counters, &mut |batch| events += batch.events().count() as u64);
        assert!(events > 0 && counters.totals().lost() == 0, "{name}: {:?}", counters.totals());
        Workload { name, wire_bytes: wire_bytes as u64, events, decode: Box::new(decode), read: None }
    }

    fn read_by(self, read: impl Fn() -> usize + 'static) -> Self {
        assert!(read() > 0);
        Workload { read: Some(Box::new(read)), ..self }
    }

    /// The same under another name, which must begin with that of its protocol.
    pub fn named(self, name: &'static str) -> Self {
        Workload { name, ..self }
    }

    /// Decodes and normalizes all bytes, as from a new connection.
    pub fn decode(&self, take: &mut dyn FnMut(Batch)) {
        (self.decode)(&counters(self.name), take);
    }

    pub fn batches(&self) -> Vec<Batch> {
        let mut batches = Vec::new();
        self.decode(&mut |batch| batches.push(batch));
        batches
    }
}

/// One workload for each protocol, and for each form with a different cost, all with the default options.
pub fn all() -> Vec<Workload> {
    vec![
        datadog::spans(),
        datadog_agent::traces(TracerDialect::V04),
        datadog_agent::traces(TracerDialect::V05),
        datadog_agent::traces(TracerDialect::V10),
        datadog_agent::traces(TracerDialect::Profiles),
        otlp::records("otlp traces", OtlpDialect::Traces),
        otlp::records("otlp logs", OtlpDialect::Logs),
        otlp::records("otlp metrics", OtlpDialect::Metrics),
        otlp::records("otlp profiles", OtlpDialect::Profiles),
        bytefrog::calls("bytefrog v1", 1, Default::default()),
        bytefrog::calls("bytefrog v4", 4, Default::default()),
        rbkit::events(),
        rbkit::heap_dump(),
        endless::upload_in_gzip(),
        zico::trace(ZicoDialect::Gen1),
        zico::trace(ZicoDialect::Gen2),
        zico_packets::traces(),
    ]
}

/// Decodes all bytes of one connection.
fn connection(session: impl Session, counters: &Arc<ListenerCounters>, wire: &[u8], take: &mut dyn FnMut(Batch)) {
    let mut offline = Offline::new(session, origin(counters.protocol()), Arc::clone(counters));
    for piece in wire.chunks(PIECE_BYTES) {
        offline.feed(piece, NOW, &mut |batch| take(batch));
    }
    offline.finish(End::Closed, NOW, &mut |batch| take(batch));
}

fn origin(protocol: Protocol) -> Arc<Origin> {
    Arc::new(Origin::new(protocol.as_str(), "bench".into(), "127.0.0.1:40112".into(), 1))
}

fn counters(name: &str) -> Arc<ListenerCounters> {
    let protocols = Protocol::ALL.into_iter().filter(|protocol| name.starts_with(protocol.as_str()));
    // `datadog_agent` begins with the name of another one.
    let protocol = protocols.max_by_key(|protocol| protocol.as_str().len());
    ListenerCounters::new("bench".into(), protocol.unwrap())
}

fn budget() -> Arc<MemoryBudget> {
    MemoryBudget::new(256 << 20)
}
