//! Registrations and sessions: one transaction each, committed before it is answered.

use std::sync::Arc;

use ring::error::Unspecified;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde_json::{Map, Number, Value};
use tracing::warn;

use super::adoption;
use super::keys;
use super::network::network;
use super::shared::{FileError, SharedAgentStore};
use tributary_event::ResourceValue;
use tributary_zico::agents::{Opened, Opening, Registered, Registration, UNKNOWN_AGENT, ZicoAgent, ZicoAgentError};

/// The share of the table that is reserved for networks with few agents: one in this many.
const RESERVE: usize = 10;
/// A network has few agents up to this number, or up to a thousandth of the table.
const FEW: usize = 10;
/// How many agents a registration may remove to make space in memory.
const MAX_REMOVED: usize = 16;

/// Why a transaction fails.
enum TransactionError {
    Refused(ZicoAgentError),
    File(rusqlite::Error),
    Random,
}

impl From<rusqlite::Error> for TransactionError {
    fn from(error: rusqlite::Error) -> Self {
        TransactionError::File(error)
    }
}

impl FileError for TransactionError {
    fn file_error(&self) -> Option<&rusqlite::Error> {
        match self {
            TransactionError::File(error) => Some(error),
            TransactionError::Refused(_) | TransactionError::Random => None,
        }
    }
}

impl From<Unspecified> for TransactionError {
    fn from(_: Unspecified) -> Self {
        TransactionError::Random
    }
}

