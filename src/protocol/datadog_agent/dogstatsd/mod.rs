//! DogStatsD: lines of metrics, which are aggregated until they are flushed, and events and service checks, which are logs
//! (contract, "Stats, DogStatsD").

mod line;
mod series;
mod values;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::text::repair;
use tributary_event::{Header, Loss, Name, Position, Reason, Resource, Severity, UnixNanos, Value, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{DatagramReader, Flow, Now, Output};

use self::line::{CheckLine, CheckStatus, EventLine, Line, LineContext, MetricLine};
use self::series::{LineTimes, Series, Subject};

/// The memory of a series beside its texts, which are there about three times.
const SERIES_BYTES: usize = 512;
/// The lease grows by this much at once.
const LEASE_STEP: u64 = 64 << 10;

/// What becomes of lines, of a listener's sockets and requests.
#[derive(Debug)]
pub struct DogStatsD {
    state: Mutex<AggregatorState>,
    flush_interval: Duration,
    max_series: usize,
    hashes: RandomState,
}

#[derive(Debug)]
struct AggregatorState {
    /// The series by what lines say of them, as they say it.
    known: HashMap<Box<[u8]>, usize, RandomState>,
    /// The same with tags in order.
    ordered: HashMap<Box<[u8]>, usize, RandomState>,
    series: Vec<Series>,
    /// Those of the last flush that are not written yet.
    due: Vec<Series>,
    /// When these were received.
    due_times: (UnixNanos, UnixNanos),
    /// When the first line since the last flush arrived.
    since: Option<Now>,
    key: Vec<u8>,
    lease: MemoryLease,
    /// Memory of the series, and of those that are due.
    bytes: usize,
    due_bytes: usize,
    leased: u64,
    /// The log has said since the last flush that lines are not aggregated.
    is_short: bool,
    /// Whether there was memory for the last value.
    has_memory: bool,
}

/// Where a line stands.
#[derive(Clone, Copy, Debug)]
struct LinePlace {
    position: Position,
    now: Now,
}

impl DogStatsD {
    pub(super) fn new(flush_interval: Duration, max_series: usize, memory: &Arc<MemoryBudget>) -> DogStatsD {
        let state = AggregatorState {
            known: HashMap::default(),
            ordered: HashMap::default(),
            series: Vec::new(),
            due: Vec::new(),
            due_times: (UnixNanos(0), UnixNanos(0)),
            since: None,
            key: Vec::new(),
            lease: memory.bare_lease(),
            bytes: 0,
            due_bytes: 0,
            leased: 0,
            is_short: false,
            has_memory: true,
        };
        DogStatsD { state: Mutex::new(state), flush_interval, max_series, hashes: RandomState::default() }
    }

    /// Reads lines of `text` from `start` on until the batch is full; returns where the rest begins. Every byte is
    /// counted as decoded or lost.
    pub(super) fn receive(
        &self,
        text: &[u8],
        start: usize,
        sequence: Option<u64>,
        now: Now,
        out: &mut Output,
    ) -> usize {
        let mut state = self.lock();
        let mut at = start;
        while at < text.len() && !out.batch.is_full() && at - start < STEP_BYTES {
            let rest = &text[at..];
            let end = memchr::memchr(b'\n', rest);
            let line = &rest[..end.unwrap_or(rest.len())];
            let taken = end.map_or(rest.len(), |end| end + 1);
            let position = Position { sequence, offset: at as u64, length: line.len() as u64 };
            match self.line(line.trim_ascii_end(), LinePlace { position, now }, &mut state, out) {
                Ok(()) => out.decoded_bytes += taken as u64,
                Err(expected) => {
                    out.decoded_bytes += (taken - line.len()) as u64;
                    let detail = format!("a line of DogStatsD without {expected}");
                    let bytes = line.len() as u64;
                    let loss = Loss { reason: Reason::Malformed, bytes, events: None, detail: &detail, excerpt: line };
                    out.batch.set_resource(Arc::new(Resource::default()));
                    out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
                }
            }
            at += taken;
        }
        at
    }

    fn line(
        &self,
        line: &[u8],
        place: LinePlace,
        state: &mut AggregatorState,
        out: &mut Output,
    ) -> Result<(), &'static str> {
        if line.is_empty() {
            return Ok(());
        }
        let (line, _) = repair(line);
        match Line::read(&line)? {
            Line::Metric(metric) => self.metric(&metric, place, state, out),
            Line::Event(event) => write_event(&event, place, out),
            Line::Check(check) => write_check(&check, place, out),
        }
        Ok(())
    }

    fn metric(&self, metric: &MetricLine<'_>, place: LinePlace, state: &mut AggregatorState, out: &mut Output) {
        let timestamp = metric.timestamp.map(seconds);
        let is_aggregated = timestamp.is_none() && state.has_memory;
        let index = is_aggregated.then(|| state.index_of(metric, self.max_series)).flatten();
        let Some(index) = index else {
            // A line by itself is a series of its own.
            if timestamp.is_none() {
                out.warn("dogstatsd_not_aggregated");
                if !std::mem::replace(&mut state.is_short, true) {
                    let limit = self.max_series;
                    out.log(format!(
                        "DogStatsD: more than {limit} series (dogstatsd.max_series), or no memory for them: values are written without aggregation until the next flush"
                    ));
                }
            }
            let LinePlace { position, now } = place;
            let times = LineTimes { time: timestamp.unwrap_or(now.unix), observed: now.unix, position };
            let mut series = Series::of(metric);
            series.add(metric, &self.hashes);
            series.write(None, times, &mut out.batch);
            return;
        };
        state.since.get_or_insert(place.now);
        let series = &mut state.series[index];
        let before = series.value_bytes();
        series.add(metric, &self.hashes);
        let more = series.value_bytes().saturating_sub(before);
        state.has_memory = state.take(more);
    }

    /// Writes what is due. [`Flow::Again`]: take the events and call again.
    pub(super) fn tick(&self, now: Now, out: &mut Output) -> Flow {
        let mut state = self.lock();
        let is_due = |since: &Now| now.elapsed.saturating_sub(since.elapsed) >= self.flush_interval;
        if state.due.is_empty() && state.since.as_ref().is_some_and(is_due) {
            state.make_due(now);
        }
        state.write(now, out)
    }

    /// Writes everything.
    pub(super) fn finish(&self, now: Now, out: &mut Output) -> Flow {
        let mut state = self.lock();
        if state.due.is_empty() && state.since.is_some() {
            state.make_due(now);
        }
        match state.write(now, out) {
            Flow::Continue if state.since.is_some() => Flow::Again,
            flow => flow,
        }
    }

    fn lock(&self) -> MutexGuard<'_, AggregatorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DatagramReader for DogStatsD {
    fn read(&self, datagram: &[u8], start: usize, now: Now, out: &mut Output) -> usize {
        self.receive(datagram, start, None, now, out)
    }
}

