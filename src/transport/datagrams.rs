//! Sockets of datagrams, UDP or Unix: each datagram is complete, and its sender waits for nothing.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::cmsg_space;
use nix::sys::socket::sockopt::RxqOvfl;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::Interest;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use tributary_driver::{Account, loss_batch};
use tributary_event::{BatchBuilder, Loss, Reason};
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::{DatagramReader, Output};

use super::admission::Admission;
use super::context::ListenerContext;
use super::tcp::canonical;

/// The longest datagram.
const MAX_DATAGRAM_BYTES: usize = 64 << 10;
/// What the kernel keeps of datagrams that are not read yet, if it allows that much (`net.core.rmem_max`).
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Datagrams that are dropped are reported at most this often.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A UDP socket at an address.
///
/// # Errors
/// Those of the system.
pub fn bind(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// A socket of datagrams that is served.
#[derive(Debug)]
pub struct DatagramListener {
    socket: DatagramSocket,
}

#[derive(Debug)]
enum DatagramSocket {
    Udp(UdpSocket),
    Unix(UnixDatagram),
}

impl DatagramSocket {
    async fn readable(&self) -> io::Result<()> {
        match self {
            DatagramSocket::Udp(socket) => socket.readable().await,
            DatagramSocket::Unix(socket) => socket.readable().await,
        }
    }

    /// The next datagram; an error of the kind `WouldBlock`: there is none.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Datagram> {
        match self {
            DatagramSocket::Udp(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_raw_fd(), buffer)),
            DatagramSocket::Unix(socket) => socket.try_io(Interest::READABLE, || receive(socket.as_raw_fd(), buffer)),
        }
    }
}

/// A datagram that was received.
struct Datagram {
    length: usize,
    /// `None`: the sender has no address.
    peer: Option<SocketAddr>,
    /// How many datagrams the kernel has dropped since the socket was made.
    dropped: Option<u32>,
}

/// What is being read.
struct Receiver {
    context: ListenerContext,
    out: Output,
    account: Account,
    /// The sender of the last datagram.
    peer: Option<SocketAddr>,
    /// How many datagrams the kernel has dropped since the socket was made.
    dropped: u32,
    /// Of these, those that no loss reports yet, and when the last one was written.
    unreported: u64,
    reported: Option<Instant>,
    refusals: LogThrottle,
}

impl DatagramListener {
    /// Serves a bound socket.
    ///
    /// # Errors
    /// Those of the system.
    pub fn on(socket: Socket) -> io::Result<DatagramListener> {
        // The kernel cuts it at its limit.
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES)?;
        let socket = match socket.domain()? {
            Domain::UNIX => DatagramSocket::Unix(UnixDatagram::from_std(socket.into())?),
            _ => {
                setsockopt(&socket, RxqOvfl, &1)?;
                DatagramSocket::Udp(UdpSocket::from_std(socket.into())?)
            }
        };
        Ok(DatagramListener { socket })
    }

    /// Reads datagrams until the listener stops.
    pub async fn serve(self, reader: Arc<dyn DatagramReader>, context: ListenerContext) {
        let admission = Arc::new(Admission::new(&context.options, context.clock));
        let origin = Arc::new(context.origin("unix", 0));
        let mut receiver = Receiver {
            out: Output::new(BatchBuilder::new(origin)),
            account: Account::default(),
            peer: None,
            dropped: 0,
            unreported: 0,
            reported: None,
            refusals: LogThrottle::new(),
            context,
        };
        let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
        loop {
            let stop = receiver.context.stop.clone();
            let readable = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                readable = self.socket.readable() => readable,
                () = sleep(REPORT_INTERVAL), if receiver.unreported > 0 => {
                    receiver.report_dropped().await;
                    continue;
                }
            };
            if readable.is_err() {
                break;
            }
            // All that is there, in batches.
            while !stop.is_cancelled() {
                match self.socket.receive(&mut buffer) {
                    Ok(Datagram { length, peer, dropped }) => {
                        receiver.note_dropped(dropped);
                        match peer {
                            Some(peer) if !admission.is_allowed(peer.ip()) => receiver.refuse(peer),
                            peer => receiver.read(&buffer[..length], peer, &*reader).await,
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        if let Some(suppressed) = receiver.refusals.permit() {
                            warn!(listener = receiver.context.counters.name(), %error, suppressed, "cannot receive a datagram");
                        }
                        break;
                    }
                }
            }
            receiver.hand_over().await;
            if receiver.is_report_due() {
                receiver.report_dropped().await;
            }
        }
        receiver.hand_over().await;
        receiver.report_dropped().await;
    }
}

fn receive(socket: RawFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    let mut parts = [io::IoSliceMut::new(buffer)];
    let mut control = cmsg_space!(u32);
    let received = recvmsg::<SockaddrStorage>(socket, &mut parts, Some(&mut control), MsgFlags::empty())?;
    let dropped = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::RxqOvfl(dropped) => Some(dropped),
        _ => None,
    });
    let peer = received.address.and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|it| SocketAddr::new(it.ip().into(), it.port()));
        v4.or_else(|| address.as_sockaddr_in6().map(|it| canonical(SocketAddr::new(it.ip().into(), it.port()))))
    });
    Ok(Datagram { length: received.bytes, peer, dropped })
}

impl Receiver {
    async fn read(&mut self, datagram: &[u8], peer: Option<SocketAddr>, reader: &dyn DatagramReader) {
        self.account.received(&self.context.counters, datagram.len() as u64);
        if let Some(peer) = peer
            && self.peer.replace(peer) != Some(peer)
        {
            self.out.batch.set_origin(Arc::new(self.context.origin(&peer.to_string(), 0)));
        }
        let mut at = 0;
        while at < datagram.len() {
            at = reader.read(datagram, at, self.context.clock.now(), &mut self.out);
            self.account.settle(&self.context.counters, &mut self.out);
            if self.out.batch.is_full() {
                self.hand_over().await;
            }
        }
    }

    async fn hand_over(&mut self) {
        if !self.out.batch.is_empty() {
            let batch = self.out.batch.take();
            self.context.sender.send(batch).await;
        }
    }

    fn refuse(&self, peer: SocketAddr) {
        if let Some(suppressed) = self.refusals.permit() {
            let listener = self.context.counters.name();
            info!(listener, %peer, suppressed, "a datagram is refused: its address is not allowed (allow)");
        }
        self.context.counters.refused();
    }

    /// Notes how many datagrams the kernel has dropped since the socket was made.
    fn note_dropped(&mut self, all: Option<u32>) {
        let new = u64::from(all.map_or(0, |all| all.wrapping_sub(std::mem::replace(&mut self.dropped, all))));
        self.context.counters.dropped_datagrams(new);
        self.unreported += new;
    }

    fn is_report_due(&self) -> bool {
        self.unreported > 0 && self.reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL)
    }

    /// Writes a loss about datagrams that were dropped.
    async fn report_dropped(&mut self) {
        let dropped = std::mem::take(&mut self.unreported);
        if dropped == 0 {
            return;
        }
        self.reported = Some(Instant::now());
        let listener = self.context.counters.name();
        warn!(listener, dropped, "the kernel has dropped datagrams: they arrived faster than they could be read");
        let detail = format!("{dropped} datagrams were dropped by the kernel, whose buffer was full");
        let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail: &detail, excerpt: &[] };
        let origin = Arc::new(self.context.origin("", 0));
        let batch = loss_batch(&self.context.counters, &origin, self.context.clock.now().unix, 0, loss);
        self.context.sender.send(batch).await;
    }
}
