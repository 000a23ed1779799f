//! Sums of the stacks of all events: the call trees of each agent by steps of 10 seconds, in bounded memory.
//!
//! Every event is put into the step in which it is read. Spans wait for the others of their trace, and entries and exits for those with
//! lower numbers; what waits is in the answers too. When there is not enough memory, steps become longer, the oldest first; when call
//! paths are too many, further ones are added to their callers. So times and paths become coarser, and no sum changes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::recent_senders::RecentSenders;
use crate::services::{NANOS_PER_STEP, STEPS, pop_if};
use tributary_event::{AgentFacts, Batch, DataView, EventView, Kind, UnixNanos};
use tributary_profile::collected::{About, Collected, StackSource};
use tributary_profile::stacks::{OTHERS, Stacks, process_text};
use tributary_profile::{Counted, ProfileItem, events};

/// Memory of an agent beside its stacks.
const AGENT_BYTES: usize = 2048;
/// Memory of a step beside its sums.
const STEP_BYTES: usize = 64;

/// The sums of all agents.
#[derive(Debug)]
pub struct ProfileSums {
    limit: usize,
    /// By the number of the agent.
    agents: Vec<(Box<str>, AgentProfile)>,
    numbers: HashMap<Box<str>, usize, RandomState>,
    /// The numbers of the agents of resources that came lately.
    recent: RecentSenders,
    now: u64,
    /// Bytes of stacks, of what waits, and of steps, of all agents.
    bytes: [usize; 3],
    /// There is no memory for further call paths.
    is_full: bool,
    batches: u64,
}

/// The sums of an agent.
#[derive(Debug)]
pub struct AgentProfile {
    /// The protocol of its events.
    pub protocol: &'static str,
    /// What the agent is called; the same for all processes of a service.
    pub name: Box<str>,
    collected: Collected,
    sources: BTreeMap<StackSource, SourceSums>,
    bytes: [usize; 3],
    last: u64,
    /// The number of the last batch with its events: an order of agents.
    pub last_batch: u64,
}

/// The sums of one source before the present step.
#[derive(Debug, Default)]
struct SourceSums {
    steps: VecDeque<SummedSteps>,
    /// Stacks that are full, or nearly, with their steps. No event is added to them.
    former: Option<(Stacks, VecDeque<SummedSteps>)>,
    /// The events before the present step.
    events: u64,
}

/// One or more steps that have ended.
#[derive(Clone, Debug)]
struct SummedSteps {
    first: u64,
    last: u64,
    events: u64,
    /// The nodes that have sums, in order.
    sums: Vec<(u32, [u64; 2])>,
}

