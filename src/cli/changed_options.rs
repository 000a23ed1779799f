//! What another configuration changes, for the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// At most this many changes are named.
const MAX_NAMED: usize = 20;

/// The sections that are added and removed, and the options of other sections that have another value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ChangedOptions(Vec<String>);

impl ChangedOptions {
    /// The changes between two configurations. Each is a list of options: the dotted path, and the value in TOML. An
    /// empty value stands for an option that is not set.
    pub(super) fn between(before: &[(String, String)], now: &[(String, String)]) -> ChangedOptions {
        let (sections_before, sections) = (sections(before), sections(now));
        let named = |of: &BTreeSet<&str>, without: &BTreeSet<&str>, what: &str| {
            of.difference(without).map(|section| format!("{section} {what}")).collect::<Vec<_>>()
        };
        let mut changes = named(&sections, &sections_before, "added");
        changes.extend(named(&sections_before, &sections, "removed"));
        let is_common = |path: &str| {
            section(path).is_none_or(|section| sections.contains(section) && sections_before.contains(section))
        };
        let values = |options: &[(String, String)]| -> BTreeMap<String, String> {
            options.iter().filter(|(path, _)| is_common(path)).cloned().collect()
        };
        let (values_before, values) = (values(before), values(now));
        let paths: BTreeSet<&String> = values_before.keys().chain(values.keys()).collect();
        for path in paths {
            let shown = |values: &BTreeMap<String, String>| {
                values.get(path).filter(|value| !value.is_empty()).map_or("not set", String::as_str).to_owned()
            };
            let (before, now) = (shown(&values_before), shown(&values));
            if before != now {
                changes.push(format!("{path} = {now}, before: {before}"));
            }
        }
        ChangedOptions(changes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for ChangedOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = &self.0[..self.0.len().min(MAX_NAMED)];
        f.write_str(&named.join("; "))?;
        match self.0.len() - named.len() {
            0 => Ok(()),
            more => write!(f, "; {more} more"),
        }
    }
}

/// The listeners and sinks of a configuration.
fn sections(options: &[(String, String)]) -> BTreeSet<&str> {
    options.iter().filter_map(|(path, _)| section(path)).collect()
}

/// The listener or sink that an option belongs to.
fn section(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("listeners.").or_else(|| path.strip_prefix("sinks."))?;
    let name = rest.find('.')?;
    Some(&path[..path.len() - rest.len() + name])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(before: &[(&str, &str)], now: &[(&str, &str)]) -> String {
        let owned = |options: &[(&str, &str)]| -> Vec<_> {
            options.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect()
        };
        ChangedOptions::between(&owned(before), &owned(now)).to_string()
    }

    #[test]
    fn sections_that_come_and_go_are_named_and_options_with_their_values() {
        let before = [("limits.memory_bytes", "\"1GiB\""), ("sinks.a.type", "\"file\""), ("listeners.x.listen", "")];
        let now =
            [("limits.memory_bytes", "\"2GiB\""), ("sinks.b.type", "\"file\""), ("listeners.x.listen", "\"h:1\"")];
        assert_eq!(
            changes(&before, &now),
            "sinks.b added; sinks.a removed; limits.memory_bytes = \"2GiB\", before: \"1GiB\"; \
             listeners.x.listen = \"h:1\", before: not set"
        );
        assert!(ChangedOptions::between(&[], &[]).is_empty());
    }

    #[test]
    fn of_many_changes_the_first_are_named_and_the_others_counted() {
        let now: Vec<_> = (10..35).map(|number| (format!("limits.x{number}"), "1".to_owned())).collect();
        let text = ChangedOptions::between(&[], &now).to_string();
        assert!(text.ends_with("limits.x29 = 1, before: not set; 5 more"), "{text}");
    }
}
