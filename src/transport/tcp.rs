//! TCP listeners: accept loops that survive errors, and admit a limited number of connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, warn};

use tributary_event::{Loss, Origin, Reason};
use tributary_memory::log_throttle::LogThrottle;
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::Session;

use super::admission::{Admission, ConnectionSlot};
use super::connection::Connection;
use super::context::{ConnectionContext, ListenerContext};
use super::descriptors;
use super::options::ListenerOptions;
use super::proxy;
use super::read_buffer::{CONNECTION_BYTES, MEMORY_RETRY, TLS_BYTES};
use super::stream::ConnectionStream;
use super::tls::Tls;

/// Connections that the kernel queues until they are accepted. The kernel allows `net.core.somaxconn` at most, 4096 by
/// default. When thousands connected at the same time under full load, some of those beyond the queue were reset.
pub(super) const BACKLOG: i32 = 4096;
/// After an error of `accept` the next attempt waits: the first time this long, at most that long.
const ACCEPT_RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How long a stopping listener waits for the system to report a connection that waits to be accepted.
const REPORT_WAIT: Duration = Duration::from_millis(10);
const NO_DESCRIPTORS: &str =
    "all file descriptors for connections are in use, further ones wait; raise the limit of open files";
/// The first byte of a TLS connection: a handshake record.
const TLS_FIRST_BYTE: u8 = 0x16;

/// Numbers connections over the life of the process.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// The number of the next connection.
pub(super) fn next_connection() -> u64 {
    NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed)
}

/// A listener that is bound and not yet serving.
pub struct Listener {
    /// Initially none. For a protocol whose peers open further connections while they shut down: after the stop it
    /// accepts connections as long as any of its own is open.
    pub draining: Option<Draining>,
    socket: ListenerSocket,
    tls: Option<Tls>,
}

/// A socket that listens.
#[derive(Debug)]
enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection that was accepted.
enum NewConnection {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl ListenerSocket {
    async fn accept(&self) -> io::Result<NewConnection> {
        Ok(match self {
            ListenerSocket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                NewConnection::Tcp(stream, canonical(peer))
            }
            ListenerSocket::Unix(socket) => NewConnection::Unix(socket.accept().await?.0),
        })
    }
}

impl NewConnection {
    /// The address by which it is admitted. Processes of this machine share one.
    fn peer(&self) -> SocketAddr {
        match self {
            NewConnection::Tcp(_, peer) => *peer,
            NewConnection::Unix(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        }
    }

    /// The peer as events name it.
    fn peer_name(&self) -> Arc<str> {
        match self {
            NewConnection::Tcp(_, peer) => peer.to_string().into(),
            NewConnection::Unix(stream) => match stream.peer_cred().ok().and_then(|peer| peer.pid()) {
                Some(pid) => format!("unix:{pid}").into(),
                None => "unix".into(),
            },
        }
    }
}

/// How a listener that stops lets its peers open further connections.
#[derive(Clone, Debug, Default)]
pub struct Draining {
    /// Its connections.
    pub connections: TaskTracker,
    /// Cancelled when it accepts none any longer, because another listener has its socket.
    pub is_replaced: CancellationToken,
    /// Cancelled when the daemon, which is stopping, ends within seconds.
    pub hurry: CancellationToken,
}

impl Draining {
    /// Waits until none of its connections is open.
    pub async fn ended(&self) {
        self.connections.close();
        self.connections.wait().await;
    }
}

/// A connection that has been admitted.
pub(super) struct Accepted {
    pub(super) stream: ConnectionStream,
    pub(super) peer: SocketAddr,
    pub(super) origin: Arc<Origin>,
    pub(super) context: ConnectionContext,
    /// When it was accepted.
    pub(super) opened: Duration,
}

impl Listener {
    /// A listener on a socket that is bound. It reads the TLS files.
    ///
    /// # Errors
    /// TLS cannot be set up, or the socket does not listen.
    pub fn on(socket: Socket, options: &ListenerOptions) -> Result<Listener, io::Error> {
        let tls = options.tls.as_ref().map(Tls::open).transpose().map_err(io::Error::other)?;
        let socket = match socket.domain()? {
            Domain::UNIX => ListenerSocket::Unix(UnixListener::from_std(socket.into())?),
            _ => ListenerSocket::Tcp(TcpListener::from_std(socket.into())?),
        };
        Ok(Listener { draining: None, socket, tls })
    }

