//! The dictionary of a request with profiles: `ProfilesDictionary` of `profiles.proto`. Its tables are read once: samples refer to
//! their entries again and again.

use std::ops::Range;

use bytes::Bytes;

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, Varints, bytes_of, varint_of};
use tributary_codec::reader::{DecodeError, DecodeErrorKind};
use tributary_codec::text::cut_bytes;

use super::record_places::{MessagePlace, next_message};
use super::schema::DictionaryTable;

/// The field of a request.
const DICTIONARY: u64 = 2;
/// The longest key of an attribute.
const MAX_KEY_BYTES: usize = 1024;

/// The number of entries of each table.
#[derive(Debug, Default)]
pub(super) struct TableSizes([usize; 7]);

impl TableSizes {
    /// Counts the entries of a request.
    ///
    /// # Errors
    /// A table has more than `max_entries`.
    pub(super) fn count(body: &[u8], max_entries: usize) -> Result<TableSizes, DecodeError> {
        let mut sizes = TableSizes::default();
        for entry in entries(body) {
            let size = &mut sizes.0[entry.table as usize - 1];
            *size += 1;
            check_size(*size, max_entries, entry.place.start)?;
        }
        Ok(sizes)
    }

    /// Of one table.
    pub(super) fn of(&self, table: DictionaryTable) -> usize {
        self.0[table as usize - 1]
    }
}

/// The tables of a request that was checked. An index that is beyond its table is that of an empty entry.
#[derive(Debug, Default)]
pub(super) struct ProfileDictionary {
    /// The texts of files.
    mappings: Vec<u32>,
    locations: Vec<Location>,
    /// The lines of all locations.
    lines: Vec<Line>,
    functions: Vec<Function>,
    links: Vec<TableRange>,
    strings: Vec<TableRange>,
    attributes: Vec<TableRange>,
    stacks: Vec<TableRange>,
    /// The locations of all stacks.
    stack_locations: Vec<u32>,
}

/// A range of bytes, or of elements of another table; bodies are shorter than 4 GiB.
type TableRange = Range<u32>;

#[derive(Clone, Debug, Default)]
struct Location {
    lines: TableRange,
    address: u64,
    mapping: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    function: u32,
    line: i64,
}

/// The texts of a function; 0: none.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    name: u32,
    file: u32,
}

/// A frame of a stack: texts by their indexes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WireFrame {
    Line {
        name: u32,
        file: u32,
        line: i64,
    },
    /// It has no lines.
    Address {
        address: u64,
        file: u32,
    },
}

/// An entry of a table, and where it stands in the body.
struct Entry {
    table: DictionaryTable,
    place: MessagePlace,
}

/// The entries of all tables in their order.
fn entries(body: &[u8]) -> impl Iterator<Item = Entry> {
    let (mut request, mut dictionary) = (0..body.len(), 0..0);
    std::iter::from_fn(move || {
        loop {
            let end = dictionary.end;
            let mut fields = ProtobufFields::of(&body[dictionary.clone()]);
            let Some(field) = fields.next() else {
                dictionary = next_message(body, &mut request, DICTIONARY)?;
                continue;
            };
            dictionary.start = end - fields.rest().len();
            let (Some(table), ProtobufValue::Bytes(bytes)) = (table_of(field.number), field.value) else { continue };
            return Some(Entry { table, place: dictionary.start - bytes.len()..dictionary.start });
        }
    })
}

fn table_of(number: u64) -> Option<DictionaryTable> {
    use DictionaryTable::{Attributes, Functions, Links, Locations, Mappings, Stacks, Strings};
    let all = [Mappings, Locations, Functions, Links, Strings, Attributes, Stacks];
    all.into_iter().find(|table| *table as u64 == number)
}

fn check_size(size: usize, max_entries: usize, offset: usize) -> Result<(), DecodeError> {
    if size <= max_entries {
        return Ok(());
    }
    let kind = DecodeErrorKind::TooLarge { found: size as u64, limit: max_entries as u64, key: "max_profile_entries" };
    Err(DecodeError { field: "dictionary", offset, kind })
}

impl ProfileDictionary {
    /// Reads the tables.
    ///
    /// # Errors
    /// All locations have more than `max_entries` lines, or all stacks more locations.
    pub(super) fn read(body: &[u8], max_entries: usize) -> Result<ProfileDictionary, DecodeError> {
        let mut dictionary = ProfileDictionary::default();
        for Entry { table, place } in entries(body) {
            let (message, offset) = (&body[place.clone()], place.start);
            let place = place.start as u32..place.end as u32;
            match table {
                DictionaryTable::Mappings => dictionary.mappings.push(varint_of(message, 4) as u32),
                DictionaryTable::Locations => {
                    let location = dictionary.read_location(message);
                    dictionary.locations.push(location);
                    check_size(dictionary.lines.len(), max_entries, offset)?;
                }
                DictionaryTable::Functions => dictionary.functions.push(Function::read(message)),
                DictionaryTable::Links => dictionary.links.push(place),
                DictionaryTable::Strings => dictionary.strings.push(place),
                DictionaryTable::Attributes => dictionary.attributes.push(place),
                DictionaryTable::Stacks => {
                    let start = dictionary.stack_locations.len() as u32;
                    dictionary.stack_locations.extend(numbers(message, 1).map(|index| index as u32));
                    dictionary.stacks.push(start..dictionary.stack_locations.len() as u32);
                    check_size(dictionary.stack_locations.len(), max_entries, offset)?;
                }
            }
        }
        Ok(dictionary)
    }

