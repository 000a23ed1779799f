//! Profiles of pprof (`perftools.profiles.Profile`, `profile.proto`): tables of places in the message, no tree.
//!
//! Strings, functions and locations may stand behind the samples that refer to them. So the message is read once for its tables,
//! then the samples are checked, and after that each sample is read again when it is needed.

use super::protobuf::{Field, ProtobufFields, ProtobufValue, read_varint};
use super::reader::{DecodeError, DecodeErrorKind};

/// The most fields that a step reads, and the most bytes of samples that it checks.
const STEP_FIELDS: usize = 8 * 1024;
const STEP_BYTES: usize = 256 * 1024;

/// Reads the tables of a message and checks its samples, in steps.
#[derive(Debug)]
pub struct PprofReader {
    pprof: Pprof,
    phase: ReaderPhase,
}

#[derive(Clone, Copy, Debug)]
enum ReaderPhase {
    /// The next field begins here.
    Fields(usize),
    Tables,
    /// The next sample that is checked.
    Samples(usize),
}

/// A profile that was checked.
#[derive(Debug, Default)]
pub struct Pprof {
    message: Vec<u8>,
    strings: Vec<MessageRange>,
    functions: Vec<(u64, Function)>,
    mappings: Vec<(u64, u32)>,
    locations: Vec<(u64, Location)>,
    lines: Vec<Line>,
    samples: Vec<MessageRange>,
    /// The most entries of a table; the most locations, values and labels of a sample.
    max_entries: usize,
    max_entries_key: &'static str,
    /// Strings: type and unit of each value of a sample.
    pub sample_types: Vec<(u32, u32)>,
    /// Strings: type and unit of the period.
    pub period_type: (u32, u32),
    /// Events between two samples, in the unit of the period.
    pub period: i64,
    /// The start of the profile in nanoseconds since the epoch; 0: unknown.
    pub time_nanos: i64,
    /// How long it took; 0: unknown.
    pub duration_nanos: i64,
}

#[derive(Clone, Copy, Debug, Default)]
struct MessageRange {
    start: u32,
    end: u32,
}

/// A function: strings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: u32,
    /// Its file.
    pub file: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Location {
    mapping: u64,
    address: u64,
    lines: MessageRange,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    function: u64,
    line: i64,
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug)]
pub enum PprofFrame {
    /// A line of a function; 0: unknown.
    Line(Function, i64),
    /// An address in a file, a string.
    Address(u64, u32),
}

/// A label of a sample: strings and a number.
#[derive(Clone, Copy, Debug, Default)]
pub struct PprofLabel {
    /// Its key.
    pub key: u32,
    /// Its text; 0: it has a number.
    pub text: u32,
    /// Its number.
    pub number: i64,
}

/// A sample as it stands in the message.
#[derive(Clone, Debug, Default)]
pub struct PprofSample {
    /// Its locations, innermost first.
    pub locations: Vec<u64>,
    /// A value for each type, of 64 bits with a sign.
    pub values: Vec<u64>,
    /// Its labels.
    pub labels: Vec<PprofLabel>,
}

impl PprofReader {
    /// Reads a message whose tables have at most `max_entries` each, a limit with this configuration key.
    pub fn new(message: Vec<u8>, max_entries: usize, key: &'static str) -> PprofReader {
        let pprof = Pprof { message, max_entries, max_entries_key: key, ..Pprof::default() };
        PprofReader { pprof, phase: ReaderPhase::Fields(0) }
    }

    /// Memory of the message and of its tables.
    pub fn memory_bytes(&self) -> usize {
        self.pprof.memory_bytes()
    }

    /// Does a bounded part of the work; `true`: all was read, [`PprofReader::finish`] has it.
    ///
    /// # Errors
    /// Where the message is none of a profile, or names an entry that no table has.
    pub fn step(&mut self) -> Result<bool, DecodeError> {
        match self.phase {
            ReaderPhase::Fields(at) => {
                let at = self.fields(at)?;
                let is_over = at == self.pprof.message.len();
                self.phase = if is_over { ReaderPhase::Tables } else { ReaderPhase::Fields(at) };
            }
            ReaderPhase::Tables => {
                self.pprof.check_tables()?;
                self.phase = ReaderPhase::Samples(0);
            }
            ReaderPhase::Samples(next) => {
                let (mut next, mut bytes, mut sample) = (next, 0, PprofSample::default());
                while bytes < STEP_BYTES
                    && let Some(place) = self.pprof.samples.get(next)
                {
                    self.pprof.check_sample(*place, &mut sample)?;
                    bytes += (place.end - place.start) as usize;
                    next += 1;
                }
                self.phase = ReaderPhase::Samples(next);
                return Ok(next == self.pprof.samples.len());
            }
        }
        Ok(false)
    }

