//! Listeners: how each is bound and started, and the session or exchange of each of its connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::commands::{BytefrogAgents, Directory, Processes};
use crate::config::{ListenerConfig, ProtocolOptions};
use crate::endless_store::SeenStore;
use crate::profile_files::ProfileDirectory;
use crate::quarantine::Quarantined;
use crate::rbkit_store::ProfileStore;
use tributary_bytefrog::Hq;
use tributary_datadog::DatadogSession;
use tributary_datadog_agent::{DatadogAgentExchange, ProfileFiles};
use tributary_endless::EndlessExchange;
use tributary_memory::MemoryBudget;
use tributary_nats::NatsError;
use tributary_otlp::OtlpExchange;
use tributary_pipeline::accounting::{Accounting, ListenerCounters, SharedStoreError, StoreStatus};
use tributary_pipeline::{RequestedLevel, Sender};
use tributary_protocol::DatagramReader;
use tributary_rbkit as rbkit;
use tributary_rbkit::{AgentOptions, Control, PendingUndo, RbkitAgent, RbkitCommand, Subscription, UndoStore};
use tributary_sink::AckLevel;
use tributary_transport::capture::Capture;
use tributary_transport::clock::Clock;
use tributary_transport::context::ListenerContext;
use tributary_transport::dialer::{Dialer, Finish, NothingToFinish};
use tributary_transport::http::serve_http;
#[cfg(feature = "fleet")]
use tributary_transport::nats::NatsListener;
use tributary_transport::port_holder;
use tributary_transport::tcp::{self, Draining, Listener};
use tributary_transport::tls::{Tls, TlsError};
use tributary_zico::ZicoExchange;
use tributary_zico::agents::Recorded;
use tributary_zico::registrations::Registrations;
use tributary_zico_store::{AgentStore, SharedStore};

use super::further_sockets::{self, FurtherSocket};
use super::{Bound, StartError};

/// How long agents of a listener that has been changed or removed may take to shut down, while the daemon continues.
const PROGRAM_GRACE: Duration = Duration::from_secs(300);

/// What all listeners share.
#[derive(Debug)]
pub(super) struct Runtime {
    /// Where listeners and connections run.
    pub(super) decoding: Handle,
    pub(super) sender: Sender,
    pub(super) clock: Clock,
    /// `limits.shutdown_grace`.
    pub(super) grace: Duration,
    pub(super) memory: Arc<MemoryBudget>,
    pub(super) directory: Directory,
    /// Every task that may hand over events.
    pub(super) tasks: TaskTracker,
    /// Cancelled when the daemon stops.
    pub(super) stop: CancellationToken,
    /// Cancelled when the stop must end within seconds.
    pub(super) hurry: CancellationToken,
    /// Cancelled when tasks that have not ended by themselves are given up.
    pub(super) abort: CancellationToken,
}

/// A listener that does not serve yet: bound to an address, or without one if it dials.
pub(super) struct BoundListener {
    listener: Option<Listener>,
    /// A second handle of its socket.
    socket: Option<Socket>,
    further: Vec<FurtherSocket>,
    counters: Arc<ListenerCounters>,
    parts: ProtocolParts,
}

/// What a listener of one protocol has beside its socket.
enum ProtocolParts {
    /// The traced programs of the listener whose socket it takes over.
    Bytefrog(Option<Hq>),
    /// The processes that it connects to, and the store of what is switched on in them.
    Rbkit(Vec<RbkitAgent>, Option<Arc<ProfileStore>>),
    /// The registered agents, when they are open, and the status of their store if it is a new one.
    Zico(Option<Arc<dyn Registrations>>, Option<Arc<StoreStatus>>),
    Others,
}

