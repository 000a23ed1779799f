//! The samples of a profile as events.

use foldhash::quality::RandomState;
use hashbrown::{HashMap, HashSet};

use tributary_codec::pprof::{Pprof, PprofFrame, PprofLabel, PprofSample};
use tributary_codec::text::{cut, repair};
use tributary_event::{
    BatchBuilder, BatchResource, BatchStack, Frame, Header, Interned, Key, Label, Number, Position, SampleData, Text,
    UnixNanos, Value, semconv, whole_number,
};
use tributary_protocol::{Flow, Now, Output};

/// Up to this many labels are compared with each other.
const FEW_LABELS: usize = 16;
/// The most samples of a step: samples without a value fill no batch.
const STEP_SAMPLES: usize = 4096;

/// Writes the samples of one profile.
#[derive(Debug)]
pub(super) struct SampleWriter {
    pprof: Pprof,
    /// The end of the profile, when the time of a sample is not known.
    end: Option<UnixNanos>,
    texts: Vec<Interned>,
    keys: HashMap<u32, Interned, RandomState>,
    /// The stacks of the batch, by their locations; and whether frames are missing.
    stacks: HashMap<Box<[u64]>, (BatchStack, bool), RandomState>,
    sample: PprofSample,
    next: usize,
    /// The first value of that sample that is not written.
    next_value: usize,
}

/// Limits of samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct SampleLimits {
    pub(super) max_frames: usize,
    pub(super) max_labels: usize,
    pub(super) max_text_bytes: usize,
}

impl SampleWriter {
    /// `end`: that of the upload.
    pub(super) fn new(pprof: Pprof, end: Option<UnixNanos>) -> SampleWriter {
        let own = u64::try_from(pprof.time_nanos.saturating_add(pprof.duration_nanos)).ok().map(UnixNanos);
        let is_known = pprof.time_nanos > 0 && pprof.duration_nanos > 0;
        SampleWriter {
            end: own.filter(|_| is_known).or(end),
            texts: vec![Interned::default(); pprof.string_count()],
            keys: HashMap::default(),
            stacks: HashMap::default(),
            sample: PprofSample::default(),
            next: 0,
            next_value: 0,
            pprof,
        }
    }

    /// The types of its values.
    pub(super) fn types(&self) -> impl Iterator<Item = &[u8]> {
        self.pprof.sample_types.iter().map(|(of, _)| self.pprof.string(*of))
    }