impl SharedAgentStore {
    /// Registers an agent. A store in memory that is full removes other agents, and retries.
    pub(super) fn register(
        &self,
        asked: &Registration,
        rkey: &keys::Hash,
        address: &str,
        now: i64,
    ) -> Result<Registered, ZicoAgentError> {
        let mut removed = 0;
        loop {
            let work = |transaction: &Transaction<'_>| self.registration(transaction, asked, rkey, address, now);
            match self.transact(work) {
                Err(TransactionError::File(error)) if self.is_memory_full(&error) && removed < MAX_REMOVED => {
                    let remove = |transaction: &Transaction<'_>| {
                        let newcomer = Newcomer::of(transaction, network(address))?;
                        self.remove_one(transaction, &newcomer, Space::InTable, now)
                    };
                    if !matches!(self.transact(remove), Ok(true)) {
                        return Err(self.refusal(&error));
                    }
                    removed += 1;
                }
                result => return result.map_err(|failure| self.refuse(failure)),
            }
        }
    }

    /// Opens a session, or returns the live one of the key.
    pub(super) fn open_session(&self, asked: &Opening, now: i64) -> Result<Opened, ZicoAgentError> {
        self.transact(|transaction| self.opening(transaction, asked, now)).map_err(|failure| self.refuse(failure))
    }

    /// Runs one transaction. When it returns `Ok`, the result is on the disk.
    fn transact<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, TransactionError>,
    ) -> Result<T, TransactionError> {
        self.write(|connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let result = work(&transaction)?;
            transaction.commit()?;
            Ok(result)
        })
    }

    fn refuse(&self, failure: TransactionError) -> ZicoAgentError {
        match failure {
            TransactionError::Refused(refusal) => refusal,
            TransactionError::File(error) => self.refusal(&error),
            TransactionError::Random => self.broken("the system has no random numbers"),
        }
    }

    fn registration(
        &self,
        transaction: &Transaction<'_>,
        asked: &Registration,
        rkey: &keys::Hash,
        address: &str,
        now: i64,
    ) -> Result<Registered, TransactionError> {
        let Registration { name, app, env, .. } = asked;
        let known = transaction
            .prepare_cached("SELECT id FROM agents WHERE rkey = ? AND name = ? AND app = ? AND env = ?")?
            .query_row(params![rkey, name, app, env], |row| row.get::<_, i64>(0))
            .optional()?;
        let known = match known {
            None => known_by_key(transaction, asked)?,
            known => known,
        };
        let attrs = attrs_to_json(&asked.attrs);
        let id = match known {
            Some(id) => {
                transaction.execute(
                    "UPDATE agents SET rkey = ?2, name = ?3, app = ?4, env = ?5, attrs = ?6, address = ?7, seen = ?8
                     WHERE id = ?1",
                    params![id, rkey, name, app, env, attrs, address, now],
                )?;
                id
            }
            None => {
                let newcomer = Newcomer::of(transaction, network(address))?;
                self.make_space(transaction, &newcomer, now)?;
                transaction.execute(
                    "INSERT INTO agents (uuid, name, app, env, attrs, rkey, address, registered, seen, network)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9)",
                    params![keys::uuid()?, name, app, env, attrs, rkey, address, now, newcomer.network],
                )?;
                transaction.last_insert_rowid()
            }
        };
        let authkey = keys::key()?;
        transaction.execute(
            "INSERT INTO keys (agent, hash, issued, used) VALUES (?1, ?2, ?3, ?3)",
            params![id, keys::hash(&authkey), now],
        )?;
        // Keys with a live session are kept longest, then the newest.
        let others = self.options.max_sessions_per_agent as i64 - 1;
        transaction.execute(
            "DELETE FROM keys WHERE id IN (
                 SELECT keys.id FROM keys LEFT JOIN sessions ON sessions.key = keys.id AND sessions.used > ?2
                 WHERE keys.agent = ?1 AND keys.id <> ?3 ORDER BY sessions.hash IS NULL, keys.used DESC, keys.id DESC
                 LIMIT -1 OFFSET ?4)",
            params![id, now - self.timeout(), transaction.last_insert_rowid(), others],
        )?;
        let agent = transaction
            .prepare_cached("SELECT id, uuid, name, app, env, attrs FROM agents WHERE id = ?")?
            .query_row([id], agent_of)?;
        Ok(Registered { agent: Arc::new(agent), authkey, is_new: known.is_none() })
    }

    /// Makes space for one more agent of this network, or refuses it.
    fn make_space(&self, transaction: &Transaction<'_>, newcomer: &Newcomer, now: i64) -> Result<(), TransactionError> {
        let (max_agents, max_of_network) = (self.options.max_agents, self.options.max_agents_per_address);
        let total = transaction.prepare_cached("SELECT agents FROM totals")?.query_row([], number)?;
        let is_reserved = total >= max_agents - max_agents / RESERVE && newcomer.agents >= self.few();
        let (space, why) = if newcomer.agents >= max_of_network {
            (Space::InNetwork, "too many agents are registered from this address (max_agents_per_address)")
        } else if is_reserved {
            (Space::BeforeReserve, "too many agents are registered; the rest is for addresses with few (max_agents)")
        } else if total >= max_agents {
            (Space::InTable, "too many agents are registered (max_agents)")
        } else {
            return Ok(());
        };
        let is_removed = self.remove_one(transaction, newcomer, space, now)?;
        if let Some(suppressed) = self.full.permit() {
            let action = if is_removed { "removed another agent" } else { "refused a new agent" };
            warn!(
                listener = self.listener,
                agents = total,
                max_agents,
                network = newcomer.network,
                action,
                why,
                suppressed,
                "agents are at their limit: raise it, accept only known registration keys (keys_file), or remove agents \
                 (tributary agents forget)"
            );
        }
        if is_removed { Ok(()) } else { Err(TransactionError::Refused(ZicoAgentError::Full(why.to_owned()))) }
    }

    /// Removes an agent to make space for another one:
    ///
    /// 1. one that was not seen for `agent_retention`,
    /// 2. the oldest that never submitted, of a network that has many of these: of all networks, the one with the most,
    /// 3. the oldest that never submitted and was not seen for `unused_agent_retention`,
    /// 4. of the network with the most agents, the one that was not seen for longest, if the network of the new agent has
    ///    fewer also with it: so networks share a full table as equally as they need it, and a network loses no agent to
    ///    another one that has as many,
    /// 5. of the network of the new agent, the one that was not seen for longest, if it was not seen for `session_timeout`.
    ///
    /// The first three are of all networks only if the whole table is full; the fourth is left out if the network of the new
    /// agent has reached its own limit. `false`: there is none.
    fn remove_one(
        &self,
        transaction: &Transaction<'_>,
        newcomer: &Newcomer,
        space: Space,
        now: i64,
    ) -> Result<bool, TransactionError> {
        let before = |retention: std::time::Duration| {
            now.saturating_sub(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))
        };
        let network = (space != Space::InTable).then_some(newcomer.network.as_str());
        let mut victim = match network {
            Some(network) => not_seen_since(transaction, network, before(self.options.agent_retention))?,
            None => transaction
                .prepare_cached("SELECT id FROM agents WHERE seen < ? ORDER BY seen LIMIT 1")?
                .query_row([before(self.options.agent_retention)], |row| row.get(0))
                .optional()?,
        };
        if victim.is_none() {
            victim = self.unused(transaction, network, before(self.options.unused_agent_retention))?;
        }
        if victim.is_none() && space != Space::InNetwork {
            victim = self.of_largest(transaction, newcomer)?;
        }
        if victim.is_none() && network.is_some() {
            victim = not_seen_since(transaction, &newcomer.network, before(self.options.session_timeout))?;
        }
        let Some(victim) = victim else { return Ok(false) };
        transaction.prepare_cached("DELETE FROM agents WHERE id = ?")?.execute([victim])?;
        Ok(true)
    }

    /// Of the network with the most agents, the agent that was not seen for longest, if the newcomer's network has fewer
    /// also with it.
    fn of_largest(&self, transaction: &Transaction<'_>, newcomer: &Newcomer) -> rusqlite::Result<Option<i64>> {
        let largest = transaction
            .prepare_cached("SELECT network, agents FROM networks ORDER BY agents DESC LIMIT 1")?
            .query_row([], |row| Ok((row.get::<_, String>(0)?, number_at(row, 1)?)))
            .optional()?;
        match largest {
            Some((network, agents)) if agents > self.few().max(newcomer.agents + 1) => {
                not_seen_since(transaction, &network, i64::MAX)
            }
            _ => Ok(None),
        }
    }

    /// The agent that never submitted and is removed first, of this network or of all.
    fn unused(
        &self,
        transaction: &Transaction<'_>,
        network: Option<&str>,
        retained: i64,
    ) -> rusqlite::Result<Option<i64>> {
        let largest = match network {
            Some(network) => transaction
                .prepare_cached("SELECT network, unused FROM networks WHERE network = ?")?
                .query_row([network], |row| Ok((row.get::<_, String>(0)?, number_at(row, 1)?))),
            None => transaction
                .prepare_cached("SELECT network, unused FROM networks ORDER BY unused DESC LIMIT 1")?
                .query_row([], |row| Ok((row.get(0)?, number_at(row, 1)?))),
        };
        let id = |row: &Row<'_>| row.get::<_, i64>(0);
        match (largest.optional()?, network) {
            (Some((network, unused)), _) if unused > self.few() => transaction
                .prepare_cached("SELECT id FROM agents WHERE network = ? AND requests = 0 ORDER BY seen LIMIT 1")?
                .query_row([network], id),
            (_, Some(network)) => transaction
                .prepare_cached(
                    "SELECT id FROM agents WHERE network = ? AND requests = 0 AND seen < ? ORDER BY seen LIMIT 1",
                )?
                .query_row(params![network, retained], id),
            (_, None) => transaction
                .prepare_cached("SELECT id FROM agents WHERE requests = 0 AND seen < ? ORDER BY seen LIMIT 1")?
                .query_row([retained], id),
        }
        .optional()
    }

    /// A network with at most this many agents has few.
    fn few(&self) -> usize {
        FEW.max(self.options.max_agents / 1000)
    }

    fn opening(&self, transaction: &Transaction<'_>, asked: &Opening, now: i64) -> Result<Opened, TransactionError> {
        let denied = || TransactionError::Refused(UNKNOWN_AGENT);
        let agent = match find(transaction, &asked.agent)? {
            Some(agent) => agent,
            None if self.admitted.is_none() => self.adopt(transaction, asked, now)?.ok_or_else(denied)?,
            None => return Err(denied()),
        };
        let key = key_of(transaction, agent.id as i64, &asked.authkey)?.ok_or_else(denied)?;
        let live = transaction
            .prepare_cached("SELECT nonce, used FROM sessions WHERE key = ?")?
            .query_row([key], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, i64>(1)?)))
            .optional()?
            .map(|(nonce, used)| (keys::session(&asked.authkey, &nonce), used))
            .filter(|(session, used)| self.is_live(session, *used, now));
        let agent = Arc::new(agent);
        if let Some((session, _)) = live {
            return Ok(Opened { session, agent, is_new: false });
        }
        let nonce = keys::random::<16>()?;
        let session = keys::session(&asked.authkey, &nonce);
        transaction.execute("DELETE FROM sessions WHERE key = ?1 OR used <= ?2", [key, now - self.timeout()])?;
        transaction.execute(
            "INSERT INTO sessions VALUES (?1, ?2, ?3, ?4, ?4)",
            params![keys::hash(&session), nonce, key, now],
        )?;
        transaction.execute("UPDATE keys SET used = max(used, ?2) WHERE id = ?1", [key, now])?;
        transaction.execute("UPDATE agents SET seen = max(seen, ?2) WHERE id = ?1", [agent.id as i64, now])?;
        Ok(Opened { session, agent, is_new: true })
    }

    /// Registers an agent that another daemon, or an earlier process of this one, has registered: with the UUID and the key of
    /// its request. `None`: what it calls itself is no UUID.
    fn adopt(
        &self,
        transaction: &Transaction<'_>,
        asked: &Opening,
        now: i64,
    ) -> Result<Option<ZicoAgent>, TransactionError> {
        let Some(uuid) = adoption::uuid_of(asked) else { return Ok(None) };
        let newcomer = Newcomer::of(transaction, network(&asked.address))?;
        self.make_space(transaction, &newcomer, now)?;
        let (key, unique) = (keys::hash(&asked.authkey), adoption::identity_of(&uuid, asked));
        transaction.execute(
            "INSERT INTO agents (uuid, name, app, env, attrs, rkey, address, registered, seen, network)
             VALUES (?1, '', '', '', '{}', ?2, ?3, ?4, ?4, ?5)",
            params![uuid, unique, asked.address, now, newcomer.network],
        )?;
        let id = transaction.last_insert_rowid();
        transaction
            .execute("INSERT INTO keys (agent, hash, issued, used) VALUES (?1, ?2, ?3, ?3)", params![id, key, now])?;
        self.openings.adopted(&uuid, asked);
        Ok(find(transaction, &uuid)?)
    }

    /// The agent of a live session.
    pub(super) fn session(&self, session: &str, now: i64) -> rusqlite::Result<Option<Arc<ZicoAgent>>> {
        if let Some((used, Some(agent))) = self.marks.used(session)
            && used > now - self.timeout()
        {
            return Ok(Some(agent));
        }
        let found = self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "SELECT agents.id, agents.uuid, name, app, env, attrs, sessions.used FROM sessions
                 JOIN keys ON keys.id = sessions.key JOIN agents ON agents.id = keys.agent WHERE sessions.hash = ?",
            )?;
            let row = |row: &Row<'_>| Ok((agent_of(row)?, row.get::<_, i64>(6)?));
            statement.query_row([keys::hash(session)], row).optional()
        })?;
        Ok(found.filter(|(_, used)| self.is_live(session, *used, now)).map(|(agent, _)| Arc::new(agent)))
    }

    /// Whether a session is live that was last used at `used` according to the file.
    fn is_live(&self, session: &str, used: i64, now: i64) -> bool {
        self.marks.used(session).map_or(used, |(marked, _)| marked.max(used)) > now - self.timeout()
    }

    /// How long an unused session lives, in milliseconds.
    fn timeout(&self) -> i64 {
        i64::try_from(self.options.session_timeout.as_millis()).unwrap_or(i64::MAX)
    }
}

