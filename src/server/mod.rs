//! The daemon: configuration → bind every listener → start the sinks → serve → drain in order.
//!
//! [`Server::start`] starts all of it or nothing. [`Server::reload`] replaces what has changed. [`Server::stop`] ends it
//! from the sockets inward: listeners stop accepting, sessions finish, queues run empty, sinks flush. All of it stands under
//! one deadline, `limits.shutdown_grace`; what is not done by then counts as failed, so that the counters balance.
//!
//! Listeners, connections and sinks run on the runtime that decodes. The admin endpoint, the health check and the caller of
//! [`Server::stop`] may run on another one ([`Server::start_on`]): a session that decodes for long delays none of them.

mod export;
mod further_sockets;
mod listeners;
mod reload;

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{error, warn};

use crate::admin::{DaemonLayout, Endpoint, LayoutListener, LayoutSink, Scope, Serving, SharedLayout, Subject};
use crate::commands::{BytefrogAgents, Directory, Processes};
use crate::config::admin::AdminOptions;
use crate::config::{Config, ListenerConfig, ProtocolOptions, SinkConfig, SinkKind};
use crate::health::Health;
use crate::sink::parquet::Parquet;
use tributary_event::{Batch, Kind};
use tributary_memory::MemoryBudget;
use tributary_pipeline::accounting::{Accounting, ListenerTotals, Totals};
use tributary_pipeline::options::QueueOptions;
use tributary_pipeline::{Observer, Sinks, Workers};
use tributary_protocol::Protocol;
use tributary_rbkit::AgentStatus;
use tributary_select::Rules;
use tributary_sink::discard::Discard;
use tributary_sink::stdout::{self, Stdout};
use tributary_sink::tcp::Tcp;
use tributary_sink::{ActionError, SinkError};
use tributary_sink_file::File;
use tributary_sink_http::Http;
#[cfg(feature = "fleet")]
use tributary_sink_nats::Nats;
use tributary_sink_otlp::Otlp;
use tributary_sink_view::options::{QUEUE_BATCHES, QUEUE_BYTES};
use tributary_sink_view::{View, ViewSink};
use tributary_transport::clock::Clock;
use tributary_transport::port_holder;
use tributary_transport::tls::{Certificates, Tls};

use export::SumsExporter;
use listeners::{BoundListener, ListenerHandle, Runtime};
pub use reload::Reloaded;

/// The last part of the grace period belongs to the sinks alone: a quarter of it, this long at most.
const SINK_RESERVE: Duration = Duration::from_secs(1);
/// A hurried stop waits for the agents of traced Java programs this long, and a heartbeat interval of theirs: after an error they
/// close their connections with the next heartbeat.
const HURRIED_PROGRAMS: Duration = Duration::from_secs(4);
/// A hurried stop waits for connections without such an agent this long, and for the sinks then.
const HURRIED: Duration = Duration::from_secs(1);
/// When the grace period is over, what was given up still has this long to end: tasks, sinks, answers of the admin endpoint.
const END_MARGIN: Duration = Duration::from_secs(1);

/// A running daemon.
#[derive(Debug)]
pub struct Server {
    /// The configuration in force.
    config: Config,
    /// The rules of its sinks, in their order.
    rules: Vec<Option<Arc<Rules>>>,
    /// How many threads decode, which a reload cannot change.
    threads: usize,
    addresses: Vec<Bound>,
    accounting: Accounting,
    /// What the page can look back on.
    view: Option<Arc<View>>,
    /// The task that exports sums of it, and what ends it.
    exporter: Option<(AbortOnDropHandle<()>, CancellationToken)>,
    layout: SharedLayout,
    admin: Vec<Admin>,
    listeners: Vec<ListenerHandle>,
    runtime: Runtime,
    workers: Workers,
    health: Arc<Health>,
    certificates: Certificates,
    /// Cancelled when a stop must not wait any longer.
    stop_now: CancellationToken,
    _watch: AbortOnDropHandle<()>,
}

