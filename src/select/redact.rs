//! `remove` and `hash`: values that a sink does not get.
//!
//! Both work on a copy of the batch that only this sink gets, before it encodes anything. So a value cannot reach the output
//! by another way, such as what an encoder keeps of a run of attributes or of a resource.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ring::hmac;

use tributary_event::copy::{Action, Edits, LOSS_EXCERPT, ValueLocation};
use tributary_event::{Batch, Origin, Resource, ResourceValue, ValueView, write_hex};
use tributary_sink::encode::json;

use super::keys::{KeyGlob, Keys};
use super::options::HashOptions;

/// A longer key file is not read.
const MAX_KEY_FILE_BYTES: u64 = 64 << 10;
/// The digest is cut to this many bytes.
const HASH_BYTES: usize = 8;

/// Resources and origins whose changed copies are remembered.
const CACHE_ENTRIES: usize = 16;
/// A larger resource is changed for each batch.
const CACHE_RESOURCE_BYTES: usize = 16 << 10;
/// Memory of what is remembered.
pub(super) const CACHE_BYTES: u64 = (CACHE_ENTRIES * CACHE_RESOURCE_BYTES) as u64;

/// Removes and hashes the values of one sink.
#[derive(Debug)]
pub(super) struct Redaction {
    remove: Keys,
    hash: Keys,
    hasher: Option<Hasher>,
    resources: Cache<Resource>,
    origins: Cache<Origin>,
}

impl Redaction {
    /// What these options ask for; `None`: nothing.
    ///
    /// # Errors
    /// The key cannot be read. The error names its file.
    pub(super) fn new(remove: &[KeyGlob], hash: Option<&HashOptions>) -> io::Result<Option<Redaction>> {
        if remove.is_empty() && hash.is_none() {
            return Ok(None);
        }
        Ok(Some(Redaction {
            remove: Keys::new(remove),
            hash: Keys::new(hash.map_or(&[][..], |hash| &hash.attributes[..])),
            hasher: hash.map(|hash| Hasher::read(&hash.key_file)).transpose()?,
            resources: Cache::default(),
            origins: Cache::default(),
        }))
    }

    /// A copy of these events with what they may show. `None`: they may show everything.
    pub(super) fn apply(&self, batch: &Batch, is_chosen: impl Fn(usize) -> bool) -> Option<Batch> {
        batch.edited_copy_of(is_chosen, self)
    }

    /// Whether it hashes with the same key as another one.
    pub(super) fn has_same_key(&self, other: &Redaction) -> bool {
        let of = |redaction: &Redaction| redaction.hasher.as_ref().map(|hasher| hasher.hash(b""));
        of(self) == of(other)
    }

    fn changed_resource(&self, resource: &Resource) -> Option<Arc<Resource>> {
        let is_meant = |key: &str| self.remove.has_of_resource(key) || self.hash.has_of_resource(key);
        if !resource.attributes().iter().any(|(key, _)| is_meant(key)) {
            return None;
        }
        let kept = resource.attributes().iter().filter(|(key, _)| !self.remove.has_of_resource(key));
        let changed = kept.map(|(key, value)| match self.hash.has_of_resource(key) {
            true => (key.clone(), ResourceValue::Text(self.replacement(value.view()))),
            false => (key.clone(), value.clone()),
        });
        Some(Arc::new(Resource::new(changed)))
    }

    /// The address of a peer is hashed without its port, so that connections of one address have the same hash.
    fn changed_origin(&self, origin: &Origin) -> Option<Arc<Origin>> {
        if origin.is_peer_hidden {
            return None;
        }
        if self.remove.has_peer() {
            return Some(Arc::new(origin.with_hidden_peer("".into())));
        }
        let hasher = self.hasher.as_ref().filter(|_| self.hash.has_peer())?;
        let (address, _) = origin.peer_address();
        Some(Arc::new(origin.with_hidden_peer(hasher.hash(address.as_bytes()).into())))
    }
}

impl Edits for Redaction {
    #[inline]
    fn action(&self, place: ValueLocation<'_>) -> Action {
        if self.remove.has(place) {
            return Action::Remove;
        }
        match self.hash.has(place) {
            true if matches!(place, ValueLocation::Field(LOSS_EXCERPT)) => Action::Remove,
            true => Action::Replace,
            false => Action::Keep,
        }
    }

    fn replacement(&self, value: ValueView<'_>) -> String {
        let Some(hasher) = &self.hasher else { return String::new() };
        match value {
            ValueView::Text(text) => hasher.hash(text.text().as_bytes()),
            value => {
                let mut text = Vec::new();
                json::push_value(&mut text, value);
                // Bytes are a string in JSON: its text is hashed, without the quotes.
                let is_string = matches!(value, ValueView::Bytes(_));
                let text = if is_string { text.get(1..text.len() - 1).unwrap_or_default() } else { &text };
                hasher.hash(text)
            }
        }
    }

    fn resource(&self, resource: &Arc<Resource>) -> Option<Arc<Resource>> {
        if resource.memory_bytes() > CACHE_RESOURCE_BYTES {
            return self.changed_resource(resource);
        }
        self.resources.get(resource, |resource| self.changed_resource(resource))
    }

    fn origin(&self, origin: &Arc<Origin>) -> Option<Arc<Origin>> {
        if self.remove.has_peer() || self.hash.has_peer() {
            return self.origins.get(origin, |origin| self.changed_origin(origin));
        }
        None
    }
}

/// HMAC-SHA-256 with the key of a file.
struct Hasher(hmac::Key);

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher(***)")
    }
}

impl Hasher {
    fn read(path: &Path) -> io::Result<Hasher> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("key_file {}: {error}", path.display()));
        let refused = |why: &str| Err(named(io::Error::new(io::ErrorKind::InvalidData, why)));
        let mut key = Vec::new();
        File::open(path).and_then(|file| file.take(MAX_KEY_FILE_BYTES + 1).read_to_end(&mut key)).map_err(named)?;
        key.pop_if(|last| *last == b'\n');
        match key.len() as u64 {
            0 => refused("is empty"),
            1..=MAX_KEY_FILE_BYTES => Ok(Hasher(hmac::Key::new(hmac::HMAC_SHA256, &key))),
            _ => refused("is longer than 64 KiB"),
        }
    }

    /// The first 16 hex digits.
    fn hash(&self, data: &[u8]) -> String {
        let digest = hmac::sign(&self.0, data);
        let mut text = String::with_capacity(2 * HASH_BYTES);
        // A string takes everything.
        let _ = write_hex(&mut text, &digest.as_ref()[..HASH_BYTES]);
        text
    }
}

/// The changed copies of what was used last: what many batches share is changed once.
#[derive(Debug)]
struct Cache<T>(Mutex<Vec<Cached<T>>>);

/// The weak reference keeps the address from being used again.
type Cached<T> = (Weak<T>, Option<Arc<T>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Cache(Mutex::default())
    }
}

impl<T> Cache<T> {
    fn get(&self, of: &Arc<T>, change: impl FnOnce(&T) -> Option<Arc<T>>) -> Option<Arc<T>> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = entries.iter().find(|(known, _)| known.as_ptr() == Arc::as_ptr(of)) {
            return known.clone();
        }
        entries.retain(|(known, _)| known.strong_count() > 0);
        if entries.len() >= CACHE_ENTRIES {
            entries.remove(0);
        }
        let changed = change(of);
        entries.push((Arc::downgrade(of), changed.clone()));
        changed
    }
}
