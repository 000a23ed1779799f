//! Samples: `Profile` of `opentelemetry/proto/profiles/v1development/profiles.proto`.
//!
//! Samples of one connection, type, clock and period of 10 seconds are a profile.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::body::Body;
use super::dictionary::Dictionary;
use super::request::{Groups, RECORDS};
use tributary_codec::protobuf::{
    push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field, varint_len,
};
use tributary_event::{EventView, Number, SampleView, TextView, hex_array, semconv};

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
const LINK: u8 = 3;
const VALUES: u8 = 4;
const TIMESTAMPS: u8 = 5;
/// A profile covers at most this much time, in nanoseconds.
const LONGEST_PROFILE: u64 = 10_000_000_000;
/// What a profile or sample takes at most besides its lists.
pub(super) const PROFILE_OVERHEAD: usize = 96;
pub(super) const SAMPLE_OVERHEAD: usize = 32;

/// The profiles of one request, until it is complete.
#[derive(Debug, Default)]
pub(super) struct Profiles {
    dictionary: Dictionary,
    profiles: Vec<OpenProfile>,
    known: HashMap<ProfileKey, usize, RandomState>,
    /// Length of the profiles at most.
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ProfileKey {
    scope: usize,
    /// The address of the origin, which the groups keep.
    origin: usize,
    /// A process can change its clock between two samples.
    types: Types,
    /// The time in units of [`LONGEST_PROFILE`].
    time: u64,
}

/// A profile that gets samples.
#[derive(Debug)]
struct OpenProfile {
    scope: usize,
    profile: EncodedProfile,
    /// The samples by their stack, link and attributes.
    known: HashMap<(u32, u32, Box<[u8]>), usize, RandomState>,
}

/// A profile as it is written.
#[derive(Debug)]
pub(super) struct EncodedProfile {
    /// Indexes of texts: type and unit of the values, and of the period.
    pub(super) types: [u32; 4],
    /// Never 0: Pyroscope refuses that.
    pub(super) period: u64,
    /// Indexes, packed.
    pub(super) attributes: Vec<u8>,
    /// The first and the last time of its samples.
    pub(super) times: (u64, u64),
    pub(super) samples: Vec<EncodedSample>,
}

/// Values of one stack with the same attributes.
#[derive(Debug, Default)]
pub(super) struct EncodedSample {
    pub(super) stack: u32,
    /// Indexes, packed.
    pub(super) attributes: Vec<u8>,
    /// The index of a span; 0: none.
    pub(super) link: u32,
    /// Varints.
    pub(super) values: Vec<u8>,
    /// A time for each value; or none, of a single one.
    pub(super) timestamps: Vec<u8>,
}

/// Bytes of a request with profiles beside its parts: tags, lengths and the empty entries of the dictionary.
pub(super) const REQUEST_OVERHEAD: usize = 64;

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
        let mark = self.dictionary.mark();
        let stack = self.stack(event, sample);
        let span = span_of(event);
        let link = span.map_or(0, |(trace_id, span_id)| self.dictionary.link(&trace_id, &span_id));
        let is_link = |key: &str| key == semconv::TRACE_ID.as_str() || key == semconv::SPAN_ID.as_str();
        let attributes = self.dictionary.event_attributes(event, |key| span.is_some() && is_link(key));
        let time = event.time().unwrap_or(event.observed()).0;
        let types = self.types(sample);
        let key = ProfileKey {
            scope,
            origin: std::ptr::from_ref(&**event.origin()).addr(),
            types,
            time: time / LONGEST_PROFILE,
        };
        let known = self.known.get(&key).copied();
        let new = if known.is_none() { Some(self.open(scope, event, types, has_origin, time)) } else { None };
        let sample_key = (stack, link, attributes.clone().into_boxed_slice());
        let known_sample = known.and_then(|known| self.profiles[known].known.get(&sample_key).copied());
        let value = value_of(sample.data.value);
        let added = varint_len(value as u64)
            + 8
            + if known_sample.is_none() { SAMPLE_OVERHEAD + attributes.len() } else { 0 }
            + new.as_ref().map_or(0, |new| PROFILE_OVERHEAD + new.profile.attributes.len());
        if self.len() + added > limit {
            self.dictionary.truncate(&mark);
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
        let OpenProfile { profile: EncodedProfile { samples, times, .. }, known, .. } = &mut self.profiles[at];
        let at = known_sample.unwrap_or_else(|| {
            samples.push(EncodedSample { stack, attributes, link, ..EncodedSample::default() });
            known.insert(sample_key, samples.len() - 1);
            samples.len() - 1
        });
        push_varint(&mut samples[at].values, value as u64);
        samples[at].timestamps.extend_from_slice(&time.to_le_bytes());
        *times = (times.0.min(time), times.1.max(time));
        true
    }

