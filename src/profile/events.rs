//! Extracts the items of profiles from events: from batches, and from event files as the JSON encoder writes them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;
use lz4_flex::frame::FrameDecoder;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::coverage::{Lines as SourceLines, Method, Told};
use super::{Call, Clock, Counted, Dump, Frame, Item, Object, Sample, Site, Span, Step};
use crate::event::{
    Batch, DataView, EventView, Number, Resource, ResourceValue, SampleClock, SampleView, UnixNanos, ValueView,
    semconv as names,
};

const HEAP_OBJECT: &str = names::RBKIT_HEAP_OBJECT.as_str();
const HEAP_DUMP: &str = names::RBKIT_HEAP_DUMP.as_str();
const ENTRY: &str = names::BYTEFROG_METHOD_ENTRY.as_str();
const EXIT: &str = names::BYTEFROG_METHOD_EXIT.as_str();
const BUBBLED: &str = names::BYTEFROG_EXCEPTION_BUBBLED.as_str();
const BREAK: &str = names::BYTEFROG_DATA_BREAK.as_str();
const COVERED: &str = names::BYTEFROG_METHOD_COVERED.as_str();
const MAPPED: &str = names::BYTEFROG_METHOD_MAPPED.as_str();
const LOCATION: &str = names::BYTEFROG_SOURCE_LOCATION_MAPPED.as_str();
const VISIT: &str = names::BYTEFROG_METHOD_VISIT.as_str();

/// Longer lines of an event file are skipped. An object with a million references has a third of this length.
const MAX_LINE_BYTES: usize = 64 << 20;

/// The items of a batch, in its order.
pub fn items(batch: &Batch) -> impl Iterator<Item = Item<'_>> {
    batch.events().filter_map(|event| {
        let name = event.name().text();
        if !is_wanted(event.kind().as_str(), name) {
            return None;
        }
        let data = match event.data() {
            DataView::Sample(view) => Data::Sample(sample(view)),
            DataView::Span(span) => Data::Span(SpanParts {
                trace: u128::from_be_bytes(span.trace_id.0),
                id: u64::from_be_bytes(span.span_id.0),
                parent: span.parent.map(|parent| u64::from_be_bytes(parent.0)),
                duration: span.duration_nanos,
            }),
            _ => Data::Log,
        };
        let origin = event.origin();
        let resource = resource(event.resource());
        let time = event.time().map(|UnixNanos(time)| time);
        let agent = resource.agent(origin.protocol, &origin.peer);
        let attributes = attributes(event);
        let (peer, connection, sequence) = (Cow::Borrowed(&*origin.peer), origin.connection, event.position().sequence);
        let pid = resource.pid;
        Parts { name: name.into(), time, data, attributes, agent, peer, connection, pid, sequence }
            .item()
            .ok()
            .flatten()
    })
}

/// The process of an event in words, different for different processes, as in the items.
pub fn agent(event: EventView<'_>) -> String {
    let origin = event.origin();
    resource(event.resource()).agent(origin.protocol, &origin.peer)
}

/// Whether events of this kind and name are items.
fn is_wanted(kind: &str, name: &str) -> bool {
    match kind {
        "sample" | "span" => true,
        "loss" => name == BREAK,
        "log" => [HEAP_OBJECT, HEAP_DUMP, ENTRY, EXIT, BUBBLED, COVERED, MAPPED, LOCATION, VISIT].contains(&name),
        _ => false,
    }
}

/// The parts of an event that items are made of.
struct Parts<'a> {
    name: Cow<'a, str>,
    time: Option<u64>,
    data: Data<'a>,
    attributes: Attributes<'a>,
    agent: String,
    peer: Cow<'a, str>,
    connection: u64,
    pid: Option<u64>,
    sequence: Option<u64>,
}

enum Data<'a> {
    Sample(SampleParts<'a>),
    Span(SpanParts),
    Log,
}

struct SampleParts<'a> {
    sample_type: Cow<'a, str>,
    value: u64,
    frames: Vec<Frame<'a>>,
    period: Option<u64>,
    clock: Option<Clock>,
}

struct SpanParts {
    trace: u128,
    id: u64,
    parent: Option<u64>,
    duration: Option<u64>,
}