    /// The profile, after the last step.
    pub fn finish(self) -> Pprof {
        self.pprof
    }

    /// Reads fields from `at` on; returns where the next one begins.
    fn fields(&mut self, at: usize) -> Result<usize, DecodeError> {
        let message = std::mem::take(&mut self.pprof.message);
        let mut end = at;
        let mut fields = ProtobufFields::of(&message[at..]);
        for _ in 0..STEP_FIELDS {
            let Some(field) = fields.next() else { break };
            let start = end;
            end = message.len() - fields.rest().len();
            self.field(field, start, end)?;
        }
        let is_over = end == message.len();
        let is_stuck = !is_over && fields.next().is_none();
        self.pprof.message = message;
        if is_stuck { Err(wrong("profile", end, "a field of a message")) } else { Ok(end) }
    }

    fn field(&mut self, field: Field<'_>, start: usize, end: usize) -> Result<(), DecodeError> {
        let (limit, key) = (self.pprof.max_entries, self.pprof.max_entries_key);
        let Pprof { strings, functions, mappings, locations, lines, samples, .. } = &mut self.pprof;
        let within = |field, count: usize| {
            let kind = DecodeErrorKind::TooLarge { found: count as u64, limit: limit as u64, key };
            if count > limit { Err(DecodeError { field, offset: start, kind }) } else { Ok(()) }
        };
        match (field.number, field.value) {
            (1, ProtobufValue::Bytes(bytes)) => {
                let [of, unit] = numbers(bytes, "value_type", end, [1, 2])?;
                self.pprof.sample_types.push((index(of), index(unit)));
                within("profile.sample_type", self.pprof.sample_types.len())?;
            }
            (2, ProtobufValue::Bytes(bytes)) => {
                samples.push(MessageRange::ending_at(end, bytes));
                within("profile.sample", samples.len())?;
            }
            (3, ProtobufValue::Bytes(bytes)) => {
                let [id, file] = numbers(bytes, "mapping", end, [1, 5])?;
                mappings.push((id, index(file)));
                within("profile.mapping", mappings.len())?;
            }
            (4, ProtobufValue::Bytes(bytes)) => {
                let first = lines.len();
                let [id, mapping, address] = numbers(bytes, "location", end, [1, 2, 3])?;
                for field in ProtobufFields::of(bytes) {
                    if let (4, ProtobufValue::Bytes(bytes)) = (field.number, field.value) {
                        within("location.line", lines.len() + 1)?;
                        let [function, line] = numbers(bytes, "line", end, [1, 2])?;
                        lines.push(Line { function, line: line as i64 });
                    }
                }
                let of_location = MessageRange { start: first as u32, end: lines.len() as u32 };
                locations.push((id, Location { mapping, address, lines: of_location }));
                within("profile.location", locations.len())?;
            }
            (5, ProtobufValue::Bytes(bytes)) => {
                let [id, name, file] = numbers(bytes, "function", end, [1, 2, 4])?;
                functions.push((id, Function { name: index(name), file: index(file) }));
                within("profile.function", functions.len())?;
            }
            (6, ProtobufValue::Bytes(bytes)) => {
                strings.push(MessageRange::ending_at(end, bytes));
                within("profile.string_table", strings.len())?;
            }
            (9, ProtobufValue::Varint(time)) => self.pprof.time_nanos = time as i64,
            (10, ProtobufValue::Varint(duration)) => self.pprof.duration_nanos = duration as i64,
            (11, ProtobufValue::Bytes(bytes)) => {
                let [of, unit] = numbers(bytes, "value_type", end, [1, 2])?;
                self.pprof.period_type = (index(of), index(unit));
            }
            (12, ProtobufValue::Varint(period)) => self.pprof.period = period as i64,
            (1..=6 | 9..=12, _) => return Err(wrong("profile", start, "a field of the type that its number has")),
            _ => {}
        }
        Ok(())
    }
}

