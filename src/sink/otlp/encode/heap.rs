//! Heap dumps of Ruby processes as profiles: how many objects there are, and how many bytes they take, by class and site.
//!
//! Each object is also a log, which counts. A profile is made of all objects of a dump that arrive before its request ends.

use foldhash::quality::RandomState;
use hashbrown::{Equivalent, HashMap};

use super::body::Body;
use super::dictionary::Dictionary;
use super::profiles::{EncodedProfile, EncodedSample, PROFILE_OVERHEAD, REQUEST_OVERHEAD, SAMPLE_OVERHEAD};
use super::request::Groups;
use tributary_codec::protobuf::push_varint;
use tributary_event::{AttributeView, EventView, KeyView, ValueView, semconv};

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
    /// The attributes of classes, and the stacks of sites.
    classes: HashMap<Box<str>, u32, RandomState>,
    sites: HashMap<Site, u32, RandomState>,
    /// Length of the profiles at most.
    len: usize,
}

/// The file and line that created an object; an empty file is unknown.
#[derive(PartialEq, Eq, Hash, Debug)]
struct Site(Box<str>, u64);

/// The same, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SiteRef<'a>(&'a str, u64);

impl Equivalent<Site> for SiteRef<'_> {
    fn equivalent(&self, site: &Site) -> bool {
        (self.0, self.1) == (&*site.0, site.1)
    }
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
    sums: Vec<Sum>,
    /// The sums by class and stack.
    known: HashMap<(u32, u32), usize, RandomState>,
}

/// Objects of one class and site.
#[derive(Debug)]
struct Sum {
    stack: u32,
    /// The index of the attribute; 0: unknown.
    class: u32,
    objects: u64,
    bytes: u64,
}

/// What the log of an object says.
#[derive(Default)]
struct ObjectFields<'a> {
    class: Option<&'a str>,
    file: Option<&'a str>,
    line: u64,
    bytes: u64,
    dump: Option<u64>,
}

impl<'a> ObjectFields<'a> {
    fn of(event: EventView<'a>) -> ObjectFields<'a> {
        let mut object = ObjectFields::default();
        let mut note = |key: KeyView<'a>, value: ValueView<'a>| match (key, value) {
            (KeyView::Name(semconv::RBKIT_CLASS_NAME), ValueView::Text(text)) => object.class = Some(text.text()),
            (KeyView::Name(semconv::CODE_FILE_PATH), ValueView::Text(text)) => object.file = Some(text.text()),
            (KeyView::Name(semconv::CODE_LINE_NUMBER), ValueView::U64(line)) => object.line = line,
            (KeyView::Name(semconv::RBKIT_OBJECT_SIZE), ValueView::U64(bytes)) => object.bytes = bytes,
            (KeyView::Name(semconv::RBKIT_DUMP_ID), ValueView::U64(id)) => object.dump = Some(id),
            _ => {}
        };
        for part in event.attribute_parts() {
            match part {
                AttributeView::One(member) => note(member.key(), member.value()),
                AttributeView::Run(run) => run.members().for_each(|member| note(member.key(), member.value())),
            }
        }
        object
    }
}

impl Heaps {
    /// Whether no object was added.
    pub(super) fn is_empty(&self) -> bool {
        self.dumps.is_empty()
    }

    /// Adds an object, unless `limit` is less than what the request would then have. Returns whether it was added; if not, the
    /// request is to be ended.
    pub(super) fn push(&mut self, scope: usize, event: EventView<'_>, has_origin: bool, limit: usize) -> bool {
        let object = ObjectFields::of(event);
        let mark = self.dictionary.mark();
        let time = event.time().unwrap_or(event.observed()).0;
        let origin = std::ptr::from_ref(&**event.origin()).addr();
        let key = DumpKey { scope, origin, dump: object.dump, time };
        let class = object.class.map_or(0, |class| self.class_of(class));
        let stack = self.stack_of(SiteRef(object.file.unwrap_or_default(), object.line));
        let dictionary = &mut self.dictionary;
        let known = self.known.get(&key).copied();
        let new = if known.is_none() { Some(DumpProfile::new(dictionary, event, key, has_origin)) } else { None };
        let sum = known.and_then(|dump| self.dumps[dump].known.get(&(class, stack)).copied());
        // Of both profiles.
        let added = new.as_ref().map_or(0, |new| 2 * (PROFILE_OVERHEAD + new.attributes.len()))
            + if sum.is_none() { 2 * SAMPLE_OVERHEAD } else { 0 };
        if REQUEST_OVERHEAD + self.len + added + self.dictionary.len() > limit {
            self.dictionary.truncate(&mark);
            return false;
        }
        self.len += added;
        let at = known.unwrap_or_else(|| {
            self.dumps.extend(new);
            self.known.insert(key, self.dumps.len() - 1);
            self.dumps.len() - 1
        });
        let dump = &mut self.dumps[at];
        let at = sum.unwrap_or_else(|| {
            dump.sums.push(Sum { stack, class, objects: 0, bytes: 0 });
            dump.known.insert((class, stack), dump.sums.len() - 1);
            dump.sums.len() - 1
        });
        let sum = &mut dump.sums[at];
        sum.objects += 1;
        sum.bytes = sum.bytes.saturating_add(object.bytes);
        true
    }

    /// The attribute of a class.
    fn class_of(&mut self, class: &str) -> u32 {
        if let Some(known) = self.classes.get(class) {
            return *known;
        }
        let attribute = self.dictionary.text_attribute(semconv::RBKIT_CLASS_NAME, class);
        self.classes.insert(class.into(), attribute);
        attribute
    }

    /// The stack of a site.
    fn stack_of(&mut self, site: SiteRef<'_>) -> u32 {
        if let Some(known) = self.sites.get(&site) {
            return *known;
        }
        let SiteRef(file, line) = site;
        let location = (!file.is_empty()).then(|| {
            let name = if line > 0 { &format!("{file}:{line}") } else { file };
            self.dictionary.location(name, file, line, FRAME_TYPE)
        });
        let stack = self.dictionary.stack(location);
        self.sites.insert(Site(file.into(), line), stack);
        stack
    }

    /// Ends the request.
    pub(super) fn finish(mut self, mut groups: Groups) -> Body {
        for (kind, value) in [(OBJECTS, Sum::objects as fn(&Sum) -> u64), (SPACE, Sum::bytes as fn(&Sum) -> u64)] {
            let types = [kind.0, kind.1, kind.0, kind.1].map(|text| self.dictionary.string(text));
            for dump in &self.dumps {
                dump.profile(types, value).push_to(&mut groups, dump.scope);
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
        DumpProfile { scope: key.scope, time: key.time, attributes, sums: Vec::new(), known: HashMap::default() }
    }

    fn profile(&self, types: [u32; 4], value: fn(&Sum) -> u64) -> EncodedProfile {
        let sample = |sum: &Sum| {
            let (mut attributes, mut values) = (Vec::new(), Vec::new());
            if sum.class > 0 {
                push_varint(&mut attributes, sum.class.into());
            }
            push_varint(&mut values, value(sum).min(i64::MAX as u64));
            EncodedSample { stack: sum.stack, attributes, values, timestamps: Vec::new() }
        };
        let samples = self.sums.iter().map(sample).collect();
        EncodedProfile { types, period: 1, attributes: self.attributes.clone(), times: (self.time, self.time), samples }
    }
}

impl Sum {
    fn objects(&self) -> u64 {
        self.objects
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}
