//! The daemon: configuration → bind everything → start the sinks → serve → drain in order.
//!
//! [`Server::start`] either starts all of it or nothing. [`Server::stop`] ends it from the sockets inward: listeners
//! stop accepting, sessions finish, lanes run dry, sinks flush; what the grace period does not suffice for is counted
//! as failed, so that the books balance in any case.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;

use crate::admin::options::AdminOptions;
use crate::admin::{Endpoint, Subject};
use crate::agents::{Headquarters, Processes};
use crate::config::{Config, ListenerConfig, ProtocolOptions, SinkConfig, SinkKind};
use crate::pipeline::ledger::{Accounts, Ledger, ListenerBooks};
use crate::pipeline::{Sender, Sinks, Workers};
use crate::protocol::bytefrog::Hq;
use crate::protocol::datadog::DatadogSession;
use crate::protocol::endless::EndlessExchange;
use crate::protocol::rbkit::{Agent, AgentOptions, AgentStatus, Control, Subscription};
use crate::protocol::zico::ZicoExchange;
use crate::protocol::zico::agents::{Agents, Recorded};
use crate::protocol::{MemoryBudget, Protocol, rbkit};
use crate::sink::discard::Discard;
use crate::sink::file::File;
use crate::sink::stdout::Stdout;
use crate::sink::{SinkError, SinkFault};
use crate::store::Store;
use crate::transport::clock::Clock;
use crate::transport::tcp::Listener;
use crate::transport::zmq::Dialer;

/// However the grace period was spent, sinks have this long (or as long as it was) to write what they hold.
const LAST_TURN: Duration = Duration::from_secs(1);

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<Bound>,
    ledger: Ledger,
    grace: Duration,
    headquarters: Vec<(String, Headquarters)>,
    processes: Vec<(String, Processes)>,
    admin: Option<(SocketAddr, AbortOnDropHandle<()>)>,
    listeners: Vec<JoinHandle<()>>,
    connections: TaskTracker,
    sender: Sender,
    workers: Workers,
    stop: CancellationToken,
    abort: CancellationToken,
}

/// A listener that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The operator's name for it.
    pub name: String,
    /// What is spoken there.
    pub protocol: Protocol,
    /// Where; a port 0 of the configuration is resolved.
    pub address: SocketAddr,
}

/// Why the daemon did not start, and which part of the configuration it was.
#[derive(Debug)]
pub struct StartError {
    /// The listener or sink, e.g. `listener spans on 127.0.0.1:8136`.
    pub part: String,
    /// What the system says.
    pub source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {}: {}", self.part, self.source)
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Binds every listener, starts every sink, and serves.
    ///
    /// # Errors
    /// A listener cannot be bound; nothing runs then.
    pub async fn start(config: &Config) -> Result<Server, StartError> {
        Server::start_with(config, |_| {}).await
    }

    /// The same with further sinks, for embedders: `add_sinks` adds them with [`Sinks::add`].
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub async fn start_with(config: &Config, add_sinks: impl FnOnce(&mut Sinks)) -> Result<Server, StartError> {
        let listeners: Vec<_> =
            config.listeners.iter().map(|config| Ok((Entrance::open(config)?, config))).collect::<Result<_, _>>()?;
        let admin = open_admin(&config.admin).await?;
        let stop = CancellationToken::new();
        let mut sinks = Sinks::new(stop.clone());
        config.sinks.iter().for_each(|sink| add_sink(&mut sinks, sink));
        add_sinks(&mut sinks);
        let listener_books = listeners.iter().map(|(entrance, _)| entrance.books.clone()).collect();
        let ledger = Ledger::new(listener_books, sinks.books().to_vec());
        let (sender, workers) = sinks.start();
        let mut server = Server {
            addresses: Vec::new(),
            ledger,
            grace: config.limits.shutdown_grace,
            headquarters: Vec::new(),
            processes: Vec::new(),
            admin: None,
            listeners: Vec::new(),
            connections: TaskTracker::new(),
            sender,
            workers,
            stop,
            abort: CancellationToken::new(),
        };
        let memory = MemoryBudget::new(config.limits.memory_bytes);
        let clock = Clock::start();
        for (entrance, config) in listeners {
            server.serve(entrance, config, &memory, clock);
        }
        if let Some((endpoint, address)) = admin {
            let subject = Subject {
                ledger: server.ledger.clone(),
                memory,
                headquarters: server.headquarters.clone(),
                processes: server.processes.clone(),
                stall_time: config.admin.stall_time,
                stop: server.stop.clone(),
            };
            server.admin = Some((address, endpoint.serve(subject)));
        }
        Ok(server)
    }

    /// Where it listens, in the order of the configuration.
    pub fn addresses(&self) -> &[Bound] {
        &self.addresses
    }

