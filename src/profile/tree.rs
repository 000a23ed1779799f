//! A bounded tree of calls, with two sums of each call path.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The root, which is no call.
pub const ROOT: u32 = 0;

/// A call path, with the sums of what ended in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallNode {
    /// The calling node.
    pub caller: u32,
    /// The called frame; the user of the tree gives it a meaning.
    pub frame: u32,
    /// The number of nodes between the root and this one; 0 for the root.
    pub depth: u32,
    /// Calls below it were folded into it, because the tree is full or too deep.
    pub is_incomplete: bool,
    /// Two sums of this path alone, without its callees.
    pub own: [u64; 2],
    /// The node on the path to it that is [`Tree::new`]'s `base` calls deep, or itself if it is not deeper.
    pub base: u32,
    /// The frame and the node of the callee that was used last; node 0: none.
    recent: (u32, u32),
}

/// A tree of calls. Each node stands after its caller.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<CallNode>,
    callees: HashMap<(u32, u32), u32, RandomState>,
    max_nodes: usize,
    max_depth: u32,
    base: u32,
}

impl Tree {
    /// An empty tree of at most `max_nodes` call paths, each of at most `max_depth` calls. The first `base` frames of a path are
    /// no calls: they name what the calls belong to, e.g. a thread.
    pub fn new(max_nodes: usize, max_depth: u32, base: u32) -> Tree {
        // Node numbers have 32 bits.
        let max_nodes = max_nodes.min(u32::MAX as usize - 1);
        Tree { nodes: vec![CallNode::default()], callees: HashMap::default(), max_nodes, max_depth, base }
    }

    /// Sets the most call paths. Those that are there stay.
    pub fn set_max_nodes(&mut self, max_nodes: usize) {
        self.max_nodes = max_nodes.min(u32::MAX as usize - 1);
    }

    /// Takes the sums of all nodes that have some, in the order of the nodes.
    pub fn take_sums(&mut self) -> Vec<(u32, [u64; 2])> {
        let with_sums = self.nodes.iter_mut().enumerate().filter(|(_, node)| node.own != [0; 2]);
        with_sums.map(|(at, node)| (at as u32, std::mem::take(&mut node.own))).collect()
    }

    /// The node of a call by `caller`. When there is no space for it, the call is folded into its caller: the result is
    /// `caller`, which is marked.
    #[inline]
    pub fn callee(&mut self, caller: u32, frame: u32) -> u32 {
        let (recent, node) = self.nodes[caller as usize].recent;
        if node != ROOT && recent == frame {
            return node;
        }
        self.other_callee(caller, frame)
    }

    fn other_callee(&mut self, caller: u32, frame: u32) -> u32 {
        let node = match self.callees.get(&(caller, frame)) {
            Some(node) => *node,
            None => {
                let depth = self.nodes[caller as usize].depth + 1;
                if self.nodes.len() > self.max_nodes || depth > self.max_depth {
                    self.nodes[caller as usize].is_incomplete = true;
                    return caller;
                }
                let node = self.nodes.len() as u32;
                let base = if depth <= self.base { node } else { self.nodes[caller as usize].base };
                self.nodes.push(CallNode { caller, frame, depth, base, ..CallNode::default() });
                self.callees.insert((caller, frame), node);
                node
            }
        };
        self.nodes[caller as usize].recent = (frame, node);
        node
    }

    /// Adds to one of the sums of a node.
    #[inline]
    pub fn add(&mut self, node: u32, column: usize, value: u64) {
        let own = &mut self.nodes[node as usize].own[column];
        *own = own.saturating_add(value);
    }

    /// Adds to a sum of a node for a call that is folded into it.
    pub fn fold(&mut self, node: u32, column: usize, value: u64) {
        self.nodes[node as usize].is_incomplete = true;
        self.add(node, column, value);
    }

    /// Every node, the root first, each after its caller.
    pub fn nodes(&self) -> &[CallNode] {
        &self.nodes
    }

    /// The frames of a node, innermost first.
    pub fn frames(&self, node: u32) -> impl Iterator<Item = u32> {
        let mut at = node;
        std::iter::from_fn(move || {
            let node = self.nodes[at as usize];
            let frame = (at != ROOT).then_some(node.frame);
            at = node.caller;
            frame
        })
    }

    /// The calls of a path under another base.
    pub fn moved(&mut self, node: u32, under: u32) -> u32 {
        let below = self.nodes[node as usize].depth.saturating_sub(self.base);
        let mut frames: Vec<u32> = self.frames(node).take(below as usize).collect();
        frames.reverse();
        frames.into_iter().fold(under, |caller, frame| self.callee(caller, frame))
    }