impl Pprof {
    /// Memory of the message and of its tables.
    pub fn memory_bytes(&self) -> usize {
        let Pprof { message, strings, functions, mappings, locations, lines, samples, .. } = self;
        message.capacity()
            + strings.capacity() * size_of::<MessageRange>()
            + functions.capacity() * size_of::<(u64, Function)>()
            + mappings.capacity() * size_of::<(u64, u32)>()
            + locations.capacity() * size_of::<(u64, Location)>()
            + lines.capacity() * size_of::<Line>()
            + samples.capacity() * size_of::<MessageRange>()
    }

    /// The number of its samples.
    pub fn sample_count(&self) -> usize {
        self.samples.len()
    }

    /// A string; empty: there is none.
    #[inline]
    pub fn string(&self, index: u32) -> &[u8] {
        let place = self.strings.get(index as usize).copied().unwrap_or_default();
        &self.message[place.range()]
    }

    /// The number of strings.
    pub fn string_count(&self) -> usize {
        self.strings.len()
    }

    /// Reads a sample into `into`, whose memory is used again; returns its bytes.
    pub fn sample(&self, index: usize, into: &mut PprofSample) -> &[u8] {
        let place = self.samples.get(index).copied().unwrap_or_default();
        // It was checked.
        let _ = self.read_sample(place, into);
        &self.message[place.range()]
    }

    /// The frames of a location, innermost first.
    pub fn frames(&self, location: u64) -> impl Iterator<Item = PprofFrame> {
        let location = find(&self.locations, location).copied().unwrap_or_default();
        let lines = &self.lines[location.lines.range()];
        let address = lines.is_empty().then(|| {
            let file = find(&self.mappings, location.mapping).copied().unwrap_or_default();
            PprofFrame::Address(location.address, file)
        });
        let of_line = |line: &Line| {
            PprofFrame::Line(find(&self.functions, line.function).copied().unwrap_or_default(), line.line)
        };
        lines.iter().map(of_line).chain(address)
    }

    /// Sorts the tables and follows every reference from one to another.
    fn check_tables(&mut self) -> Result<(), DecodeError> {
        self.functions.sort_by_key(|(id, _)| *id);
        self.mappings.sort_by_key(|(id, _)| *id);
        self.locations.sort_by_key(|(id, _)| *id);
        let strings = self.strings.len() as u32;
        // Index 0 is the empty text, also where the table is missing.
        let is_string = |index: &u32| *index == 0 || *index < strings;
        let types = self.sample_types.iter().chain([&self.period_type]);
        let all = types
            .flat_map(|(of, unit)| [*of, *unit])
            .chain(self.functions.iter().flat_map(|(_, function)| [function.name, function.file]))
            .chain(self.mappings.iter().map(|(_, file)| *file));
        if let Some(index) = all.into_iter().find(|index| !is_string(index)) {
            return Err(missing("string_table", 0, index.into(), "an index of the table"));
        }
        let has_function = |line: &&Line| line.function == 0 || find(&self.functions, line.function).is_some();
        if let Some(line) = self.lines.iter().find(|line| !has_function(line)) {
            return Err(missing("line.function_id", 0, line.function, "the id of a function"));
        }
        let has_mapping = |(_, location): &&(u64, Location)| {
            location.mapping == 0 || find(&self.mappings, location.mapping).is_some()
        };
        match self.locations.iter().find(|location| !has_mapping(location)) {
            Some((_, location)) => Err(missing("location.mapping_id", 0, location.mapping, "the id of a mapping")),
            None => Ok(()),
        }
    }

    fn check_sample(&self, place: MessageRange, sample: &mut PprofSample) -> Result<(), DecodeError> {
        let at = place.start as usize;
        self.read_sample(place, sample)?;
        if let Some(id) = sample.locations.iter().find(|id| find(&self.locations, **id).is_none()) {
            return Err(missing("sample.location_id", at, *id, "the id of a location"));
        }
        if sample.values.len() != self.sample_types.len() {
            return Err(missing("sample.value", at, sample.values.len() as u64, "a value for each type"));
        }
        let strings = self.strings.len() as u32;
        let texts = sample.labels.iter().flat_map(|label| [label.key, label.text]);
        match texts.into_iter().find(|index| *index != 0 && *index >= strings) {
            Some(index) => Err(missing("label", at, index.into(), "an index of the string table")),
            None => Ok(()),
        }
    }

