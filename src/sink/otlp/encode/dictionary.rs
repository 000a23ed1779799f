//! The dictionary of a request with profiles: texts, functions, locations, stacks and attributes, each once.
//! `ProfilesDictionary` of `opentelemetry/proto/profiles/v1development/profiles.proto`.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::scopes;
use super::value::{key_of, push_body};
use tributary_codec::protobuf::{push_bytes_field, push_message, push_varint, push_varint_field};
use tributary_event::{EventView, Name, Origin, ValueView, semconv};

/// Field of a request.
const DICTIONARY: u8 = 2;
// Fields of the entries.
const LOCATION_LINES: u8 = 3;
const LOCATION_ATTRIBUTES: u8 = 4;
const LINE_FUNCTION: u8 = 1;
const LINE_LINE: u8 = 2;
const FUNCTION_NAME: u8 = 1;
const FUNCTION_FILE: u8 = 3;
const ATTRIBUTE_KEY: u8 = 1;
const ATTRIBUTE_VALUE: u8 = 2;
const STACK_LOCATIONS: u8 = 1;

/// The dictionary, until its request is complete.
#[derive(Debug)]
pub(super) struct Dictionary {
    strings: DictionaryTable,
    functions: DictionaryTable,
    locations: DictionaryTable,
    stacks: DictionaryTable,
    attributes: DictionaryTable,
    links: DictionaryTable,
}

/// Entries of a dictionary, each once.
#[derive(Debug)]
struct DictionaryTable {
    /// Its field in the dictionary.
    field: u8,
    encoded: Vec<u8>,
    indexes: HashMap<Box<[u8]>, u32, RandomState>,
}

/// What the tables have before an event is added.
pub(super) struct Mark([(usize, usize); 6]);

impl DictionaryTable {
    /// A table whose first entry is this one, which stands for none.
    fn new(field: u8, first: &[u8]) -> DictionaryTable {
        let mut table = DictionaryTable { field, encoded: Vec::new(), indexes: HashMap::default() };
        table.index_of(first);
        table
    }

    fn index_of(&mut self, entry: &[u8]) -> u32 {
        if let Some(known) = self.indexes.get(entry) {
            return *known;
        }
        let index = self.indexes.len() as u32;
        push_bytes_field(&mut self.encoded, self.field, entry);
        self.indexes.insert(entry.into(), index);
        index
    }

    fn mark(&self) -> (usize, usize) {
        (self.encoded.len(), self.indexes.len())
    }

    /// Removes the entries after a mark.
    fn truncate(&mut self, (len, count): (usize, usize)) {
        if self.indexes.len() > count {
            self.encoded.truncate(len);
            self.indexes.retain(|_, index| (*index as usize) < count);
        }
    }
}

impl Default for Dictionary {
    fn default() -> Dictionary {
        Dictionary {
            strings: DictionaryTable::new(5, &[]),
            functions: DictionaryTable::new(3, &[]),
            locations: DictionaryTable::new(2, &[]),
            stacks: DictionaryTable::new(7, &[]),
            attributes: DictionaryTable::new(6, &[]),
            links: DictionaryTable::new(4, &encode_link(&[0; 16], &[0; 8])),
        }
    }
}

impl Dictionary {
    /// Length in bytes, without its tag.
    pub(super) fn len(&self) -> usize {
        self.tables().iter().map(|table| table.encoded.len()).sum()
    }

    fn tables(&self) -> [&DictionaryTable; 6] {
        [&self.links, &self.strings, &self.functions, &self.locations, &self.stacks, &self.attributes]
    }