    /// The address of the first listener: what tests and demos with one listener ask for.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().map(|bound| bound.address)
    }

    /// The agents of a `bytefrog` listener of this name, to be looked at and commanded.
    pub fn bytefrog(&self, listener: &str) -> Option<&Headquarters> {
        self.headquarters.iter().find(|(name, _)| name == listener).map(|(_, headquarters)| headquarters)
    }

    /// The processes of an `rbkit` listener of this name, to be looked at and commanded.
    pub fn rbkit(&self, listener: &str) -> Option<&Processes> {
        self.processes.iter().find(|(name, _)| name == listener).map(|(_, processes)| processes)
    }

    /// Where the admin endpoint listens, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|(address, _)| *address)
    }

    /// The processes that are dialled, by listener.
    pub fn dialled(&self) -> impl Iterator<Item = (&str, Vec<AgentStatus>)> {
        self.processes.iter().map(|(name, processes)| (name.as_str(), processes.agents()))
    }

    /// The books, which stay readable after the daemon has stopped.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Every sink opens its files anew.
    pub fn reopen(&self) {
        self.workers.reopen();
    }

    /// Waits until the daemon wants to stop by itself: a sink's reader has left, or a sink that may not fail did.
    pub async fn wants_to_stop(&self) {
        self.stop.cancelled().await;
    }

    /// Stops in order, within the grace period of the configuration; answers the final books.
    pub async fn stop(mut self) -> Accounts {
        let mut deadline = Instant::now() + self.grace;
        self.stop.cancel();
        for listener in self.listeners.drain(..) {
            // A listener that panicked has nothing left to stop.
            let _ = listener.await;
        }
        self.connections.close();
        if timeout_at(deadline, self.connections.wait()).await.is_err() {
            warn!("the grace period is over: {} connections are given up", self.connections.len());
            self.abort.cancel();
            // Sinks that are well have not had their turn yet.
            deadline = Instant::now() + self.grace.min(LAST_TURN);
        }
        self.sender = Sender::default();
        if timeout_at(deadline, self.workers.drained()).await.is_err() {
            warn!("the grace period is over: what sinks have not written is given up");
            self.workers.abort().await;
        }
        // A connection that was given up has told its loss by now, or has found that no sink takes it any more.
        self.connections.wait().await;
        self.ledger.accounts()
    }

    fn serve(&mut self, entrance: Entrance, config: &ListenerConfig, memory: &Arc<MemoryBudget>, clock: Clock) {
        let Entrance { listener, agents, books } = entrance;
        if let Some(listener) = &listener
            && let Some(address) = listener.address().ok().or(config.listen)
        {
            self.addresses.push(Bound { name: config.name.clone(), protocol: listener.protocol, address });
        }
        let surroundings =
            (self.sender.clone(), clock, self.connections.clone(), self.stop.clone(), self.abort.clone());
        let (sender, clock, tasks, stop, abort) = surroundings;
        let (max_message_bytes, emit_definitions) = (config.options.max_message_bytes, config.options.emit_definitions);
        let memory = memory.clone();
        let serving = match (config.protocol.clone(), listener) {
            (ProtocolOptions::Bytefrog(options), Some(listener)) => {
                let sender = sender.with_patience(options.max_stall);
                let hq = Hq::new(options, emit_definitions, memory);
                self.headquarters.push((config.name.clone(), Headquarters::new(hq.clone(), clock)));
                let make = move |peer: SocketAddr| hq.session(Some(peer.ip()));
                tokio::spawn(listener.serve(make, sender, clock, tasks, stop, abort))
            }
            (ProtocolOptions::Datadog(options), Some(listener)) => {
                let make = move |_| DatadogSession::new(options.clone(), max_message_bytes, emit_definitions, &memory);
                tokio::spawn(listener.serve(make, sender, clock, tasks, stop, abort))
            }
            (ProtocolOptions::Endless(options, http), Some(listener)) => {
                let exchange = EndlessExchange::new(options, &memory);
                tokio::spawn(listener.serve_http(exchange, http, memory, sender, clock, tasks, stop, abort))
            }
            (ProtocolOptions::Rbkit(options), listener) => {
                let sender = sender.with_patience(options.max_stall);
                let options = Arc::new(options);
                self.dial(config, &options, books, (sender.clone(), clock));
                let Some(listener) = listener else { return };
                // Who connects to us publishes, and cannot be asked who it is.
                let make = move |_| {
                    let agent = Agent::new(AgentOptions::default());
                    Subscription::new(agent, options.clone(), max_message_bytes)
                };
                tokio::spawn(listener.serve(make, sender, clock, tasks, stop, abort))
            }
            (ProtocolOptions::Zico(options, store, http), Some(listener)) => {
                // There is a store for every listener whose agents register.
                let agents = agents.unwrap_or_else(|| Arc::new(Recorded::new()));
                let timeout = store.session_timeout;
                let exchange = ZicoExchange::new(options, timeout, agents, emit_definitions, &memory);
                tokio::spawn(listener.serve_http(exchange, http, memory, sender, clock, tasks, stop, abort))
            }
            // Every other protocol's listener has been bound.
            (_, None) => return,
        };
        self.listeners.push(serving);
    }

    /// Keeps the connections of an `rbkit` listener to its processes.
    fn dial(
        &mut self,
        config: &ListenerConfig,
        options: &Arc<rbkit::Options>,
        books: Arc<ListenerBooks>,
        hand_over: (Sender, Clock),
    ) {
        let reconnect = (options.reconnect.min, options.reconnect.max);
        let (tasks, tokens) = (self.connections.clone(), (self.stop.clone(), self.abort.clone()));
        let dialer = Dialer::new(
            &config.name,
            Protocol::Rbkit,
            reconnect,
            config.options.clone(),
            books,
            hand_over,
            tasks,
            tokens,
        );
        let agents: Vec<_> = options.agents.iter().cloned().map(Agent::new).collect();
        let max_message_bytes = config.options.max_message_bytes;
        for agent in &agents {
            if let Some(address) = agent.options().request.clone() {
                let (agent, options) = (agent.clone(), options.clone());
                let make = move || Control::new(agent.clone(), options.clone());
                self.listeners.push(tokio::spawn(dialer.clone().keep(address, make)));
            }
            if let Some(address) = agent.options().publish.clone() {
                let (agent, options) = (agent.clone(), options.clone());
                let make = move || Subscription::new(agent.clone(), options.clone(), max_message_bytes);
                self.listeners.push(tokio::spawn(dialer.clone().keep(address, make)));
            }
        }
        self.processes.push((config.name.clone(), Processes::new(agents)));
    }
}

