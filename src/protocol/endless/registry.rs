//! The registry of events: their names, and the names of their payloads' parts. The data file is compiled in.

use std::sync::{Arc, LazyLock};

use hashbrown::HashMap;

use super::dedup::BuildIdentityHasher;
use tributary_event::write_hex;

/// A registered event.
#[derive(Debug)]
pub(super) struct RegisteredEvent {
    /// Its index in the registry, from 0.
    pub(super) number: usize,
    /// Its id as shown in events: a UUID.
    pub(super) id: String,
    /// Its name in Endless OS.
    pub(super) name: &'static str,
    /// Its payload where the protocol has users (versions 0 to 2).
    with_users: Option<Arc<Shape>>,
    /// Its payload where the protocol has no users (version 3).
    without_users: Option<Arc<Shape>>,
}

/// The payload of an event in some versions of the protocol.
#[derive(Debug)]
pub(super) struct Shape {
    /// The payload types, separated by `|`; `-`: no payload; `?`: unknown.
    types: &'static str,
    /// The same types one by one.
    each_type: Vec<&'static str>,
    fields: Vec<Field>,
}

/// One named part of a payload.
#[derive(Debug)]
pub(super) struct Field {
    /// Its index among the fields of all events, from 0.
    pub number: usize,
    pub(super) name: &'static str,
    pub(super) part: PayloadPart,
}

/// The part of a payload that a field names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PayloadPart {
    /// The whole payload.
    Whole,
    /// A member of a tuple.
    Member(usize),
    /// A member of a tuple, if another member is true.
    MemberIf(usize, usize),
    /// A member of a tuple, a text, without quotation marks around it.
    Unquoted(usize),
    /// The value in a dict whose key equals the field's name, ignoring case and underscores.
    Keyed,
    /// A member of the tuple under this key in a dict.
    MemberOf(&'static str, usize),
}

/// The registered event with this id.
pub(super) fn known(id: &[u8]) -> Option<&'static RegisteredEvent> {
    REGISTRY.get(&u128::from_be_bytes(id.try_into().ok()?))
}

impl RegisteredEvent {
    /// Its payload where the protocol has users (versions 0 to 2), or where it has none.
    pub(super) fn shape(&self, has_users: bool) -> Option<&Shape> {
        let shape = if has_users { &self.with_users } else { &self.without_users };
        shape.as_deref()
    }
}

impl Shape {
    /// The fields of a payload of this type (`None`: no payload). `None`: the registry expects another type.
    pub(super) fn fields(&self, payload_type: Option<&str>) -> Option<&[Field]> {
        let found = payload_type.unwrap_or(NONE);
        let is_expected = self.each_type.contains(&found) || self.types == UNKNOWN;
        is_expected.then_some(&self.fields)
    }

    /// The expected types, as text.
    pub(super) fn expected(&self) -> &'static str {
        if self.types == NONE { "none" } else { self.types }
    }
}

/// The text form of a UUID.
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

/// By event id. Ids are random already and are not hashed.
static REGISTRY: LazyLock<HashMap<u128, RegisteredEvent, BuildIdentityHasher>> = LazyLock::new(|| {
    let mut registry: HashMap<u128, RegisteredEvent, BuildIdentityHasher> = HashMap::default();
    let mut fields = 0;
    for (id, name, versions, mut shape) in include_str!("registry.tsv").lines().filter_map(line) {
        for field in &mut shape.fields {
            field.number = fields;
            fields += 1;
        }
        let (number, shape) = (registry.len(), Arc::new(shape));
        let known =
            || RegisteredEvent { number, id: uuid(&id.to_be_bytes()), name, with_users: None, without_users: None };
        let known = registry.entry(id).or_insert_with(known);
        for version in versions.split(',') {
            let place = if version == "2" { &mut known.with_users } else { &mut known.without_users };
            place.get_or_insert_with(|| shape.clone());
        }
    }
    registry
});

/// One line of the data file: id, name, versions and shape; `None` for a comment. A test checks that all other lines are
/// valid.
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
        "." => PayloadPart::Whole,
        "@" => PayloadPart::Keyed,
        _ => match (part.strip_suffix('"'), part.split_once('?'), part.split_once('@')) {
            (Some(member), ..) => PayloadPart::Unquoted(member.parse().ok()?),
            (_, Some((member, condition)), _) => PayloadPart::MemberIf(member.parse().ok()?, condition.parse().ok()?),
            (.., Some((key, member))) => PayloadPart::MemberOf(key, member.parse().ok()?),
            _ => PayloadPart::Member(part.parse().ok()?),
        },
    };
    Some(Field { number: 0, name, part })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_data_file_is_valid() {
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
    fn an_event_is_found_by_its_id_and_its_fields_by_payload_type_and_version() {
        let id = 0x0bba3340_52e3_41a2_854f_e6ed36621379u128.to_be_bytes();
        let event = known(&id).unwrap();
        assert_eq!((event.name, event.id.as_str()), ("LinuxPackageOpened", "0bba3340-52e3-41a2-854f-e6ed36621379"));
        assert!(event.shape(true).unwrap().fields(Some("s")).is_some());
        assert!(event.shape(false).unwrap().fields(Some("s")).is_none());
        assert_eq!(event.shape(false).unwrap().fields(Some("as")).unwrap()[0].part, PayloadPart::Whole);
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