impl ProfileSums {
    /// No sums, in about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        ProfileSums {
            limit,
            agents: Vec::new(),
            numbers: HashMap::default(),
            recent: RecentSenders::default(),
            now: 0,
            bytes: [0; 3],
            is_full: false,
            batches: 0,
        }
    }

    /// Sets the most bytes. With fewer than before, all sums are dropped.
    pub fn set_limit(&mut self, limit: usize) {
        if limit < self.limit {
            *self = ProfileSums { now: self.now, ..ProfileSums::new(limit) };
        }
        self.limit = limit;
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.iter().sum::<usize>() + self.agents.len() * AGENT_BYTES
    }

    /// The number of the present step, counted since 1970.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether batches with events of these kinds of this protocol can have stacks.
    pub(crate) fn wants(batch: &Batch) -> bool {
        let has = |kind| batch.count(kind) > 0;
        has(Kind::Span) || has(Kind::Sample) || batch.origin().is_some_and(|origin| origin.protocol == "bytefrog")
    }

    /// Adds the events of batches that have stacks, each with the time by which it was read.
    pub fn add<'a>(&mut self, batches: impl IntoIterator<Item = (&'a Batch, UnixNanos)>) {
        let mut touched = Vec::new();
        for (batch, now) in batches {
            let step = self.now;
            self.advance(now);
            if self.now != step {
                // All were measured, and have other numbers.
                touched.clear();
            }
            if ProfileSums::wants(batch) {
                self.batches += 1;
                self.add_events(batch, &mut touched);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|agent| self.measure(agent));
        self.look();
    }

    /// `touched` gets the numbers of the agents of the events.
    fn add_events(&mut self, batch: &Batch, touched: &mut Vec<usize>) {
        let mut last = None;
        for event in batch.events() {
            // Most items are spans, which need not become an item of any kind first.
            if let DataView::Span(span) = event.data() {
                let collected = self.collected(event, &mut last, touched);
                collected.add_span(&events::span_of_known_agent(event, &span));
            } else if let Ok(Some(item)) = events::item_of_known_agent(event)
                && has_stack(&item)
            {
                self.collected(event, &mut last, touched).add(&item);
            }
        }
    }

    /// The stacks of the agent of an event. `last`: the address of the last resource, and its agent.
    #[inline]
    fn collected(
        &mut self,
        event: EventView<'_>,
        last: &mut Option<(usize, usize)>,
        touched: &mut Vec<usize>,
    ) -> &mut Collected {
        let resource = Arc::as_ptr(event.resource()).addr();
        let agent = match *last {
            Some((known, agent)) if known == resource => agent,
            _ => self.known_agent(event),
        };
        *last = Some((resource, agent));
        let of_agent = &mut self.agents[agent].1;
        of_agent.last = self.now;
        if std::mem::replace(&mut of_agent.last_batch, self.batches) != self.batches {
            touched.push(agent);
        }
        &mut of_agent.collected
    }

    /// The number of the agent of an event.
    fn known_agent(&mut self, event: EventView<'_>) -> usize {
        if let Some(agent) = self.recent.get(event) {
            return agent as usize;
        }
        let agent = self.agent(event);
        self.recent.add(event, agent as u32);
        agent
    }

    /// The number of the agent of an event, which has sums then.
    fn agent(&mut self, event: EventView<'_>) -> usize {
        let mut words: Box<str> = process_text(&events::agent(event)).into();
        if !self.numbers.contains_key(&words) && (self.agents.len() + 1) * AGENT_BYTES > self.limit / 4 {
            words = OTHERS.into();
        }
        if let Some(known) = self.numbers.get(&words) {
            return *known;
        }
        let mut collected = Collected::bounded(self.limit);
        collected.set_full(self.is_full);
        collected.note_outermost_calls();
        let origin = event.origin();
        let facts = AgentFacts::of(event.resource().attributes());
        let name = facts.name(origin.protocol, &origin.listener, &origin.peer).into_text().into();
        let protocol = origin.protocol;
        let agent = AgentProfile {
            protocol,
            name,
            collected,
            sources: BTreeMap::new(),
            bytes: [0; 3],
            last: self.now,
            last_batch: 0,
        };
        self.numbers.insert(words.clone(), self.agents.len());
        self.agents.push((words, agent));
        self.agents.len() - 1
    }

    /// Ends the steps that are over.
    pub fn advance(&mut self, now: UnixNanos) {
        let now = now.0 / NANOS_PER_STEP;
        if now <= self.now {
            return;
        }
        let ended = std::mem::replace(&mut self.now, now);
        let oldest = (now + 1).saturating_sub(STEPS);
        let limit = self.limit;
        self.agents.retain_mut(|(_, agent)| {
            agent.end_step(ended);
            agent.expire(oldest, ended, limit / 8);
            agent.last >= oldest
        });
        self.recent.clear();
        self.numbers = self.agents.iter().enumerate().map(|(number, (words, _))| (words.clone(), number)).collect();
        self.measure_all();
        while self.bytes[2] > self.limit / 4 && self.agents.iter_mut().any(|(_, agent)| agent.lengthen_steps()) {
            self.measure_all();
        }
        self.look();
    }

    fn measure(&mut self, agent: usize) {
        let (_, agent) = &mut self.agents[agent];
        let before = agent.bytes;
        agent.measure();
        for (sum, (before, now)) in self.bytes.iter_mut().zip(before.into_iter().zip(agent.bytes)) {
            *sum = *sum + now - before;
        }
    }

    fn measure_all(&mut self) {
        self.bytes = [0; 3];
        for (_, agent) in &mut self.agents {
            agent.measure();
            self.bytes.iter_mut().zip(agent.bytes).for_each(|(sum, bytes)| *sum += bytes);
        }
    }

    /// Sees to it that there is enough memory.
    fn look(&mut self) {
        // First the traces that got no span lately, then the older half of all.
        for has_one in [false, true] {
            if self.bytes[1] > self.limit / 4 {
                self.agents.iter_mut().for_each(|(_, agent)| agent.collected.sum_up_half(has_one));
                self.measure_all();
            }
        }
        let is_full = self.bytes[0] > self.limit / 2;
        if is_full != self.is_full {
            self.is_full = is_full;
            self.agents.iter_mut().for_each(|(_, agent)| agent.collected.set_full(is_full));
        }
    }

    /// Gives the calls to `take` that were paired from entries and exits since the last time, and that no other call of their thread
    /// encloses: the agent's name, the method, its time in nanoseconds, and whether it ended by an exception. Calls that are spans, too,
    /// are left out.
    pub fn take_outermost_calls(&mut self, mut take: impl FnMut(&str, &str, u64, bool)) {
        for (_, agent) in &mut self.agents {
            let has_spans = agent.collected.events(StackSource::Spans) > 0;
            agent.collected.take_outermost_calls(|function, nanos, has_failed| {
                if !has_spans {
                    take(&agent.name, function, nanos, has_failed);
                }
            });
        }
    }

    /// The processes in words, and their sums.
    pub fn agents(&self) -> impl Iterator<Item = (&str, &AgentProfile)> {
        self.agents.iter().map(|(words, agent)| (&**words, agent))
    }
}