    /// Its TLS, whose files can be read again while it serves.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// The address it is bound to; `None`: it is a Unix socket. A port 0 is resolved to the port that the system chose.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListenerSocket::Tcp(socket) => socket.local_addr().ok(),
            ListenerSocket::Unix(_) => None,
        }
    }

    /// Accepts connections until it stops. A task of its own serves each connection with a session that `make` makes for its peer
    /// and the memory of its address.
    pub async fn serve<S: Session>(
        self,
        make: impl Fn(SocketAddr, &Arc<MemoryBudget>) -> S + Send + Sync + 'static,
        context: ListenerContext,
    ) {
        let serve = move |Accepted { stream, peer, origin, context, opened }| {
            let session = make(peer, &context.memory);
            let connection = Connection::new(stream, session, origin, context, opened);
            async move {
                connection.serve().await;
            }
        };
        self.accept(serve, CONNECTION_BYTES, context).await;
    }

    /// Like [`Listener::serve`], with the future that `serve` makes of an admitted connection, after its TLS handshake. Each
    /// connection takes `bytes` of memory when it is admitted, and more for TLS.
    pub(super) async fn accept<F: Future<Output = ()> + Send + 'static>(
        self,
        serve: impl Fn(Accepted) -> F + Send + Sync + 'static,
        bytes: u64,
        listener: ListenerContext,
    ) {
        let Listener { draining, socket, tls } = self;
        let bytes = if tls.is_some() { bytes + TLS_BYTES } else { bytes };
        let ListenerContext { options, memory, clock, tasks, stop, abort, counters, .. } = listener.clone();
        let (name, protocol) = (Arc::<str>::from(counters.name()), counters.protocol());
        let context = listener.of_connections(draining.as_ref());
        let serve = Arc::new(serve);
        let admission = Arc::new(Admission::new(&options, clock));
        let permits = Arc::new(Semaphore::new(options.max_connections));
        let mut wait = ACCEPT_RETRY.0;
        let throttle = LogThrottle::new();
        loop {
            // Permits and memory first: until then a new connection waits in the kernel's queue, at no cost for us.
            let accepted = async {
                let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
                let descriptor = descriptors::permit(|| {
                    if let Some(suppressed) = throttle.permit() {
                        warn!(listener = &*name, suppressed, "cannot accept connections: {NO_DESCRIPTORS}");
                    }
                });
                let permits = (permit, descriptor.await);
                let lease = connection_memory(&memory, bytes, &name).await;
                Ok::<_, io::Error>((permits, lease, socket.accept().await?))
            };
            let accepted = tokio::select! {
                biased;
                () = abort.cancelled() => return,
                accepted = accepted, if !stop.is_cancelled() || draining.is_some() => accepted,
                () = no_longer_accepting(&stop, draining.as_ref()) => return,
            };
            let (permits_of_connection, lease, new) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A peer that has left already is no fault of ours.
                    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                        if let Some(suppressed) = throttle.permit() {
                            warn!(listener = &*name, %error, suppressed, "cannot accept connections; trying again");
                        }
                        tokio::select! {
                            () = stop.cancelled() => return,
                            () = sleep(wait) => wait = (wait * 2).min(ACCEPT_RETRY.1),
                        }
                    }
                    continue;
                }
            };
            wait = ACCEPT_RETRY.0;
            let (peer, peer_name) = (new.peer(), new.peer_name());
            let mut context = context.clone();
            // The address of a peer behind a proxy is not known yet.
            let is_direct = matches!(new, NewConnection::Unix(_)) || !admission.is_proxy(peer.ip());
            let admitted = match is_direct {
                true => admit(&admission, &mut context, &memory, lease, peer).map(|slot| (Some(slot), None)),
                false => Ok((None, Some(lease))),
            };
            let (slot, unassigned) = match admitted {
                Ok(admitted) => admitted,
                Err(reason) => {
                    if let Some(suppressed) = admission.refusals.permit() {
                        warn!(listener = &*name, %peer, reason, suppressed, "a connection is refused");
                    }
                    context.counters.refused();
                    continue;
                }
            };
            let number = next_connection();
            let (protocol, name, identity) = (protocol.as_str(), name.clone(), options.identity.clone());
            let origin_of = move |peer: Arc<str>| {
                let origin = Origin::new(protocol, name.clone(), peer, number);
                Arc::new(origin.with_identity(identity.clone()))
            };
            let open = context.counters.connection();
            let (tls, serve, admission) = (tls.clone(), serve.clone(), admission.clone());
            let connection = async move {
                let _counted = (permits_of_connection, slot, open);
                let opened = context.clock.now().elapsed;
                let mut stream = match new {
                    NewConnection::Tcp(stream, _) => stream,
                    NewConnection::Unix(stream) => {
                        let origin = origin_of(peer_name);
                        debug!("connection opened");
                        let mut stream = ConnectionStream::unix(stream);
                        stream.record(context.recording(&origin, opened));
                        serve(Accepted { stream, peer, origin, context, opened }).await;
                        return Some(());
                    }
                };
                set_options(&stream, &context.options);
                let (peer, _slot) = match unassigned {
                    None => (peer, None),
                    Some(lease) => {
                        let origin = origin_of(peer_name.clone());
                        Box::pin(introduce(&mut stream, peer, &origin, &admission, &mut context, lease, opened)).await?
                    }
                };
                let origin = origin_of(if is_direct { peer_name } else { peer.to_string().into() });
                let span = debug_span!("connection", protocol, %peer, connection = number);
                let serving = async move {
                    let acceptor = tls.map(|tls| tls.acceptor());
                    // Boxed, so that its memory is free after the handshake.
                    let secured = Box::pin(secure(stream, acceptor, &origin, &context, opened)).await;
                    if let Some(mut stream) = secured {
                        debug!("connection opened");
                        stream.record(context.recording(&origin, opened));
                        serve(Accepted { stream, peer, origin, context, opened }).await;
                    }
                };
                serving.instrument(span).await;
                Some(())
            };
            let abort = abort.clone();
            // Boxed: otherwise every future around it would contain a copy of its size.
            let connection = Box::pin(connection);
            let draining = draining.as_ref().map(|draining| draining.connections.token());
            tasks.spawn(async move {
                let _draining = draining;
                abort.run_until_cancelled_owned(connection).await
            });
        }
    }
}