impl<'a> Parts<'a> {
    /// The item. An error: the event lacks what events of its name have.
    fn item(self) -> Result<Option<Item<'a>>, ()> {
        let Parts { name, time, data, attributes, agent, peer, connection, pid, sequence } = self;
        let Attributes { id, class, references, file, line, size, dump, object_count, .. } = attributes;
        let Attributes {
            thread,
            thread_id,
            function,
            method,
            relative_ms,
            detail,
            incomplete,
            line_end,
            number,
            interval_ms,
            ..
        } = attributes;
        let (site, agent) = (Site { file, line }, Cow::Owned(agent));
        match data {
            Data::Sample(SampleParts { sample_type, value, frames, period, clock }) => {
                let Some(counted) = Counted::ALL.into_iter().find(|it| it.sample_type() == sample_type) else {
                    return Ok(None);
                };
                let is_incomplete = incomplete.is_some();
                let dump = dump.map(|id| Dump { peer, connection, pid, id, object_count });
                let covers = interval_ms.map(|millis| millis.saturating_mul(1_000_000));
                Ok(Some(Item::Sample(Sample {
                    counted,
                    value,
                    frames,
                    site,
                    class,
                    agent,
                    thread,
                    time,
                    covers,
                    period,
                    clock,
                    is_incomplete,
                    dump,
                })))
            }
            Data::Span(SpanParts { trace, id, parent, duration }) => {
                Ok(Some(Item::Span(Span { agent, thread, trace, id, parent, name, detail, start: time, duration })))
            }
            Data::Log if name == HEAP_DUMP || name == HEAP_OBJECT => {
                let dump = Dump { peer, connection, pid, id: dump.ok_or(())?, object_count };
                if name == HEAP_DUMP {
                    return Ok(Some(Item::DumpEnd(dump)));
                }
                let references = references.0;
                Ok(Some(Item::Object(Object { dump, id: id.ok_or(())?, class, site, size, references })))
            }
            Data::Log if name == BREAK => {
                let (sequence, at) = (number.ok_or(())? as u32, time);
                Ok(Some(Item::Call(Call { agent, step: Step::Break, sequence, at, ..Call::default() })))
            }
            Data::Log if name == COVERED || name == MAPPED => {
                let function = function.ok_or(())?;
                let runs = u64::from(name == COVERED);
                Ok(Some(Item::Method(Method { agent, id: method, function, runs, told: Told::Method })))
            }
            Data::Log if name == LOCATION || name == VISIT => {
                let Some(first) = site.line else { return Ok(None) };
                let (method, lines) = (method.ok_or(())?, (first, line_end.unwrap_or(first)));
                Ok(Some(Item::Lines(SourceLines { agent, method, lines, is_run: name == VISIT })))
            }
            Data::Log => {
                let unknown = || method.map(|method| Cow::Owned(format!("method#{method}")));
                let function = function.or_else(unknown).ok_or(())?;
                let thread_id = thread_id.ok_or(())?;
                let step = if name == ENTRY { Step::Entry } else { Step::Exit };
                let (time, at) = (relative_ms.ok_or(())? as u32, time);
                let sequence = sequence.ok_or(())? as u32;
                Ok(Some(Item::Call(Call { agent, thread_id, thread, function, method, step, time, sequence, at })))
            }
        }
    }
}

