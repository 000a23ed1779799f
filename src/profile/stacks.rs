//! Sums samples by stack: a tree of calls, and the folded form that flame graph tools read.

use std::io::{self, Write};

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::{Counted, Frame, Sample, words};

/// The maximum number of calls in the tree; a stack that needs more is cut at that frame.
const MAX_NODES: usize = 1 << 23;

/// Sums of samples by stack.
#[derive(Debug)]
pub struct Stacks {
    /// The texts of frames by number, and the numbers by text.
    frames: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32, RandomState>,
    /// The root, which is not a call, then the calls, each after its caller.
    nodes: Vec<Node>,
    calls: HashMap<(u32, u32), u32, RandomState>,
    samples: u64,
    total: u64,
    cut: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    caller: u32,
    frame: u32,
    /// The sum of the samples that end here.
    own: u64,
}

impl Default for Stacks {
    fn default() -> Self {
        let nodes = vec![Node::default()];
        let (numbers, calls) = (HashMap::default(), HashMap::default());
        Stacks { frames: Vec::new(), numbers, nodes, calls, samples: 0, total: 0, cut: 0 }
    }
}

impl Stacks {
    /// Adds a sample. An allocation has two more frames than its stack: its site and the class of its objects.
    pub fn add(&mut self, sample: &Sample<'_>) {
        self.samples += 1;
        self.total = self.total.saturating_add(sample.value);
        let mut texts: Vec<String> = sample.frames.iter().rev().map(words::frame).collect();
        if sample.counted == Counted::Allocations {
            texts.push(words::frame(&Frame { function: None, site: sample.site.clone() }));
            texts.push(words::folded(words::class(sample.class.as_deref())));
        } else if texts.is_empty() {
            texts.push("(no frames)".to_owned());
        }
        let mut node = 0;
        for text in &texts {
            match self.call(node, text) {
                Some(call) => node = call,
                None => {
                    self.cut += 1;
                    break;
                }
            }
        }
        let own = &mut self.nodes[node as usize].own;
        *own = own.saturating_add(sample.value);
    }

    /// The node of a call; `None` if the tree is full.
    fn call(&mut self, caller: u32, frame: &str) -> Option<u32> {
        let known = self.numbers.get(frame).copied();
        if let Some(node) = known.and_then(|frame| self.calls.get(&(caller, frame))) {
            return Some(*node);
        }
        let next = self.nodes.len();
        if next == MAX_NODES {
            return None;
        }
        let frame = known.unwrap_or_else(|| {
            let number = self.frames.len() as u32;
            self.frames.push(frame.into());
            self.numbers.insert(frame.into(), number);
            number
        });
        self.nodes.push(Node { caller, frame, own: 0 });
        self.calls.insert((caller, frame), next as u32);
        Some(next as u32)
    }

