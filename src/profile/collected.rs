//! The stacks of an input: of its samples, of its spans, and of its entries and exits of calls.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::logs::{CallLogs, NANOS_PER_MILLI, OutermostCall};
use super::spans::Spans;
use super::stacks::{OTHERS, Stacks, process_text};
use super::timeline::Timeline;
use super::words::counted;
use super::{Call, CallStep, Clock, Counted, ProfileItem, ProfileSample, ProfileSpan, SampleKind, pprof, report};

/// What stacks are made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs)]
pub enum StackSource {
    Cpu,
    CallSamples,
    Spans,
    Entries,
    Allocations,
    Heap,
    Profiled(&'static SampleKind),
}

impl StackSource {
    /// Those of our own quantities, in the order of preference.
    pub const OWN: [StackSource; 6] = [
        StackSource::Cpu,
        StackSource::CallSamples,
        StackSource::Spans,
        StackSource::Entries,
        StackSource::Allocations,
        StackSource::Heap,
    ];

    /// The source of samples of this quantity.
    pub fn of(counted: Counted) -> StackSource {
        match counted {
            Counted::Cpu => StackSource::Cpu,
            Counted::Allocations => StackSource::Allocations,
            Counted::Wall | Counted::Calls => StackSource::CallSamples,
            Counted::HeapBytes | Counted::HeapObjects => StackSource::Heap,
            Counted::Profiled(kind) => StackSource::Profiled(kind),
        }
    }

    /// The sources that can show a quantity, in the order of preference.
    pub fn that_show(counted: Counted) -> Vec<StackSource> {
        match counted {
            Counted::Profiled(kind) => vec![StackSource::Profiled(kind)],
            own => StackSource::OWN.into_iter().filter(|source| source.quantities().contains(&own)).collect(),
        }
    }

    /// The quantities that it can show.
    pub fn quantities(self) -> Vec<Counted> {
        match self {
            StackSource::Cpu => vec![Counted::Cpu],
            StackSource::CallSamples | StackSource::Spans | StackSource::Entries => vec![Counted::Wall, Counted::Calls],
            StackSource::Allocations => vec![Counted::Allocations],
            StackSource::Heap => vec![Counted::HeapBytes, Counted::HeapObjects],
            StackSource::Profiled(kind) => vec![Counted::Profiled(kind)],
        }
    }

    /// A number of them in words.
    pub fn words(self, count: u64) -> String {
        match self {
            StackSource::Cpu => format!("{} of cpu", counted(count, "sample")),
            StackSource::Allocations => format!("{} of allocations", counted(count, "sample")),
            StackSource::CallSamples => format!("{} of calls", counted(count, "sample")),
            StackSource::Heap => format!("{} of the heap", counted(count, "sample")),
            StackSource::Profiled(kind) => {
                format!("{} of {}", counted(count, "sample"), Counted::Profiled(kind).id())
            }
            StackSource::Spans => counted(count, "span"),
            StackSource::Entries => format!("{count} entries and exits"),
        }
    }
}

/// What is known of a process from its events of one source.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Its events.
    pub events: u64,
    first: Option<u64>,
    last: Option<u64>,
    periods: BTreeSet<(Option<Clock>, u64)>,
    is_incomplete: bool,
}

impl About {
    /// Notes an event that began at this time and took this long.
    fn note(&mut self, time: Option<u64>, nanos: u64) {
        if let Some(time) = time {
            self.first = Some(self.first.map_or(time, |first| first.min(time)));
            let end = time.saturating_add(nanos);
            self.last = Some(self.last.map_or(end, |last| last.max(end)));
        }
    }

    /// The same of a part of its time, in nanoseconds since the epoch, with as many events.
    pub fn between(&self, first: u64, last: u64, events: u64) -> About {
        let within = |time: Option<u64>| time.map(|time| time.clamp(first, last));
        About { events, first: within(self.first), last: within(self.last), ..self.clone() }
    }
}

/// Stacks that are being collected.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    stacks: BTreeMap<StackSource, Stacks>,
    /// What is known, and the places there by source and process.
    about: Vec<About>,
    places: BTreeMap<(StackSource, String), usize>,
    /// The source and the process of the last item, as it names it, and its place.
    last: Option<(StackSource, Box<str>, usize)>,
    spans: Spans,
    logs: CallLogs,
    limits: Option<CollectedLimits>,
    timeline: Option<Timeline>,
}

