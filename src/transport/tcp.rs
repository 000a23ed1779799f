//! TCP listeners: accept loops that survive errors, and know whom to let in and how many.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, debug_span, warn};

use crate::event::{Loss, Origin, Reason};
use crate::log_throttle::LogThrottle;
use crate::memory::{MemoryBudget, MemoryLease};
use crate::pipeline::Sender;
use crate::pipeline::accounting::ListenerCounters;
use crate::protocol::{Protocol, Session};

use super::capture::Capture;
use super::clock::Clock;
use super::connection::{Connection, ConnectionContext};
use super::options::ListenerOptions;
use super::read_buffer::{CONNECTION_BYTES, ROOM_RETRY, TLS_BYTES};
use super::stream::Stream;
use super::tls::Tls;

/// Connections that the kernel keeps for us until we accept them; it allows `net.core.somaxconn` at most, 4096 where nobody
/// has changed it. When thousands connect at once while others send at full speed, some that found no room were reset.
const BACKLOG: i32 = 4096;
/// After an error of `accept` the next try waits: the first time this long, at most that long.
const ACCEPT_RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The first byte of a TLS connection: a handshake record.
const TLS_FIRST_BYTE: u8 = 0x16;

/// Counts connections over the life of the process.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// The number of the next connection.
pub(super) fn next_connection() -> u64 {
    NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed)
}

/// A listener that is bound and not yet serving.
pub struct Listener {
    /// The operator's name for it.
    pub name: Arc<str>,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// Its options.
    pub options: Arc<ListenerOptions>,
    /// Its counters.
    pub counters: Arc<ListenerCounters>,
    /// What records its connections. `None`, as it is at first: nothing does.
    pub capture: Option<Arc<Capture>>,
    /// What its connections share with all others. At first there is no end to it.
    pub memory: Arc<MemoryBudget>,
    socket: TcpListener,
    tls: Option<Tls>,
}

/// A connection that has been let in.
pub(super) struct Accepted {
    pub(super) stream: Stream,
    pub(super) peer: SocketAddr,
    pub(super) origin: Arc<Origin>,
    pub(super) context: ConnectionContext,
    /// When it was accepted.
    pub(super) opened: Duration,
}

impl Listener {
    /// Binds the address and reads the TLS files.
    ///
    /// # Errors
    /// The address cannot be bound, or TLS cannot be set up; the message names which.
    pub fn bind(
        name: &str,
        protocol: Protocol,
        address: SocketAddr,
        options: ListenerOptions,
    ) -> Result<Listener, io::Error> {
        Listener::on(bind(address)?, name, protocol, options, ListenerCounters::new(name.into(), protocol))
    }

    /// A listener on a socket that is bound, which goes on with these counters.
    ///
    /// # Errors
    /// TLS cannot be set up, or the socket is none to listen on.
    pub fn on(
        socket: Socket,
        name: &str,
        protocol: Protocol,
        options: ListenerOptions,
        counters: Arc<ListenerCounters>,
    ) -> Result<Listener, io::Error> {
        let tls = options.tls.as_ref().map(Tls::open).transpose().map_err(io::Error::other)?;
        let socket = TcpListener::from_std(socket.into())?;
        let memory = MemoryBudget::unlimited();
        Ok(Listener {
            name: name.into(),
            protocol,
            options: options.into(),
            counters,
            capture: None,
            memory,
            socket,
            tls,
        })
    }

    /// Its TLS, whose files can be read again while it serves.
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// The address it is bound to, with the port that the system chose when 0 was asked for.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Accepts connections until `stop` is cancelled; each is served by a task of its own, tracked by `tasks`, with a
    /// session that `make` makes for its peer. A task that has not finished by itself when `abort` is cancelled is given up.
    pub async fn serve<S: Session>(
        self,
        make: impl Fn(SocketAddr) -> S + Send + Sync + 'static,
        sender: Sender,
        clock: Clock,
        tasks: TaskTracker,
        stop: CancellationToken,
        abort: CancellationToken,
    ) {
        let serve = move |Accepted { stream, peer, origin, context, opened }| {
            let connection = Connection::new(stream, make(peer), origin, context, opened);
            async move {
                connection.serve().await;
            }
        };
        self.accept(serve, CONNECTION_BYTES, sender, clock, tasks, stop, abort).await;
    }