    /// The number of samples.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The sum of their values.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of samples whose stacks were cut because the tree is full.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Writes one line for each stack, `root;…;innermost value`: callers before callees, siblings in the order of their texts.
    /// Calls with less than 1/`min_share` of the total are added to their callers.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_folded(&self, min_share: Option<u64>, out: &mut impl Write) -> io::Result<()> {
        let order = self.order();
        let (own, is_shown) = self.merge_small(min_share);
        let mut line = String::new();
        // The length of the line at each depth, so that a frame can be appended to its caller.
        let mut ends: Vec<usize> = Vec::new();
        for (node, depth) in order {
            let node = node as usize;
            if !is_shown[node] {
                continue;
            }
            ends.truncate(depth);
            line.truncate(ends.last().copied().unwrap_or(0));
            if !line.is_empty() {
                line.push(';');
            }
            line.push_str(&self.frames[self.nodes[node].frame as usize]);
            ends.push(line.len());
            if own[node] > 0 {
                writeln!(out, "{line} {}", own[node])?;
            }
        }
        if own[0] > 0 {
            writeln!(out, "(others) {}", own[0])?;
        }
        Ok(())
    }

    /// Every call with its depth, from 0: callers before callees, siblings in the order of their texts.
    fn order(&self) -> Vec<(u32, usize)> {
        let text = |node: u32| &*self.frames[self.nodes[node as usize].frame as usize];
        let mut calls: Vec<u32> = (1..self.nodes.len() as u32).collect();
        // In descending order of the texts, because the last element is popped first.
        calls.sort_by(|a, b| {
            let callers = self.nodes[*a as usize].caller.cmp(&self.nodes[*b as usize].caller);
            callers.then_with(|| text(*b).cmp(text(*a)))
        });
        let callees = |caller: u32| {
            let start = calls.partition_point(|call| self.nodes[*call as usize].caller < caller);
            calls[start..].iter().take_while(move |call| self.nodes[**call as usize].caller == caller)
        };
        let mut order = Vec::with_capacity(calls.len());
        let mut waiting: Vec<(u32, usize)> = callees(0).map(|call| (*call, 0)).collect();
        while let Some((node, depth)) = waiting.pop() {
            order.push((node, depth));
            waiting.extend(callees(node).map(|call| (*call, depth + 1)));
        }
        order
    }

    /// The own value of each call after the small ones have been added to their callers, and whether it is shown.
    fn merge_small(&self, min_share: Option<u64>) -> (Vec<u64>, Vec<bool>) {
        let mut own: Vec<u64> = self.nodes.iter().map(|node| node.own).collect();
        let mut is_shown = vec![true; own.len()];
        let Some(parts) = min_share else { return (own, is_shown) };
        let mut totals = own.clone();
        // Callees are after their callers.
        for node in (1..own.len()).rev() {
            let caller = self.nodes[node].caller as usize;
            totals[caller] = totals[caller].saturating_add(totals[node]);
            is_shown[node] = u128::from(totals[node]) * u128::from(parts) >= u128::from(self.total);
            if !is_shown[node] {
                own[caller] = own[caller].saturating_add(own[node]);
            }
        }
        (own, is_shown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Site;
    use super::*;

    fn sample(frames: &[&'static str], value: u64) -> Sample<'static> {
        let frame = |name: &&'static str| Frame { function: Some((*name).into()), site: Site::default() };
        let frames = frames.iter().map(frame).collect();
        Sample { counted: Counted::Cpu, value, frames, site: Site::default(), class: None }
    }

    fn folded(stacks: &Stacks, min_share: Option<u64>) -> String {
        let mut out = Vec::new();
        stacks.write_folded(min_share, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn small_calls_are_added_to_their_callers_and_the_total_stays_the_same() {
        let mut stacks = Stacks::default();
        for (frames, value) in
            [(&["b", "a"][..], 89), (&["c", "a"], 4), (&["d", "c", "a"], 5), (&["e", "d", "c", "a"], 1), (&["f"], 1)]
        {
            stacks.add(&sample(frames, value));
        }
        assert_eq!(stacks.total(), 100);
        assert_eq!(folded(&stacks, None), "a;b 89\na;c 4\na;c;d 5\na;c;d;e 1\nf 1\n");
        assert_eq!(folded(&stacks, Some(100)), folded(&stacks, None));
        assert_eq!(folded(&stacks, Some(20)), "a;b 89\na;c 4\na;c;d 6\n(others) 1\n");
        assert_eq!(folded(&stacks, Some(10)), "a;b 89\na;c 10\n(others) 1\n");
        assert_eq!(folded(&stacks, Some(1)), "(others) 100\n");
    }

    #[test]
    fn sums_saturate_and_recursive_calls_are_kept() {
        let mut stacks = Stacks::default();
        stacks.add(&sample(&["a", "a", "a"], u64::MAX));
        stacks.add(&sample(&["a", "a", "a"], 1));
        stacks.add(&sample(&["a"], 0));
        assert_eq!((stacks.total(), stacks.samples(), stacks.cut()), (u64::MAX, 3, 0));
        assert_eq!(folded(&stacks, None), format!("a;a;a {}\n", u64::MAX));
        assert_eq!(folded(&stacks, Some(10)), folded(&stacks, None));
    }
}
