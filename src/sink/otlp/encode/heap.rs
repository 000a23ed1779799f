//! Heap dumps of Ruby processes as profiles: how many objects there are, and how many bytes they take, by class and site.
//!
//! Each object is also a log, which counts. A profile is made of all objects of a dump that arrive before its request ends.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::body::Body;
use super::dictionary::Dictionary;
use super::profiles::{EncodedProfile, EncodedSample, PROFILE_OVERHEAD, REQUEST_OVERHEAD, SAMPLE_OVERHEAD};
use super::request::Groups;
use tributary_codec::protobuf::push_varint;
use tributary_event::{EventView, ValueView, semconv};
use tributary_profile::class_sums::{ClassRow, ClassSums};
use tributary_profile::heap_fields::HeapFields;

/// The profiles of a dump: type and unit.
const OBJECTS: (&str, &str) = ("inuse_objects", "count");
const SPACE: (&str, &str) = ("inuse_space", "bytes");
/// The kind of the frames.
const FRAME_TYPE: &str = "ruby";

/// The dumps of one request, until it is complete.
#[derive(Debug, Default)]
pub(super) struct Heaps {
    dictionary: Dictionary,
    dumps: Vec<DumpProfile>,
    known: HashMap<DumpKey, usize, RandomState>,
    /// Length of the profiles at most.
    len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct DumpKey {
    scope: usize,
    /// The address of the origin, which the groups keep.
    origin: usize,
    dump: Option<u64>,
    time: u64,
}

#[derive(Debug)]
struct DumpProfile {
    scope: usize,
    time: u64,
    /// Of both profiles: the origin and the id of the dump. Indexes, packed.
    attributes: Vec<u8>,
    sums: ClassSums,
    /// Of each row: the index of the attribute of its class, 0 if it is unknown, and of the stack of its site.
    indexes: Vec<(u32, u32)>,
}

impl Heaps {
    /// Whether no object was added.
    pub(super) fn is_empty(&self) -> bool {
        self.dumps.is_empty()
    }

    /// Adds an object, unless `limit` is less than what the request would then have. Returns whether it was added; if not, the
    /// request is to be ended.
    pub(super) fn push(&mut self, scope: usize, event: EventView<'_>, has_origin: bool, limit: usize) -> bool {
        let HeapFields { class, file, line, size, dump: id, .. } = HeapFields::of(event);
        // Without a file, the line says nothing.
        let file = file.filter(|file| !file.is_empty());
        let line = file.and(line).filter(|line| *line > 0);
        let dictionary = &mut self.dictionary;
        let mark = dictionary.mark();
        let time = event.time().unwrap_or(event.observed()).0;
        let origin = std::ptr::from_ref(&**event.origin()).addr();
        let key = DumpKey { scope, origin, dump: id, time };
        let mut new = None;
        let dump = match self.known.get(&key) {
            Some(at) => &mut self.dumps[*at],
            None => new.insert(DumpProfile::new(dictionary, event, key, has_origin)),
        };
        // Of both profiles.
        let mut added = if dump.indexes.is_empty() { 2 * (PROFILE_OVERHEAD + dump.attributes.len()) } else { 0 };
        let row = dump.sums.row(class, file, line);
        let indexes = (row as usize == dump.indexes.len()).then(|| {
            added += 2 * SAMPLE_OVERHEAD;
            (class.map_or(0, |class| class_index(dictionary, class)), stack_index(dictionary, file, line))
        });
        if REQUEST_OVERHEAD + self.len + added + dictionary.len() > limit {
            dictionary.truncate(&mark);
            return false;
        }
        self.len += added;
        dump.indexes.extend(indexes);
        dump.sums.add(row, [1, size.unwrap_or(0), 0]);
        if let Some(new) = new {
            self.known.insert(key, self.dumps.len());
            self.dumps.push(new);
        }
        true
    }

    /// Ends the request.
    pub(super) fn finish(mut self, mut groups: Groups) -> Body {
        for (column, (of, unit)) in [OBJECTS, SPACE].into_iter().enumerate() {
            let types = [of, unit, of, unit].map(|text| self.dictionary.string(text));
            for dump in &self.dumps {
                dump.profile(types, column).push_to(&mut groups, dump.scope);
            }
        }
        let mut body = groups.finish();
        self.dictionary.write(&mut body.bytes);
        body
    }
}

impl DumpProfile {
    fn new(dictionary: &mut Dictionary, event: EventView<'_>, key: DumpKey, has_origin: bool) -> DumpProfile {
        // Texts of the profiles, so that they are part of the length.
        for (of, unit) in [OBJECTS, SPACE] {
            dictionary.string(of);
            dictionary.string(unit);
        }
        let mut attributes = if has_origin { dictionary.origin_attributes(event.origin()) } else { Vec::new() };
        if let Some(id) = key.dump {
            let (index, _) = dictionary.attribute(semconv::RBKIT_DUMP_ID.as_str(), ValueView::U64(id));
            push_varint(&mut attributes, index.into());
        }
        DumpProfile { scope: key.scope, time: key.time, attributes, sums: ClassSums::default(), indexes: Vec::new() }
    }

    /// The profile of one of the sums. A row without indexes was not added.
    fn profile(&self, types: [u32; 4], column: usize) -> EncodedProfile {
        let sample = |(row, (class, stack)): (ClassRow<'_>, &(u32, u32))| {
            let (mut attributes, mut values) = (Vec::new(), Vec::new());
            if *class > 0 {
                push_varint(&mut attributes, u64::from(*class));
            }
            push_varint(&mut values, row.sums[column].min(i64::MAX as u64));
            EncodedSample { stack: *stack, attributes, values, ..EncodedSample::default() }
        };
        let samples = self.sums.rows().zip(&self.indexes).map(sample).collect();
        EncodedProfile { types, period: 1, attributes: self.attributes.clone(), times: (self.time, self.time), samples }
    }
}

/// The attribute of a class.
fn class_index(dictionary: &mut Dictionary, class: &str) -> u32 {
    dictionary.text_attribute(semconv::RBKIT_CLASS_NAME, class)
}

/// The stack of a site: its only frame, or none.
fn stack_index(dictionary: &mut Dictionary, file: Option<&str>, line: Option<u64>) -> u32 {
    let location = file.map(|file| {
        let name = line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"));
        dictionary.location(&name, file, line.unwrap_or(0), FRAME_TYPE)
    });
    dictionary.stack(location)
}
