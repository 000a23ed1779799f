//! `where`, `unless`, `sample`, `remove` and `hash` of a sink, as they stand in the configuration.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tributary_event::{Kind, MOST_BATCH_BYTES, Severity, Status};
use tributary_options::{Bounds, LONGEST, Section, defaults, options};
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

options! {
    /// Which events a sink takes, and what is removed from them. By default all of them, unchanged.
    #[derive(Clone, PartialEq, Debug)]
    pub struct Options(listeners: &[&str]) {
        /// The sink takes events for which one of these conditions is true. Empty: all. docs/selection.md explains them. At most 256.
        pub(super) takes: Vec<Condition> as "where" =
            list_of_tables(MAX_RULES, EXAMPLE, |section| {
                let condition = read_condition(section, listeners);
                Condition { is_always: read_always(section), ..condition }
            }),
        /// The sink takes no events for which one of these conditions is true. At most 256.
        pub(super) unless: Vec<Condition> =
            list_of_tables(MAX_RULES, EXAMPLE, |section| read_condition(section, listeners)),
        /// Sampling. Losses, and what meets a condition of `where` with `always = true`, are kept in any case. Not set: all events are
        /// kept.
        pub(super) sample: Option<SampleRule> = optional_section(read_sample),
        /// Keys of values that are removed before the sink writes anything: patterns with `*`, e.g. ["*.password"]; "resource:…" only in
        /// the resource. At most 256.
        pub(super) remove: Vec<KeyGlob> = list_of_parsed(MAX_RULES, KeyGlob::parse),
        /// Values that are replaced by 16 hex digits of their HMAC-SHA-256.
        pub hash: Option<HashOptions> = optional_section(HashOptions::read),
    }
}

options! {
    /// Values that are replaced by 16 hex digits of their HMAC-SHA-256.
    #[derive(Clone, PartialEq, Debug)]
    pub struct HashOptions checked by check {
        /// Keys of the values: patterns as those of `remove`.
        pub(super) attributes: Vec<KeyGlob> =
            flat(|section| section.required().list_of_parsed("attributes", MAX_RULES, KeyGlob::parse)),
        /// The file with the key. One line feed at its end does not belong to the key.
        pub key_file: PathBuf = required_path().unwrap_or_default(),
    }
}

const EXAMPLE: &str = "{ kind = \"span\", min_duration = \"100ms\" }";

impl Default for Options {
    fn default() -> Self {
        defaults(|section| Options::read(section, &[]))
    }
}

impl HashOptions {
    fn check(&self, section: &mut Section<'_>) {
        if self.attributes.is_empty() {
            section.error_at_name("`hash` names no attributes", Some("write attributes = [\"user.id\"]".into()));
        }
    }
}

fn read_sample(section: &mut Section<'_>) -> SampleRule {
    let share = section.about("The share of these events that is kept.").required_fraction("keep");
    section.about(
        "By \"trace_id\": a share of the traces, the same in every sink and daemon, and all events that belong to no trace; by \"event\": a \
         share of all events.",
    );
    SampleRule::new(share, section.choice("by", By::default(), &By::NAMES))
}

fn read_always(section: &mut Section<'_>) -> bool {
    section.about("Whether `sample` keeps every event that meets the condition.").bool("always", false)
}

impl Options {
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
    let kind = section
        .about("Events of this kind: \"log\", \"span\", \"metric\", \"sample\" or \"loss\".")
        .optional_choice("kind", &Kind::ALL.map(|kind| (kind.as_str(), kind)));
    let mut condition = Condition {
        kinds: kind.map_or(Kinds::ALL, |kind| Kinds::from_iter([kind])),
        name: section
            .about("Events whose name matches this pattern with `*`.")
            .optional_parsed("name", Glob::parse)
            .map(NameGlob::new),
        protocol: section.about("Events of this protocol.").optional_choice("protocol", &protocols),
        listener: match listeners.is_empty() {
            // Listeners of other collectors: their names are not known here.
            true => section.about("Events of this listener.").optional_text("listener"),
            false => {
                section.about("Events of this listener.").optional_choice("listener", &listeners).map(str::to_owned)
            }
        },
        severity: section
            .about("Logs of at least this severity: \"trace\", \"debug\", \"info\", \"warn\", \"error\" or \"fatal\".")
            .optional_parsed("severity", Level::parse)
            .map(|Level(severity)| severity),
        status: section
            .about("Spans with this status: \"unset\", \"ok\" or \"error\".")
            .optional_choice("status", &STATUSES),
        min_duration: section
            .about("Spans that took at least this time.")
            .optional_duration("min_duration", Duration::ZERO..=LONGEST)
            .map(|time| {
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
    let attribute = section
        .about("The key of an attribute, beside equals, glob, exists, min or max.")
        .optional_parsed("attribute", read_key);
    let resource = section
        .about("The key of an attribute of the resource, beside equals, glob, exists, min or max.")
        .optional_parsed("resource", read_key);
    let test = Test {
        equals: section.about("Its value is this one.").optional_scalar("equals"),
        glob: section.about("Its value matches this pattern with `*`.").optional_parsed("glob", Glob::parse),
        exists: section.about("Whether it is there.").optional_bool("exists"),
        min: section.about("Its value is at least this number.").optional_number("min"),
        max: section.about("Its value is at most this number.").optional_number("max"),
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
