//! `where`, `unless`, `sample`, `remove` and `hash` of a sink, as they stand in the configuration.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tributary_event::{Kind, MOST_BATCH_BYTES, Severity, Status};
use tributary_options::{Bounds, LONGEST, Section};
use tributary_protocol::Protocol;
use tributary_sink::Kinds;

use super::condition::{Condition, Field, NameGlob, Test};
use super::glob::Glob;
use super::keys::KeyGlob;
use super::number::compare;
use super::redact::CACHE_BYTES;
use super::sample::{By, SampleRule};

/// The most conditions of `where` or `unless`, and the most keys of `remove` or `hash`. Each event is compared with all of
/// them.
pub const MAX_RULES: usize = 256;
/// The longest key of an attribute, in bytes.
const MAX_KEY_BYTES: usize = 256;

/// Which events a sink takes, and what is removed from them. By default all of them, unchanged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Options {
    /// `where`: the sink takes events that meet any of these conditions; all if there are none.
    pub(super) takes: Vec<Condition>,
    /// The sink takes no events that meet any of these.
    pub(super) unless: Vec<Condition>,
    pub(super) sample: Option<SampleRule>,
    pub(super) remove: Vec<KeyGlob>,
    /// Values that are replaced by a keyed hash of them.
    pub hash: Option<HashOptions>,
}

/// Values that are replaced by 16 hex digits of their HMAC-SHA-256.
#[derive(Clone, PartialEq, Debug)]
pub struct HashOptions {
    pub(super) attributes: Vec<KeyGlob>,
    /// The file with the key. One line feed at its end does not belong to the key.
    pub key_file: PathBuf,
}

impl Options {
    /// Reads the options; errors are reported to the section. Conditions may name these listeners.
    pub fn read(section: &mut Section<'_>, listeners: &[&str]) -> Self {
        const EXAMPLE: &str = "{ kind = \"span\", min_duration = \"100ms\" }";
        Options {
            takes: section.list_of_tables("where", MAX_RULES, EXAMPLE, |one| {
                let condition = read_condition(one, listeners);
                Condition { is_always: one.bool("always", false), ..condition }
            }),
            unless: section.list_of_tables("unless", MAX_RULES, EXAMPLE, |one| read_condition(one, listeners)),
            sample: section.optional_section("sample", |sample| {
                SampleRule::new(sample.required_fraction("keep"), sample.choice("by", By::default(), &By::NAMES))
            }),
            remove: section.list_of_parsed("remove", MAX_RULES, KeyGlob::parse),
            hash: section.optional_section("hash", |hash| {
                let attributes = hash.list_of_parsed("attributes", MAX_RULES, KeyGlob::parse);
                let key_file = hash.required_path("key_file").unwrap_or_default();
                if attributes.is_empty() {
                    hash.error_at_name("`hash` names no attributes", Some("write attributes = [\"user.id\"]".into()));
                }
                HashOptions { attributes, key_file }
            }),
        }
    }

    /// Whether the sink can take an event of this listener.
    pub fn may_take(&self, protocol: Protocol, listener: &str) -> bool {
        let may_match = |condition: &Condition| condition.may_match(protocol, listener);
        (self.takes.is_empty() || self.takes.iter().any(may_match))
            && !self.unless.iter().any(|condition| condition.is_of_listeners_only() && may_match(condition))
    }

    /// Declares the memory that it takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        if !self.remove.is_empty() || self.hash.is_some() {
            bounds.add(of, "a changed copy of a batch (remove, hash)", MOST_BATCH_BYTES + CACHE_BYTES);
        }
    }
}

fn read_condition(section: &mut Section<'_>, listeners: &[&str]) -> Condition {
    let protocols = Protocol::ALL.map(|protocol| (protocol.as_str(), protocol));
    let listeners: Vec<_> = listeners.iter().map(|name| (*name, *name)).collect();
    let kind = section.optional_choice("kind", &Kind::ALL.map(|kind| (kind.as_str(), kind)));
    let mut condition = Condition {
        kinds: kind.map_or(Kinds::ALL, |kind| Kinds::from_iter([kind])),
        name: section.optional_parsed("name", Glob::parse).map(NameGlob::new),
        protocol: section.optional_choice("protocol", &protocols),
        listener: match listeners.is_empty() {
            // Listeners of other collectors: their names are not known here.
            true => section.optional_text("listener"),
            false => section.optional_choice("listener", &listeners).map(str::to_owned),
        },
        severity: section.optional_parsed("severity", Level::parse).map(|Level(severity)| severity),
        status: section.optional_choice("status", &STATUSES),
        min_duration: section.optional_duration("min_duration", Duration::ZERO..=LONGEST).map(|time| {
            // A year of nanoseconds fits.
            time.as_nanos() as u64
        }),
        field: read_field(section),
        is_always: false,
    };
    for (key, is_set, of) in [
        ("severity", condition.severity.is_some(), Kind::Log),
        ("status", condition.status.is_some(), Kind::Span),
        ("min_duration", condition.min_duration.is_some(), Kind::Span),
    ] {
        if is_set && !condition.kinds.contains(of) {
            let help = format!("only events of kind = \"{}\" have it", of.as_str());
            section.error(key, format!("with `{key}` this condition is never true"), Some(help));
        } else if is_set {
            condition.kinds = Kinds::from_iter([of]);
        }
    }
    if section.is_empty() {
        section.error_at_name("a condition without keys", Some("for every event write { name = \"*\" }".into()));
    }
    condition
}

