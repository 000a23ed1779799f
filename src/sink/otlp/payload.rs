//! Requests as the store keeps them: a byte for the signal, and the message as gRPC sends it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 (version 1) and the signal: 0 logs, 1 traces, 2 metrics, 3 profiles |
//! | 1 | 1 | 1 if the message is compressed |
//! | 2 | 4 | length of the message, big-endian |
//! | 6 | | the message, in the compression that its first bytes identify |

use std::io;
use std::ops::Range;

use bytes::Bytes;

use super::encode::{Body, Signal};
use tributary_codec::protobuf::{Field, ProtobufFields, ProtobufValue, push_bytes_field};
use tributary_sink_forward::{Compression, EncodedRequest};

/// Bytes in front of the message.
pub(super) const HEAD_BYTES: usize = 6;
/// The version of this layout, in the upper half of the first byte.
const VERSION: u8 = 0x10;

/// What a stored request consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Payload {
    pub(super) signal: Signal,
    pub(super) compression: Compression,
    /// The message with the five bytes that gRPC puts in front of it.
    pub(super) framed: Bytes,
}

impl Payload {
    /// Reads a stored request. `None`: it is none of this version.
    pub(super) fn of(stored: &Bytes) -> Option<Payload> {
        let head = stored.first()?;
        let signal = Signal::ALL.get(usize::from(head ^ VERSION)).copied()?;
        let message = stored.get(HEAD_BYTES..)?;
        let compression = if stored[1] == 0 { Compression::None } else { Compression::of(message) };
        Some(Payload { signal, compression, framed: stored.slice(1..) })
    }

    /// The message alone.
    pub(super) fn message(&self) -> Bytes {
        self.framed.slice(HEAD_BYTES - 1..)
    }
}

/// Makes a stored request of a message that has [`HEAD_BYTES`] free bytes in front of it.
///
/// # Errors
/// The message cannot be compressed.
pub(super) fn store(signal: Signal, compression: Compression, mut message: Body) -> io::Result<Bytes> {
    if compression != Compression::None {
        let head = vec![0; HEAD_BYTES];
        message = compression.compress_to(&message[HEAD_BYTES..], head)?.into();
    }
    let length = u32::try_from(message.len() - HEAD_BYTES).map_err(|_| io::ErrorKind::FileTooLarge)?;
    message[0] = VERSION | signal.index() as u8;
    message[1] = u8::from(compression != Compression::None);
    message[2..HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    Ok(message.into())
}

/// How many events a receiver has rejected with `rejected` records. Its records are events, except profiles: each of
/// these stands for the same part of the samples.
pub(super) fn events_of(payload: &Payload, events: u32, rejected: u64) -> u64 {
    if payload.signal != Signal::Profiles {
        return rejected.min(events.into());
    }
    let message = payload.compression.decompress(&payload.framed[HEAD_BYTES - 1..]).unwrap_or_default();
    let profiles = select(&message, &[&[1], &[2], &[2]], 0..usize::MAX, &mut 0, &mut Vec::new()).max(1) as u64;
    (u64::from(events) * rejected.min(profiles)).div_ceil(profiles)
}

/// Divides a request between two records. `None`: it has one record only, or cannot be read.
pub(super) fn split(request: &EncodedRequest) -> Option<[EncodedRequest; 2]> {
    let Payload { signal, compression, framed } = Payload::of(&request.payload)?;
    let message = compression.decompress(&framed[HEAD_BYTES - 1..]).ok()?;
    let count = select(&message, levels(signal), 0..usize::MAX, &mut 0, &mut Vec::new());
    let half = count / 2;
    if half == 0 {
        return None;
    }
    let part = |number: u32, events: u32, records: Range<usize>| {
        let mut body = vec![0; HEAD_BYTES];
        select(&message, levels(signal), records, &mut 0, &mut body);
        let payload = store(signal, compression, body.into()).ok()?;
        Some(EncodedRequest { id: format!("{}.{number}", request.id), events, payload })
    };
    // Records that report losses are not counted as events.
    let events = request.events.min(u32::try_from(half).unwrap_or(u32::MAX));
    Some([part(1, events, 0..half)?, part(2, request.events - events, half..count)?])
}

/// The fields that lead from the request to its records: `Resource<Signal>`, `Scope<Signal>`, and further.
fn levels(signal: Signal) -> &'static [&'static [u64]] {
    match signal {
        Signal::Logs | Signal::Traces => &[&[1], &[2], &[2]],
        // A metric, its gauge, sum, histogram, exponential histogram or summary, and its points.
        Signal::Metrics => &[&[1], &[2], &[2], &[5, 7, 9, 10, 11], &[1]],
        // A profile and its samples.
        Signal::Profiles => &[&[1], &[2], &[2], &[2]],
    }
}

