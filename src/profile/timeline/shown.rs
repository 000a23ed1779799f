//! The items of a timeline that are written, by process and thread.

use std::collections::BTreeMap;

use super::super::Counted;
use super::super::stacks::{Stacks, TreeFrame};
use super::super::words::counted;
use super::{CallEnd, TimedCall, TimedSample, TimedSpan, Timeline};

impl Timeline {
    /// The processes for which `is_wanted`, with their threads, in the order of their names, that have an item: samples are
    /// items only of `counted`. Call [`Timeline::finish`] first.
    pub fn shown(&self, is_wanted: impl Fn(&str) -> bool, counted: Counted) -> ShownTimeline<'_> {
        let mut processes: BTreeMap<&str, BTreeMap<(&str, Option<u64>), u32>> = BTreeMap::new();
        for (track, (thread, id)) in (0..).zip(&self.track_keys) {
            let process = self.stacks.tree().nodes()[*thread as usize].caller;
            let (process, thread) = (&*self.stacks.named(process).text, &*self.stacks.named(*thread).text);
            if is_wanted(process) {
                processes.entry(process).or_default().insert((thread, *id), track);
            }
        }
        let mut shown = ShownTimeline { timeline: self, counted, processes: Vec::new() };
        for (process, tracks) in processes {
            let tracks = tracks.into_iter().map(|((name, id), track)| self.track_of(track, name, id));
            let tracks: Vec<_> = tracks.filter(|track| shown.has_items(track)).collect();
            if !tracks.is_empty() {
                shown.processes.push(ProcessTracks { name: process, tracks });
            }
        }
        shown
    }

    fn track_of<'a>(&'a self, track: u32, name: &str, id: Option<u64>) -> Track<'a> {
        let name = match (name, id) {
            ("", None) => "(thread without a name)".to_owned(),
            ("", Some(id)) => format!("thread {id}"),
            (name, _) => name.to_owned(),
        };
        Track {
            name,
            spans: part(&self.spans, track, |span| span.track),
            calls: part(&self.calls, track, |call| call.track),
            samples: part(&self.samples, track, |sample| sample.track),
        }
    }
}

/// The items of a track, of all items in the order of their tracks.
fn part<T>(items: &[T], track: u32, track_of: impl Fn(&T) -> u32) -> &[T] {
    let first = items.partition_point(|item| track_of(item) < track);
    let len = items[first..].partition_point(|item| track_of(item) == track);
    &items[first..first + len]
}

/// The items that are written.
#[derive(Debug)]
pub struct ShownTimeline<'a> {
    timeline: &'a Timeline,
    /// The quantity of the samples.
    pub(crate) counted: Counted,
    pub(crate) processes: Vec<ProcessTracks<'a>>,
}

/// The threads of a process.
#[derive(Debug)]
pub(crate) struct ProcessTracks<'a> {
    pub(crate) name: &'a str,
    pub(crate) tracks: Vec<Track<'a>>,
}

/// The items of a thread, in the order of their times.
#[derive(Debug)]
pub(crate) struct Track<'a> {
    pub(crate) name: String,
    pub(crate) spans: &'a [TimedSpan],
    /// In the order of their entries: callers before callees.
    pub(crate) calls: &'a [TimedCall],
    samples: &'a [TimedSample],
}

/// What happens with the calls of a thread, in the order of time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallChange<'a> {
    /// It begins, and has an end.
    Begin(&'a TimedCall),
    /// It ends, at this time.
    End(&'a TimedCall, u64),
    /// It begins; its end is unknown.
    Unended(&'a TimedCall),
}

impl Track<'_> {
    /// Passes what happens with calls to `take`, correctly nested.
    pub(crate) fn changes(&self, mut take: impl FnMut(CallChange<'_>)) {
        let mut open: Vec<(&TimedCall, u64)> = Vec::new();
        for call in self.calls {
            while let Some((ended, end)) = open.pop_if(|(open, _)| open.depth >= call.depth) {
                take(CallChange::End(ended, end));
            }
            match call.end {
                CallEnd::At(end) => {
                    take(CallChange::Begin(call));
                    open.push((call, end));
                }
                CallEnd::Unknown | CallEnd::Open => take(CallChange::Unended(call)),
            }
        }
        open.into_iter().rev().for_each(|(ended, end)| take(CallChange::End(ended, end)));
    }
}

impl<'a> ShownTimeline<'a> {
    /// The stacks of calls and samples.
    pub(crate) fn stacks(&self) -> &'a Stacks {
        &self.timeline.stacks
    }

    /// A frame.
    pub(crate) fn frame(&self, frame: u32) -> &'a TreeFrame {
        &self.timeline.stacks.all_frames()[frame as usize]
    }

    /// The samples of a thread that are shown.
    pub(crate) fn samples(&self, track: &Track<'a>) -> impl Iterator<Item = &'a TimedSample> + Clone {
        let counted = self.counted;
        track.samples.iter().filter(move |sample| sample.counted == counted)
    }

    fn has_items(&self, track: &Track<'a>) -> bool {
        !track.spans.is_empty() || !track.calls.is_empty() || self.samples(track).next().is_some()
    }

    fn tracks(&self) -> impl Iterator<Item = &Track<'a>> {
        self.processes.iter().flat_map(|process| &process.tracks)
    }

    /// The first and the last time, in nanoseconds since the epoch.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        let (mut first, mut last) = (u64::MAX, 0);
        let mut has = |start: u64, end: u64| (first, last) = (first.min(start), last.max(end));
        for track in self.tracks() {
            for span in track.spans {
                has(span.start, span.start.saturating_add(span.duration.unwrap_or(0)));
            }
            for call in track.calls {
                has(call.start, if let CallEnd::At(end) = call.end { end } else { call.start });
            }
            self.samples(track).for_each(|sample| has(sample.time, sample.time));
        }
        (first.min(last), last)
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// What is written, and what is not, in lines.
    pub fn words(&self) -> Vec<String> {
        let sum = |of: &dyn Fn(&Track<'a>) -> usize| self.tracks().map(|track| of(track) as u64).sum::<u64>();
        let calls_with = |end: CallEnd| sum(&|track| track.calls.iter().filter(|call| call.end == end).count());
        let spans = sum(&|track| track.spans.len());
        let unended = sum(&|track| track.spans.iter().filter(|span| span.duration.is_none()).count());
        let calls = sum(&|track| track.calls.len());
        let samples = sum(&|track| self.samples(track).count());
        let mut kinds = Vec::new();
        for (count, thing) in [(spans, "span"), (calls, "call"), (samples, "sample")] {
            if count > 0 {
                kinds.push(counted(count, thing));
            }
        }
        let mut lines = vec![kinds.join(", ")];
        for (count, thing, what) in [
            (unended, "span", "without an end: instants"),
            (calls_with(CallEnd::Unknown), "call", "without an exit: instants"),
            (calls_with(CallEnd::Open), "call", "open at the end of the input"),
        ] {
            if count > 0 {
                lines.push(format!("{} {what}", counted(count, thing)));
            }
        }
        lines.extend(
            self.left_out().into_iter().map(|(count, why)| format!("{} left out: {why}", counted(count, "item"))),
        );
        lines
    }

    /// How many items are left out, and why. Those of all processes count.
    pub(crate) fn left_out(&self) -> Vec<(u64, &'static str)> {
        let Timeline { without_time, left_out, .. } = *self.timeline;
        let reasons = [(without_time, "without a time"), (left_out, "over the limit")];
        reasons.into_iter().filter(|(count, _)| *count > 0).collect()
    }
}
