//! Attributes that an operator writes: a table of names, which often have dots, and values of several types.

use toml::de::DeValue;

use super::section::{Section, article, quoted, toml_text};
use super::setting::ValueKind;
use tributary_event::ResourceValue;

/// The most attributes of a table.
const MAX_ATTRIBUTES: usize = 32;
/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 128;
/// The longest text, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

impl Section<'_> {
    /// A table of attributes, in the order of the file; empty by default. Keys are not empty and values are text that is not
    /// empty, integers, booleans or finite doubles. Each invalid attribute is reported at its own place.
    pub fn attributes(&mut self, key: &str) -> Vec<(String, ResourceValue)> {
        let mut attributes = Vec::new();
        if let Some(found) = self.take(key) {
            let DeValue::Table(table) = found.get_ref() else {
                let message = format!("`{key}` must be a table, not {}", article(found.get_ref().type_str()));
                let help = format!("for example {key} = {{ \"service.name\" = \"shop\" }}");
                self.report(Some(found.span()), message, Some(help));
                self.record(key, ValueKind::Names(Box::new(ValueKind::Scalar)), Some("{}".to_owned()));
                return attributes;
            };
            let mut members: Vec<_> = table.iter().collect();
            // The table is sorted by key; the spans have the order of the file.
            members.sort_by_key(|(name, _)| name.span().start);
            if members.len() > MAX_ATTRIBUTES {
                let message = format!("`{key}` has {} attributes", members.len());
                self.report(Some(found.span()), message, Some(format!("at most {MAX_ATTRIBUTES} are allowed")));
            }
            for (name, value) in members.into_iter().take(MAX_ATTRIBUTES) {
                let text = name.get_ref().as_ref();
                if let Err(message) = check_key(text) {
                    let help = format!("allowed: 1 to {MAX_KEY_BYTES} bytes");
                    self.report(Some(name.span()), format!("a key of `{key}` {message}"), Some(help));
                    continue;
                }
                match read_value(text, value.get_ref()) {
                    Ok(value) => attributes.push((text.to_owned(), value)),
                    Err((message, help)) => {
                        let message = format!("`{}` of `{key}` {message}", quoted(text));
                        self.report(Some(value.span()), message, Some(help));
                    }
                }
            }
        }
        let shown: Vec<_> =
            attributes.iter().map(|(name, value)| format!("{} = {}", quoted(name), shown(value))).collect();
        let shown = if shown.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", shown.join(", ")) };
        self.record(key, ValueKind::Names(Box::new(ValueKind::Scalar)), Some(shown));
        attributes
    }
}

fn check_key(key: &str) -> Result<(), String> {
    match key.len() {
        0 => Err("is empty".to_owned()),
        1..=MAX_KEY_BYTES => Ok(()),
        length => Err(format!("has {length} bytes")),
    }
}

/// The value, or what is wrong with it and what to write instead.
fn read_value(key: &str, value: &DeValue<'_>) -> Result<ResourceValue, (String, String)> {
    const TYPES: &str = "allowed: a string, an integer, true or false, a float";
    let wrong = |message: &str, help: &str| Err((message.to_owned(), help.to_owned()));
    match value {
        DeValue::String(text) if text.is_empty() => wrong("is empty", "leave it out, or write a value"),
        DeValue::String(text) if text.len() > MAX_TEXT_BYTES => {
            let help = format!("at most {MAX_TEXT_BYTES} bytes are allowed");
            Err((format!("has {} bytes", text.len()), help))
        }
        DeValue::String(text) => Ok(ResourceValue::Text(text.as_ref().to_owned())),
        DeValue::Boolean(flag) => Ok(ResourceValue::Bool(*flag)),
        DeValue::Integer(integer) => match i64::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) => Ok(ResourceValue::I64(number)),
            Err(_) => wrong("is out of range", "allowed: integers of 64 bits"),
        },
        DeValue::Float(float) => match float.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(ResourceValue::F64(number)),
            _ => wrong("is not finite", "allowed: finite floats"),
        },
        DeValue::Table(inner) => {
            // `service.name = …` without quotes is a table `service` that has `name`.
            let member = inner.iter().next().map_or("name", |(member, _)| member.get_ref().as_ref());
            let help = format!("a key with dots is written in quotes: {} = …", toml_text(&format!("{key}.{member}")));
            Err(("must be a single value, not a table".to_owned(), help))
        }
        other => Err((format!("must be a single value, not {}", article(other.type_str())), TYPES.to_owned())),
    }
}

/// A value as TOML.
pub(super) fn shown(value: &ResourceValue) -> String {
    match value {
        ResourceValue::Bool(flag) => flag.to_string(),
        ResourceValue::I64(number) => number.to_string(),
        ResourceValue::U64(number) => number.to_string(),
        ResourceValue::F64(number) => toml::Value::from(*number).to_string(),
        ResourceValue::Text(text) => toml_text(text),
    }
}
