//! Every text of a peer is read back from JSON unchanged, and stays on its line.

use proptest::prelude::*;
use tributary::event::{Header, Key, MetricData, MetricType, Number, SampleData, Severity, Value, semconv};
use tributary::sink::encode::terminal::{self, Terminal};

use super::{assert_one_line, builder, header, json, json_attributes, parse, text};

#[test]
fn json_strings_escape_what_json_requires_and_what_terminals_or_line_readers_interpret() {
    let cases = [
        ("\"", r#"\""#),
        ("\\", r"\\"),
        ("\n\r\t\u{8}\u{c}", r"\n\r\t\b\f"),
        ("\0\u{1}\u{b}\u{1b}\u{1f}", r"\u0000\u0001\u000b\u001b\u001f"),
        ("\u{85}", r"\u0085"),
        ("\u{2028}\u{2029}", r"\u2028\u2029"),
        ("a\u{85}b\u{2028}c\u{2029}d\ne", r"a\u0085b\u2028c\u2029d\ne"),
        ("\u{7f}\u{80}\u{9b}31m\u{9f}", r"\u007f\u0080\u009b31m\u009f"),
        ("\u{61c}\u{200e}\u{200f}", r"\u061c\u200e\u200f"),
        ("\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}", r"\u202a\u202b\u202c\u202d\u202e"),
        ("\u{2066}\u{2067}\u{2068}\u{2069}", r"\u2066\u2067\u2068\u2069"),
        // These begin with the same bytes as escaped characters and need no escape.
        ("\u{a0}\u{bf}", "\u{a0}\u{bf}"),
        ("\u{600}\u{61b}\u{61d}\u{627}", "\u{600}\u{61b}\u{61d}\u{627}"),
        ("\u{200d}\u{2010}\u{2027}\u{202f}\u{2065}\u{206a}", "\u{200d}\u{2010}\u{2027}\u{202f}\u{2065}\u{206a}"),
        ("© € … ™", "© € … ™"),
        ("é 🦀 /", "é 🦀 /"),
        ("", ""),
    ];
    for (text, expected) in cases {
        for (before, after) in [("", ""), ("x", ""), ("", "é")] {
            let text = format!("{before}{text}{after}");
            let line = json_attributes(|event| event.text(semconv::DATADOG_RESOURCE, &text));
            let attributes = format!(r#""attributes":{{"datadog.resource":"{before}{expected}{after}"}}"#);
            assert!(line.contains(&attributes), "{attributes} in {line}");
            assert_eq!(parse(&line)["attributes"]["datadog.resource"], text.as_str());
        }
    }
}

#[test]
fn json_escapes_every_character_that_text_output_escapes() {
    // Controls, line separators, bidirectional controls: docs/security.md.
    let controls = (0..0x20).chain(0x7F..0xA0).chain([0x061C, 0x200E, 0x200F, 0x2028, 0x2029]);
    let controls = controls.chain(0x202A..=0x202E).chain(0x2066..=0x2069);
    for c in controls.map(|c| char::from_u32(c).unwrap()) {
        let line = json_attributes(|event| event.text(semconv::DATADOG_RESOURCE, &c.to_string()));
        assert!(!line.trim_end_matches('\n').contains(c), "{c:?} stands raw in {line}");
        assert_eq!(parse(&line)["attributes"]["datadog.resource"], c.to_string());
    }
}

#[test]
fn keys_and_names_are_escaped_like_values() {
    let mut builder = builder();
    let hostile = builder.push_text("a\"},\n\u{2028}");
    let mut event = builder.event(Header { name: hostile.into(), ..header(semconv::LOSS) });
    event.attribute(hostile, 1u64);
    event.attribute(semconv::DATADOG_TYPE, hostile);
    event.log(Severity::Info, None);
    let line = json(&builder.take());
    assert!(line.contains(r#""name":"a\"},\n\u2028","severity""#), "{line}");
    assert!(line.contains(r#""attributes":{"a\"},\n\u2028":1,"datadog.type":"a\"},\n\u2028"}"#), "{line}");
}

#[test]
fn types_and_units_of_peers_are_escaped() {
    let mut builder = builder();
    let hostile = builder.push_text("a\u{1b}[31m\n\u{202e}b");
    let sample = SampleData::new(hostile, hostile, Number::U64(7));
    builder.event(header(semconv::DATADOG_PROCESS)).sample(sample, &[]);
    let metric =
        MetricData { metric_type: MetricType::Gauge, unit: hostile.into(), value: Number::U64(7), start: None };
    builder.event(header(semconv::DATADOG_PROCESS)).metric(metric);
    let batch = builder.take();

    let mut shown = Vec::new();
    let terminal = Terminal { columns: 200, colours: false };
    batch.events().for_each(|event| terminal::encode(event, terminal, &mut shown));
    for lines in [text(&batch), String::from_utf8(shown).unwrap()] {
        let lines: Vec<&str> = lines.split_inclusive('\n').collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        for line in lines {
            assert_one_line(line);
            assert!(line.contains(r"7 a\u{1b}[31m\n\u{202e}b"), "{line:?}");
            assert!(!line.contains(['\u{1b}', '\u{202e}']), "{line:?}");
        }
    }
}

#[test]
fn every_character_is_read_back_from_json_unchanged() {
    let all: String = (0..=0x3000).chain(0xFFF0..=0x1_0010).filter_map(char::from_u32).collect();
    let line = json_attributes(|event| event.text(semconv::DATADOG_RESOURCE, &all));
    assert_eq!(parse(&line)["attributes"]["datadog.resource"], all.as_str());
    assert_one_line(&line);
}

#[test]
fn doubles_look_as_serde_json_writes_them() {
    for value in [0.0, -0.0, 1.0, -1.0, 200.0, 0.1, 1e15, 1e16, 123456789012345.0, 1e21, 1e308, f64::MAX, 5e-324, 1e-7]
    {
        let line = json_attributes(|event| event.attribute(semconv::DATADOG_TYPE, value));
        let expected = serde_json::to_string(&value).unwrap();
        assert!(line.contains(&format!(r#"{{"datadog.type":{expected}}}"#)), "{expected} in {line}");
    }
    for (value, expected) in [(f64::NAN, "NaN"), (f64::INFINITY, "Infinity"), (f64::NEG_INFINITY, "-Infinity")] {
        let line = json_attributes(|event| event.attribute(semconv::DATADOG_TYPE, value));
        assert!(line.contains(&format!(r#"{{"datadog.type":"{expected}"}}"#)), "{line}");
    }
}

/// An attribute's value as a test makes it.
#[derive(Clone, Debug)]
enum Given {
    Text(String),
    I64(i64),
    U64(u64),
    F64(f64),
    Bool(bool),
}

fn given() -> impl Strategy<Value = Given> {
    // Texts rich in what needs escaping, and any texts.
    let text = prop_oneof!["[a-z\"\\\\\n\r\t\0-\u{20}\u{80}-\u{90}\u{2020}-\u{2030}€🦀]{0,40}", any::<String>()];
    prop_oneof![
        text.prop_map(Given::Text),
        any::<i64>().prop_map(Given::I64),
        any::<u64>().prop_map(Given::U64),
        any::<f64>().prop_map(Given::F64),
        any::<bool>().prop_map(Given::Bool),
    ]
}

proptest! {
    #[test]
    fn any_attributes_are_read_back_from_json_in_their_order(values in prop::collection::vec((any::<String>(), given()), 0..12)) {
        let mut builder = builder();
        let mut members: Vec<(Key, Value)> = Vec::new();
        for (n, (key, value)) in values.iter().enumerate() {
            let key = builder.push_parts(&[&n.to_string(), " ", key]).into();
            let value = match value {
                Given::Text(text) => builder.push_text(text).into(),
                Given::I64(value) => (*value).into(),
                Given::U64(value) => (*value).into(),
                Given::F64(value) => (*value).into(),
                Given::Bool(value) => (*value).into(),
            };
            members.push((key, value));
        }
        let body = builder.map(&members);
        let mut event = builder.event(header(semconv::LOSS));
        members.iter().for_each(|(key, value)| event.attribute(*key, *value));
        event.log(Severity::Info, Some(body));
        let batch = builder.take();
        let line = json(&batch);
        assert_one_line(&line);
        assert_one_line(&text(&batch));

        let parsed = parse(&line);
        let expected = ["time", "observed_time", "kind", "name", "severity", "body", "attributes", "origin"];
        let keys: Vec<_> = parsed.as_object().unwrap().keys().map(String::as_str).collect();
        let expected: Vec<_> = expected.into_iter().filter(|key| !values.is_empty() || *key != "attributes").collect();
        prop_assert_eq!(keys, expected);
        let Some(attributes) = parsed.get("attributes") else { return Ok(()) };
        prop_assert_eq!(attributes, &parsed["body"]);
        prop_assert_eq!(attributes.as_object().unwrap().len(), values.len());
        for ((n, (key, value)), (seen_key, seen)) in values.iter().enumerate().zip(attributes.as_object().unwrap()) {
            prop_assert_eq!(seen_key, &format!("{n} {key}"));
            match value {
                Given::Text(text) => prop_assert_eq!(seen, text.as_str()),
                Given::I64(value) => prop_assert_eq!(seen.to_string(), value.to_string()),
                Given::U64(value) => prop_assert_eq!(seen.to_string(), value.to_string()),
                Given::Bool(value) => prop_assert_eq!(seen, *value),
                Given::F64(value) if value.is_finite() => {
                    prop_assert_eq!(seen.to_string(), serde_json::to_string(value).unwrap());
                    prop_assert_eq!(seen.to_string().parse::<f64>().unwrap().to_bits(), value.to_bits());
                }
                Given::F64(value) => prop_assert_eq!(seen, &serde_json::json!(spelled(*value))),
            }
        }
    }
}

fn spelled(value: f64) -> &'static str {
    match value {
        f64::INFINITY => "Infinity",
        f64::NEG_INFINITY => "-Infinity",
        _ => "NaN",
    }
}
