//! A simulated process that runs in the background.

use std::future::pending;
use std::net::SocketAddr;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tributary::simulate::Amount;
use tributary::simulate::rbkit::{Options, Plan, Received, Report, SimulatedProcess};

use crate::live::within;

pub struct Running {
    options: Options,
    end: Option<oneshot::Sender<()>>,
    running: JoinHandle<std::io::Result<Report>>,
}

impl Running {
    /// Options with any free ports.
    pub fn any() -> Options {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        Options { publish: any, request: any, ..Options::default() }
    }

    /// Binds a process and runs it at a low rate: each second brings a message while a profile is on.
    pub async fn start(options: Options) -> Running {
        Running::run(SimulatedProcess::bind(options).await.unwrap(), u64::MAX)
    }

    /// Runs a process until it has sent this many events; `u64::MAX`: until [`Running::end`].
    pub fn run(process: SimulatedProcess, events: u64) -> Running {
        let options = process.options();
        let (end, ended) = oneshot::channel::<()>();
        let plan = Plan { amount: Amount::Events(events), rate: Some(2_000), seed: 5 };
        let running = tokio::spawn(process.run(plan, async {
            // Dropped, as at the end of a failed test, it does not end the process.
            if ended.await.is_err() {
                pending::<()>().await;
            }
        }));
        Running { options, end: Some(end), running }
    }

    pub fn options(&self) -> Options {
        self.options
    }

    /// The process in TOML, with further keys, each after a comma.
    pub fn dialled(&self, keys: &str) -> String {
        let Options { publish, request, .. } = self.options;
        format!("{{ publish = \"{publish}\", request = \"{request}\"{keys} }}")
    }

    /// Ends it. Returns what it has received.
    pub async fn end(mut self) -> Received {
        // It may have ended already.
        let _ = self.end.take().map(|end| end.send(()));
        within("the process ends", self.running).await.unwrap().unwrap().received
    }
}
