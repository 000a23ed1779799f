//! A listener whose sessions, or whose exchange, are made by a test; its events stay in memory.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::pipeline::{Sinks, Workers};
use tributary::protocol::{Exchange, Protocol, Session};
use tributary::sink::memory::{Memory, MemoryLines};
use tributary::transport::clock::Clock;
use tributary::transport::context::ListenerContext;
use tributary::transport::http::serve_http;
use tributary::transport::options::{HttpOptions, ListenerOptions, QuarantineOptions};
use tributary::transport::tcp::{Listener, bind};

use super::within;

/// A listener that serves.
pub struct Custom {
    pub address: SocketAddr,
    pub counters: Arc<ListenerCounters>,
    /// Cancelled when the grace period of a stop is over.
    pub abort: CancellationToken,
    /// Cancelled when it is to stop.
    pub stop: CancellationToken,
    lines: Arc<MemoryLines>,
    workers: Workers,
    tasks: TaskTracker,
    serving: JoinHandle<()>,
}

impl Custom {
    /// With a session for each connection.
    pub fn of_sessions<S: Session>(options: ListenerOptions, make: impl Fn() -> S + Send + Sync + 'static) -> Custom {
        let memory = MemoryBudget::unlimited();
        Custom::start(Protocol::Datadog, options, memory, |listener, context| {
            tokio::spawn(listener.serve(move |_, _: &_| make(), context))
        })
    }

    /// With an exchange for all requests, and no quarantine.
    pub fn of_exchange<E: Exchange>(options: ListenerOptions, exchange: E) -> Custom {
        let quarantine = QuarantineOptions { dir: "".into(), ..Default::default() };
        let http = HttpOptions { quarantine, ..HttpOptions::default() };
        let memory = MemoryBudget::new(64 << 20);
        Custom::start(Protocol::Endless, options, memory, |listener, context| {
            tokio::spawn(serve_http(vec![listener], Vec::new(), exchange, http, context))
        })
    }

    fn start(
        protocol: Protocol,
        options: ListenerOptions,
        budget: Arc<MemoryBudget>,
        serve: impl FnOnce(Listener, ListenerContext) -> JoinHandle<()>,
    ) -> Custom {
        let (memory, lines) = Memory::new();
        let mut sinks = Sinks::new(CancellationToken::new());
        super::add(&mut sinks, "memory", memory);
        let (sender, workers) = sinks.start();
        let (tasks, stop, abort) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        // Every loopback address reaches it.
        let listener = Listener::on(bind(([0, 0, 0, 0], 0).into()).unwrap(), &options).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.address().unwrap().port()));
        let counters = ListenerCounters::new("test".into(), protocol);
        let context = ListenerContext {
            options: options.into(),
            counters: counters.clone(),
            memory: budget,
            capture: None,
            sender,
            clock: Clock::start(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            abort: abort.clone(),
        };
        let serving = serve(listener, context);
        Custom { address, counters, abort, stop, lines, workers, tasks, serving }
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Value> {
        self.lines.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Stops it, and returns every event.
    pub async fn stop(mut self) -> Vec<Value> {
        self.stop.cancel();
        self.serving.await.unwrap();
        self.tasks.close();
        within("the connections end", self.tasks.wait()).await;
        within("the sink ends", self.workers.drained()).await;
        self.lines.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The same at the end of the grace period: what has not ended by itself is given up.
    pub async fn abort(self) -> Vec<Value> {
        self.abort.cancel();
        self.stop().await
    }
}
