//! Stacks for pprof: the gzip-compressed protobuf of <https://github.com/google/pprof/blob/main/proto/profile.proto>.
//!
//! Processes and threads, where they are kept, are labels of samples.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::Counted;
use super::stacks::{Level, Stacks};
use tributary_codec::protobuf::{push_bytes_field, push_message, push_varint, push_varint_field};

// Fields of Profile.
const SAMPLE_TYPE: u8 = 1;
const SAMPLE: u8 = 2;
const LOCATION: u8 = 4;
const FUNCTION: u8 = 5;
const STRING: u8 = 6;
const TIME_NANOS: u8 = 9;
const DURATION_NANOS: u8 = 10;
const PERIOD_TYPE: u8 = 11;
const PERIOD: u8 = 12;
const COMMENT: u8 = 13;
const DEFAULT_SAMPLE_TYPE: u8 = 14;

/// What is known about a profile besides its stacks.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// The quantities of the samples, each with the number that its values are multiplied by. The first of them is shown.
    pub values: Vec<(&'static str, &'static str, Counted, u64)>,
    /// Title.
    pub title: &'a str,
    /// When it began, in nanoseconds since the epoch, and how long it took.
    pub start: Option<u64>,
    #[allow(missing_docs)]
    pub duration: u64,
    /// The clock that samples are taken by, and the time between two of them in nanoseconds.
    pub period: Option<(&'static str, u64)>,
}

/// Texts, each once.
struct StringTable {
    encoded: Vec<u8>,
    numbers: HashMap<Box<str>, u64, RandomState>,
}

impl StringTable {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u64;
        push_bytes_field(&mut self.encoded, STRING, text.as_bytes());
        self.numbers.insert(text.into(), number);
        number
    }
}

/// Writes the stacks.
///
/// # Errors
/// Writing to `out` failed.
pub fn write(stacks: &Stacks, about: &About<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut texts = StringTable { encoded: Vec::new(), numbers: HashMap::default() };
    texts.number("");
    let mut profile = Vec::new();
    for (sample_type, unit, ..) in &about.values {
        value_type(&mut profile, SAMPLE_TYPE, (sample_type, unit), &mut texts);
    }
    samples(stacks, about, &mut profile, &mut texts);
    functions(stacks, &mut profile, &mut texts);
    if let Some(start) = about.start {
        push_varint_field(&mut profile, TIME_NANOS, start);
    }
    push_varint_field(&mut profile, DURATION_NANOS, about.duration);
    if let Some((clock, period)) = about.period {
        value_type(&mut profile, PERIOD_TYPE, (clock, "nanoseconds"), &mut texts);
        push_varint_field(&mut profile, PERIOD, period);
    }
    let title = texts.number(about.title);
    push_varint_field(&mut profile, COMMENT, title);
    if let Some((first, ..)) = about.values.first() {
        let first = texts.number(first);
        push_varint_field(&mut profile, DEFAULT_SAMPLE_TYPE, first);
    }
    profile.extend_from_slice(&texts.encoded);
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&profile)?;
    gzip.finish()?;
    Ok(())
}

fn value_type(out: &mut Vec<u8>, field: u8, (name, unit): (&str, &str), texts: &mut StringTable) {
    let (name, unit) = (texts.number(name), texts.number(unit));
    push_message(out, field, 1, |out| {
        push_varint_field(out, 1, name);
        push_varint_field(out, 2, unit);
    });
}

/// One sample for each stack with a value: its locations, innermost first, its values and its labels.
fn samples(stacks: &Stacks, about: &About<'_>, out: &mut Vec<u8>, texts: &mut StringTable) {
    let tree = stacks.tree();
    let frames = stacks.all_frames();
    let keys = [texts.number("process"), texts.number("thread")];
    let (mut locations, mut values) = (Vec::new(), Vec::new());
    for (node, sums) in (0..).zip(tree.nodes()) {
        if sums.own == [0, 0] {
            continue;
        }
        locations.clear();
        values.clear();
        let mut labels = [0, 0];
        for frame in tree.frames(node) {
            match frames[frame as usize].level {
                Level::Call => push_varint(&mut locations, u64::from(frame) + 1),
                Level::Process => labels[0] = texts.number(&frames[frame as usize].text),
                Level::Thread => labels[1] = texts.number(&frames[frame as usize].text),
            }
        }
        for (_, _, counted, factor) in &about.values {
            let value = sums.own[counted.column()].saturating_mul(*factor);
            // Values are signed.
            push_varint(&mut values, value.min(i64::MAX as u64));
        }
        push_message(out, SAMPLE, 1, |out| {
            push_bytes_field(out, 1, &locations);
            push_bytes_field(out, 2, &values);
            for (key, text) in keys.into_iter().zip(labels).filter(|(_, text)| *text != 0) {
                push_message(out, 3, 1, |out| {
                    push_varint_field(out, 1, key);
                    push_varint_field(out, 2, text);
                });
            }
        });
    }
}