/// What is kept at most.
#[derive(Clone, Copy, Debug)]
struct CollectedLimits {
    /// Call paths of a source.
    nodes: usize,
    /// Bytes of the names of a source.
    name_bytes: usize,
    /// Processes with known facts other than their stacks.
    processes: usize,
    /// Stacks have no further paths and names.
    is_full: bool,
}

impl CollectedLimits {
    /// Nodes, and bytes of names.
    fn of_stacks(self) -> (usize, usize) {
        if self.is_full { (0, 0) } else { (self.nodes, self.name_bytes) }
    }

    fn stacks(self) -> Stacks {
        let (nodes, name_bytes) = self.of_stacks();
        Stacks::bounded(nodes, name_bytes)
    }
}

/// Memory of a call path, of a span or an entry that waits, and of what is known of a process.
const NODE_BYTES: usize = 128;
const WAITING_BYTES: usize = 192;
const PROCESS_BYTES: usize = 512;

impl Collected {
    /// Stacks of one quantity in about `bytes`: calls of further paths are added to their callers, further names are
    /// `(other names)`, and traces and entries wait for fewer others before they are summed up.
    pub fn bounded(bytes: usize) -> Self {
        let limits = CollectedLimits {
            nodes: (bytes / 4 / NODE_BYTES).max(64),
            name_bytes: bytes / 4,
            processes: (bytes / 4 / PROCESS_BYTES).max(64),
            is_full: false,
        };
        let waiting = (bytes / 4 / WAITING_BYTES).max(64);
        let (spans, logs) = (Spans::bounded(waiting), CallLogs::bounded(waiting));
        Collected { spans, logs, limits: Some(limits), ..Collected::default() }
    }

    /// Stacks, and if `has_times` also the single items with their times.
    pub fn with_times(has_times: bool) -> Self {
        Collected { timeline: has_times.then(Timeline::default), ..Collected::default() }
    }

    /// Adds an item, if it has to do with stacks.
    pub fn add(&mut self, item: &ProfileItem<'_>) {
        if let Some(timeline) = &mut self.timeline {
            timeline.add(item);
        }
        match item {
            ProfileItem::Sample(sample) => self.add_sample(sample),
            ProfileItem::Span(span) => self.add_span(span),
            ProfileItem::Call(call) => self.add_call(call),
            ProfileItem::Method(_) | ProfileItem::Lines(_) | ProfileItem::Object(_) | ProfileItem::DumpEnd(_) => {}
        }
    }

    fn add_sample(&mut self, sample: &ProfileSample<'_>) {
        let source = StackSource::of(sample.counted);
        let covers = sample.covers.unwrap_or(0);
        let about = self.about(source, &sample.agent);
        about.note(sample.time.map(|time| time.saturating_sub(covers)), covers);
        about.events += 1;
        about.periods.extend(sample.period.map(|period| (sample.clock, period)));
        about.is_incomplete |= sample.is_incomplete;
        stacks_of(&mut self.stacks, source, self.limits).add(sample);
    }

    /// Adds a span to the stacks; the timeline does not get it.
    pub fn add_span(&mut self, span: &ProfileSpan<'_>) {
        let about = self.about(StackSource::Spans, &span.agent);
        about.note(span.start, span.duration.unwrap_or(0));
        about.events += 1;
        self.spans.add(span, stacks_of(&mut self.stacks, StackSource::Spans, self.limits));
    }

    fn add_call(&mut self, call: &Call<'_>) {
        let about = self.about(StackSource::Entries, &call.agent);
        about.note(call.at, 0);
        about.events += u64::from(call.step != CallStep::Break);
        self.logs.add(call, stacks_of(&mut self.stacks, StackSource::Entries, self.limits));
    }

    /// What is known of a process.
    fn about(&mut self, source: StackSource, agent: &str) -> &mut About {
        let place = match &self.last {
            Some((of, process, place)) if *of == source && **process == *agent => *place,
            _ => self.place(source, agent),
        };
        &mut self.about[place]
    }

    /// The place of what is known of a process.
    fn place(&mut self, source: StackSource, agent: &str) -> usize {
        let mut key = (source, process_text(agent));
        if self.limits.is_some_and(|limits| self.about.len() >= limits.processes) && !self.places.contains_key(&key) {
            OTHERS.clone_into(&mut key.1);
        }
        let place = *self.places.entry(key).or_insert(self.about.len());
        if place == self.about.len() {
            self.about.push(About::default());
        }
        self.last = Some((source, agent.into(), place));
        place
    }