/// The address of a peer as everything shows and compares it: one that IPv6 only maps is the IPv4 address.
pub(super) fn canonical(peer: SocketAddr) -> SocketAddr {
    match peer.ip().to_canonical() {
        IpAddr::V4(address) => SocketAddr::new(address.into(), peer.port()),
        IpAddr::V6(_) => peer,
    }
}

/// Waits until a listener accepts no further connections.
async fn no_longer_accepting(stop: &CancellationToken, draining: Option<&Draining>) {
    stop.cancelled().await;
    let Some(draining) = draining else { return };
    tokio::select! {
        () = draining.is_replaced.cancelled() => return,
        () = draining.ended() => {}
    }
    // The system reports connections that wait to be accepted within this time.
    sleep(REPORT_WAIT).await;
}

/// Admits a connection of `peer`, whose memory is `lease`, and gives it what its address may use.
fn admit(
    admission: &Arc<Admission>,
    context: &mut ConnectionContext,
    memory: &Arc<MemoryBudget>,
    mut lease: MemoryLease,
    peer: SocketAddr,
) -> Result<ConnectionSlot, &'static str> {
    let slot = admission.admit(peer.ip())?;
    context.memory = memory.of_address(peer.ip());
    if !lease.assign(&context.memory) {
        return Err("memory is used up, and its address has its part of the listener's reserve (reserved_bytes)");
    }
    context.allowance = slot.allowance.clone();
    context.admitted_with = Some(Arc::new(lease));
    Ok(slot)
}

/// Waits until there is memory for one more connection of a listener.
pub(super) async fn connection_memory(memory: &Arc<MemoryBudget>, bytes: u64, listener: &str) -> MemoryLease {
    let mut is_logged = false;
    loop {
        if let Some(lease) = memory.admit(bytes) {
            return lease;
        }
        if !is_logged {
            is_logged = true;
            debug!(listener, "no memory for another connection (limits.memory_bytes); new connections wait");
        }
        sleep(MEMORY_RETRY).await;
    }
}