/// Where a listener's connections come from: a bound address, or none where it is we who dial.
struct Entrance {
    listener: Option<Listener>,
    /// Who has registered, where agents do.
    agents: Option<Arc<dyn Agents>>,
    books: Arc<ListenerBooks>,
}

impl Entrance {
    fn open(config: &ListenerConfig) -> Result<Entrance, StartError> {
        let ListenerConfig { name, listen, options, protocol } = config;
        let Some(listen) = listen else {
            return Ok(Entrance {
                listener: None,
                agents: None,
                books: ListenerBooks::new(name.as_str().into(), protocol.protocol()),
            });
        };
        let listener = Listener::bind(name, protocol.protocol(), *listen, options.clone())
            .map_err(|source| StartError { part: format!("listener {name} on {listen}"), source })?;
        let books = listener.books.clone();
        Ok(Entrance { listener: Some(listener), agents: agents(config)?, books })
    }
}

/// Binds the admin endpoint, if there is to be one. A second daemon on a machine does without it, unless it is told an
/// address of its own.
async fn open_admin(options: &AdminOptions) -> Result<Option<(Endpoint, SocketAddr)>, StartError> {
    let Some(listen) = options.listen else { return Ok(None) };
    match Endpoint::bind(options, listen).await.and_then(|endpoint| Ok((endpoint.address()?, endpoint))) {
        Ok((address, endpoint)) => Ok(Some((endpoint, address))),
        Err(error) if options.is_default && error.kind() == io::ErrorKind::AddrInUse => {
            warn!("there is no admin endpoint: {listen} is in use; [admin] listen sets another address");
            Ok(None)
        }
        Err(source) => Err(StartError { part: format!("the admin endpoint on {listen}"), source }),
    }
}

/// Opens the store of a listener whose agents register.
fn agents(config: &ListenerConfig) -> Result<Option<Arc<dyn Agents>>, StartError> {
    let ProtocolOptions::Zico(_, options, _) = &config.protocol else { return Ok(None) };
    let part = || format!("the agents of listener {}", config.name);
    let store = Store::open(options, &config.name)
        .map_err(|error| StartError { part: part(), source: io::Error::other(error) })?;
    Ok(Some(Arc::new(store)))
}

fn add_sink(sinks: &mut Sinks, config: &SinkConfig) {
    let (name, lane) = (&config.name, config.lane.clone());
    match config.kind.clone() {
        SinkKind::Stdout { format } => sinks.add(name, lane, move || Ok(Stdout::new(format))),
        SinkKind::File(options) => sinks.add(name, lane, move || {
            let fault = |why| SinkFault { action: format!("use {}", options.path), source: io::Error::other(why) };
            File::new(options.clone()).map_err(|why: String| SinkError::Failed(fault(why)))
        }),
        SinkKind::Discard => sinks.add(name, lane, || Ok(Discard)),
    }
}
