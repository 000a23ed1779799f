//! Further reads of a [`Section`]: values that their component parses, single values of several types, and limited lists.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::attributes::shown;
use super::section::{Section, article, toml_text};
use super::setting::ValueKind;
use super::units::format_duration;
use super::value::{ValueError, read_duration};
use tributary_event::{Number, ResourceValue};

/// The longest text of a single value, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

impl Section<'_> {
    /// `true` or `false`, without a default.
    pub fn optional_bool(&mut self, key: &str) -> Option<bool> {
        let read = |value: &DeValue<'_>| value.as_bool().ok_or_else(|| ValueError::wrong_type("true or false", value));
        self.optional(key, ValueKind::Bool, read, bool::to_string)
    }

    /// A duration without a default.
    pub fn optional_duration(&mut self, key: &str, allowed: RangeInclusive<Duration>) -> Option<Duration> {
        let read = |value: &DeValue<'_>| read_duration(value, &allowed);
        self.optional(key, ValueKind::Duration(allowed.clone()), read, |duration| {
            toml_text(&format_duration(*duration))
        })
    }

    /// A number from 0 to 1. The key is required; without it, 1.
    pub fn required_fraction(&mut self, key: &str) -> f64 {
        const HELP: &str = "write a number from 0 to 1, e.g. 0.1";
        self.require(key, || HELP.to_owned());
        let read = |value: &DeValue<'_>| match read_number(value)? {
            Number::F64(number) if (0.0..=1.0).contains(&number) => Ok(number),
            Number::U64(number @ (0 | 1)) => Ok(number as f64),
            _ => Err(ValueError::with_help("is out of range", HELP)),
        };
        self.optional(key, ValueKind::Fraction, read, |number| shown(&ResourceValue::F64(*number))).unwrap_or(1.0)
    }

    /// A number without a default. Not negative integers are [`Number::U64`].
    pub fn optional_number(&mut self, key: &str) -> Option<Number> {
        self.optional(key, ValueKind::Number, read_number, |number| shown(&value_of(*number)))
    }

    /// A text, a number, or `true` or `false`, without a default.
    pub fn optional_scalar(&mut self, key: &str) -> Option<ResourceValue> {
        self.optional(key, ValueKind::Scalar, read_scalar, shown)
    }

    /// A string that `parse` reads. Its error says what is wrong, after the name of the key, and what to write instead.
    pub fn optional_parsed<T: fmt::Display>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, (String, String)>,
    ) -> Option<T> {
        self.optional(key, ValueKind::Text, |value| read_parsed(value, parse), |value| toml_text(&value.to_string()))
    }

    /// A list of at most `most` strings that `parse` reads; empty by default. Each invalid element is reported at its place.
    pub fn list_of_parsed<T: fmt::Display>(
        &mut self,
        key: &str,
        most: usize,
        parse: impl Fn(&str) -> Result<T, (String, String)>,
    ) -> Vec<T> {
        if self.is_longer(key, most) {
            return Vec::new();
        }
        self.list(key, ValueKind::Text, |value| read_parsed(value, &parse), |value| toml_text(&value.to_string()))
    }

    /// A list of at most `most` tables; empty by default. `example` is one of them, for errors.
    pub fn list_of_tables<T>(
        &mut self,
        key: &str,
        most: usize,
        example: &str,
        read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Vec<T> {
        if self.is_longer(key, most) {
            return Vec::new();
        }
        self.tables(key, "", &format!("{key} = [{example}]"), read).unwrap_or_default()
    }

    /// Whether a list has too many elements, which is reported. They are not read then: errors in each of them would take
    /// time that grows with the square of the file.
    fn is_longer(&mut self, key: &str, most: usize) -> bool {
        let Some(found) = self.peek(key) else { return false };
        let DeValue::Array(elements) = found.get_ref() else { return false };
        let (length, span) = (elements.len(), found.span());
        if length > most {
            self.take(key);
            self.report(
                Some(span),
                format!("`{key}` has {length} elements"),
                Some(format!("at most {most} are allowed")),
            );
        }
        length > most
    }
}

fn read_parsed<T>(
    value: &DeValue<'_>,
    parse: impl FnOnce(&str) -> Result<T, (String, String)>,
) -> Result<T, ValueError> {
    let text = value.as_str().ok_or_else(|| ValueError::wrong_type("a string", value))?;
    parse(text).map_err(|(message, help)| ValueError::with_help(message, help))
}

fn read_number(value: &DeValue<'_>) -> Result<Number, ValueError> {
    match value {
        DeValue::Integer(integer) => {
            let (digits, radix) = (integer.as_str(), integer.radix());
            let unsigned = u64::from_str_radix(digits, radix).map(Number::U64);
            unsigned.or_else(|_| i64::from_str_radix(digits, radix).map(Number::I64)).map_err(|_| ValueError {
                message: "is out of range".into(),
                help: Some("allowed: integers of 64 bits".into()),
            })
        }
        DeValue::Float(float) => match float.as_str().parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Number::F64(number)),
            _ => Err(ValueError::with_help("is not finite", "write a number")),
        },
        other => Err(ValueError::wrong_type("a number", other)),
    }
}

fn read_scalar(value: &DeValue<'_>) -> Result<ResourceValue, ValueError> {
    match value {
        DeValue::String(text) if text.len() > MAX_TEXT_BYTES => {
            let help = format!("at most {MAX_TEXT_BYTES} bytes are allowed");
            Err(ValueError::with_help(format!("has {} bytes", text.len()), help))
        }
        DeValue::String(text) => Ok(ResourceValue::Text(text.as_ref().to_owned())),
        DeValue::Boolean(flag) => Ok(ResourceValue::Bool(*flag)),
        DeValue::Integer(_) | DeValue::Float(_) => read_number(value).map(value_of),
        other => Err(ValueError::with_help(
            format!("must be a single value, not {}", article(other.type_str())),
            "allowed: a string, a number, true or false",
        )),
    }
}

fn value_of(number: Number) -> ResourceValue {
    match number {
        Number::I64(number) => ResourceValue::I64(number),
        Number::U64(number) => ResourceValue::U64(number),
        Number::F64(number) => ResourceValue::F64(number),
    }
}
