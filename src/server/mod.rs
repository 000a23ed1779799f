//! The daemon: configuration → bind everything → start the sinks → serve → drain in order.
//!
//! [`Server::start`] either starts all of it or nothing. [`Server::reload`] exchanges what has changed. [`Server::stop`]
//! ends it from the sockets inward: listeners stop accepting, sessions finish, lanes run dry, sinks flush; what the grace
//! period does not suffice for is counted as failed, so that the books balance in any case.

mod listeners;
mod reload;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::warn;

use crate::admin::options::AdminOptions;
use crate::admin::{Endpoint, Serving, Subject};
use crate::agents::{Directory, Headquarters, Processes};
use crate::config::{Config, SinkConfig, SinkKind};
use crate::health::Health;
use crate::pipeline::ledger::{Accounts, Ledger};
use crate::pipeline::{Sinks, Workers};
use crate::protocol::rbkit::AgentStatus;
use crate::protocol::{MemoryBudget, Protocol};
use crate::sink::discard::Discard;
use crate::sink::file::File;
use crate::sink::stdout::Stdout;
use crate::sink::{SinkError, SinkFault};
use crate::transport::clock::Clock;
use crate::transport::tls::Tls;

use listeners::{Entrance, House, Running};
pub use reload::Reloaded;

/// However the grace period was spent, sinks have this long (or as long as it was) to write what they hold.
const LAST_TURN: Duration = Duration::from_secs(1);

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    /// What it runs by.
    config: Config,
    addresses: Vec<Bound>,
    ledger: Ledger,
    admin: Option<Admin>,
    listeners: Vec<Running>,
    house: House,
    workers: Workers,
    health: Arc<Health>,
    _watch: AbortOnDropHandle<()>,
}

/// The admin endpoint at work.
#[derive(Debug)]
struct Admin {
    address: SocketAddr,
    tls: Option<Tls>,
    serving: Serving,
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
        Server::start_on(config, Vec::new(), add_sinks).await
    }

    /// The same with sockets that listen already, as a service manager hands them over: a listener whose address one of
    /// them has takes it instead of binding. The others are closed.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub async fn start_on(
        config: &Config,
        sockets: Vec<TcpListener>,
        add_sinks: impl FnOnce(&mut Sinks),
    ) -> Result<Server, StartError> {
        let ledger = Ledger::default();
        let given = |listen: Option<SocketAddr>| {
            let socket = sockets.iter().find(|socket| socket.local_addr().ok() == listen)?;
            socket.set_nonblocking(true).ok()?;
            socket.try_clone().ok().map(Into::into)
        };
        let mut entrances = Vec::new();
        for config in &config.listeners {
            let mut entrance = Entrance::open(config, given(config.listen), &ledger)?;
            entrance.open_agents(config, None)?;
            entrances.push((entrance, config));
        }
        let admin = open_admin(&config.admin).await?;
        let stop = CancellationToken::new();
        let mut sinks = Sinks::new(stop.clone());
        config.sinks.iter().for_each(|sink| add_sink(&mut sinks, sink));
        add_sinks(&mut sinks);
        let (sender, workers) = sinks.start();
        ledger.set_sinks(workers.books());
        let house = House {
            sender,
            clock: Clock::start(),
            memory: MemoryBudget::new(config.bounds().left_of(config.limits.memory_bytes)),
            directory: Directory::default(),
            tasks: TaskTracker::new(),
            stop,
            abort: CancellationToken::new(),
        };
        entrances.iter().for_each(|(entrance, _)| entrance.enter(&ledger));
        let listeners = entrances.into_iter().map(|(entrance, config)| house.serve(entrance, config)).collect();
        let (memory, stall_time) = (house.memory.clone(), config.admin.stall_time);
        let health = Health::new(ledger.clone(), memory, house.stop.clone(), stall_time);
        let mut server = Server {
            config: config.clone(),
            addresses: Vec::new(),
            ledger,
            admin: None,
            listeners,
            house,
            workers,
            _watch: AbortOnDropHandle::new(tokio::spawn(health.clone().watch())),
            health,
        };
        server.note_addresses();
        if let Some(admin) = admin {
            server.serve_admin(admin);
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
    pub fn bytefrog(&self, listener: &str) -> Option<Headquarters> {
        self.house.directory.bytefrog(listener)
    }

    /// The processes of an `rbkit` listener of this name, to be looked at and commanded.
    pub fn rbkit(&self, listener: &str) -> Option<Processes> {
        self.house.directory.rbkit(listener)
    }

    /// Where the admin endpoint listens, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// The processes that are dialled, by listener.
    pub fn dialled(&self) -> Vec<(String, Vec<AgentStatus>)> {
        self.house.directory.processes().into_iter().map(|(name, processes)| (name, processes.agents())).collect()
    }

    /// Whether it makes progress.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
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
        self.house.stop.cancelled().await;
    }

    /// Stops in order, within the grace period of the configuration; answers the final books.
    pub async fn stop(self) -> Accounts {
        let Server { config, ledger, admin, listeners, house, mut workers, .. } = self;
        let House { sender, tasks: connections, stop, abort, .. } = house;
        let grace = config.limits.shutdown_grace;
        let mut deadline = Instant::now() + grace;
        stop.cancel();
        for listener in listeners {
            listener.stopped().await;
        }
        connections.close();
        if timeout_at(deadline, connections.wait()).await.is_err() {
            warn!("the grace period is over: {} connections are given up", connections.len());
            abort.cancel();
            // Sinks that are well have not had their turn yet.
            deadline = Instant::now() + grace.min(LAST_TURN);
        }
        let taps = sender.taps().clone();
        drop(sender);
        if timeout_at(deadline, workers.drained()).await.is_err() {
            warn!("the grace period is over: what sinks have not written is given up");
            workers.abort().await;
        }
        // A connection that was given up has told its loss by now, or has found that no sink takes it any more.
        connections.wait().await;
        // Until here it could be asked how the stopping goes.
        taps.close();
        if let Some(Admin { serving, .. }) = admin {
            serving.finish().await;
        }
        ledger.accounts()
    }

    fn note_addresses(&mut self) {
        self.addresses = self.listeners.iter().filter_map(Running::bound).collect();
    }

    fn serve_admin(&mut self, (endpoint, address): (Endpoint, SocketAddr)) {
        let subject = Subject {
            ledger: self.ledger.clone(),
            memory: self.house.memory.clone(),
            directory: self.house.directory.clone(),
            health: self.health.clone(),
            taps: self.house.sender.taps().clone(),
        };
        self.admin = Some(Admin { address, tls: endpoint.tls(), serving: endpoint.serve(subject) });
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
