//! How much memory the daemon may use: what `limits.memory_bytes` says, or what the configuration needs.

use super::Config;
use tributary_options::bounds::size;
use tributary_options::{ByteSize, Section};

/// What peers share beside what the configuration needs, if `limits.memory_bytes` is not set.
const FOR_PEERS: u64 = 256 << 20;
/// What the process takes beside `limits.memory_bytes`: its code, its threads, what the allocator has not given back yet.
const OF_THE_PROCESS: u64 = 16 << 20;

impl Config {
    /// The most memory that the daemon uses, without that of the process itself: `limits.memory_bytes`. If that is not set:
    /// what the configuration needs ([`Config::bounds`]) and 256 MiB for peers, at most three quarters of what the system
    /// allows, and at least what the configuration cannot do without.
    pub fn memory_limit(&self) -> u64 {
        self.limits.memory_bytes.unwrap_or_else(|| {
            let bounds = self.bounds();
            let least = bounds.least_limit();
            let wanted = bounds.sum().saturating_add(FOR_PEERS.max(bounds.least_for_peers()));
            let most = self.limits.system.map_or(u64::MAX, |system| system.share());
            wanted.next_multiple_of(MIB).min(most).max(least)
        })
    }

    /// The table of `check --print`: what the limit consists of, as comments in TOML.
    pub fn memory_table(&self) -> String {
        let (limit, bounds) = (self.memory_limit(), self.bounds());
        let share = self.limits.system.filter(|system| system.share() == limit);
        let source = match (self.limits.memory_bytes, share) {
            (Some(_), _) => "limits.memory_bytes".to_owned(),
            (None, Some(system)) => format!("limits.memory_bytes, not set: three quarters of {}", system.in_words()),
            (None, None) if limit == bounds.least_limit() => "limits.memory_bytes, not set: the least sum".to_owned(),
            (None, None) => format!("limits.memory_bytes, not set: {} for peers", size(FOR_PEERS)),
        };
        bounds.table(limit, &source)
    }

    /// A sentence if the system kills the daemon before it reaches its limit.
    pub fn memory_warning(&self) -> Option<String> {
        let (limit, system) = (self.memory_limit(), self.limits.system?);
        let (shown, process) = (ByteSize(limit), ByteSize(OF_THE_PROCESS));
        let source =
            if self.limits.memory_bytes.is_some() { "limits.memory_bytes is" } else { "the configuration needs" };
        (limit.saturating_add(OF_THE_PROCESS) > system.bytes).then(|| {
            format!(
                "{source} {shown}, the process itself takes about {process}, and {} is less: when that is used up, the \
                 system kills the daemon, and traced Java programs hang; raise it, set a lower limits.memory_bytes, or \
                 lower what `tributary check --print` lists",
                system.in_words()
            )
        })
    }

    /// Reports a limit that was written and is too low.
    pub(super) fn check_memory(&self, root: &mut Section<'_>) {
        let Some(limit) = self.limits.memory_bytes else { return };
        let bounds = self.bounds();
        let least = bounds.least_limit();
        if limit < least {
            let message = format!("`memory_bytes` is {}: too little for this configuration", size(limit));
            let help = format!("set at least {}, or lower a large item of this list, in bytes:", size(least));
            root.error_together("limits", "memory_bytes", message, help, bounds.lines());
        }
    }
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_memory::{MemoryLimit, SystemMemory};

    fn config(text: &str, system: Option<u64>) -> Config {
        let mut config = Config::parse("t.toml", text).unwrap().config;
        config.limits.system = system.map(|bytes| SystemMemory { bytes, of: MemoryLimit::ControlGroup });
        config
    }

    #[test]
    fn a_limit_that_is_not_set_is_the_sum_and_memory_for_peers_within_what_the_system_allows() {
        let with = |system: Option<u64>| config("", system);
        let sum = with(None).bounds().sum();
        let (least, whole) = (with(None).bounds().least_limit(), (sum + FOR_PEERS).next_multiple_of(MIB));
        assert!(with(None).bounds().left_of(with(None).memory_limit()) >= FOR_PEERS);
        for (system, limit) in
            [(None, whole), (Some(64 << 30), whole), (Some(400 << 20), 300 << 20), (Some(64 << 20), least)]
        {
            assert_eq!(with(system).memory_limit(), limit, "{system:?}");
            let is_warned = system.is_some_and(|system| system < least + OF_THE_PROCESS);
            assert_eq!(with(system).memory_warning().is_some(), is_warned, "{system:?}");
        }
        let table = with(Some(400 << 20)).memory_table();
        let end = "limits.memory_bytes, not set: three quarters of the limit of its control group (400MiB)\n";
        assert!(table.ends_with(end), "{table}");
    }

    #[test]
    fn a_limit_that_was_set_stays_and_is_compared_with_that_of_the_system() {
        let config = config("limits.memory_bytes = \"320MiB\"\n", Some(128 << 20));
        assert_eq!(config.memory_limit(), 320 << 20);
        let warning = config.memory_warning().unwrap();
        assert!(warning.contains("limits.memory_bytes is 320MiB"), "{warning}");
        assert!(warning.contains("the limit of its control group (128MiB) is less"), "{warning}");
    }
}
