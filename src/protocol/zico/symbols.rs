//! What a session has defined: strings and methods (section 2.7).
//!
//! Ids mean something within a session, until it resets or defines them anew (rule 16). They are the peer's to choose,
//! so tables hash them, and what is capped is how many there are and how long (rule 15).

use hashbrown::HashMap;

use crate::codec::text;
use crate::event::{Interned, InternedRun};

use super::value;

/// What an entry costs beside its text, roughly.
const ENTRY_BYTES: usize = 128;

/// Limits of one session's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SymbolLimits {
    /// Strings and methods together.
    pub(super) entries: usize,
    /// Bytes of all of them.
    pub(super) bytes: usize,
    /// Bytes of one text; a longer one is cut.
    pub(super) text: usize,
}

/// The definitions of one session.
#[derive(Debug)]
pub(super) struct Table {
    limits: SymbolLimits,
    strings: HashMap<u64, Symbol, foldhash::quality::RandomState>,
    /// Where methods stand in `methods`.
    places: HashMap<u64, usize, foldhash::quality::RandomState>,
    methods: Vec<MethodEntry>,
    /// Bytes of texts.
    text_bytes: usize,
    /// Bytes of methods that are put together.
    method_bytes: usize,
    /// Changes whenever a string does: then names of methods are put together anew.
    generation: u64,
}

/// A text that an id stands for.
#[derive(Debug)]
pub(super) struct Symbol {
    pub(super) text: Box<str>,
    /// Something in it became U+FFFD.
    pub(super) is_repaired: bool,
    /// It was longer.
    pub(super) is_cut: bool,
    /// As a key it is called like one of ours.
    pub(super) is_ours: bool,
    /// Where it stands in the batch being written.
    pub(super) memo: Interned,
}

#[derive(Debug)]
struct MethodEntry {
    /// Ids of class, method and signature.
    parts: [u64; 3],
    /// The method as the strings have it, and the generations of both tables when it was made.
    known: Option<(Method, [u64; 2])>,
}

/// A method as events show it.
#[derive(Clone, Debug, Default)]
pub(super) struct Method {
    /// `class.method`.
    pub(super) name: Box<str>,
    /// Its signature; empty: none.
    pub(super) signature: Box<str>,
    pub(super) is_repaired: bool,
    pub(super) is_cut: bool,
    /// Ids in it that are not defined.
    pub(super) unresolved: Vec<u64>,
    /// Where the name stands in the batch being written …
    pub(super) memo: Interned,
    /// … and where the attributes do that say name and signature.
    pub(super) run: InternedRun,
}

/// A table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    /// The limit that was met.
    pub(super) limit: usize,
    /// Its configuration key.
    pub(super) key: &'static str,
}

impl Table {
    pub(super) fn new(limits: SymbolLimits) -> Self {
        Table {
            limits,
            strings: HashMap::default(),
            places: HashMap::default(),
            methods: Vec::new(),
            text_bytes: 0,
            method_bytes: 0,
            generation: 0,
        }
    }

    /// Everything is forgotten (rule 7).
    pub(super) fn reset(&mut self) {
        *self = Table { generation: self.generation + 1, ..Table::new(self.limits) };
    }

    /// Memory, roughly.
    pub(super) fn memory_bytes(&self) -> usize {
        self.text_bytes + self.method_bytes + (self.strings.len() + self.methods.len()) * ENTRY_BYTES
    }

    /// Defines a string, maybe anew.
    pub(super) fn define_string(&mut self, id: u64, bytes: &[u8]) -> Result<(), Full> {
        let known = self.strings.get(&id);
        if known.is_some_and(|known| known.text.as_bytes() == bytes) {
            return Ok(());
        }
        let kept = text::cut_bytes(bytes, self.limits.text);
        let is_cut = kept.len() < bytes.len();
        let (text, is_repaired) = text::repair(kept);
        let (before, entries) = known.map_or((0, 1), |known| (known.text.len(), 0));
        self.make_room(text.len(), before, entries)?;
        self.text_bytes = self.text_bytes + text.len() - before;
        self.generation += 1;
        let (is_ours, memo) = (value::is_ours(&text), Interned::default());
        self.strings.insert(id, Symbol { text: text.into(), is_repaired, is_cut, is_ours, memo });
        Ok(())
    }