/// A running address of the admin endpoint.
#[derive(Debug)]
struct Admin {
    scope: Scope,
    address: SocketAddr,
    tls: Option<Tls>,
    serving: Serving,
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Its name in the configuration.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The address; if the configuration says port 0, with the port that the system has chosen.
    pub address: SocketAddr,
}

/// Why the daemon did not start, and which part of the configuration caused that.
#[derive(Debug)]
pub struct StartError {
    /// The listener or sink, e.g. `listener spans on 127.0.0.1:8136`.
    pub part: String,
    /// The error.
    pub source: io::Error,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start {}: {}", self.part, self.source)
    }
}

impl std::error::Error for StartError {}

impl Server {
    /// Binds every listener, starts every sink, and serves, all on the current runtime.
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
        Server::start_on(config, Vec::new(), &Handle::current(), add_sinks).await
    }

    /// The same with sockets that listen already, which a service manager has handed over: the listener that has the
    /// address of such a socket uses it instead of binding. Listeners, connections and sinks run on `decoding`, everything
    /// else on the current runtime.
    ///
    /// # Errors
    /// As for [`Server::start`]; also when no listener has the address of a socket, since its peers would wait for ever.
    pub async fn start_on(
        config: &Config,
        sockets: Vec<TcpListener>,
        decoding: &Handle,
        add_sinks: impl FnOnce(&mut Sinks),
    ) -> Result<Server, StartError> {
        let accounting = Accounting::default();
        let address = |socket: &TcpListener| socket.local_addr().ok();
        let is_used = |socket: &&TcpListener| {
            config.listeners.iter().any(|listener| listener.listen.is_some() && listener.listen == address(socket))
        };
        if let Some(unused) = sockets.iter().find(|socket| !is_used(socket)) {
            let address = address(unused).map_or_else(|| "?".to_owned(), |address| address.to_string());
            let part = format!("with the socket {address}, which the service manager has handed over (LISTEN_FDS)");
            let why = format!("no listener has `listen = \"{address}\"`; add one, or remove the socket from its unit");
            return Err(StartError { part, source: io::Error::other(why) });
        }
        let given = |listen: Option<SocketAddr>| {
            let socket = sockets.iter().find(|socket| address(socket) == listen)?;
            socket.set_nonblocking(true).ok()?;
            socket.try_clone().ok().map(Into::into)
        };
        let mut bound_listeners = Vec::new();
        for config in &config.listeners {
            let opened = BoundListener::open(config, given(config.listen), &[], &accounting, decoding);
            let Some(mut bound_listener) = unless_in_use(config, opened)? else { continue };
            bound_listener.open_agents(config, None, decoding)?;
            bound_listeners.push((bound_listener, config));
        }
        let admin = open_admin(&config.admin).await?;
        for sink in config.sinks.iter().filter(|sink| matches!(sink.kind, SinkKind::Stdout(_))) {
            stdout::check().map_err(|source| StartError { part: format!("sink {}", sink.name), source })?;
        }
        let rules = rules(config)?;
        let stop = CancellationToken::new();
        let mut sinks = Sinks::on(decoding.clone(), stop.clone());
        config.sinks.iter().zip(&rules).for_each(|(sink, rules)| add_sink(&mut sinks, sink, rules.clone()));
        add_sinks(&mut sinks);
        let has_page = admin.iter().any(|(scope, ..)| *scope == Scope::All);
        let view = (has_page && config.has_view()).then(|| View::new(config.view.clone()));
        view.iter().for_each(|view| add_view(&mut sinks, view));
        let (sender, workers) = sinks.start();
        let exporter = view.clone().map(|view| {
            let (exporter, ends) = (SumsExporter::new(view, sender.clone()), CancellationToken::new());
            (AbortOnDropHandle::new(decoding.spawn(exporter.run(ends.clone()))), ends)
        });
        accounting.set_sinks(workers.counters());
        let memory = MemoryBudget::new(config.bounds().left_of(config.memory_limit()));
        memory.set_address_limit(config.limits.memory_per_address);
        let runtime = Runtime {
            decoding: decoding.clone(),
            sender,
            clock: Clock::start(),
            grace: config.limits.shutdown_grace,
            memory,
            directory: Directory::default(),
            tasks: TaskTracker::new(),
            stop,
            hurry: CancellationToken::new(),
            abort: CancellationToken::new(),
        };
        bound_listeners.iter().for_each(|(bound_listener, _)| bound_listener.enter(&accounting));
        let serve = |(bound_listener, listener)| runtime.serve(bound_listener, listener, config.acknowledge(listener));
        let listeners = bound_listeners.into_iter().map(serve).collect();
        let (memory, stall_time) = (runtime.memory.clone(), config.admin.stall_time);
        let health = Health::new(accounting.clone(), memory, runtime.stop.clone(), stall_time);
        let mut server = Server {
            config: config.clone(),
            rules,
            threads: config.limits.threads(),
            addresses: Vec::new(),
            accounting,
            view,
            exporter,
            layout: SharedLayout::default(),
            admin: Vec::new(),
            listeners,
            runtime,
            workers,
            stop_now: CancellationToken::new(),
            _watch: AbortOnDropHandle::new(tokio::spawn(health.clone().watch())),
            health,
            certificates: Certificates::default(),
        };
        server.note_addresses();
        server.note_layout();
        server.serve_admin(admin);
        Ok(server)
    }

    /// Where its listeners listen, in the order of the configuration.
    pub fn addresses(&self) -> &[Bound] {
        &self.addresses
    }

    /// The address of the first listener, for tests and demos that have one.
    pub fn address(&self) -> Option<SocketAddr> {
        self.addresses.first().map(|bound| bound.address)
    }

    /// The agents of the `bytefrog` listener with this name, to list them and to send them commands.
    pub fn bytefrog(&self, listener: &str) -> Option<BytefrogAgents> {
        self.runtime.directory.bytefrog(listener)
    }

    /// The processes of the `rbkit` listener with this name, to list them and to send them commands.
    pub fn rbkit(&self, listener: &str) -> Option<Processes> {
        self.runtime.directory.rbkit(listener)
    }

    /// Where the admin endpoint listens, if there is one.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address_of(Scope::All)
    }

    /// Where it answers `/livez`, `/readyz` and `/metrics` only, if it has such an address.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.admin_address_of(Scope::Metrics)
    }

    fn admin_address_of(&self, scope: Scope) -> Option<SocketAddr> {
        self.admin.iter().find(|admin| admin.scope == scope).map(|admin| admin.address)
    }

    /// The processes that are dialled, by listener.
    pub fn dialled(&self) -> Vec<(String, Vec<AgentStatus>)> {
        self.runtime.directory.processes().into_iter().map(|(name, processes)| (name, processes.agents())).collect()
    }

    /// The check whether the daemon makes progress.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// The counters, which stay readable after the daemon has stopped.
    pub fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// Lets every sink close its files; the next write opens them again. Attempts at destinations are made now.
    pub fn reopen(&self) {
        self.workers.reopen();
        self.workers.try_again();
    }

    /// Waits until the daemon must stop: a sink's reader has closed it, or a sink failed that may not fail.
    pub async fn wants_to_stop(&self) {
        self.runtime.stop.cancelled().await;
    }

    /// Cancelling this token begins the stop: listeners and connections end, and a reload in progress waits for nothing
    /// more. [`Server::stop`] must follow.
    pub fn stop_token(&self) -> CancellationToken {
        self.runtime.stop.clone()
    }

    /// The number of Java programs that a stop waits for: those whose agent is connected and does not end by itself.
    pub fn traced_programs(&self) -> usize {
        self.runtime.directory.traced_programs()
    }

    /// Cancelling this token ends the grace period of [`Server::stop`] within seconds: the agents of traced Java programs are
    /// stopped at once and have the time to drop what they hold, connections and then sinks have a second.
    pub fn hurry_token(&self) -> CancellationToken {
        self.runtime.hurry.clone()
    }

    /// Cancelling this token ends the grace period of [`Server::stop`] immediately. Traced Java programs hang then.
    pub fn stop_now_token(&self) -> CancellationToken {
        self.stop_now.clone()
    }

    /// Stops in order, within the grace period of the configuration and at most a second more. Returns the final counters.
    pub async fn stop(self) -> Totals {
        let Server { config, accounting, admin, listeners, runtime, mut workers, stop_now, exporter, .. } = self;
        let Runtime { sender, directory, tasks, stop, hurry, abort, .. } = runtime;
        let grace = config.limits.shutdown_grace;
        let deadline = Instant::now() + grace;
        let connections_deadline = deadline - (grace / 4).min(SINK_RESERVE);
        stop.cancel();
        directory.close_quarantines();
        let connections = async {
            // A listener may wait for its peers, and the others do not wait for it.
            for listener in listeners {
                tasks.spawn(listener.stopped(true));
            }
            tasks.close();
            tasks.wait().await;
        };
        let hurried = async {
            hurry.cancelled().await;
            let totals = accounting.totals();
            let is_traced =
                |listener: &ListenerTotals| listener.protocol == Protocol::Bytefrog && listener.connections_open > 0;
            let traced = totals.listeners.iter().any(is_traced);
            sleep(if traced { HURRIED_PROGRAMS + heartbeat_interval(&config) } else { HURRIED }).await;
        };
        if let Some(why) = gives_up(connections_deadline, hurried, &stop_now, connections).await {
            warn!(
                connections = accounting.connections_open(),
                why, "the stop waits no longer: connections are given up"
            );
            // The listeners may not have ended yet.
            tasks.close();
            abort.cancel();
        }
        if let Some((task, ends)) = exporter {
            ends.cancel();
            // What it could not export in time is not exported.
            let _ = stop_now.run_until_cancelled(timeout_at(connections_deadline, task)).await;
        }
        let taps = sender.taps().clone();
        drop(sender);
        let hurried = async {
            hurry.cancelled().await;
            sleep(HURRIED).await;
        };
        if let Some(why) = gives_up(deadline, hurried, &stop_now, workers.drained()).await {
            warn!(why, "the stop waits no longer: events that sinks have not written are given up");
        }
        let end = Instant::now().min(deadline) + END_MARGIN;
        // The queues are closed now: a task that waits for one returns, and its events count as failed.
        let rest = async {
            workers.abort().await;
            tasks.wait().await;
        };
        let has_ended = timeout_at(end, rest).await.is_ok();
        // The admin endpoint answers until here, also about the stop itself.
        taps.close();
        for Admin { serving, .. } in admin {
            let _ = timeout_at(end, serving.finish()).await;
        }
        let mut totals = accounting.totals();
        if !has_ended {
            error!("some tasks have not ended after the grace period: what they hold is lost");
            totals.give_up();
        }
        totals
    }

    fn note_addresses(&mut self) {
        self.addresses = self.listeners.iter().filter_map(ListenerHandle::bound).collect();
    }

    /// Lists the certificates of the endpoint and of the listeners.
    fn note_certificates(&self) {
        let admin =
            self.admin.iter().filter_map(|admin| admin.tls.clone()).take(1).map(|tls| ("admin".to_owned(), tls));
        let listeners = self
            .listeners
            .iter()
            .filter_map(|listener| Some((format!("listeners.{}", listener.config.name), listener.tls()?.clone())));
        self.certificates.set(admin.chain(listeners).collect());
    }

    /// Notes for the page what the daemon consists of.
    fn note_layout(&self) {
        let listener = |listener: &ListenerConfig| LayoutListener {
            name: listener.name.clone(),
            address: self.addresses.iter().find(|bound| bound.name == listener.name).map(|bound| bound.address),
        };
        let sink = |sink: &SinkConfig| {
            let takes = self.config.listeners.iter().filter(|listener| sink.takes_events_of(listener));
            LayoutSink {
                name: sink.name.clone(),
                kind: sink.kind.name(),
                text: sink.kind.to_string(),
                takes: takes.map(|listener| listener.name.clone()).collect(),
            }
        };
        self.layout.set(DaemonLayout {
            listeners: self.config.listeners.iter().map(listener).collect(),
            sinks: self.config.sinks.iter().map(sink).collect(),
            memory_limit: self.config.memory_limit(),
            memory_reserved: self.config.bounds().sum(),
        });
    }

    fn serve_admin(&mut self, endpoints: Vec<(Scope, Endpoint, SocketAddr)>) {
        let subject = Arc::new(Subject {
            accounting: self.accounting.clone(),
            memory: self.runtime.memory.clone(),
            directory: self.runtime.directory.clone(),
            health: self.health.clone(),
            taps: self.runtime.sender.taps().clone(),
            certificates: self.certificates.clone(),
            view: self.view.clone(),
            layout: self.layout.clone(),
        });
        let serve = |(scope, endpoint, address): (Scope, Endpoint, SocketAddr)| Admin {
            scope,
            address,
            tls: endpoint.tls(),
            serving: endpoint.serve(subject.clone()),
        };
        self.admin = endpoints.into_iter().map(serve).collect();
        self.note_certificates();
    }
}

