//! A Ruby process that the command connects to itself: a daemon in this process, with one listener and one sink.

use std::ops::ControlFlow;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::super::CommandLineError;
use super::super::signals::StopSignals;
use super::feed::{Feed, FeedPart, FeedSender, Followed, Take};
use crate::config::{Config, ListenerConfig, ProtocolOptions};
use crate::server::Server;
use tributary_pipeline::accounting::Totals;
use tributary_pipeline::options::QueueOptions;
use tributary_rbkit::{self as rbkit, AgentStatus, RbkitCommand};
use tributary_sink::{Selection, Sink, SinkError};

/// The name of the listener.
const LISTENER: &str = "ruby";
/// How long connecting may take, and how long the first reply.
const CONNECT_TIME: Duration = Duration::from_secs(5);
const REPLY_TIME: Duration = Duration::from_secs(15);
/// A process is usually ready before this time. After it, connections are tried to find out what is wrong.
const PROBE_AFTER: Duration = Duration::from_secs(1);
/// How often the state of the process is checked.
const CHECK: Duration = Duration::from_millis(20);
/// How long reading may wait for this command.
const MAX_STALL: Duration = Duration::from_secs(60);

/// The sockets of a Ruby process.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The address at which the process publishes: that of `Rbkit.start_server`, usually 127.0.0.1:5555
    #[arg(value_name = "HOST:PORT")]
    publish: String,
    /// The address at which it takes requests [default: the same host and the next port]
    #[arg(long, value_name = "HOST:PORT")]
    request: Option<String>,
}

impl Arguments {
    /// The addresses of both sockets.
    fn addresses(&self) -> Result<(String, String), CommandLineError> {
        let misused =
            |text: &str| CommandLineError::Misused(format!("{text}: not HOST:PORT, for example 127.0.0.1:5555"));
        let port = |address: &str| {
            let (host, port) = address.rsplit_once(':').filter(|(host, _)| !host.is_empty())?;
            Some((host.to_owned(), port.parse::<u16>().ok().filter(|port| *port != 0)?))
        };
        let (host, publish) = port(&self.publish).ok_or_else(|| misused(&self.publish))?;
        let request = match &self.request {
            Some(request) => port(request).map(|_| request.clone()).ok_or_else(|| misused(request))?,
            None => match publish.checked_add(1) {
                Some(next) => format!("{host}:{next}"),
                None => return Err(CommandLineError::Misused("port 65535 has no next port: use --request".to_owned())),
            },
        };
        Ok((self.publish.clone(), request))
    }
}

/// A connected process.
pub(super) struct ConnectedProcess {
    server: Server,
    pub(super) name: String,
}

impl ConnectedProcess {
    /// Connects to both sockets, and waits until the process has answered and events are subscribed. `options` says
    /// what is switched on.
    pub(super) async fn connect(
        arguments: &Arguments,
        options: rbkit::AgentOptions,
        signals: &mut StopSignals,
    ) -> Result<(ConnectedProcess, Feed), CommandLineError> {
        let (publish, request) = arguments.addresses()?;
        let agent = rbkit::AgentOptions { publish: Some(publish.clone()), request: Some(request.clone()), ..options };
        let (parts, mut feed) = Feed::new(None);
        let queue = QueueOptions::default();
        let config = config(agent);
        let server = Server::start_with(&config, |sinks| {
            sinks.add(LISTENER, queue, move || Ok(FeedSink { parts: parts.clone() }));
        });
        let server = server.await.map_err(|error| CommandLineError::Failed(error.to_string()))?;
        let mut process = ConnectedProcess { server, name: request.clone() };
        feed.progress.step(&format!("connecting to {request}"), None);
        let is_ready = |status: &AgentStatus| status.is_subscribed && status.pid.is_some();
        let ready = async {
            tokio::select! {
                status = process.until(is_ready) => Ok(status),
                why = unreachable(&publish, &request) => Err(why),
                () = signals.next() => Err("it was interrupted".to_owned()),
            }
        };
        let ready = match feed.follow(&mut |_| ControlFlow::Continue(()), ready).await {
            Followed::Ready(ready) => ready,
            Followed::Enough | Followed::Closed => Err("the connection has ended".to_owned()),
        };
        let status = match ready {
            Ok(status) => status,
            Err(why) => {
                feed.report_losses();
                process.server.stop().await;
                return Err(CommandLineError::Failed(why));
            }
        };
        let pid = status.pid.map_or_else(String::new, |pid| format!("pid {pid}, "));
        process.name = format!("{} ({pid}{request})", status.process.unwrap_or_else(|| "process".to_owned()));
        Ok((process, feed))
    }

