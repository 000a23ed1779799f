//! Keys of stored events: few different ones, each in most events.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use tributary_event::{BatchBuilder, Interned, Key, Name};

/// Different keys that are remembered.
const SLOTS: usize = 256;
/// The longest key that is remembered.
const MAX_BYTES: usize = 128;

/// Makes keys of texts; remembers which ones were read lately.
#[derive(Debug)]
pub(super) struct RecentKeys {
    names: HashMap<&'static str, Name, RandomState>,
    /// Each key has one place, by a few of its bytes, and replaces the one that was there.
    recent: Box<[RecentKey]>,
}

#[derive(Clone, Debug, Default)]
struct RecentKey {
    text: String,
    /// `None`: it is one of the peer, which stands in the batch.
    name: Option<Name>,
    in_batch: Interned,
}

impl Default for RecentKeys {
    fn default() -> Self {
        let names = Name::all().map(|name| (name.as_str(), name)).collect();
        RecentKeys { names, recent: vec![RecentKey::default(); SLOTS].into() }
    }
}

impl RecentKeys {
    /// The key of a text that was read lately.
    #[inline]
    pub(super) fn find(&mut self, text: &[u8], batch: &mut BatchBuilder) -> Option<Key> {
        let recent = &mut self.recent[slot(text)];
        if recent.text.as_bytes() != text {
            return None;
        }
        Some(match recent.name {
            Some(name) => name.into(),
            None => batch.intern(&mut recent.in_batch, &recent.text).into(),
        })
    }

    /// The key of another text: a name of ours, or one of the peer in the batch.
    pub(super) fn add(&mut self, text: &str, batch: &mut BatchBuilder) -> Key {
        let name = self.names.get(text).copied();
        let mut in_batch = Interned::default();
        let key = match name {
            Some(name) => name.into(),
            None => batch.intern(&mut in_batch, text).into(),
        };
        if text.len() <= MAX_BYTES {
            self.recent[slot(text.as_bytes())] = RecentKey { text: text.to_owned(), name, in_batch };
        }
        key
    }
}

#[inline]
fn slot(text: &[u8]) -> usize {
    let [first, middle, last] = match text {
        [] => [0; 3],
        _ => [text[0], text[text.len() / 2], text[text.len() - 1]].map(usize::from),
    };
    (text.len() + 3 * first + 7 * middle + 13 * last) % SLOTS
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tributary_event::{Header, Origin, Position, Severity, UnixNanos};

    use super::*;

    #[test]
    fn each_text_has_its_own_key_in_each_batch() {
        let mut keys = RecentKeys::default();
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("", "".into(), "".into(), 0)));
        // The second and third have the same place.
        let long = "k".repeat(MAX_BYTES + 1);
        let texts = ["", "abxcd", "aexcd", "service.name", &long];
        assert_eq!(slot(b"abxcd"), slot(b"aexcd"));
        for _ in 0..2 {
            for text in texts.iter().chain(&texts) {
                let known = keys.find(text.as_bytes(), &mut batch);
                let name = known.unwrap_or_else(|| keys.add(text, &mut batch));
                batch.event(Header::observed_at(name, UnixNanos(0), Position::default())).log(Severity::Info, None);
            }
            let read = batch.take();
            assert!(read.events().map(|event| event.name().text()).eq(texts.iter().chain(&texts).copied()));
        }
    }
}
