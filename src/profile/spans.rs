//! Self times of spans: the spans of a trace are collected, and then summed up as a tree of calls.
//!
//! The self time of a span is its duration without those of its children. A child that sticks out of its parent is cut at the
//! parent's ends. A span without an end counts as a call and has no time; its children count for the span around it.

use std::collections::VecDeque;

use foldhash::quality::RandomState;
use hashbrown::{HashMap, HashSet};

use super::stacks::Stacks;
use super::{ProfileFrame, ProfileSpan, Site};

/// Spans that are held; when there are more, the traces that began first are summed up.
const MAX_SPANS: usize = 4 << 20;

type TraceKey = (u32, u128);

/// Spans whose traces are not summed up.
#[derive(Debug)]
pub struct Spans {
    traces: HashMap<TraceKey, Vec<Held>, RandomState>,
    order: VecDeque<TraceKey>,
    held: usize,
    max_held: usize,
    added: u64,
    /// Traces that were summed up early.
    early: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: u64,
    /// 0: none.
    parent: u64,
    start: Option<u64>,
    duration: Option<u64>,
    frame: u32,
    /// The node of its thread.
    thread: u32,
}

impl Default for Spans {
    fn default() -> Self {
        Spans::bounded(MAX_SPANS)
    }
}

impl Spans {
    /// No spans; at most `max_held` are held.
    pub fn bounded(max_held: usize) -> Self {
        Spans {
            traces: HashMap::default(),
            order: VecDeque::new(),
            held: 0,
            max_held: max_held.min(MAX_SPANS),
            added: 0,
            early: 0,
        }
    }

    /// Adds a span, for `stacks`.
    pub fn add(&mut self, span: &ProfileSpan<'_>, stacks: &mut Stacks) {
        let thread = stacks.thread(&span.agent, span.thread.as_deref());
        let process = stacks.tree().nodes()[thread as usize].caller;
        let function = match &span.detail {
            Some(detail) if !detail.is_empty() && *detail != span.name => format!("{} {detail}", span.name).into(),
            _ => span.name.clone(),
        };
        let frame = stacks.frame(&ProfileFrame { function: Some(function), site: Site::default() });
        let ProfileSpan { id, parent, start, duration, trace, .. } = *span;
        let key = (process, trace);
        let spans = self.traces.entry(key).or_insert_with(|| {
            self.order.push_back(key);
            Vec::new()
        });
        spans.push(Held { id, parent: parent.unwrap_or(0), start, duration, frame, thread });
        self.held += 1;
        self.added += 1;
        while self.held > self.max_held {
            self.early += 1;
            self.sum_up_first(stacks);
        }
    }

    /// Sums up all that are held.
    pub fn finish(&mut self, stacks: &mut Stacks) {
        while !self.order.is_empty() {
            self.sum_up_first(stacks);
        }
    }

    /// How many spans were added.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// How many traces were summed up before the end, because there are too many spans: spans that came later have lost their
    /// parents.
    pub fn early(&self) -> u64 {
        self.early
    }

    fn sum_up_first(&mut self, stacks: &mut Stacks) {
        let Some(spans) = self.order.pop_front().and_then(|trace| self.traces.remove(&trace)) else { return };
        self.held -= spans.len();
        sum_up(&spans, stacks);
    }
}

/// What a span passes on to its children.
#[derive(Clone, Copy)]
struct Around {
    node: Option<u32>,
    /// The nearest enclosing span with a duration.
    timed: Option<usize>,
}