/// Whether an item is summed up here. Objects of heaps are elsewhere.
fn has_stack(item: &ProfileItem<'_>) -> bool {
    match item {
        ProfileItem::Sample(sample) => !matches!(sample.counted, Counted::HeapBytes | Counted::HeapObjects),
        ProfileItem::Span(_) | ProfileItem::Call(_) => true,
        _ => false,
    }
}

impl AgentProfile {
    fn end_step(&mut self, step: u64) {
        self.collected.sum_up_older();
        for (source, stacks) in self.collected.all_stacks() {
            let sums = stacks.take_sums();
            self.sources.entry(source).or_default().steps.push_back(SummedSteps {
                first: step,
                last: step,
                events: 0,
                sums,
            });
        }
        for (source, steps) in &mut self.sources {
            let events = self.collected.events(*source);
            if let Some(step) = steps.steps.back_mut() {
                step.events = events - steps.events;
            }
            steps.events = events;
            if steps.steps.back().is_some_and(|step| step.events == 0 && step.sums.is_empty()) {
                steps.steps.pop_back();
            }
        }
    }

    /// Drops steps before `oldest`. `ended` ended last. Stacks with more than `most` bytes that are as old as that are replaced by new
    /// ones, so that paths that are not used any more go with their steps.
    fn expire(&mut self, oldest: u64, ended: u64, most: usize) {
        for (source, sums) in &mut self.sources {
            let is_old = sums.steps.front().is_some_and(|step| step.first <= oldest);
            sums.steps_mut().for_each(|steps| while pop_if(steps, |step| step.last < oldest).is_some() {});
            sums.former = sums.former.take().filter(|(_, steps)| !steps.is_empty());
            if is_old && sums.former.is_none() {
                let former = self.collected.renew_stacks(*source, |stacks| stacks.memory_bytes() > most);
                sums.former = former.map(|mut stacks| {
                    let mut steps = std::mem::take(&mut sums.steps);
                    steps.push_back(SummedSteps { first: ended, last: ended, events: 0, sums: stacks.take_sums() });
                    (stacks, steps)
                });
            }
        }
    }

    /// Joins the older half of the steps two by two. `false`: there was nothing to join.
    fn lengthen_steps(&mut self) -> bool {
        let mut is_joined = false;
        for steps in self.sources.values_mut().flat_map(SourceSums::steps_mut) {
            let newer = steps.split_off(steps.len().div_ceil(2).next_multiple_of(2).min(steps.len() & !1));
            let mut older = std::mem::take(steps).into_iter();
            while let (Some(first), Some(second)) = (older.next(), older.next()) {
                steps.push_back(first.joined(second));
                is_joined = true;
            }
            steps.extend(newer);
        }
        is_joined
    }

