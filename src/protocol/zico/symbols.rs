//! The definitions of a session: strings and methods (section 2.7).
//!
//! Ids are valid within a session, until it resets or redefines them (rule 16). The peer chooses them, so tables hash them;
//! their number and the length of their texts are limited (rule 15).

use hashbrown::HashMap;

use tributary_codec::mutf8::{self, Repair};
use tributary_codec::text;
use tributary_event::{Interned, InternedRun};

use super::reserved::is_reserved;

/// The approximate memory of an entry beside its text, in bytes.
const ENTRY_BYTES: usize = 128;

/// Limits of one session's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SymbolLimits {
    /// Strings and methods together.
    pub(super) entries: usize,
    /// Bytes of all texts.
    pub(super) bytes: usize,
    /// Bytes of one text; a longer one is cut.
    pub(super) text: usize,
}

/// The definitions of one session.
#[derive(Debug)]
pub(super) struct SymbolTable {
    limits: SymbolLimits,
    strings: HashMap<u64, Symbol, foldhash::quality::RandomState>,
    /// The index of each method in `methods`.
    places: HashMap<u64, usize, foldhash::quality::RandomState>,
    methods: Vec<MethodEntry>,
    /// Ids of methods that the agent names by their parts only (Fressian).
    by_parts: HashMap<[u64; 3], u64, foldhash::quality::RandomState>,
    /// Bytes of texts.
    text_bytes: usize,
    /// Bytes of composed methods.
    method_bytes: usize,
    /// Changes with every change of a string: then methods are composed again.
    generation: u64,
}

/// The text of an id.
#[derive(Debug)]
pub(super) struct Symbol {
    pub(super) text: Box<str>,
    /// Invalid UTF-8 in it was replaced by U+FFFD.
    pub(super) is_repaired: bool,
    /// It was cut to the limit.
    pub(super) is_cut: bool,
    /// As an attribute key it is reserved.
    pub(super) is_reserved: bool,
    /// Its place in the current batch.
    pub(super) memo: Interned,
}

#[derive(Debug)]
struct MethodEntry {
    /// Ids of class, method and signature.
    parts: [u64; 3],
    /// The composed method, and the generations of both tables when it was composed.
    known: Option<(ResolvedMethod, [u64; 2])>,
}

/// A method, composed of its strings.
#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedMethod {
    /// `class.method`.
    pub(super) name: Box<str>,
    /// Its signature. Empty: none.
    pub(super) signature: Box<str>,
    pub(super) is_repaired: bool,
    pub(super) is_cut: bool,
    /// Ids in it that are not defined.
    pub(super) unresolved: Vec<u64>,
    /// The name's place in the current batch.
    pub(super) memo: Interned,
    /// The place of the attributes with name and signature in the current batch.
    pub(super) run: InternedRun,
}

/// A table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    /// The limit.
    pub(super) limit: usize,
    /// Its configuration key.
    pub(super) key: &'static str,
}

impl SymbolTable {
    pub(super) fn new(limits: SymbolLimits) -> Self {
        SymbolTable {
            limits,
            strings: HashMap::default(),
            places: HashMap::default(),
            methods: Vec::new(),
            by_parts: HashMap::default(),
            text_bytes: 0,
            method_bytes: 0,
            generation: 0,
        }
    }

    /// Removes all definitions (rule 7).
    pub(super) fn reset(&mut self) {
        *self = SymbolTable { generation: self.generation + 1, ..SymbolTable::new(self.limits) };
    }

