//! A bounded tree of calls, with two sums of each call path.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The root, which is no call.
pub const ROOT: u32 = 0;

/// A call path, with the sums of what ended in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
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
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    callees: HashMap<(u32, u32), u32, RandomState>,
    max_nodes: usize,
    max_depth: u32,
    base: u32,
}

impl Tree {
    /// An empty tree of at most `max_nodes` call paths, each of at most `max_depth` calls. The first `base` frames of a path are
    /// no calls: they tell what the calls belong to, e.g. a thread.
    pub fn new(max_nodes: usize, max_depth: u32, base: u32) -> Tree {
        // Node numbers have 32 bits.
        let max_nodes = max_nodes.min(u32::MAX as usize - 1);
        Tree { nodes: vec![Node::default()], callees: HashMap::default(), max_nodes, max_depth, base }
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
                self.nodes.push(Node { caller, frame, depth, base, ..Node::default() });
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
    pub fn nodes(&self) -> &[Node] {
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

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.callees.capacity() * (size_of::<((u32, u32), u32)>() + 1)
    }
}

#[cfg(test)]
mod tests {
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