/// The network of an agent that is to be registered.
struct Newcomer {
    network: String,
    /// The number of its registered agents.
    agents: usize,
}

impl Newcomer {
    fn of(transaction: &Transaction<'_>, network: String) -> rusqlite::Result<Newcomer> {
        let agents = transaction
            .prepare_cached("SELECT agents FROM networks WHERE network = ?")?
            .query_row([&network], number)
            .optional()?
            .unwrap_or(0);
        Ok(Newcomer { network, agents })
    }
}

/// Where there is no space for one more agent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    /// The newcomer's network has reached its limit.
    InNetwork,
    /// The rest of the table is for networks with few agents.
    BeforeReserve,
    /// The table is full.
    InTable,
}

/// The agent of a network that was not seen for longest, and not since `before`.
fn not_seen_since(transaction: &Transaction<'_>, network: &str, before: i64) -> rusqlite::Result<Option<i64>> {
    transaction
        .prepare_cached("SELECT id FROM agents WHERE network = ? AND seen < ? ORDER BY seen LIMIT 1")?
        .query_row(params![network, before], |row| row.get(0))
        .optional()
}

fn number(row: &Row<'_>) -> rusqlite::Result<usize> {
    number_at(row, 0)
}

fn number_at(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    Ok(usize::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

/// The number of the agent that proves its identity with its UUID and one of its keys.
fn known_by_key(transaction: &Transaction<'_>, asked: &Registration) -> Result<Option<i64>, TransactionError> {
    let (Some(uuid), Some(akey)) = (&asked.uuid, &asked.akey) else { return Ok(None) };
    let Some(agent) = find(transaction, uuid)? else { return Ok(None) };
    let id = agent.id as i64;
    Ok(key_of(transaction, id, akey)?.map(|_| id))
}

/// The number of this key of an agent; `None`: it has no such key.
fn key_of(connection: &Connection, agent: i64, authkey: &str) -> rusqlite::Result<Option<i64>> {
    let given = keys::hash(authkey);
    let mut statement = connection.prepare_cached("SELECT id, hash FROM keys WHERE agent = ?")?;
    let mut rows = statement.query([agent])?;
    let mut found = None;
    // All keys are compared, so that the time does not depend on which one matches.
    while let Some(row) = rows.next()? {
        if keys::is_among(&given, std::iter::once(&row.get(1)?)) {
            found = Some(row.get(0)?);
        }
    }
    Ok(found)
}

/// The agent with this UUID or number.
pub(super) fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<ZicoAgent>> {
    let number = name.parse::<i64>().ok();
    connection
        .prepare_cached("SELECT id, uuid, name, app, env, attrs FROM agents WHERE uuid = ?1 OR id = ?2")?
        .query_row(params![name.to_ascii_lowercase(), number], agent_of)
        .optional()
}

/// The agent in the first six columns.
fn agent_of(row: &Row<'_>) -> rusqlite::Result<ZicoAgent> {
    let attrs: String = row.get(5)?;
    Ok(ZicoAgent {
        id: row.get::<_, i64>(0)? as u64,
        uuid: row.get(1)?,
        name: row.get(2)?,
        app: row.get(3)?,
        env: row.get(4)?,
        attrs: attrs_from_json(&attrs),
    })
}

pub(super) fn attrs_to_json(attrs: &[(String, ResourceValue)]) -> String {
    let value = |value: &ResourceValue| match value {
        ResourceValue::Bool(value) => Value::Bool(*value),
        ResourceValue::I64(number) => (*number).into(),
        ResourceValue::U64(number) => (*number).into(),
        ResourceValue::F64(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
        ResourceValue::Text(text) => Value::String(text.clone()),
    };
    Value::Object(attrs.iter().map(|(key, attr)| (key.clone(), value(attr))).collect()).to_string()
}

/// Values that cannot be read, because they were changed by hand, are left out.
pub(super) fn attrs_from_json(text: &str) -> Vec<(String, ResourceValue)> {
    let map: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let value = |value: Value| {
        Some(match value {
            Value::Bool(value) => ResourceValue::Bool(value),
            Value::String(text) => ResourceValue::Text(text),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => ResourceValue::I64(number),
                (_, Some(number)) => ResourceValue::U64(number),
                _ => ResourceValue::F64(number.as_f64()?),
            },
            _ => return None,
        })
    };
    map.into_iter().filter_map(|(key, attr)| Some((key, value(attr)?))).collect()
}
