//! Support for tests of a running daemon: a daemon on loopback with its events in memory, and peers.

pub mod binary;
pub mod custom;
pub mod puppet;
pub mod strace;
pub mod wire;

use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tributary::config::Config;
use tributary::pipeline::Sinks;
use tributary::pipeline::accounting::{ListenerTotals, Totals};
use tributary::server::Server;
use tributary::sink::Sink;
use tributary::sink::memory::{Memory, MemoryLines};

use crate::wait;

/// The time limit for anything that must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon in this process, whose events stay in memory.
pub struct Daemon {
    pub server: Server,
    lines: Arc<MemoryLines>,
    /// The lines that were read so far: each is parsed once, however often a test asks for events.
    parsed: Mutex<Vec<Value>>,
}

/// A daemon that has stopped.
pub struct Stopped {
    pub events: Vec<Value>,
    pub totals: Totals,
}

/// The configuration of one datadog listener called `test`, with further lines of its own.
pub fn listener(options: &str) -> String {
    format!("[listeners.test]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n{options}\n")
}

/// The configuration in `toml`, with the sinks that it names and no others.
pub fn config(toml: &str) -> Config {
    let mut config = Config::parse("test", toml).unwrap().config;
    if !toml.contains("[sinks") {
        config.sinks.clear();
    }
    // The default admin endpoint belongs to the first daemon that runs; its page must not change what others measure.
    config.view.enabled &= toml.contains("[admin]") || toml.contains("[view]");
    config
}

/// The same with this much memory for peers to share: no listener has a reserve, and one address may use all of it.
pub fn config_with_memory(toml: &str, bytes: u64) -> Config {
    let mut config = config(toml);
    config.listeners.iter_mut().for_each(|listener| listener.options.reserved_bytes = 0);
    config.limits.memory_per_address = Some(bytes);
    config.limits.memory_bytes = Some(config.bounds().sum() + bytes);
    config
}

/// Adds an existing sink, instead of one that is created again after each failure.
pub fn add<S: Sink + Sync>(sinks: &mut Sinks, name: &str, sink: S) {
    let sink = Mutex::new(Some(sink));
    sinks.add(name, Default::default(), move || Ok(sink.lock().unwrap().take().expect("it never fails")));
}

/// Whether something that ends soon keeps a daemon from starting.
fn is_held(error: &str) -> bool {
    error.contains("Address already in use")
}

impl Daemon {
    /// Starts a daemon with one listener, called `test`, with these lines of configuration.
    pub async fn with(options: &str) -> Daemon {
        Daemon::start(&listener(options)).await
    }

    pub async fn start(toml: &str) -> Daemon {
        Daemon::on(&config(toml)).await
    }