    /// Replaces the tree by one that has only these nodes and their callers, without sums, and renumbers them. Returns the tree
    /// as it was.
    pub fn restart<'a>(&mut self, kept: impl Iterator<Item = &'a mut u32>) -> Tree {
        let mut next = Tree::new(self.max_nodes, self.max_depth, self.base);
        let mut numbers: HashMap<u32, u32, RandomState> = HashMap::default();
        numbers.insert(ROOT, ROOT);
        let mut missing = Vec::new();
        for node in kept {
            let mut at = *node;
            while !numbers.contains_key(&at) {
                missing.push(at);
                at = self.nodes[at as usize].caller;
            }
            let mut number = numbers[&at];
            while let Some(old) = missing.pop() {
                number = next.callee(number, self.nodes[old as usize].frame);
                next.nodes[number as usize].is_incomplete = self.nodes[old as usize].is_incomplete;
                numbers.insert(old, number);
            }
            *node = number;
        }
        std::mem::replace(self, next)
    }

    /// Adds sums to those of callers, so that no total changes, until the samples of the others have at most `most` bytes in the
    /// output. Each sum of a path is a sample, of `sample_bytes` and of `frame_bytes` of each node of the path. Sums of the paths
    /// that were added first stay.
    pub fn fold_to(&mut self, most: u64, sample_bytes: u64, mut frame_bytes: impl FnMut(&CallNode) -> u64) -> Folded {
        let mut samples: Vec<u64> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let bytes = samples.get(node.caller as usize).map(|caller| caller.saturating_add(frame_bytes(node)));
            samples.push(bytes.unwrap_or(sample_bytes));
        }
        let has_sum = |node: &CallNode, column: usize| node.own[column] > 0;
        let of_all = self
            .nodes
            .iter()
            .zip(&samples)
            .flat_map(|(node, bytes)| COLUMNS.into_iter().filter(|column| has_sum(node, *column)).map(|_| *bytes));
        let bytes = of_all.fold(0u64, u64::saturating_add);
        if bytes <= most {
            return Folded { bytes, sums: 0 };
        }
        // The node that takes the sums of a node: itself, or one nearer to the root.
        let mut into: Vec<[u32; 2]> = (0..self.nodes.len() as u32).map(|node| [node; 2]).collect();
        let mut folded = Folded { bytes: 0, sums: 0 };
        for node in 0..self.nodes.len() as u32 {
            for column in COLUMNS {
                let value = std::mem::take(&mut self.nodes[node as usize].own[column]);
                let mut target = node;
                // A node that has a sum has its sample already; the root has one in any case.
                while value > 0 && target != ROOT && !has_sum(&self.nodes[target as usize], column) {
                    if folded.bytes.saturating_add(samples[target as usize]) <= most {
                        break;
                    }
                    into[target as usize][column] = self.nodes[target as usize].caller;
                    target = taker(&mut into, target, column);
                }
                if value > 0 && !has_sum(&self.nodes[target as usize], column) {
                    folded.bytes = folded.bytes.saturating_add(samples[target as usize]);
                }
                if target == node {
                    self.add(node, column, value);
                } else {
                    self.fold(target, column, value);
                    folded.sums += 1;
                }
            }
        }
        folded
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<CallNode>() + self.callees.capacity() * (size_of::<((u32, u32), u32)>() + 1)
    }
}

/// The columns of the sums.
const COLUMNS: [usize; 2] = [0, 1];

/// What [`Tree::fold_to`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folded {
    /// Bytes of the samples in the output, approximately.
    pub bytes: u64,
    /// The sums that were added to those of callers.
    pub sums: u64,
}

