//! The events that are known: their names, and what their payloads mean. The data file is compiled in.

use std::sync::LazyLock;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

/// A known event.
#[derive(Debug)]
pub(super) struct Known {
    /// Counts known events from 0.
    pub(super) number: usize,
    /// Its id as events show it.
    pub(super) id: String,
    /// What Endless OS calls it.
    pub(super) name: &'static str,
    shapes: Vec<Shape>,
}

/// What an event looks like in some versions of the protocol.
#[derive(Debug)]
pub(super) struct Shape {
    versions: &'static str,
    /// The payload types, separated by `|`; `-` for none.
    types: &'static str,
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
    REGISTRY.get(<&[u8; 16]>::try_from(id).ok()?)
}

impl Known {
    /// What it looks like where the protocol has users (versions 0 to 2), or where it has none.
    pub(super) fn shape(&self, has_users: bool) -> Option<&Shape> {
        let version = if has_users { "2" } else { "3" };
        self.shapes.iter().find(|shape| shape.versions.split(',').any(|one| one == version))
    }
}

impl Shape {
    /// The fields of a payload of this type; `None` where it should be of another, or not there at all.
    pub(super) fn fields(&self, payload_type: Option<&str>) -> Option<&[Field]> {
        let expected = payload_type.unwrap_or(NONE);
        let is_expected = self.types == UNKNOWN || self.types.split('|').any(|one| one == expected);
        is_expected.then_some(&self.fields)
    }

    /// The types that would be right, as text.
    pub(super) fn expected(&self) -> &'static str {
        if self.types == NONE { "none" } else { self.types }
    }
}

/// A UUID in its usual form.
pub(super) fn uuid(id: &[u8; 16]) -> String {
    let id = u128::from_be_bytes(*id);
    let part = |bits: u32, shift: u32| (id >> shift) & ((1 << bits) - 1);
    format!("{:08x}-{:04x}-{:04x}-{:04x}-{:012x}", part(32, 96), part(16, 80), part(16, 64), part(16, 48), part(48, 0))
}

const NONE: &str = "-";
const UNKNOWN: &str = "?";

static REGISTRY: LazyLock<HashMap<[u8; 16], Known, RandomState>> = LazyLock::new(|| {
    let mut registry: HashMap<[u8; 16], Known, RandomState> = HashMap::default();
    let mut fields = 0;
    for (id, name, mut shape) in include_str!("registry.tsv").lines().filter_map(line) {
        for field in &mut shape.fields {
            field.number = fields;
            fields += 1;
        }
        let number = registry.len();
        let known = || Known { number, id: uuid(&id), name, shapes: Vec::new() };
        registry.entry(id).or_insert_with(known).shapes.push(shape);
    }
    registry
});

/// One line of the data file; `None` for a comment. A test sees to it that every other line is understood.
fn line(line: &'static str) -> Option<([u8; 16], &'static str, Shape)> {
    let mut columns = line.split('\t');
    let (id, _kind, name) = (columns.next()?, columns.next()?, columns.next()?);
    let (versions, types, fields) = (columns.next()?, columns.next()?, columns.next()?);
    let digits: String = id.chars().filter(|digit| *digit != '-').collect();
    let id = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
    let fields = fields.split(' ').filter(|field| *field != NONE).map(field).collect::<Option<_>>()?;
    Some((id, name, Shape { versions, types, fields }))
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
            let (_, name, shape) = line(text).unwrap_or_else(|| panic!("{text}"));
            assert!(!name.is_empty() && ["2", "3", "2,3"].contains(&shape.versions), "{text}");
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
