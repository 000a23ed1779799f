//! The names of a run: methods, exceptions and source locations by id, and the names of its threads over time.
//!
//! The dictionary belongs to the run and not to a connection: a mapping may arrive on another connection than the
//! events that use it, and after them (section 1.7).

use hashbrown::HashMap;

use tributary_codec::mutf8::{self, Repair};
use tributary_event::{Interned, InternedRun};
use tributary_options::options;

/// Ids below this one are found without hashing.
const DIRECT_IDS: u32 = 1 << 16;
/// Bytes of an entry beside its text, approximately.
const ENTRY_BYTES: usize = 128;
/// Names of one thread that are kept; the earliest is dropped when there are more.
const MAX_THREAD_NAMES: usize = 1024;

options! {
    /// Limits of a run's dictionary.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct DictionaryLimits {
        /// The number of names.
        pub entries: usize = count(1_000_000, 1..=100_000_000),
        /// Bytes of all of them.
        pub bytes: u64 = size(64 << 20, 64 << 10..=1 << 40),
    }
}

/// An id that an event uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Id {
    Method(u32),
    Exception(u32),
    SourceLocation(u32),
    Thread(u16),
}

/// A text of the peer, and where it stands in the current batch.
#[derive(Debug)]
pub(super) struct PeerName {
    pub text: Box<str>,
    /// Invalid bytes in it were replaced by U+FFFD.
    pub is_repaired: bool,
    /// The text in the batch.
    pub memo: Interned,
    /// The text together with its id in the batch.
    pub run: InternedRun,
    /// Of a name of a thread: its number in the profile of the run; 0: none yet.
    pub number: u32,
}

impl PeerName {
    /// The name in these bytes (rule 22).
    pub(super) fn read(bytes: &[u8]) -> PeerName {
        let (text, repair) = mutf8::read(bytes);
        PeerName::new(text.into(), repair != Repair::None)
    }

    fn new(text: Box<str>, is_repaired: bool) -> PeerName {
        PeerName { text, is_repaired, memo: Interned::default(), run: InternedRun::default(), number: 0 }
    }
}

/// The method of an id.
#[derive(Debug)]
pub(super) struct MethodDefinition {
    /// `pkg.Class.method`, or the whole signature if it has another form.
    pub function: PeerName,
    /// The access flags of a signature of the known form.
    pub access: Option<u64>,
    /// Its descriptor, e.g. `([Ljava/lang/String;)V`.
    pub descriptor: Option<Box<str>>,
    /// It has run.
    pub is_covered: bool,
}

impl MethodDefinition {
    /// Splits `pkg/Class.method;<flags>;<descriptor>` (section 2, "Signatures").
    pub(super) fn read(signature: &[u8]) -> MethodDefinition {
        let PeerName { text, is_repaired, .. } = PeerName::read(signature);
        let mut parts = text.splitn(3, ';');
        if let (Some(name), Some(flags), Some(descriptor)) = (parts.next(), parts.next(), parts.next())
            && let Ok(access) = flags.parse::<u32>()
        {
            let function = PeerName::new(name.replace('/', ".").into(), is_repaired);
            return MethodDefinition {
                function,
                access: Some(access.into()),
                descriptor: Some(descriptor.into()),
                is_covered: false,
            };
        }
        let function = PeerName::new(text, is_repaired);
        MethodDefinition { function, access: None, descriptor: None, is_covered: false }
    }

    fn bytes(&self) -> usize {
        self.function.text.len() + self.descriptor.as_ref().map_or(0, |descriptor| descriptor.len())
    }
}

/// The lines of a source location; -1 means unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Location {
    pub lines: (i32, i32),
}

/// The names of one thread, by the time from which each applies (rule 21). Never empty.
#[derive(Debug)]
pub(super) struct ThreadNames {
    /// Boxed, because a name that arrives late is inserted before the others.
    names: Vec<(u32, Box<PeerName>)>,
}

impl ThreadNames {
    /// The name at `time`; before the first, the first.
    pub(super) fn name_at(&mut self, time: u32) -> &mut PeerName {
        let after = match &self.names[..] {
            [_] => 1,
            names => names.partition_point(|(from, _)| *from <= time),
        };
        &mut self.names[after.saturating_sub(1)].1
    }

