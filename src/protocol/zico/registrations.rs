//! Where an exchange looks up agents: here, at once, or in a store that several daemons share, after its answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tributary_event::UnixNanos;

use super::agents::{
    Agents, Counters, Opened, Opening, Registered, Registration, Requester, StoredHost, ZicoAgent, ZicoAgentError,
};

/// The agents of one listener. Each [`Agents`] is one.
///
/// The methods are those of [`Agents`]. What must be looked up elsewhere is answered later.
pub trait Registrations: Send + Sync + 'static {
    /// See [`Agents::register`].
    fn register(&self, asked: Registration, address: &str, now: UnixNanos) -> Reply<Registered>;

    /// See [`Agents::open`]. A session belongs to the daemon that opened it, because the definitions of its agent are there.
    fn open(&self, asked: Opening, now: UnixNanos) -> Reply<Opened>;

    /// See [`Agents::session`]. A session of another daemon is unknown.
    ///
    /// # Errors
    /// As there.
    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError>;

    /// See [`Agents::agent`].
    fn agent(&self, name: &str) -> Reply<Option<Arc<ZicoAgent>>>;

    /// See [`Agents::admits`].
    fn admits(&self, pass_phrase: &str) -> bool;

    /// See [`Agents::seen`].
    fn seen(&self, requester: Requester<'_>, more: Counters, now: UnixNanos);

    /// See [`Agents::store_hosts`]. A store that several daemons share stores none.
    fn store_hosts(&self, _hosts: &[StoredHost]) {}

    /// See [`Agents::stored_hosts`].
    fn stored_hosts(&self) -> Vec<StoredHost> {
        Vec::new()
    }
}

impl<T: Agents> Registrations for T {
    fn register(&self, asked: Registration, address: &str, now: UnixNanos) -> Reply<Registered> {
        Reply::Now(Agents::register(self, &asked, address, now))
    }

    fn open(&self, asked: Opening, now: UnixNanos) -> Reply<Opened> {
        Reply::Now(Agents::open(self, &asked, now))
    }

    fn session(&self, session: &str, agent: Option<&str>, now: UnixNanos) -> Result<Arc<ZicoAgent>, ZicoAgentError> {
        Agents::session(self, session, agent, now)
    }

    fn agent(&self, name: &str) -> Reply<Option<Arc<ZicoAgent>>> {
        Reply::Now(Agents::agent(self, name))
    }

    fn admits(&self, pass_phrase: &str) -> bool {
        Agents::admits(self, pass_phrase)
    }

    fn seen(&self, requester: Requester<'_>, more: Counters, now: UnixNanos) {
        Agents::seen(self, requester, more, now);
    }

    fn store_hosts(&self, hosts: &[StoredHost]) {
        Agents::store_hosts(self, hosts);
    }

    fn stored_hosts(&self) -> Vec<StoredHost> {
        Agents::stored_hosts(self)
    }
}

/// The answer to a question about agents.
pub enum Reply<T> {
    /// It is known.
    Now(Result<T, ZicoAgentError>),
    /// It must be waited for.
    Later(Pin<Box<dyn Future<Output = Result<T, ZicoAgentError>> + Send>>),
}

impl<T> Reply<T> {
    /// Whether it is known now; otherwise `context` is woken.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Reply::Later(answer) = self {
            match answer.as_mut().poll(context) {
                Poll::Ready(answer) => *self = Reply::Now(answer),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reply::Now(_) => "Now",
            Reply::Later(_) => "Later",
        })
    }
}
