//! Samples: `Profile` and `ProfilesDictionary` of `opentelemetry/proto/profiles/v1development/profiles.proto`.
//!
//! Samples of one connection, type and period of 10 seconds are a profile. Texts, functions, locations, stacks and attributes
//! stand once per request, in its dictionary.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::request::{Groups, RECORDS};
use super::value::{key_of, push_body};
use crate::codec::protobuf::{
    push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field, varint_len,
};
use crate::event::{EventView, FrameView, Name, Number, Origin, SampleClock, SampleView, ValueView, semconv};

/// Field of a request.
const DICTIONARY: u8 = 2;
// Fields of Profile.
const SAMPLE_TYPE: u8 = 1;
const SAMPLES: u8 = 2;
const TIME: u8 = 3;
const DURATION: u8 = 4;
const PERIOD_TYPE: u8 = 5;
const PERIOD: u8 = 6;
const PROFILE_ATTRIBUTES: u8 = 11;
// Fields of Sample.
const STACK: u8 = 1;
const SAMPLE_ATTRIBUTES: u8 = 2;
const VALUES: u8 = 4;
const TIMESTAMPS: u8 = 5;
// Fields of the entries of the dictionary.
const LOCATION_LINES: u8 = 3;
const LOCATION_ATTRIBUTES: u8 = 4;
const LINE_FUNCTION: u8 = 1;
const LINE_LINE: u8 = 2;
const FUNCTION_NAME: u8 = 1;
const FUNCTION_FILE: u8 = 3;
const ATTRIBUTE_KEY: u8 = 1;
const ATTRIBUTE_VALUE: u8 = 2;
const STACK_LOCATIONS: u8 = 1;

/// A profile covers at most this much time, in nanoseconds.
const LONGEST_PROFILE: u64 = 10_000_000_000;
/// What a profile or sample takes at most besides its lists.
const PROFILE_OVERHEAD: usize = 96;
const SAMPLE_OVERHEAD: usize = 32;

/// The profiles of one request, until it is complete.
#[derive(Debug)]
pub(super) struct Profiles {
    strings: Table,
    functions: Table,
    locations: Table,
    stacks: Table,
    attributes: Table,
    profiles: Vec<Profile>,
    known: HashMap<ProfileKey, usize, RandomState>,
    /// Length of the profiles at most.
    len: usize,
}

/// Entries of a dictionary, each once.
#[derive(Debug)]
struct Table {
    /// Its field in the dictionary.
    field: u8,
    encoded: Vec<u8>,
    indexes: HashMap<Box<[u8]>, u32, RandomState>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ProfileKey {
    scope: usize,
    /// The address of the origin, which the groups keep.
    origin: usize,
    sample_type: &'static str,
    unit: &'static str,
    /// The time in units of [`LONGEST_PROFILE`].
    time: u64,
}

#[derive(Debug)]
struct Profile {
    scope: usize,
    /// Indexes of texts: type and unit of the values, and of the period.
    types: [u32; 4],
    period: u64,
    attributes: Vec<u8>,
    first: u64,
    last: u64,
    samples: Vec<Sample>,
    known: HashMap<(u32, Box<[u8]>), usize, RandomState>,
}

/// Values of one stack with the same attributes.
#[derive(Debug, Default)]
struct Sample {
    stack: u32,
    attributes: Vec<u8>,
    values: Vec<u8>,
    timestamps: Vec<u8>,
}

/// What the tables have before an event is added.
struct Mark([(usize, usize); 5]);

impl Table {
    /// A table whose first entry is the empty one.
    fn new(field: u8) -> Table {
        let mut table = Table { field, encoded: Vec::new(), indexes: HashMap::default() };
        table.index_of(&[]);
        table
    }

    fn index_of(&mut self, entry: &[u8]) -> u32 {
        if let Some(known) = self.indexes.get(entry) {
            return *known;
        }
        let index = self.indexes.len() as u32;
        push_bytes_field(&mut self.encoded, self.field, entry);
        self.indexes.insert(entry.into(), index);
        index
    }

