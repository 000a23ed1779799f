//! The source of an event: its connection, and the resource that the peer describes.
//!
//! Both are shared by every event of a connection and seldom change, so an encoder renders them once
//! and keeps the bytes beside them ([`Origin::rendered`], [`Resource::rendered`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use super::identity::Merged;
use super::{Identity, Name, output_len, semconv};

/// One connection (or request) of one listener.
#[derive(Debug)]
pub struct Origin {
    /// The protocol's name in configuration, e.g. `datadog`.
    pub protocol: &'static str,
    /// The protocol version that the peer speaks, once it is known.
    pub version: Option<Arc<str>>,
    /// The operator's name for the listener.
    pub listener: Arc<str>,
    /// The peer's address as text; for offline decoding the file's name. Empty: a sink must not show it.
    pub peer: Arc<str>,
    /// `peer` is empty or a hash, because a sink must not show it.
    pub is_peer_hidden: bool,
    /// Number of the connection, counted up over the life of the process.
    pub connection: u64,
    /// It was stored, or sent by another collector: the names in it are not those of our configuration.
    pub is_stored: bool,
    /// What the operator configured about the listener's agents. `None`: nothing.
    pub identity: Option<Arc<Identity>>,
    rendered: OnceLock<Box<[u8]>>,
}

impl Origin {
    /// Its estimated memory in bytes.
    pub const MEMORY_BYTES: usize = 256;

    /// An origin whose protocol version is not yet known.
    pub fn new(protocol: &'static str, listener: Arc<str>, peer: Arc<str>, connection: u64) -> Self {
        Origin {
            protocol,
            version: None,
            listener,
            peer,
            is_peer_hidden: false,
            connection,
            is_stored: false,
            identity: None,
            rendered: OnceLock::new(),
        }
    }

    /// The same with the identity of its listener, which every event of it has in its resource.
    #[must_use]
    pub fn with_identity(self, identity: Option<Arc<Identity>>) -> Self {
        Origin { identity, ..self }
    }

    /// The same of an event that was stored.
    #[must_use]
    pub fn stored(self) -> Self {
        Origin { is_stored: true, ..self }
    }

    /// The same connection after the peer has sent its version.
    pub fn with_version(&self, version: &str) -> Self {
        Origin {
            version: Some(version.into()),
            is_stored: self.is_stored,
            identity: self.identity.clone(),
            ..Origin::new(self.protocol, self.listener.clone(), self.peer.clone(), self.connection)
        }
    }

    /// The address and port of the peer. A peer without a port, as the name of a file, is an address.
    pub fn peer_address(&self) -> (&str, Option<u16>) {
        peer_address(&self.peer)
    }

    /// The same connection with another text instead of the peer's address, or none.
    pub fn with_hidden_peer(&self, peer: Arc<str>) -> Self {
        Origin {
            version: self.version.clone(),
            is_peer_hidden: true,
            is_stored: self.is_stored,
            identity: self.identity.clone(),
            ..Origin::new(self.protocol, self.listener.clone(), peer, self.connection)
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

/// The address and port of a peer. A peer without a port, as the name of a file, is an address.
pub fn peer_address(peer: &str) -> (&str, Option<u16>) {
    let address = peer.strip_prefix("tcp://").unwrap_or(peer);
    let Some((host, port)) = address.rsplit_once(':') else { return (peer, None) };
    let Ok(port) = port.parse() else { return (peer, None) };
    let is_host = !host.is_empty() && !host.contains(['/', ':']);
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) if host.parse::<IpAddr>().is_ok() => (host, Some(port)),
        None if is_host || address.parse::<SocketAddr>().is_ok() => (host, Some(port)),
        _ => (peer, None),
    }
}

/// The source of telemetry: attributes of all events of a connection.
#[derive(Debug, Default)]
pub struct Resource {
    attributes: Vec<(String, ResourceValue)>,
    /// The resource of the agent, if this is that of one of its services.
    agent: Option<Arc<Resource>>,
    rendered: OnceLock<Box<[u8]>>,
    output_len: OnceLock<usize>,
    /// The same resource with the identity of its listener.
    merged: OnceLock<Merged>,
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