fn sample(view: SampleView<'_>) -> SampleParts<'_> {
    let value = match view.data.value {
        Number::U64(value) => value,
        Number::I64(value) => u64::try_from(value).unwrap_or(0),
        Number::F64(value) => value as u64,
    };
    let frames = view.frames().map(|frame| Frame {
        function: frame.function.map(|text| text.text().into()),
        site: Site { file: frame.file.map(|text| text.text().into()), line: frame.line },
    });
    let clock = view.data.clock.map(|clock| match clock {
        SampleClock::Cpu => Clock::Cpu,
        SampleClock::Wall => Clock::Wall,
    });
    let sample_type = view.data.sample_type.into();
    SampleParts { sample_type, value, frames: frames.collect(), period: view.data.period_nanos, clock }
}

/// The attributes that items are made of; missing ones are None or 0.
#[derive(Deserialize, Default)]
struct Attributes<'a> {
    #[serde(rename = "rbkit.object.id")]
    id: Option<u64>,
    #[serde(rename = "rbkit.class.name")]
    class: Option<Cow<'a, str>>,
    #[serde(rename = "rbkit.object.references", default)]
    references: Count,
    #[serde(rename = "code.file.path")]
    file: Option<Cow<'a, str>>,
    #[serde(rename = "code.line.number")]
    line: Option<u64>,
    #[serde(rename = "rbkit.object.size")]
    size: Option<u64>,
    #[serde(rename = "rbkit.dump.id")]
    dump: Option<u64>,
    #[serde(rename = "rbkit.dump.object_count")]
    object_count: Option<u64>,
    #[serde(rename = "thread.name")]
    thread: Option<Cow<'a, str>>,
    #[serde(rename = "thread.id")]
    thread_id: Option<u64>,
    #[serde(rename = "code.function.name")]
    function: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.method.id")]
    method: Option<u64>,
    #[serde(rename = "bytefrog.time.relative_ms")]
    relative_ms: Option<u64>,
    #[serde(rename = "datadog.resource")]
    detail: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.sequence")]
    number: Option<u64>,
    #[serde(rename = "bytefrog.line.end")]
    line_end: Option<u64>,
    #[serde(rename = "bytefrog.profile.duration_ms", alias = "zico.profile.duration_ms")]
    interval_ms: Option<u64>,
    #[serde(rename = "tributary.incomplete")]
    incomplete: Option<IgnoredAny>,
}

fn attributes(event: EventView<'_>) -> Attributes<'_> {
    let mut known = Attributes::default();
    for (key, value) in event.attributes() {
        let text = || if let ValueView::Text(text) = value { Some(Cow::Borrowed(text.text())) } else { None };
        let number = || match value {
            ValueView::U64(number) => Some(number),
            ValueView::I64(number) => u64::try_from(number).ok(),
            _ => None,
        };
        match key.text() {
            "rbkit.object.id" => known.id = number(),
            "rbkit.class.name" => known.class = text(),
            "rbkit.object.references" => {
                if let ValueView::Array(ids) = value {
                    known.references = Count(ids.count() as u64);
                }
            }
            "code.file.path" => known.file = text(),
            "code.line.number" => known.line = number(),
            "rbkit.object.size" => known.size = number(),
            "rbkit.dump.id" => known.dump = number(),
            "rbkit.dump.object_count" => known.object_count = number(),
            "thread.name" => known.thread = text(),
            "thread.id" => known.thread_id = number(),
            "code.function.name" => known.function = text(),
            "bytefrog.method.id" => known.method = number(),
            "bytefrog.time.relative_ms" => known.relative_ms = number(),
            "datadog.resource" => known.detail = text(),
            "bytefrog.sequence" => known.number = number(),
            "bytefrog.line.end" => known.line_end = number(),
            "bytefrog.profile.duration_ms" | "zico.profile.duration_ms" => known.interval_ms = number(),
            "tributary.incomplete" => known.incomplete = Some(IgnoredAny),
            _ => {}
        }
    }
    known
}

/// The attributes of a resource that tell processes apart.
#[derive(Clone, Deserialize, Default)]
struct Process<'a> {
    #[serde(rename = "process.pid")]
    pid: Option<u64>,
    #[serde(rename = "process.executable.name")]
    executable: Option<Cow<'a, str>>,
    #[serde(rename = "service.name")]
    service: Option<Cow<'a, str>>,
    #[serde(rename = "host.name")]
    host: Option<Cow<'a, str>>,
    #[serde(rename = "bytefrog.run.id")]
    run: Option<u64>,
}

fn resource(resource: &Resource) -> Process<'_> {
    let mut known = Process::default();
    for (key, value) in resource.attributes() {
        let text = || if let ResourceValue::Text(text) = value { Some(Cow::Borrowed(text.as_str())) } else { None };
        let number = || match value {
            ResourceValue::U64(number) => Some(*number),
            ResourceValue::I64(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        match key.as_str() {
            "process.pid" => known.pid = number(),
            "process.executable.name" => known.executable = text(),
            "service.name" => known.service = text(),
            "host.name" => known.host = text(),
            "bytefrog.run.id" => known.run = number(),
            _ => {}
        }
    }
    known
}

impl Process<'_> {
    /// The process in words, different for different processes.
    fn agent(&self, protocol: &str, peer: &str) -> String {
        let name = self.service.as_deref().or(self.executable.as_deref()).filter(|name| !name.is_empty());
        let mut words = name.unwrap_or(protocol).to_owned();
        let address = peer.parse::<SocketAddr>().ok();
        let place = match (&self.host, address) {
            (Some(host), _) if !host.is_empty() => Some(host.to_string()),
            // The address that we dial is that of one process. Other peers connect from any port.
            (_, Some(address)) if protocol == "rbkit" => Some(address.to_string()),
            (_, address) => address.map(|address| address.ip().to_string()),
        };
        let run = self.run.map(|run| format!("run {run}"));
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let details: Vec<String> = [run, pid, place].into_iter().flatten().collect();
        if !details.is_empty() {
            let _ = write!(words, " ({})", details.join(", "));
        }
        words
    }
}

