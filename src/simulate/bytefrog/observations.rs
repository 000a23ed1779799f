//! What an agent observes of its collector.

use super::configuration::Configuration;

/// Observations of an agent about its collector, beside harm.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Observations {
    /// The last configuration received.
    pub configuration: Option<Configuration>,
    /// The number of reads that it took. More than one aborts the JVM of a version 1 agent. The network may split what
    /// was written in one piece, so this is not counted as harm.
    pub configuration_reads: u32,
    /// Whether the collector stopped it.
    pub stopped: bool,
    /// Whether the control connection was lost while the program was traced. The agent still sends everything.
    pub control_lost: bool,
    /// Numbered events that were not sent: dropped on purpose (`Options::gaps`), or in a buffer that was returned too late
    /// (`Options::late_buffer`).
    pub lost_events: u64,
    /// Whether a thread returned its buffer after the data connections had closed.
    pub has_late_buffer: bool,
}