    /// Adds a name. `Some`: the name that is dropped for it.
    fn add(&mut self, from: u32, name: PeerName) -> Option<PeerName> {
        let place = self.names.partition_point(|(known, _)| *known <= from);
        let is_full = self.names.len() >= MAX_THREAD_NAMES;
        if is_full && place == 0 {
            return Some(name);
        }
        self.names.insert(place, (from, Box::new(name)));
        is_full.then(|| *self.names.remove(0).1)
    }
}

/// All mappings of a run.
#[derive(Debug)]
pub(super) struct Dictionary {
    limits: DictionaryLimits,
    methods: IdTable<MethodDefinition>,
    exceptions: IdTable<PeerName>,
    locations: IdTable<Location>,
    threads: IdTable<ThreadNames>,
    entries: usize,
    bytes: usize,
}

impl Dictionary {
    /// An empty dictionary.
    pub(super) fn new(limits: DictionaryLimits) -> Self {
        Dictionary {
            limits,
            methods: IdTable::default(),
            exceptions: IdTable::default(),
            locations: IdTable::default(),
            threads: IdTable::default(),
            entries: 0,
            bytes: 0,
        }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
            + self.methods.memory_bytes()
            + self.exceptions.memory_bytes()
            + self.locations.memory_bytes()
            + self.threads.memory_bytes()
    }

    /// Whether the id can be resolved.
    #[inline]
    pub(super) fn knows(&self, id: Id) -> bool {
        match id {
            Id::Method(id) => self.methods.place(id).is_some(),
            Id::Exception(id) => self.exceptions.place(id).is_some(),
            Id::SourceLocation(id) => self.locations.place(id).is_some(),
            Id::Thread(id) => self.threads.place(id.into()).is_some(),
        }
    }

    pub(super) fn method(&mut self, id: u32) -> Option<&mut MethodDefinition> {
        self.methods.get(id)
    }

    /// A method, and the thread if it has a name. `None`: the method is not known.
    #[inline]
    pub(super) fn names(
        &mut self,
        method: u32,
        thread: u16,
    ) -> Option<(&mut MethodDefinition, Option<&mut ThreadNames>)> {
        Some((self.methods.get(method)?, self.threads.get(thread.into())))
    }

    pub(super) fn exception(&mut self, id: u32) -> Option<&mut PeerName> {
        self.exceptions.get(id)
    }

    pub(super) fn location(&mut self, id: u32) -> Option<Location> {
        self.locations.get(id).copied()
    }

    pub(super) fn thread(&mut self, id: u16) -> Option<&mut ThreadNames> {
        self.threads.get(id.into())
    }

    /// Maps a method; a later mapping replaces an earlier one. `false`, as for the others: a limit is reached.
    pub(super) fn map_method(&mut self, id: u32, signature: &[u8]) -> bool {
        if !self.has_space(signature.len()) {
            return false;
        }
        let mut method = MethodDefinition::read(signature);
        if let Some(known) = self.methods.get(id) {
            // A method that is named again is not a new one.
            method.is_covered = known.is_covered && known.function.text == method.function.text;
        }
        self.count(method.bytes());
        if let Some(old) = self.methods.insert(id, method) {
            self.discount(old.bytes());
        }
        true
    }

    /// Maps an exception's type.
    pub(super) fn map_exception(&mut self, id: u32, name: &[u8]) -> bool {
        if !self.has_space(name.len()) {
            return false;
        }
        let name = PeerName::read(name);
        self.count(name.text.len());
        if let Some(old) = self.exceptions.insert(id, name) {
            self.discount(old.text.len());
        }
        true
    }

    /// Maps a source location.
    pub(super) fn map_location(&mut self, id: u32, lines: (i32, i32)) -> bool {
        if !self.has_space(0) {
            return false;
        }
        self.count(0);
        if self.locations.insert(id, Location { lines }).is_some() {
            self.discount(0);
        }
        true
    }

    /// Sets the name of a thread from `time` on.
    pub(super) fn name_thread(&mut self, id: u16, time: u32, name: &[u8]) -> bool {
        if !self.has_space(name.len()) {
            return false;
        }
        let name = PeerName::read(name);
        self.count(name.text.len());
        let dropped = match self.threads.get(id.into()) {
            Some(thread) => thread.add(time, name),
            None => {
                self.threads.insert(id.into(), ThreadNames { names: vec![(time, Box::new(name))] });
                None
            }
        };
        if let Some(name) = dropped {
            self.discount(name.text.len());
        }
        true
    }

    fn has_space(&self, text: usize) -> bool {
        // Each byte may become U+FFFD, which has three bytes.
        let bytes = self.memory_bytes() + 3 * text + ENTRY_BYTES;
        self.entries < self.limits.entries && bytes as u64 <= self.limits.bytes
    }

