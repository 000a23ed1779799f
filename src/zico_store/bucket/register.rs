//! Registrations and sessions: each reads an entry, and writes it if no other daemon has changed it since.

use std::sync::Arc;

use ring::error::Unspecified;
use serde_json::{Map, Value};
use tracing::{error, warn};

use super::super::adoption;
use super::super::keys::{self, Hash, RkeyDigests};
use super::super::network::network;
use super::record::{AgentRecord, KeyRecord, SessionRecord, agent_key, identity, is_uuid, name_key, network_prefix};
use super::{AWAY, Inner};
use tributary_event::hex;
use tributary_system::blocking;
use tributary_zico::agents::{Opened, Opening, Registered, Registration, UNKNOWN_AGENT, ZicoAgentError};

/// How often an entry is read again that another daemon has changed meanwhile.
const MAX_ATTEMPTS: usize = 16;
/// The entry with the salt.
const SALT: &str = "salt";
/// How often the salt is written again: otherwise it would be removed like an agent that is not seen any more.
const SALT_INTERVAL: i64 = 86_400_000;
/// Entries of an agent: its record, its name, its network.
const ENTRIES: u64 = 3;

impl Inner {
    /// Registers an agent.
    pub(super) async fn register(
        &self,
        asked: &Registration,
        address: &str,
        now: i64,
    ) -> Result<Registered, ZicoAgentError> {
        if self.admitted.as_ref().is_some_and(|keys| !blocking::run(|| keys.admit(&asked.rkey))) {
            return Err(ZicoAgentError::Denied("the registration key is not accepted here"));
        }
        let digests = self.digests.get_or_try_init(|| self.salt()).await?;
        self.renew_salt(digests, now).await;
        let rkey = blocking::run(|| digests.digest(&asked.rkey));
        let identity = identity(&rkey, asked);
        for _ in 0..MAX_ATTEMPTS {
            if let Some(registered) = self.try_to_register(asked, &identity, address, now).await? {
                return Ok(registered);
            }
        }
        Err(ZicoAgentError::Away(AWAY.to_owned()))
    }

    /// `None`: an entry has changed meanwhile.
    async fn try_to_register(
        &self,
        asked: &Registration,
        identity: &str,
        address: &str,
        now: i64,
    ) -> Result<Option<Registered>, ZicoAgentError> {
        let name_key = name_key(identity);
        let named = self.bucket.get(&name_key).await.map_err(|fault| self.refusal(fault))?;
        let known = match named.value.and_then(|uuid| String::from_utf8(uuid).ok()).filter(|uuid| is_uuid(uuid)) {
            None => self.known_by_key(asked).await?,
            known => known,
        };
        let (uuid, number) = match known {
            Some(uuid) => (uuid, named.revision),
            None => {
                self.require_space(&network(address)).await?;
                let uuid = keys::uuid().map_err(no_random)?;
                let set = self.bucket.set_if(&name_key, uuid.clone().into_bytes(), named.revision).await;
                match set.map_err(|fault| self.refusal(fault))? {
                    Some(number) => (uuid, number),
                    None => return Ok(None),
                }
            }
        };
        let (record, revision) = self.record(&uuid).await?;
        let is_new = record.is_none();
        // An agent that was removed, or whose daemon was killed before it wrote the record, begins again.
        let mut record = record.unwrap_or_else(|| AgentRecord::new(number, uuid, network(address), now));
        let is_renamed = record.identity != identity;
        record.update(asked, address, identity, now);
        if is_new || is_renamed || record.renewed <= now.saturating_sub(self.renewal()) {
            self.renew(&mut record, now).await?;
        }
        let authkey = keys::key().map_err(no_random)?;
        let oldest_use = now.saturating_sub(self.timeout());
        record.add_key(&keys::hash(&authkey), now, self.options.max_sessions_per_agent, oldest_use);
        let set = self.bucket.set_if(&agent_key(&record.uuid), record.to_json(), revision).await;
        let set = set.map_err(|fault| self.refusal(fault))?;
        Ok(set.map(|_| Registered { agent: Arc::new(record.agent()), authkey, is_new }))
    }