/// An event file, decompressed.
pub struct EventFile(Box<dyn BufRead>);

/// The lines that were read from an event file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// All lines.
    pub read: u64,
    /// Lines that are not events, for example incomplete ones.
    pub skipped: u64,
    /// The number of the first of them, from 1.
    pub first_skipped: Option<u64>,
}

impl EventFile {
    /// Opens an event file, which begins with `{`, or with the magic of gzip, LZ4 or zstd if the file sink has compressed it.
    /// Recorded wire bytes begin with none of these; such an input is returned as it is.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn open(input: impl Read + 'static) -> io::Result<Result<EventFile, Box<dyn Read>>> {
        let mut input = BufReader::with_capacity(256 * 1024, input);
        let file: Box<dyn BufRead> = match input.fill_buf()? {
            start if is_start(start, b"{") => Box::new(input),
            start if is_start(start, &[0x1F, 0x8B]) => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            start if is_start(start, &[0x04, 0x22, 0x4D, 0x18]) => Box::new(BufReader::new(FrameDecoder::new(input))),
            start if is_start(start, &[0x28, 0xB5, 0x2F, 0xFD]) => {
                Box::new(BufReader::new(zstd::Decoder::with_buffer(input)?))
            }
            _ => return Ok(Err(Box::new(input))),
        };
        Ok(Ok(EventFile(file)))
    }

    /// Reads the items of the file to its end.
    ///
    /// # Errors
    /// The file cannot be read or decompressed. The items before the error have been passed to `take`.
    pub fn read(self, mut take: impl FnMut(Item<'_>)) -> io::Result<Lines> {
        let mut sources = Sources::default();
        self.read_lines(|line| {
            sources.item(line)?.map(&mut take);
            Ok(true)
        })
    }

    /// Reads the lines of the file until `take` returns `false`, or to its end. An error of `take`: the line is no event.
    ///
    /// # Errors
    /// The file cannot be read or decompressed.
    pub fn read_lines(mut self, mut take: impl FnMut(&[u8]) -> Result<bool, ()>) -> io::Result<Lines> {
        let mut lines = Lines::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let Some(is_whole) = read_line(&mut *self.0, &mut line)? else { return Ok(lines) };
            lines.read += 1;
            match if is_whole { take(&line) } else { Err(()) } {
                Ok(true) => {}
                Ok(false) => return Ok(lines),
                Err(()) => {
                    lines.skipped += 1;
                    lines.first_skipped.get_or_insert(lines.read);
                }
            }
        }
    }
}

/// Whether what has arrived of an input is the start of `magic`, or begins with it.
fn is_start(bytes: &[u8], magic: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().zip(magic).all(|(byte, expected)| byte == expected)
}

/// Reads the next line. `None`: the end; `Some(false)`: the line was too long and is incomplete.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    let mut is_whole = true;
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(is_whole) });
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        is_whole &= line.len() + piece.len() <= MAX_LINE_BYTES;
        if is_whole {
            line.extend_from_slice(piece);
        }
        let read = end.map_or(bytes.len(), |end| end + 1);
        input.consume(read);
        if end.is_some() {
            return Ok(Some(is_whole));
        }
    }
}

/// The fields of every line. Of most lines only these are needed.
#[derive(Deserialize)]
struct Named<'a> {
    /// `None`: the line defines a source.
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Line {
    time: Option<String>,
    sample: Option<JsonSample>,
    span: Option<JsonSpan>,
    #[serde(default)]
    attributes: Attributes<'static>,
    #[serde(default)]
    resource: Process<'static>,
    #[serde(default)]
    origin: JsonOrigin,
    /// Of a compact line, in the place of a resource and an origin, with its sequence, offset and length.
    source: Option<String>,
    position: Option<(Option<u64>, u64, u64)>,
}

