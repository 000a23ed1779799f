//! Samples of profiles as texts that can be compared, decoded and of events.

use std::collections::{BTreeMap, HashSet};

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{Profile, ProfilesDictionary, ValueType};
use opentelemetry_proto::tonic::resource::v1::Resource;
use tributary::event::{DataView, EventView, Number, ValueView};

use super::mapping;
use super::records::Decoded;

/// Samples as texts.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Samples {
    /// Each with its profile, time, value, frames and attributes; how often it is there.
    pub timed: BTreeMap<String, u32>,
    /// Objects of heap dumps by class and site: the sum of the values.
    pub heap: BTreeMap<String, i64>,
}

/// The profile that a sample belongs to.
#[derive(Clone, Debug)]
pub struct Place {
    pub resource: Resource,
    pub scope: InstrumentationScope,
    /// The attributes of the profile.
    pub attributes: Vec<String>,
}

impl Place {
    /// A text that is the same for all samples of the profile.
    pub fn text(&self) -> String {
        let mut resource = self.resource.attributes.clone();
        resource.sort_by(|a: &KeyValue, b| a.key.cmp(&b.key));
        let mut attributes = self.attributes.clone();
        attributes.sort();
        format!("{resource:?} {:?} {attributes:?}", self.scope)
    }
}

/// An attribute as text.
pub fn attribute(key: &str, value: Any) -> String {
    format!("{key}={:?}", Some(value))
}

/// A frame as text.
pub fn frame(function: &str, file: &str, line: i64, kind: &str) -> String {
    format!("{function} {file}:{line} {}", attribute("profile.frame.type", Any::StringValue(kind.to_owned())))
}

/// The samples of all requests. Fails on a dictionary or profile that breaks a rule of the format.
pub fn samples(decoded: &Decoded) -> Samples {
    let mut samples = Samples::default();
    for request in &decoded.profiles {
        let dictionary = request.dictionary.as_ref().unwrap();
        check(dictionary);
        for group in &request.resource_profiles {
            for scope in &group.scope_profiles {
                for profile in &scope.profiles {
                    let place = Place {
                        resource: group.resource.clone().unwrap(),
                        scope: scope.scope.clone().unwrap(),
                        attributes: profile.attribute_indices.iter().map(|at| entry(dictionary, *at)).collect(),
                    };
                    add_profile(&mut samples, profile, &place.text(), dictionary);
                }
            }
        }
    }
    samples
}

/// The rules for a dictionary: the first entry of each table is empty, and no entry repeats.
fn check(dictionary: &ProfilesDictionary) {
    assert_eq!(dictionary.string_table[0], "");
    assert_eq!(dictionary.function_table[0], Default::default());
    assert_eq!(dictionary.location_table[0], Default::default());
    assert_eq!(dictionary.stack_table[0], Default::default());
    assert_eq!(dictionary.attribute_table[0], Default::default());
    assert_eq!((dictionary.link_table.len(), dictionary.mapping_table.len()), (1, 1));
    let strings: HashSet<_> = dictionary.string_table.iter().collect();
    assert_eq!(strings.len(), dictionary.string_table.len());
}

fn entry(dictionary: &ProfilesDictionary, index: i32) -> String {
    let entry = &dictionary.attribute_table[index as usize];
    let key = &dictionary.string_table[entry.key_strindex as usize];
    attribute(key, entry.value.clone().and_then(|value| value.value).unwrap())
}

fn add_profile(samples: &mut Samples, profile: &Profile, place: &str, dictionary: &ProfilesDictionary) {
    let text = |index: i32| dictionary.string_table[index as usize].as_str();
    let types = |of: Option<ValueType>| {
        let of = of.unwrap();
        format!("{}/{}", text(of.type_strindex), text(of.unit_strindex))
    };
    assert!(profile.period > 0 && profile.duration_nano <= 10_000_000_000);
    let head = format!("{place} {} by {}", types(profile.sample_type), types(profile.period_type));
    for sample in &profile.samples {
        let frames = dictionary.stack_table[sample.stack_index as usize].location_indices.iter().map(|location| {
            let location = &dictionary.location_table[*location as usize];
            let [line] = &location.lines[..] else { panic!("{location:?}") };
            let function = &dictionary.function_table[line.function_index as usize];
            let kind: String = location.attribute_indices.iter().map(|at| entry(dictionary, *at)).collect();
            format!("{} {}:{} {kind}", text(function.name_strindex), text(function.filename_strindex), line.line)
        });
        let frames: Vec<_> = frames.collect();
        let mut attributes: Vec<_> = sample.attribute_indices.iter().map(|at| entry(dictionary, *at)).collect();
        attributes.sort();
        if sample.timestamps_unix_nano.is_empty() {
            let [value] = sample.values[..] else { panic!("{sample:?}") };
            let text = format!("{head} {} {frames:?} {attributes:?}", profile.time_unix_nano);
            *samples.heap.entry(text).or_default() += value;
            continue;
        }
        assert_eq!(sample.values.len(), sample.timestamps_unix_nano.len());
        for (value, time) in sample.values.iter().zip(&sample.timestamps_unix_nano) {
            assert!((profile.time_unix_nano..profile.time_unix_nano + profile.duration_nano).contains(time));
            let text = format!("{head} {time} {value} {frames:?} {attributes:?}");
            *samples.timed.entry(text).or_default() += 1;
        }
    }
}