    /// The approximate memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let entries = self.strings.len() + self.methods.len() + self.by_parts.len();
        self.text_bytes + self.method_bytes + entries * ENTRY_BYTES
    }

    /// Defines or redefines a string.
    pub(super) fn define_string(&mut self, id: u64, bytes: &[u8]) -> Result<(), Full> {
        let known = self.strings.get(&id);
        if known.is_some_and(|known| known.text.as_bytes() == bytes) {
            return Ok(());
        }
        let kept = text::cut_bytes(bytes, self.limits.text);
        let is_cut = kept.len() < bytes.len();
        let (text, is_repaired) = text::repair(kept);
        self.define(id, text.into(), is_repaired, is_cut)
    }

    /// Defines or redefines a string of Java.
    pub(super) fn define_java_string(&mut self, id: u64, bytes: &[u8]) -> Result<(), Full> {
        let (text, repair) = mutf8::read(bytes);
        let kept = text::cut(&text, self.limits.text);
        if self.strings.get(&id).is_some_and(|known| *known.text == *kept) {
            return Ok(());
        }
        self.define(id, kept.into(), repair != Repair::None, kept.len() < text.len())
    }

    fn define(&mut self, id: u64, text: Box<str>, is_repaired: bool, is_cut: bool) -> Result<(), Full> {
        let known = self.strings.get(&id);
        let (before, entries) = known.map_or((0, 1), |known| (known.text.len(), 0));
        self.check_space(text.len(), before, entries)?;
        self.text_bytes = self.text_bytes + text.len() - before;
        self.generation += 1;
        let (is_reserved, memo) = (is_reserved(&text), Interned::default());
        self.strings.insert(id, Symbol { text, is_repaired, is_cut, is_reserved, memo });
        Ok(())
    }

    /// Defines or redefines a method.
    pub(super) fn define_method(&mut self, id: u64, parts: [u64; 3]) -> Result<(), Full> {
        match self.places.get(&id) {
            Some(place) if self.methods[*place].parts == parts => {}
            Some(place) => self.methods[*place] = MethodEntry { parts, known: None },
            None => {
                self.check_space(0, 0, 1)?;
                self.places.insert(id, self.methods.len());
                self.methods.push(MethodEntry { parts, known: None });
            }
        }
        Ok(())
    }

    /// The id of the method with these parts, which is defined if it was not.
    pub(super) fn method_of(&mut self, parts: [u64; 3]) -> Result<u64, Full> {
        if let Some(id) = self.by_parts.get(&parts) {
            return Ok(*id);
        }
        let id = self.methods.len() as u64;
        self.define_method(id, parts)?;
        self.by_parts.insert(parts, id);
        Ok(id)
    }

    fn check_space(&self, bytes: usize, before: usize, entries: usize) -> Result<(), Full> {
        let SymbolLimits { entries: most_entries, bytes: most_bytes, .. } = self.limits;
        if self.strings.len() + self.methods.len() + entries > most_entries {
            return Err(Full { limit: most_entries, key: "max_symbols" });
        }
        if self.text_bytes + bytes - before > most_bytes {
            return Err(Full { limit: most_bytes, key: "max_symbol_bytes" });
        }
        Ok(())
    }
}

/// The definitions for a body: the session's own, then those that its agent sent in forms (section 1.4).
#[derive(Debug)]
pub(super) struct Symbols<'a> {
    pub(super) own: &'a mut SymbolTable,
    pub(super) host: Option<&'a mut SymbolTable>,
}

impl Symbols<'_> {
    /// The text of a string.
    pub(super) fn string(&mut self, id: u64) -> Option<&mut Symbol> {
        match self.own.strings.get_mut(&id) {
            Some(symbol) => Some(symbol),
            None => self.host.as_mut()?.strings.get_mut(&id),
        }
    }

    /// The method of an id.
    #[inline]
    pub(super) fn method(&mut self, id: u64) -> Option<&mut ResolvedMethod> {
        let generations = [self.own.generation, self.host.as_ref().map_or(0, |host| host.generation)];
        let place = self.own.places.get(&id).copied();
        match place.map(|place| &self.own.methods[place]) {
            // Indexed twice, because the borrow of an early return would last too long.
            Some(MethodEntry { known: Some((_, made)), .. }) if *made == generations => {
                self.own.methods[place?].known.as_mut().map(|(method, _)| method)
            }
            entry => {
                let is_own = entry.is_some();
                self.compose_and_store(id, generations, is_own)
            }
        }
    }

    #[cold]
    fn compose_and_store(&mut self, id: u64, generations: [u64; 2], is_own: bool) -> Option<&mut ResolvedMethod> {
        let table = if is_own { &*self.own } else { self.host.as_deref()? };
        let place = *table.places.get(&id)?;
        let method = self.compose(table.methods[place].parts);
        let table = if is_own { &mut *self.own } else { self.host.as_deref_mut()? };
        // A class name may be part of any number of methods, so composed methods are bounded, too.
        let bytes = method.name.len() + method.signature.len();
        if table.method_bytes + bytes > table.limits.bytes {
            table.methods.iter_mut().for_each(|entry| entry.known = None);
            table.method_bytes = 0;
        }
        table.method_bytes += bytes;
        Some(&mut table.methods[place].known.insert((method, generations)).0)
    }

    /// Composes a method of strings with these ids; 0 is none (rule 18).
    fn compose(&self, parts: [u64; 3]) -> ResolvedMethod {
        let mut made = ResolvedMethod::default();
        let [class, method, signature] = parts.map(|id| {
            let known = self.own.strings.get(&id).or_else(|| self.host.as_deref()?.strings.get(&id));
            match known {
                _ if id == 0 => String::new(),
                Some(symbol) => {
                    made.is_repaired |= symbol.is_repaired;
                    made.is_cut |= symbol.is_cut;
                    symbol.text.to_string()
                }
                None => {
                    made.unresolved.push(id);
                    placeholder(id)
                }
            }
        });
        let dot = if class.is_empty() || method.is_empty() { "" } else { "." };
        made.name = [class.as_str(), dot, method.as_str()].concat().into();
        made.signature = signature.into();
        made
    }
}