    /// Defines a method, maybe anew.
    pub(super) fn define_method(&mut self, id: u64, parts: [u64; 3]) -> Result<(), Full> {
        match self.places.get(&id) {
            Some(place) if self.methods[*place].parts == parts => {}
            Some(place) => self.methods[*place] = MethodEntry { parts, known: None },
            None => {
                self.make_room(0, 0, 1)?;
                self.places.insert(id, self.methods.len());
                self.methods.push(MethodEntry { parts, known: None });
            }
        }
        Ok(())
    }

    fn make_room(&self, bytes: usize, before: usize, entries: usize) -> Result<(), Full> {
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

/// What the ids of a body mean: the session's own definitions, then those that its agent sent in forms (section 1.4).
#[derive(Debug)]
pub(super) struct Symbols<'a> {
    pub(super) own: &'a mut Table,
    pub(super) host: Option<&'a mut Table>,
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
    pub(super) fn method(&mut self, id: u64) -> Option<&mut Method> {
        let generations = [self.own.generation, self.host.as_ref().map_or(0, |host| host.generation)];
        let place = self.own.places.get(&id).copied();
        match place.map(|place| &self.own.methods[place]) {
            // Named twice, for the borrow of an early return would last too long.
            Some(MethodEntry { known: Some((_, made)), .. }) if *made == generations => {
                self.own.methods[place?].known.as_mut().map(|(method, _)| method)
            }
            entry => {
                let is_own = entry.is_some();
                self.put_together(id, generations, is_own)
            }
        }
    }

    #[cold]
    fn put_together(&mut self, id: u64, generations: [u64; 2], is_own: bool) -> Option<&mut Method> {
        let table = if is_own { &*self.own } else { self.host.as_deref()? };
        let place = *table.places.get(&id)?;
        let method = self.compose(table.methods[place].parts);
        let table = if is_own { &mut *self.own } else { self.host.as_deref_mut()? };
        // A class may stand in any number of methods: what they come to is bounded, too.
        let bytes = method.name.len() + method.signature.len();
        if table.method_bytes + bytes > table.limits.bytes {
            table.methods.iter_mut().for_each(|entry| entry.known = None);
            table.method_bytes = 0;
        }
        table.method_bytes += bytes;
        Some(&mut table.methods[place].known.insert((method, generations)).0)
    }

    /// A method of strings with these ids, of which 0 is none (rule 18).
    fn compose(&self, parts: [u64; 3]) -> Method {
        let mut made = Method::default();
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

/// What stands for a string that is not defined (rule 17).
pub(super) fn placeholder(id: u64) -> String {
    // Ids are 64 bits; of those that no agent would give, most were sent as negative numbers.
    format!("symbol#{}", id as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SymbolLimits = SymbolLimits { entries: 5, bytes: 20, text: 13 };

    fn table() -> Table {
        let mut table = Table::new(LIMITS);
        for (id, text) in [(1, "a.B"), (2, "run"), (3, "()V")] {
            table.define_string(id, text.as_bytes()).unwrap();
        }
        table.define_method(7, [1, 2, 3]).unwrap();
        table
    }

    fn name(own: &mut Table, host: Option<&mut Table>, id: u64) -> Option<(String, Vec<u64>)> {
        let mut symbols = Symbols { own, host };
        let method = symbols.method(id)?;
        Some((format!("{}|{}", method.name, method.signature), method.unresolved.clone()))
    }

    #[test]
    fn a_method_follows_its_strings_also_when_they_change_or_go() {
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
    fn what_a_session_lacks_its_host_may_have() {
        let (mut own, mut host) = (Table::new(LIMITS), table());
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.run|()V");
        own.define_string(2, b"own").unwrap();
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.own|()V");
        own.define_method(7, [1, 2, 2]).unwrap();
        assert_eq!(name(&mut own, Some(&mut host), 7).unwrap().0, "a.B.own|own");
        assert_eq!(name(&mut own, None, 7).unwrap().1, [1]);
    }

    #[test]
    fn a_full_table_refuses_what_is_new_and_takes_what_replaces() {
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
