//! The stacks of an input: of its samples, of its spans, and of its entries and exits of calls.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::super::counted;
use crate::profile::logs::CallLogs;
use crate::profile::spans::Spans;
use crate::profile::stacks::{Stacks, process_text};
use crate::profile::{Call, Clock, Counted, Item, Step, pprof, report};

/// What stacks are made of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::cli) enum Source {
    Cpu,
    CallSamples,
    Spans,
    Entries,
    Allocations,
    Heap,
}

impl Source {
    /// In the order of preference.
    pub(in crate::cli) const ALL: [Source; 6] =
        [Source::Cpu, Source::CallSamples, Source::Spans, Source::Entries, Source::Allocations, Source::Heap];

    fn of(counted: Counted) -> Source {
        match counted {
            Counted::Cpu => Source::Cpu,
            Counted::Allocations => Source::Allocations,
            Counted::Wall | Counted::Calls => Source::CallSamples,
            Counted::HeapBytes | Counted::HeapObjects => Source::Heap,
        }
    }

    /// The quantities that it can show.
    pub(super) fn quantities(self) -> &'static [Counted] {
        match self {
            Source::Cpu => &[Counted::Cpu],
            Source::CallSamples | Source::Spans | Source::Entries => &[Counted::Wall, Counted::Calls],
            Source::Allocations => &[Counted::Allocations],
            Source::Heap => &[Counted::HeapBytes, Counted::HeapObjects],
        }
    }

    /// A number of them in words.
    pub(super) fn words(self, count: u64) -> String {
        match self {
            Source::Cpu => format!("{} of cpu", counted(count, "sample")),
            Source::Allocations => format!("{} of allocations", counted(count, "sample")),
            Source::CallSamples => format!("{} of calls", counted(count, "sample")),
            Source::Heap => format!("{} of the heap", counted(count, "sample")),
            Source::Spans => counted(count, "span"),
            Source::Entries => format!("{count} entries and exits"),
        }
    }
}

/// What is known of a process from its events of one source.
#[derive(Clone, Debug, Default)]
pub(super) struct About {
    pub(super) events: u64,
    first: Option<u64>,
    last: Option<u64>,
    periods: BTreeSet<(Option<Clock>, u64)>,
    is_incomplete: bool,
}

/// Stacks that are being collected.
#[derive(Debug, Default)]
pub(in crate::cli) struct Collected {
    stacks: BTreeMap<Source, Stacks>,
    about: BTreeMap<(Source, String), About>,
    spans: Spans,
    logs: CallLogs,
}

impl Collected {
    pub(in crate::cli) fn add(&mut self, item: &Item<'_>) {
        let (source, agent, time, until) = match item {
            Item::Sample(sample) => {
                let covers = sample.covers.unwrap_or(0);
                (Source::of(sample.counted), &sample.agent, sample.time.map(|time| time.saturating_sub(covers)), covers)
            }
            Item::Span(span) => (Source::Spans, &span.agent, span.start, span.duration.unwrap_or(0)),
            Item::Call(call) => (Source::Entries, &call.agent, call.at, 0),
            Item::Method(_) | Item::Lines(_) | Item::Object(_) | Item::DumpEnd(_) => return,
        };
        let stacks = self.stacks.entry(source).or_default();
        let key = (source, process_text(agent));
        let about = self.about.entry(key).or_default();
        about.events += u64::from(!matches!(item, Item::Call(Call { step: Step::Break, .. })));
        if let Some(time) = time {
            about.first = Some(about.first.map_or(time, |first| first.min(time)));
            let end = time.saturating_add(until);
            about.last = Some(about.last.map_or(end, |last| last.max(end)));
        }
        match item {
            Item::Sample(sample) => {
                about.periods.extend(sample.period.map(|period| (sample.clock, period)));
                about.is_incomplete |= sample.is_incomplete;
                stacks.add(sample);
            }
            Item::Span(span) => self.spans.add(span, stacks),
            Item::Call(call) => self.logs.add(call, stacks),
            Item::Method(_) | Item::Lines(_) | Item::Object(_) | Item::DumpEnd(_) => {}
        }
    }

    /// Nothing follows.
    pub(in crate::cli) fn finish(&mut self) {
        if let Some(stacks) = self.stacks.get_mut(&Source::Spans) {
            self.spans.finish(stacks);
        }
        if let Some(stacks) = self.stacks.get_mut(&Source::Entries) {
            self.logs.finish(stacks);
        }
    }

    /// How many events of a source there are.
    pub(in crate::cli) fn events(&self, source: Source) -> u64 {
        self.about.iter().filter(|((of, _), _)| *of == source).map(|(_, about)| about.events).sum()
    }

    /// The processes that a source tells of, in order.
    pub(super) fn processes(&self, source: Source) -> Vec<(&str, &About)> {
        let of = self.about.iter().filter(|((of, _), _)| *of == source);
        of.map(|((_, process), about)| (process.as_str(), about)).collect()
    }

    pub(super) fn stacks(&self, source: Source) -> Option<&Stacks> {
        self.stacks.get(&source)
    }

    /// Traces that were summed up before all of their spans had come.
    pub(super) fn early_traces(&self) -> u64 {
        self.spans.early()
    }
}

/// The processes of a profile together.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    pub(super) source: Source,
    pub(super) counted: Counted,
    pub(super) processes: Vec<(&'a str, &'a About)>,
}

impl Shown<'_> {
    pub(in crate::cli) fn events(&self) -> u64 {
        self.processes.iter().map(|(_, about)| about.events).sum()
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.processes.iter().any(|(_, about)| about.is_incomplete)
    }

    /// The processes, the samples, the clock, and the span of time.
    pub(super) fn title(&self, total: u64) -> String {
        let who = match &self.processes[..] {
            [(process, _)] => (*process).to_owned(),
            several => format!("{} processes", several.len()),
        };
        let mut parts = vec![format!("{who}: {}", self.source.words(self.events()))];
        if self.counted != Counted::Cpu {
            let unit =
                if matches!(self.counted, Counted::Wall | Counted::HeapBytes) { "" } else { self.counted.things() };
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
            (Source::CallSamples | Source::Spans | Source::Entries, _) => Some("wall-clock time".to_owned()),
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
    pub(super) fn about<'a>(&self, title: &'a str) -> pprof::About<'a> {
        let mut values: Vec<_> =
            self.source.quantities().iter().map(|it| (it.sample_type(), it.unit(), *it, 1)).collect();
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
