//! The sums of an interval that has ended, one after the other.

use super::tree::{ROOT, Tree};

/// The two quantities of calls, as columns of a tree.
pub const WALL: usize = 0;
#[allow(missing_docs)]
pub const CALLS: usize = 1;

/// The type and unit of the samples of a column.
pub const fn sample_of(column: usize) -> (&'static str, &'static str) {
    if column == WALL { ("wall", "nanoseconds") } else { ("calls", "count") }
}

/// A tree whose sums are written: each node that has one, callers first.
#[derive(Debug)]
pub struct Interval {
    /// The tree.
    pub tree: Tree,
    /// The next node and column.
    node: u32,
    column: usize,
}

impl Interval {
    /// From the root on.
    pub fn new(tree: Tree) -> Interval {
        Interval { tree, node: ROOT, column: WALL }
    }
}

impl Iterator for Interval {
    /// A node and a column with a sum.
    type Item = (u32, usize);

    fn next(&mut self) -> Option<(u32, usize)> {
        while (self.node as usize) < self.tree.nodes().len() {
            let (node, column) = (self.node, self.column);
            (self.node, self.column) = if column == WALL { (node, CALLS) } else { (node + 1, WALL) };
            if self.tree.nodes()[node as usize].own[column] > 0 {
                return Some((node, column));
            }
        }
        None
    }
}
