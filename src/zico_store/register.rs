//! Registrations and sessions: one transaction each, committed before it is answered.

use std::sync::Arc;

use ring::error::Unspecified;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use serde_json::{Map, Number, Value};

use super::{Shared, Store, StoreOptions, aside, keys, millis};
use crate::event::{ResourceValue, UnixNanos};
use crate::protocol::zico::agents::{
    Agent, Agents, Counters, Opened, Opening, Refusal, Registered, Registration, Whom,
};

/// Whatever goes wrong inside a transaction.
enum Failure {
    Refused(Refusal),
    File(rusqlite::Error),
    Random,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::File(error)
    }
}

impl From<Unspecified> for Failure {
    fn from(_: Unspecified) -> Self {
        Failure::Random
    }
}

impl Agents for Store {
    fn register(&self, asked: &Registration, address: &str, now: UnixNanos) -> Result<Registered, Refusal> {
        let shared = &*self.shared;
        if shared.admitted.as_ref().is_some_and(|keys| !aside(|| keys.admit(&asked.rkey))) {
            return Err(Refusal::Denied("the registration key is not one that is let in here"));
        }
        aside(|| {
            let rkey = shared.digests.digest(&asked.rkey);
            let work =
                |transaction: &Transaction<'_>| shared.registration(transaction, asked, &rkey, address, millis(now));
            let registered = shared.commit(work)?;
            // It may call itself something else now, and others may have made room.
            shared.marks.look_again();
            Ok(registered)
        })
    }

    fn open(&self, asked: &Opening, now: UnixNanos) -> Result<Opened, Refusal> {
        let shared = &*self.shared;
        let opened = aside(|| shared.commit(|transaction| shared.opening(transaction, asked, millis(now))))?;
        shared.marks.use_session(&opened.session, None, millis(now));
        Ok(opened)
    }

    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<Agent>, Refusal> {
        let (shared, now) = (&*self.shared, millis(now));
        let found = shared.session(session, now).map_err(|error| shared.failed(&error))?;
        let found = found.ok_or(Refusal::Denied("no such session, or it is over; open another one"))?;
        if agent.is_some_and(|name| !found.is_called(name)) {
            return Err(Refusal::Denied("the session is another agent's"));
        }
        shared.marks.use_session(session, Some(found.clone()), now);
        Ok(found)
    }

    fn agent(&self, name: &str) -> Result<Option<Arc<Agent>>, Refusal> {
        let found = find(&self.shared.reader(), name).map_err(|error| self.shared.failed(&error))?;
        Ok(found.map(Arc::new))
    }

    fn seen(&self, whom: Whom<'_>, more: Counters, now: UnixNanos) {
        self.shared.marks.count(whom, more, millis(now));
    }
}