/// The most bytes of lines that one call reads.
const STEP_BYTES: usize = 256 << 10;

impl AggregatorState {
    /// The series of a line. `None`: it is new, and `max_series` is reached or no memory is left.
    fn index_of(&mut self, metric: &MetricLine<'_>, max_series: usize) -> Option<usize> {
        let mut key = std::mem::take(&mut self.key);
        write_key(&mut key, metric, metric.context.tags);
        let index = match self.known.get(key.as_slice()) {
            Some(index) => Some(*index),
            None => self.add(&key, metric, max_series),
        };
        self.key = key;
        index
    }

    fn add(&mut self, key: &[u8], metric: &MetricLine<'_>, max_series: usize) -> Option<usize> {
        let mut tags: Vec<&str> = metric.context.tags.split(',').collect();
        tags.sort_unstable();
        let mut ordered = Vec::new();
        write_key(&mut ordered, metric, &tags.join(","));
        let found = self.ordered.get(ordered.as_slice()).copied();
        if found.is_none() && self.series.len() >= max_series || !self.take(4 * key.len() + SERIES_BYTES) {
            return None;
        }
        let index = found.unwrap_or_else(|| {
            self.series.push(Series::of(metric));
            self.ordered.insert(ordered.into(), self.series.len() - 1);
            self.series.len() - 1
        });
        // Clients may send the tags of a series in any order; of each only some are remembered.
        if self.known.len() < 4 * max_series {
            self.known.insert(key.into(), index);
        }
        Some(index)
    }

    /// Takes memory; `false`: there is none.
    fn take(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let needed = (self.bytes + self.due_bytes) as u64;
        if needed > self.leased {
            let wanted = needed.next_multiple_of(LEASE_STEP);
            if !self.lease.try_resize(wanted) {
                return false;
            }
            self.leased = wanted;
        }
        true
    }

