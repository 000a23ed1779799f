//! Golden compact lines, and the lines that define their sources.

use std::sync::Arc;

use tributary::event::{
    BatchBuilder, Header, Loss, Origin, Position, Reason, Resource, ResourceValue, Severity, UnixNanos, semconv,
};
use tributary::sink::encode::{Encoder, EventSource, Format, LineFields};

use super::{TIME, builder, header};

/// The lines of the events of a batch, and their sources.
fn compact(builder: &mut BatchBuilder) -> (String, Vec<Option<Arc<EventSource>>>) {
    let (mut encoder, mut out) = (Encoder::new(Format::Json).with_fields(LineFields::Compact), Vec::new());
    let batch = builder.take();
    let sources = batch.events().map(|event| {
        encoder.encode(event, &mut out);
        encoder.source(event).cloned()
    });
    let sources = sources.collect();
    (String::from_utf8(out).unwrap(), sources)
}

/// The line of one log without attributes.
fn line(header: Header) -> String {
    let mut builder = builder();
    builder.event(header).log(Severity::Info, None);
    compact(&mut builder).0
}

fn shop() -> Arc<Resource> {
    let attributes = [("service.name", ResourceValue::from("shop")), ("process.pid", ResourceValue::U64(71))];
    Arc::new(Resource::new(attributes.map(|(key, value)| (key.to_owned(), value))))
}

const REST: &str =
    r#""kind":"log","name":"datadog.process","severity":"INFO","source":"5b1d93dbd84875d6","position":[1007,81204,15]"#;

#[test]
fn a_compact_line_has_a_source_a_position_and_the_time_of_reading_as_a_difference() {
    let mut builder = builder();
    builder.set_resource(shop());
    let mut event = builder.event(header(semconv::DATADOG_PROCESS));
    event.attribute(semconv::THREAD_ID, 7u64);
    event.log(Severity::Info, None);
    let (line, sources) = compact(&mut builder);
    let source = sources[0].clone().unwrap();
    let id = source.id();
    let expected = format!(
        r#"{{"time":"2026-11-20T12:15:00.123456789Z","kind":"log","name":"datadog.process","severity":"INFO","attributes":{{"thread.id":7}},"source":"{id}","position":[1007,81204,15],"delay_ns":6543211}}"#
    );
    assert_eq!(line, expected + "\n");
    let expected = format!(
        r#"{{"source":"{id}","resource":{{"service.name":"shop","process.pid":71}},"origin":{{"protocol":"datadog","listener":"apm","peer":"127.0.0.1:40112","connection":9}}}}"#
    );
    assert_eq!(str::from_utf8(source.line()).unwrap(), expected + "\n");
}

#[test]
fn a_difference_of_0_is_left_out_and_one_beyond_64_bits_is_the_time_itself() {
    let at = |time, observed| {
        let observed = UnixNanos(observed);
        line(Header { time, observed, ..header(semconv::DATADOG_PROCESS) })
    };
    let time = r#"{"time":"2026-11-20T12:15:00.123456789Z","#;
    assert_eq!(at(Some(TIME), TIME.0), format!("{time}{REST}}}\n"));
    assert_eq!(at(Some(TIME), TIME.0 + 1), format!("{time}{REST},\"delay_ns\":1}}\n"));
    assert_eq!(at(Some(TIME), TIME.0 - 1), format!("{time}{REST},\"delay_ns\":-1}}\n"));
    let observed = r#""observed_time":"2026-11-20T12:15:00.123456789Z","#;
    assert_eq!(at(None, TIME.0), format!("{{\"time\":null,{observed}{REST}}}\n"));
    assert_eq!(
        at(Some(UnixNanos(0)), u64::MAX),
        format!(
            r#"{{"time":"1970-01-01T00:00:00.000000000Z","observed_time":"2554-07-21T23:34:33.709551615Z",{REST}}}"#
        ) + "\n"
    );
}

#[test]
fn a_message_without_a_number_has_null_in_its_place() {
    let position = Position { sequence: None, offset: 0, length: u64::MAX };
    let line = line(Header { position, ..header(semconv::DATADOG_PROCESS) });
    assert!(line.contains(",\"position\":[null,0,18446744073709551615],\"delay_ns\":6543211}\n"), "{line}");
}

#[test]
fn a_loss_has_every_field() {
    let mut builder = builder();
    builder.set_resource(shop());
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: Some(2), detail: "", excerpt: &[] };
    builder.loss(header(semconv::LOSS), loss);
    let (line, sources) = compact(&mut builder);
    let mut encoder = Encoder::new(Format::Json);
    let mut full = Vec::new();
    builder.loss(header(semconv::LOSS), loss);
    builder.take().events().for_each(|event| encoder.encode(event, &mut full));
    assert_eq!(line.as_bytes(), full);
    assert!(sources[0].is_none());
}

#[test]
fn equal_sources_have_equal_ids_and_others_have_others() {
    let id = |origin: Origin, resource: Option<Arc<Resource>>| {
        let mut builder = BatchBuilder::new(Arc::new(origin));
        builder.set_resource(resource.unwrap_or_default());
        builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
        let (_, sources) = compact(&mut builder);
        sources[0].clone().unwrap().id().to_owned()
    };
    let origin = |connection| Origin::new("datadog", "apm".into(), "127.0.0.1:40112".into(), connection);
    let mut ids = vec![
        id(origin(9), None),
        id(origin(8), None),
        id(origin(9), Some(shop())),
        id(origin(9).with_version("1"), None),
        id(origin(9).with_hidden_peer("".into()), None),
    ];
    assert_eq!(id(origin(9), Some(shop())), ids[2]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 5);
}

#[test]
fn the_definition_in_the_event_model_is_as_it_is_written() {
    let origin = Origin::new("bytefrog", "java".into(), "127.0.0.1:40112".into(), 9).with_version("4");
    let mut builder = BatchBuilder::new(Arc::new(origin));
    let run = [
        ("bytefrog.run.id".to_owned(), ResourceValue::U64(1)),
        ("bytefrog.protocol.version".to_owned(), ResourceValue::U64(4)),
    ];
    builder.set_resource(Arc::new(Resource::new(run)));
    builder.event(header(semconv::BYTEFROG_METHOD_ENTRY)).log(Severity::Info, None);
    let source = compact(&mut builder).1[0].clone().unwrap();
    let page = include_str!("../../../docs/event-model.md");
    assert!(page.contains(str::from_utf8(source.line()).unwrap()), "{source:?}");
    assert!(page.contains(&format!("\"source\":\"{}\",\"position\":[1007,81204,15],\"delay_ns\":", source.id())));
}

#[test]
fn events_of_many_sources_in_turn_keep_theirs() {
    // More sources than the encoder remembers.
    let mut builder = builder();
    for number in (0..40).chain(0..40).chain([7, 7, 8]) {
        let origin = Origin::new("datadog", "apm".into(), "peer".into(), number);
        builder.set_origin(Arc::new(origin));
        builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    }
    let (lines, sources) = compact(&mut builder);
    let numbers = (0..40).chain(0..40).chain([7, 7, 8]);
    for ((line, source), number) in lines.lines().zip(sources).zip(numbers) {
        let source = source.unwrap();
        assert!(line.contains(&format!("\"source\":\"{}\"", source.id())), "{line}");
        assert!(source.line().ends_with(format!("\"connection\":{number}}}}}\n").as_bytes()));
    }
}
