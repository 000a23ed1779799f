//! The daemon: configuration → bind everything → start the sinks → serve → drain in order.
//!
//! [`Server::start`] either starts all of it or nothing. [`Server::reload`] exchanges what has changed. [`Server::stop`]
//! ends it from the sockets inward: listeners stop accepting, sessions finish, queues run dry, sinks flush; what the grace
//! period does not suffice for is counted as failed, so that the counters balance in any case.

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
use crate::commands::{Directory, Headquarters, Processes};
use crate::config::{Config, SinkConfig, SinkKind};
use crate::health::Health;
use crate::memory::MemoryBudget;
use crate::pipeline::accounting::{Accounting, Totals};
use crate::pipeline::{Sinks, Workers};
use crate::protocol::Protocol;
use crate::protocol::rbkit::AgentStatus;
use crate::sink::discard::Discard;
use crate::sink::file::File;
use crate::sink::stdout::{self, Stdout};
use crate::sink::tcp::Tcp;
use crate::sink::{SinkError, SinkFault};
use crate::transport::clock::Clock;
use crate::transport::tls::Tls;

use listeners::{BoundListener, ListenerHandle, Runtime};
pub use reload::Reloaded;

/// However the grace period was spent, sinks have this long (or as long as it was) to write what they hold.
const LAST_TURN: Duration = Duration::from_secs(1);

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    /// What it runs by.
    config: Config,
    addresses: Vec<Bound>,
    accounting: Accounting,
    admin: Option<Admin>,
    listeners: Vec<ListenerHandle>,
    runtime: Runtime,
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
        let accounting = Accounting::default();
        let given = |listen: Option<SocketAddr>| {
            let socket = sockets.iter().find(|socket| socket.local_addr().ok() == listen)?;
            socket.set_nonblocking(true).ok()?;
            socket.try_clone().ok().map(Into::into)
        };
        let mut bound_listeners = Vec::new();
        for config in &config.listeners {
            let mut bound_listener = BoundListener::open(config, given(config.listen), &accounting)?;
            bound_listener.open_agents(config, None)?;
            bound_listeners.push((bound_listener, config));
        }
        let admin = open_admin(&config.admin).await?;
        for sink in config.sinks.iter().filter(|sink| matches!(sink.kind, SinkKind::Stdout(_))) {
            stdout::check().map_err(|source| StartError { part: format!("sink {}", sink.name), source })?;
        }
        let stop = CancellationToken::new();
        let mut sinks = Sinks::new(stop.clone());
        config.sinks.iter().for_each(|sink| add_sink(&mut sinks, sink));
        add_sinks(&mut sinks);
        let (sender, workers) = sinks.start();
        accounting.set_sinks(workers.counters());
        let memory = MemoryBudget::new(config.bounds().left_of(config.limits.memory_bytes));
        memory.set_address_limit(config.limits.memory_per_address);
        let runtime = Runtime {
            sender,
            clock: Clock::start(),
            memory,
            directory: Directory::default(),
            tasks: TaskTracker::new(),
            stop,
            abort: CancellationToken::new(),
        };
        bound_listeners.iter().for_each(|(bound_listener, _)| bound_listener.enter(&accounting));
        let listeners =
            bound_listeners.into_iter().map(|(bound_listener, config)| runtime.serve(bound_listener, config)).collect();
        let (memory, stall_time) = (runtime.memory.clone(), config.admin.stall_time);
        let health = Health::new(accounting.clone(), memory, runtime.stop.clone(), stall_time);
        let mut server = Server {
            config: config.clone(),
            addresses: Vec::new(),
            accounting,
            admin: None,
            listeners,
            runtime,
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
        self.runtime.directory.bytefrog(listener)
    }

    /// The processes of an `rbkit` listener of this name, to be looked at and commanded.
    pub fn rbkit(&self, listener: &str) -> Option<Processes> {
        self.runtime.directory.rbkit(listener)
    }

    /// Where the admin endpoint listens, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(|admin| admin.address)
    }

    /// The processes that are dialled, by listener.
    pub fn dialled(&self) -> Vec<(String, Vec<AgentStatus>)> {
        self.runtime.directory.processes().into_iter().map(|(name, processes)| (name, processes.agents())).collect()
    }

    /// Whether it makes progress.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The counters, which stay readable after the daemon has stopped.
    pub fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// Every sink opens its files anew.
    pub fn reopen(&self) {
        self.workers.reopen();
    }

    /// Waits until the daemon wants to stop by itself: a sink's reader has left, or a sink that may not fail did.
    pub async fn wants_to_stop(&self) {
        self.runtime.stop.cancelled().await;
    }

    /// Stops in order, within the grace period of the configuration; answers the final counters.
    pub async fn stop(self) -> Totals {
        let Server { config, accounting, admin, listeners, runtime, mut workers, .. } = self;
        let Runtime { sender, tasks: connections, stop, abort, .. } = runtime;
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
        accounting.totals()
    }

    fn note_addresses(&mut self) {
        self.addresses = self.listeners.iter().filter_map(ListenerHandle::bound).collect();
    }

    fn serve_admin(&mut self, (endpoint, address): (Endpoint, SocketAddr)) {
        let subject = Subject {
            accounting: self.accounting.clone(),
            memory: self.runtime.memory.clone(),
            directory: self.runtime.directory.clone(),
            health: self.health.clone(),
            taps: self.runtime.sender.taps().clone(),
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
    let (name, queue) = (&config.name, config.queue.clone());
    match config.kind.clone() {
        SinkKind::Stdout(options) => sinks.add(name, queue, move || {
            let fault = |source| SinkFault { action: "use standard output".to_owned(), source };
            stdout::check().map_err(|source| SinkError::Failed(fault(source)))?;
            Ok(Stdout::new(options))
        }),
        SinkKind::Tcp(options) => sinks.add(name, queue, move || Ok(Tcp::new(options.clone()))),
        SinkKind::File(options) => sinks.add(name, queue, move || {
            let fault = |why| SinkFault { action: format!("use {}", options.path), source: io::Error::other(why) };
            File::new(options.clone()).map_err(|why: String| SinkError::Failed(fault(why)))
        }),
        SinkKind::Discard => sinks.add(name, queue, || Ok(Discard)),
    }
}