    /// The most bytes of it in the output.
    pub(super) fn output_len(&self) -> usize {
        if let ResourceValue::Text(text) = self { output_len(text) } else { 8 }
    }
}

impl From<&str> for ResourceValue {
    fn from(text: &str) -> Self {
        ResourceValue::Text(text.to_owned())
    }
}

impl Resource {
    /// Estimated bytes of memory: its attributes, and the same again for the rendering of an encoder.
    pub fn memory_bytes(&self) -> usize {
        self.attributes.iter().map(|(key, value)| ATTRIBUTE_BYTES + 2 * (key.len() + value.len())).sum()
    }

    /// The resource of a service of the agent `agent`, for agents that send the spans of several services.
    pub fn of_service(agent: &Arc<Resource>, service: &str) -> Self {
        let name = (semconv::SERVICE_NAME.as_str().to_owned(), ResourceValue::from(service));
        let attributes = agent.attributes.iter().cloned().chain([name]);
        Resource { agent: Some(agent.clone()), ..Resource::new(attributes) }
    }

    /// Whether it is that of one of the services of an agent.
    pub(super) fn is_of_service(&self) -> bool {
        self.agent.is_some()
    }

    /// Whether it has the same attributes in the same order, and is of the same agent.
    pub(super) fn is_same(&self, other: &Resource) -> bool {
        let agents = match (&self.agent, &other.agent) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one.is_same(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        agents && self.attributes == other.attributes
    }

    /// The resource of the agent: of a service, that of the agent that sends its spans.
    pub fn agent(&self) -> &Resource {
        self.agent.as_deref().unwrap_or(self)
    }

    /// The text of an attribute; `None`: it has no such attribute, or one that is no text.
    pub fn text(&self, name: Name) -> Option<&str> {
        self.attributes.iter().find_map(|(key, value)| match value {
            ResourceValue::Text(text) if key == name.as_str() => Some(text.as_str()),
            _ => None,
        })
    }

    /// The most bytes of it in each event of the output, escaped.
    pub(super) fn output_len(&self) -> usize {
        let len_of = |(key, value): &(String, ResourceValue)| output_len(key) + 6 + value.output_len();
        *self.output_len.get_or_init(|| self.attributes.iter().map(len_of).sum())
    }

    /// The resource with the identity of its listener. It is merged once for all events, because a resource belongs to one
    /// listener; its identity changes only by a reload.
    pub(super) fn with_identity(self: &Arc<Self>, identity: Option<&Arc<Identity>>) -> Arc<Resource> {
        let Some(identity) = identity else { return self.clone() };
        let merge = || Merged { identity: identity.clone(), resource: self.merge(identity) };
        let known = self.merged.get_or_init(merge);
        if Arc::ptr_eq(&known.identity, identity) { known.resource.clone() } else { self.merge(identity) }
    }

    fn merge(&self, identity: &Arc<Identity>) -> Arc<Resource> {
        let agent = self.agent.as_ref().map(|agent| agent.with_identity(Some(identity)));
        Arc::new(Resource { attributes: identity.merged(self), agent, ..Resource::default() })
    }

    pub(super) fn into_attributes(self) -> Vec<(String, ResourceValue)> {
        self.attributes
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
        Resource { attributes: kept, ..Resource::default() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peer_is_an_address_and_a_port_or_as_it_is() {
        for (text, expected) in [
            ("127.0.0.1:40112", ("127.0.0.1", Some(40112))),
            ("[::1]:9", ("::1", Some(9))),
            ("tcp://ruby.example:5555", ("ruby.example", Some(5555))),
            ("several", ("several", None)),
            ("tests/data/a:7", ("tests/data/a:7", None)),
            ("::1", ("::1", None)),
            ("", ("", None)),
            (":1", (":1", None)),
            ("host:99999", ("host:99999", None)),
        ] {
            let origin = Origin::new("datadog", "spans".into(), text.into(), 1);
            assert_eq!(origin.peer_address(), expected);
        }
    }
}
