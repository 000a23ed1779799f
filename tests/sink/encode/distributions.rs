//! Golden lines of what OTLP has and other protocols have not: distributions, numbers of severities, and states, flags and
//! counts of spans. Each line is read back to an event with the same line.

use tributary::event::{
    Batch, BatchBuilder, Buckets, Distribution, DistributionForm, DroppedCounts, Severity, SeverityNumber, SpanExtras,
    Temporality, UnixNanos, semconv,
};
use tributary::sink::encode::terminal::{self, Terminal};
use tributary::sink::encode::{Encoder, Format, LineFields};
use tributary::stored::{Rebuilder, json as lines};

use super::{HEAD, TAIL, assert_one_line, builder, header, json, span, text};

const HISTOGRAM: Distribution<'_> = Distribution {
    count: u64::MAX,
    sum: Some(-1.5),
    min: Some(f64::NEG_INFINITY),
    max: Some(f64::NAN),
    form: DistributionForm::Histogram {
        temporality: Temporality::Delta,
        bounds: &[0.0, 5e-324],
        counts: &[0, 1, u64::MAX],
    },
};

const EXPONENTIAL: Distribution<'_> = Distribution {
    count: 7,
    sum: None,
    min: None,
    max: None,
    form: DistributionForm::Exponential {
        temporality: Temporality::Cumulative,
        scale: -10,
        zero_count: 2,
        zero_threshold: 0.25,
        positive: Buckets { offset: i32::MIN, counts: &[3, 0] },
        negative: Buckets { offset: i32::MAX, counts: &[2] },
    },
};

const SUMMARY: Distribution<'_> = Distribution {
    count: 3,
    sum: Some(12.0),
    min: None,
    max: None,
    form: DistributionForm::Summary(&[(0.5, 4.0), (1.0, f64::INFINITY)]),
};

/// Neither buckets nor quantiles, and the shortest of each form.
fn empty() -> [Distribution<'static>; 4] {
    let temporality = Temporality::Cumulative;
    let forms = [
        DistributionForm::Histogram { temporality, bounds: &[], counts: &[] },
        DistributionForm::Histogram { temporality, bounds: &[], counts: &[9] },
        DistributionForm::Exponential {
            temporality,
            scale: 0,
            zero_count: 0,
            zero_threshold: 0.0,
            positive: Buckets { offset: 5, counts: &[] },
            negative: Buckets::default(),
        },
        DistributionForm::Summary(&[]),
    ];
    forms.map(|form| Distribution { count: 0, sum: None, min: None, max: None, form })
}

fn push(builder: &mut BatchBuilder, unit: &'static str, start: Option<UnixNanos>, distribution: &Distribution<'_>) {
    builder.event(header(semconv::DATADOG_PROCESS)).distribution(unit, start, distribution);
}