/// The samples that the mapping demands of events.
pub fn expected<'a>(events: impl Iterator<Item = EventView<'a>>) -> Samples {
    let mut samples = Samples::default();
    for event in events {
        match event.data() {
            DataView::Sample(sample) => {
                let of = format!("{}/{}", sample.sample_type(), sample.unit());
                let value_type = if of == "cpu/count" { "samples/count" } else { &of };
                let period_type = match sample.data.period_nanos {
                    None => of.clone(),
                    Some(_) => {
                        let clock = sample.data.clock.map_or(sample.sample_type(), |clock| clock.as_str());
                        format!("{clock}/nanoseconds")
                    }
                };
                let frames: Vec<_> = sample
                    .frames()
                    .map(|it| {
                        let text = |text: Option<tributary::event::TextView<'a>>| text.map_or("", |text| text.text());
                        let file = text(it.file);
                        let line = it.line.and_then(|line| i64::try_from(line).ok()).unwrap_or(0);
                        let frame_type = match event.origin().protocol {
                            // Of the simulated programs.
                            "datadog_agent" | "otlp" => "cpython",
                            _ if file == "<cfunc>" => "native",
                            _ => "ruby",
                        };
                        frame(text(it.function), file, line, frame_type)
                    })
                    .collect();
                let is_own = |key: &str| !(mapping::is_record(event) && key.starts_with("otlp.scope."));
                let all = event.attributes().filter(|(key, _)| is_own(key.text()));
                let mut attributes: Vec<_> = all.map(|(key, value)| own(key.text(), value)).collect();
                attributes.sort();
                let time = event.time().unwrap_or(event.observed()).0;
                let value = match sample.data.value {
                    Number::U64(value) => value,
                    Number::I64(value) => u64::try_from(value).unwrap(),
                    Number::F64(_) => panic!("a whole number"),
                };
                let place = place(event, Vec::new());
                let text = format!("{place} {value_type} by {period_type} {time} {value} {frames:?} {attributes:?}");
                *samples.timed.entry(text).or_default() += 1;
            }
            DataView::Log { .. } if event.name().text() == "rbkit.heap.object" => add_object(&mut samples, event),
            _ => {}
        }
    }
    samples
}

fn add_object(samples: &mut Samples, event: EventView<'_>) {
    let find = |name: &str| event.attributes().find(|(key, _)| key.text() == name).map(|(_, value)| value);
    let text = |name: &str| match find(name) {
        Some(ValueView::Text(text)) => Some(text.text()),
        _ => None,
    };
    let number = |name: &str| match find(name) {
        Some(ValueView::U64(number)) => Some(number as i64),
        _ => None,
    };
    let dump = number("rbkit.dump.id").map(|id| attribute("rbkit.dump.id", Any::IntValue(id)));
    let object = Object {
        place: place(event, dump.into_iter().collect()),
        time: event.time().unwrap_or(event.observed()).0,
        class: text("rbkit.class.name"),
        file: text("code.file.path"),
        line: number("code.line.number"),
        size: number("rbkit.object.size"),
    };
    object.add_to(samples);
}

/// An object of a heap dump.
pub struct Object<'a> {
    /// Of its profile.
    pub place: String,
    pub time: u64,
    pub class: Option<&'a str>,
    pub file: Option<&'a str>,
    pub line: Option<i64>,
    pub size: Option<i64>,
}

impl Object<'_> {
    /// Adds it to both profiles of its dump.
    pub fn add_to(&self, samples: &mut Samples) {
        let Object { place, time, class, file, line, size } = self;
        let frames: Vec<String> = file
            .iter()
            .map(|file| {
                let line = line.unwrap_or(0);
                let site = if line > 0 { format!("{file}:{line}") } else { (*file).to_owned() };
                frame(&site, file, line, "ruby")
            })
            .collect();
        let class: Vec<String> =
            class.iter().map(|class| attribute("rbkit.class.name", Any::StringValue((*class).to_owned()))).collect();
        for (of, value) in [("inuse_objects/count", 1), ("inuse_space/bytes", size.unwrap_or(0))] {
            let text = format!("{place} {of} by {of} {time} {frames:?} {class:?}");
            *samples.heap.entry(text).or_default() += value;
        }
    }
}

fn own(key: &str, value: ValueView<'_>) -> String {
    let value = match value {
        ValueView::Text(text) => Any::StringValue(text.text().to_owned()),
        ValueView::U64(number) => Any::IntValue(number as i64),
        ValueView::Bool(value) => Any::BoolValue(value),
        other => panic!("{other:?}"),
    };
    attribute(key, value)
}

fn place(event: EventView<'_>, mut attributes: Vec<String>) -> String {
    let origin = event.origin();
    let (address, port) = origin.peer.rsplit_once(':').unwrap();
    attributes.push(attribute("tributary.listener", Any::StringValue(origin.listener.to_string())));
    attributes.push(attribute("network.peer.address", Any::StringValue(address.to_owned())));
    attributes.push(attribute("network.peer.port", Any::IntValue(port.parse().unwrap())));
    attributes.push(attribute("tributary.connection", Any::IntValue(origin.connection as i64)));
    Place { resource: mapping::resource(event), scope: mapping::scope(event), attributes }.text()
}
