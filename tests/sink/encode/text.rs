//! Golden lines of the text format.

use std::sync::Arc;

use tributary::event::{
    BatchBuilder, Frame, Header, Loss, MetricData, MetricType, Number, Origin, Reason, SampleData, Severity, SpanData,
    Status, Temporality, UnixNanos, Value, semconv,
};

use super::{builder, header, span, text};

#[test]
fn text_lines_read_like_this() {
    let mut builder = builder();
    let mut event = builder.event(header(semconv::DATADOG_SPAN));
    event.text(semconv::SERVICE_NAME, "shop");
    event.text(semconv::DATADOG_RESOURCE, "GET /");
    event.attribute(semconv::DATADOG_TYPE, -0.5);
    event.span(span());

    let open = SpanData { parent: None, end: None, duration_nanos: None, status: Status::Unset, ..span() };
    builder.event(Header { time: None, ..header(semconv::DATADOG_SPAN) }).span(open);

    let (inner, file) = (builder.push_text("total"), builder.push_text("cart.rb"));
    let frames = [
        Frame { function: Some(inner), file: Some(file), line: Some(12) },
        Frame { function: Some(inner), ..Frame::default() },
        Frame { file: Some(file), ..Frame::default() },
    ];
    let data = SampleData::new("cpu", "count", Number::U64(1));
    builder.event(header(semconv::DATADOG_PROCESS)).sample(data, &frames);

    let sum = MetricType::Sum { temporality: Temporality::Cumulative, monotonic: true };
    let start = Some(UnixNanos(0));
    builder.event(header(semconv::DATADOG_PROCESS)).metric(MetricData {
        metric_type: sum,
        unit: "By".into(),
        value: Number::I64(-7),
        start,
    });
    let sum = MetricType::Sum { temporality: Temporality::Delta, monotonic: false };
    builder.event(header(semconv::DATADOG_PROCESS)).metric(MetricData {
        metric_type: sum,
        unit: "".into(),
        value: Number::U64(7),
        start: None,
    });
    let gauge = MetricType::Gauge;
    builder.event(header(semconv::DATADOG_PROCESS)).metric(MetricData {
        metric_type: gauge,
        unit: "".into(),
        value: Number::F64(1.5),
        start: None,
    });

    let (key, bytes, empty) = (builder.push_text("a b"), builder.bytes(&[0xff]), builder.array(&[]));
    let map = builder.map(&[(key.into(), bytes), (semconv::DATADOG_TYPE.into(), empty)]);
    let none = builder.map(&[]);
    let body = builder.array(&[Value::Null, true.into(), map, none]);
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Warn, Some(body));
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);

    let loss = Loss { reason: Reason::TooLarge, bytes: 3, events: Some(1), detail: "list of 9\n", excerpt: &[0x7f, 0] };
    builder.loss(header(semconv::LOSS), loss);
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: "", excerpt: &[] };
    builder.loss(header(semconv::LOSS), loss);
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: Some(2), detail: "", excerpt: &[] };
    builder.loss(header(semconv::LOSS), loss);

    let expected = r#"
2026-11-20T12:15:00.123456Z span   datadog.span  12.3ms  ERROR  service.name=shop datadog.resource="GET /" datadog.type=-0.5  trace=000102030405060708090a0b0c0d0e0f span=a2fb4a1d1a96d312 parent=00000000000000ff  [datadog 127.0.0.1:40112 #9]
(time unknown)              span   datadog.span  (not ended)  trace=000102030405060708090a0b0c0d0e0f span=a2fb4a1d1a96d312  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z sample datadog.process  cpu 1 count  total (cart.rb:12) < total < ? (cart.rb)  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z metric datadog.process  -7 By  monotonic cumulative sum since 1970-01-01T00:00:00.000000Z  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z metric datadog.process  7  delta sum  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z metric datadog.process  1.5  gauge  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z WARN   datadog.process  [null, true, {"a b"=/w==, datadog.type=[]}, {}]  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z info   datadog.process  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z LOSS   tributary.loss  too_large: 3 bytes at offset 81204, 1 event  "list of 9\n"  excerpt 7f00  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z LOSS   tributary.loss  gap: 0 bytes at offset 81204, events unknown  [datadog 127.0.0.1:40112 #9]
2026-11-20T12:15:00.123456Z LOSS   tributary.loss  gap: 0 bytes at offset 81204, 2 events  [datadog 127.0.0.1:40112 #9]
"#;
    let seen = text(&builder.take());
    for (seen, expected) in seen.lines().zip(expected.trim_start().lines()) {
        assert_eq!(seen, expected);
    }
    assert_eq!(seen, expected.trim_start());
}

#[test]
fn no_text_of_a_peer_can_drive_the_terminal_wherever_it_stands() {
    let hostile = "\x1b]0;owned\x07\u{9b}31m\r\n\u{202e}x\u{2066}\x7f\u{85}\u{2028}";
    let origin = Origin::new("datadog", hostile.into(), hostile.into(), 9);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    let evil = builder.push_text(hostile);
    let (map, list) = (builder.map(&[(evil.into(), evil.into())]), builder.array(&[evil.into()]));
    let header = Header { name: evil.into(), ..header(semconv::LOSS) };
    let mut event = builder.event(header);
    event.attribute(evil, evil);
    event.attribute(semconv::DATADOG_TYPE, map);
    event.log(Severity::Info, Some(list));
    let frames = [Frame { function: Some(evil), file: Some(evil), line: None }];
    let data = SampleData::new("cpu", "count", Number::U64(1));
    builder.event(header).sample(data, &frames);
    builder.loss(header, Loss { reason: Reason::Gap, bytes: 0, events: None, detail: hostile, excerpt: &[] });

    let seen = text(&builder.take());
    assert_eq!(seen.lines().count(), 3);
    let harmless = |b: u8| b == b'\n' || (0x20..0x7f).contains(&b);
    assert!(seen.bytes().all(harmless), "{seen:?}");
    assert!(seen.contains(r"\u{1b}]0;owned\u{7}\u{9b}31m\r\n\u{202e}x\u{2066}\u{7f}\u{85}\u{2028}"), "{seen}");
}
