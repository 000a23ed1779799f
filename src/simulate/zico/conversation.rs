//! The HTTP requests of a Zorka agent, and its retries (sections 1.1 to 1.3).

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::super::http::{LAST_ANSWER, answer};
use super::super::pace::slices;
use super::super::tcp::{Outcome, SimulatedConnection, unix_nanos};
use super::{Jvm, Submission, ZicoDialect, base64};

/// How often a request is sent that the collector does not accept.
pub(super) const ATTEMPTS: u32 = 10;
/// How long an agent waits before the second attempt; the wait doubles with each further one.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(125);

/// Runs an agent as `connection` plans.
pub(in super::super) async fn run(connection: SimulatedConnection, seed: u64, dialect: ZicoDialect) -> Outcome {
    if dialect == ZicoDialect::Fressian {
        return super::packets::run(connection, seed).await;
    }
    let outcome = Outcome::new();
    let jvm = Jvm::new(seed, connection.number, unix_nanos(), dialect);
    let mut agent = AgentConversation {
        jvm,
        stream: None,
        known_as: None,
        session: String::new(),
        is_open: false,
        outcome,
        connection,
    };
    let result = agent.converse().await;
    agent.outcome.ended(&agent.connection, result)
}

struct AgentConversation {
    connection: SimulatedConnection,
    jvm: Jvm,
    stream: Option<BufReader<TcpStream>>,
    /// Its UUID and key, once it is registered.
    known_as: Option<(String, String)>,
    /// The session id: the collector's, in gen2 its own.
    session: String,
    /// gen2: the collector accepted the session.
    is_open: bool,
    outcome: Outcome,
}

impl AgentConversation {
    async fn converse(&mut self) -> io::Result<()> {
        // A collector that is not there is a mistake of the caller. One that goes away is waited for, as real agents do.
        let Some(stream) = self.connection.open().await? else { return Ok(()) };
        self.stream = Some(BufReader::new(stream));
        if !self.introduce().await? {
            return Ok(());
        }
        let mut slices = slices();
        while self.connection.due_after(self.outcome.counts.events, &mut slices).await.is_some() {
            // Traces are not divided for the rate.
            let left = self.connection.events - self.outcome.counts.events;
            // The start of a session is an event, too.
            let opening = u64::from(self.jvm.dialect == ZicoDialect::Gen2 && !self.is_open);
            let trace = self.jvm.trace(left.saturating_sub(opening), unix_nanos());
            for submission in trace.submissions() {
                self.deliver(&submission, left > opening).await?;
                if left == opening {
                    break;
                }
            }
        }
        match self.stream.take() {
            Some(mut stream) => stream.shutdown().await,
            None => Ok(()),
        }
    }