/// A listener that serves.
pub(super) struct ListenerHandle {
    pub(super) config: ListenerConfig,
    address: Option<SocketAddr>,
    /// A second handle of its socket, through which a listener with other options takes over the connections that wait in
    /// its queue.
    socket: Option<Socket>,
    pub(super) further: Vec<FurtherSocket>,
    agents: Option<Arc<dyn Registrations>>,
    /// The processes that it connects to.
    processes: Vec<RbkitAgent>,
    tls: Option<Tls>,
    counters: Arc<ListenerCounters>,
    stop: CancellationToken,
    abort: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    /// Its traced programs, and how they shut down.
    traced: Option<(Hq, Draining)>,
    /// The level at which it acknowledges requests.
    level: RequestedLevel,
}

impl BoundListener {
    /// Binds the listener's address, or uses `socket`, which is bound to it already. Its counters are those that it had,
    /// or new ones, which the accounting does not show yet.
    pub(super) fn open(
        config: &ListenerConfig,
        socket: Option<Socket>,
        further: &[&FurtherSocket],
        accounting: &Accounting,
        decoding: &Handle,
    ) -> Result<BoundListener, StartError> {
        // The socket's readiness belongs to the runtime that serves it.
        let _entered = decoding.enter();
        let ListenerConfig { name, listen, options, protocol } = config;
        let further = further_sockets::open(name, protocol, further)?;
        let counters = accounting.listener(name, protocol.protocol());
        let parts = ProtocolParts::open(name, protocol)?;
        let Some(listen) = listen else {
            return Ok(BoundListener { listener: None, socket: None, further, counters, parts });
        };
        let open = || {
            let bind = || tcp::bind(*listen).map_err(|error| port_holder::explained(*listen, &error));
            let socket = socket.map_or_else(bind, Ok)?;
            let second = socket.try_clone()?;
            Ok((Listener::on(socket, options)?, second))
        };
        let (listener, second) =
            open().map_err(|source| StartError { part: format!("listener {name} on {listen}"), source })?;
        Ok(BoundListener { listener: Some(listener), socket: Some(second), further, counters, parts })
    }

    /// The processes that it connects to.
    pub(super) fn processes(&self) -> &[RbkitAgent] {
        match &self.parts {
            ProtocolParts::Rbkit(processes, _) => processes,
            _ => &[],
        }
    }

    /// Takes over the socket of `running`: its traced programs open their data connections here.
    pub(super) fn replace(&mut self, running: &ListenerHandle) {
        if let ProtocolParts::Bytefrog(runs) = &mut self.parts {
            *runs = running.traced.as_ref().map(|(hq, _)| hq.clone());
        }
    }

    /// Lets the accounting show its counters.
    pub(super) fn enter(&self, accounting: &Accounting) {
        accounting.enter(&self.counters);
    }

    /// Opens the store of its agents if they register; uses `known` if that is open already.
    pub(super) fn open_agents(
        &mut self,
        config: &ListenerConfig,
        known: Option<Arc<dyn Registrations>>,
        decoding: &Handle,
    ) -> Result<(), StartError> {
        let ProtocolOptions::Zico(zico, options, _) = &config.protocol else { return Ok(()) };
        if known.is_some() {
            self.parts = ProtocolParts::Zico(known, None);
            return Ok(());
        }
        let status = Arc::<StoreStatus>::default();
        let open = || {
            let part = format!("the agents of listener {}", config.name);
            let opened = match &options.state {
                Some(bucket) => {
                    let note = note_store(&status);
                    let store = SharedStore::start(options, bucket, &config.name, zico.max_sessions, note, decoding);
                    store.map(|store| Arc::new(store) as Arc<dyn Registrations>)
                }
                None => AgentStore::open(options, &config.name).map(|store| Arc::new(store) as _),
            };
            opened.map_err(|error| StartError { part, source: io::Error::other(error) })
        };
        self.parts = ProtocolParts::Zico(Some(open()?), Some(status));
        Ok(())
    }
}

/// Notes in the status of a store whether it can be used.
fn note_store(status: &Arc<StoreStatus>) -> impl Fn(Option<&NatsError>) + Send + Sync + 'static + use<> {
    let status = status.clone();
    move |fault| {
        status.set_fault(fault.map(|fault| match fault {
            NatsError::Later(why) => SharedStoreError { why: why.clone(), is_blocked: false },
            NatsError::Blocked(why) => SharedStoreError { why: why.clone(), is_blocked: true },
        }));
    }
}