/// A socket that listens on an address.
///
/// # Errors
/// Those of the system.
pub fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A daemon that restarts can bind its port again immediately.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

pub(super) fn set_options(stream: &TcpStream, options: &ListenerOptions) {
    let mut result = stream.set_nodelay(true);
    if !options.keepalive.is_zero() {
        let keepalive = TcpKeepalive::new()
            .with_time(options.keepalive)
            .with_interval((options.keepalive / 4).max(Duration::from_secs(1)));
        result = result.and(SockRef::from(stream).set_tcp_keepalive(&keepalive));
    }
    if let Err(error) = result {
        debug!(%error, "cannot set socket options");
    }
}

/// Reads the PROXY header and admits the peer that it names. A proxy that connects for itself (a health check) is not
/// counted: its own address says nothing about the number of peers behind it. `None`: the connection is refused.
async fn introduce(
    stream: &mut TcpStream,
    proxy: SocketAddr,
    origin: &Arc<Origin>,
    admission: &Arc<Admission>,
    context: &mut ConnectionContext,
    lease: MemoryLease,
    opened: Duration,
) -> Option<(SocketAddr, Option<ConnectionSlot>)> {
    let Some(peer) = proxy::read_header(stream, origin, context, opened).await?.map(canonical) else {
        context.admitted_with = Some(Arc::new(lease));
        return Some((proxy, None));
    };
    let memory = context.memory.clone();
    match admit(admission, context, &memory, lease, peer) {
        Ok(slot) => Some((peer, Some(slot))),
        Err(reason) => {
            if let Some(suppressed) = admission.refusals.permit() {
                warn!(listener = &*origin.listener, %peer, %proxy, reason, suppressed, "a connection is refused");
            }
            context.counters.refused();
            None
        }
    }
}

/// Makes the TLS handshake if the listener has TLS; with `allow_plain` only if the connection begins like TLS. `None`: it
/// failed, and a loss reports it.
async fn secure(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    origin: &Arc<Origin>,
    context: &ConnectionContext,
    opened: Duration,
) -> Option<ConnectionStream> {
    let Some(acceptor) = tls else { return Some(ConnectionStream::plain(stream)) };
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let mut first = [0; Loss::EXCERPT];
    let peeked = tokio::select! {
        peeked = timeout_at(deadline, stream.peek(&mut first)) => peeked,
        () = context.stop_handshakes.cancelled() => return None,
    };
    let Ok(Ok(peeked @ 1..)) = peeked else { return None };
    if first[0] != TLS_FIRST_BYTE {
        let is_plain_allowed = context.options.tls.as_ref().is_some_and(|tls| tls.allow_plain);
        if is_plain_allowed {
            return Some(ConnectionStream::plain(stream));
        }
        let detail = "the listener expects TLS, and these bytes are not TLS (tls.allow_plain accepts both)";
        refuse(origin, context, Reason::Malformed, &first[..peeked], detail).await;
        return None;
    }
    let handshake = tokio::select! {
        handshake = timeout_at(deadline, acceptor.accept(stream)) => handshake,
        () = context.stop_handshakes.cancelled() => return None,
    };
    let (reason, detail) = match handshake {
        Ok(Ok(stream)) => return Some(ConnectionStream::tls(stream)),
        Ok(Err(error)) => (Reason::Malformed, format!("the TLS handshake failed: {error}")),
        Err(_) => {
            (Reason::Truncated, "a time limit passed: the TLS handshake took longer than handshake_timeout".to_owned())
        }
    };
    refuse(origin, context, reason, &[], &detail).await;
    None
}

/// Reports bytes that no session received as lost.
pub(super) async fn refuse(
    origin: &Arc<Origin>,
    context: &ConnectionContext,
    reason: Reason,
    bytes: &[u8],
    detail: &str,
) {
    let lost = bytes.len() as u64;
    context.counters.received(lost);
    let loss = Loss { reason, bytes: lost, events: None, detail, excerpt: bytes };
    context.sender.send(context.loss(origin, 0, loss)).await;
}
