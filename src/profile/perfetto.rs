//! A timeline for Perfetto and `chrome://tracing`: JSON of the Trace Event Format. Times are microseconds since the first one.
//!
//! Calls are begins and ends (`B`, `E`), which nest as they were called also within a microsecond; spans are complete events
//! (`X`); samples, and what has no known end, are instants (`i`). Events of one thread must nest, so spans that
//! overlap are on several lanes, which are threads of the file.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::timeline::{CallChange, CallEnd, ProcessTracks, STILL_OPEN, ShownTimeline, TimedSpan, Track, UNKNOWN_END};

/// The lanes of a thread; spans that overlap with more others are pairs of asynchronous events (`b`, `e`).
const MAX_LANES: usize = 64;

#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    ph: char,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: usize,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The scope of an instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

/// Writes the items.
///
/// # Errors
/// Writing to `out` failed.
pub fn write(shown: &ShownTimeline<'_>, title: &str, out: &mut impl Write) -> io::Result<()> {
    let (first, _) = shown.bounds();
    let mut other = json!({
        "generator": concat!("tributary ", env!("CARGO_PKG_VERSION")),
        "title": title,
        "start_unix_ns": first.to_string(),
    });
    for (count, why) in shown.left_out() {
        other[format!("left out {why}")] = json!(count);
    }
    write!(out, "{{\"otherData\":{other},\"traceEvents\":[")?;
    let mut events = TraceEvents { shown, first, pid: 0, tid: 0, is_first: true, out };
    for process in &shown.processes {
        events.process(process)?;
    }
    writeln!(out, "\n]}}")
}

/// The events that are written.
struct TraceEvents<'a, W> {
    shown: &'a ShownTimeline<'a>,
    /// The time that is 0.
    first: u64,
    /// The numbers of the process and of the lane. Both are unique in the file.
    pid: usize,
    tid: usize,
    is_first: bool,
    out: &'a mut W,
}

impl<W: Write> TraceEvents<'_, W> {
    fn process(&mut self, process: &ProcessTracks<'_>) -> io::Result<()> {
        self.pid += 1;
        self.metadata("process_name", process.name)?;
        process.tracks.iter().try_for_each(|track| self.track(track))
    }

    fn track(&mut self, track: &Track<'_>) -> io::Result<()> {
        self.tid += 1;
        self.metadata("thread_name", &track.name)?;
        let mut result = Ok(());
        track.changes(|change| {
            if result.is_ok() {
                result = self.call(change);
            }
        });
        result?;
        for sample in self.shown.samples(track) {
            let mut event = self.event('i', "sample", self.shown.stacks().named(sample.node).name(), sample.time);
            event.s = Some("t");
            let mut frames: Vec<&str> =
                self.shown.stacks().calls_of(sample.node).map(|frame| &*self.shown.frame(frame).text).collect();
            frames.reverse();
            event.args.insert("stack".to_owned(), frames.join(";").into());
            event.args.insert("type".to_owned(), sample.counted.sample_type().into());
            event.args.insert("value".to_owned(), sample.value.into());
            event.args.insert("unit".to_owned(), sample.counted.unit().into());
            self.put(&event)?;
        }
        self.spans(track)
    }

    fn call(&mut self, change: CallChange<'_>) -> io::Result<()> {
        let event = match change {
            CallChange::Begin(call) => self.event('B', "call", self.shown.frame(call.frame).name(), call.start),
            CallChange::End(call, end) => self.event('E', "call", self.shown.frame(call.frame).name(), end),
            CallChange::Unended(call) => {
                let is_open = call.end == CallEnd::Open;
                let phase = if is_open { 'B' } else { 'i' };
                let mut event = self.event(phase, "call", self.shown.frame(call.frame).name(), call.start);
                event.s = (!is_open).then_some("t");
                event.args.insert("end".to_owned(), if is_open { STILL_OPEN } else { UNKNOWN_END }.into());
                event
            }
        };
        self.put(&event)
    }

    /// Writes the spans of a thread, on its lane and on others behind it.
    fn spans(&mut self, track: &Track<'_>) -> io::Result<()> {
        let base = self.tid;
        // The ends and traces of the open spans of each lane. Spans of other traces are not within each other.
        let mut lanes: Vec<Vec<(u64, u128)>> = vec![Vec::new()];
        for span in track.spans {
            let mut event = self.event('X', "span", self.shown.frame(span.name).name(), span.start);
            event.args = self.arguments(span);
            let Some(duration) = span.duration else {
                (event.ph, event.s) = ('i', Some("t"));
                event.args.insert("end".to_owned(), UNKNOWN_END.into());
                self.put(&TraceEvent { tid: base, ..event })?;
                continue;
            };
            let end = span.start.saturating_add(duration);
            let lane = lanes.iter_mut().position(|open| {
                while open.pop_if(|(open, _)| *open <= span.start).is_some() {}
                open.last().is_none_or(|(open, trace)| end <= *open && span.trace == *trace)
            });
            let lane = lane.unwrap_or(lanes.len());
            if lane == MAX_LANES {
                let id = format!("{:x}-{:x}", span.trace, span.id);
                let event = TraceEvent { ph: 'b', tid: base, id: Some(id.clone()), ..event };
                self.put(&event)?;
                let end = self.micros(end);
                self.put(&TraceEvent { ph: 'e', ts: end, args: Map::new(), ..event })?;
                continue;
            }
            if lane == lanes.len() {
                lanes.push(Vec::new());
                self.tid = base + lane;
                self.metadata("thread_name", &format!("{} (lane {})", track.name, lane + 1))?;
            }
            lanes[lane].push((end, span.trace));
            self.put(&TraceEvent { tid: base + lane, dur: Some(duration as f64 / 1000.0), ..event })?;
        }
        self.tid = base + lanes.len() - 1;
        Ok(())
    }

    fn arguments(&self, span: &TimedSpan) -> Map<String, Value> {
        let mut arguments = Map::new();
        if let Some(detail) = span.detail {
            arguments.insert("detail".to_owned(), self.shown.frame(detail).name().into());
        }
        arguments.insert("trace_id".to_owned(), format!("{:032x}", span.trace).into());
        arguments.insert("span_id".to_owned(), format!("{:016x}", span.id).into());
        if let Some(parent) = span.parent {
            arguments.insert("parent_id".to_owned(), format!("{parent:016x}").into());
        }
        arguments
    }

    fn metadata(&mut self, name: &'static str, of: &str) -> io::Result<()> {
        let mut event = self.event('M', "", name, self.first);
        event.args.insert("name".to_owned(), of.into());
        self.put(&event)
    }

    fn event<'b>(&self, ph: char, cat: &'b str, name: &'b str, time: u64) -> TraceEvent<'b> {
        let TraceEvents { pid, tid, .. } = *self;
        TraceEvent { name, cat, ph, ts: self.micros(time), dur: None, pid, tid, id: None, s: None, args: Map::new() }
    }

    fn micros(&self, time: u64) -> f64 {
        (time - self.first) as f64 / 1000.0
    }

    fn put(&mut self, event: &TraceEvent<'_>) -> io::Result<()> {
        self.out.write_all(if self.is_first { b"\n" } else { b",\n" })?;
        self.is_first = false;
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }
}
