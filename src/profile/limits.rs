//! The limits of profiles that protocols make while events arrive.

use std::time::Duration;

use tributary_options::options;

options! {
    /// The limits of a profile of calls.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ProfileLimits {
        /// The time that a profile covers.
        pub interval: Duration as "profile_interval" =
            duration(Duration::from_secs(10), Duration::from_secs(1)..=Duration::from_secs(3600)),
        /// Different stacks of one process and interval. Further ones are added to their callers.
        pub max_nodes: usize = count(262_144, 1..=16_777_216),
        /// The calls of a stack. Deeper ones are added to their callers.
        pub max_depth: u32 = count(512, 1..=65_536),
        /// Output of the profile of one process and interval, approximately. The sums of further stacks are added to those of
        /// their callers. So they are when `amplification` does not permit as much for what was received in the interval.
        pub max_bytes: u64 as "max_profile_bytes" = size(64 << 20, 64 << 10..=1 << 40),
    }
}
