//! The records of agents as profiles (`records = "profile"`): a tree of calls for each agent, which is written at intervals as
//! one sample for each stack and quantity.
//!
//! The calls of a body are summed up by themselves and count when the body is delivered, as its events do: a body that is sent
//! again counts once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::event::{Frame, Header, Number, Origin, Position, Resource, SampleData, semconv as names};
use crate::memory::{MemoryBudget, MemoryLease};
use crate::profile::interval::{CALLS, Interval, WALL, sample_of};
use crate::profile::limits::ProfileLimits;
use crate::profile::tree::{ROOT, Tree};
use crate::protocol::{Flow, Now, Output};

/// The calls of one body, until it is delivered.
#[derive(Debug)]
pub(super) struct BodyCalls {
    tree: Tree,
    functions: Functions,
    pub(super) max_depth: usize,
}

/// The names of functions by number.
#[derive(Debug, Default)]
struct Functions {
    names: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u32, RandomState>,
    bytes: usize,
}

/// The profiles of the agents of one listener.
#[derive(Debug)]
pub(super) struct Profiles {
    limits: ProfileLimits,
    budget: Arc<MemoryBudget>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the address of their resource, which they keep.
    open: HashMap<usize, Profile, RandomState>,
    ended: VecDeque<Ended>,
}

/// The profile of an agent and session.
#[derive(Debug)]
struct Profile {
    resource: Arc<Resource>,
    /// The origin of the latest body.
    origin: Arc<Origin>,
    functions: Functions,
    tree: Tree,
    since: Duration,
    lease: MemoryLease,
    /// Further calls fold into the root.
    is_short_of_memory: bool,
}

/// A profile that is written.
#[derive(Debug)]
struct Ended {
    resource: Arc<Resource>,
    origin: Arc<Origin>,
    functions: Functions,
    interval: Interval,
    duration: Duration,
    _lease: MemoryLease,
}

impl BodyCalls {
    pub(super) fn new(limits: ProfileLimits) -> BodyCalls {
        let tree = Tree::new(limits.max_nodes, limits.max_depth, 0);
        BodyCalls { tree, functions: Functions::default(), max_depth: limits.max_depth as usize }
    }

    /// The node of a call by `caller`.
    pub(super) fn callee(&mut self, caller: u32, function: &str) -> u32 {
        let frame = self.functions.number(function);
        self.tree.callee(caller, frame)
    }

    /// Counts a call that has ended. `own`: its self time; `None`: its end is not known.
    pub(super) fn count(&mut self, node: u32, own: Option<u64>) {
        self.tree.add(node, CALLS, 1);
        self.tree.add(node, WALL, own.unwrap_or(0));
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes() + self.functions.bytes
    }
}

impl Functions {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.numbers.insert(name.into(), number);
        self.bytes += 2 * name.len() + 80;
        number
    }
}

impl Profiles {
    pub(super) fn new(limits: ProfileLimits, budget: Arc<MemoryBudget>) -> Profiles {
        Profiles { limits, budget, state: Mutex::default() }
    }

    /// Adds the calls of a delivered body.
    pub(super) fn add(&self, calls: &BodyCalls, resource: &Arc<Resource>, origin: &Arc<Origin>, now: Now) {
        if calls.tree.nodes().iter().all(|node| node.own == [0, 0]) {
            return;
        }
        let mut state = self.lock();
        let profile = state.open.entry(Arc::as_ptr(resource).addr()).or_insert_with(|| Profile {
            resource: resource.clone(),
            origin: origin.clone(),
            functions: Functions::default(),
            tree: Tree::new(self.limits.max_nodes, self.limits.max_depth, 0),
            since: now.elapsed,
            lease: self.budget.bare_lease(),
            is_short_of_memory: false,
        });
        profile.origin.clone_from(origin);
        profile.add(calls);
    }

    /// Writes the profiles whose interval is over, or all of them, until the batch is full.
    pub(super) fn write(&self, now: Now, in_any_case: bool, out: &mut Output) -> Flow {
        let mut state = self.lock();
        let State { open, ended } = &mut *state;
        let is_over =
            |profile: &Profile| in_any_case || now.elapsed.saturating_sub(profile.since) >= self.limits.interval;
        ended.extend(open.extract_if(|_, profile| is_over(profile)).map(|(_, profile)| profile.end(now.elapsed)));
        while let Some(next) = ended.front_mut() {
            out.batch.set_origin(next.origin.clone());
            out.batch.set_resource(next.resource.clone());
            while let Some((node, column)) = next.interval.next() {
                next.write(node, column, now, out);
                if out.batch.is_full() {
                    return Flow::Again;
                }
            }
            ended.pop_front();
        }
        Flow::Continue
    }

    /// No code panics while it holds the lock, so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Profile {
    fn add(&mut self, calls: &BodyCalls) {
        // The node here of each node there. A caller stands before its callees.
        let mut nodes = vec![ROOT; calls.tree.nodes().len()];
        for (at, node) in calls.tree.nodes().iter().enumerate() {
            if at > 0 && !self.is_short_of_memory {
                let name = calls.functions.names.get(node.frame as usize).map_or("", |name| &**name);
                let frame = self.functions.number(name);
                nodes[at] = self.tree.callee(nodes[node.caller as usize], frame);
            }
            let is_folded = node.is_incomplete || self.is_short_of_memory;
            for (column, value) in node.own.into_iter().enumerate() {
                match is_folded {
                    true => self.tree.fold(nodes[at], column, value),
                    false => self.tree.add(nodes[at], column, value),
                }
            }
        }
        let bytes = self.tree.memory_bytes() + self.functions.bytes;
        self.is_short_of_memory |= !self.lease.resize(bytes as u64);
    }

    fn end(self, elapsed: Duration) -> Ended {
        let Profile { resource, origin, functions, tree, since, lease, .. } = self;
        let duration = elapsed.saturating_sub(since);
        Ended { resource, origin, functions, interval: Interval::new(tree), duration, _lease: lease }
    }
}

impl Ended {
    fn write(&self, node: u32, column: usize, now: Now, out: &mut Output) {
        let tree = &self.interval.tree;
        let path = tree.nodes()[node as usize];
        let mut frames = Vec::with_capacity(path.depth as usize);
        for frame in tree.frames(node) {
            let name = self.functions.names.get(frame as usize).map_or("", |name| &**name);
            frames.push(Frame { function: Some(out.batch.push_text(name)), file: None, line: None });
        }
        let header = Header::observed_at(names::ZICO_PROFILE, now.unix, Position::default());
        let mut event = out.batch.event(header);
        let millis = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX);
        event.attribute(names::ZICO_PROFILE_DURATION_MS, millis);
        event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
        if path.is_incomplete {
            let frames = event.batch().push_text("frames");
            let incomplete = event.batch().array(&[frames.into()]);
            event.attribute(names::INCOMPLETE, incomplete);
        }
        let (sample_type, unit) = sample_of(column);
        event.sample(SampleData::new(sample_type, unit, Number::U64(path.own[column])), &frames);
    }
}