    /// Memory that it uses.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pprof.memory_bytes() + self.texts.capacity() * size_of::<Interned>()
    }

    /// The number of its samples.
    pub(super) fn sample_count(&self) -> usize {
        self.pprof.sample_count()
    }

    /// Writes samples until the batch is full. [`Flow::Continue`]: all are written.
    pub(super) fn step(
        &mut self,
        limits: SampleLimits,
        (position, resource): (Position, BatchResource),
        now: Now,
        out: &mut Output,
    ) -> Flow {
        // They belong to the batch before.
        self.stacks.clear();
        let last = self.next.saturating_add(STEP_SAMPLES);
        while self.next < self.pprof.sample_count() {
            if out.batch.is_full() || self.next == last {
                return Flow::Again;
            }
            self.write(limits, (position, resource), now, &mut out.batch);
        }
        Flow::Continue
    }

    fn write(
        &mut self,
        limits: SampleLimits,
        (position, resource): (Position, BatchResource),
        now: Now,
        batch: &mut BatchBuilder,
    ) {
        let mut sample = std::mem::take(&mut self.sample);
        self.pprof.sample(self.next, &mut sample);
        if sample.values.iter().all(|value| *value == 0) {
            self.sample = sample;
            self.next += 1;
            return;
        }
        let (stack, is_cut) = self.stack(&sample.locations, limits, batch);
        let (time, labels) = self.labels(&sample.labels, limits, batch);
        let header = Header {
            name: semconv::DATADOG_PROFILE_SAMPLE.into(),
            time: time.or(self.end).or(Some(now.unix)),
            observed: now.unix,
            position,
        };
        while let Some(value) = sample.values.get(self.next_value) {
            let (of, unit) = self.pprof.sample_types[self.next_value];
            self.next_value += 1;
            if *value == 0 {
                continue;
            }
            if batch.is_full() {
                // The rest of its values is for the next batch.
                self.next_value -= 1;
                self.sample = sample;
                return;
            }
            let data = self.data(of, unit, *value as i64, limits, batch);
            let mut event = batch.event(header);
            event.resource(resource);
            labels.iter().for_each(|(key, value)| event.attribute(*key, *value));
            if is_cut {
                event.incomplete(["frames"]);
            }
            event.sample_with(data, stack);
        }
        self.sample = sample;
        self.next += 1;
        self.next_value = 0;
    }

    fn data(&mut self, of: u32, unit: u32, value: i64, limits: SampleLimits, batch: &mut BatchBuilder) -> SampleData {
        let (period_of, period_unit) = self.pprof.period_type;
        let text = |index| self.pprof.string(index);
        let (period_nanos, clock) = SampleData::period_of(text(period_of), text(period_unit), self.pprof.period);
        SampleData {
            sample_type: Label::Text(self.text(of, limits, batch)),
            unit: Label::Text(self.text(unit, limits, batch)),
            value: Number::I64(value),
            period_nanos,
            clock,
        }
    }

    fn text(&mut self, index: u32, limits: SampleLimits, batch: &mut BatchBuilder) -> Text {
        let Some(memo) = self.texts.get_mut(index as usize) else { return Text::default() };
        let (text, _) = repair(self.pprof.string(index));
        batch.intern(memo, cut(&text, limits.max_text_bytes))
    }

    /// The stack of these locations, and whether frames are missing.
    fn stack(&mut self, locations: &[u64], limits: SampleLimits, batch: &mut BatchBuilder) -> (BatchStack, bool) {
        if let Some(known) = self.stacks.get(locations) {
            return *known;
        }
        let mut frames = Vec::new();
        let mut is_cut = false;
        for location in locations {
            let of_location: Vec<PprofFrame> = self.pprof.frames(*location).take(limits.max_frames + 1).collect();
            for frame in of_location {
                if frames.len() == limits.max_frames {
                    is_cut = true;
                    break;
                }
                frames.extend(self.frame(frame, limits, batch));
            }
        }
        let stack = (batch.stack(&frames), is_cut);
        self.stacks.insert(locations.into(), stack);
        stack
    }

    /// `None`: nothing is known of it.
    fn frame(&mut self, frame: PprofFrame, limits: SampleLimits, batch: &mut BatchBuilder) -> Option<Frame> {
        let (function, file, line) = match frame {
            PprofFrame::Line(function, line) => {
                let name = self.text(function.name, limits, batch);
                (name, self.text(function.file, limits, batch), u64::try_from(line).ok().filter(|line| *line > 0))
            }
            PprofFrame::Address(address, file) => {
                let file = self.text(file, limits, batch);
                if address == 0 && file.is_empty() {
                    return None;
                }
                (batch.push_text(&format!("{address:#x}")), file, None)
            }
        };
        let text = |text: Text| (!text.is_empty()).then_some(text);
        let frame = Frame { function: text(function), file: text(file), line };
        (frame.function.is_some() || frame.file.is_some()).then_some(frame)
    }

    /// The time of a sample, and its other labels; of the same key the first one counts.
    fn labels(
        &mut self,
        labels: &[PprofLabel],
        limits: SampleLimits,
        batch: &mut BatchBuilder,
    ) -> (Option<UnixNanos>, Vec<(Key, Value)>) {
        let labels = &labels[..labels.len().min(limits.max_labels)];
        let mut seen: HashSet<Vec<u8>, RandomState> = HashSet::default();
        let (mut time, mut written) = (None, Vec::with_capacity(labels.len()));
        for (place, label) in labels.iter().enumerate() {
            let key = self.pprof.string(label.key);
            let is_repeated = if labels.len() > FEW_LABELS {
                !seen.insert(key.to_owned())
            } else {
                labels[..place].iter().any(|other| self.pprof.string(other.key) == key)
            };
            if is_repeated || key.is_empty() {
                continue;
            }
            match key {
                b"end_timestamp_ns" => {
                    time = u64::try_from(label.number).ok().filter(|time| *time > 0).map(UnixNanos);
                    continue;
                }
                b"span id" | b"local root span id" => {
                    let name = if key == b"span id" { semconv::SPAN_ID } else { semconv::DATADOG_LOCAL_ROOT_SPAN_ID };
                    let id = match label.text {
                        0 => Some(label.number as u64),
                        text => std::str::from_utf8(self.pprof.string(text)).ok().and_then(|text| text.parse().ok()),
                    };
                    if let Some(id) = id.filter(|id| *id != 0) {
                        written.push((name.into(), batch.push_text(&format!("{id:016x}")).into()));
                        continue;
                    }
                }
                _ => {}
            }
            let key = self.key(label.key, limits, batch);
            let value = match label.text {
                0 => Value::I64(label.number),
                text => self.label_text(label.key, text, limits, batch),
            };
            written.push((key, value));
        }
        (time, written)
    }

    fn label_text(&mut self, key: u32, text: u32, limits: SampleLimits, batch: &mut BatchBuilder) -> Value {
        let whole = match self.pprof.string(key) {
            b"thread id" => std::str::from_utf8(self.pprof.string(text)).ok().and_then(whole_number),
            _ => None,
        };
        whole.map_or_else(|| self.text(text, limits, batch).into(), Value::I64)
    }

    fn key(&mut self, index: u32, limits: SampleLimits, batch: &mut BatchBuilder) -> Key {
        match self.pprof.string(index) {
            b"thread id" => semconv::THREAD_ID.into(),
            b"thread name" => semconv::THREAD_NAME.into(),
            b"trace endpoint" => semconv::DATADOG_TRACE_ENDPOINT.into(),
            key => {
                let (text, _) = repair(key);
                let text = [semconv::PPROF_LABEL.as_str(), cut(&text, limits.max_text_bytes)].concat();
                batch.intern(self.keys.entry(index).or_default(), &text).into()
            }
        }
    }
}
