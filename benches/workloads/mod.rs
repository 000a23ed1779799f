//! What the benches decode and encode: of each protocol the bytes of a wire, and the session or exchange that reads them.
//!
//! A fixed amount of work, the same in every process: nothing here is random, and no clock is read.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::unwrap_used, reason = "each bench uses a part of it")]

pub mod bytefrog;
pub mod datadog;
pub mod endless;
pub mod rbkit;
pub mod zico;

use std::sync::Arc;
use std::time::Duration;

use tributary::decode::Offline;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::zico::wire::Dialect;
use tributary::protocol::{End, Now, Protocol, Session};

/// Events of a workload that is not recorded.
pub const EVENTS: u64 = 20_000;
/// Pieces as a busy socket gives them.
const PIECE_BYTES: usize = 256 * 1024;
pub const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// Bytes that a peer sends, and what becomes of them.
pub struct Workload {
    pub name: &'static str,
    pub wire_bytes: u64,
    /// What the daemon makes of the bytes.
    pub events: u64,
    decode: Box<Decode>,
    /// Passes over the bytes as the decoder reads them and makes nothing of them; says how many items it met. Of
    /// `bytefrog`, reading cannot be told apart.
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

    /// Decodes and normalizes all of it, as a peer that has just connected.
    pub fn decode(&self, take: &mut dyn FnMut(Batch)) {
        (self.decode)(&counters(self.name), take);
    }

    pub fn batches(&self) -> Vec<Batch> {
        let mut batches = Vec::new();
        self.decode(&mut |batch| batches.push(batch));
        batches
    }
}

/// One for each protocol and each form that costs something else, all with the default options.
pub fn all() -> Vec<Workload> {
    vec![
        datadog::spans(),
        bytefrog::calls("bytefrog v1", 1, Default::default()),
        bytefrog::calls("bytefrog v4", 4, Default::default()),
        rbkit::events(),
        rbkit::heap_dump(),
        endless::upload_in_gzip(),
        zico::trace(Dialect::Gen1),
        zico::trace(Dialect::Gen2),
    ]
}

/// Everything of one connection.
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
    let protocol = Protocol::ALL.into_iter().find(|protocol| name.starts_with(protocol.as_str()));
    ListenerCounters::new("bench".into(), protocol.unwrap())
}

fn budget() -> Arc<MemoryBudget> {
    MemoryBudget::new(256 << 20)
}
