//! Self times of spans: the spans of a trace are collected, and then summed up as a tree of calls.
//!
//! The self time of a span is its duration without those of its children. A child that sticks out of its parent is cut at the
//! parent's ends. A span without an end counts as a call and has no time; its children count for the span around it.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::ProfileSpan;
use super::stacks::Stacks;

/// Spans that are held; when there are more, the traces that came first are summed up.
const MAX_SPANS: usize = 4 << 20;
/// No span.
const NONE: u32 = u32::MAX;
/// The parents of larger traces are found by a table.
const SMALL_TRACE: usize = 16;

/// Spans whose traces are not summed up.
#[derive(Clone, Debug)]
pub struct Spans {
    /// In the order in which they came, with those of some traces that are summed up.
    held: VecDeque<Held>,
    /// The number of the first of them: each has the next one.
    first: u64,
    /// The number of the last span of each trace, by the hash of its process and id: of millions of traces no two have the same.
    traces: HashMap<u64, u64, RandomState>,
    hasher: RandomState,
    max_held: usize,
    /// The number of the next span when [`Spans::sum_up_quiet`] was called last.
    older: u64,
    added: u64,
    /// Traces that were summed up early.
    early: u64,
    scratch: TraceTree,
}

/// A span, in less than the 64 bytes that a processor reads at once.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The hash of its process and trace.
    trace: u64,
    id: u64,
    /// 0: none.
    parent: u64,
    /// [`UNKNOWN`]: none, like `duration`.
    start: u64,
    duration: u64,
    frame: u32,
    /// The node of its thread.
    thread: u32,
    /// How many spans before it the previous one of its trace is; 0: there is none.
    back: u32,
    is_summed: bool,
}

/// No time: a time that no span has.
const UNKNOWN: u64 = u64::MAX;

const _: () = assert!(size_of::<Held>() < 64);

impl Held {
    fn start(&self) -> Option<u64> {
        Some(self.start).filter(|start| *start != UNKNOWN)
    }

    fn duration(&self) -> Option<u64> {
        Some(self.duration).filter(|duration| *duration != UNKNOWN)
    }
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
            held: VecDeque::new(),
            first: 0,
            traces: HashMap::default(),
            hasher: RandomState::default(),
            max_held: max_held.min(MAX_SPANS),
            older: 0,
            added: 0,
            early: 0,
            scratch: TraceTree::default(),
        }
    }

    /// Adds a span, for `stacks`.
    pub fn add(&mut self, span: &ProfileSpan<'_>, stacks: &mut Stacks) {
        let thread = stacks.thread(&span.agent, span.thread.as_deref());
        let process = stacks.tree().nodes()[thread as usize].caller;
        let detail = span.detail.as_deref().filter(|detail| !detail.is_empty() && *detail != span.name);
        let frame = stacks.span_frame(&span.name, detail);
        let trace = self.hasher.hash_one((process, span.trace));
        let number = self.first + self.held.len() as u64;
        let before = self.traces.insert(trace, number);
        let back = before.map_or(0, |before| (number - before) as u32);
        self.held.push_back(Held {
            trace,
            id: span.id,
            parent: span.parent.unwrap_or(0),
            start: span.start.unwrap_or(UNKNOWN),
            duration: span.duration.map_or(UNKNOWN, |duration| duration.min(UNKNOWN - 1)),
            frame,
            thread,
            back,
            is_summed: false,
        });
        self.added += 1;
        if self.held.len() > self.max_held {
            self.early += self.sum_up_half(false, stacks);
            if self.held.len() > self.max_held {
                self.early += self.sum_up_half(true, stacks);
            }
        }
    }

    /// Sums up all that are held.
    pub fn finish(&mut self, stacks: &mut Stacks) {
        self.sum_up_first(self.held.len(), true, stacks);
    }

    /// Sums up the traces that got no span since the last call.
    pub fn sum_up_quiet(&mut self, stacks: &mut Stacks) {
        self.sum_up_first(self.older.saturating_sub(self.first) as usize, false, stacks);
        self.older = self.first + self.held.len() as u64;
        self.shrink();
    }

    /// Sums up the traces whose spans are all in the older half of those that are held, or that have one there. Returns the number of
    /// these traces.
    pub fn sum_up_half(&mut self, has_one: bool, stacks: &mut Stacks) -> u64 {
        let summed = self.sum_up_first(self.held.len().div_ceil(2), has_one, stacks);
        self.shrink();
        summed
    }

    fn shrink(&mut self) {
        if self.held.capacity() > 4 * self.held.len() + 64 {
            self.held.shrink_to(2 * self.held.len());
            self.traces.shrink_to(2 * self.traces.len());
        }
    }

    /// How many spans were added.
    pub fn added(&self) -> u64 {
        self.added
    }

    /// Bytes of those that are held, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.held.len() * (size_of::<Held>() + size_of::<(u64, u64)>())
    }

    /// How many traces were summed up before the end, because there are too many spans: spans that came later have lost their
    /// parents.
    pub fn early(&self) -> u64 {
        self.early
    }

    /// Sums up the traces whose spans are all among the first `count`, or that have one there. Returns the number of these traces.
    fn sum_up_first(&mut self, count: usize, has_one: bool, stacks: &mut Stacks) -> u64 {
        let mut summed = 0;
        for at in 0..count.min(self.held.len()) {
            let Held { trace, is_summed, .. } = self.held[at];
            if is_summed {
                continue;
            }
            let last = self.traces.get(&trace).map(|last| (last - self.first) as usize);
            let Some(last) = last.filter(|last| has_one || *last < count) else { continue };
            self.traces.remove(&trace);
            let mut members = std::mem::take(&mut self.scratch.spans);
            let mut at = last;
            loop {
                let held = &mut self.held[at];
                held.is_summed = true;
                members.push(*held);
                if held.back == 0 {
                    break;
                }
                at -= held.back as usize;
            }
            members.reverse();
            self.scratch.sum_up(&members, stacks);
            members.clear();
            self.scratch.spans = members;
            summed += 1;
        }
        while self.held.front().is_some_and(|held| held.is_summed) {
            self.held.pop_front();
            self.first += 1;
        }
        summed
    }
}