    fn mark(&self) -> (usize, usize) {
        (self.encoded.len(), self.indexes.len())
    }

    /// Removes the entries after a mark.
    fn truncate(&mut self, (len, count): (usize, usize)) {
        if self.indexes.len() > count {
            self.encoded.truncate(len);
            self.indexes.retain(|_, index| (*index as usize) < count);
        }
    }
}

impl Default for Profiles {
    fn default() -> Profiles {
        Profiles {
            strings: Table::new(5),
            functions: Table::new(3),
            locations: Table::new(2),
            stacks: Table::new(7),
            attributes: Table::new(6),
            profiles: Vec::new(),
            known: HashMap::default(),
            len: 64,
        }
    }
}

impl Profiles {
    /// Adds a sample to the profile that it belongs to, unless `limit` is less than what the request would then have. Returns
    /// whether it was added.
    pub(super) fn push(
        &mut self,
        scope: usize,
        event: EventView<'_>,
        sample: SampleView<'_>,
        has_origin: bool,
        limit: usize,
    ) -> bool {
        let mark = self.mark();
        let stack = self.stack(event, sample);
        let attributes = self.sample_attributes(event);
        let time = event.time().unwrap_or(event.observed()).0;
        let key = ProfileKey {
            scope,
            origin: std::ptr::from_ref(&**event.origin()).addr(),
            sample_type: sample.data.sample_type,
            unit: sample.data.unit,
            time: time / LONGEST_PROFILE,
        };
        let known = self.known.get(&key).copied();
        let new =
            if known.is_none() { Some(self.profile(scope, event.origin(), sample, has_origin, time)) } else { None };
        let sample_key = (stack, attributes.clone().into_boxed_slice());
        let known_sample = known.and_then(|known| self.profiles[known].known.get(&sample_key).copied());
        let value = value_of(sample.data.value);
        let added = varint_len(value as u64)
            + 8
            + if known_sample.is_none() { SAMPLE_OVERHEAD + attributes.len() } else { 0 }
            + new.as_ref().map_or(0, |new| PROFILE_OVERHEAD + new.attributes.len());
        if self.len() + added > limit {
            self.truncate(&mark);
            return false;
        }
        self.len += added;
        let at = match new {
            None => known.unwrap_or_default(),
            Some(new) => {
                self.profiles.push(new);
                self.known.insert(key, self.profiles.len() - 1);
                self.profiles.len() - 1
            }
        };
        let profile = &mut self.profiles[at];
        let at = known_sample.unwrap_or_else(|| {
            profile.samples.push(Sample { stack, attributes, ..Sample::default() });
            profile.known.insert(sample_key, profile.samples.len() - 1);
            profile.samples.len() - 1
        });
        push_varint(&mut profile.samples[at].values, value as u64);
        profile.samples[at].timestamps.extend_from_slice(&time.to_le_bytes());
        (profile.first, profile.last) = (profile.first.min(time), profile.last.max(time));
        true
    }

    /// Length of profiles and dictionary at most.
    fn len(&self) -> usize {
        self.len + self.tables().iter().map(|table| table.encoded.len()).sum::<usize>()
    }

    fn tables(&self) -> [&Table; 5] {
        [&self.strings, &self.functions, &self.locations, &self.stacks, &self.attributes]
    }

    fn mark(&self) -> Mark {
        Mark(self.tables().map(Table::mark))
    }

    fn truncate(&mut self, Mark(marks): &Mark) {
        let tables =
            [&mut self.strings, &mut self.functions, &mut self.locations, &mut self.stacks, &mut self.attributes];
        tables.into_iter().zip(marks).for_each(|(table, mark)| table.truncate(*mark));
    }

    /// The index of the stack of a sample, leaf first.
    fn stack(&mut self, event: EventView<'_>, sample: SampleView<'_>) -> u32 {
        let mut indexes = Vec::new();
        for frame in sample.frames() {
            let location = self.location(event.origin().protocol, frame);
            push_varint(&mut indexes, location.into());
        }
        let mut stack = Vec::new();
        if !indexes.is_empty() {
            push_bytes_field(&mut stack, STACK_LOCATIONS, &indexes);
        }
        self.stacks.index_of(&stack)
    }

