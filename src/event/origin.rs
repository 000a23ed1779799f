//! The source of an event: its connection, and the resource that the peer describes.
//!
//! Both are shared by every event of a connection and seldom change, so an encoder renders them once
//! and keeps the bytes beside them ([`Origin::rendered`], [`Resource::rendered`]).

use std::sync::{Arc, OnceLock};

/// One connection (or request) of one listener.
#[derive(Debug)]
pub struct Origin {
    /// The protocol's name in configuration, e.g. `datadog`.
    pub protocol: &'static str,
    /// The protocol version that the peer speaks, once it is known.
    pub version: Option<Arc<str>>,
    /// The operator's name for the listener.
    pub listener: Arc<str>,
    /// The peer's address as text; for offline decoding the file's name.
    pub peer: Arc<str>,
    /// Number of the connection, counted up over the life of the process.
    pub connection: u64,
    rendered: OnceLock<Box<[u8]>>,
}

impl Origin {
    /// An origin whose protocol version is not yet known.
    pub fn new(protocol: &'static str, listener: Arc<str>, peer: Arc<str>, connection: u64) -> Self {
        Origin { protocol, version: None, listener, peer, connection, rendered: OnceLock::new() }
    }

    /// The same connection after the peer has sent its version.
    pub fn with_version(&self, version: &str) -> Self {
        Origin {
            version: Some(version.into()),
            ..Origin::new(self.protocol, self.listener.clone(), self.peer.clone(), self.connection)
        }
    }

    /// Whether `other` is a connection of the same listener.
    pub fn is_same_listener(&self, other: &Origin) -> bool {
        self.protocol == other.protocol && self.listener == other.listener
    }

    /// The rendering of the constant part by an encoder, made by `render` on first use.
    pub fn rendered(&self, render: impl FnOnce(&Origin) -> Vec<u8>) -> &[u8] {
        self.rendered.get_or_init(|| render(self).into_boxed_slice())
    }
}

/// The source of telemetry: attributes of all events of a connection.
#[derive(Debug, Default)]
pub struct Resource {
    attributes: Vec<(String, ResourceValue)>,
    rendered: OnceLock<Box<[u8]>>,
}

/// Memory of an attribute of a resource without its texts.
const ATTRIBUTE_BYTES: usize = 64;

/// The value of a resource attribute.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ResourceValue {
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(String),
}

impl ResourceValue {
    /// Its estimated size in output.
    pub(super) fn len(&self) -> usize {
        if let ResourceValue::Text(text) = self { text.len() } else { 8 }
    }
}

impl From<&str> for ResourceValue {
    fn from(text: &str) -> Self {
        ResourceValue::Text(text.to_owned())
    }
}

impl Resource {
    /// Estimated bytes of memory: its attributes, and the same again for the rendering of an encoder.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.attributes.iter().map(|(key, value)| ATTRIBUTE_BYTES + 2 * (key.len() + value.len())).sum()
    }

    /// A resource of these attributes. The last value of a repeated key counts.
    pub fn new(attributes: impl IntoIterator<Item = (String, ResourceValue)>) -> Self {
        let mut kept: Vec<(String, ResourceValue)> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for (key, value) in attributes {
            match places.get(&key) {
                Some(&place) => {
                    let slot: &mut (String, ResourceValue) = &mut kept[place];
                    slot.1 = value;
                }
                None => {
                    places.insert(key.clone(), kept.len());
                    kept.push((key, value));
                }
            }
        }
        Resource { attributes: kept, rendered: OnceLock::new() }
    }

    /// The attributes, each key once.
    pub fn attributes(&self) -> &[(String, ResourceValue)] {
        &self.attributes
    }

    /// The rendering by an encoder, made by `render` on first use.
    pub fn rendered(&self, render: impl FnOnce(&Resource) -> Vec<u8>) -> &[u8] {
        self.rendered.get_or_init(|| render(self).into_boxed_slice())
    }
}