    /// The agent that proves its identity with its UUID and one of its keys.
    async fn known_by_key(&self, asked: &Registration) -> Result<Option<String>, ZicoAgentError> {
        let (Some(uuid), Some(akey)) = (&asked.uuid, &asked.akey) else { return Ok(None) };
        let uuid = uuid.to_ascii_lowercase();
        if !is_uuid(&uuid) {
            return Ok(None);
        }
        let (record, _) = self.record(&uuid).await?;
        Ok(record.and_then(|mut record| record.key(&keys::hash(akey)).is_some().then_some(uuid)))
    }

    /// Refuses a new agent if there are too many, of this network or in all.
    async fn require_space(&self, network: &str) -> Result<(), ZicoAgentError> {
        let (max_agents, max_of_network) = (self.options.max_agents, self.options.max_agents_per_address);
        let of_network = self.bucket.keys(&network_prefix(network)).await.map_err(|fault| self.refusal(fault))?.len();
        let agents = self.bucket.count().await.map_err(|fault| self.refusal(fault))? / ENTRIES;
        let why = if of_network >= max_of_network {
            "too many agents are registered from this address (max_agents_per_address)"
        } else if agents >= max_agents as u64 {
            "too many agents are registered (max_agents)"
        } else {
            return Ok(());
        };
        if let Some(suppressed) = self.full.permit() {
            warn!(
                listener = self.listener,
                agents,
                max_agents,
                network,
                why,
                suppressed,
                "shared agents are at their limit, and a new one was refused: raise it, or accept only known registration \
                 keys (keys_file)"
            );
        }
        Err(ZicoAgentError::Full(why.to_owned()))
    }

    /// Opens a session for a key, or returns the one that is live here.
    pub(super) async fn open(&self, asked: &Opening, now: i64) -> Result<Opened, ZicoAgentError> {
        let denied = || UNKNOWN_AGENT;
        let uuid = adoption::uuid_of(asked).ok_or_else(denied)?;
        for _ in 0..MAX_ATTEMPTS {
            let (record, revision) = self.record(&uuid).await?;
            let mut record = match record {
                Some(record) => record,
                None if self.admitted.is_none() => match self.adopt(&uuid, asked, now).await? {
                    Some(record) => record,
                    None => continue,
                },
                None => return Err(denied()),
            };
            let agent = Arc::new(record.agent());
            let key = record.key(&keys::hash(&asked.authkey)).ok_or_else(denied)?;
            if let Some(session) = self.live_session(key, &asked.authkey, now) {
                return Ok(Opened { session, agent, is_new: false });
            }
            let session = self.session_id(&asked.authkey, now);
            let hash = keys::hash(&session);
            let owner = self.owner.clone();
            key.session = Some(SessionRecord { hash: hex(&hash), owner, opened: now, used: now });
            key.used = key.used.max(now);
            record.seen = record.seen.max(now);
            let set = self.bucket.set_if(&agent_key(&uuid), record.to_json(), revision).await;
            if set.map_err(|fault| self.refusal(fault))?.is_some() {
                self.sessions().insert(hash, agent.clone(), now);
                return Ok(Opened { session, agent, is_new: true });
            }
        }
        Err(ZicoAgentError::Away(AWAY.to_owned()))
    }

    /// The record of an agent that another daemon with another bucket has registered, or that the bucket has lost: with the UUID
    /// and the key of its request. It is not written yet: that decides which of several daemons registers it. `None`: an entry
    /// has changed meanwhile.
    async fn adopt(&self, uuid: &str, asked: &Opening, now: i64) -> Result<Option<AgentRecord>, ZicoAgentError> {
        let network = network(&asked.address);
        self.require_space(&network).await?;
        let identity = hex(&adoption::identity_of(uuid, asked));
        let name_key = name_key(&identity);
        let named = self.bucket.get(&name_key).await.map_err(|fault| self.refusal(fault))?;
        let number = match named.value {
            Some(_) => Some(named.revision),
            None => {
                let set = self.bucket.set_if(&name_key, uuid.as_bytes().to_vec(), named.revision).await;
                set.map_err(|fault| self.refusal(fault))?
            }
        };
        let Some(number) = number else { return Ok(None) };
        let mut record = AgentRecord::new(number, uuid.to_owned(), network, now);
        (record.address, record.identity) = (asked.address.clone(), identity);
        record.attrs = Value::Object(Map::new());
        self.renew(&mut record, now).await?;
        record.add_key(&keys::hash(&asked.authkey), now, self.options.max_sessions_per_agent, now);
        self.openings.adopted(uuid, asked);
        Ok(Some(record))
    }