    /// Registers and opens a session, if the dialect does. `false`: the planned amount is sent.
    async fn introduce(&mut self) -> io::Result<bool> {
        if self.jvm.dialect == ZicoDialect::Gen2 {
            self.session = format!("{:016x}", self.jvm.rng.next());
            return Ok(true);
        }
        let name = format!("shop-{}.example", self.connection.number);
        let (kind, body) = match self.jvm.dialect {
            ZicoDialect::Doc => (
                "edn",
                format!(r#"{{:rkey "simulated" :name "{name}" :app "shop" :env "DEMO" :attrs {{:shelves 40}}}}"#),
            ),
            _ => ("json", format!(r#"{{"app":"shop","rkey":"simulated","name":"{name}","env":"DEMO"}}"#)),
        };
        let headers = format!("Content-Type: application/{kind}\r\n");
        let reply = self.insist("/agent/register", &headers, body.as_bytes()).await?;
        let word = |key: &str| reply.get(key).and_then(Value::as_str).map(str::to_owned);
        self.known_as = word("uuid").zip(word("authkey"));
        if self.known_as.is_none() {
            return Err(io::Error::other("the collector registers an agent without a uuid or an authkey"));
        }
        self.outcome.counts.events += 1;
        if self.outcome.counts.events >= self.connection.events {
            return Ok(false);
        }
        self.open_session().await?;
        Ok(true)
    }

    async fn open_session(&mut self) -> io::Result<()> {
        let Some((uuid, authkey)) = self.known_as.clone() else { return Ok(()) };
        // Agents up to 1.90.5 send no content type.
        let headers = if self.jvm.is_streaming { "" } else { "Content-Type: application/json\r\n" };
        let name = if self.jvm.is_streaming { "uuid" } else { "id" };
        let body = format!(r#"{{"authkey":"{authkey}","{name}":"{uuid}"}}"#);
        let reply = self.insist("/agent/session", headers, body.as_bytes()).await?;
        let session = reply.get("session").and_then(Value::as_str);
        let none = || io::Error::other("the collector opens a session without an id");
        session.ok_or_else(none)?.clone_into(&mut self.session);
        // The collector emits an event that it was opened, or reset.
        self.outcome.counts.events += 1;
        Ok(())
    }

    /// Posts until the answer is a success; returns its body.
    async fn insist(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<Value> {
        for attempt in 1.. {
            match self.post(path, headers, body).await {
                Ok((200..=299, reply)) => return serde_json::from_slice(&reply).map_err(io::Error::other),
                failed => self.wait(attempt, path, failed).await?,
            }
        }
        Err(io::ErrorKind::Other.into())
    }

    /// Sends the definitions of a submission and then its parts, until all are accepted; or only the definitions.
    async fn deliver(&mut self, submission: &Submission<'_>, is_whole: bool) -> io::Result<()> {
        let mut is_reset = self.jvm.dialect == ZicoDialect::Gen2 && !self.is_open;
        let mut done = 0;
        let mut uuid = self.trace_id(submission);
        for attempt in 1.. {
            let bodies = self.jvm.bodies(submission);
            let mut failed = None;
            if !bodies.symbols.is_empty() {
                failed = self.symbols(&bodies.symbols, is_reset).await;
                if failed.is_none() && std::mem::take(&mut is_reset) {
                    // As in the other dialects.
                    self.outcome.counts.events += 1;
                    self.is_open = true;
                }
            }
            while failed.is_none() && is_whole && done < bodies.parts.len() {
                failed = self.part(&bodies.parts[done], &uuid).await;
                done += usize::from(failed.is_none());
            }
            let Some(failed) = failed else {
                self.outcome.counts.events += if is_whole { submission.events } else { 0 };
                return Ok(());
            };
            self.jvm.forget();
            is_reset = self.jvm.dialect == ZicoDialect::Gen2;
            // Further parts have the UUID of the first one.
            if done == 0 {
                uuid = self.trace_id(submission);
            }
            if self.jvm.dialect != ZicoDialect::Gen2 {
                self.open_session().await?;
            }
            self.wait(attempt, "a trace", failed).await?;
        }
        Ok(())
    }

    /// The id of a submission: that of its distributed context, or another one with each attempt.
    fn trace_id(&mut self, submission: &Submission<'_>) -> String {
        submission.trace().map_or_else(|| self.jvm.uuid(), str::to_owned)
    }

    /// `None`: the collector accepted them.
    async fn symbols(&mut self, symbols: &[u8], is_reset: bool) -> Option<io::Result<(u16, Vec<u8>)>> {
        let answered = match (&self.known_as, self.jvm.dialect) {
            (Some((host, _)), ZicoDialect::Doc) => {
                let host = host.clone();
                match self.jvm.form(&host, symbols) {
                    Ok(form) => self.post("/submit/agent", FORM_HEADER, &form).await,
                    Err(error) => Err(error),
                }
            }
            _ => {
                let mut headers = self.session_headers();
                if self.jvm.dialect == ZicoDialect::Gen2 {
                    headers.push_str(&format!("X-Zorka-Session-Reset: {is_reset}\r\n"));
                }
                self.post_cbor("/agent/submit/agd", &headers, symbols).await
            }
        };
        refused(answered)
    }

    async fn part(&mut self, part: &[u8], uuid: &str) -> Option<io::Result<(u16, Vec<u8>)>> {
        let mut headers = self.session_headers();
        match self.jvm.dialect {
            ZicoDialect::Gen2 => {
                let id = uuid.replace('-', "");
                headers.push_str(&format!("X-Zorka-Session-Reset: false\r\nX-Zorka-Trace-Id: {id}\r\n"));
            }
            _ => headers.push_str(&format!("X-Zorka-Trace-UUID: {uuid}\r\n")),
        }
        refused(self.post_cbor("/agent/submit/trc", &headers, part).await)
    }

    fn session_headers(&self) -> String {
        let session = &self.session;
        match &self.known_as {
            Some((agent, _)) if self.jvm.is_streaming => {
                format!("X-Zorka-Agent-UUID: {agent}\r\nX-Zorka-Session-UUID: {session}\r\n")
            }
            Some((agent, _)) => format!("X-Zorka-Agent-Id: {agent}\r\nX-Zorka-Session-Uuid: {session}\r\n"),
            None => format!("X-Zorka-Session-Id: {session}\r\n"),
        }
    }

    /// Agents up to 1.90.5 post base64 with the content type of CBOR.
    async fn post_cbor(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let headers = format!("{headers}Content-Type: application/zorka+cbor+v1\r\n");
        if self.jvm.dialect == ZicoDialect::Gen1 && self.jvm.is_streaming {
            self.post(path, &headers, base64(body).as_bytes()).await
        } else {
            self.post(path, &headers, body).await
        }
    }

    async fn post(&mut self, path: &str, headers: &str, body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
        let host = self.connection.to;
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\n{headers}Content-Length: {length}\r\nHost: {host}\r\n\r\n");
        let request = [head.as_bytes(), body].concat();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(self.connection.connect().await?),
        };
        stream.write_all(&request).await?;
        self.outcome.bytes += request.len() as u64;
        self.outcome.counts.messages += 1;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the collector does not answer");
        let answered = tokio::time::timeout(LAST_ANSWER, answer(&mut stream)).await.map_err(late)??;
        self.outcome.finished = Instant::now();
        // Agents up to 1.90.5 open a connection for each request.
        if self.jvm.dialect != ZicoDialect::Gen1 || !self.jvm.is_streaming {
            self.stream = Some(stream);
        }
        Ok(answered)
    }

    /// Waits before the next attempt, or gives up.
    async fn wait(&mut self, attempt: u32, what: &str, failed: io::Result<(u16, Vec<u8>)>) -> io::Result<()> {
        let is_halted = self.connection.halt.is_cancelled();
        if attempt < ATTEMPTS && !is_halted {
            tokio::select! {
                () = tokio::time::sleep(FIRST_WAIT * 2u32.pow(attempt - 1)) => {}
                () = self.connection.halt.cancelled() => {}
            }
            return Ok(());
        }
        let (status, reply) = failed?;
        let reply: String = String::from_utf8_lossy(&reply).chars().take(200).collect();
        Err(io::Error::other(format!("{what}: the collector answers {status} {}", reply.trim_end())))
    }
}

const FORM_HEADER: &str = "Content-Type: application/x-www-form-urlencoded\r\n";

/// An answer that is not a success.
fn refused(answered: io::Result<(u16, Vec<u8>)>) -> Option<io::Result<(u16, Vec<u8>)>> {
    match answered {
        Ok((200..=299, _)) => None,
        failed => Some(failed),
    }
}