/// A line that defines a source.
#[derive(Deserialize)]
struct Definition {
    source: String,
    #[serde(default)]
    resource: Process<'static>,
    origin: JsonOrigin,
}

/// The sources that compact lines name, by their ids.
#[derive(Default)]
struct Sources(HashMap<String, (Process<'static>, JsonOrigin)>);

#[derive(Deserialize)]
struct JsonSample {
    #[serde(rename = "type")]
    sample_type: String,
    value: u64,
    frames: Vec<JsonFrame>,
    period_ns: Option<u64>,
    clock: Option<String>,
}

#[derive(Deserialize)]
struct JsonFrame {
    function: Option<String>,
    file: Option<String>,
    line: Option<u64>,
}

#[derive(Deserialize)]
struct JsonSpan {
    trace_id: String,
    span_id: String,
    parent_span_id: Option<String>,
    duration_ns: Option<u64>,
}

/// The number of elements of a list. There may be a million, so they are not kept.
#[derive(Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }

        deserializer.deserialize_seq(Counting)
    }
}

#[derive(Clone, Deserialize, Default)]
struct JsonOrigin {
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    peer: String,
    #[serde(default)]
    connection: u64,
    sequence: Option<u64>,
}

/// The item of a line with every field, if it has one.
///
/// # Errors
/// The line is not an event, or lacks the fields that events of its name have.
#[expect(clippy::result_unit_err, reason = "there is nothing to tell but that the line is skipped")]
pub fn item(line: &[u8]) -> Result<Option<Item<'static>>, ()> {
    Sources::default().item(line)
}

impl Sources {
    /// The item of a line of an event file, if it has one. Remembers a source that the line defines.
    fn item(&mut self, line: &[u8]) -> Result<Option<Item<'static>>, ()> {
        let Named { kind, name } = serde_json::from_slice(line).map_err(|_| ())?;
        let Some(kind) = kind else {
            let Definition { source, resource, origin } = serde_json::from_slice(line).map_err(|_| ())?;
            self.0.insert(source, (resource, origin));
            return Ok(None);
        };
        if !is_wanted(&kind, &name) {
            return Ok(None);
        }
        let mut line: Line = serde_json::from_slice(line).map_err(|_| ())?;
        if let Some(source) = &line.source {
            (line.resource, line.origin) = self.0.get(source).ok_or(())?.clone();
            line.origin.sequence = line.position.and_then(|(sequence, ..)| sequence);
        }
        let Line { time, sample, span, attributes, resource, origin, .. } = line;
        let data = match &*kind {
            "sample" => Data::Sample(json_sample(sample.ok_or(())?)),
            "span" => Data::Span(json_span(&span.ok_or(())?)?),
            _ => Data::Log,
        };
        let time = time.and_then(|time| time.parse::<Timestamp>().ok());
        let time = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
        let JsonOrigin { protocol, peer, connection, sequence } = origin;
        let (agent, pid, name) = (resource.agent(&protocol, &peer), resource.pid, name.into_owned().into());
        Parts { name, time, data, attributes, agent, peer: peer.into(), connection, pid, sequence }.item()
    }
}

fn json_sample(sample: JsonSample) -> SampleParts<'static> {
    let JsonSample { sample_type, value, frames, period_ns, clock } = sample;
    let frames = frames.into_iter().map(|JsonFrame { function, file, line }| Frame {
        function: function.map(Cow::Owned),
        site: Site { file: file.map(Cow::Owned), line },
    });
    let clock = match clock.as_deref() {
        Some("cpu") => Some(Clock::Cpu),
        Some("wall") => Some(Clock::Wall),
        _ => None,
    };
    SampleParts { sample_type: sample_type.into(), value, frames: frames.collect(), period: period_ns, clock }
}

fn json_span(span: &JsonSpan) -> Result<SpanParts, ()> {
    let id = |text: &str| u64::from_str_radix(text, 16).map_err(|_| ());
    Ok(SpanParts {
        trace: u128::from_str_radix(&span.trace_id, 16).map_err(|_| ())?,
        id: id(&span.span_id)?,
        parent: span.parent_span_id.as_deref().map(id).transpose()?,
        duration: span.duration_ns,
    })
}
