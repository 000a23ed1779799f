//! The limits of profiles that protocols make while events arrive.

use std::time::Duration;

use tributary_options::Section;

/// The limits of a profile of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProfileLimits {
    /// The time that a profile covers. 10 s. 1 s to 1 h.
    pub interval: Duration,
    /// Different stacks of one process and interval. Further ones are added to their callers. 262,144. At least 1.
    pub max_nodes: usize,
    /// The calls of a stack. Deeper ones are added to their callers. 512. 1 to 65,536.
    pub max_depth: u32,
    /// Output of the profile of one process and interval, approximately. The sums of further stacks are added to those of their
    /// callers. 64 MiB. 64 KiB to 1 TiB.
    pub max_bytes: u64,
}

impl ProfileLimits {
    /// Reads the options. Errors are added to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = ProfileLimits::default();
        let intervals = Duration::from_secs(1)..=Duration::from_secs(3600);
        ProfileLimits {
            interval: section.duration("profile_interval", default.interval, intervals),
            max_nodes: section.count("max_nodes", default.max_nodes, 1..=16_777_216),
            max_depth: section.count("max_depth", default.max_depth as usize, 1..=65_536) as u32,
            max_bytes: section.size("max_profile_bytes", default.max_bytes, 64 << 10..=1 << 40),
        }
    }
}

impl Default for ProfileLimits {
    fn default() -> Self {
        ProfileLimits { interval: Duration::from_secs(10), max_nodes: 262_144, max_depth: 512, max_bytes: 64 << 20 }
    }
}