    /// Waits until this is true of the process.
    pub(super) async fn until(&self, is_so: impl Fn(&AgentStatus) -> bool) -> AgentStatus {
        loop {
            match self.server.rbkit(LISTENER).and_then(|processes| processes.agents().into_iter().next()) {
                Some(status) if is_so(&status) => return status,
                _ => sleep(CHECK).await,
            }
        }
    }

    /// Sends it a command; returns when it has answered.
    pub(super) async fn command(&self, command: RbkitCommand) -> Result<(), CommandLineError> {
        let Some(processes) = self.server.rbkit(LISTENER) else {
            return Err(CommandLineError::Failed(rbkit::RbkitCommandError::NotConnected.to_string()));
        };
        processes.command(0, command).await.map_err(|refusal| CommandLineError::Failed(refusal.to_string()))
    }

    /// Switches off what was switched on, passes the last events on, and ends. A signal ends the wait for the process.
    pub(super) async fn end(self, feed: &mut Feed, signals: &mut StopSignals, take: &mut Take<'_>) -> Totals {
        let stop_now = self.server.stop_now_token();
        let stop = async {
            let mut stopping = std::pin::pin!(self.server.stop());
            tokio::select! {
                totals = &mut stopping => totals,
                () = signals.next() => {
                    stop_now.cancel();
                    stopping.await
                }
            }
        };
        let mut stop = std::pin::pin!(stop);
        let totals = match feed.follow(take, &mut stop).await {
            Followed::Ready(totals) => totals,
            Followed::Enough | Followed::Closed => stop.await,
        };
        feed.drain(take);
        totals
    }
}

/// Finds out why a process is not ready after a while.
async fn unreachable(publish: &str, request: &str) -> String {
    sleep(PROBE_AFTER).await;
    for (address, what) in [(publish, "publishes"), (request, "takes requests (--request sets the address)")] {
        let why = match timeout(CONNECT_TIME, TcpStream::connect(address)).await {
            Ok(Ok(_)) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no connection within {CONNECT_TIME:?}"),
        };
        let help = "the Ruby program must have called Rbkit.start_server";
        return format!("cannot connect to {address}, where the process {what}: {why}; {help}");
    }
    sleep(REPLY_TIME).await;
    format!("{request} does not answer as a process with rbkit does")
}

/// The configuration of a daemon that connects to this process only.
fn config(agent: rbkit::AgentOptions) -> Config {
    let mut config = Config::builtin();
    config.admin.listen = None;
    config.sinks.clear();
    let options = rbkit::Options {
        agents: vec![agent],
        // A heap dump is one frame.
        max_frame_bytes: 16 << 30,
        max_stall: MAX_STALL,
        ..Default::default()
    };
    let protocol = ProtocolOptions::Rbkit(options);
    config.listeners =
        vec![ListenerConfig { name: LISTENER.to_owned(), listen: None, options: Default::default(), protocol }];
    config
}

/// A sink that passes batches to a feed.
struct FeedSink {
    parts: FeedSender,
}

impl Sink for FeedSink {
    const BLOCKS: bool = false;

    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        if self.parts.send(FeedPart::Events(events.to_batch())).await { Ok(()) } else { Err(SinkError::Closed) }
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }
}