/// The text shown for an undefined string (rule 17).
pub(super) fn placeholder(id: u64) -> String {
    // Ids have 64 bits; large ones were probably sent as negative numbers.
    format!("symbol#{}", id as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SymbolLimits = SymbolLimits { entries: 5, bytes: 20, text: 13 };

    fn table() -> SymbolTable {
        let mut table = SymbolTable::new(LIMITS);
        for (id, text) in [(1, "a.B"), (2, "run"), (3, "()V")] {
            table.define_string(id, text.as_bytes()).unwrap();
        }
        table.define_method(7, [1, 2, 3]).unwrap();
        table
    }

    fn name(own: &mut SymbolTable, host: Option<&mut SymbolTable>, id: u64) -> Option<(String, Vec<u64>)> {
        let mut symbols = Symbols { own, host };
        let method = symbols.method(id)?;
        Some((format!("{}|{}", method.name, method.signature), method.unresolved.clone()))
    }

    #[test]
    fn a_method_changes_with_its_strings() {
        let mut table = table();
        assert_eq!(name(&mut table, None, 7).unwrap(), ("a.B.run|()V".into(), vec![]));
        table.define_string(2, b"go").unwrap();
        assert_eq!(name(&mut table, None, 7).unwrap(), ("a.B.go|()V".into(), vec![]));
        table.define_method(7, [1, 0, 9]).unwrap();
        assert_eq!(name(&mut table, None, 7).unwrap(), ("a.B|symbol#9".into(), vec![9]));
        table.reset();
        assert_eq!(name(&mut table, None, 7), None);
        assert_eq!(table.memory_bytes(), 0);
    }

    #[test]
    fn definitions_of_the_host_complete_those_of_the_session() {
        let (mut own, mut host) = (SymbolTable::new(LIMITS), table());
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.run|()V");
        own.define_string(2, b"own").unwrap();
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.own|()V");
        own.define_method(7, [1, 2, 2]).unwrap();
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.own|own");
        assert_eq!(name(&mut own, None, 7).unwrap().1, [1]);
    }

    #[test]
    fn a_full_table_refuses_new_definitions_and_accepts_redefinitions() {
        let mut table = table();
        assert_eq!(table.define_string(4, &[b'x'; 12]), Err(Full { limit: 20, key: "max_symbol_bytes" }));
        table.define_string(u64::MAX, b"x").unwrap();
        assert_eq!(table.define_string(5, b""), Err(Full { limit: 5, key: "max_symbols" }));
        assert_eq!(table.define_method(8, [0; 3]), Err(Full { limit: 5, key: "max_symbols" }));
        table.define_string(u64::MAX, b"y").unwrap();
        table.define_method(7, [3, 2, 1]).unwrap();
        assert_eq!(name(&mut table, None, 7).unwrap().0, "()V.run|a.B");
    }
}