impl ProtocolParts {
    /// Opens what needs no socket.
    fn open(name: &str, protocol: &ProtocolOptions) -> Result<ProtocolParts, StartError> {
        let options = match protocol {
            ProtocolOptions::Bytefrog(_) => return Ok(ProtocolParts::Bytefrog(None)),
            ProtocolOptions::Zico(..) => return Ok(ProtocolParts::Zico(None, None)),
            ProtocolOptions::Rbkit(options) => options,
            _ => return Ok(ProtocolParts::Others),
        };
        let open = |state_dir: &PathBuf| {
            ProfileStore::open(state_dir, name)
                .map_err(|source| StartError { part: format!("the state_dir of listener {name}"), source })
        };
        let profiles = options.state_dir.as_ref().map(open).transpose()?;
        let store = || profiles.clone().map(|store| store as Arc<dyn UndoStore>);
        let processes = options.agents.iter().map(|agent| RbkitAgent::with_store(agent.clone(), store())).collect();
        Ok(ProtocolParts::Rbkit(processes, profiles))
    }
}

impl fmt::Debug for ListenerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerHandle")
            .field("config", &self.config)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl ListenerHandle {
    /// Its address, if it listens.
    pub(super) fn bound(&self) -> Option<Bound> {
        let address = self.address?;
        Some(Bound { name: self.config.name.clone(), protocol: self.config.protocol.protocol(), address })
    }

    /// From now on it acknowledges requests at this level.
    pub(super) fn set_level(&self, level: AckLevel) {
        self.level.set(level);
    }

    /// Another handle of its socket.
    pub(super) fn socket(&self) -> Option<Socket> {
        self.socket.as_ref().and_then(|socket| socket.try_clone().ok())
    }

    /// The store of its agents, for a listener that uses the same.
    pub(super) fn agents_for(&self, config: &ListenerConfig) -> Option<Arc<dyn Registrations>> {
        match (&self.config.protocol, &config.protocol) {
            (ProtocolOptions::Zico(_, old, _), ProtocolOptions::Zico(_, new, _)) if old == new => self.agents.clone(),
            _ => None,
        }
    }

    /// Its TLS, if it has any.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Reads its TLS files again, if it has any. Returns whether they have changed.
    pub(super) fn reread_tls(&self) -> Result<bool, TlsError> {
        self.tls.as_ref().map_or(Ok(false), Tls::reread)
    }

    /// Whether a listener with this configuration stores its agents where this one does.
    pub(super) fn shares_agents_with(&self, config: &ListenerConfig) -> bool {
        match (&self.config.protocol, &config.protocol) {
            (ProtocolOptions::Zico(_, old, _), ProtocolOptions::Zico(_, new, _)) => {
                self.config.name == config.name
                    && old.state_dir == new.state_dir
                    && old.state.is_none()
                    && new.state.is_none()
            }
            _ => false,
        }
    }

    /// The processes that it connects to.
    pub(super) fn processes(&self) -> &[RbkitAgent] {
        &self.processes
    }

    /// Lets other listeners that connect to the same processes undo what it has switched on. Call it before it stops.
    pub(super) fn hand_over<'a>(&self, successors: impl Iterator<Item = &'a RbkitAgent> + Clone) {
        for agent in &self.processes {
            let is_same = |other: &&RbkitAgent| other.options().request == agent.options().request;
            // Of several, the one that keeps most of it switched on.
            let successor = successors.clone().filter(is_same).max_by_key(|other| other.options().enable.len());
            if let Some(successor) = successor {
                agent.hand_over(successor);
            }
        }
    }

    /// Stops it while the daemon continues. Traced programs have [`PROGRAM_GRACE`], or `grace` if that is longer, to shut
    /// down, which this does not wait for. Otherwise this waits until another listener can take its place: messages of a
    /// stream that are in flight have `grace`. It does not wait when the daemon stops.
    pub(super) async fn stopped_in_background(self, is_last: bool, grace: Duration, runtime: &Runtime) {
        let (abort, tasks) = (self.abort.clone(), &runtime.tasks);
        let Some((_, draining)) = self.traced.clone() else {
            let stopped = timeout(grace, tasks.spawn(self.stopped(is_last)));
            if runtime.stop.run_until_cancelled(stopped).await.is_some_and(|stopped| stopped.is_err()) {
                abort.cancel();
            }
            return;
        };
        if !is_last {
            draining.is_replaced.cancel();
        }
        self.stop.cancel();
        let stopped = async move {
            let ended = async {
                draining.ended().await;
                self.stopped(is_last).await;
            };
            if timeout(grace.max(PROGRAM_GRACE), ended).await.is_err() {
                abort.cancel();
            }
        };
        tasks.spawn(stopped);
    }

    /// Stops accepting and dialling, and lets its connections finish; [`Runtime::tasks`] waits for these. If `is_last`, no
    /// other listener takes over its socket: connections that wait to be accepted are refused, and counted so.
    pub(super) async fn stopped(mut self, is_last: bool) {
        self.stop.cancel();
        if is_last && self.traced.is_some() {
            // Its accept loop serves every connection that waits. An agent whose connection is reset aborts its program, so
            // the socket ends with the loop, and not later with this handle.
            self.socket = None;
        }
        for task in self.tasks {
            // A listener that panicked has nothing left to stop.
            let _ = task.await;
        }
        let Some(socket) = self.socket.filter(|_| is_last) else { return };
        let mut refused = 0_u64;
        // The socket is non-blocking. The bound is that of its queue.
        while refused < u64::from(u16::MAX) && socket.accept().is_ok() {
            self.counters.refused();
            refused += 1;
        }
        if refused > 0 {
            warn!(listener = self.config.name, refused, "connections that waited to be accepted are closed");
        }
    }
}

