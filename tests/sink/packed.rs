//! Batches that are packed are the same when they are unpacked.

use tributary::event::{Batch, Kind, SpanData, SpanId, TraceId};

use super::encode::{builder, header, json, span};
use super::parquet::recorded::{extremes, other_service, recordings};

/// The spans and logs of a batch, packed and unpacked, are the same.
fn assert_same_unpacked(batch: &Batch, of: &str) -> usize {
    let is_packed = |index| matches!(batch.kind_of(index), Some(Kind::Span | Kind::Log));
    let some = batch.copy_of(is_packed);
    assert_eq!(batch.pack().is_none(), some.len() < batch.len(), "{of}");
    let (columns, parts) = some.pack().unwrap();
    let unpacked = parts.unpack(&columns).unwrap();
    assert_eq!(json(&unpacked), json(&some), "{of}");
    for kind in Kind::ALL {
        assert_eq!(unpacked.count(kind), some.count(kind), "{of}");
    }
    assert_eq!(unpacked.output_bytes(), some.output_bytes(), "{of}");
    // What is packed again is equal, byte by byte.
    assert!(unpacked.pack().unwrap().0 == columns, "{of}");
    some.len()
}

#[test]
fn recordings_and_extremes_are_the_same_when_they_are_unpacked() {
    let mut events = 0;
    for recording in recordings() {
        events += recording.decoded().1.iter().map(|batch| assert_same_unpacked(batch, &recording.name)).sum::<usize>();
    }
    assert!(events > 15_000, "{events}");
    assert_same_unpacked(&extremes(), "extremes");
    assert_same_unpacked(&other_service(), "another service");
    assert_same_unpacked(&Batch::default(), "nothing");
}

#[test]
fn columns_that_are_cut_are_refused() {
    let batch = extremes();
    let some = batch.copy_of(|index| matches!(batch.kind_of(index), Some(Kind::Span | Kind::Log)));
    let (columns, parts) = some.pack().unwrap();
    for len in 0..columns.len() {
        assert!(parts.unpack(&columns[..len]).is_none(), "{len} of {}", columns.len());
    }
}

#[test]
fn parents_that_come_later_or_never_are_found() {
    let mut builder = builder();
    let id = |number: u64| SpanId(number.to_be_bytes());
    // The parent of itself, of the one before, of a later one, of none in the batch.
    for (own, parent) in [(1, Some(1)), (2, Some(1)), (3, Some(4)), (4, Some(99)), (5, None)] {
        let span = SpanData { parent: parent.map(id), ..SpanData::new(TraceId([9; 16]), id(own)) };
        builder.event(header(tributary::event::semconv::DATADOG_SPAN)).span(span);
    }
    builder.event(header(tributary::event::semconv::DATADOG_SPAN)).span(span());
    assert_eq!(assert_same_unpacked(&builder.take(), "parents"), 6);
}