/// Waits for `future`, until the deadline, until the time of a hurried stop is over, and until `now` is cancelled. Returns why it
/// was given up.
async fn gives_up(
    deadline: Instant,
    hurried: impl Future<Output = ()>,
    now: &CancellationToken,
    future: impl Future<Output = ()>,
) -> Option<&'static str> {
    tokio::select! {
        biased;
        done = timeout_at(deadline, future) => done.is_err().then_some("the grace period is over"),
        () = now.cancelled() => Some("a further signal"),
        () = hurried => Some("the time of a hurried stop is over"),
    }
}

/// The longest heartbeat interval of the agents of traced Java programs.
fn heartbeat_interval(config: &Config) -> Duration {
    let interval = |listener: &ListenerConfig| match &listener.protocol {
        ProtocolOptions::Bytefrog(options) => Some(options.heartbeat_interval),
        _ => None,
    };
    config.listeners.iter().filter_map(interval).max().unwrap_or_default()
}

/// A listener, unless it is optional and its address is in use.
fn unless_in_use(
    config: &ListenerConfig,
    opened: Result<BoundListener, StartError>,
) -> Result<Option<BoundListener>, StartError> {
    match opened {
        Err(error) if config.is_optional() && error.source.kind() == io::ErrorKind::AddrInUse => {
            let (listener, why) = (config.name.as_str(), &error.source);
            warn!(listener, %why, "there is no listener for Datadog tracers: its default address is in use; listen sets another one");
            Ok(None)
        }
        opened => opened.map(Some),
    }
}