/// The node that takes the sums of `node`. Later searches take half as many steps.
fn taker(into: &mut [[u32; 2]], mut node: u32, column: usize) -> u32 {
    while into[node as usize][column] != node {
        let next = into[node as usize][column];
        into[node as usize][column] = into[next as usize][column];
        node = into[node as usize][column];
    }
    node
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(tree: &mut Tree, frames: &[u32]) -> u32 {
        frames.iter().fold(ROOT, |caller, frame| tree.callee(caller, *frame))
    }

    #[test]
    fn equal_paths_have_one_node_and_calls_without_space_fold_into_their_callers() {
        let mut tree = Tree::new(4, 3, 0);
        let abc = path(&mut tree, &[1, 2, 3]);
        assert_eq!(path(&mut tree, &[1, 2, 3]), abc);
        assert_eq!(path(&mut tree, &[1, 2, 3, 4]), abc, "too deep");
        assert!(tree.nodes()[abc as usize].is_incomplete);
        let ab = path(&mut tree, &[1, 2]);
        assert!(!tree.nodes()[ab as usize].is_incomplete);
        let d = path(&mut tree, &[4]);
        assert_eq!(path(&mut tree, &[4, 5, 6]), d, "full");
        assert_eq!(path(&mut tree, &[7]), ROOT);
        assert!(tree.nodes()[ROOT as usize].is_incomplete);
        assert_eq!(tree.nodes().len(), 5);
        assert_eq!(tree.frames(abc).collect::<Vec<_>>(), [3, 2, 1]);
    }

    proptest! {
        /// Whatever is folded, each total stays, and what is left fits, but for a sample of the root for each column.
        #[test]
        fn folded_sums_are_those_of_callers_and_no_total_changes(
            paths in prop::collection::vec((prop::collection::vec(0u32..4, 1..8), 0u64..5, 0u64..5), 1..80),
            most in 0u64..4000,
        ) {
            let mut tree = Tree::new(1000, 100, 0);
            for (frames, wall, calls) in &paths {
                let node = path(&mut tree, frames);
                tree.add(node, 0, *wall);
                tree.add(node, 1, *calls);
            }
            let sums = |tree: &Tree, under: u32| {
                let is_under = |node: u32| {
                    let mut at = node;
                    while at > under {
                        at = tree.nodes()[at as usize].caller;
                    }
                    at == under
                };
                let of = (0..tree.nodes().len() as u32).filter(|node| is_under(*node));
                of.fold([0, 0], |[a, b], node| [a + tree.nodes()[node as usize].own[0], b + tree.nodes()[node as usize].own[1]])
            };
            let bytes = |tree: &Tree| {
                let sample = |node: &CallNode| 10 + u64::from(node.depth) * 7;
                tree.nodes().iter().map(|node| sample(node) * COLUMNS.map(|column| u64::from(node.own[column] > 0)).iter().sum::<u64>()).sum::<u64>()
            };
            let (all, before) = (bytes(&tree), (0..tree.nodes().len() as u32).map(|node| sums(&tree, node)).collect::<Vec<_>>());
            let folded = tree.fold_to(most, 10, |_| 7);
            prop_assert_eq!((folded.bytes, folded.sums == 0), (bytes(&tree), all <= most));
            prop_assert!(folded.bytes <= most + 20);
            prop_assert_eq!(sums(&tree, ROOT), before[ROOT as usize]);
            // A sum moves towards the root, so no subtree gets more, and what has lost something is marked above it.
            for (node, before) in before.iter().enumerate() {
                let after = sums(&tree, node as u32);
                prop_assert!(after[0] <= before[0] && after[1] <= before[1]);
            }
            if folded.sums > 0 {
                prop_assert!(tree.nodes().iter().any(|node| node.is_incomplete && node.own != [0, 0]));
            }
        }
    }

    #[test]
    fn a_million_sums_are_folded_in_linear_time_and_equal_paths_first_come_stay() {
        let mut tree = Tree::new(300_000, 600, 0);
        let deep = (0..511).fold(ROOT, |caller, frame| tree.callee(caller, frame));
        for leaf in 0..250_000 {
            let node = tree.callee(deep, 1000 + leaf);
            tree.add(node, 0, 3);
            tree.add(node, 1, 1);
        }
        let folded = tree.fold_to(1 << 20, 256, |_| 50);
        // The root has a sample for each quantity in any case.
        assert!(folded.bytes <= (1 << 20) + 512 && folded.sums > 499_900, "{folded:?}");
        let first = tree.callee(deep, 1000);
        assert_eq!(tree.nodes()[first as usize].own, [3, 1]);
        let own = tree.nodes().iter().fold([0, 0], |[a, b], node| [a + node.own[0], b + node.own[1]]);
        assert_eq!(own, [750_000, 250_000]);
    }

    #[test]
    fn a_restart_keeps_paths_of_open_calls_and_no_sum() {
        let mut tree = Tree::new(100, 100, 1);
        let (mut abc, mut abd, e) = (path(&mut tree, &[1, 2, 3]), path(&mut tree, &[1, 2, 4]), path(&mut tree, &[5]));
        tree.add(abc, 0, 7);
        tree.add(e, 1, 9);
        let old = tree.restart([&mut abc, &mut abd].into_iter());
        assert_eq!((old.nodes().len(), old.nodes()[e as usize].own), (6, [0, 9]));
        assert_eq!(tree.nodes().len(), 5);
        assert_eq!(tree.frames(abc).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(tree.frames(abd).collect::<Vec<_>>(), [4, 2, 1]);
        assert!(tree.nodes().iter().all(|node| node.own == [0, 0]));
        assert_eq!(path(&mut tree, &[1, 2, 4]), abd);
        let other = path(&mut tree, &[9]);
        let moved = tree.moved(abd, other);
        assert_eq!(tree.frames(moved).collect::<Vec<_>>(), [4, 2, 9]);
        assert_eq!((tree.nodes()[moved as usize].base, tree.nodes()[other as usize].base), (other, other));
    }
}