    fn read_sample(&self, place: MessageRange, into: &mut PprofSample) -> Result<(), DecodeError> {
        let end = place.end as usize;
        into.locations.clear();
        into.values.clear();
        into.labels.clear();
        let mut fields = ProtobufFields::of(&self.message[place.range()]);
        let (limit, key) = (self.max_entries, self.max_entries_key);
        for field in fields.by_ref() {
            match (field.number, field.value) {
                (1, value) => repeated(value, end, limit, &mut into.locations)?,
                (2, value) => repeated(value, end, limit, &mut into.values)?,
                (3, ProtobufValue::Bytes(bytes)) => {
                    let [key, text, number] = numbers(bytes, "label", end, [1, 2, 3])?;
                    into.labels.push(PprofLabel { key: index(key), text: index(text), number: number as i64 });
                }
                _ => {}
            }
            let entries = into.locations.len().max(into.values.len()).max(into.labels.len());
            if entries > limit {
                let kind = DecodeErrorKind::TooLarge { found: entries as u64, limit: limit as u64, key };
                return Err(DecodeError { field: "sample", offset: place.start as usize, kind });
            }
        }
        if fields.is_valid() { Ok(()) } else { Err(wrong("sample", place.start as usize, "fields of a message")) }
    }
}

impl MessageRange {
    /// That of `part`, which ends before `end`. Messages are smaller than 4 GiB.
    fn ending_at(end: usize, part: &[u8]) -> MessageRange {
        MessageRange { start: (end - part.len()) as u32, end: end as u32 }
    }

    #[inline]
    fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// The entry with an id, of a table in the order of ids. Ids usually count from 1.
#[inline]
fn find<T>(table: &[(u64, T)], id: u64) -> Option<&T> {
    let expected = usize::try_from(id.wrapping_sub(1)).ok().and_then(|index| table.get(index));
    match expected {
        Some((found, entry)) if *found == id => Some(entry),
        _ => table.binary_search_by_key(&id, |(id, _)| *id).ok().map(|index| &table[index].1),
    }
}

/// The index of a string. None has one beyond 32 bits.
fn index(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The numbers of these fields of a message that ends before `end`; 0 where it has none.
fn numbers<const N: usize>(
    message: &[u8],
    field: &'static str,
    end: usize,
    of: [u64; N],
) -> Result<[u64; N], DecodeError> {
    let mut read = [0; N];
    let mut fields = ProtobufFields::of(message);
    for field in fields.by_ref() {
        if let ProtobufValue::Varint(value) = field.value
            && let Some(place) = of.iter().position(|number| *number == field.number)
        {
            read[place] = value;
        }
    }
    if fields.is_valid() { Ok(read) } else { Err(wrong(field, end - message.len(), "fields of a message")) }
}

/// Adds the numbers of a repeated field, packed or one of them, until `into` has more than `limit`.
fn repeated(value: ProtobufValue<'_>, end: usize, limit: usize, into: &mut Vec<u64>) -> Result<(), DecodeError> {
    match value {
        ProtobufValue::Varint(number) => into.push(number),
        ProtobufValue::Bytes(mut packed) => {
            while !packed.is_empty() && into.len() <= limit {
                let (number, rest) =
                    read_varint(packed).ok_or_else(|| wrong("sample", end - packed.len(), "packed numbers"))?;
                into.push(number);
                packed = rest;
            }
        }
        ProtobufValue::Fixed(_) => return Err(wrong("sample", end, "numbers of variable length")),
    }
    Ok(())
}

fn wrong(field: &'static str, offset: usize, expected: &'static str) -> DecodeError {
    missing(field, offset, 0, expected)
}

fn missing(field: &'static str, offset: usize, found: u64, expected: &'static str) -> DecodeError {
    DecodeError { field, offset, kind: DecodeErrorKind::Invalid { found, expected } }
}