    /// Nothing follows.
    pub fn finish(&mut self) {
        if let Some(stacks) = self.stacks.get_mut(&StackSource::Spans) {
            self.spans.finish(stacks);
        }
        if let Some(stacks) = self.stacks.get_mut(&StackSource::Entries) {
            self.logs.finish(stacks);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.finish();
        }
    }

    /// The items with their times, if they were asked for.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// Sums up the traces, and the entries and exits, to which nothing was added since the last call.
    pub fn sum_up_older(&mut self) {
        if let Some(stacks) = self.stacks.get_mut(&StackSource::Spans) {
            self.spans.sum_up_quiet(stacks);
        }
        if let Some(stacks) = self.stacks.get_mut(&StackSource::Entries) {
            self.logs.sum_up_older(stacks);
        }
    }

    /// Notes the calls of entries and exits that no other call of their thread encloses, until they are taken.
    pub fn note_outermost_calls(&mut self) {
        self.logs.note_outermost();
    }

    /// Gives the noted calls to `take`: the function, its time in nanoseconds, and whether it ended by an exception.
    pub fn take_outermost_calls(&mut self, mut take: impl FnMut(&str, u64, bool)) {
        let calls = self.logs.take_outermost();
        let Some(stacks) = self.stacks.get(&StackSource::Entries) else { return };
        for OutermostCall { frame, millis, has_failed } in calls {
            take(stacks.frame_text(frame), millis.saturating_mul(NANOS_PER_MILLI), has_failed);
        }
    }

    /// Sums up traces before all of their spans have come: see [`Spans::sum_up_half`].
    pub fn sum_up_half(&mut self, has_one: bool) {
        if let Some(stacks) = self.stacks.get_mut(&StackSource::Spans) {
            self.spans.sum_up_half(has_one, stacks);
        }
    }

    /// Lets stacks have no further paths and names, or as many as they had at first.
    pub fn set_full(&mut self, is_full: bool) {
        let Some(limits) = self.limits.as_mut() else { return };
        limits.is_full = is_full;
        let (nodes, name_bytes) = limits.of_stacks();
        self.stacks.values_mut().for_each(|stacks| stacks.set_bounds(nodes, name_bytes));
    }

    /// The stacks of each source, to take their sums or to begin others.
    pub fn all_stacks(&mut self) -> impl Iterator<Item = (StackSource, &mut Stacks)> {
        self.stacks.iter_mut().map(|(source, stacks)| (*source, stacks))
    }

    /// Begins new stacks of a source if `is_large` says so of those that there are, and returns these. Entries and exits are paired by
    /// their stacks, which stay.
    pub fn renew_stacks(&mut self, source: StackSource, is_large: impl FnOnce(&Stacks) -> bool) -> Option<Stacks> {
        let limits = self.limits.filter(|_| source != StackSource::Entries)?;
        let stacks = self.stacks.get_mut(&source).filter(|stacks| is_large(stacks))?;
        if source == StackSource::Spans {
            self.spans.finish(stacks);
        }
        Some(std::mem::replace(stacks, limits.stacks()))
    }

    /// A copy of one source.
    pub fn copy_of(&self, source: StackSource) -> Option<Collected> {
        let mut copy = Collected { limits: self.limits, ..Collected::default() };
        copy.stacks.insert(source, self.stacks.get(&source)?.clone());
        match source {
            StackSource::Spans => copy.spans = self.spans.clone(),
            StackSource::Entries => copy.logs = self.logs.clone(),
            _ => {}
        }
        Some(copy)
    }

    /// Bytes of stacks, and of spans, entries and exits that wait, approximately.
    pub fn memory_bytes(&self) -> [usize; 2] {
        let stacks = self.stacks.values().map(Stacks::memory_bytes);
        [stacks.sum(), self.spans.memory_bytes() + self.logs.memory_bytes()]
    }

    /// How many events of a source there are.
    pub fn events(&self, source: StackSource) -> u64 {
        self.processes(source).into_iter().map(|(_, about)| about.events).sum()
    }

    /// The sources that have events, those of our own first.
    pub fn sources(&self) -> Vec<StackSource> {
        self.stacks.keys().copied().filter(|source| self.events(*source) > 0).collect()
    }

    /// The processes that a source has stacks of, in order.
    pub fn processes(&self, source: StackSource) -> Vec<(&str, &About)> {
        let of = self.places.iter().filter(|((of, _), _)| *of == source);
        of.map(|((_, process), place)| (process.as_str(), &self.about[*place])).collect()
    }

    /// The stacks of a source.
    pub fn stacks(&self, source: StackSource) -> Option<&Stacks> {
        self.stacks.get(&source)
    }

