//! MessagePack of a heap dump, compared with two libraries: our pull reader; rmp-serde into structs, and into a value of any
//! shape, as a decoder without a schema needs it; rmpv into its own values, with texts borrowed and copied. All return the
//! same sums.

#![allow(missing_docs)]

use std::fmt;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tributary::codec::msgpack::{MsgpackValue, Reader};
use tributary_workloads::rbkit::{OBJECTS, dump};

/// Objects, sum of ids, references, bytes of text, sum of lines and sizes.
type Sums = [u64; 5];

/// Our reader: reads by key, copies nothing.
fn pull(wire: &[u8]) -> Option<Sums> {
    let mut reader = Reader::new(wire, 0);
    let mut sums: Sums = [0; 5];
    let MsgpackValue::Array(objects) = reader.next("objects").ok()? else { return None };
    for _ in 0..objects {
        let MsgpackValue::Map(pairs) = reader.next("object").ok()? else { return None };
        sums[0] += 1;
        for _ in 0..pairs {
            match (reader.next("key").ok()?, reader.next("value").ok()?) {
                (MsgpackValue::Unsigned(3), MsgpackValue::Unsigned(id)) => sums[1] = sums[1].wrapping_add(id),
                (MsgpackValue::Unsigned(4 | 6), MsgpackValue::Text(text)) => sums[3] += text.len() as u64,
                (MsgpackValue::Unsigned(7 | 8), MsgpackValue::Unsigned(number)) => sums[4] += number,
                (MsgpackValue::Unsigned(5), MsgpackValue::Array(count)) => {
                    for _ in 0..count {
                        if let MsgpackValue::Unsigned(_) = reader.next("reference").ok()? {
                            sums[2] += 1;
                        }
                    }
                }
                (_, MsgpackValue::Nil) => {}
                _ => return None,
            }
        }
    }
    reader.is_at_end().then_some(sums)
}

/// Serde matches the fields of a struct by name or by index; an integer key is taken as the index.
#[derive(serde::Deserialize)]
struct Object<'a> {
    #[serde(rename = "0")]
    _event_type: Option<IgnoredAny>,
    #[serde(rename = "1")]
    _timestamp: Option<IgnoredAny>,
    #[serde(rename = "2")]
    _payload: Option<IgnoredAny>,
    id: u64,
    #[serde(borrow)]
    class: Option<&'a str>,
    references: Vec<u64>,
    #[serde(borrow)]
    file: Option<&'a str>,
    line: Option<u64>,
    size: Option<u64>,
}

fn structs(wire: &[u8]) -> Option<Sums> {
    let objects: Vec<Object<'_>> = rmp_serde::from_slice(wire).ok()?;
    let mut sums = [objects.len() as u64, 0, 0, 0, 0];
    for object in &objects {
        sums[1] = sums[1].wrapping_add(object.id);
        sums[2] += object.references.len() as u64;
        sums[3] += (object.class.map_or(0, str::len) + object.file.map_or(0, str::len)) as u64;
        sums[4] += object.line.unwrap_or(0) + object.size.unwrap_or(0);
    }
    Some(sums)
}

/// A value of any shape.
enum Any {
    Nil,
    Unsigned(u64),
    Text(String),
    Array(Vec<Any>),
    Map(Vec<(Any, Any)>),
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a dump")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Any::Nil)
    }

    fn visit_u64<E>(self, number: u64) -> Result<Any, E> {
        Ok(Any::Unsigned(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Any, E> {
        Ok(Any::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Any, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element()? {
            values.push(value);
        }
        Ok(Any::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Any::Map(pairs))
    }
}

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Any, D::Error> {
        deserializer.deserialize_any(AnyVisitor)
    }
}

fn any(wire: &[u8]) -> Option<Sums> {
    let Any::Array(objects) = rmp_serde::from_slice(wire).ok()? else { return None };
    let mut sums = [objects.len() as u64, 0, 0, 0, 0];
    for object in &objects {
        let Any::Map(pairs) = object else { return None };
        for pair in pairs {
            match pair {
                (Any::Unsigned(3), Any::Unsigned(id)) => sums[1] = sums[1].wrapping_add(*id),
                (Any::Unsigned(4 | 6), Any::Text(text)) => sums[3] += text.len() as u64,
                (Any::Unsigned(5), Any::Array(ids)) => sums[2] += ids.len() as u64,
                (Any::Unsigned(7 | 8), Any::Unsigned(number)) => sums[4] += number,
                (_, Any::Nil) => {}
                _ => return None,
            }
        }
    }
    Some(sums)
}

/// Values of rmpv that borrow their texts.
fn borrowed(mut wire: &[u8]) -> Option<Sums> {
    let objects = rmpv::decode::read_value_ref(&mut wire).ok()?;
    let rmpv::ValueRef::Array(objects) = objects else { return None };
    let mut sums = [objects.len() as u64, 0, 0, 0, 0];
    for object in &objects {
        let rmpv::ValueRef::Map(pairs) = object else { return None };
        for (key, value) in pairs {
            match (key.as_u64()?, value) {
                (_, rmpv::ValueRef::Nil) => {}
                (3, id) => sums[1] = sums[1].wrapping_add(id.as_u64()?),
                (4 | 6, rmpv::ValueRef::String(text)) => sums[3] += text.as_str()?.len() as u64,
                (5, rmpv::ValueRef::Array(ids)) => sums[2] += ids.len() as u64,
                (7 | 8, number) => sums[4] += number.as_u64()?,
                _ => return None,
            }
        }
    }
    Some(sums)
}

/// Values of rmpv that own their texts.
fn owned(mut wire: &[u8]) -> Option<Sums> {
    let objects = rmpv::decode::read_value(&mut wire).ok()?;
    let objects = objects.as_array()?;
    let mut sums = [objects.len() as u64, 0, 0, 0, 0];
    for object in objects {
        for (key, value) in object.as_map()? {
            match key.as_u64()? {
                _ if value.is_nil() => {}
                3 => sums[1] = sums[1].wrapping_add(value.as_u64()?),
                4 | 6 => sums[3] += value.as_str()?.len() as u64,
                5 => sums[2] += value.as_array()?.len() as u64,
                7 | 8 => sums[4] += value.as_u64()?,
                _ => return None,
            }
        }
    }
    Some(sums)
}

fn all(criterion: &mut Criterion) {
    let wire = dump();
    let sums = pull(&wire).expect("our reader reads it");
    assert_eq!(sums[0], OBJECTS);
    assert_eq!(structs(&wire), Some(sums));
    assert_eq!(any(&wire), Some(sums));
    assert_eq!(borrowed(&wire), Some(sums));
    assert_eq!(owned(&wire), Some(sums));
    let mut group = criterion.benchmark_group("msgpack");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::ElementsAndBytes { elements: OBJECTS, bytes: wire.len() as u64 });
    group.bench_function("pull reader", |bencher| bencher.iter(|| pull(black_box(&wire))));
    group.bench_function("rmp-serde, structs", |bencher| bencher.iter(|| structs(black_box(&wire))));
    group.bench_function("rmp-serde, any value", |bencher| bencher.iter(|| any(black_box(&wire))));
    group.bench_function("rmpv, borrowed values", |bencher| bencher.iter(|| borrowed(black_box(&wire))));
    group.bench_function("rmpv, values", |bencher| bencher.iter(|| owned(black_box(&wire))));
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
