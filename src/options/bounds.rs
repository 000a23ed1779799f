//! What a configuration may take of memory at the worst, told by its components and added up.
//!
//! Each component says beside its options what it may take whatever happens (`declare`). What of `limits.memory_bytes` is
//! left beside their sum is the budget that peers share, and it must be worth something.

use std::fmt::{self, Write};

use super::units::ByteSize;

/// Memory that components may take beside what peers share, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    parts: Vec<Part>,
    /// Beside all of these, peers need so much.
    least: u64,
}

/// What one component may take for one purpose.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Which component, as in the configuration: `sinks.console`.
    pub of: String,
    /// For what, and what it depends on.
    pub what: String,
    /// How much, at most.
    pub bytes: u64,
}

/// Peers always have so much to share, or it is not worth while to start.
const LEAST_FOR_PEERS: u64 = 16 << 20;

impl Bounds {
    /// `of` may take so many bytes for `what`.
    pub fn add(&mut self, of: &str, what: impl Into<String>, bytes: u64) {
        if bytes > 0 {
            self.parts.push(Part { of: of.to_owned(), what: what.into(), bytes });
        }
    }

    /// One message or body of this many bytes must find room in what peers share.
    pub fn need(&mut self, bytes: u64) {
        self.least = self.least.max(bytes);
    }

    /// What components may take, in the order in which they said so.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// All of them together.
    pub fn sum(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// What peers share of a limit of so many bytes.
    pub fn left_of(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.sum())
    }

    /// What peers need at least: room for the longest message that is allowed, and 16 MiB.
    pub fn least_for_peers(&self) -> u64 {
        self.least.max(LEAST_FOR_PEERS)
    }

    /// The least limit that is enough, rounded up to what is easily written.
    pub fn least_limit(&self) -> u64 {
        let least = self.sum().saturating_add(self.least_for_peers());
        least.checked_next_multiple_of(MIB).unwrap_or(u64::MAX)
    }

    /// A line for each part and their sum, without line feeds.
    pub fn lines(&self) -> Vec<String> {
        let row = |bytes: u64, of: &str, what: &str| {
            format!("{:>14}  {of:<width$}  {what}", grouped(bytes), width = self.width()).trim_end().to_owned()
        };
        let mut lines: Vec<_> = self.parts.iter().map(|part| row(part.bytes, &part.of, &part.what)).collect();
        lines.push(row(self.sum(), "together", ""));
        lines.push(row(self.least_for_peers(), "peers", "at least: the longest message, and never less than 16MiB"));
        lines
    }

    /// The table of `check --print`, as comments in TOML.
    pub fn table(&self, limit: u64) -> String {
        let mut table = String::from(
            "\n# Memory at the worst, in bytes. What the process itself takes (its code, its threads) comes on top.\n#\n",
        );
        let mut row = |bytes: u64, of: &str, what: &str| {
            let line = format!("# {:>14}  {of:<width$}  {what}", grouped(bytes), width = self.width());
            // Writing into a string does not fail.
            let _ = writeln!(table, "{}", line.trim_end());
        };
        self.parts.iter().for_each(|part| row(part.bytes, &part.of, &part.what));
        row(self.left_of(limit), "peers", "what is left for connections, and for what they send and make us remember");
        row(self.sum().saturating_add(self.left_of(limit)), "together", "limits.memory_bytes");
        table
    }

    fn width(&self) -> usize {
        self.parts.iter().map(|part| part.of.len()).max().unwrap_or(0).max("together".len())
    }
}

/// A size in words, for what a part depends on.
pub fn size(bytes: u64) -> impl fmt::Display {
    ByteSize(bytes)
}

/// A number with its thousands apart.
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
    fn the_least_limit_is_the_sum_and_room_for_the_longest_message() {
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
        let table = bounds().table(10 << 20);
        let expected = "
# Memory at the worst, in bytes. What the process itself takes (its code, its threads) comes on top.
#
#      8,388,608  sinks.a   its queue
#          1,000  admin     connections
#      2,096,152  peers     what is left for connections, and for what they send and make us remember
#     10,485,760  together  limits.memory_bytes
";
        assert_eq!(table, expected);
    }
}