    /// Traces that were summed up before all of their spans had come.
    pub fn early_traces(&self) -> u64 {
        self.spans.early()
    }
}

/// The stacks of a source.
fn stacks_of(
    all: &mut BTreeMap<StackSource, Stacks>,
    source: StackSource,
    limits: Option<CollectedLimits>,
) -> &mut Stacks {
    let new = || limits.map_or_else(Stacks::default, CollectedLimits::stacks);
    all.entry(source).or_insert_with(new)
}

/// The processes of a profile together.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Shown<'a> {
    pub source: StackSource,
    pub counted: Counted,
    pub processes: Vec<(&'a str, &'a About)>,
}

impl Shown<'_> {
    /// Their events.
    pub fn events(&self) -> u64 {
        self.processes.iter().map(|(_, about)| about.events).sum()
    }

    /// Whether deep frames were folded into their callers when the samples were made.
    pub fn is_incomplete(&self) -> bool {
        self.processes.iter().any(|(_, about)| about.is_incomplete)
    }

    /// The process, or the number of the processes.
    pub fn processes_text(&self) -> String {
        match &self.processes[..] {
            [(process, _)] => (*process).to_owned(),
            several => format!("{} processes", several.len()),
        }
    }

    /// The processes, the samples, the clock, and the span of time.
    pub fn title(&self, total: u64) -> String {
        let mut parts = vec![format!("{}: {}", self.processes_text(), self.source.words(self.events()))];
        if self.counted != Counted::Cpu {
            let has_unit = matches!(self.counted.unit(), "nanoseconds" | "bytes");
            let unit = if has_unit { "" } else { self.counted.things() };
            parts.push(format!("{} {unit}", report::value(self.counted, total)).trim_end().to_owned());
        }
        parts.extend(self.clock());
        parts.extend(self.time());
        parts.join(", ")
    }

    fn clock(&self) -> Option<String> {
        let periods: BTreeSet<_> = self.processes.iter().flat_map(|(_, about)| about.periods.iter().copied()).collect();
        let name = |clock| match clock {
            Some(Clock::Cpu) => "of processor time",
            Some(Clock::Wall) => "of wall-clock time",
            None => "",
        };
        match (self.source, &periods.into_iter().collect::<Vec<_>>()[..]) {
            (StackSource::CallSamples | StackSource::Spans | StackSource::Entries, _) => {
                Some("wall-clock time".to_owned())
            }
            (_, []) => None,
            (_, [(clock, period)]) => {
                let millis = *period as f64 / 1e6;
                Some(format!("one every {millis} ms {}", name(*clock)).trim_end().to_owned())
            }
            (_, _) => Some("at several intervals".to_owned()),
        }
    }

    /// The first and the last time, in nanoseconds since the epoch.
    fn bounds(&self) -> Option<(u64, u64)> {
        let first = self.processes.iter().filter_map(|(_, about)| about.first).min()?;
        let last = self.processes.iter().filter_map(|(_, about)| about.last).max()?;
        Some((first, last))
    }

    fn time(&self) -> Option<String> {
        let (first, last) = self.bounds()?;
        let start = Timestamp::from_nanosecond(first.into()).ok()?.strftime("%Y-%m-%d %H:%M:%S UTC");
        Some(format!("{start}, {:.3} s", (last - first) as f64 / 1e9))
    }

    /// What a pprof profile says besides its stacks.
    pub fn about<'a>(&self, title: &'a str) -> pprof::About<'a> {
        let mut values: Vec<_> =
            self.source.quantities().into_iter().map(|it| (it.sample_type(), it.unit(), it, 1)).collect();
        values.sort_by_key(|(_, _, counted, _)| *counted != self.counted);
        let mut periods = self.processes.iter().flat_map(|(_, about)| about.periods.iter());
        let mut period = None;
        if let Some((clock, nanos)) = periods.next()
            && periods.all(|other| other == &(*clock, *nanos))
        {
            let clock = if *clock == Some(Clock::Wall) { "wall" } else { "cpu" };
            period = Some((clock, *nanos));
            if self.counted == Counted::Cpu {
                values = vec![("samples", "count", Counted::Cpu, 1), (clock, "nanoseconds", Counted::Cpu, *nanos)];
            }
        } else if self.counted == Counted::Cpu {
            values = vec![("samples", "count", Counted::Cpu, 1)];
        }
        let (first, last) = self.bounds().unzip();
        let duration = last.unwrap_or(0) - first.unwrap_or(0);
        pprof::About { values, title, start: first, duration, period }
    }
}