    /// Where things come from that no connection brought.
    pub(super) fn origin(&self) -> Origin {
        Origin::new(self.protocol.as_str(), self.name.clone(), "".into(), 0)
    }

    /// The same with whatever `serve` makes of a connection once it is let in, and TLS spoken. Each takes `bytes` of
    /// memory when it is let in, and more for TLS.
    #[expect(clippy::too_many_arguments, reason = "those of `serve`, and one more")]
    pub(super) async fn accept<F: Future<Output = ()> + Send + 'static>(
        self,
        serve: impl Fn(Accepted) -> F + Send + Sync + 'static,
        bytes: u64,
        sender: Sender,
        clock: Clock,
        tasks: TaskTracker,
        stop: CancellationToken,
        abort: CancellationToken,
    ) {
        let Listener { name, protocol, options, counters, capture, memory, socket, tls } = self;
        let bytes = if tls.is_some() { bytes + TLS_BYTES } else { bytes };
        let context = ConnectionContext {
            options: options.clone(),
            sender,
            counters,
            clock,
            memory: memory.clone(),
            place: None,
            capture,
            tasks: tasks.clone(),
            stop: stop.clone(),
            abort: abort.clone(),
        };
        let arrive = Arc::new(serve);
        let admission = Arc::new(Admission::new(&options));
        let permits = Arc::new(Semaphore::new(options.max_connections));
        let mut wait = ACCEPT_RETRY.0;
        let trouble = LogThrottle::new();
        loop {
            // A place first, and memory: who finds none waits in the kernel's queue and costs nothing.
            let accepted = async {
                let permit = permits.clone().acquire_owned().await.map_err(io::Error::other)?;
                let room = room_for_one(&memory, bytes, &name).await;
                Ok::<_, io::Error>((permit, room, socket.accept().await?))
            };
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = accepted => accepted,
            };
            let (permit, room, (stream, peer)) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // A peer that has left already is no trouble of ours.
                    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                        if let Some(suppressed) = trouble.permit() {
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
            // Whom a proxy brings is not known yet.
            let is_direct = !admission.is_proxy(peer.ip());
            let place = match is_direct.then(|| admission.admit(peer.ip())).transpose() {
                Ok(place) => place,
                Err(why) => {
                    debug!(listener = &*name, %peer, "connection refused: {why}");
                    context.counters.refused();
                    continue;
                }
            };
            let number = next_connection();
            let (protocol, name) = (protocol.as_str(), name.clone());
            let origin_of =
                move |peer: SocketAddr| Arc::new(Origin::new(protocol, name.clone(), peer.to_string().into(), number));
            let open = context.counters.connection();
            let (mut context, tls, arrive, admission) =
                (context.clone(), tls.clone(), arrive.clone(), admission.clone());
            context.place = Some(Arc::new(room));
            let serve = async move {
                let _places = (permit, place, open);
                let mut stream = stream;
                set_options(&stream, &context.options);
                let opened = context.clock.now().elapsed;
                let (peer, _place) = if is_direct {
                    (peer, None)
                } else {
                    introduce(&mut stream, peer, &origin_of(peer), &admission, &context, opened).await?
                };
                let origin = origin_of(peer);
                let span = debug_span!("connection", protocol, %peer, connection = number);
                let serve = async move {
                    if let Some(mut stream) =
                        secure(stream, tls.map(|tls| tls.acceptor()), &origin, &context, opened).await
                    {
                        debug!("connection opened");
                        stream.record(context.recording(&origin, opened));
                        arrive(Accepted { stream, peer, origin, context, opened }).await;
                    }
                };
                serve.instrument(span).await;
                Some(())
            };
            let abort = abort.clone();
            // Boxed, or each of what is context it would keep room for a copy of its own.
            let serve = Box::pin(serve);
            tasks.spawn(async move { abort.run_until_cancelled_owned(serve).await });
        }
    }
}

