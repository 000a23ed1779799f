//! A timeline for Firefox Profiler: JSON of its processed profile format, as its `src/types/profile.ts` and
//! `CHANGELOG-formats.md` describe it. Times are milliseconds since the first one.
//!
//! Samples of the chosen quantity are samples with their weights. Calls are, too: a sample for each time in which the same call
//! was the innermost one, so that their sum is its self time. Spans, and what has no known end, are markers.

mod tables;

use std::io::{self, Write};

use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::timeline::{CallChange, CallEnd, STILL_OPEN, ShownTimeline, Track, UNKNOWN_END};
use tables::{Column, SharedTables};

/// The version of the format. Newer viewers read older versions.
const PROCESSED_VERSION: u32 = 70;
/// The version of the format of Firefox itself, which is not used here but must be there.
const GECKO_VERSION: u32 = 36;
/// The categories, by number. Stacks have the first one.
const CATEGORIES: [(&str, &str); 3] = [("Other", "grey"), ("Spans", "blue"), ("Calls", "orange")];
const SPANS: u32 = 1;
const CALLS: u32 = 2;

/// The phases of a marker.
const INSTANT: u8 = 0;
const INTERVAL: u8 = 1;
const INTERVAL_START: u8 = 2;

/// Writes the items.
///
/// # Errors
/// Writing to `out` failed.
pub fn write(shown: &ShownTimeline<'_>, title: &str, out: &mut impl Write) -> io::Result<()> {
    let tables = SharedTables::new(shown);
    let (first, last) = shown.bounds();
    write!(out, "{{\"meta\":{},\"libs\":[],\"shared\":", meta(shown, title, first, last))?;
    serde_json::to_writer(&mut *out, &tables)?;
    out.write_all(b",\"threads\":[")?;
    let mut tid = 0;
    for (pid, process) in (1..).zip(&shown.processes) {
        for (at, track) in process.tracks.iter().enumerate() {
            tid += 1;
            out.write_all(if tid == 1 { b"\n" } else { b",\n" })?;
            let process = process.name;
            let thread = FirefoxThread { shown, tables: &tables, first, track, process, pid, tid, is_main: at == 0 };
            serde_json::to_writer(&mut *out, &thread)?;
        }
    }
    writeln!(out, "\n]}}")
}

fn meta(shown: &ShownTimeline<'_>, title: &str, first: u64, last: u64) -> Value {
    let categories = CATEGORIES.map(|(name, color)| json!({"name": name, "color": color, "subcategories": ["Other"]}));
    let schema = |name: &str, fields: &[(&str, &str)]| {
        let fields: Vec<_> =
            fields.iter().map(|(key, label)| json!({"key": key, "label": label, "format": "string"})).collect();
        json!({
            "name": name,
            "tooltipLabel": "{marker.name}",
            "tableLabel": "{marker.data.detail}",
            "chartLabel": "{marker.name}",
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "fields": fields,
        })
    };
    let span = [("detail", "Detail"), ("trace", "Trace"), ("span", "Span"), ("parent", "Parent"), ("end", "End")];
    let left_out: Vec<_> = shown
        .left_out()
        .into_iter()
        .map(|(count, why)| json!({"label": format!("Items {why}"), "format": "integer", "value": count}))
        .collect();
    let mut meta = json!({
        "interval": 1,
        "startTime": millis(first),
        "profilingStartTime": 0,
        "profilingEndTime": millis(last - first),
        "processType": 0,
        "categories": categories,
        "product": title,
        "importedFrom": "tributary",
        "stackwalk": 1,
        "version": GECKO_VERSION,
        "preprocessedProfileVersion": PROCESSED_VERSION,
        "symbolicated": true,
        "symbolicationNotSupported": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "keepProfileThreadOrder": true,
        "markerSchema": [schema("span", &span), schema("call", &[("end", "End")])],
    });
    if !left_out.is_empty() {
        meta["extra"] = json!([{"label": "Left out", "entries": left_out}]);
    }
    meta
}

fn millis(nanos: u64) -> f64 {
    nanos as f64 / 1e6
}

/// A sample of a thread.
#[derive(Clone, Copy, PartialEq, Debug)]
struct WeightedSample {
    /// `None`: no call is open.
    stack: Option<u32>,
    time: f64,
    weight: f64,
}

/// A span or a call without a known end.
struct MarkerRow<'a> {
    name: &'a str,
    start: u64,
    end: Option<u64>,
    phase: u8,
    category: u32,
    data: MarkerData<'a>,
}

#[derive(Serialize)]
struct MarkerData<'a> {
    #[serde(rename = "type")]
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
}

/// A thread of the profile.
struct FirefoxThread<'a> {
    shown: &'a ShownTimeline<'a>,
    tables: &'a SharedTables<'a>,
    first: u64,
    track: &'a Track<'a>,
    process: &'a str,
    pid: u32,
    tid: u32,
    is_main: bool,
}

