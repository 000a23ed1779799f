//! What the operator configures about the agents of a listener: attributes under, or over, those that agents send.

use std::sync::Arc;

use super::{Name, Resource, ResourceValue};

/// The attributes that a listener adds to the resource of every event. Shared by all connections of the listener.
#[derive(Debug, PartialEq)]
pub struct Identity {
    attributes: Vec<(String, ResourceValue)>,
    wins: bool,
}

impl Identity {
    /// An identity of these attributes, each key once. With `wins` they replace those that agents send; without, they
    /// are for what an agent does not send, or sends as an empty text.
    pub fn new(attributes: Vec<(String, ResourceValue)>, wins: bool) -> Self {
        Identity { attributes, wins }
    }

    /// Whether an agent cannot change the attribute.
    pub fn fixes(&self, name: Name) -> bool {
        self.wins && self.get(name.as_str()).is_some()
    }

    /// The attributes, each key once.
    pub fn attributes(&self) -> &[(String, ResourceValue)] {
        &self.attributes
    }

    /// The attributes together with those that an agent sends.
    pub(super) fn merged(&self, sent: &Resource) -> Vec<(String, ResourceValue)> {
        let is_kept = |key: &str, value: &ResourceValue| match self.get(key) {
            Some(_) => !self.wins && !matches!(value, ResourceValue::Text(text) if text.is_empty()),
            None => true,
        };
        let sent = sent.attributes().iter().filter(|(key, value)| is_kept(key, value));
        // The last value of a key counts.
        Resource::new(self.attributes.iter().chain(sent).cloned()).into_attributes()
    }

    fn get(&self, key: &str) -> Option<&ResourceValue> {
        self.attributes.iter().find_map(|(known, value)| (known == key).then_some(value))
    }
}

/// A resource with the identity of its listener.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) identity: Arc<Identity>,
    pub(super) resource: Arc<Resource>,
}