    fn make_due(&mut self, now: Now) {
        let since = self.since.take().unwrap_or(now);
        self.due_times = (since.unix, now.unix);
        self.due = std::mem::take(&mut self.series);
        self.due_bytes = std::mem::take(&mut self.bytes);
        self.known.clear();
        self.ordered.clear();
        self.due.reverse();
        (self.is_short, self.has_memory) = (false, true);
    }

    fn write(&mut self, now: Now, out: &mut Output) -> Flow {
        let (start, time) = self.due_times;
        while let Some(mut series) = self.due.pop() {
            let times = LineTimes { time, observed: now.unix, position: Position::default() };
            series.write(Some(start), times, &mut out.batch);
            if out.batch.is_full() {
                return Flow::Again;
            }
        }
        if std::mem::take(&mut self.due_bytes) > 0 {
            self.leased = (self.bytes as u64).next_multiple_of(LEASE_STEP);
            // A smaller size always succeeds.
            let _ = self.lease.try_resize(self.leased);
        }
        Flow::Continue
    }
}

/// What makes two lines belong to one series.
fn write_key(key: &mut Vec<u8>, metric: &MetricLine<'_>, tags: &str) {
    key.clear();
    let LineContext { container, external, cardinality, .. } = metric.context;
    for part in [metric.name, metric.kind.as_str(), container, external, cardinality, tags] {
        key.extend_from_slice(part.as_bytes());
        key.push(b'|');
    }
}

fn seconds(seconds: u64) -> UnixNanos {
    UnixNanos(seconds.saturating_mul(1_000_000_000))
}

impl LinePlace {
    fn header(self, name: Name, time: Option<UnixNanos>) -> Header {
        let LinePlace { position, now } = self;
        Header { name: name.into(), time: time.or(Some(now.unix)), observed: now.unix, position }
    }
}

fn write_event(event: &EventLine<'_>, place: LinePlace, out: &mut Output) {
    let severity = match event.alert_type {
        "error" => Severity::Error,
        "warning" => Severity::Warn,
        _ => Severity::Info,
    };
    let text = event.text.replace("\\n", "\n");
    let texts = [
        (semconv::DOGSTATSD_EVENT_TITLE, event.title),
        (semconv::DOGSTATSD_EVENT_PRIORITY, event.priority),
        (semconv::DOGSTATSD_EVENT_ALERT_TYPE, event.alert_type),
        (semconv::DOGSTATSD_EVENT_AGGREGATION_KEY, event.aggregation_key),
        (semconv::DOGSTATSD_EVENT_SOURCE_TYPE, event.source_type),
    ];
    let header = place.header(semconv::DOGSTATSD_EVENT, event.timestamp.map(seconds));
    write_log(header, &event.context, &texts, severity, &text, out);
}

fn write_check(check: &CheckLine<'_>, place: LinePlace, out: &mut Output) {
    let (severity, status) = match check.status {
        CheckStatus::Ok => (Severity::Info, "ok"),
        CheckStatus::Warning => (Severity::Warn, "warning"),
        CheckStatus::Critical => (Severity::Error, "critical"),
        CheckStatus::Unknown => (Severity::Warn, "unknown"),
    };
    let texts =
        [(semconv::DOGSTATSD_SERVICE_CHECK_NAME, check.name), (semconv::DOGSTATSD_SERVICE_CHECK_STATUS, status)];
    let header = place.header(semconv::DOGSTATSD_SERVICE_CHECK, check.timestamp.map(seconds));
    write_log(header, &check.context, &texts, severity, check.message, out);
}

/// Texts that are empty are left out; a tag with the key of one of them has no place.
fn write_log(
    header: Header,
    context: &LineContext<'_>,
    texts: &[(Name, &str)],
    severity: Severity,
    body: &str,
    out: &mut Output,
) {
    let subject = Subject::of(context);
    let batch = &mut out.batch;
    batch.set_resource(subject.resource.clone());
    let attributes = subject.attributes(batch);
    let body: Option<Value> = (!body.is_empty()).then(|| batch.push_text(body).into());
    let mut event = batch.event(header);
    for (name, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
        event.text(*name, text);
    }
    attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
    event.log(severity, body);
}
