//! The methods that have run in a run (`coverage = true`): which run for the first time, and how many there are.

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use super::dictionary::Dictionary;

/// Bytes of a class beside its name, approximately.
const CLASS_BYTES: usize = 48;

/// Counts the methods and classes of a run. Each method is marked in the dictionary, which bounds their number.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    methods: u64,
    classes: HashSet<Box<str>, RandomState>,
    bytes: usize,
}

impl Coverage {
    /// A method is entered. `true`: for the first time, and it has a name.
    #[inline]
    pub(super) fn enter(&mut self, method: u32, names: &mut Dictionary) -> bool {
        match names.method(method) {
            Some(method) if !method.is_covered => {
                method.is_covered = true;
                self.add(&method.function.text);
                true
            }
            _ => false,
        }
    }

    fn add(&mut self, function: &str) {
        self.methods += 1;
        if let Some((class, _)) = function.rsplit_once('.')
            && !self.classes.contains(class)
        {
            self.bytes += class.len() + CLASS_BYTES;
            self.classes.insert(class.into());
        }
    }

    /// How many methods have run.
    pub(super) fn methods(&self) -> u64 {
        self.methods
    }

    /// How many classes they are of.
    pub(super) fn classes(&self) -> u64 {
        self.classes.len() as u64
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::dictionary::DictionaryLimits;
    use super::*;

    #[test]
    fn a_method_is_covered_once_even_if_it_is_named_again() {
        let mut names = Dictionary::new(DictionaryLimits { entries: 10, bytes: 1 << 20 });
        let mut coverage = Coverage::default();
        assert!(!coverage.enter(1, &mut names), "it has no name");
        names.map_method(1, b"a/B.c;1;()V");
        assert!(coverage.enter(1, &mut names) && !coverage.enter(1, &mut names));
        names.map_method(1, b"a/B.c;1;()V");
        assert!(!coverage.enter(1, &mut names));
        names.map_method(2, b"a/B.d;1;()V");
        names.map_method(3, b"main");
        assert!(coverage.enter(2, &mut names) && coverage.enter(3, &mut names));
        assert_eq!((coverage.methods(), coverage.classes()), (3, 1));
    }
}
