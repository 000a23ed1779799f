//! What an option is: its key, its type with its bounds, its default and the sentence that says what it means.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::section::join;
use super::units::{ByteSize, LONGEST, format_duration};

/// Options in the order in which they are read.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// The options.
    pub settings: Vec<Setting>,
    /// The dotted paths of tables, and what each of them means.
    pub tables: Vec<(String, &'static str)>,
}

/// One option that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its `[header]`.
    pub header: String,
    /// Its key below the header, dotted.
    pub key: String,
    /// The effective value, as TOML. None: it has no default and is not set.
    pub value: Option<String>,
    /// Which values it can have.
    pub kind: ValueKind,
    /// What it means. Its default and bounds are not repeated there.
    pub sentence: &'static str,
    /// Whether it has no default and must be set, if its table is.
    pub is_required: bool,
}

impl Setting {
    /// The dotted path of the option.
    pub fn path(&self) -> String {
        join(&self.header, &self.key)
    }

    /// The sentence, and the bounds as another one.
    pub fn meaning(&self) -> String {
        let Some(bounds) = self.kind.bounds() else { return self.sentence.to_owned() };
        let (first, rest) = bounds.split_at(1);
        format!("{} {}{rest}.", self.sentence, first.to_uppercase())
    }
}

/// Which values an option can have.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueKind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Count(RangeInclusive<u64>),
    /// A number of bytes: with a unit, or an integer.
    Size(RangeInclusive<u64>),
    /// A time with a unit.
    Duration(RangeInclusive<Duration>),
    /// The same, or an empty text.
    DurationOrNone(RangeInclusive<Duration>),
    /// Any number.
    Number,
    /// A number from 0 to 1.
    Fraction,
    /// A text: a path, an address or anything else.
    Text,
    /// One of these texts.
    Choice(Vec<String>),
    /// A text, a number, or `true` or `false`.
    Scalar,
    /// A list of such values.
    List(Box<ValueKind>),
    /// A table of such values, whose keys the operator chooses.
    Names(Box<ValueKind>),
    /// A list of tables with these options.
    Tables(Vec<Setting>),
}

impl ValueKind {
    /// The bounds in words: `1KiB to 1GiB`, `at least 1ms`. None: it has none that are worth a word.
    pub fn bounds(&self) -> Option<String> {
        let (least, most) = match self {
            ValueKind::Count(allowed) => {
                let shown = |number: &u64| Some(number.to_string());
                (Some(allowed.start()).filter(|least| **least > 0).and_then(shown), shown(allowed.end()))
            }
            ValueKind::Size(allowed) => {
                let shown = |bytes: &u64| Some(ByteSize(*bytes).to_string());
                let least = Some(allowed.start()).filter(|least| **least > 0).and_then(shown);
                (least, Some(allowed.end()).filter(|most| **most < UNLIMITED_BYTES).and_then(shown))
            }
            ValueKind::Duration(allowed) | ValueKind::DurationOrNone(allowed) => {
                let shown = |duration: &Duration| Some(format_duration(*duration));
                let least = Some(allowed.start()).filter(|least| !least.is_zero()).and_then(shown);
                (least, Some(allowed.end()).filter(|most| **most < LONGEST).and_then(shown))
            }
            ValueKind::Fraction => (Some("0".to_owned()), Some("1".to_owned())),
            ValueKind::List(element) => return element.bounds(),
            _ => (None, None),
        };
        match (least, most) {
            (Some(least), Some(most)) => Some(format!("{least} to {most}")),
            (Some(least), None) => Some(format!("at least {least}")),
            (None, Some(most)) => Some(format!("at most {most}")),
            (None, None) => None,
        }
    }
}

/// Bounds of this many bytes and more limit nothing that exists.
const UNLIMITED_BYTES: u64 = 1 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_limit_nothing_are_left_out() {
        let second = Duration::from_secs(1);
        for (kind, bounds) in [
            (ValueKind::Count(1..=64), Some("1 to 64")),
            (ValueKind::Count(0..=126), Some("at most 126")),
            (ValueKind::Size(1 << 10..=1 << 30), Some("1KiB to 1GiB")),
            (ValueKind::Size(0..=1 << 50), None),
            (ValueKind::Duration(second..=LONGEST), Some("at least 1s")),
            (ValueKind::Duration(Duration::ZERO..=60 * second), Some("at most 1m")),
            (ValueKind::Duration(Duration::ZERO..=LONGEST), None),
            (ValueKind::List(Box::new(ValueKind::Text)), None),
        ] {
            assert_eq!(kind.bounds().as_deref(), bounds, "{kind:?}");
        }
    }
}
