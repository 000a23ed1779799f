//! Profiles: `Profile` and its samples of `profiles.proto`. Each value of a sample is an event.

use foldhash::quality::RandomState;
use hashbrown::{HashMap, HashSet};

use bytes::Bytes;

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, varint_of};
use tributary_codec::text::{cut, cut_bytes, repair};
use tributary_event::{
    BatchBuilder, BatchStack, Frame, Header, Interned, InternedRun, Label, Number, SampleClock, SampleData, Text,
    UnixNanos, hex, semconv,
};
use tributary_protocol::Output;

use super::profile_dictionary::{ProfileDictionary, Strings, WireFrame, numbers};
use super::record::{RecordContext, RecordLimits, has_scope, push_new, record_attributes};
use super::record_places::{MessagePlace, NumberPlaces, next_message};
use super::span::time;
use super::value::{WireAttribute, fixed64, value_of};

// Fields of Profile.
const SAMPLES: u64 = 2;
const PROFILE_ATTRIBUTES: u64 = 11;
// Fields of Sample.
const SAMPLE_ATTRIBUTES: u64 = 2;
const VALUES: u64 = 4;
const TIMESTAMPS: u64 = 5;

/// The profiles of a request.
#[derive(Debug)]
pub(super) struct ProfileReader {
    dictionary: ProfileDictionary,
    texts: Vec<Interned>,
    /// The stacks and attributes of the batch.
    stacks: HashMap<u32, SampleStack, RandomState>,
    attributes: HashMap<Box<[u32]>, SampleAttributes, RandomState>,
    profile: OpenProfile,
    sample: Option<OpenSample>,
}

/// A stack in the batch.
#[derive(Clone, Copy, Debug)]
struct SampleStack {
    stack: BatchStack,
    /// Frames beyond the limit were left out.
    is_cut: bool,
}

/// Attributes in the batch.
#[derive(Clone, Copy, Debug)]
struct SampleAttributes {
    run: u32,
    /// They have a scope.
    has_scope: bool,
}

/// The profile whose samples are being written.
#[derive(Debug, Default)]
struct OpenProfile {
    /// The rest of its samples.
    samples: MessagePlace,
    /// The texts of the type and of the unit of its values.
    sample_type: (u32, u32),
    period_nanos: Option<u64>,
    clock: Option<SampleClock>,
    /// When samples without times were taken at the latest.
    end: Option<UnixNanos>,
    id: MessagePlace,
    attributes: Vec<u32>,
    /// The number of attributes that its sender has dropped.
    dropped: u64,
}

/// The sample whose values are being written.
#[derive(Debug)]
struct OpenSample {
    place: MessagePlace,
    stack: u32,
    /// Its attributes, those of its profile, and last its link.
    attributes: Box<[u32]>,
    values: NumberPlaces,
    times: NumberPlaces,
}

/// One value of the open sample.
#[derive(Debug)]
pub(super) struct SampleValue {
    /// Of the sample.
    pub(super) place: MessagePlace,
    value: i64,
    time: Option<UnixNanos>,
}

impl ProfileReader {
    pub(super) fn new(dictionary: ProfileDictionary) -> ProfileReader {
        ProfileReader {
            texts: vec![Interned::default(); dictionary.string_count()],
            dictionary,
            stacks: HashMap::default(),
            attributes: HashMap::default(),
            profile: OpenProfile::default(),
            sample: None,
        }
    }

    /// Memory of its tables.
    pub(super) fn memory_bytes(&self) -> usize {
        self.dictionary.memory_bytes() + self.texts.capacity() * size_of::<Interned>()
    }

    /// The texts of the request.
    pub(super) fn strings<'a>(&'a self, body: &'a Bytes) -> Strings<'a> {
        self.dictionary.strings(body)
    }

    /// To be called for each batch.
    pub(super) fn begin_batch(&mut self) {
        self.stacks.clear();
        self.attributes.clear();
    }

