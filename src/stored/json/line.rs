//! The members of a line, with values that are still JSON. Texts are borrowed from the line; one with escapes is copied.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::OriginParts;
use tributary_event::Number;

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredLine<'a> {
    pub(super) time: Option<Text<'a>>,
    pub(super) observed_time: Option<Text<'a>>,
    #[serde(default)]
    pub(super) delay_ns: i64,
    /// `None`: the line defines a source.
    pub(super) kind: Option<Text<'a>>,
    pub(super) name: Option<Text<'a>>,
    pub(super) severity: Option<Text<'a>>,
    pub(super) severity_number: Option<u64>,
    pub(super) trace_id: Option<Text<'a>>,
    pub(super) span_id: Option<Text<'a>>,
    /// `Some` of the text `null`: the body is null.
    #[serde(default, deserialize_with = "present")]
    pub(super) body: Option<JsonText<'a>>,
    /// Behind a pointer, because it is large and few lines have one.
    pub(super) metric: Option<Box<Metric<'a>>>,
    pub(super) span: Option<StoredSpan<'a>>,
    pub(super) sample: Option<StoredSample<'a>>,
    pub(super) loss: Option<Loss<'a>>,
    #[serde(default)]
    pub(super) attributes: Members<'a>,
    #[serde(default, deserialize_with = "present")]
    pub(super) resource: Option<JsonText<'a>>,
    pub(super) origin: Option<Origin<'a>>,
    /// Of a line in our own order: the beginning of its origin, which is the same for each event of a connection.
    #[serde(skip)]
    pub(super) origin_json: Option<&'a str>,
    /// In place of `origin`: the last stored origin of the [`crate::Rebuilder`] is that of the line.
    #[serde(skip)]
    pub(super) has_known_origin: bool,
    pub(super) source: Option<Text<'a>>,
    /// Sequence, offset and length, beside a source or a known origin.
    pub(super) position: Option<(Option<u64>, u64, u64)>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Metric<'a> {
    #[serde(rename = "type")]
    pub(super) metric_type: Text<'a>,
    #[serde(default)]
    pub(super) unit: Text<'a>,
    /// Of a gauge or a sum.
    pub(super) value: Option<&'a RawValue>,
    /// Of a distribution, as are the members up to the quantiles.
    pub(super) count: Option<u64>,
    pub(super) sum: Option<Double>,
    pub(super) min: Option<Double>,
    pub(super) max: Option<Double>,
    #[serde(default)]
    pub(super) bounds: Vec<Double>,
    #[serde(default)]
    pub(super) counts: Vec<u64>,
    #[serde(default)]
    pub(super) scale: i32,
    #[serde(default)]
    pub(super) zero_count: u64,
    pub(super) zero_threshold: Option<Double>,
    #[serde(default)]
    pub(super) positive: Buckets,
    #[serde(default)]
    pub(super) negative: Buckets,
    #[serde(default)]
    pub(super) quantiles: Vec<(Double, Double)>,
    pub(super) temporality: Option<Text<'a>>,
    pub(super) monotonic: Option<bool>,
    pub(super) start_time: Option<Text<'a>>,
}

#[derive(Default, Deserialize)]
pub(super) struct Buckets {
    pub(super) offset: i32,
    pub(super) counts: Vec<u64>,
}

/// A double as lines have it: a number, or the text that stands for one that is not finite.
#[derive(Clone, Copy)]
pub(super) struct Double(pub(super) f64);

impl<'de> Deserialize<'de> for Double {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = super::number(<&RawValue>::deserialize(deserializer)?.get());
        let number = number.ok_or_else(|| D::Error::custom("a number of a distribution is none"))?;
        Ok(Double(match number {
            Number::F64(number) => number,
            Number::I64(number) => number as f64,
            Number::U64(number) => number as f64,
        }))
    }
}