impl Runtime {
    /// Lets a listener serve, which acknowledges requests at this level.
    pub(super) fn serve(
        &self,
        bound_listener: BoundListener,
        config: &ListenerConfig,
        level: AckLevel,
    ) -> ListenerHandle {
        let _entered = self.decoding.enter();
        let BoundListener { listener, socket, further, counters, parts } = bound_listener;
        let (stop, abort) = (self.stop.child_token(), self.abort.child_token());
        let level = RequestedLevel::new(level);
        let mut running = ListenerHandle {
            config: config.clone(),
            address: listener.as_ref().and_then(Listener::address),
            socket,
            further: further.iter().filter_map(|socket| socket.second().ok()).collect(),
            agents: None,
            processes: Vec::new(),
            tls: listener.as_ref().and_then(Listener::tls),
            counters: counters.clone(),
            stop: stop.clone(),
            abort: abort.clone(),
            tasks: Vec::new(),
            traced: None,
            level: level.clone(),
        };
        let capture = config.options.capture.as_ref().and_then(|options| {
            Capture::start(options, &config.name, config.protocol.protocol(), &self.tasks, &self.abort)
        });
        let context = ListenerContext {
            options: config.options.clone().into(),
            counters,
            memory: self.memory.with_reserve(config.options.reserved_bytes),
            capture,
            sender: self.sender.clone().counted(self.memory.clone()).with_level(level),
            clock: self.clock,
            tasks: self.tasks.clone(),
            stop,
            abort,
        };
        if let Some(quarantined) = Quarantined::of(config, context.clone()) {
            self.directory.add_quarantine(&config.name, quarantined);
        }
        let (max_message_bytes, emit_definitions) = (config.options.max_message_bytes, config.options.emit_definitions);
        let serving = match (config.protocol.clone(), parts, listener) {
            (ProtocolOptions::Bytefrog(mut options), ProtocolParts::Bytefrog(runs), Some(mut listener)) => {
                // Agents need time after `stop`, too.
                options.stop_wait = options.stop_wait.min(self.grace / 2);
                let context = context.with_max_wait(options.max_stall);
                let mut hq = Hq::new(options, emit_definitions, context.memory.clone());
                if let Some(runs) = runs {
                    hq = hq.continuing(&runs);
                }
                let draining = Draining { hurry: self.hurry.clone(), ..Draining::default() };
                listener.draining = Some(draining.clone());
                running.traced = Some((hq.clone(), draining));
                self.directory.add_bytefrog(&config.name, BytefrogAgents::new(hq.clone(), context.clock));
                let make = move |peer: SocketAddr, _: &Arc<MemoryBudget>| hq.session(Some(peer.ip()));
                tokio::spawn(listener.serve(make, context))
            }
            (ProtocolOptions::Datadog(options), _, Some(listener)) => {
                let make = move |_, memory: &Arc<MemoryBudget>| {
                    DatadogSession::new(options.clone(), max_message_bytes, emit_definitions, memory)
                };
                tokio::spawn(listener.serve(make, context))
            }
            (ProtocolOptions::DatadogAgent(options, http), _, listener) => {
                let files = ProfileDirectory::new(&options.keep_profiles, &config.name);
                let files = files.map(|files| Arc::new(files) as Arc<dyn ProfileFiles>);
                let exchange = DatadogAgentExchange::keeping(options, &context.memory, files);
                let (further, datagrams) = further_sockets::served(further, config);
                let listeners = listener.into_iter().chain(further).collect();
                let with_reader = |listener| (listener, exchange.dogstatsd() as Arc<dyn DatagramReader>);
                let datagrams = datagrams.into_iter().map(with_reader).collect();
                tokio::spawn(serve_http(listeners, datagrams, exchange, http, context))
            }
            (ProtocolOptions::Endless(options, seen, http), _, Some(listener)) => {
                let time = options.dedup.time;
                let mut exchange = EndlessExchange::new(options, &context.memory);
                let status = Arc::<StoreStatus>::default();
                context.counters.set_store(status.clone());
                if let Some(bucket) = &seen.seen {
                    let note = note_store(&status);
                    let store = SeenStore::start(&seen, bucket, &config.name, time, note, &self.decoding);
                    exchange = exchange.with_shared_deliveries(Arc::new(store));
                }
                tokio::spawn(serve_http(vec![listener], Vec::new(), exchange, http, context))
            }
            (ProtocolOptions::Zico(options, store, http), ProtocolParts::Zico(agents, status), Some(listener)) => {
                status.into_iter().for_each(|status| context.counters.set_store(status));
                running.agents.clone_from(&agents);
                // Every listener whose agents register has a store.
                let agents = agents.unwrap_or_else(|| Arc::new(Recorded::new()));
                let exchange =
                    ZicoExchange::new(options, store.session_timeout, agents, emit_definitions, &context.memory);
                tokio::spawn(serve_http(vec![listener], Vec::new(), exchange, http, context))
            }
            (ProtocolOptions::Otlp(options, http), _, listener) => {
                let exchange = OtlpExchange::new(options, &context.memory);
                let (further, _) = further_sockets::served(further, config);
                let listeners = listener.into_iter().chain(further).collect();
                tokio::spawn(serve_http(listeners, Vec::new(), exchange, http, context))
            }
            (ProtocolOptions::Rbkit(options), ProtocolParts::Rbkit(processes, profiles), listener) => {
                let context = context.with_max_wait(options.max_stall);
                let options = Arc::new(options);
                log_profiles(&config.name, &options, profiles.as_deref());
                running.processes = processes;
                self.dial(&mut running, &options, &context);
                let Some(listener) = listener else { return running };
                // A peer that connects to this listener publishes, and cannot be asked for its name.
                let make = move |_, memory: &Arc<MemoryBudget>| {
                    let agent = RbkitAgent::new(AgentOptions::default());
                    Subscription::new(agent, options.clone(), max_message_bytes).within(memory)
                };
                tokio::spawn(listener.serve(make, context))
            }
            #[cfg(feature = "fleet")]
            (ProtocolOptions::Nats(options), ..) => tokio::spawn(NatsListener::new(*options, context).serve()),
            // Listeners of all other protocols are bound. A configuration that names NATS in a build without it is refused.
            _ => return running,
        };
        running.tasks.push(serving);
        running
    }

