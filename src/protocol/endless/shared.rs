//! What all requests of one listener share.

use std::sync::Arc;

use crate::memory::MemoryBudget;

use super::dedup::DedupCache;
use super::options::Options;

/// Options, the memory of delivered uploads, and the memory budget.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    pub(super) dedup: DedupCache,
    pub(super) budget: Arc<MemoryBudget>,
}

impl Shared {
    pub(super) fn new(options: Options, budget: &Arc<MemoryBudget>) -> Self {
        Shared { dedup: DedupCache::new(options.dedup), options, budget: budget.clone() }
    }
}