/// Binds the addresses of the admin endpoint that the configuration has. If the default address is in use, as by a second
/// daemon on the machine, the daemon runs without it.
async fn open_admin(options: &AdminOptions) -> Result<Vec<(Scope, Endpoint, SocketAddr)>, StartError> {
    let mut endpoints = Vec::new();
    for (scope, listen, what) in [
        (Scope::All, options.listen, "the admin endpoint"),
        (Scope::Metrics, options.metrics_listen, "the metrics address of the admin endpoint"),
    ] {
        let Some(listen) = listen else { continue };
        let bound = Endpoint::bind(options, listen, scope).await;
        match bound.and_then(|endpoint| Ok((scope, endpoint.address()?, endpoint))) {
            Ok((scope, address, endpoint)) => endpoints.push((scope, endpoint, address)),
            Err(error) if scope == Scope::All && options.is_default && error.kind() == io::ErrorKind::AddrInUse => {
                warn!(address = %listen, "there is no admin endpoint: its default address is in use; [admin] listen sets another one");
            }
            Err(error) => {
                let source = port_holder::explained(listen, &error);
                return Err(StartError { part: format!("{what} on {listen}"), source });
            }
        }
    }
    Ok(endpoints)
}

/// The rules of every sink. Reads the keys of hashes.
fn rules(config: &Config) -> Result<Vec<Option<Arc<Rules>>>, StartError> {
    let rules = |sink: &SinkConfig| {
        Rules::new(&sink.select).map_err(|source| StartError { part: format!("sink {}", sink.name), source })
    };
    config.sinks.iter().map(rules).collect()
}

