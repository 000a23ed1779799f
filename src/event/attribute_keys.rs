//! Keys of attributes that came lately: peers send the same ones again and again.

use super::{BatchBuilder, Interned, Key, LatestKeys, Name};

/// The latest keys.
#[derive(Debug, Default)]
pub struct AttributeKeys {
    /// By the bytes that stand for a key where it is read.
    known: LatestKeys<KnownKey>,
}

#[derive(Debug)]
enum KnownKey {
    /// A name of ours.
    Name(Name),
    /// One of the peer.
    Text(Interned),
}

impl AttributeKeys {
    /// The key of these bytes, if it is in the batch.
    #[inline]
    pub fn find(&mut self, bytes: &[u8], batch: &BatchBuilder) -> Option<Key> {
        match self.known.find(bytes)? {
            KnownKey::Name(name) => Some((*name).into()),
            KnownKey::Text(memo) => batch.interned(memo).map(Key::from),
        }
    }

    /// The key of these bytes, whose text is this: it is found from now on.
    pub fn add(&mut self, bytes: &[u8], text: &str, batch: &mut BatchBuilder) -> Key {
        if let Some(known) = self.known.find(bytes) {
            return known.key(text, batch);
        }
        let mut known = Name::of(text).map_or(KnownKey::Text(Interned::default()), KnownKey::Name);
        let key = known.key(text, batch);
        self.known.add(bytes, known);
        key
    }
}

impl KnownKey {
    fn key(&mut self, text: &str, batch: &mut BatchBuilder) -> Key {
        match self {
            KnownKey::Name(name) => (*name).into(),
            KnownKey::Text(memo) => batch.intern(memo, text).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Header, Origin, Position, Severity, UnixNanos};

    #[test]
    fn each_text_has_its_own_key_in_each_batch() {
        let mut keys = AttributeKeys::default();
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("", "".into(), "".into(), 0)));
        let long = "k".repeat(1000);
        let many: Vec<String> = (0..2000).map(|number| number.to_string()).collect();
        let texts: Vec<&str> =
            ["", "service.name", "a", &long].into_iter().chain(many.iter().map(String::as_str)).collect();
        for _ in 0..2 {
            for text in texts.iter().chain(&texts) {
                let known = keys.find(text.as_bytes(), &batch);
                let name = known.unwrap_or_else(|| keys.add(text.as_bytes(), text, &mut batch));
                assert!(text.len() == 1000 || keys.find(text.as_bytes(), &batch).is_some());
                batch.event(Header::observed_at(name, UnixNanos(0), Position::default())).log(Severity::Info, None);
            }
            let read = batch.take();
            assert!(read.events().map(|event| event.name().text()).eq(texts.iter().chain(&texts).copied()));
        }
    }
}