/// Waits until there is memory for one more connection of a listener.
pub(super) async fn room_for_one(memory: &Arc<MemoryBudget>, bytes: u64, listener: &str) -> MemoryLease {
    let mut is_told = false;
    loop {
        if let Some(room) = memory.admit(bytes) {
            return room;
        }
        if !is_told {
            is_told = true;
            debug!(listener, "there is no memory for another connection (limits.memory_bytes): who comes waits");
        }
        sleep(ROOM_RETRY).await;
    }
}

/// A socket that listens on an address.
///
/// # Errors
/// Those of the system.
pub fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    // A daemon that restarts finds its port again at once.
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

/// Whom a proxy brings, and its place. A proxy that speaks for itself needs none: its own address says nothing about how
/// many are behind it. `None`: nobody comes in.
async fn introduce(
    stream: &mut TcpStream,
    proxy: SocketAddr,
    origin: &Arc<Origin>,
    admission: &Arc<Admission>,
    context: &ConnectionContext,
    opened: Duration,
) -> Option<(SocketAddr, Option<ConnectionSlot>)> {
    let Some(peer) = super::proxy::told(stream, origin, context, opened).await? else { return Some((proxy, None)) };
    match admission.admit(peer.ip()) {
        Ok(place) => Some((peer, Some(place))),
        Err(why) => {
            debug!(listener = &*origin.listener, %peer, %proxy, "connection refused: {why}");
            context.counters.refused();
            None
        }
    }
}

/// Speaks TLS where the listener has it; with `allow_plain` only to those who begin like it. `None`: it came to nothing,
/// and a loss says so.
async fn secure(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    origin: &Arc<Origin>,
    context: &ConnectionContext,
    opened: Duration,
) -> Option<Stream> {
    let Some(acceptor) = tls else { return Some(Stream::plain(stream)) };
    let deadline = context.clock.instant(opened + context.options.handshake_timeout);
    let mut first = [0; Loss::EXCERPT];
    let peeked = tokio::select! {
        peeked = timeout_at(deadline, stream.peek(&mut first)) => peeked,
        () = context.stop.cancelled() => return None,
    };
    let Ok(Ok(peeked @ 1..)) = peeked else { return None };
    if first[0] != TLS_FIRST_BYTE {
        let is_welcome = context.options.tls.as_ref().is_some_and(|tls| tls.allow_plain);
        if is_welcome {
            return Some(Stream::plain(stream));
        }
        let detail = "this listener speaks TLS, and these bytes do not (tls.allow_plain accepts both)";
        refuse(origin, context, Reason::Malformed, &first[..peeked], detail).await;
        return None;
    }
    let handshake = tokio::select! {
        handshake = timeout_at(deadline, acceptor.accept(stream)) => handshake,
        () = context.stop.cancelled() => return None,
    };
    match handshake {
        Ok(Ok(stream)) => Some(Stream::tls(stream)),
        Ok(Err(error)) => {
            refuse(origin, context, Reason::Malformed, &[], &format!("the TLS handshake failed: {error}")).await;
            None
        }
        Err(_) => {
            refuse(origin, context, Reason::Malformed, &[], "the TLS handshake took longer than handshake_timeout")
                .await;
            None
        }
    }
}

/// Reports bytes that never reached a session.
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

/// Who may come in, and how many from one address.
#[derive(Debug)]
struct Admission {
    allow: Vec<IpNet>,
    proxies: Vec<IpNet>,
    per_address: Option<usize>,
    inside: Mutex<HashMap<IpAddr, usize>>,
}