    /// Length of profiles and dictionary at most.
    fn len(&self) -> usize {
        REQUEST_OVERHEAD + self.len + self.dictionary.len()
    }

    /// The index of the stack of a sample, leaf first.
    fn stack(&mut self, event: EventView<'_>, sample: SampleView<'_>) -> u32 {
        let protocol = event.origin().protocol;
        let language = event.resource().text(semconv::TELEMETRY_SDK_LANGUAGE);
        let mut locations = Vec::new();
        for frame in sample.frames() {
            let (name, file) = (text_of(frame.function), text_of(frame.file));
            locations.push(self.dictionary.location(
                name,
                file,
                frame.line.unwrap_or(0),
                frame_type(protocol, language, file),
            ));
        }
        self.dictionary.stack(locations)
    }

    fn types(&mut self, sample: SampleView<'_>) -> Types {
        let (of, unit) = (sample.sample_type(), sample.unit());
        let value = if (of, unit) == ("cpu", "count") { ("samples", unit) } else { (of, unit) };
        let (period, length) = match sample.data.period_nanos {
            Some(length @ 1..) => ((sample.data.clock.map_or(of, |clock| clock.as_str()), "nanoseconds"), length),
            _ => ((of, unit), 1),
        };
        ([value.0, value.1, period.0, period.1].map(|text| self.dictionary.string(text)), length)
    }

    /// A profile without samples. Its attributes are the origin.
    fn open(
        &mut self,
        scope: usize,
        event: EventView<'_>,
        (types, period): Types,
        has_origin: bool,
        time: u64,
    ) -> OpenProfile {
        let dictionary = &mut self.dictionary;
        let attributes = if has_origin { dictionary.origin_attributes(event.origin()) } else { Vec::new() };
        let profile = EncodedProfile { types, period, attributes, times: (time, time), samples: Vec::new() };
        OpenProfile { scope, profile, known: HashMap::default() }
    }

    /// Ends the request.
    pub(super) fn finish(self, mut groups: Groups) -> Body {
        self.profiles.iter().for_each(|open| open.profile.push_to(&mut groups, open.scope));
        let mut body = groups.finish();
        self.dictionary.write(&mut body.bytes);
        body
    }
}

impl EncodedProfile {
    /// Adds it to a scope.
    pub(super) fn push_to(&self, groups: &mut Groups, scope: usize) {
        groups.push(scope, usize::MAX, |out| push_message(out, RECORDS, 3, |out| self.write(out)));
    }

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
                if sample.link > 0 {
                    push_varint_field(out, LINK, sample.link.into());
                }
                push_bytes_field(out, VALUES, &sample.values);
                if !sample.timestamps.is_empty() {
                    push_bytes_field(out, TIMESTAMPS, &sample.timestamps);
                }
            });
        }
        let (first, last) = self.times;
        push_fixed64_field(out, TIME, first);
        // The end is not part of it.
        push_varint_field(out, DURATION, last - first + 1);
        value_type_of(PERIOD_TYPE, period_type, period_unit, out);
        push_varint_field(out, PERIOD, self.period);
        if !self.attributes.is_empty() {
            push_bytes_field(out, PROFILE_ATTRIBUTES, &self.attributes);
        }
    }
}

/// Indexes of the type and unit of the values and of the period; the length of the period, which is never 0.
type Types = ([u32; 4], u64);

/// A value as the format has it: whole, and not beyond its range.
fn value_of(number: Number) -> i64 {
    match number {
        Number::I64(value) => value,
        Number::U64(value) => i64::try_from(value).unwrap_or(i64::MAX),
        Number::F64(value) => value.round() as i64,
    }
}

/// The span of a sample, if its attributes name it and its trace.
fn span_of(event: EventView<'_>) -> Option<([u8; 16], [u8; 8])> {
    Some((hex_array(event.text_of(semconv::TRACE_ID)?)?, hex_array(event.text_of(semconv::SPAN_ID)?)?))
}

fn text_of(text: Option<TextView<'_>>) -> &str {
    text.map_or("", |text| text.text())
}

/// The kind of a frame. Rbkit names the file of functions in C `<cfunc>`.
fn frame_type(protocol: &str, language: Option<&str>, file: &str) -> &'static str {
    match protocol {
        "rbkit" if file == "<cfunc>" => "native",
        "rbkit" => "ruby",
        "bytefrog" | "zico" => "jvm",
        _ => match language {
            Some("ruby") => "ruby",
            Some("python") => "cpython",
            Some("javascript" | "nodejs" | "webjs") => "v8js",
            Some("php") => "php",
            Some("go") => "go",
            Some("dotnet" | ".NET") => "dotnet",
            Some("java" | "jvm") => "jvm",
            _ => "native",
        },
    }
}