impl Shared {
    /// Does something in one transaction; when this answers `Ok`, it is on the disk.
    fn commit<T>(&self, work: impl FnOnce(&Transaction<'_>) -> Result<T, Failure>) -> Result<T, Refusal> {
        let mut connection = self.writer();
        let all = || -> Result<T, Failure> {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        };
        all().map_err(|failure| match failure {
            Failure::Refused(refusal) => refusal,
            Failure::File(error) => self.failed(&error),
            Failure::Random => Refusal::Broken("the system has no random numbers".to_owned()),
        })
    }

    fn registration(
        &self,
        transaction: &Transaction<'_>,
        asked: &Registration,
        rkey: &keys::Hash,
        address: &str,
        now: i64,
    ) -> Result<Registered, Failure> {
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
                self.make_room(transaction, address, now)?;
                transaction.execute(
                    "INSERT INTO agents (uuid, name, app, env, attrs, rkey, address, registered, seen)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
                    params![keys::uuid()?, name, app, env, attrs, rkey, address, now],
                )?;
                transaction.last_insert_rowid()
            }
        };
        let authkey = keys::key()?;
        transaction.execute(
            "INSERT INTO keys (agent, hash, issued, used) VALUES (?1, ?2, ?3, ?3)",
            params![id, keys::hash(&authkey), now],
        )?;
        // Keys whose session lives stay longest, then the newest.
        let others = self.options.max_sessions_per_agent as i64 - 1;
        transaction.execute(
            "DELETE FROM keys WHERE id IN (
                 SELECT keys.id FROM keys LEFT JOIN sessions ON sessions.key = keys.id AND sessions.used > ?2
                 WHERE keys.agent = ?1 AND keys.id <> ?3 ORDER BY sessions.uuid IS NULL, keys.used DESC, keys.id DESC
                 LIMIT -1 OFFSET ?4)",
            params![id, now - self.timeout(), transaction.last_insert_rowid(), others],
        )?;
        let agent = transaction
            .prepare_cached("SELECT id, uuid, name, app, env, attrs FROM agents WHERE id = ?")?
            .query_row([id], agent_of)?;
        Ok(Registered { agent: Arc::new(agent), authkey, is_new: known.is_none() })
    }

    /// Sees that one more agent may be known.
    fn make_room(&self, transaction: &Transaction<'_>, address: &str, now: i64) -> Result<(), Failure> {
        let StoreOptions { max_agents, max_agents_per_address, .. } = self.options;
        let limits = [
            (None, max_agents, "as many agents are registered as may be (max_agents)"),
            (
                Some(address),
                max_agents_per_address,
                "as many agents have registered from this address as may (max_agents_per_address)",
            ),
        ];
        for (address, limit, why) in limits {
            let known: i64 = transaction
                .prepare_cached("SELECT count(*) FROM agents WHERE ?1 IS NULL OR address = ?1")?
                .query_row([address], |row| row.get(0))?;
            if known >= limit as i64 && !self.forget_one(transaction, address, now)? {
                return Err(Failure::Refused(Refusal::Full(why.to_owned())));
            }
        }
        Ok(())
    }

    /// Forgets an agent that nobody has heard of for long, or for a session's time if it has never sent a thing.
    fn forget_one(&self, transaction: &Transaction<'_>, address: Option<&str>, now: i64) -> Result<bool, Failure> {
        let retention = i64::try_from(self.options.agent_retention.as_millis()).unwrap_or(i64::MAX);
        let forgotten = transaction.execute(
            "DELETE FROM agents WHERE id = (
                 SELECT id FROM agents WHERE (?1 IS NULL OR address = ?1)
                 AND (seen < ?2 OR requests = 0 AND seen < ?3) ORDER BY requests > 0, seen LIMIT 1)",
            params![address, now.saturating_sub(retention), now.saturating_sub(self.timeout())],
        )?;
        Ok(forgotten > 0)
    }

    fn opening(&self, transaction: &Transaction<'_>, asked: &Opening, now: i64) -> Result<Opened, Failure> {
        let denied = || Failure::Refused(Refusal::Denied("no such agent, or not its key"));
        let agent = find(transaction, &asked.agent)?.ok_or_else(denied)?;
        let key = key_of(transaction, agent.id as i64, &asked.authkey)?.ok_or_else(denied)?;
        let live = transaction
            .prepare_cached("SELECT uuid, used FROM sessions WHERE key = ?")?
            .query_row([key], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))
            .optional()?
            .filter(|(uuid, used)| self.lives(uuid, *used, now));
        let agent = Arc::new(agent);
        if let Some((session, _)) = live {
            return Ok(Opened { session, agent, is_new: false });
        }
        let session = keys::uuid()?;
        transaction.execute("DELETE FROM sessions WHERE key = ?1 OR used <= ?2", [key, now - self.timeout()])?;
        transaction.execute("INSERT INTO sessions VALUES (?1, ?2, ?3, ?3)", params![session, key, now])?;
        transaction.execute("UPDATE keys SET used = max(used, ?2) WHERE id = ?1", [key, now])?;
        transaction.execute("UPDATE agents SET seen = max(seen, ?2) WHERE id = ?1", [agent.id as i64, now])?;
        Ok(Opened { session, agent, is_new: true })
    }

    /// The agent of a session, if the session lives.
    fn session(&self, session: &str, now: i64) -> rusqlite::Result<Option<Arc<Agent>>> {
        if let Some((used, Some(agent))) = self.marks.used(session)
            && used > now - self.timeout()
        {
            return Ok(Some(agent));
        }
        let connection = self.reader();
        let mut statement = connection.prepare_cached(
            "SELECT agents.id, agents.uuid, name, app, env, attrs, sessions.used FROM sessions
             JOIN keys ON keys.id = sessions.key JOIN agents ON agents.id = keys.agent WHERE sessions.uuid = ?",
        )?;
        let found = statement.query_row([session], |row| Ok((agent_of(row)?, row.get::<_, i64>(6)?))).optional()?;
        Ok(found.filter(|(_, used)| self.lives(session, *used, now)).map(|(agent, _)| Arc::new(agent)))
    }

    /// Whether a session lives that the file says was used then.
    fn lives(&self, session: &str, used: i64, now: i64) -> bool {
        self.marks.used(session).map_or(used, |(marked, _)| marked.max(used)) > now - self.timeout()
    }

    /// How long a session lives, in milliseconds.
    fn timeout(&self) -> i64 {
        i64::try_from(self.options.session_timeout.as_millis()).unwrap_or(i64::MAX)
    }
}

