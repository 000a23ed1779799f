//! What the operator configures about the agents of a listener: attributes under, or over, those that agents send.

use std::sync::Arc;

use super::{Name, Resource, ResourceValue};

/// The attributes that a listener adds to the resource of every event. Shared by all connections of the listener.
#[derive(Debug, PartialEq)]
pub struct Identity {
    attributes: Vec<(String, ResourceValue)>,
    /// The number of attributes, from the first, that replace those that agents send.
    fixed: usize,
}

impl Identity {
    /// An identity of these attributes, each key once. With `wins` they replace those that agents send; without, they
    /// are for what an agent does not send, or sends as an empty text.
    pub fn new(attributes: Vec<(String, ResourceValue)>, wins: bool) -> Self {
        let fixed = if wins { attributes.len() } else { 0 };
        Identity { attributes, fixed }
    }

    /// The attributes of `own`, and the labels that it does not have. Labels never replace what agents send.
    pub fn labelled(labels: &[(String, ResourceValue)], own: Option<&Identity>) -> Self {
        let (mut attributes, fixed) = own.map_or((Vec::new(), 0), |own| (own.attributes.clone(), own.fixed));
        let is_new = |(key, _): &&(String, ResourceValue)| own.is_none_or(|own| own.place(key).is_none());
        attributes.extend(labels.iter().filter(is_new).cloned());
        Identity { attributes, fixed }
    }

    /// Whether an agent cannot change the attribute.
    pub fn fixes(&self, name: Name) -> bool {
        self.place(name.as_str()).is_some_and(|place| place < self.fixed)
    }

    /// The attributes, each key once.
    pub fn attributes(&self) -> &[(String, ResourceValue)] {
        &self.attributes
    }

    /// The attributes together with those that an agent sends.
    pub(super) fn merged(&self, sent: &Resource) -> Vec<(String, ResourceValue)> {
        let is_kept = |key: &str, value: &ResourceValue| match self.place(key) {
            Some(place) => place >= self.fixed && !matches!(value, ResourceValue::Text(text) if text.is_empty()),
            None => true,
        };
        let sent = sent.attributes().iter().filter(|(key, value)| is_kept(key, value));
        // The last value of a key counts.
        Resource::new(self.attributes.iter().chain(sent).cloned()).into_attributes()
    }

    fn place(&self, key: &str) -> Option<usize> {
        self.attributes.iter().position(|(known, _)| known == key)
    }
}

/// A resource with the identity of its listener.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) identity: Arc<Identity>,
    pub(super) resource: Arc<Resource>,
}