    fn location(&mut self, protocol: &str, frame: FrameView<'_>) -> u32 {
        let mut function = Vec::new();
        for (field, text) in [(FUNCTION_NAME, frame.function), (FUNCTION_FILE, frame.file)] {
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                push_varint_field(&mut function, field, self.strings.index_of(text.text().as_bytes()).into());
            }
        }
        let function = self.functions.index_of(&function);
        let frame_type = self.text_attribute(semconv::PROFILE_FRAME_TYPE, frame_type(protocol, frame));
        let mut location = Vec::new();
        push_message(&mut location, LOCATION_LINES, 1, |out| {
            push_varint_field(out, LINE_FUNCTION, function.into());
            if let Some(line) = frame.line.and_then(|line| i64::try_from(line).ok()).filter(|line| *line > 0) {
                push_varint_field(out, LINE_LINE, line as u64);
            }
        });
        let mut attributes = Vec::new();
        push_varint(&mut attributes, frame_type.into());
        push_bytes_field(&mut location, LOCATION_ATTRIBUTES, &attributes);
        self.locations.index_of(&location)
    }

    fn text_attribute(&mut self, name: Name, text: &str) -> u32 {
        const STRING: u8 = 1;
        let mut value = Vec::new();
        push_bytes_field(&mut value, STRING, text.as_bytes());
        let mut entry = Vec::new();
        push_varint_field(&mut entry, ATTRIBUTE_KEY, self.strings.index_of(name.as_str().as_bytes()).into());
        push_bytes_field(&mut entry, ATTRIBUTE_VALUE, &value);
        self.attributes.index_of(&entry)
    }

    fn attribute(&mut self, key: &str, value: ValueView<'_>) -> (u32, bool) {
        let mut entry = Vec::new();
        push_varint_field(&mut entry, ATTRIBUTE_KEY, self.strings.index_of(key.as_bytes()).into());
        let is_nested = push_body(&mut entry, ATTRIBUTE_VALUE, value);
        (self.attributes.index_of(&entry), is_nested)
    }

    /// The indexes of the attributes of an event, packed.
    fn sample_attributes(&mut self, event: EventView<'_>) -> Vec<u8> {
        let mut indexes = Vec::new();
        let mut is_nested = false;
        for (key, value) in event.attributes() {
            if key.is_empty() || matches!(value, ValueView::Null) {
                continue;
            }
            let has_key = |key: &str| event.attributes().any(|(other, _)| other.text() == key);
            let (index, is_deep) = self.attribute(key_of(key.text(), value, has_key), value);
            is_nested |= is_deep;
            push_varint(&mut indexes, index.into());
        }
        if is_nested && !event.attributes().any(|(key, _)| key.text() == semconv::TEXT_NESTED.as_str()) {
            let (index, _) = self.attribute(semconv::TEXT_NESTED.as_str(), ValueView::Bool(true));
            push_varint(&mut indexes, index.into());
        }
        indexes
    }

    /// A profile without samples. Its attributes are the origin.
    fn profile(
        &mut self,
        scope: usize,
        origin: &Origin,
        sample: SampleView<'_>,
        has_origin: bool,
        time: u64,
    ) -> Profile {
        let mut attributes = Vec::new();
        if has_origin {
            let (address, port) = origin.peer_address();
            let listener = self.text_attribute(semconv::ORIGIN_LISTENER, &origin.listener);
            let address = Some(address).filter(|address| !address.is_empty());
            let address = address.map(|address| self.text_attribute(semconv::NETWORK_PEER_ADDRESS, address));
            let port = port.map(|port| (semconv::NETWORK_PEER_PORT, u64::from(port)));
            let numbers = port.into_iter().chain([(semconv::ORIGIN_CONNECTION, origin.connection)]);
            let numbers: Vec<u32> =
                numbers.map(|(name, number)| self.attribute(name.as_str(), ValueView::U64(number)).0).collect();
            let all = [listener].into_iter().chain(address).chain(numbers);
            all.for_each(|index| push_varint(&mut attributes, index.into()));
        }
        let (sample_type, period_type, period) = types(sample);
        let texts = [sample_type.0, sample_type.1, period_type.0, period_type.1];
        let types = texts.map(|text| self.strings.index_of(text.as_bytes()));
        let (samples, known) = (Vec::new(), HashMap::default());
        Profile { scope, types, period, attributes, first: time, last: time, samples, known }
    }