    fn read_location(&mut self, message: &[u8]) -> Location {
        let start = self.lines.len() as u32;
        let mut location = Location::default();
        for field in ProtobufFields::of(message) {
            match (field.number, field.value) {
                (1, ProtobufValue::Varint(mapping)) => location.mapping = mapping as u32,
                (2, ProtobufValue::Varint(address)) => location.address = address,
                (3, ProtobufValue::Bytes(line)) => {
                    self.lines.push(Line { function: varint_of(line, 1) as u32, line: varint_of(line, 2) as i64 });
                }
                _ => {}
            }
        }
        location.lines = start..self.lines.len() as u32;
        location
    }

    /// Memory of the tables.
    pub(super) fn memory_bytes(&self) -> usize {
        let places = [&self.links, &self.strings, &self.attributes, &self.stacks].map(Vec::capacity);
        places.iter().sum::<usize>() * size_of::<TableRange>()
            + (self.mappings.capacity() + self.stack_locations.capacity()) * size_of::<u32>()
            + self.locations.capacity() * size_of::<Location>()
            + self.lines.capacity() * size_of::<Line>()
            + self.functions.capacity() * size_of::<Function>()
    }

    /// The number of texts.
    pub(super) fn string_count(&self) -> usize {
        self.strings.len()
    }

    /// The texts of a request.
    pub(super) fn strings<'a>(&'a self, body: &'a Bytes) -> Strings<'a> {
        Strings { body, places: &self.strings }
    }

    /// The message `KeyValueAndUnit` of an attribute: the text of its key, and its value.
    pub(super) fn attribute<'a>(&'a self, body: &'a Bytes, index: u32) -> (&'a [u8], &'a [u8]) {
        let entry = entry(body, &self.attributes, index);
        (self.strings(body).key(varint_of(entry, 1)), bytes_of(entry, 2))
    }

    /// The ids of the trace and of the span of a link.
    pub(super) fn link<'a>(&self, body: &'a Bytes, index: u32) -> (&'a [u8], &'a [u8]) {
        let entry = entry(body, &self.links, index);
        (bytes_of(entry, 1), bytes_of(entry, 2))
    }

    /// The frames of a stack, the innermost first.
    pub(super) fn frames(&self, stack: u32) -> impl Iterator<Item = WireFrame> {
        let locations = self.stacks.get(stack as usize).cloned().unwrap_or_default();
        let locations = &self.stack_locations[locations.start as usize..locations.end as usize];
        locations.iter().flat_map(|location| {
            let Location { lines, address, mapping } =
                self.locations.get(*location as usize).cloned().unwrap_or_default();
            let lines = &self.lines[lines.start as usize..lines.end as usize];
            let file = self.mappings.get(mapping as usize).copied().unwrap_or_default();
            let alone = lines.is_empty().then_some(WireFrame::Address { address, file });
            let of_line = |Line { function, line }: &Line| {
                let Function { name, file } = self.functions.get(*function as usize).copied().unwrap_or_default();
                WireFrame::Line { name, file, line: *line }
            };
            lines.iter().map(of_line).chain(alone)
        })
    }
}

impl Function {
    fn read(message: &[u8]) -> Function {
        // Without a name, that of the system counts.
        let name = [1, 2].map(|number| varint_of(message, number)).into_iter().find(|name| *name > 0).unwrap_or(0);
        Function { name: name as u32, file: varint_of(message, 3) as u32 }
    }
}

/// The texts of the dictionary of a request; other requests than of profiles have none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strings<'a> {
    body: &'a [u8],
    places: &'a [TableRange],
}

impl<'a> Strings<'a> {
    /// One text; empty beyond the table.
    pub(super) fn get(self, index: u64) -> &'a [u8] {
        entry(self.body, self.places, u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// A text that is a key, cut: the same one may stand at many places.
    pub(super) fn key(self, index: u64) -> &'a [u8] {
        cut_bytes(self.get(index), MAX_KEY_BYTES)
    }
}

fn entry<'a>(body: &'a [u8], places: &[TableRange], index: u32) -> &'a [u8] {
    let place = places.get(index as usize).cloned().unwrap_or_default();
    &body[place.start as usize..place.end as usize]
}

/// The varints of a repeated field, packed or not.
pub(super) fn numbers(message: &[u8], number: u64) -> impl Iterator<Item = u64> {
    ProtobufFields::of(message).filter(move |field| field.number == number).flat_map(|field| {
        let (one, packed) = match field.value {
            ProtobufValue::Varint(one) => (Some(one), &[][..]),
            ProtobufValue::Bytes(packed) => (None, packed),
            ProtobufValue::Fixed(_) => (None, &[][..]),
        };
        one.into_iter().chain(Varints::of(packed))
    })
}
