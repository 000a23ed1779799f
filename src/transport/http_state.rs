//! What the connections, requests and ticks of one HTTP listener share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::decode_buffers::DecodeBuffers;
use super::options::HttpOptions;
use super::quarantine::Quarantine;
use super::standstill::Standstill;

/// What every connection may send of a body, whatever the others do.
pub(super) const SMALL_BODY_BYTES: u64 = 16 << 10;

/// What all connections of a listener share.
pub(super) struct HttpState<E> {
    pub(super) exchange: E,
    pub(super) options: HttpOptions,
    /// One for each request that is decoded and delivered.
    pub(super) permits: Arc<Semaphore>,
    pub(super) quarantine: Option<Quarantine>,
    pub(super) decode_buffers: DecodeBuffers,
    pub(super) standstill: Standstill,
}