/// Adds the spans of one trace.
fn sum_up(spans: &[Held], stacks: &mut Stacks) {
    let mut places: HashMap<u64, usize, RandomState> =
        HashMap::with_capacity_and_hasher(spans.len(), RandomState::default());
    spans.iter().enumerate().for_each(|(at, span)| {
        places.entry(span.id).or_insert(at);
    });
    let parent =
        |at: usize| places.get(&spans[at].parent).copied().filter(|parent| spans[at].parent != 0 && *parent != at);
    let mut children: HashMap<usize, Vec<usize>, RandomState> = HashMap::default();
    let mut roots = Vec::new();
    for at in 0..spans.len() {
        match parent(at) {
            Some(parent) => children.entry(parent).or_default().push(at),
            None => roots.push(at),
        }
    }
    let mut windows: Vec<(u64, u64)> = vec![(0, 0); spans.len()];
    let mut own = vec![0u64; spans.len()];
    let mut nodes = vec![0u32; spans.len()];
    let mut visited: HashSet<usize, RandomState> = HashSet::default();
    // Spans that are their own ancestors have no root: the first of them is taken as one.
    for root in roots.into_iter().chain(0..spans.len()) {
        let mut waiting = vec![(root, Around { node: None, timed: None })];
        while let Some((at, around)) = waiting.pop() {
            if !visited.insert(at) {
                continue;
            }
            let span = spans[at];
            let caller = match around.node {
                None => span.thread,
                Some(node) if stacks.thread_of(node) == span.thread => node,
                Some(node) => stacks.moved(node, span.thread),
            };
            let node = stacks.callee(caller, span.frame);
            stacks.count(node, 1, 1);
            nodes[at] = node;
            let mut timed = around.timed;
            if let Some(duration) = span.duration {
                windows[at] = window(span.start, duration, around.timed.map(|timed| windows[timed]));
                own[at] = windows[at].1 - windows[at].0;
                if let Some(timed) = around.timed {
                    own[timed] = own[timed].saturating_sub(own[at]);
                }
                timed = Some(at);
            }
            let around = Around { node: Some(node), timed };
            let within = children.get(&at).into_iter().flatten().rev();
            waiting.extend(within.map(|child| (*child, around)));
        }
    }
    own.iter().zip(nodes).filter(|(own, _)| **own > 0).for_each(|(own, node)| stacks.count(node, 0, *own));
}

/// From when to when a span is counted: within the span around it. A span without a start is counted from the start of that.
fn window(start: Option<u64>, duration: u64, around: Option<(u64, u64)>) -> (u64, u64) {
    let start = start.or(around.map(|(start, _)| start)).unwrap_or(0);
    let end = start.saturating_add(duration);
    match around {
        None => (start, end),
        Some((first, last)) => (start.clamp(first, last), end.clamp(first, last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(spans: &[(u64, u64, Option<u64>, Option<u64>)], column: usize) -> String {
        let (mut stacks, mut held) = (Stacks::default(), Spans::default());
        for (id, parent, start, duration) in spans {
            let (start, duration, parent) = (*start, *duration, Some(*parent).filter(|parent| *parent != 0));
            let span = ProfileSpan {
                id: *id,
                parent,
                start,
                duration,
                name: format!("s{id}").into(),
                ..ProfileSpan::default()
            };
            held.add(&span, &mut stacks);
        }
        held.finish(&mut stacks);
        let mut out = Vec::new();
        stacks.merged(|_| true, false, false).write_folded(column, 1, None, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn self_times_add_up_to_the_duration_of_the_root_in_any_order() {
        let spans = [(3, 2, Some(30), Some(10)), (1, 0, Some(0), Some(100)), (2, 1, Some(20), Some(50))];
        assert_eq!(folded(&spans, 0), "s1 50\ns1;s2 40\ns1;s2;s3 10\n");
        assert_eq!(folded(&spans, 1), "s1 1\ns1;s2 1\ns1;s2;s3 1\n");
    }

    #[test]
    fn a_child_is_cut_at_the_ends_of_its_parent() {
        let spans = [(1, 0, Some(10), Some(10)), (2, 1, Some(5), Some(8)), (3, 1, Some(15), Some(100))];
        assert_eq!(folded(&spans, 0), "s1 2\ns1;s2 3\ns1;s3 5\n");
        let parallel = [(1, 0, Some(0), Some(10)), (2, 1, Some(0), Some(10)), (3, 1, Some(0), Some(10))];
        assert_eq!(folded(&parallel, 0), "s1;s2 10\ns1;s3 10\n");
        assert_eq!(folded(&[(1, 0, None, Some(9)), (2, 1, None, Some(4))], 0), "s1 5\ns1;s2 4\n");
    }

    #[test]
    fn a_span_without_an_end_has_no_time_and_its_children_count_for_the_one_around_it() {
        let spans = [(1, 0, Some(0), Some(100)), (2, 1, Some(10), None), (3, 2, Some(20), Some(30))];
        assert_eq!(folded(&spans, 0), "s1 70\ns1;s2;s3 30\n");
        assert_eq!(folded(&spans, 1), "s1 1\ns1;s2 1\ns1;s2;s3 1\n");
    }

    #[test]
    fn spans_that_are_their_own_ancestors_are_counted_once() {
        let circle = [(1, 2, Some(0), Some(10)), (2, 1, Some(0), Some(10)), (3, 3, Some(0), Some(1))];
        assert_eq!(folded(&circle, 1), "s1 1\ns1;s2 1\ns3 1\n");
        let twice = [(1, 9, Some(0), Some(10)), (1, 9, Some(0), Some(10))];
        assert_eq!(folded(&twice, 0), "s1 20\n");
    }
}