/// Appends a message with only these of its records, and without messages that have none of them. `next` counts all records.
/// Returns how many were appended.
fn select(message: &[u8], levels: &[&[u64]], records: Range<usize>, next: &mut usize, out: &mut Vec<u8>) -> usize {
    let Some((numbers, below)) = levels.split_first() else { return 0 };
    let mut appended = 0;
    let mut fields = ProtobufFields::of(message);
    while let Some((Field { number, value }, whole)) = fields.next_whole() {
        let ProtobufValue::Bytes(inner) = value else {
            out.extend_from_slice(whole);
            continue;
        };
        if !numbers.contains(&number) {
            out.extend_from_slice(whole);
        } else if below.is_empty() {
            if records.contains(next) {
                out.extend_from_slice(whole);
                appended += 1;
            }
            *next += 1;
        } else {
            let mut part = Vec::new();
            let of_part = select(inner, below, records.clone(), next, &mut part);
            if of_part > 0 {
                push_bytes_field(out, number as u8, &part);
                appended += of_part;
            }
        }
    }
    appended
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tributary_event::{
        BatchBuilder, Buckets, Distribution, DistributionForm, Header, MetricData, MetricType, Number, Origin,
        Position, Temporality, UnixNanos, semconv,
    };

    use super::super::encode::Encoder;
    use super::*;

    #[test]
    fn a_request_is_divided_between_points_of_every_type() {
        let mut builder = BatchBuilder::new(Arc::new(Origin::new("zico", "z".into(), "p".into(), 1)));
        let header = Header::observed_at(semconv::RBKIT_OBJECTS_LIVE, UnixNanos(7), Position::default());
        let temporality = Temporality::Delta;
        let sum = MetricType::Sum { temporality, monotonic: true };
        for metric_type in [MetricType::Gauge, sum] {
            let value = Number::U64(1);
            builder.event(header).metric(MetricData { metric_type, unit: "By".into(), value, start: None });
        }
        let positive = Buckets { offset: 0, counts: &[1] };
        for form in [
            DistributionForm::Histogram { temporality, bounds: &[1.0], counts: &[1, 0] },
            DistributionForm::Exponential {
                temporality,
                scale: 1,
                zero_count: 0,
                zero_threshold: 0.0,
                positive,
                negative: Buckets::default(),
            },
            DistributionForm::Summary(&[(0.5, 1.0)]),
        ] {
            let distribution = Distribution { count: 1, sum: Some(1.0), min: None, max: None, form };
            builder.event(header).distribution("By", None, &distribution);
        }
        let mut encoder = Encoder::new(1 << 20, true, HEAD_BYTES);
        builder.take().events().for_each(|event| assert!(encoder.push(event, true)));
        encoder.end_requests();
        let request = encoder.take_requests().pop().unwrap();
        let payload = store(request.signal, Compression::None, request.body).unwrap();
        let whole = EncodedRequest { id: "1".to_owned(), events: 5, payload };
        let points = |request: &EncodedRequest| {
            let message = &request.payload[HEAD_BYTES..];
            select(message, levels(Signal::Metrics), 0..usize::MAX, &mut 0, &mut Vec::new())
        };
        assert_eq!(points(&whole), 5);
        let parts = split(&whole).unwrap();
        assert_eq!(parts.each_ref().map(|part| (points(part), part.events)), [(2, 2), (3, 3)]);
    }
}