/// What the line of a distribution has as its `metric`.
fn metric(unit: &'static str, start: Option<UnixNanos>, distribution: &Distribution<'_>) -> String {
    let mut builder = builder();
    push(&mut builder, unit, start, distribution);
    let line = json(&builder.take());
    let head = format!(r#"{HEAD}"kind":"metric","name":"datadog.process","metric":"#);
    line.strip_prefix(&head).unwrap().strip_suffix(&format!("{TAIL}\n")).unwrap().to_owned()
}

/// Everything that this file is about, in one batch.
fn all() -> Batch {
    let mut builder = builder();
    for distribution in [HISTOGRAM, EXPONENTIAL, SUMMARY].into_iter().chain(empty()) {
        push(&mut builder, "", None, &distribution);
        push(&mut builder, "By", Some(UnixNanos(0)), &distribution);
    }
    for number in (1..=24).filter_map(SeverityNumber::new) {
        builder.event(header(semconv::DATADOG_PROCESS)).log(number, None);
    }
    let trace_state = Some(builder.push_text("a=\"1\"\n\u{1b}[31m,\u{202e}b=2"));
    let dropped = DroppedCounts { attributes: 1, events: 2, links: u32::MAX };
    for extras in [
        SpanExtras { trace_state, flags: u32::MAX, dropped },
        SpanExtras { trace_state, ..SpanExtras::default() },
        SpanExtras { flags: 1, ..SpanExtras::default() },
        SpanExtras { dropped: DroppedCounts { events: 7, ..DroppedCounts::default() }, ..SpanExtras::default() },
        SpanExtras::default(),
    ] {
        builder.event(header(semconv::DATADOG_SPAN)).span_with_extras(span(), extras, &[], &[]);
    }
    builder.take()
}

#[test]
fn a_histogram_shows_its_buckets() {
    let shown = metric("ms", Some(UnixNanos(0)), &HISTOGRAM);
    let expected = concat!(
        r#"{"type":"histogram","unit":"ms","count":18446744073709551615,"sum":-1.5,"min":"-Infinity","max":"NaN","#,
        r#""bounds":[0.0,5e-324],"counts":[0,1,18446744073709551615],"temporality":"delta","#,
        r#""start_time":"1970-01-01T00:00:00.000000000Z"}"#,
    );
    assert_eq!(shown, expected);
}

#[test]
fn an_exponential_histogram_shows_scale_zeros_and_buckets_of_both_signs() {
    let expected = concat!(
        r#"{"type":"exponential_histogram","count":7,"scale":-10,"zero_count":2,"zero_threshold":0.25,"#,
        r#""positive":{"offset":-2147483648,"counts":[3,0]},"negative":{"offset":2147483647,"counts":[2]},"#,
        r#""temporality":"cumulative"}"#,
    );
    assert_eq!(metric("", None, &EXPONENTIAL), expected);
}

#[test]
fn a_summary_shows_its_quantiles_and_neither_temporality_nor_extremes() {
    let expected = r#"{"type":"summary","count":3,"sum":12.0,"quantiles":[[0.5,4.0],[1.0,"Infinity"]]}"#;
    assert_eq!(metric("", None, &SUMMARY), expected);
    assert_eq!(metric("", None, &Distribution { min: Some(1.0), max: Some(2.0), ..SUMMARY }), expected);
}

#[test]
fn what_a_distribution_has_not_is_left_out() {
    let expected = [
        r#"{"type":"histogram","count":0,"temporality":"cumulative"}"#,
        r#"{"type":"histogram","count":0,"bounds":[],"counts":[9],"temporality":"cumulative"}"#,
        r#"{"type":"exponential_histogram","count":0,"scale":0,"zero_count":0,"temporality":"cumulative"}"#,
        r#"{"type":"summary","count":0,"quantiles":[]}"#,
    ];
    assert_eq!(empty().map(|distribution| metric("", None, &distribution)), expected);
}

#[test]
fn a_number_of_a_severity_is_shown_if_the_name_does_not_say_it() {
    let shown = |number: u64| {
        let mut builder = builder();
        builder.event(header(semconv::DATADOG_PROCESS)).log(SeverityNumber::new(number).unwrap(), None);
        let line = json(&builder.take());
        let head = format!(r#"{HEAD}"kind":"log","name":"datadog.process","#);
        line.strip_prefix(&head).unwrap().strip_suffix(&format!("{TAIL}\n")).unwrap().to_owned()
    };
    assert_eq!(shown(9), r#""severity":"INFO""#);
    assert_eq!(shown(12), r#""severity":"INFO","severity_number":12"#);
    assert_eq!(shown(24), r#""severity":"FATAL","severity_number":24"#);
}

#[test]
fn a_span_shows_its_state_flags_and_what_was_dropped_before_its_links() {
    let lines = json(&all());
    let spans: Vec<&str> = lines.lines().filter(|line| line.contains("\"span\":")).collect();
    let expected = [
        concat!(
            r#","trace_state":"a=\"1\"\n\u001b[31m,\u202eb=2","flags":4294967295,"#,
            r#""dropped":{"attributes":1,"events":2,"links":4294967295}}"#,
        ),
        r#","trace_state":"a=\"1\"\n\u001b[31m,\u202eb=2"}"#,
        r#","flags":1}"#,
        r#","dropped":{"events":7}}"#,
        "}",
    ];
    assert_eq!(spans.len(), expected.len());
    for (line, expected) in spans.iter().zip(expected) {
        assert!(line.contains(&format!(r#""status":"error"{expected}{TAIL}"#)), "{line}");
    }
}

#[test]
fn every_form_is_read_back_from_full_and_compact_lines_byte_for_byte() {
    let batch = all();
    for fields in [LineFields::Full, LineFields::Compact] {
        let write = |batch: &Batch| {
            let (mut encoder, mut out) = (Encoder::new(Format::Json).with_fields(fields), Vec::new());
            for (index, event) in batch.events().enumerate() {
                if let Some(source) = encoder.source(event).filter(|_| index == 0) {
                    out.extend_from_slice(source.line());
                }
                encoder.encode(event, &mut out);
            }
            String::from_utf8(out).unwrap()
        };
        let mut rebuilder = Rebuilder::default();
        let written = write(&batch);
        written.lines().for_each(|line| lines::read(line.as_bytes(), &mut rebuilder).unwrap());
        assert_eq!(write(&rebuilder.take()), written);
    }
    let copy = batch.copy_of(|index| index % 2 == 1);
    let expected: Vec<String> = json(&batch).lines().skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(json(&copy).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn lines_that_contradict_themselves_are_no_events() {
    let mut builder = builder();
    push(&mut builder, "", None, &HISTOGRAM);
    builder.event(header(semconv::DATADOG_PROCESS)).log(SeverityNumber::new(10).unwrap(), None);
    let all = json(&builder.take());
    let (histogram, log) = all.split_once('\n').unwrap();
    for (line, from, to) in [
        (histogram, r#","temporality":"delta""#, ""),
        (histogram, r#""temporality":"delta""#, r#""temporality":"sometimes""#),
        (histogram, r#""type":"histogram""#, r#""type":"summary""#),
        (histogram, r#""type":"histogram""#, r#""type":"gauge""#),
        (histogram, r#""count":18446744073709551615,"#, ""),
        (histogram, r#""counts":[0"#, r#""counts":[-1"#),
        (histogram, r#""bounds":[0.0"#, r#""bounds":["x""#),
        (log, r#""severity_number":10"#, r#""severity_number":9999"#),
        (log, r#""severity_number":10"#, r#""severity_number":13"#),
    ] {
        assert!(line.contains(from), "{line}");
        let mut rebuilder = Rebuilder::default();
        assert!(lines::read(line.replace(from, to).as_bytes(), &mut rebuilder).is_err(), "{from} {to}");
        assert!(rebuilder.take().is_empty());
    }
}

#[test]
fn people_see_a_distribution_in_short() {
    let mut builder = builder();
    push(&mut builder, "ms", Some(UnixNanos(0)), &HISTOGRAM);
    push(&mut builder, "", None, &EXPONENTIAL);
    push(&mut builder, "By", None, &SUMMARY);
    builder.event(header(semconv::DATADOG_PROCESS)).log(SeverityNumber::from(Severity::Warn), None);
    builder.event(header(semconv::DATADOG_PROCESS)).log(SeverityNumber::new(14).unwrap(), None);
    let batch = builder.take();
    let end = "[datadog 127.0.0.1:40112 #9]";
    let time = "2026-11-20T12:15:00.123456Z";
    let expected = format!(
        "{time} metric datadog.process  count=18446744073709551615 sum=-1.5 min=\"-Infinity\" max=\"NaN\" ms  delta histogram since 1970-01-01T00:00:00.000000Z  {end}\n\
         {time} metric datadog.process  count=7  cumulative exponential_histogram  {end}\n\
         {time} metric datadog.process  count=3 sum=12.0 q0.5=4.0 q1.0=\"Infinity\" By  summary  {end}\n\
         {time} WARN   datadog.process  {end}\n\
         {time} WARN   datadog.process  severity=14  {end}\n"
    );
    assert_eq!(text(&batch), expected);
    let mut shown = Vec::new();
    let event = batch.events().nth(2).unwrap();
    terminal::encode(event, Terminal { columns: 120, colours: false }, &mut shown);
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("count=3 sum=12.0 q0.5=4.0 q1.0=\"Infinity\" By"), "{shown}");
}

#[test]
fn states_of_traces_are_escaped_in_text() {
    let mut builder = builder();
    let trace_state = Some(builder.push_text("a\u{1b}[31m\n\u{202e}b"));
    let dropped = DroppedCounts { attributes: 0, events: 4, links: 0 };
    let extras = SpanExtras { trace_state, flags: 257, dropped };
    builder.event(header(semconv::DATADOG_SPAN)).span_with_extras(span(), extras, &[], &[]);
    let line = text(&builder.take());
    assert_one_line(&line);
    assert!(line.contains(r#"trace_state="a\u{1b}[31m\n\u{202e}b" flags=257 dropped.events=4"#), "{line}");
}

#[test]
fn the_lists_of_distributions_count_as_output_and_as_memory() {
    let counts = vec![u64::MAX; 1000];
    let form = DistributionForm::Histogram { temporality: Temporality::Delta, bounds: &[], counts: &counts };
    let mut builder = builder();
    let (output, memory) = (builder.total_expanded_bytes(), builder.memory_bytes());
    push(&mut builder, "", None, &Distribution { form, ..HISTOGRAM });
    assert!(builder.total_expanded_bytes() - output >= 8 * 1000);
    assert!(builder.memory_bytes() - memory >= 8 * 1000);
    for _ in 0..16 {
        push(&mut builder, "", None, &Distribution { form, ..HISTOGRAM });
    }
    assert!(builder.is_full(), "a batch ends before its lists take much memory");
}
