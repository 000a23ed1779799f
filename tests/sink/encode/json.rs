//! Golden JSON lines.

use std::sync::Arc;

use tributary::event::{
    BatchBuilder, Frame, Header, Link, Loss, MetricData, MetricType, Number, Origin, Position, Reason, Resource,
    ResourceValue, SampleClock, SampleData, Severity, Span32, SpanData, SpanEvent, SpanId, SpanKind, SpanLink, Status,
    Temporality, TraceContext, TraceId, UnixNanos, Value, semconv,
};

use super::{HEAD, TAIL, TIME, builder, header, json, json_loss, json_metric, span, text};

#[test]
fn a_log_without_body_or_attributes_leaves_both_out() {
    let mut builder = builder();
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    assert_eq!(
        json(&builder.take()),
        format!(r#"{HEAD}"kind":"log","name":"datadog.process","severity":"INFO"{TAIL}"#) + "\n"
    );
}

#[test]
fn a_log_s_body_is_any_json() {
    let body = |make: fn(&mut BatchBuilder) -> Value| {
        let mut builder = builder();
        let body = make(&mut builder);
        builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Warn, Some(body));
        let line = json(&builder.take());
        let start = format!(r#"{HEAD}"kind":"log","name":"datadog.process","severity":"WARN","body":"#);
        line.strip_prefix(&start).unwrap().strip_suffix(&format!("{TAIL}\n")).unwrap().to_owned()
    };
    assert_eq!(body(|_| Value::Null), "null");
    assert_eq!(body(|_| true.into()), "true");
    assert_eq!(body(|_| false.into()), "false");
    assert_eq!(body(|_| i64::MIN.into()), "-9223372036854775808");
    assert_eq!(body(|_| u64::MAX.into()), "18446744073709551615");
    assert_eq!(body(|_| 0.5.into()), "0.5");
    assert_eq!(body(|_| f64::NEG_INFINITY.into()), "\"-Infinity\"");
    assert_eq!(body(|b| b.push_text("it broke").into()), "\"it broke\"");
    assert_eq!(body(|b| b.push_text("it\nbroke").into()), "\"it\\nbroke\"");
    assert_eq!(body(|b| b.bytes(&[0xfb, 0xff, 0xfe, 0])), "\"+//+AA==\"");
    assert_eq!(body(|b| b.array(&[])), "[]");
    assert_eq!(body(|b| b.map(&[])), "{}");
    let nested = body(|b| {
        let empty = b.map(&[]);
        let inner = b.array(&[Value::Null, empty, 1u64.into()]);
        let (list, text, comma) = (b.push_text("li\"st"), b.push_text("text"), b.push_text(","));
        b.map(&[(list.into(), inner), (text.into(), comma.into())])
    });
    assert_eq!(nested, r#"{"li\"st":[null,{},1],"text":","}"#);
}

#[test]
fn a_span_of_a_trace_shows_parent_end_and_duration() {
    let mut builder = builder();
    builder.event(header(semconv::DATADOG_SPAN)).span(span());
    let expected = concat!(
        r#""kind":"span","name":"datadog.span","span":{"trace_id":"000102030405060708090a0b0c0d0e0f","#,
        r#""span_id":"a2fb4a1d1a96d312","parent_span_id":"00000000000000ff","#,
        r#""end_time":"2026-11-20T12:15:00.135756789Z","duration_ns":12300000,"status":"error"}"#,
    );
    assert_eq!(json(&builder.take()), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn a_root_span_that_never_ended_shows_neither_parent_nor_end_nor_duration() {
    let mut builder = builder();
    let open = SpanData { parent: None, end: None, duration_nanos: None, status: Status::Unset, ..span() };
    builder.event(header(semconv::DATADOG_SPAN)).span(open);
    let expected = concat!(
        r#""kind":"span","name":"datadog.span","span":{"trace_id":"000102030405060708090a0b0c0d0e0f","#,
        r#""span_id":"a2fb4a1d1a96d312","status":"unset"}"#,
    );
    assert_eq!(json(&builder.take()), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn a_span_whose_end_is_beyond_the_clock_still_shows_its_duration() {
    let mut builder = builder();
    let long = SpanData { parent: None, end: None, duration_nanos: Some(u64::MAX), status: Status::Ok, ..span() };
    builder.event(header(semconv::DATADOG_SPAN)).span(long);
    let line = json(&builder.take());
    assert!(
        line.contains(r#""span_id":"a2fb4a1d1a96d312","duration_ns":18446744073709551615,"status":"ok"}"#),
        "{line}"
    );
}

#[test]
fn a_gauge_shows_type_unit_and_value() {
    let gauge =
        MetricData { metric_type: MetricType::Gauge, unit: "By".into(), value: Number::F64(200.0), start: None };
    let expected = r#""kind":"metric","name":"datadog.process","metric":{"type":"gauge","unit":"By","value":200.0}"#;
    assert_eq!(json_metric(gauge), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn a_sum_shows_temporality_monotonic_and_start() {
    let cumulative = MetricData {
        metric_type: MetricType::Sum { temporality: Temporality::Cumulative, monotonic: true },
        unit: "".into(),
        value: Number::U64(u64::MAX),
        start: None,
    };
    let expected =
        r#""metric":{"type":"sum","value":18446744073709551615,"temporality":"cumulative","monotonic":true}"#;
    let name = r#""kind":"metric","name":"datadog.process","#;
    assert_eq!(json_metric(cumulative), format!("{HEAD}{name}{expected}{TAIL}\n"));

    let delta = MetricData {
        metric_type: MetricType::Sum { temporality: Temporality::Delta, monotonic: false },
        unit: "{call}".into(),
        value: Number::I64(-1),
        start: Some(UnixNanos(0)),
    };
    let expected = concat!(
        r#""metric":{"type":"sum","unit":"{call}","value":-1,"temporality":"delta","monotonic":false,"#,
        r#""start_time":"1970-01-01T00:00:00.000000000Z"}"#,
    );
    assert_eq!(json_metric(delta), format!("{HEAD}{name}{expected}{TAIL}\n"));
}

#[test]
fn a_sample_shows_its_frames_innermost_first_and_of_each_what_is_known() {
    let mut builder = builder();
    let (inner, file) = (builder.push_text("Cart#total"), builder.push_text("app/\"cart\".rb"));
    let frames = [
        Frame { function: Some(inner), file: Some(file), line: Some(12) },
        Frame { file: Some(file), ..Frame::default() },
        Frame { line: Some(7), ..Frame::default() },
        Frame::default(),
    ];
    let data = SampleData::new("cpu", "count", Number::U64(1));
    builder.event(header(semconv::DATADOG_PROCESS)).sample(data, &frames);
    let expected = concat!(
        r#""kind":"sample","name":"datadog.process","sample":{"type":"cpu","unit":"count","value":1,"frames":["#,
        r#"{"function":"Cart#total","file":"app/\"cart\".rb","line":12},{"file":"app/\"cart\".rb"},{"line":7},{}]}"#,
    );
    assert_eq!(json(&builder.take()), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn a_sample_without_a_stack_has_an_empty_list_of_frames() {
    let mut builder = builder();
    let data = SampleData::new("alloc_objects", "", Number::U64(3));
    builder.event(header(semconv::DATADOG_PROCESS)).sample(data, &[]);
    let line = json(&builder.take());
    assert!(line.contains(r#""sample":{"type":"alloc_objects","value":3,"frames":[]},"origin""#), "{line}");
}

#[test]
fn a_loss_shows_reason_bytes_events_detail_and_excerpt() {
    let loss = Loss {
        reason: Reason::Malformed,
        bytes: 3,
        events: Some(1),
        detail: "magic is 0x7f, not \"dd\"",
        excerpt: &[0x7f, 0x00, 0xab],
    };
    let expected = concat!(
        r#""kind":"loss","name":"tributary.loss","loss":{"reason":"malformed","bytes":3,"events":1,"#,
        r#""detail":"magic is 0x7f, not \"dd\"","excerpt":"7f00ab"}"#,
    );
    assert_eq!(json_loss(loss), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn a_loss_leaves_out_what_is_not_known() {
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: "", excerpt: &[] };
    let expected = r#""kind":"loss","name":"tributary.loss","loss":{"reason":"gap","bytes":0}"#;
    assert_eq!(json_loss(loss), format!("{HEAD}{expected}{TAIL}\n"));
}

#[test]
fn every_reason_and_every_severity_goes_out_by_its_name() {
    for reason in Reason::ALL {
        let line = json_loss(Loss { reason, bytes: 0, events: None, detail: "", excerpt: &[] });
        assert!(line.contains(&format!(r#""loss":{{"reason":"{}","#, reason.as_str())), "{line}");
    }
    use Severity::*;
    for severity in [Trace, Debug, Info, Warn, Error, Fatal] {
        let mut builder = builder();
        builder.event(header(semconv::LOSS)).log(severity, None);
        let line = json(&builder.take());
        assert!(line.contains(&format!(r#","severity":"{}","origin""#, severity.as_str())), "{line}");
    }
}

#[test]
fn an_unknown_time_is_null_and_an_unknown_sequence_is_left_out() {
    let mut builder = builder();
    let position = Position { sequence: None, offset: 0, length: u64::MAX };
    let header = Header { time: None, position, ..header(semconv::DATADOG_PROCESS) };
    builder.event(header).log(Severity::Info, None);
    let line = json(&builder.take());
    assert!(line.starts_with(r#"{"time":null,"observed_time":"2026-11-20T12:15:00.130000000Z","kind""#), "{line}");
    assert!(line.ends_with("\"connection\":9,\"offset\":0,\"length\":18446744073709551615}}\n"), "{line}");
}

#[test]
fn times_reach_from_1970_to_the_last_nanosecond_and_do_not_mind_going_back_across_midnight() {
    let midnight = 1_795_132_800_000_000_000;
    let cases = [
        (midnight, "2026-11-20T00:00:00.000000000Z"),
        (midnight - 1, "2026-11-19T23:59:59.999999999Z"),
        (midnight + 1, "2026-11-20T00:00:00.000000001Z"),
        (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        (0, "1970-01-01T00:00:00.000000000Z"),
        (1_709_164_800_000_000_000, "2024-02-29T00:00:00.000000000Z"),
        (midnight, "2026-11-20T00:00:00.000000000Z"),
    ];
    let mut builder = builder();
    for (nanos, _) in cases {
        let header = Header { time: Some(UnixNanos(nanos)), ..header(semconv::DATADOG_PROCESS) };
        builder.event(header).log(Severity::Info, None);
    }
    for (line, (_, expected)) in json(&builder.take()).lines().zip(cases) {
        assert!(
            line.starts_with(&format!(r#"{{"time":"{expected}","observed_time":"2026-11-20T12:15:00.130"#)),
            "{line}"
        );
    }
}

#[test]
fn resource_and_origin_are_rendered_once_and_serve_every_encoder() {
    let version = Origin::new("datadog", "a\"p".into(), "unix\n".into(), u64::MAX).with_version("1\\");
    let mut builder = BatchBuilder::new(Arc::new(version));
    let named = Arc::new(Resource::new([
        ("host.name".to_owned(), ResourceValue::from("web\u{2028}17")),
        ("ke\"y".to_owned(), ResourceValue::U64(u64::MAX)),
        ("signed".to_owned(), ResourceValue::I64(i64::MIN)),
        ("ratio".to_owned(), ResourceValue::F64(f64::NAN)),
        ("on".to_owned(), ResourceValue::Bool(true)),
        ("host.name".to_owned(), ResourceValue::from("web\u{2028}18")),
    ]));
    builder.set_resource(named.clone());
    for _ in 0..2 {
        builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    }
    builder.set_resource(Arc::default());
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Info, None);
    let batch = builder.take();

    let resource = concat!(
        r#""resource":{"host.name":"web\u202818","ke\"y":18446744073709551615,"signed":-9223372036854775808,"#,
        r#""ratio":"NaN","on":true},"#,
    );
    let origin = concat!(
        r#""origin":{"protocol":"datadog","version":"1\\","listener":"a\"p","peer":"unix\n","#,
        r#""connection":18446744073709551615,"sequence":1007,"offset":81204,"length":15}}"#,
    );
    let start = format!(r#"{HEAD}"kind":"log","name":"datadog.process","severity":"INFO","#);
    let line = format!("{start}{resource}{origin}\n");
    let expected = format!("{line}{line}{start}{origin}\n");
    assert_eq!(json(&batch), expected);
    assert_eq!(json(&batch), expected);
    let again = named.rendered(|_| panic!("the encoder did not keep its rendering"));
    assert!(again.starts_with(b"{\"host.name\""));
    batch.origin().unwrap().rendered(|_| panic!("the encoder did not keep its rendering"));
}

/// Runs stand once in the batch, and say in each event what its own attributes would.
#[test]
fn attributes_in_common_read_like_those_of_one_event_whether_one_has_them_or_many() {
    use tributary::event::InternedRun;
    for events in [1_u64, 3] {
        let (mut builder, mut memo) = (builder(), InternedRun::default());
        let mut expanded = 0;
        for number in 0..events {
            let run = builder.intern_run(&mut memo, |batch| {
                let name = batch.push_text("a \"quoted\" name that is longer than a short one");
                [(semconv::THREAD_ID.into(), 7_u64.into()), (semconv::THREAD_NAME.into(), name.into())]
            });
            let before = builder.total_expanded_bytes();
            let mut event = builder.event(header(semconv::BYTEFROG_MARKER));
            event.attribute(semconv::BYTEFROG_METHOD_ID, number);
            event.run(run);
            event.attribute(semconv::TEXT_REPAIRED, true);
            event.log(Severity::Info, None);
            expanded = builder.total_expanded_bytes() - before;
        }
        let batch = builder.take();
        let mut plain = super::builder();
        for number in 0..events {
            let before = plain.total_expanded_bytes();
            let mut event = plain.event(header(semconv::BYTEFROG_MARKER));
            event.attribute(semconv::BYTEFROG_METHOD_ID, number);
            event.attribute(semconv::THREAD_ID, 7_u64);
            event.text(semconv::THREAD_NAME, "a \"quoted\" name that is longer than a short one");
            event.attribute(semconv::TEXT_REPAIRED, true);
            event.log(Severity::Info, None);
            assert_eq!(plain.total_expanded_bytes() - before, expanded, "it counts for as much output");
        }
        let plain = plain.take();
        assert_eq!(json(&batch), json(&plain));
        assert_eq!(text(&batch), text(&plain));
        assert!(json(&batch).contains(r#":0,"thread.id":7,"thread.name":"a \"quoted\" name"#));
    }
}

/// Of the next batch nothing is known, whatever stood in the one before.
#[test]
fn a_run_is_encoded_again_for_every_batch() {
    use tributary::event::InternedRun;
    let (mut builder, mut memo, mut made) = (builder(), InternedRun::default(), 0);
    for _ in 0..2 {
        for _ in 0..2 {
            let run = builder.intern_run(&mut memo, |_| {
                made += 1;
                [(semconv::THREAD_ID.into(), 7_u64.into())]
            });
            let mut event = builder.event(header(semconv::BYTEFROG_MARKER));
            event.run(run);
            event.log(Severity::Info, None);
        }
        assert_eq!(json(&builder.take()).matches(r#""attributes":{"thread.id":7}"#).count(), 2);
    }
    assert_eq!(made, 2);
}

#[test]
fn a_span_shows_its_kind_its_message_its_links_and_what_happened() {
    let mut builder = builder();
    let [text, message] = ["a=1", "no \"space\""].map(|text| builder.push_text(text));
    let attributes =
        builder.members(&[(semconv::EXCEPTION_TYPE.into(), text.into()), (text.into(), Value::Bool(true))]);
    let to = Link { trace_id: TraceId([1; 16]), span_id: SpanId([2; 8]) };
    let link = SpanLink { to, attributes, trace_state: Some(text), flags: Some(1) };
    let event = SpanEvent { time: Some(TIME), name: text.into(), attributes };
    let events = [event, SpanEvent { time: None, attributes: Span32::default(), ..event }];
    let span = SpanData { kind: Some(SpanKind::Server), status_message: Some(message), ..span() };
    builder.event(header(semconv::DATADOG_SPAN)).span_with(span, &[link], &events);
    let line: serde_json::Value = serde_json::from_str(&json(&builder.take())).unwrap();
    let attributes = serde_json::json!({"exception.type": "a=1", "a=1": true});
    let expected = serde_json::json!({
        "trace_id": "000102030405060708090a0b0c0d0e0f",
        "span_id": "a2fb4a1d1a96d312",
        "parent_span_id": "00000000000000ff",
        "kind": "server",
        "end_time": line["span"]["end_time"],
        "duration_ns": 12_300_000,
        "status": "error",
        "status_message": "no \"space\"",
        "links": [{
            "trace_id": "01010101010101010101010101010101",
            "span_id": "0202020202020202",
            "attributes": attributes,
            "trace_state": "a=1",
            "flags": 1,
        }],
        "events": [{"time": line["time"], "name": "a=1", "attributes": attributes}, {"name": "a=1"}],
    });
    assert_eq!(line["span"], expected);
}

#[test]
fn a_span_shows_its_own_links() {
    let mut builder = builder();
    let link = |number| SpanLink::from(Link { trace_id: TraceId([number; 16]), span_id: SpanId([number; 8]) });
    builder.event(header(semconv::DATADOG_SPAN)).span_with(span(), &[link(1), link(2)], &[]);
    builder.event(header(semconv::DATADOG_SPAN)).span(span());
    builder.event(header(semconv::DATADOG_SPAN)).span_with(span(), &[link(3)], &[]);
    let batch = builder.take();
    let shown = |number: usize| {
        let line = json(&batch).lines().nth(number).unwrap().to_owned();
        let start = line.find("\"status\"").unwrap();
        line[start..line.find("},\"").unwrap_or(line.len())].to_owned()
    };
    let pair = |digits: &str| format!(r#"{{"trace_id":"{}","span_id":"{}"}}"#, digits.repeat(16), digits.repeat(8));
    assert!(json(&batch).lines().next().unwrap().contains(&format!(
        r#""status":"error","links":[{},{}]}},"#,
        pair("01"),
        pair("02")
    )));
    assert_eq!(shown(1), r#""status":"error""#);
    assert!(json(&batch).lines().nth(2).unwrap().contains(&format!(r#""links":[{}]}},"#, pair("03"))));
    let line = text(&batch);
    let ends = [
        "link=01010101010101010101010101010101/0101010101010101",
        "link=02020202020202020202020202020202/0202020202020202",
        "link=03030303030303030303030303030303/0303030303030303",
    ];
    for end in ends {
        assert_eq!(line.matches(end).count(), 1, "{line}");
    }
}

#[test]
fn a_log_shows_the_ids_of_its_trace_and_span_behind_its_severity() {
    let mut builder = builder();
    let SpanData { trace_id, span_id, .. } = span();
    let body = builder.push_text("why");
    let in_span = TraceContext { trace_id, span_id: Some(span_id) };
    builder.event(header(semconv::ZICO_EXCEPTION)).log_in(in_span, Severity::Error, Some(body.into()));
    builder.event(header(semconv::DATADOG_TRACE)).log_in(
        TraceContext { span_id: None, ..in_span },
        Severity::Info,
        None,
    );
    let lines = json(&builder.take());
    let expected = [
        concat!(
            r#""severity":"ERROR","trace_id":"000102030405060708090a0b0c0d0e0f","#,
            r#""span_id":"a2fb4a1d1a96d312","body":"why","origin""#
        ),
        r#""severity":"INFO","trace_id":"000102030405060708090a0b0c0d0e0f","origin""#,
    ];
    for (line, expected) in lines.lines().zip(expected) {
        assert!(line.contains(expected), "{line}");
    }
}

#[test]
fn a_sample_shows_the_time_that_it_stands_for() {
    let mut builder = builder();
    let sample = SampleData::new("cpu", "count", Number::U64(1));
    for clock in [Some(SampleClock::Cpu), Some(SampleClock::Wall), None] {
        let data = SampleData { period_nanos: Some(1_000_000), clock, ..sample };
        builder.event(header(semconv::RBKIT_CPU)).sample(data, &[]);
    }
    let lines = json(&builder.take());
    let shown = [r#","clock":"cpu""#, r#","clock":"wall""#, ""];
    for (line, clock) in lines.lines().zip(shown) {
        let expected = format!(r#""value":1,"period_ns":1000000{clock},"frames":[]"#);
        assert!(line.contains(&expected), "{line}");
    }
}
