//! The most memory that a configuration can use, as the sum of what its components declare.
//!
//! Each component declares its reserved memory beside its options (`declare`). Peers share the rest of
//! `limits.memory_bytes`, which must not be too little.

use std::fmt::{self, Write};

use super::units::ByteSize;

/// Reserved memory of components, in bytes, without the memory that peers share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    parts: Vec<ReservedMemory>,
    /// The least memory for peers.
    least: u64,
}

/// Reserved memory of one component for one purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct ReservedMemory {
    /// The component, as in the configuration: `sinks.console`.
    pub of: String,
    /// The purpose, and the options that the size depends on.
    pub what: String,
    /// The most bytes.
    pub bytes: u64,
}

/// A configuration that leaves less memory for peers is invalid.
const LEAST_FOR_PEERS: u64 = 16 << 20;

impl Bounds {
    /// Reserves `bytes` for the purpose `what` of the component `of`.
    pub fn add(&mut self, of: &str, what: impl Into<String>, bytes: u64) {
        if bytes > 0 {
            self.parts.push(ReservedMemory { of: of.to_owned(), what: what.into(), bytes });
        }
    }

    /// The memory that peers share must hold one message or body of this size.
    pub fn need(&mut self, bytes: u64) {
        self.least = self.least.max(bytes);
    }

    /// The reserved memory, in the order of the declarations.
    pub fn parts(&self) -> &[ReservedMemory] {
        &self.parts
    }

    /// The sum of the reserved memory.
    pub fn sum(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// The memory that peers share if the limit is `limit` bytes.
    pub fn left_of(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.sum())
    }

    /// The least memory for peers: the longest message that is allowed, and at least 16 MiB.
    pub fn least_for_peers(&self) -> u64 {
        self.least.max(LEAST_FOR_PEERS)
    }

    /// The least limit that is enough, rounded up to a MiB.
    pub fn least_limit(&self) -> u64 {
        let least = self.sum().saturating_add(self.least_for_peers());
        least.checked_next_multiple_of(MIB).unwrap_or(u64::MAX)
    }

    /// One line per part, then the sum, without line feeds.
    pub fn lines(&self) -> Vec<String> {
        let width = self.width();
        let row = |bytes: u64, of: &str, what: &str| {
            format!("{:>14}  {of:<width$}  {what}", grouped(bytes)).trim_end().to_owned()
        };
        let mut lines: Vec<_> = self.parts.iter().map(|part| row(part.bytes, &part.of, &part.what)).collect();
        lines.push(row(self.sum(), "sum", ""));
        lines.push(row(self.least_for_peers(), "peers", "minimum: the longest message, and at least 16MiB"));
        lines
    }

    /// The table of `check --print`, as comments in TOML. `source` says where the limit comes from.
    pub fn table(&self, limit: u64, source: &str) -> String {
        let mut table = String::from(
            "\n# The most memory, in bytes, without that of the process itself (its code, its threads).\n#\n",
        );
        let width = self.width();
        let mut row = |bytes: u64, of: &str, what: &str| {
            let line = format!("# {:>14}  {of:<width$}  {what}", grouped(bytes));
            // Writing into a string does not fail.
            let _ = writeln!(table, "{}", line.trim_end());
        };
        self.parts.iter().for_each(|part| row(part.bytes, &part.of, &part.what));
        row(self.left_of(limit), "peers", "the rest: connections, their messages, and state that is kept for them");
        row(self.sum().saturating_add(self.left_of(limit)), "sum", source);
        table
    }

    fn width(&self) -> usize {
        self.parts.iter().map(|part| part.of.len()).max().unwrap_or(0).max("peers".len())
    }
}

/// A size with its unit, for the purpose of a part.
pub fn size(bytes: u64) -> impl fmt::Display {
    ByteSize(bytes)
}

/// A number with commas between its thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

const MIB: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        let mut bounds = Bounds::default();
        bounds.add("sinks.a", "its queue", 8 << 20);
        bounds.add("sinks.a", "nothing", 0);
        bounds.add("admin", "connections", 1_000);
        bounds
    }

    #[test]
    fn the_least_limit_is_the_sum_plus_the_longest_message() {
        let mut bounds = bounds();
        assert_eq!(bounds.sum(), (8 << 20) + 1_000);
        assert_eq!(bounds.least_limit(), 25 << 20);
        bounds.need(1 << 10);
        assert_eq!(bounds.least_limit(), 25 << 20);
        bounds.need(32 << 20);
        assert_eq!(bounds.least_limit(), 41 << 20);
        bounds.add("x", "too much", u64::MAX);
        assert_eq!((bounds.sum(), bounds.left_of(1 << 40)), (u64::MAX, 0));
    }

    #[test]
    fn the_table_adds_up_to_the_limit() {
        let table = bounds().table(10 << 20, "limits.memory_bytes");
        let expected = "
# The most memory, in bytes, without that of the process itself (its code, its threads).
#
#      8,388,608  sinks.a  its queue
#          1,000  admin    connections
#      2,096,152  peers    the rest: connections, their messages, and state that is kept for them
#     10,485,760  sum      limits.memory_bytes
";
        assert_eq!(table, expected);
    }
}