    /// Keeps the connections of an `rbkit` listener to its processes open.
    fn dial(&self, running: &mut ListenerHandle, options: &Arc<rbkit::Options>, context: &ListenerContext) {
        let config = &running.config;
        let reconnect = (options.reconnect.min, options.reconnect.max);
        // What is left to undo at a process when its listener has stopped has the time of the daemon.
        let context = ListenerContext { abort: self.abort.clone(), ..context.clone() };
        let memory = context.memory.clone();
        let dialer = Dialer::new(reconnect, context);
        let agents = running.processes.clone();
        let max_message_bytes = config.options.max_message_bytes;
        let has_store = options.state_dir.is_some();
        for agent in &agents {
            if let Some(address) = agent.options().request.clone() {
                let (undone, agent, options) = (agent.clone(), agent.clone(), options.clone());
                let grace = self.grace;
                let make = move || Control::new(agent.clone(), options.clone()).within(grace);
                let undo = UndoProfiles { listener: config.name.clone(), agent: undone, has_store };
                running.tasks.push(tokio::spawn(dialer.clone().keep(address, make, undo)));
            }
            if let Some(address) = agent.options().publish.clone() {
                let (agent, options, memory) = (agent.clone(), options.clone(), memory.clone());
                let make = move || Subscription::new(agent.clone(), options.clone(), max_message_bytes).within(&memory);
                running.tasks.push(tokio::spawn(dialer.clone().keep(address, make, NothingToFinish)));
            }
        }
        self.directory.add_rbkit(&config.name, Processes::new(agents));
    }
}