/// What a span passes on to its children.
#[derive(Clone, Copy, Debug)]
struct Around {
    node: Option<u32>,
    /// The nearest enclosing span with a duration.
    timed: Option<usize>,
}

/// A span of the trace that is summed up.
#[derive(Clone, Copy, Debug)]
struct TraceMember {
    /// Its child that came last, and the child of its parent that came before it.
    child: u32,
    sibling: u32,
    is_root: bool,
    is_visited: bool,
    window: (u64, u64),
    own: u64,
    node: u32,
}

/// The memory for one trace, used again for the next.
#[derive(Clone, Debug, Default)]
struct TraceTree {
    spans: Vec<Held>,
    members: Vec<TraceMember>,
    places: HashMap<u64, u32, RandomState>,
    waiting: Vec<(usize, Around)>,
}

impl TraceTree {
    /// Adds the spans of one trace.
    fn sum_up(&mut self, trace: &[Held], stacks: &mut Stacks) {
        let TraceTree { members, places, waiting, .. } = self;
        let member = TraceMember {
            child: NONE,
            sibling: NONE,
            is_root: true,
            is_visited: false,
            window: (0, 0),
            own: 0,
            node: 0,
        };
        members.clear();
        members.resize(trace.len(), member);
        places.clear();
        if trace.len() > SMALL_TRACE {
            (0..trace.len()).for_each(|at| {
                places.entry(trace[at].id).or_insert(at as u32);
            });
        }
        for at in 0..trace.len() {
            let parent = trace[at].parent;
            let place = match trace.len() {
                ..=SMALL_TRACE => (0..trace.len()).find(|other| trace[*other].id == parent),
                _ => places.get(&parent).map(|place| *place as usize),
            };
            if let Some(place) = place.filter(|place| parent != 0 && *place != at) {
                members[at].is_root = false;
                members[at].sibling = std::mem::replace(&mut members[place].child, at as u32);
            }
        }
        // Spans that are their own ancestors have no root: the first of them is taken as one.
        for is_root in [true, false] {
            for root in 0..trace.len() {
                if members[root].is_root != is_root {
                    continue;
                }
                waiting.push((root, Around { node: None, timed: None }));
                while let Some((at, around)) = waiting.pop() {
                    if std::mem::replace(&mut members[at].is_visited, true) {
                        continue;
                    }
                    let span = &trace[at];
                    let caller = stacks.caller_in(span.thread, around.node);
                    let node = stacks.callee(caller, span.frame);
                    stacks.count(node, 1, 1);
                    members[at].node = node;
                    let mut timed = around.timed;
                    if let Some(duration) = span.duration() {
                        let window = window(span.start(), duration, around.timed.map(|timed| members[timed].window));
                        let own = window.1 - window.0;
                        (members[at].window, members[at].own) = (window, own);
                        if let Some(timed) = around.timed {
                            members[timed].own = members[timed].own.saturating_sub(own);
                        }
                        timed = Some(at);
                    }
                    let around = Around { node: Some(node), timed };
                    // The child that came first is taken first.
                    let mut child = members[at].child;
                    while child != NONE {
                        waiting.push((child as usize, around));
                        child = members[child as usize].sibling;
                    }
                }
            }
        }
        let timed = members.iter().filter(|member| member.own > 0);
        timed.for_each(|member| stacks.count(member.node, 0, member.own));
    }
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