impl FirefoxThread<'_> {
    fn millis(&self, time: u64) -> f64 {
        millis(time - self.first)
    }

    /// The samples in the order of time, and the type of their weights.
    fn samples(&self) -> (Vec<WeightedSample>, &'static str) {
        if !self.track.calls.is_empty() {
            return (self.samples_of_calls(), "tracing-ms");
        }
        let unit = self.shown.counted.unit();
        let weight = |value: u64| if unit == "nanoseconds" { millis(value) } else { value as f64 };
        let samples = self.shown.samples(self.track).map(|sample| WeightedSample {
            stack: self.tables.stack(sample.node),
            time: self.millis(sample.time),
            weight: weight(sample.value),
        });
        let kind = match unit {
            "nanoseconds" => "tracing-ms",
            "bytes" => "bytes",
            _ => "samples",
        };
        (samples.collect(), kind)
    }

    /// A sample for each time in which the same call was the innermost one. Calls without an end have no time of their own.
    fn samples_of_calls(&self) -> Vec<WeightedSample> {
        let (mut samples, mut open, mut since) = (Vec::new(), Vec::new(), 0);
        self.track.changes(|change| {
            let at = match change {
                CallChange::Begin(call) => call.start,
                CallChange::End(_, end) => end,
                CallChange::Unended(_) => return,
            };
            if let Some(node) = open.last()
                && at > since
            {
                let stack = self.tables.stack(*node);
                samples.push(WeightedSample { stack, time: self.millis(since), weight: millis(at - since) });
            }
            since = at;
            match change {
                CallChange::Begin(call) => open.push(call.node),
                _ => {
                    open.pop();
                    if open.is_empty() {
                        samples.push(WeightedSample { stack: None, time: self.millis(at), weight: 0.0 });
                    }
                }
            }
        });
        samples
    }

    fn markers(&self) -> impl Iterator<Item = MarkerRow<'_>> {
        let name = |frame: u32| self.shown.frame(frame).name();
        let spans = self.track.spans.iter().map(move |span| MarkerRow {
            name: name(span.name),
            start: span.start,
            end: span.duration.map(|duration| span.start.saturating_add(duration)),
            phase: if span.duration.is_some() { INTERVAL } else { INSTANT },
            category: SPANS,
            data: MarkerData {
                schema: "span",
                detail: span.detail.map(name),
                trace: Some(format!("{:032x}", span.trace)),
                span: Some(format!("{:016x}", span.id)),
                parent: span.parent.map(|parent| format!("{parent:016x}")),
                end: span.duration.is_none().then_some(UNKNOWN_END),
            },
        });
        let calls = self.track.calls.iter().filter_map(move |call| {
            let (phase, end) = match call.end {
                CallEnd::At(_) => return None,
                CallEnd::Unknown => (INSTANT, UNKNOWN_END),
                CallEnd::Open => (INTERVAL_START, STILL_OPEN),
            };
            let data =
                MarkerData { schema: "call", detail: None, trace: None, span: None, parent: None, end: Some(end) };
            Some(MarkerRow { name: name(call.frame), start: call.start, end: None, phase, category: CALLS, data })
        });
        spans.chain(calls)
    }
}

/// The columns of the samples and of the markers of a thread.
struct SampleTable<'a>(&'a FirefoxThread<'a>);
struct MarkerTable<'a>(&'a FirefoxThread<'a>);

impl Serialize for SampleTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (samples, kind) = self.0.samples();
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("stack", &Column(|| samples.iter().map(|sample| sample.stack)))?;
        table.serialize_entry("time", &Column(|| samples.iter().map(|sample| sample.time)))?;
        table.serialize_entry("weight", &Column(|| samples.iter().map(|sample| sample.weight)))?;
        table.serialize_entry("weightType", kind)?;
        table.serialize_entry("length", &samples.len())?;
        table.end()
    }
}

impl Serialize for MarkerTable<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let MarkerTable(thread) = *self;
        let markers = || thread.markers();
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("name", &Column(|| markers().map(|marker| thread.tables.text(marker.name))))?;
        table.serialize_entry("startTime", &Column(|| markers().map(|marker| thread.millis(marker.start))))?;
        table
            .serialize_entry("endTime", &Column(|| markers().map(|marker| marker.end.map(|end| thread.millis(end)))))?;
        table.serialize_entry("phase", &Column(|| markers().map(|marker| marker.phase)))?;
        table.serialize_entry("category", &Column(|| markers().map(|marker| marker.category)))?;
        table.serialize_entry("data", &Column(|| markers().map(|marker| marker.data)))?;
        table.serialize_entry("length", &markers().count())?;
        table.end()
    }
}

impl Serialize for FirefoxThread<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut thread = serializer.serialize_map(None)?;
        thread.serialize_entry("processType", "default")?;
        thread.serialize_entry("processStartupTime", &0)?;
        thread.serialize_entry("processShutdownTime", &())?;
        thread.serialize_entry("registerTime", &0)?;
        thread.serialize_entry("unregisterTime", &())?;
        thread.serialize_entry("pausedRanges", &[(); 0])?;
        thread.serialize_entry("showMarkersInTimeline", &true)?;
        thread.serialize_entry("name", &self.track.name)?;
        thread.serialize_entry("isMainThread", &self.is_main)?;
        thread.serialize_entry("processName", self.process)?;
        thread.serialize_entry("pid", &self.pid.to_string())?;
        thread.serialize_entry("tid", &self.tid)?;
        thread.serialize_entry("samples", &SampleTable(self))?;
        thread.serialize_entry("markers", &MarkerTable(self))?;
        thread.end()
    }
}
