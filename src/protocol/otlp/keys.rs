//! Keys of attributes: peers send the same ones again and again.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::text::escape;
use tributary_event::{BatchBuilder, Interned, Key, Name};

/// The most keys that are remembered, and the longest of them.
const MAX_KEYS: usize = 1024;
const MAX_KEY_BYTES: usize = 256;

/// The keys of the records of a body.
#[derive(Debug, Default)]
pub(super) struct Keys {
    known: HashMap<Box<[u8]>, KnownKey, RandomState>,
}

#[derive(Debug)]
enum KnownKey {
    Name(Name),
    Text(Interned),
}

impl Keys {
    /// The key in the batch. Bytes that are no text are shown as escapes: different keys stay different.
    #[inline]
    pub(super) fn get(&mut self, key: &[u8], batch: &mut BatchBuilder) -> Key {
        if let Some(known) = self.known.get_mut(key) {
            return known.key(key, batch);
        }
        let mut known = match str::from_utf8(key).ok().and_then(Name::of) {
            Some(name) => KnownKey::Name(name),
            None => KnownKey::Text(Interned::default()),
        };
        let written = known.key(key, batch);
        if key.len() <= MAX_KEY_BYTES {
            if self.known.len() >= MAX_KEYS {
                self.known.clear();
            }
            self.known.insert(key.into(), known);
        }
        written
    }
}

impl KnownKey {
    #[inline]
    fn key(&mut self, key: &[u8], batch: &mut BatchBuilder) -> Key {
        match self {
            KnownKey::Name(name) => (*name).into(),
            KnownKey::Text(memo) => match batch.interned(memo) {
                Some(text) => text.into(),
                None => batch.intern(memo, &escape(key)).into(),
            },
        }
    }
}
