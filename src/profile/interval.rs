//! The sums of an interval that has ended, one after the other.

use super::tree::{CallNode, Folded, ROOT, Tree};

/// The two quantities of calls, as columns of a tree.
pub const WALL: usize = 0;
#[allow(missing_docs)]
pub const CALLS: usize = 1;

/// Bytes of a sample in the output beside the event's own, approximately: its attributes and its value.
pub const SAMPLE_BYTES: u64 = 160;
/// Bytes of a frame beside its text.
pub const FRAME_BYTES: u64 = 40;

/// The type and unit of the samples of a column.
pub const fn sample_of(column: usize) -> (&'static str, &'static str) {
    if column == WALL { ("wall", "nanoseconds") } else { ("calls", "count") }
}

/// A tree whose sums are written: each node that has one, callers first.
#[derive(Debug)]
pub struct Interval {
    /// The tree.
    pub tree: Tree,
    /// The samples, and the sums that were folded so that they are few enough.
    pub folded: Folded,
    /// The next node and column.
    node: u32,
    column: usize,
}

impl Interval {
    /// From the root on, with samples of at most `most` bytes: see [`Tree::fold_to`].
    pub fn new(mut tree: Tree, most: u64, sample_bytes: u64, frame_bytes: impl FnMut(&CallNode) -> u64) -> Interval {
        let folded = tree.fold_to(most, sample_bytes, frame_bytes);
        Interval { tree, folded, node: ROOT, column: WALL }
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