    fn count(&mut self, text: usize) {
        self.entries += 1;
        self.bytes += text + ENTRY_BYTES;
    }

    fn discount(&mut self, text: usize) {
        self.entries -= 1;
        self.bytes -= text + ENTRY_BYTES;
    }
}

/// Entries by id. Agents count ids from 0: small ids index a table, others are hashed.
#[derive(Debug)]
struct IdTable<T> {
    entries: Vec<T>,
    /// By id, the index in `entries` plus one; 0: none.
    direct: Vec<u32>,
    hashed: HashMap<u32, u32, foldhash::fast::RandomState>,
}

impl<T> Default for IdTable<T> {
    fn default() -> Self {
        IdTable { entries: Vec::new(), direct: Vec::new(), hashed: HashMap::default() }
    }
}

impl<T> IdTable<T> {
    #[inline]
    fn place(&self, id: u32) -> Option<usize> {
        let place = if id < DIRECT_IDS {
            self.direct.get(id as usize).copied().unwrap_or(0)
        } else {
            self.hashed.get(&id).copied().unwrap_or(0)
        };
        (place as usize).checked_sub(1)
    }

    fn get(&mut self, id: u32) -> Option<&mut T> {
        let place = self.place(id)?;
        self.entries.get_mut(place)
    }

    /// Adds an entry. `Some`: the entry that it replaces.
    fn insert(&mut self, id: u32, entry: T) -> Option<T> {
        if let Some(known) = self.get(id) {
            return Some(std::mem::replace(known, entry));
        }
        self.entries.push(entry);
        let place = u32::try_from(self.entries.len()).unwrap_or(0);
        if id < DIRECT_IDS {
            let length = self.direct.len().max(id as usize + 1);
            self.direct.resize(length, 0);
            self.direct[id as usize] = place;
        } else {
            self.hashed.insert(id, place);
        }
        None
    }

    /// Bytes of the index; entries are counted one by one.
    fn memory_bytes(&self) -> usize {
        self.direct.capacity() * 4 + self.hashed.capacity() * 9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dictionary() -> Dictionary {
        Dictionary::new(DictionaryLimits { entries: 100, bytes: 1 << 20 })
    }

    #[test]
    fn a_signature_is_split_and_another_form_is_kept_whole() {
        let mut dictionary = dictionary();
        assert!(dictionary.map_method(1, b"demo/Tracee.main;9;([Ljava/lang/String;)V"));
        let method = dictionary.method(1).unwrap();
        assert_eq!(&*method.function.text, "demo.Tracee.main");
        assert_eq!((method.access, method.descriptor.as_deref()), (Some(9), Some("([Ljava/lang/String;)V")));
        for odd in ["main", "a/b;x;()V", "a/b;9", ""] {
            assert!(dictionary.map_method(70_000, odd.as_bytes()));
            let method = dictionary.method(70_000).unwrap();
            assert_eq!((&*method.function.text, method.access, &method.descriptor), (odd, None, &None));
        }
    }

    #[test]
    fn a_thread_has_the_name_of_its_time_in_any_order_of_arrival() {
        let mut dictionary = dictionary();
        for (time, name) in [(50, "after"), (2, "before"), (70, "last")] {
            assert!(dictionary.name_thread(5, time, name.as_bytes()));
        }
        let thread = dictionary.thread(5).unwrap();
        let names: Vec<_> =
            [0, 2, 49, 50, 69, 70, u32::MAX].iter().map(|time| thread.name_at(*time).text.to_string()).collect();
        assert_eq!(names, ["before", "before", "before", "after", "after", "last", "last"]);
    }

    #[test]
    fn the_limits_hold_and_a_redefinition_takes_no_entry() {
        let mut dictionary = dictionary();
        for _ in 0..1000 {
            assert!(dictionary.map_method(7, b"a/B.c;1;()V"));
        }
        for id in 0..99 {
            assert!(dictionary.map_exception(id, b"x"));
        }
        assert!(!dictionary.map_exception(99, b"x"));
        assert!(!dictionary.knows(Id::Exception(99)));
        let mut small = Dictionary::new(DictionaryLimits { entries: 100, bytes: 64 << 10 });
        assert!(!small.map_method(1, &[b'x'; 65_535]));
        assert!(small.map_method(1, &[b'x'; 10_000]));
    }
}
