//! Keys of values that are removed or hashed.

use std::fmt;

use tributary_event::copy::ValueLocation;
use tributary_event::{KeyView, Name};

use super::glob::Glob;

/// Before a pattern: only attributes of resources.
const RESOURCE: &str = "resource:";
/// The address of the peer, as JSON lines have it and as OTLP has it.
const PEER: [&str; 2] = ["origin.peer", "network.peer.address"];

/// A pattern of keys, as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KeyGlob {
    is_of_resource: bool,
    glob: Glob,
}

impl KeyGlob {
    pub(super) fn parse(text: &str) -> Result<KeyGlob, (String, String)> {
        let of_resource = text.strip_prefix(RESOURCE);
        Ok(KeyGlob { is_of_resource: of_resource.is_some(), glob: Glob::parse(of_resource.unwrap_or(text))? })
    }
}

impl fmt::Display for KeyGlob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_of_resource { RESOURCE } else { "" }, self.glob)
    }
}

/// Several patterns. Without `resource:` a pattern is for a key wherever it stands.
#[derive(Debug, Default)]
pub(super) struct Keys {
    globs: Vec<KeyGlob>,
    /// Which names of ours match, in the order of [`Name::all`].
    known: Vec<bool>,
    is_peer: bool,
}

impl Keys {
    pub(super) fn new(globs: &[KeyGlob]) -> Keys {
        let mut keys = Keys { globs: globs.to_vec(), ..Keys::default() };
        keys.known = Name::all().map(|name| keys.is_anywhere(name.as_str())).collect();
        keys.is_peer = PEER.iter().any(|peer| keys.is_anywhere(peer));
        keys
    }

    /// Whether a value of an event is meant. A member of an object is by its own key or by its path.
    #[inline]
    pub(super) fn has(&self, place: ValueLocation<'_>) -> bool {
        match place {
            ValueLocation::Attribute(KeyView::Name(name)) => {
                self.known.get(name.index()).is_some_and(|is_meant| *is_meant)
            }
            ValueLocation::Attribute(KeyView::Text(key)) => self.is_anywhere(key.text()),
            ValueLocation::Member { key, path } => self.is_anywhere(key) || self.is_anywhere(path),
            ValueLocation::Field(name) => self.is_anywhere(name),
        }
    }

    /// Whether an attribute of a resource is meant.
    pub(super) fn has_of_resource(&self, key: &str) -> bool {
        self.globs.iter().any(|one| one.glob.matches(key))
    }

    /// Whether the address of the peer is meant.
    pub(super) fn has_peer(&self) -> bool {
        self.is_peer
    }

    fn is_anywhere(&self, key: &str) -> bool {
        self.globs.iter().any(|one| !one.is_of_resource && one.glob.matches(key))
    }
}