/// The agent that proves with a key to be the one that it was.
fn known_by_key(transaction: &Transaction<'_>, asked: &Registration) -> Result<Option<i64>, Failure> {
    let (Some(uuid), Some(akey)) = (&asked.uuid, &asked.akey) else { return Ok(None) };
    let Some(agent) = find(transaction, uuid)? else { return Ok(None) };
    let id = agent.id as i64;
    Ok(key_of(transaction, id, akey)?.map(|_| id))
}

/// The number of an agent's key, if this is one.
fn key_of(connection: &Connection, agent: i64, authkey: &str) -> rusqlite::Result<Option<i64>> {
    let given = keys::hash(authkey);
    let mut statement = connection.prepare_cached("SELECT id, hash FROM keys WHERE agent = ?")?;
    let mut rows = statement.query([agent])?;
    let mut found = None;
    // All of them, so that the time does not tell which.
    while let Some(row) = rows.next()? {
        if keys::is_among(&given, std::iter::once(&row.get(1)?)) {
            found = Some(row.get(0)?);
        }
    }
    Ok(found)
}

/// The agent of this uuid or number.
fn find(connection: &Connection, name: &str) -> rusqlite::Result<Option<Agent>> {
    let number = name.parse::<i64>().ok();
    connection
        .prepare_cached("SELECT id, uuid, name, app, env, attrs FROM agents WHERE uuid = ?1 OR id = ?2")?
        .query_row(params![name.to_ascii_lowercase(), number], agent_of)
        .optional()
}

/// The agent in the first six columns.
fn agent_of(row: &Row<'_>) -> rusqlite::Result<Agent> {
    let attrs: String = row.get(5)?;
    Ok(Agent {
        id: row.get::<_, i64>(0)? as u64,
        uuid: row.get(1)?,
        name: row.get(2)?,
        app: row.get(3)?,
        env: row.get(4)?,
        attrs: attrs_from_json(&attrs),
    })
}

fn attrs_to_json(attrs: &[(String, ResourceValue)]) -> String {
    let value = |value: &ResourceValue| match value {
        ResourceValue::Bool(value) => Value::Bool(*value),
        ResourceValue::I64(number) => (*number).into(),
        ResourceValue::U64(number) => (*number).into(),
        ResourceValue::F64(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
        ResourceValue::Text(text) => Value::String(text.clone()),
    };
    Value::Object(attrs.iter().map(|(key, attr)| (key.clone(), value(attr))).collect()).to_string()
}

/// What somebody has changed by hand and cannot be read is passed over.
fn attrs_from_json(text: &str) -> Vec<(String, ResourceValue)> {
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
