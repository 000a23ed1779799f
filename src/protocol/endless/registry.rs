//! The events that are known: their names, and what their payloads mean. The data file is compiled in.

use std::sync::{Arc, LazyLock};

use hashbrown::HashMap;

use super::dedup::AsItIs;
use crate::event::write_hex;

/// A known event.
#[derive(Debug)]
pub(super) struct Known {
    /// Counts known events from 0.
    pub(super) number: usize,
    /// Its id as events show it.
    pub(super) id: String,
    /// What Endless OS calls it.
    pub(super) name: &'static str,
    /// Where the protocol has users (versions 0 to 2).
    with_users: Option<Arc<Shape>>,
    /// Where it has none (version 3).
    without_users: Option<Arc<Shape>>,
}

/// What an event looks like in some versions of the protocol.
#[derive(Debug)]
pub(super) struct Shape {
    /// The payload types, separated by `|`; `-` for none.
    types: &'static str,
    /// One by one.
    each_type: Vec<&'static str>,
    fields: Vec<Field>,
}

/// One named part of a payload.
#[derive(Debug)]
pub(super) struct Field {
    /// Counts fields of all events from 0.
    pub(super) number: usize,
    pub(super) name: &'static str,
    pub(super) part: Part,
}

/// Which part of a payload a field is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// The member of a tuple.
    Member(usize),
    /// The member of a tuple, if another one is true.
    MemberIf(usize, usize),
    /// The member of a tuple, a text, without quotes around it.
    Unquoted(usize),
    /// The value in a dict whose key is the field's name, but for case and underscores.
    Keyed,
}

/// The event with this id.
pub(super) fn known(id: &[u8]) -> Option<&'static Known> {
    REGISTRY.get(&u128::from_be_bytes(id.try_into().ok()?))
}

impl Known {
    /// What it looks like where the protocol has users (versions 0 to 2), or where it has none.
    pub(super) fn shape(&self, has_users: bool) -> Option<&Shape> {
        let shape = if has_users { &self.with_users } else { &self.without_users };
        shape.as_deref()
    }
}

impl Shape {
    /// The fields of a payload of this type; `None` where it should be of another, or not there at all.
    pub(super) fn fields(&self, payload_type: Option<&str>) -> Option<&[Field]> {
        let found = payload_type.unwrap_or(NONE);
        let is_expected = self.each_type.contains(&found) || self.types == UNKNOWN;
        is_expected.then_some(&self.fields)
    }

    /// The types that would be right, as text.
    pub(super) fn expected(&self) -> &'static str {
        if self.types == NONE { "none" } else { self.types }
    }
}

/// A UUID in its usual form.
pub(super) fn uuid(id: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for part in [0..4, 4..6, 6..8, 8..10, 10..16] {
        if part.start > 0 {
            text.push('-');
        }
        // Writing to a String does not fail.
        let _ = write_hex(&mut text, &id[part]);
    }
    text
}

const NONE: &str = "-";
const UNKNOWN: &str = "?";

/// By their ids, which are random already.
static REGISTRY: LazyLock<HashMap<u128, Known, AsItIs>> = LazyLock::new(|| {
    let mut registry: HashMap<u128, Known, AsItIs> = HashMap::default();
    let mut fields = 0;
    for (id, name, versions, mut shape) in include_str!("registry.tsv").lines().filter_map(line) {
        for field in &mut shape.fields {
            field.number = fields;
            fields += 1;
        }
        let (number, shape) = (registry.len(), Arc::new(shape));
        let known = || Known { number, id: uuid(&id.to_be_bytes()), name, with_users: None, without_users: None };
        let known = registry.entry(id).or_insert_with(known);
        for version in versions.split(',') {
            let place = if version == "2" { &mut known.with_users } else { &mut known.without_users };
            place.get_or_insert_with(|| shape.clone());
        }
    }
    registry
});

/// One line of the data file: id, name, versions and shape; `None` for a comment. A test sees to it that every other line is
/// understood.
fn line(line: &'static str) -> Option<(u128, &'static str, &'static str, Shape)> {
    let mut columns = line.split('\t');
    let (id, _kind, name) = (columns.next()?, columns.next()?, columns.next()?);
    let (versions, types, fields) = (columns.next()?, columns.next()?, columns.next()?);
    let digits: String = id.chars().filter(|digit| *digit != '-').collect();
    let id = u128::from_str_radix(&digits, 16).ok()?;
    let fields = fields.split(' ').filter(|field| *field != NONE).map(field).collect::<Option<_>>()?;
    Some((id, name, versions, Shape { types, each_type: types.split('|').collect(), fields }))
}

fn field(text: &'static str) -> Option<Field> {
    let (name, part) = text.split_once('=')?;
    let part = match part {
        "." => Part::Whole,
        "@" => Part::Keyed,
        _ => match (part.strip_suffix('"'), part.split_once('?')) {
            (Some(member), _) => Part::Unquoted(member.parse().ok()?),
            (_, Some((member, condition))) => Part::MemberIf(member.parse().ok()?, condition.parse().ok()?),
            _ => Part::Member(part.parse().ok()?),
        },
    };
    Some(Field { number: 0, name, part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_data_file_is_understood() {
        let lines = include_str!("registry.tsv").lines().filter(|line| !line.starts_with('#'));
        let mut count = 0;
        for text in lines {
            let (_, name, versions, _) = line(text).unwrap_or_else(|| panic!("{text}"));
            assert!(!name.is_empty() && ["2", "3", "2,3"].contains(&versions), "{text}");
            let columns: Vec<_> = text.split('\t').collect();
            assert!(columns.len() == 6 && ["singular", "aggregate", "sequence"].contains(&columns[1]), "{text}");
            count += 1;
        }
        assert_eq!(count, 95);
    }

    #[test]
    fn an_event_is_known_by_its_id_and_its_payload_by_its_type_and_version() {
        let id = 0x0bba3340_52e3_41a2_854f_e6ed36621379u128.to_be_bytes();
        let event = known(&id).unwrap();
        assert_eq!((event.name, event.id.as_str()), ("LinuxPackageOpened", "0bba3340-52e3-41a2-854f-e6ed36621379"));
        assert!(event.shape(true).unwrap().fields(Some("s")).is_some());
        assert!(event.shape(false).unwrap().fields(Some("s")).is_none());
        assert_eq!(event.shape(false).unwrap().fields(Some("as")).unwrap()[0].part, Part::Whole);
        assert!(known(&id[1..]).is_none());
    }

    #[test]
    fn an_event_without_payload_expects_none() {
        let id = 0x5dc0b53c_93f9_4df0_ad6f_bd25e9fe638fu128.to_be_bytes();
        let shape = known(&id).unwrap().shape(false).unwrap();
        assert!(shape.fields(None).is_some());
        assert!(shape.fields(Some("s")).is_none());
        assert_eq!(shape.expected(), "none");
    }
}