    /// Appends the request.
    pub(super) fn write(self, mut groups: Groups, out: &mut Vec<u8>) {
        let mut record = Vec::new();
        for profile in &self.profiles {
            record.clear();
            push_message(&mut record, RECORDS, 3, |out| profile.write(out));
            groups.push(profile.scope, &record);
        }
        groups.write(out);
        push_message(out, DICTIONARY, 3, |out| {
            // Links and mappings are not used, but have their empty entry.
            const MAPPINGS: u8 = 1;
            const LINKS: u8 = 4;
            push_bytes_field(out, MAPPINGS, &[]);
            push_message(out, LINKS, 1, |out| {
                push_bytes_field(out, 1, &[0; 16]);
                push_bytes_field(out, 2, &[0; 8]);
            });
            self.tables().iter().for_each(|table| out.extend_from_slice(&table.encoded));
        });
    }
}

impl Profile {
    fn write(&self, out: &mut Vec<u8>) {
        let [value_type, value_unit, period_type, period_unit] = self.types;
        let value_type_of = |field, of: u32, unit: u32, out: &mut Vec<u8>| {
            push_message(out, field, 1, |out| {
                push_varint_field(out, 1, of.into());
                push_varint_field(out, 2, unit.into());
            });
        };
        value_type_of(SAMPLE_TYPE, value_type, value_unit, out);
        for sample in &self.samples {
            push_message(out, SAMPLES, 2, |out| {
                push_varint_field(out, STACK, sample.stack.into());
                push_bytes_field(out, SAMPLE_ATTRIBUTES, &sample.attributes);
                push_bytes_field(out, VALUES, &sample.values);
                push_bytes_field(out, TIMESTAMPS, &sample.timestamps);
            });
        }
        push_fixed64_field(out, TIME, self.first);
        // The end is not part of it.
        push_varint_field(out, DURATION, self.last - self.first + 1);
        value_type_of(PERIOD_TYPE, period_type, period_unit, out);
        push_varint_field(out, PERIOD, self.period);
        if !self.attributes.is_empty() {
            push_bytes_field(out, PROFILE_ATTRIBUTES, &self.attributes);
        }
    }
}

type TypeAndUnit = (&'static str, &'static str);

/// The type of the values, and the type and length of the period, which is never 0: Pyroscope refuses that.
fn types(sample: SampleView<'_>) -> (TypeAndUnit, TypeAndUnit, u64) {
    let data = sample.data;
    let of_sample = (data.sample_type, data.unit);
    let value = if data.sample_type == "cpu" { ("samples", "count") } else { of_sample };
    match (data.period_nanos, data.clock) {
        (Some(period), clock) if period > 0 => {
            (value, (clock.map_or(data.sample_type, SampleClock::as_str), "nanoseconds"), period)
        }
        _ => (value, of_sample, 1),
    }
}

/// A value as the format has it: whole, and not beyond its range.
fn value_of(number: Number) -> i64 {
    match number {
        Number::I64(value) => value,
        Number::U64(value) => i64::try_from(value).unwrap_or(i64::MAX),
        Number::F64(value) => value.round() as i64,
    }
}

/// The kind of a frame. Rbkit names the file of functions in C `<cfunc>`.
fn frame_type(protocol: &str, frame: FrameView<'_>) -> &'static str {
    match protocol {
        "rbkit" if frame.file.is_some_and(|file| file.text() == "<cfunc>") => "native",
        "rbkit" => "ruby",
        _ => "jvm",
    }
}
