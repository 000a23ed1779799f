//! What all requests of one listener share.

use std::fmt;
use std::sync::Arc;

use tributary_memory::MemoryBudget;

use super::dedup::DedupCache;
use super::options::Options;
use super::shared_deliveries::SharedDeliveries;

/// Options, the memory of delivered uploads, and the memory budget.
pub(super) struct SharedExchange {
    pub(super) options: Options,
    pub(super) dedup: DedupCache,
    /// What other daemons have delivered. `None`: they are not asked.
    pub(super) shared_deliveries: Option<Arc<dyn SharedDeliveries>>,
    pub(super) budget: Arc<MemoryBudget>,
}

impl SharedExchange {
    pub(super) fn new(
        options: Options,
        shared_deliveries: Option<Arc<dyn SharedDeliveries>>,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        let dedup = DedupCache::new(options.dedup, shared_deliveries.is_some());
        SharedExchange { dedup, options, shared_deliveries, budget: budget.clone() }
    }
}

impl fmt::Debug for SharedExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}
