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

use tributary_event::{Frame, Header, Number, Origin, Position, Resource, SampleData, output_len, semconv as names};
use tributary_memory::{Allowance, Amplification, MemoryBudget, MemoryLease};
use tributary_profile::interval::{CALLS, FRAME_BYTES, Interval, SAMPLE_BYTES, WALL, sample_of};
use tributary_profile::limits::ProfileLimits;
use tributary_profile::tree::{CallNode, ROOT, Tree};
use tributary_protocol::{Flow, Now, Output};

/// The warning for an interval whose samples were over a limit.
const FOLDED: &str = "profile_folded";

/// The calls of one body, until it is delivered.
#[derive(Debug)]
pub(super) struct BodyCalls {
    tree: Tree,
    functions: Functions,
    pub(super) max_depth: usize,
    /// The allowance of the address that has sent the body. `None`: output has no limit.
    pub(super) allowance: Option<Allowance>,
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
    amplification: Amplification,
    budget: Arc<MemoryBudget>,
    state: Mutex<ProfilesState>,
}

#[derive(Debug, Default)]
struct ProfilesState {
    /// By the address of their resource, which they keep.
    open: HashMap<usize, AgentProfile, RandomState>,
    /// Those whose interval is over, with their durations.
    ended: VecDeque<(AgentProfile, Duration)>,
    written: Option<EndedProfile>,
}

/// The profile of an agent and session.
#[derive(Debug)]
struct AgentProfile {
    resource: Arc<Resource>,
    /// The origin of the latest body.
    origin: Arc<Origin>,
    functions: Functions,
    tree: Tree,
    since: Duration,
    /// Bytes of the bodies that have earned no output yet: the samples are paid with what they earn …
    earned: u64,
    /// … and what the allowance of the latest body's address has left.
    allowance: Option<Allowance>,
    lease: MemoryLease,
    /// Further calls fold into the root.
    is_short_of_memory: bool,
}

/// A profile that is written.
#[derive(Debug)]
struct EndedProfile {
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
        BodyCalls { tree, functions: Functions::default(), max_depth: limits.max_depth as usize, allowance: None }
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
    pub(super) fn new(limits: ProfileLimits, amplification: Amplification, budget: Arc<MemoryBudget>) -> Profiles {
        Profiles { limits, amplification, budget, state: Mutex::default() }
    }

    /// Adds the calls of a delivered body; `earned` bytes of it have earned no output yet.
    pub(super) fn add(&self, calls: &BodyCalls, earned: u64, resource: &Arc<Resource>, origin: &Arc<Origin>, now: Now) {
        if calls.tree.nodes().iter().all(|node| node.own == [0, 0]) {
            return;
        }
        let mut state = self.lock();
        let profile = state.open.entry(Arc::as_ptr(resource).addr()).or_insert_with(|| AgentProfile {
            resource: resource.clone(),
            origin: origin.clone(),
            functions: Functions::default(),
            tree: Tree::new(self.limits.max_nodes, self.limits.max_depth, 0),
            since: now.elapsed,
            earned: 0,
            allowance: None,
            lease: self.budget.bare_lease(),
            is_short_of_memory: false,
        });
        profile.origin.clone_from(origin);
        profile.allowance.clone_from(&calls.allowance);
        profile.earned += earned;
        profile.add(calls);
    }

    /// Writes the profiles whose interval is over, or all of them, until the batch is full.
    pub(super) fn write(&self, now: Now, in_any_case: bool, out: &mut Output) -> Flow {
        let mut state = self.lock();
        let ProfilesState { open, ended, written } = &mut *state;
        let is_over =
            |profile: &AgentProfile| in_any_case || now.elapsed.saturating_sub(profile.since) >= self.limits.interval;
        let over = open.extract_if(|_, profile| is_over(profile));
        ended.extend(over.map(|(_, profile)| {
            let duration = now.elapsed.saturating_sub(profile.since);
            (profile, duration)
        }));
        loop {
            let next = match written {
                Some(next) => {
                    out.batch.set_origin(next.origin.clone());
                    out.batch.set_resource(next.resource.clone());
                    next
                }
                None => {
                    let Some((profile, duration)) = ended.pop_front() else { return Flow::Continue };
                    out.batch.set_origin(profile.origin.clone());
                    out.batch.set_resource(profile.resource.clone());
                    written.insert(profile.end(duration, &self.limits, self.amplification, now, out))
                }
            };
            while let Some((node, column)) = next.interval.next() {
                next.write(node, column, now, out);
                if out.batch.is_full() {
                    return Flow::Again;
                }
            }
            *written = None;
        }
    }

    /// No code panics while it holds the lock, so a poisoned lock can be used.
    fn lock(&self) -> MutexGuard<'_, ProfilesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AgentProfile {
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

    /// Its samples are paid here. Those for which the allowance is too little, or that are over `max_profile_bytes`, are folded.
    fn end(
        self,
        duration: Duration,
        limits: &ProfileLimits,
        amplification: Amplification,
        now: Now,
        out: &mut Output,
    ) -> EndedProfile {
        let AgentProfile { resource, origin, functions, tree, earned, allowance, lease, .. } = self;
        let left = allowance.as_ref().map(|allowance| allowance.left(amplification, earned, now.elapsed));
        let most = left.unwrap_or(u64::MAX).min(limits.max_bytes);
        let name_bytes: Vec<u64> = functions.names.iter().map(|name| output_len(name) as u64).collect();
        let of_node = |node: &CallNode| FRAME_BYTES + name_bytes.get(node.frame as usize).copied().unwrap_or(0);
        let interval = Interval::new(tree, most, out.batch.event_bytes() as u64 + SAMPLE_BYTES, of_node);
        if let Some(allowance) = allowance {
            // Nothing waits here: the address waits before its next body if others have spent the same meanwhile.
            let _ = allowance.spend(amplification, earned, interval.folded.bytes, now.elapsed);
        }
        if interval.folded.sums > 0 {
            out.warn(FOLDED);
        }
        EndedProfile { resource, origin, functions, interval, duration, _lease: lease }
    }
}

impl EndedProfile {
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
            event.incomplete(["frames"]);
        }
        let (sample_type, unit) = sample_of(column);
        event.sample(SampleData::new(sample_type, unit, Number::U64(path.own[column])), &frames);
    }
}
