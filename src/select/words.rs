//! Rules in words, for `check`.

use std::fmt;
use std::time::Duration;

use tributary_event::{Kind, Number, ResourceValue};
use tributary_options::units::format_duration;
use tributary_sink::Kinds;

use super::condition::{Condition, Test};
use super::options::Options;

impl Options {
    /// A sentence for each rule of the sink with this name; none without rules.
    pub fn in_words(&self, sink: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for condition in &self.takes {
            lines.push(format!("sink {sink} takes {condition} (where)"));
        }
        for (index, condition) in self.unless.iter().enumerate() {
            lines.push(format!("sink {sink} leaves out {condition} (unless.{})", index + 1));
        }
        if let Some(sample) = &self.sample {
            let always =
                if self.takes.iter().any(|condition| condition.is_always) { ", and what `always` keeps" } else { "" };
            lines.push(format!("sink {sink} keeps {sample}{always} (sample)"));
        }
        if !self.remove.is_empty() {
            lines.push(format!("sink {sink} removes values with these keys: {}", list(&self.remove)));
        }
        if let Some(hash) = &self.hash {
            let (keys, file) = (list(&hash.attributes), hash.key_file.display());
            lines.push(format!(
                "sink {sink} replaces values with these keys by 16 hex digits, with the key in {file}: {keys}"
            ));
        }
        lines
    }
}

fn list(items: &[impl fmt::Display]) -> String {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    items.join(", ")
}

impl fmt::Display for Condition {
    /// `spans with status error of listener shop`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&noun(self.kinds))?;
        if let Some(name) = &self.name {
            write!(f, " named {}", name.glob)?;
        }
        if let Some(severity) = self.severity {
            write!(f, " of severity {} or above", severity.as_str())?;
        }
        if let Some(status) = self.status {
            write!(f, " with status {}", super::options::name_of_status(status))?;
        }
        if let Some(nanos) = self.min_duration {
            write!(f, " of at least {}", format_duration(Duration::from_nanos(nanos)))?;
        }
        if let Some(protocol) = self.protocol {
            write!(f, " of protocol {protocol}")?;
        }
        if let Some(listener) = &self.listener {
            write!(f, " of listener {listener}")?;
        }
        if let Some(field) = &self.field {
            let whose = if field.is_of_resource { "whose resource has" } else { "that have" };
            write!(f, " {whose} {}", in_words(&field.key, &field.test))?;
        }
        if self.is_always {
            f.write_str(", whatever `sample` says")?;
        }
        Ok(())
    }
}

fn noun(kinds: Kinds) -> String {
    if kinds == Kinds::ALL {
        return "events".to_owned();
    }
    let nouns = Kind::ALL.into_iter().filter(|kind| kinds.contains(*kind)).map(|kind| match kind {
        Kind::Log => "logs",
        Kind::Span => "spans",
        Kind::Metric => "metrics",
        Kind::Sample => "samples",
        Kind::Loss => "losses",
    });
    nouns.collect::<Vec<_>>().join(" and ")
}

/// `http.route equal to "/health"`.
fn in_words(key: &str, test: &Test) -> String {
    let Test { equals, glob, exists, min, max } = test;
    if *exists == Some(false) {
        return format!("no {key}");
    }
    let parts = [
        equals.as_ref().map(|value| format!("equal to {}", value_in_words(value))),
        glob.as_ref().map(|glob| format!("like {glob}")),
        min.map(|least| format!("of at least {}", number_in_words(least))),
        max.map(|most| format!("of at most {}", number_in_words(most))),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { key.to_owned() } else { format!("{key} {}", parts.join(" and ")) }
}

fn value_in_words(value: &ResourceValue) -> String {
    match value {
        ResourceValue::Text(text) => format!("{text:?}"),
        ResourceValue::Bool(value) => value.to_string(),
        ResourceValue::I64(number) => number.to_string(),
        ResourceValue::U64(number) => number.to_string(),
        ResourceValue::F64(number) => number.to_string(),
    }
}

fn number_in_words(number: Number) -> String {
    match number {
        Number::I64(number) => number.to_string(),
        Number::U64(number) => number.to_string(),
        Number::F64(number) => number.to_string(),
    }
}