fn read_field(section: &mut Section<'_>) -> Option<Field> {
    let attribute = section.optional_parsed("attribute", read_key);
    let resource = section.optional_parsed("resource", read_key);
    let test = Test {
        equals: section.optional_scalar("equals"),
        glob: section.optional_parsed("glob", Glob::parse),
        exists: section.optional_bool("exists"),
        min: section.optional_number("min"),
        max: section.optional_number("max"),
    };
    let Test { equals, glob, exists, min, max } = &test;
    let others =
        [("equals", equals.is_some()), ("glob", glob.is_some()), ("min", min.is_some()), ("max", max.is_some())];
    let mut others = others.iter().filter(|(_, is_set)| *is_set).map(|(key, _)| *key);
    let first = others.next();
    if let (Some(first), Some(false)) = (first, exists) {
        section.error(first, format!("with exists = false and `{first}` this condition is never true"), None);
    }
    if let (Some(least), Some(most)) = (min, max)
        && compare(*least, *most).is_some_and(|order| order.is_gt())
    {
        section.error("max", "`max` is less than `min`", None);
    }
    let name = if attribute.is_some() { "attribute" } else { "resource" };
    match (attribute, resource) {
        (Some(_), Some(_)) => {
            let help = "write `attribute` here, and a condition of its own with `resource` in `unless`, say";
            section.error("resource", "a condition has `attribute` or `resource`, not both", Some(help.into()));
            None
        }
        (None, None) => {
            let operator = first.or(exists.map(|_| "exists"))?;
            let help = "write attribute = \"key\" or resource = \"key\" beside it";
            section.error(operator, format!("`{operator}` of what?"), Some(help.into()));
            None
        }
        (Some(key), None) | (None, Some(key)) if first.is_none() && exists.is_none() => {
            let help = "write exists = true, equals, glob, min or max beside it";
            section.error(name, format!("what must `{key}` be?"), Some(help.into()));
            None
        }
        (Some(key), None) => Some(Field::new(false, key, test)),
        (None, Some(key)) => Some(Field::new(true, key, test)),
    }
}

fn read_key(text: &str) -> Result<String, (String, String)> {
    match text.len() {
        1..=MAX_KEY_BYTES => Ok(text.to_owned()),
        length => Err((format!("has {length} bytes"), format!("allowed: 1 to {MAX_KEY_BYTES} bytes"))),
    }
}

/// A severity in the configuration: lower-case, as other options; as in events, upper-case, it is read as well.
struct Level(Severity);

impl Level {
    fn parse(text: &str) -> Result<Level, (String, String)> {
        let lower = text.to_ascii_lowercase();
        if let Some((_, severity)) = SEVERITIES.iter().find(|(name, _)| *name == lower) {
            return Ok(Level(*severity));
        }
        let help = match lower.as_str() {
            "warning" => "did you mean \"warn\"?",
            _ => "allowed: \"trace\", \"debug\", \"info\", \"warn\", \"error\" or \"fatal\"",
        };
        Err((format!("cannot be {text:?}"), help.to_owned()))
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SEVERITIES.iter().find(|(_, severity)| *severity == self.0).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

const SEVERITIES: [(&str, Severity); 6] = [
    ("trace", Severity::Trace),
    ("debug", Severity::Debug),
    ("info", Severity::Info),
    ("warn", Severity::Warn),
    ("error", Severity::Error),
    ("fatal", Severity::Fatal),
];

const STATUSES: [(&str, Status); 3] = [("unset", Status::Unset), ("ok", Status::Ok), ("error", Status::Error)];

pub(super) fn name_of_status(status: Status) -> &'static str {
    STATUSES.iter().find(|(_, named)| *named == status).map_or("", |(name, _)| name)
}
