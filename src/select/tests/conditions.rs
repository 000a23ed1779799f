//! What each condition is true for.

use std::sync::Arc;

use super::{builder, header, read, rules, taken};
use crate::{MAX_RULES, Rule};
use tributary_event::{
    Batch, BatchBuilder, Loss, MetricData, MetricType, Number, Reason, Resource, ResourceValue, SampleData, Severity,
    SpanData, SpanId, Status, TraceId, Value, semconv,
};
use tributary_protocol::Protocol;
use tributary_sink::Kinds;

fn span(builder: &mut BatchBuilder, name: &str, duration_nanos: Option<u64>, status: Status, route: Option<&str>) {
    let name = builder.push_text(name);
    let mut event = builder.event(header(name, 0));
    if let Some(route) = route {
        let key = event.batch().push_text("http.route");
        event.text(key, route);
    }
    let (trace_id, span_id) = (TraceId([1; 16]), SpanId([1; 8]));
    event.span(SpanData { duration_nanos, status, ..SpanData::new(trace_id, span_id) });
}

/// Events of every kind, from the listener `java`.
fn events() -> Batch {
    let mut builder = builder("bytefrog", "java");
    let resource = [("service.name".to_owned(), "shop".into()), ("process.pid".to_owned(), ResourceValue::U64(42))];
    builder.set_resource(Arc::new(Resource::new(resource)));
    builder.event(header(semconv::BYTEFROG_HEARTBEAT, 0)).log(Severity::Info, None);
    let name = builder.push_text("own.log");
    let mut log = builder.event(header(name, 1));
    log.attribute(semconv::THREAD_ID, 7_i64);
    log.attribute(semconv::INCOMPLETE, true);
    for (key, value) in [("big", Value::U64(u64::MAX)), ("ratio", Value::F64(0.5)), ("one", Value::F64(1.0))] {
        let key = log.batch().push_text(key);
        log.attribute(key, value);
    }
    log.log(Severity::Warn, None);
    span(&mut builder, "slow", Some(100_000_000), Status::Error, None);
    span(&mut builder, "fast", Some(99_999_999), Status::Ok, Some("/health"));
    span(&mut builder, "open", None, Status::Unset, Some("/Health"));
    let name = builder.push_text("metric");
    let metric = MetricData { metric_type: MetricType::Gauge, unit: "".into(), value: Number::U64(500), start: None };
    builder.event(header(name, 5)).metric(metric);
    let name = builder.push_text("sample");
    builder.event(header(name, 6)).sample(SampleData::new("cpu", "count", Number::U64(1)), &[]);
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: "", excerpt: &[] };
    builder.loss(header(semconv::LOSS, 7), loss);
    builder.take()
}

const ALL: [&str; 8] = ["bytefrog.heartbeat", "own.log", "slow", "fast", "open", "metric", "sample", "tributary.loss"];

#[test]
fn each_key_of_a_condition_chooses_what_it_says() {
    let batch = events();
    let cases: &[(&str, &[&str])] = &[
        ("kind = 'log'", &ALL[..2]),
        ("kind = 'span'", &["slow", "fast", "open"]),
        ("kind = 'metric'", &["metric"]),
        ("kind = 'sample'", &["sample"]),
        ("kind = 'loss'", &["tributary.loss"]),
        ("protocol = 'bytefrog'", &ALL),
        ("protocol = 'zico'", &[]),
        ("listener = 'java'", &ALL),
        ("listener = 'shop'", &[]),
        ("name = 'bytefrog.*'", &["bytefrog.heartbeat"]),
        ("name = 'own.log'", &["own.log"]),
        ("name = '*o*'", &["bytefrog.heartbeat", "own.log", "slow", "open", "tributary.loss"]),
        ("name = '*'", &ALL),
        ("name = 'Slow'", &[]),
        ("severity = 'info'", &ALL[..2]),
        ("severity = 'WARN'", &["own.log"]),
        ("severity = 'error'", &[]),
        ("status = 'error'", &["slow"]),
        ("status = 'ok'", &["fast"]),
        ("status = 'unset'", &["open"]),
        ("min_duration = '100ms'", &["slow"]),
        ("min_duration = '99999999ns'", &["slow", "fast"]),
        ("attribute = 'http.route', equals = '/health'", &["fast"]),
        ("attribute = 'http.route', glob = '/?ealth'", &["fast", "open"]),
        ("attribute = 'http.route', exists = true", &["fast", "open"]),
        ("kind = 'span', attribute = 'http.route', exists = false", &["slow"]),
        ("attribute = 'thread.id', equals = 7", &["own.log"]),
        ("attribute = 'thread.id', equals = 7.0", &["own.log"]),
        ("attribute = 'thread.id', equals = '7'", &[]),
        ("attribute = 'thread.id', glob = '*'", &[]),
        ("attribute = 'thread.id', min = 7, max = 7.5", &["own.log"]),
        ("attribute = 'thread.id', min = 7.5", &[]),
        ("attribute = 'one', equals = 1", &["own.log"]),
        ("attribute = 'ratio', max = 0.5", &["own.log"]),
        ("attribute = 'ratio', min = -1, max = 0", &[]),
        ("attribute = 'big', equals = 18446744073709551615", &["own.log"]),
        ("attribute = 'big', min = 18446744073709551616.0", &[]),
        ("attribute = 'http.route', min = 0", &[]),
        ("attribute = 'tributary.incomplete', equals = true", &["own.log"]),
        ("attribute = 'tributary.incomplete', equals = 1", &[]),
        ("resource = 'service.name', equals = 'shop'", &ALL),
        ("resource = 'service.name', glob = 's*', kind = 'metric'", &["metric"]),
        ("resource = 'process.pid', min = 43", &[]),
        ("resource = 'host.name', exists = true", &[]),
        ("attribute = 'service.name', exists = true", &[]),
        ("kind = 'span', status = 'error', min_duration = '1h'", &[]),
    ];
    for (condition, expected) in cases {
        assert_eq!(taken(&rules(&format!("where = [{{ {condition} }}]")), &batch), *expected, "{condition}");
        let others: Vec<_> = ALL.into_iter().filter(|name| !expected.contains(name)).collect();
        assert_eq!(taken(&rules(&format!("unless = [{{ {condition} }}]")), &batch), others, "unless {condition}");
    }
}