    /// What it has now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.tables().map(DictionaryTable::mark))
    }

    /// Removes what was added since.
    pub(super) fn truncate(&mut self, Mark(marks): &Mark) {
        let Dictionary { links, strings, functions, locations, stacks, attributes } = self;
        let tables = [links, strings, functions, locations, stacks, attributes];
        tables.into_iter().zip(marks).for_each(|(table, mark)| table.truncate(*mark));
    }

    /// The index of a text.
    pub(super) fn string(&mut self, text: &str) -> u32 {
        self.strings.index_of(text.as_bytes())
    }

    /// The index of a stack of these locations, leaf first.
    pub(super) fn stack(&mut self, locations: impl IntoIterator<Item = u32>) -> u32 {
        let mut indexes = Vec::new();
        locations.into_iter().for_each(|location| push_varint(&mut indexes, location.into()));
        let mut stack = Vec::new();
        if !indexes.is_empty() {
            push_bytes_field(&mut stack, STACK_LOCATIONS, &indexes);
        }
        self.stacks.index_of(&stack)
    }

    /// The index of a line of a function; empty texts and line 0 are unknown.
    pub(super) fn location(&mut self, name: &str, file: &str, line: u64, frame_type: &str) -> u32 {
        let mut function = Vec::new();
        for (field, text) in [(FUNCTION_NAME, name), (FUNCTION_FILE, file)] {
            if !text.is_empty() {
                push_varint_field(&mut function, field, self.string(text).into());
            }
        }
        let function = self.functions.index_of(&function);
        let frame_type = self.text_attribute(semconv::PROFILE_FRAME_TYPE, frame_type);
        let mut location = Vec::new();
        push_message(&mut location, LOCATION_LINES, 1, |out| {
            push_varint_field(out, LINE_FUNCTION, function.into());
            // The format has signed lines.
            if let Some(line) = i64::try_from(line).ok().filter(|line| *line > 0) {
                push_varint_field(out, LINE_LINE, line as u64);
            }
        });
        let mut attributes = Vec::new();
        push_varint(&mut attributes, frame_type.into());
        push_bytes_field(&mut location, LOCATION_ATTRIBUTES, &attributes);
        self.locations.index_of(&location)
    }

    /// The index of an attribute.
    pub(super) fn text_attribute(&mut self, name: Name, text: &str) -> u32 {
        const STRING: u8 = 1;
        let mut value = Vec::new();
        push_bytes_field(&mut value, STRING, text.as_bytes());
        let mut entry = Vec::new();
        push_varint_field(&mut entry, ATTRIBUTE_KEY, self.strings.index_of(name.as_str().as_bytes()).into());
        push_bytes_field(&mut entry, ATTRIBUTE_VALUE, &value);
        self.attributes.index_of(&entry)
    }

    /// The index of an attribute, and whether its value is JSON text.
    pub(super) fn attribute(&mut self, key: &str, value: ValueView<'_>) -> (u32, bool) {
        let mut entry = Vec::new();
        push_varint_field(&mut entry, ATTRIBUTE_KEY, self.strings.index_of(key.as_bytes()).into());
        let is_nested = push_body(&mut entry, ATTRIBUTE_VALUE, value);
        (self.attributes.index_of(&entry), is_nested)
    }

    /// The index of the span of a sample.
    pub(super) fn link(&mut self, trace_id: &[u8; 16], span_id: &[u8; 8]) -> u32 {
        self.links.index_of(&encode_link(trace_id, span_id))
    }

    /// The indexes of the attributes of an event, packed; without those that `is_taken` takes.
    pub(super) fn event_attributes(&mut self, event: EventView<'_>, is_taken: impl Fn(&str) -> bool) -> Vec<u8> {
        let mut indexes = Vec::new();
        let mut is_nested = false;
        let has_scope = scopes::is_record(event);
        for (key, value) in event.attributes() {
            if has_scope && key.text().starts_with(semconv::OTLP_SCOPE.as_str()) {
                continue;
            }
            if key.is_empty() || matches!(value, ValueView::Null) || is_taken(key.text()) {
                continue;
            }
            let has_key = |key: &str| event.attributes().any(|(other, _)| other.text() == key);
            let (index, is_deep) = self.attribute(key_of(key.text(), value, has_key), value);
            is_nested |= is_deep;
            push_varint(&mut indexes, index.into());
        }
        if is_nested && !event.attributes().any(|(key, _)| key.text() == semconv::TEXT_NESTED.as_str()) {
            let (index, _) = self.attribute(semconv::TEXT_NESTED.as_str(), ValueView::Bool(true));
            push_varint(&mut indexes, index.into());
        }
        indexes
    }

    /// The indexes of the attributes of an origin, packed.
    pub(super) fn origin_attributes(&mut self, origin: &Origin) -> Vec<u8> {
        let (address, port) = origin.peer_address();
        let listener = self.text_attribute(semconv::ORIGIN_LISTENER, &origin.listener);
        let address = Some(address).filter(|address| !address.is_empty());
        let address = address.map(|address| self.text_attribute(semconv::NETWORK_PEER_ADDRESS, address));
        let port = port.map(|port| (semconv::NETWORK_PEER_PORT, u64::from(port)));
        let numbers = port.into_iter().chain([(semconv::ORIGIN_CONNECTION, origin.connection)]);
        let numbers: Vec<u32> =
            numbers.map(|(name, number)| self.attribute(name.as_str(), ValueView::U64(number)).0).collect();
        let mut packed = Vec::new();
        let all = [listener].into_iter().chain(address).chain(numbers);
        all.for_each(|index| push_varint(&mut packed, index.into()));
        packed
    }

    /// Appends it as a field of a request.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        push_message(out, DICTIONARY, 3, |out| {
            // There are no mappings but the empty entry.
            const MAPPINGS: u8 = 1;
            push_bytes_field(out, MAPPINGS, &[]);
            self.tables().iter().for_each(|table| out.extend_from_slice(&table.encoded));
        });
    }
}

fn encode_link(trace_id: &[u8; 16], span_id: &[u8; 8]) -> Vec<u8> {
    let mut link = Vec::new();
    push_bytes_field(&mut link, 1, trace_id);
    push_bytes_field(&mut link, 2, span_id);
    link
}