    /// Begins with the profile at this place.
    pub(super) fn open(&mut self, body: &Bytes, place: MessagePlace, max_attributes: usize, out: &mut Output) {
        let message = &body[place.clone()];
        let mut profile = OpenProfile { samples: place.clone(), ..OpenProfile::default() };
        let (mut start, mut duration) = (0, 0);
        let (mut period, mut period_type) = (0, (0, 0));
        let mut fields = ProtobufFields::of(message);
        while let Some(field) = fields.next() {
            let end = place.end - fields.rest().len();
            match (field.number, field.value) {
                (1, ProtobufValue::Bytes(of)) => profile.sample_type = value_type(of),
                (3, ProtobufValue::Fixed(time)) => start = fixed64(time),
                (4, ProtobufValue::Varint(nanos)) => duration = nanos,
                (5, ProtobufValue::Bytes(of)) => period_type = value_type(of),
                (6, ProtobufValue::Varint(length)) => period = length as i64,
                (7, ProtobufValue::Bytes(id)) if id.iter().any(|byte| *byte != 0) => profile.id = end - id.len()..end,
                (8, ProtobufValue::Varint(count)) => profile.dropped = count,
                (10, ProtobufValue::Bytes(payload)) if !payload.is_empty() => out.warn("profile_payload"),
                _ => {}
            }
        }
        profile.end = time(start).map(|start| UnixNanos(start.0.saturating_add(duration)));
        let strings = self.dictionary.strings(body);
        let text = |index: u32| strings.get(index.into());
        (profile.period_nanos, profile.clock) = SampleData::period_of(text(period_type.0), text(period_type.1), period);
        // Each sample has them: what is not written is left out once. Of a repeated key the last one counts.
        let mut attributes: Vec<u32> =
            numbers(message, PROFILE_ATTRIBUTES).map(|index| index as u32).take(max_attributes).collect();
        attributes.reverse();
        let mut keys = HashSet::<_, RandomState>::default();
        attributes.retain(|index| {
            let (key, value) = self.dictionary.attribute(body, *index);
            value_of(value).is_some() && keys.insert(key)
        });
        attributes.reverse();
        profile.attributes = attributes;
        self.profile = profile;
        self.attributes.clear();
    }

    /// The next value of the open profile.
    pub(super) fn next(&mut self, body: &Bytes, max_attributes: usize) -> Option<SampleValue> {
        loop {
            if let Some(sample) = &mut self.sample {
                let (value, time) = (sample.values.next(body), sample.times.next(body));
                if value.is_some() || time.is_some() {
                    // Without values each time counts as one.
                    let value = value.map_or(1, |value| value as i64);
                    let time = time.filter(|time| *time > 0).map(UnixNanos).or(self.profile.end);
                    return Some(SampleValue { place: sample.place.clone(), value, time });
                }
            }
            let place = next_message(body, &mut self.profile.samples, SAMPLES)?;
            let message = &body[place.clone()];
            let own = numbers(message, SAMPLE_ATTRIBUTES).map(|index| index as u32);
            // Of a repeated key the last one counts: that of the sample.
            let all = self.profile.attributes.iter().copied().chain(own.take(max_attributes));
            self.sample = Some(OpenSample {
                stack: varint_of(message, 1) as u32,
                attributes: all.chain([varint_of(message, 3) as u32]).collect(),
                values: NumberPlaces::varints(place.clone(), VALUES),
                times: NumberPlaces::fixed(place.clone(), TIMESTAMPS),
                place,
            });
        }
    }

    /// Writes a value.
    pub(super) fn write(
        &mut self,
        body: &Bytes,
        value: &SampleValue,
        context: &mut RecordContext<'_>,
        out: &mut Output,
    ) {
        let Some(sample) = self.sample.take() else { return };
        let limits = context.limits;
        let SampleStack { stack, is_cut } = self.stack(sample.stack, limits, &mut out.batch, body);
        let SampleAttributes { run, has_scope } = self.attributes(&sample.attributes, context, &mut out.batch, body);
        let OpenProfile { sample_type: (of, unit), period_nanos, clock, .. } = self.profile;
        let strings = self.dictionary.strings(body);
        let mut label = |index| {
            let text = text_in(&mut self.texts, strings, index, limits, &mut out.batch);
            Label::Text(text.unwrap_or_default())
        };
        let data = SampleData {
            sample_type: label(of),
            unit: label(unit),
            value: Number::I64(value.value),
            period_nanos,
            clock,
        };
        let header = Header {
            name: semconv::OTLP_PROFILE_SAMPLE.into(),
            time: value.time.or(Some(context.now.unix)),
            observed: context.now.unix,
            position: context.position,
        };
        let mut event = out.batch.event(header);
        event.resource(context.resource);
        if is_cut {
            event.incomplete(["frames"]);
        }
        event.run(run);
        context.scope.filter(|_| !has_scope).into_iter().for_each(|scope| event.run(scope));
        event.sample_with(data, stack);
        self.sample = Some(sample);
    }