#[test]
fn any_condition_of_where_and_none_of_unless_must_be_true() {
    let batch = events();
    let text = "where = [{ kind = 'span' }, { kind = 'loss' }, { severity = 'warn' }]\n\
                unless = [{ name = 'none' }, { name = 's*' }, { attribute = 'http.route', equals = '/health' }]";
    let rules = rules(text);
    assert_eq!(taken(&rules, &batch), ["own.log", "open", "tributary.loss"]);
    let filtered = rules.choose(&batch, Kinds::ALL).filtered;
    assert_eq!(filtered, [(Rule::Where, 3), (Rule::Unless(2), 1), (Rule::Unless(3), 1)]);
    assert_eq!(
        rules.filters().map(|rule| rule.to_string()).collect::<Vec<_>>(),
        ["where", "unless.1", "unless.2", "unless.3"]
    );
}

#[test]
fn an_empty_list_takes_everything_and_kinds_are_no_rule() {
    assert!(crate::Rules::new(&read("where = []\nunless = []\nremove = []").unwrap()).unwrap().is_none());
    let rules = rules("unless = [{ kind = 'span', status = 'ok' }]");
    let choice = rules.choose(&events(), [tributary_event::Kind::Span].into_iter().collect());
    assert_eq!((choice.events, choice.filtered.as_slice()), (2, &[(Rule::Unless(1), 1)][..]));
}

#[test]
fn a_sink_may_take_events_of_listeners_that_its_conditions_leave() {
    for (text, java, shop) in [
        ("", true, true),
        ("where = [{ listener = 'java' }]", true, false),
        ("where = [{ protocol = 'zico', kind = 'span' }]", false, true),
        ("where = [{ listener = 'java' }, { kind = 'loss' }]", true, true),
        ("unless = [{ listener = 'java', kind = 'log' }]", true, true),
        ("unless = [{ protocol = 'bytefrog' }]", false, true),
    ] {
        let options = read(text).unwrap();
        assert_eq!(options.may_take(Protocol::Bytefrog, "java"), java, "{text}");
        assert_eq!(options.may_take(Protocol::Zico, "shop"), shop, "{text}");
    }
}

#[test]
fn lists_have_a_maximum_and_more_elements_are_one_error() {
    let list = |count: usize, element: &str| vec![element; count].join(", ");
    let conditions = |count| format!("unless = [{}]", list(count, "{ name = 'a*', kind = 'span' }"));
    assert!(read(&conditions(MAX_RULES)).is_ok());
    let errors = read(&conditions(10_000)).unwrap_err();
    assert_eq!(errors.diagnostics.len(), 1);
    assert!(errors.to_string().contains("`unless` has 10000 elements"), "{errors}");
    let errors = read(&format!("remove = [{}]", list(10_000, "'a['"))).unwrap_err();
    assert_eq!(errors.diagnostics.len(), 1);
}