/// A location and a function for each frame. Their ids are the number of the frame plus one: 0 is no id.
fn functions(stacks: &Stacks, out: &mut Vec<u8>, texts: &mut StringTable) {
    for (frame, named) in (1u64..).zip(stacks.all_frames()) {
        if named.level != Level::Call {
            continue;
        }
        let name = texts.number(named.function.as_deref().unwrap_or(&named.text));
        let file = texts.number(named.file.as_deref().unwrap_or(""));
        let line = named.line.unwrap_or(0).min(i64::MAX as u64);
        push_message(out, LOCATION, 1, |out| {
            push_varint_field(out, 1, frame);
            push_message(out, 4, 1, |out| {
                push_varint_field(out, 1, frame);
                push_varint_field(out, 2, line);
            });
        });
        push_message(out, FUNCTION, 1, |out| {
            push_varint_field(out, 1, frame);
            push_varint_field(out, 2, name);
            push_varint_field(out, 3, name);
            push_varint_field(out, 4, file);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::super::{ProfileFrame, ProfileSample, Site};
    use super::*;
    use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, bytes_of, varint_of};

    #[test]
    fn samples_refer_to_locations_functions_and_texts() {
        let mut stacks = Stacks::default();
        let frame = |name: &'static str| ProfileFrame {
            function: Some(name.into()),
            site: Site { file: Some("/a.rb".into()), line: Some(7) },
        };
        let sample = ProfileSample {
            frames: vec![frame("inner"), frame("outer")],
            value: 3,
            agent: "shop".into(),
            thread: Some("main".into()),
            ..ProfileSample::default()
        };
        stacks.add(&sample);
        let values = vec![("samples", "count", Counted::Cpu, 1), ("cpu", "nanoseconds", Counted::Cpu, 1000)];
        let about = About { values, title: "t", start: Some(9), duration: 5, period: Some(("cpu", 1000)) };
        let (mut gzip, mut profile) = (Vec::new(), Vec::new());
        write(&stacks.merged(|_| true, true, true), &about, &mut gzip).unwrap();
        GzDecoder::new(&gzip[..]).read_to_end(&mut profile).unwrap();
        let all = |number: u8| -> Vec<&[u8]> {
            let of = |value| if let ProtobufValue::Bytes(bytes) = value { Some(bytes) } else { None };
            ProtobufFields::of(&profile)
                .filter(|field| field.number == u64::from(number))
                .filter_map(|field| of(field.value))
                .collect()
        };
        let texts = all(STRING);
        let text = |number: u64| str::from_utf8(texts[number as usize]).unwrap();
        assert_eq!(text(0), "");
        let samples = all(SAMPLE);
        assert_eq!(samples.len(), 1);
        let names: Vec<&str> = bytes_of(samples[0], 1)
            .iter()
            .map(|id| {
                let function = all(FUNCTION).into_iter().find(|it| varint_of(it, 1) == u64::from(*id)).unwrap();
                assert_eq!(text(varint_of(function, 4)), "/a.rb");
                text(varint_of(function, 2))
            })
            .collect();
        assert_eq!(names, ["inner", "outer"]);
        assert_eq!(bytes_of(samples[0], 2), [3, 0xb8, 0x17]);
        let labels: Vec<_> = ProtobufFields::of(samples[0]).filter(|field| field.number == 3).collect();
        assert_eq!(labels.len(), 2);
        assert_eq!((varint_of(&profile, 9), varint_of(&profile, 10), varint_of(&profile, 12)), (9, 5, 1000));
    }
}
