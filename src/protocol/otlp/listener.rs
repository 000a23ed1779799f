//! What the requests of a listener share.

use std::sync::Arc;

use tributary_event::RecentResources;
use tributary_memory::MemoryBudget;
use tributary_protocol::repeats::Repeats;

use super::options::Options;
use super::record::RecordLimits;

/// What the requests of a listener share.
#[derive(Debug)]
pub(super) struct OtlpListener {
    pub(super) options: Options,
    pub(super) memory: Arc<MemoryBudget>,
    pub(super) repeats: Arc<Repeats>,
    pub(super) resources: Arc<RecentResources>,
}

impl OtlpListener {
    pub(super) fn new(options: Options, memory: &Arc<MemoryBudget>) -> OtlpListener {
        let repeats = Arc::new(Repeats::new(options.repeat_time, options.max_repeats));
        OtlpListener { memory: memory.clone(), repeats, resources: Arc::default(), options }
    }

    pub(super) fn limits(&self) -> RecordLimits {
        let max_text_bytes = usize::try_from(self.options.max_text_bytes).unwrap_or(usize::MAX);
        let Options { max_attributes, max_frames, .. } = self.options;
        RecordLimits { max_text_bytes, max_attributes, max_frames }
    }
}
