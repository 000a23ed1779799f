//! Lines on a terminal: their width, their colours, and what they leave out.

use tributary::event::{Header, Loss, MetricData, MetricType, Number, Reason, Severity, Status, semconv};
use tributary::sink::encode::terminal::{Terminal, encode};

use super::{builder, header, span};

/// The lines of one event of each kind.
fn lines(terminal: Terminal) -> Vec<String> {
    let mut builder = builder();
    let mut event = builder.event(header(semconv::DATADOG_SPAN));
    event.text(semconv::SERVICE_NAME, "shop");
    event.text(semconv::DATADOG_RESOURCE, "GET /");
    event.text(semconv::TIME_BASIS, semconv::TIME_BASIS_RECEIVED);
    event.text(semconv::ENDLESS_EVENT_ID, "350ac4ff-3026-4c25-9e7e-e8103b4fd5d8");
    event.attribute(semconv::DATADOG_TYPE, -0.5);
    event.text(semconv::DATADOG_METRIC, &"x".repeat(200));
    event.span(tributary::event::SpanData { status: Status::Error, ..span() });
    let gauge = MetricType::Gauge;
    let metric = MetricData { metric_type: gauge, unit: "By".into(), value: Number::U64(7), start: None };
    builder.event(Header { time: None, ..header(semconv::DATADOG_PROCESS) }).metric(metric);
    let body = builder.push_text("\u{1b}[31mred\nline");
    builder.event(header(semconv::DATADOG_PROCESS)).log(Severity::Warn, Some(body.into()));
    builder.loss(
        header(semconv::LOSS),
        Loss { reason: Reason::Malformed, bytes: 3, events: None, detail: "the tag is unknown", excerpt: &[1] },
    );
    let mut out = Vec::new();
    builder.take().events().for_each(|event| encode(event, terminal, &mut out));
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn one_line_says_time_protocol_kind_name_value_subject_and_what_fits() {
    let expected = [
        "12:15:00.123 datadog  span   datadog.span                      12.3ms  ERROR  \"GET /\"  service.name=shop \
         datadog.type=-0.5 endless.event.id=350ac4ff… … +1",
        "(no time)    datadog  metric datadog.process                        7 By",
        "12:15:00.123 datadog  WARN   datadog.process                   \"\\u{1b}[31mred\\nline\"",
        "12:15:00.123 datadog  LOSS   tributary.loss                  malformed: 3 bytes, ? events  \"the tag is unknown\"",
    ];
    assert_eq!(lines(Terminal { columns: 160, colours: false }), expected);
}

#[test]
fn a_line_never_has_more_columns_than_the_terminal() {
    for columns in [1, 20, 40, 60, 80, 100] {
        for line in lines(Terminal { columns, colours: false }) {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
    }
}

#[test]
fn colours_change_nothing_else() {
    let plain = lines(Terminal { columns: 100, colours: false });
    let coloured = lines(Terminal { columns: 100, colours: true });
    for (plain, coloured) in plain.iter().zip(&coloured) {
        let mut bare = String::new();
        let mut rest = coloured.as_str();
        while let Some((text, sequence)) = rest.split_once("\u{1b}[") {
            bare.push_str(text);
            rest = sequence.split_once('m').unwrap().1;
        }
        assert_eq!(&format!("{bare}{rest}"), plain);
        assert_ne!(coloured, plain);
    }
}