/// Logs what a kill of the daemon does to profiles, and what the store has of processes that are not in the configuration.
fn log_profiles(listener: &str, options: &rbkit::Options, store: Option<&ProfileStore>) {
    let has_request = |agent: &AgentOptions| agent.request.is_some();
    let Some(store) = store else {
        if options.agents.iter().any(has_request) {
            info!(
                listener,
                "no state_dir: after a kill or a crash of the daemon, profiles that it has switched on stay on"
            );
        }
        return;
    };
    let is_configured = |pending: &PendingUndo| {
        options.agents.iter().any(|agent| agent.request.as_deref() == Some(pending.request.as_str()))
    };
    for pending in store.all().iter().filter(|pending| !is_configured(pending)).take(MAX_UNDO_WARNINGS) {
        let (peer, pid, commands) = (&pending.request, pending.process.pid, listed(&pending.commands));
        warn!(
            listener,
            peer,
            pid,
            commands,
            "a profile may be on in a process that this listener does not connect to any more; send it these commands"
        );
    }
}

/// The most log lines about processes that are not in the configuration.
const MAX_UNDO_WARNINGS: usize = 20;

/// Undoes what a listener has switched on in a process, when the daemon stops.
struct UndoProfiles {
    listener: String,
    agent: RbkitAgent,
    /// Another daemon can do what is left.
    has_store: bool,
}

impl Finish for UndoProfiles {
    fn is_done(&self) -> bool {
        self.agent.undo_commands().0.is_empty()
    }

    fn end(self, is_late: bool) {
        self.agent.abandon_undo();
        let (commands, unanswered) = self.agent.undo_commands();
        if commands.is_empty() || !is_late {
            return;
        }
        let status = self.agent.status();
        let (listener, peer, pid) = (self.listener, status.request.unwrap_or_default(), status.pid);
        let (commands, unanswered) = (listed(&commands), listed(&unanswered));
        if self.has_store {
            warn!(
                listener,
                peer,
                pid,
                commands,
                unanswered,
                "a profile is left on: the process did not answer within the grace period; the next daemon with this \
                 state_dir sends these commands"
            );
        } else {
            warn!(
                listener,
                peer,
                pid,
                commands,
                unanswered,
                "a profile is left on: the process did not answer within the grace period; send it these commands"
            );
        }
    }
}

fn listed(commands: &[RbkitCommand]) -> String {
    commands.iter().map(|command| command.as_str()).collect::<Vec<_>>().join(", ")
}