/// The name of the sink of the view. No other sink can have it.
const VIEW: &str = "(view)";

/// Gives every batch to the view.
#[derive(Debug)]
struct ViewObserver(Arc<View>);

impl Observer for ViewObserver {
    fn observe(&self, batch: &Arc<Batch>) {
        self.0.add(batch);
    }
}

/// Adds the sink of the view.
fn add_view(sinks: &mut Sinks, view: &Arc<View>) {
    // Spans do not wait: the observer has them.
    let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Span).collect();
    let queue =
        QueueOptions { kinds, buffer_batches: QUEUE_BATCHES, buffer_bytes: QUEUE_BYTES, ..QueueOptions::default() };
    sinks.observe(Arc::new(ViewObserver(view.clone())));
    let (budget, view) = (view.budget().clone(), view.clone());
    sinks.add_observer(VIEW, queue, budget, move || Ok(ViewSink::new(view.clone())));
}

fn add_sink(sinks: &mut Sinks, config: &SinkConfig, rules: Option<Arc<Rules>>) {
    let (name, queue) = (&config.name, config.queue.clone());
    match config.kind.clone() {
        SinkKind::Stdout(options) => sinks.add_with(name, queue, rules, move || {
            let fault = |source| ActionError { action: "use standard output".to_owned(), source };
            stdout::check().map_err(|source| SinkError::Failed(fault(source)))?;
            Ok(Stdout::new(options))
        }),
        SinkKind::Tcp(options) => {
            let sink = config.name.clone();
            sinks.add_with(name, queue, rules, move || Ok(Tcp::new(&sink, options.clone())));
        }
        SinkKind::Http(options) => {
            let (sink, options) = (config.name.clone(), options.clone());
            sinks.add_with(name, queue, rules, move || Ok(Http::new(&sink, (*options).clone())));
        }
        SinkKind::Otlp(options) => {
            let (sink, options) = (config.name.clone(), options.clone());
            let queue = QueueOptions { kinds: options.kinds(queue.kinds), ..queue };
            sinks.add_with(name, queue, rules, move || Ok(Otlp::new(&sink, (*options).clone())));
        }
        // A configuration that names it is refused.
        #[cfg(not(feature = "fleet"))]
        SinkKind::Nats(_) => sinks.add_with(name, queue, rules, || Ok(Discard)),
        #[cfg(feature = "fleet")]
        SinkKind::Nats(options) => {
            let (sink, options) = (config.name.clone(), options.clone());
            sinks.add_with(name, queue, rules, move || Ok(Nats::new(&sink, (*options).clone())));
        }
        SinkKind::File(options) => sinks.add_with(name, queue, rules, move || {
            let fault = |why| ActionError { action: format!("use {}", options.path), source: io::Error::other(why) };
            File::new(options.clone()).map_err(|why: String| SinkError::Failed(fault(why)))
        }),
        SinkKind::Parquet(options) => {
            let sink = config.name.clone();
            sinks.add_with(name, queue, rules, move || {
                let fault =
                    |why| ActionError { action: format!("use {}", options.path), source: io::Error::other(why) };
                let parquet = Parquet::new((*options).clone()).map(|parquet| parquet.named(&sink));
                parquet.map_err(|why: String| SinkError::Failed(fault(why)))
            });
        }
        SinkKind::Discard => sinks.add_with(name, queue, rules, || Ok(Discard)),
    }
}