#[derive(Default, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredSpan<'a> {
    pub(super) trace_id: Text<'a>,
    pub(super) span_id: Text<'a>,
    pub(super) parent_span_id: Option<Text<'a>>,
    pub(super) end_time: Option<Text<'a>>,
    pub(super) duration_ns: Option<u64>,
    pub(super) kind: Option<Text<'a>>,
    pub(super) status: Text<'a>,
    pub(super) status_message: Option<Text<'a>>,
    pub(super) trace_state: Option<Text<'a>>,
    #[serde(default)]
    pub(super) flags: u32,
    #[serde(default)]
    pub(super) dropped: Dropped,
    #[serde(default)]
    pub(super) links: Vec<StoredLink<'a>>,
    #[serde(default)]
    pub(super) events: Vec<StoredSpanEvent<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Dropped {
    pub(super) attributes: u32,
    pub(super) events: u32,
    pub(super) links: u32,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredLink<'a> {
    pub(super) trace_id: Text<'a>,
    pub(super) span_id: Text<'a>,
    #[serde(default)]
    pub(super) attributes: Members<'a>,
    pub(super) trace_state: Option<Text<'a>>,
    pub(super) flags: Option<u32>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredSpanEvent<'a> {
    pub(super) time: Option<Text<'a>>,
    pub(super) name: Text<'a>,
    #[serde(default)]
    pub(super) attributes: Members<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredSample<'a> {
    #[serde(rename = "type")]
    pub(super) sample_type: Text<'a>,
    #[serde(default)]
    pub(super) unit: Text<'a>,
    pub(super) value: &'a RawValue,
    pub(super) period_ns: Option<u64>,
    pub(super) clock: Option<Text<'a>>,
    pub(super) frames: Vec<StoredFrame<'a>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct StoredFrame<'a> {
    pub(super) function: Option<Text<'a>>,
    pub(super) file: Option<Text<'a>>,
    pub(super) line: Option<u64>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Loss<'a> {
    pub(super) reason: Text<'a>,
    pub(super) bytes: u64,
    pub(super) events: Option<u64>,
    #[serde(default)]
    pub(super) detail: Text<'a>,
    #[serde(default)]
    pub(super) excerpt: Text<'a>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Origin<'a> {
    pub(super) protocol: Text<'a>,
    pub(super) version: Option<Text<'a>>,
    pub(super) listener: Text<'a>,
    #[serde(default)]
    pub(super) peer: Text<'a>,
    pub(super) connection: u64,
    pub(super) sequence: Option<u64>,
    /// Absent in the definition of a source.
    pub(super) offset: Option<u64>,
    pub(super) length: Option<u64>,
}

/// A text of a line, which is copied only if it has escapes.
#[derive(Default, Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A value that is still JSON.
#[derive(Clone, Copy)]
pub(super) enum JsonText<'a> {
    /// A text, without its quotes, that has no escapes.
    Text(&'a str),
    /// Any value, without spaces around it.
    Json(&'a str),
}

impl<'a, 'de: 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|json| JsonText::Json(json.get()))
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The members of an object. If a key stands twice, its last value counts, in the first place.
#[derive(Default)]
pub(super) struct Members<'a> {
    members: Vec<JsonMember<'a>>,
    /// The places of the keys, if there are many.
    places: HashMap<Cow<'a, str>, usize, RandomState>,
}

struct JsonMember<'a> {
    /// Of its key: two keys are compared only if these are equal.
    fingerprint: u32,
    key: Cow<'a, str>,
    value: JsonText<'a>,
}

impl<'a> Members<'a> {
    /// Takes memory for as many as most objects have.
    pub(super) fn reserve(&mut self) {
        self.members.reserve(16);
    }

    pub(super) fn set(&mut self, key: Cow<'a, str>, value: JsonText<'a>) {
        let fingerprint = fingerprint(key.as_bytes());
        let is_known = |known: &JsonMember<'_>| known.fingerprint == fingerprint && known.key == key;
        let place = match self.members.len() {
            0..=MAX_SEARCHED => self.members.iter().position(is_known),
            _ => {
                for (place, member) in self.members.iter().enumerate().skip(self.places.len()) {
                    self.places.insert(member.key.clone(), place);
                }
                self.places.get(&key).copied()
            }
        };
        match place {
            Some(place) => self.members[place].value = value,
            None => self.members.push(JsonMember { fingerprint, key, value }),
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&str, JsonText<'a>)> {
        self.members.iter().map(|member| (&*member.key, member.value))
    }
}

/// Its length, its first and its last byte.
fn fingerprint(key: &[u8]) -> u32 {
    let byte = |byte: Option<&u8>| u32::from(byte.copied().unwrap_or_default());
    (key.len() as u32) << 16 | byte(key.first()) << 8 | byte(key.last())
}

/// The most members among which a key is searched one by one.
pub(super) const MAX_SEARCHED: usize = 32;

impl<'a, 'de: 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Members::default();
                members.reserve();
                while let Some((Text(key), value)) = map.next_entry()? {
                    members.set(key, value);
                }
                Ok(members)
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

impl StoredLine<'_> {
    pub(super) fn resource(&self) -> &str {
        match self.resource {
            Some(JsonText::Json(json)) => json,
            _ => "{}",
        }
    }
}

impl Origin<'_> {
    pub(super) fn parts(&self) -> OriginParts<'_> {
        let Origin { protocol, version, listener, peer, connection, .. } = self;
        OriginParts { protocol, version: version.as_deref(), listener, peer, connection: *connection }
    }
}

fn present<'a, 'de: 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<JsonText<'a>>, D::Error> {
    JsonText::deserialize(deserializer).map(Some)
}