    fn measure(&mut self) {
        let [stacks, waiting] = self.collected.memory_bytes();
        let former = self.sources.values().filter_map(|sums| sums.former.as_ref());
        let former: usize = former.map(|(stacks, _)| stacks.memory_bytes()).sum();
        let steps = self.sources.values().flat_map(SourceSums::steps).map(SummedSteps::memory_bytes);
        self.bytes = [stacks + former, waiting, steps.sum()];
    }

    /// The sources that have events, and these in each step from `first` to `last`; `now` is the present one.
    pub fn events(&self, (first, last): (u64, u64), now: u64) -> BTreeMap<StackSource, Vec<(u64, u64)>> {
        let of = |source: StackSource| {
            let past = self.sources.get(&source);
            let steps = past.into_iter().flat_map(SourceSums::steps).map(|step| (step.last, step.events));
            let present = self.collected.events(source) - past.map_or(0, |past| past.events);
            let all = steps.chain([(now, present)]);
            all.filter(|(step, events)| (first..=last).contains(step) && *events > 0).collect::<Vec<_>>()
        };
        let sources = self.collected.sources().into_iter().map(|source| (source, of(source)));
        sources.filter(|(_, events)| !events.is_empty()).collect()
    }

    /// Adds the stacks of a source in the steps from `first` to `last` to others. What waits counts in the present step, `now`.
    pub fn add_to(&self, stacks: &mut Stacks, source: StackSource, steps: (u64, u64), now: u64, keeps_thread: bool) {
        let Some(mut present) = self.collected.copy_of(source) else { return };
        if (steps.0..=steps.1).contains(&now) {
            present.finish();
        }
        let Some(tree) = present.stacks(source) else { return };
        let mut sums: Vec<[u64; 2]> = vec![[0; 2]; tree.tree().nodes().len()];
        if (steps.0..=steps.1).contains(&now) {
            sums.iter_mut().zip(tree.tree().nodes()).for_each(|(sums, node)| *sums = node.own);
        }
        let Some(past) = self.sources.get(&source) else { return stacks.absorb(tree, &sums, keeps_thread) };
        add_steps(&mut sums, &past.steps, steps);
        stacks.absorb(tree, &sums, keeps_thread);
        if let Some((tree, former)) = &past.former {
            let mut sums: Vec<[u64; 2]> = vec![[0; 2]; tree.tree().nodes().len()];
            add_steps(&mut sums, former, steps);
            stacks.absorb(tree, &sums, keeps_thread);
        }
    }

    /// What is known of its events of a source.
    pub fn about(&self, source: StackSource) -> Option<&About> {
        self.collected.processes(source).first().map(|(_, about)| *about)
    }
}

fn add_steps(sums: &mut [[u64; 2]], steps: &VecDeque<SummedSteps>, (first, last): (u64, u64)) {
    for step in steps.iter().filter(|step| step.last >= first && step.first <= last) {
        for (node, values) in &step.sums {
            add(&mut sums[*node as usize], *values);
        }
    }
}

fn add(sums: &mut [u64; 2], values: [u64; 2]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(value));
}

impl SourceSums {
    fn steps(&self) -> impl Iterator<Item = &SummedSteps> {
        self.former.iter().flat_map(|(_, steps)| steps).chain(&self.steps)
    }

    fn steps_mut(&mut self) -> impl Iterator<Item = &mut VecDeque<SummedSteps>> {
        self.former.iter_mut().map(|(_, steps)| steps).chain([&mut self.steps])
    }
}

impl SummedSteps {
    /// This step and the next one.
    fn joined(mut self, next: SummedSteps) -> SummedSteps {
        self.sums.extend(next.sums);
        self.sums.sort_by_key(|(node, _)| *node);
        self.sums.dedup_by(|next, sums| {
            let is_same = next.0 == sums.0;
            if is_same {
                add(&mut sums.1, next.1);
            }
            is_same
        });
        self.sums.shrink_to_fit();
        SummedSteps { last: next.last, events: self.events + next.events, ..self }
    }

    fn memory_bytes(&self) -> usize {
        STEP_BYTES + self.sums.capacity() * size_of::<(u32, [u64; 2])>()
    }
}

#[cfg(test)]
mod tests;