    /// The id of a session that a key opens at this time: other daemons, and this one after a restart, give other ids.
    fn session_id(&self, authkey: &str, now: i64) -> String {
        keys::session(authkey, format!("{} {now}", self.owner).as_bytes())
    }

    /// The id of the latest session of a key, if it is live in this daemon.
    fn live_session(&self, key: &KeyRecord, authkey: &str, now: i64) -> Option<String> {
        let latest = key.session.as_ref().filter(|session| session.owner == self.owner)?;
        let session = self.session_id(authkey, latest.opened);
        self.sessions().is_live(&keys::hash(&session), now).then_some(session)
    }

    /// Writes that an agent was seen, and what it has submitted. Ends its session if it was removed meanwhile.
    pub(super) async fn touch(&self, uuid: &str, session: &Hash, now: i64) {
        for _ in 0..MAX_ATTEMPTS {
            let Ok((record, revision)) = self.record(uuid).await else { break };
            let Some(mut record) = record else { return self.sessions().remove(session) };
            let Some(key) = record.key_of_session(session, &self.owner) else {
                return self.sessions().remove(session);
            };
            key.used = key.used.max(now);
            if let Some(session) = &mut key.session {
                session.used = session.used.max(now);
            }
            record.seen = record.seen.max(now);
            let is_late = record.renewed <= now.saturating_sub(self.renewal());
            if is_late && self.renew(&mut record, now).await.is_err() {
                break;
            }
            let more = self.sessions().take_counters(record.id);
            record.count(more);
            let set = self.bucket.set_if(&agent_key(uuid), record.to_json(), revision).await;
            if let Ok(Some(_)) = set {
                self.sessions().update(session, &Arc::new(record.agent()));
                if let Some(digests) = self.digests.get() {
                    self.renew_salt(digests, now).await;
                }
                return;
            }
            self.sessions().count(record.id, more);
            if set.is_err() {
                break;
            }
        }
        self.sessions().try_again(session, now);
    }

    /// Writes the other entries of an agent, so that they are kept as long as its record.
    async fn renew(&self, record: &mut AgentRecord, now: i64) -> Result<(), ZicoAgentError> {
        let network = format!("{}{}", network_prefix(&record.network), record.uuid);
        let entries = [(name_key(&record.identity), record.uuid.clone().into_bytes()), (network, Vec::new())];
        for (key, value) in entries {
            self.bucket.set(&key, value).await.map_err(|fault| self.refusal(fault))?;
        }
        record.renewed = now;
        Ok(())
    }

    /// The salt of the bucket's digests, which the first daemon creates.
    async fn salt(&self) -> Result<RkeyDigests, ZicoAgentError> {
        for _ in 0..MAX_ATTEMPTS {
            let entry = self.bucket.get(SALT).await.map_err(|fault| self.refusal(fault))?;
            if let Some(salt) = entry.value {
                return Ok(RkeyDigests::new(salt));
            }
            let salt = keys::random::<16>().map_err(no_random)?;
            let set = self.bucket.set_if(SALT, salt.to_vec(), entry.revision).await;
            set.map_err(|fault| self.refusal(fault))?;
        }
        Err(ZicoAgentError::Away(AWAY.to_owned()))
    }

    /// Writes the salt again now and then.
    async fn renew_salt(&self, digests: &RkeyDigests, now: i64) {
        let mut is_late = false;
        if let Ok(mut salted) = self.salted.lock() {
            is_late = *salted <= now.saturating_sub(SALT_INTERVAL);
            *salted = if is_late { now } else { *salted };
        }
        if is_late && self.bucket.set(SALT, digests.salt().to_vec()).await.is_err() {
            // Tried again with the next registration.
            if let Ok(mut salted) = self.salted.lock() {
                *salted = 0;
            }
        }
    }

    /// How long an unused session lives, in milliseconds.
    fn timeout(&self) -> i64 {
        i64::try_from(self.options.session_timeout.as_millis()).unwrap_or(i64::MAX)
    }

    /// How old the other entries of an agent may get, in milliseconds: far less than JetStream keeps them.
    fn renewal(&self) -> i64 {
        i64::try_from(self.options.agent_retention.as_millis()).unwrap_or(i64::MAX) / 4
    }
}

fn no_random(_: Unspecified) -> ZicoAgentError {
    error!("the system has no random numbers; an agent is answered 500");
    ZicoAgentError::Broken
}