    pub async fn on(config: &Config) -> Daemon {
        let (started, mut pauses) = (Instant::now(), wait::Pauses::new());
        loop {
            let (memory, lines) = Memory::new();
            match Server::start_with(config, |sinks| add(sinks, "memory", memory)).await {
                Ok(server) => return Daemon { server, lines, parsed: Mutex::default() },
                // A connection of another test may have the port of the daemon before as its own.
                Err(error) if is_held(&error.to_string()) && started.elapsed() < PATIENCE => pauses.next().await,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// A connection to the first listener.
    pub async fn connect(&self) -> TcpStream {
        connect(&self.server).await
    }

    pub fn events(&self) -> Vec<Value> {
        self.with_events(<[Value]>::to_vec)
    }

    fn with_events<T>(&self, read: impl FnOnce(&[Value]) -> T) -> T {
        let mut parsed = self.parsed.lock().unwrap();
        let lines = self.lines.lines_from(parsed.len());
        parsed.extend(lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        read(&parsed)
    }

    /// The counters of the first listener.
    pub fn counters(&self) -> ListenerTotals {
        counters(&self.server)
    }

    /// Waits until the events satisfy `condition`.
    pub async fn until(&self, what: &str, condition: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        until(what, || self.with_events(|events| condition(events).then(|| events.to_vec()))).await
    }

    /// Waits for an event with this name.
    pub async fn until_named(&self, name: &str) -> Value {
        until(name, || self.with_events(|events| events.iter().find(|event| event["name"] == name).cloned())).await
    }

    pub async fn until_totals(&self, what: &str, condition: impl Fn(&ListenerTotals) -> bool) {
        until(what, || condition(&self.counters()).then_some(())).await;
    }

    /// Waits until every connection has ended and its events are written.
    pub async fn until_all_closed(&self) {
        self.until_totals("every connection is over", |counters| counters.connections_open == 0).await;
        let is_written = || self.server.accounting().totals().sinks.iter().all(|sink| sink.in_flight() == 0);
        until("everything is written", || is_written().then_some(())).await;
    }

    /// Stops; the counters must balance.
    pub async fn stop(self) -> Stopped {
        let Daemon { server, lines, parsed } = self;
        let totals = stop(server).await;
        let mut events = parsed.into_inner().unwrap();
        events.extend(lines.lines_from(events.len()).iter().map(|line| serde_json::from_str::<Value>(line).unwrap()));
        Stopped { events, totals }
    }

    /// The same with the lines of the events, for tests that read few fields of many events.
    pub async fn stop_with_lines(self) -> (Vec<String>, Totals) {
        let totals = stop(self.server).await;
        (self.lines.take(), totals)
    }
}

async fn stop(server: Server) -> Totals {
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    totals
}

/// The value of a member of a JSON line, as its text. The line may have only one member with this key.
pub fn member<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, value) = line.split_once(&format!("\"{key}\":"))?;
    let end = value.find([',', '}', ']']).unwrap_or(value.len());
    Some(&value[..end])
}

pub async fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address().unwrap()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub fn counters(server: &Server) -> ListenerTotals {
    server.accounting().totals().listeners.remove(0)
}

/// Waits for something that must happen.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("this did not happen in time: {what}"))
}

/// Calls `ask` until it returns a value.
pub async fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    wait::poll(PATIENCE, ask).await.unwrap_or_else(|| panic!("this did not happen in time: {what}"))
}

/// The same with a call that waits, e.g. for a response.
pub async fn until_async<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    wait::poll_async(PATIENCE, ask).await.unwrap_or_else(|| panic!("this did not happen in time: {what}"))
}

/// Waits until the daemon ends a new connection, on which nothing is sent. `handshake_timeout` has then passed on its clock.
pub async fn until_handshake_timeout(server: &Server) {
    assert_is_closed(&mut connect(server).await).await;
}

/// Waits until nothing listens at this address. A child that another test has forked holds the socket until it runs its program.
pub async fn until_closed(address: impl std::net::ToSocketAddrs) {
    let connect = || std::net::TcpStream::connect(&address).err();
    until("nothing listens there", connect).await;
}

/// Sends everything, closes the sending side, and waits until the daemon closes the connection. The daemon must not send
/// anything; it may reset the connection.
pub async fn send_all(mut stream: TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_is_closed(&mut stream).await;
}

/// Waits until the daemon closes the connection without having sent anything.
pub async fn assert_is_closed(stream: &mut TcpStream) {
    let mut received = Vec::new();
    match within("the daemon closes the connection", stream.read_to_end(&mut received)).await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(received, [0; 0], "a collector of these spans sends nothing");
}

/// Closes a connection with a reset instead of an end.
pub fn reset(stream: TcpStream) {
    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

pub fn losses(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["kind"] == "loss").map(|event| &event["loss"]).collect()
}

/// Every span, and whether it is complete.
pub fn spans(events: &[Value]) -> Vec<(&str, bool)> {
    let spans = events.iter().filter(|event| event["kind"] == "span");
    let is_whole = |event: &Value| event["attributes"].get("tributary.incomplete").is_none();
    spans.map(|event| (event["name"].as_str().unwrap(), is_whole(event))).collect()
}

/// An event without what differs between two runs or two connections.
pub fn timeless(event: &Value) -> Value {
    let mut event = event.clone();
    let fields = event.as_object_mut().unwrap();
    fields.remove("observed_time");
    // Only spans have a time of their own; all other events have the receive time.
    if fields["kind"] != "span" {
        fields.remove("time");
    }
    let origin = fields["origin"].as_object_mut().unwrap();
    origin.remove("peer");
    origin.remove("connection");
    event
}