/// Connections from one address where the operator has not set a number. Loopback is exempt then: a relay on this
/// machine speaks for many.
const DEFAULT_PER_ADDRESS: usize = 64;

impl Admission {
    fn new(options: &ListenerOptions) -> Self {
        Admission {
            allow: options.allow.clone(),
            proxies: options.proxy_protocol.clone(),
            per_address: options.max_connections_per_address,
            inside: Mutex::default(),
        }
    }

    /// Whether connections from there begin with a PROXY header.
    fn is_proxy(&self, address: IpAddr) -> bool {
        self.proxies.iter().any(|net| net.contains(&address.to_canonical()))
    }

    fn admit(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionSlot, &'static str> {
        let address = address.to_canonical();
        if !self.allow.is_empty() && !self.allow.iter().any(|net| net.contains(&address)) {
            return Err("its address is not allowed (allow)");
        }
        let limit = match self.per_address {
            Some(limit) => limit,
            None if address.is_loopback() => usize::MAX,
            None => DEFAULT_PER_ADDRESS,
        };
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let count = inside.entry(address).or_default();
        if *count >= limit {
            return Err("too many connections from its address (max_connections_per_address)");
        }
        *count += 1;
        Ok(ConnectionSlot { admission: self.clone(), address })
    }
}

/// A connection's place; given back when dropped.
#[derive(Debug)]
struct ConnectionSlot {
    admission: Arc<Admission>,
    address: IpAddr,
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut inside = self.admission.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(allow: &[&str], per_address: Option<usize>) -> Arc<Admission> {
        let allow = allow.iter().map(|net| net.parse().unwrap()).collect();
        let options = ListenerOptions { allow, max_connections_per_address: per_address, ..Default::default() };
        Arc::new(Admission::new(&options))
    }

    #[test]
    fn only_allowed_addresses_come_in_and_mapped_ones_count_as_what_they_are() {
        let admission = admission(&["10.0.0.0/8", "::1/128"], None);
        assert!(admission.admit("10.1.2.3".parse().unwrap()).is_ok());
        assert!(admission.admit("::ffff:10.1.2.3".parse().unwrap()).is_ok());
        assert!(admission.admit("11.0.0.1".parse().unwrap()).is_err());
        assert!(admission.admit("127.0.0.1".parse().unwrap()).is_err());
    }

    #[test]
    fn proxies_are_known_by_their_networks_mapped_or_not() {
        let proxy_protocol = vec!["10.0.0.0/8".parse().unwrap()];
        let admission = Admission::new(&ListenerOptions { proxy_protocol, ..Default::default() });
        assert!(admission.is_proxy("10.1.2.3".parse().unwrap()));
        assert!(admission.is_proxy("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!admission.is_proxy("11.0.0.1".parse().unwrap()));
        assert!(!Admission::new(&ListenerOptions::default()).is_proxy("10.1.2.3".parse().unwrap()));
    }

    #[test]
    fn an_address_has_so_many_places_and_gets_them_back() {
        let address = "192.0.2.1".parse().unwrap();
        let admission = admission(&[], None);
        let mut places: Vec<_> = (0..DEFAULT_PER_ADDRESS).map(|_| admission.admit(address).unwrap()).collect();
        assert!(admission.admit(address).is_err());
        places.pop();
        places.push(admission.admit(address).unwrap());
        places.clear();
        assert!(admission.inside.lock().unwrap().is_empty());
    }

    #[test]
    fn loopback_is_limited_only_when_the_operator_says_so() {
        let address = "127.0.0.1".parse().unwrap();
        let free = admission(&[], None);
        let places: Vec<_> = (0..1000).map(|_| free.admit(address)).collect();
        assert!(places.iter().all(Result::is_ok));
        let limited = admission(&[], Some(1));
        let _place = limited.admit(address).unwrap();
        assert!(limited.admit(address).is_err());
    }
}
