//! What the bucket has of an agent, as JSON.

use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::keys::{self, Hash};
use super::super::register::{attrs_from_json, attrs_to_json};
use tributary_event::hex;
use tributary_zico::agents::{Counters, Registration, ZicoAgent};

/// An agent, its keys and their latest sessions. Times are in milliseconds since 1970; hashes are SHA-256 in hexadecimal digits.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct AgentRecord {
    pub(super) id: u64,
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) app: String,
    pub(super) env: String,
    /// A JSON object.
    pub(super) attrs: Value,
    /// The address of its latest registration, and the network of its first one.
    pub(super) address: String,
    pub(super) network: String,
    /// The hash in the key `name.…` that leads to it.
    pub(super) identity: String,
    pub(super) registered: i64,
    pub(super) seen: i64,
    /// When the other entries of the agent were written last.
    pub(super) renewed: i64,
    #[serde(default)]
    pub(super) requests: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) events: u64,
    #[serde(default)]
    pub(super) losses: u64,
    pub(super) keys: Vec<KeyRecord>,
}

/// A key, which stands for a start of a JVM.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct KeyRecord {
    pub(super) hash: String,
    pub(super) issued: i64,
    pub(super) used: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<SessionRecord>,
}

/// The latest session of a key.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct SessionRecord {
    /// Of its id.
    pub(super) hash: String,
    /// The daemon that opened it.
    pub(super) owner: String,
    pub(super) opened: i64,
    pub(super) used: i64,
}

impl AgentRecord {
    /// A new agent.
    pub(super) fn new(id: u64, uuid: String, network: String, now: i64) -> AgentRecord {
        AgentRecord { id, uuid, network, registered: now, seen: now, renewed: now, ..AgentRecord::default() }
    }

    /// Takes over what an agent sends when it registers.
    pub(super) fn update(&mut self, asked: &Registration, address: &str, identity: &str, now: i64) {
        (self.name, self.app, self.env) = (asked.name.clone(), asked.app.clone(), asked.env.clone());
        // What this crate writes is JSON.
        self.attrs = serde_json::from_str(&attrs_to_json(&asked.attrs)).unwrap_or_default();
        (self.address, self.identity) = (address.to_owned(), identity.to_owned());
        self.seen = self.seen.max(now);
    }

    /// Adds a key, and removes others: those with a live session are kept longest, then those that were used last.
    pub(super) fn add_key(&mut self, key: &Hash, now: i64, max_keys: usize, oldest_use: i64) {
        let is_idle = |key: &KeyRecord| key.session.as_ref().is_none_or(|session| session.used <= oldest_use);
        self.keys.sort_by_key(|key| (is_idle(key), std::cmp::Reverse(key.used)));
        self.keys.truncate(max_keys.saturating_sub(1));
        self.keys.push(KeyRecord { hash: hex(key), issued: now, used: now, session: None });
    }

    /// The key with this hash.
    pub(super) fn key(&mut self, key: &Hash) -> Option<&mut KeyRecord> {
        let hash = hex(key);
        self.keys.iter_mut().find(|known| keys::is_equal(&known.hash, &hash))
    }

    /// The key whose latest session has this id, opened by this daemon.
    pub(super) fn key_of_session(&mut self, session: &Hash, owner: &str) -> Option<&mut KeyRecord> {
        let hash = hex(session);
        let has_it = |key: &&mut KeyRecord| {
            key.session.as_ref().is_some_and(|session| session.hash == hash && session.owner == owner)
        };
        self.keys.iter_mut().find(has_it)
    }

    /// Counts what the agent has submitted.
    pub(super) fn count(&mut self, more: Counters) {
        self.requests += more.requests;
        self.bytes += more.bytes;
        self.events += more.events;
        self.losses += more.losses;
    }

    /// The agent, as exchanges know it.
    pub(super) fn agent(&self) -> ZicoAgent {
        let AgentRecord { id, uuid, name, app, env, attrs, .. } = self.clone();
        ZicoAgent { id, uuid, name, app, env, attrs: attrs_from_json(&attrs.to_string()) }
    }

    /// The value of its entry.
    pub(super) fn to_json(&self) -> Vec<u8> {
        // Only maps with keys that are no text cannot be written.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The key of an agent's record.
pub(super) fn agent_key(uuid: &str) -> String {
    format!("agent.{uuid}")
}

/// The key of an identity.
pub(super) fn name_key(identity: &str) -> String {
    format!("name.{identity}")
}

/// The first part of the keys of a network's agents.
pub(super) fn network_prefix(network: &str) -> String {
    format!("network.{}.", &hex(&keys::hash(network))[..32])
}

/// The hash of what agents have in common that are one.
pub(super) fn identity(rkey: &Hash, asked: &Registration) -> String {
    let mut context = Context::new(&SHA256);
    context.update(rkey);
    for text in [&asked.name, &asked.app, &asked.env] {
        context.update(&(text.len() as u64).to_be_bytes());
        context.update(text.as_bytes());
    }
    hex(context.finish().as_ref())
}

/// Whether a text is a UUID in lower case, and so can be a part of a key.
pub(in super::super) fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_event::ResourceValue;

    fn asked(name: &str, app: &str) -> Registration {
        Registration { name: name.into(), app: app.into(), ..Registration::default() }
    }

    #[test]
    fn identities_differ_by_each_part_and_by_where_it_ends() {
        let of = |rkey: u8, name: &str, app: &str| identity(&[rkey; 32], &asked(name, app));
        let all = [of(1, "ab", "c"), of(1, "a", "bc"), of(1, "ab", ""), of(2, "ab", "c")];
        assert!(all.iter().enumerate().all(|(index, one)| !all[..index].contains(one)));
        assert_eq!(all[0], of(1, "ab", "c"));
    }

    #[test]
    fn keys_with_a_live_session_are_kept_longest_and_then_those_that_were_used_last() {
        let mut record = AgentRecord::new(1, "u".into(), "n".into(), 0);
        for (number, at) in [(1, 10), (2, 20), (3, 30)] {
            record.add_key(&[number; 32], at, 3, 0);
        }
        let session = SessionRecord { hash: "h".into(), owner: "o".into(), opened: 10, used: 100 };
        record.key(&[1; 32]).unwrap().session = Some(session);
        record.add_key(&[4; 32], 110, 3, 50);
        let known: Vec<bool> = (1..5).map(|number| record.key(&[number; 32]).is_some()).collect();
        assert_eq!(known, [true, false, true, true]);
        record.add_key(&[5; 32], 200, 1, 150);
        assert!(record.key(&[5; 32]).is_some() && record.keys.len() == 1);
    }

    #[test]
    fn a_record_is_read_back_with_its_attributes() {
        let mut record = AgentRecord::new(7, "u".into(), "n".into(), 5);
        let attrs = vec![("shelves".to_owned(), ResourceValue::I64(40)), ("name".to_owned(), "x".into())];
        record.update(&Registration { attrs: attrs.clone(), ..asked("a", "b") }, "192.0.2.1", "identity", 6);
        record.add_key(&[1; 32], 6, 4, 0);
        let read: AgentRecord = serde_json::from_slice(&record.to_json()).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.agent().attrs, attrs);
        assert!(is_uuid("00000000-0000-4000-8000-00000000000a") && !is_uuid("00000000-0000-4000-8000-0000000000.>"));
    }
}