    /// The attributes of a sample in the batch.
    fn attributes(
        &mut self,
        indexes: &[u32],
        context: &mut RecordContext<'_>,
        batch: &mut BatchBuilder,
        body: &Bytes,
    ) -> SampleAttributes {
        if let Some(known) = self.attributes.get(indexes) {
            return *known;
        }
        let ProfileReader { dictionary, profile, .. } = self;
        let (link, attributes) = indexes.split_last().unwrap_or((&0, &[]));
        let attributes = attributes.iter().map(|index| dictionary.attribute(body, *index));
        let all: Vec<_> = attributes.map(|(key, value)| WireAttribute { key, value }).collect();
        let has_scope = has_scope(&all);
        let mut writer = context.values(batch);
        writer.strings = dictionary.strings(body);
        let mut own = writer.pairs(&all, true);
        let (trace, span) = dictionary.link(body, *link);
        for (name, id) in [
            (semconv::TRACE_ID, trace),
            (semconv::SPAN_ID, span),
            (semconv::OTLP_PROFILE_ID, &body[profile.id.clone()]),
        ] {
            if id.iter().any(|byte| *byte != 0) {
                push_new(&mut own, name, writer.batch.push_text(&hex(id)).into());
            }
        }
        let own = record_attributes(own, writer.marks, writer.dropped + profile.dropped);
        let run = batch.intern_run(&mut InternedRun::default(), |_| own);
        let attributes = SampleAttributes { run, has_scope };
        self.attributes.insert(indexes.into(), attributes);
        attributes
    }

    fn stack(&mut self, index: u32, limits: RecordLimits, batch: &mut BatchBuilder, body: &Bytes) -> SampleStack {
        if let Some(known) = self.stacks.get(&index) {
            return *known;
        }
        let ProfileReader { dictionary, texts, .. } = self;
        let strings = dictionary.strings(body);
        let mut wire = dictionary.frames(index);
        let first = wire.by_ref().take(limits.max_frames);
        let mut text = |index: u32| text_in(texts, strings, index, limits, batch).filter(|text| !text.is_empty());
        let named: Vec<_> = first
            .map(|frame| match frame {
                WireFrame::Line { name, file, line } => {
                    let line = u64::try_from(line).ok().filter(|line| *line > 0);
                    (0, Frame { function: text(name), file: text(file), line })
                }
                WireFrame::Address { address, file } => (address, Frame { file: text(file), ..Frame::default() }),
            })
            .collect();
        let is_cut = wire.next().is_some();
        let frames = named.into_iter().filter_map(|(address, mut frame)| {
            if address > 0 {
                frame.function = Some(batch.push_text(&format!("{address:#x}")));
            }
            // Nothing is known of the others.
            (frame.function.is_some() || frame.file.is_some()).then_some(frame)
        });
        let frames: Vec<Frame> = frames.collect();
        let stack = SampleStack { stack: batch.stack(&frames), is_cut };
        self.stacks.insert(index, stack);
        stack
    }
}

/// A text of the dictionary in the batch. `None`: beyond the table.
fn text_in(
    texts: &mut [Interned],
    strings: Strings<'_>,
    index: u32,
    limits: RecordLimits,
    batch: &mut BatchBuilder,
) -> Option<Text> {
    let memo = texts.get_mut(index as usize)?;
    Some(batch.interned(memo).unwrap_or_else(|| {
        let (text, _) = repair(cut_bytes(strings.get(index.into()), limits.max_text_bytes));
        batch.intern(memo, cut(&text, limits.max_text_bytes))
    }))
}

/// The texts of a message `ValueType`: the type and the unit.
fn value_type(message: &[u8]) -> (u32, u32) {
    (varint_of(message, 1) as u32, varint_of(message, 2) as u32)
}
