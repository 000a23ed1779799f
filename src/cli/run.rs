//! `tributary run`: the daemon.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::config::{Config, Loaded};
use crate::pipeline::accounting::{SinkTotals, Totals};
use crate::server::Server;

use super::{Failure, block_on_threads, service};

/// Where a configuration is looked for when none is named, in this order.
const PLACES: [&str; 2] = ["./tributary.toml", "/etc/tributary/tributary.toml"];

/// How often a configuration that is to be watched is looked at.
const WATCH: Duration = Duration::from_millis(500);

/// Run the daemon
///
/// SIGTERM and SIGINT drain and end it, a second one ends it at once. SIGHUP reads the configuration again, and opens
/// files anew.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary run                                the configuration found, or built-in defaults
  tributary run --config tributary.toml | jq 'select(.kind == \"span\")'
  tributary run --log-format json --log-level warn")]
pub(super) struct Arguments {
    /// The configuration [default: ./tributary.toml, then /etc/tributary/tributary.toml, then built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (source, loaded) = load(arguments.config.clone())?;
    info!("tributary {}, configuration: {source}", env!("CARGO_PKG_VERSION"));
    let threads = loaded.config.limits.threads();
    let totals = block_on_threads(threads, serve(loaded.config, arguments.config.clone()))??;
    verdict(&totals)
}

/// The configuration that is named, or the first that is there, or the built-in one; and where it came from.
pub(super) fn load(named: Option<PathBuf>) -> Result<(String, Loaded), Failure> {
    let found = named.or_else(|| PLACES.iter().map(PathBuf::from).find(|place| place.exists()));
    let (source, loaded) = match found {
        Some(path) => (path.display().to_string(), Config::load(&path)),
        None => ("built-in defaults".to_owned(), Config::parse("built-in defaults", "")),
    };
    let loaded = loaded.map_err(|errors| Failure::Misused(format!("invalid configuration\n{errors}")))?;
    Ok((source, loaded))
}

async fn serve(mut config: Config, named: Option<PathBuf>) -> Result<Totals, Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // Before the files are used: what changes from here on is seen.
    let mut watch = Watch::new(named.clone(), &config);
    let started = Server::start_on(&config, service::sockets(), |_| {}).await;
    let mut server = started.map_err(|error| Failure::Failed(error.to_string()))?;
    tell(&server, &config);
    let _watchdog = AbortOnDropHandle::new(tokio::spawn(service::feed_watchdog(server.health().clone())));
    service::ready();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            () = server.wants_to_stop() => break,
            () = watch.changed(), if config.watch => {
                info!("the configuration or a certificate has changed");
                reload(&mut server, &mut config, named.clone()).await;
                watch.also(&config);
            }
            _ = hang_up.recv() => {
                reload(&mut server, &mut config, named.clone()).await;
                watch.also(&config);
                server.reopen();
                info!("SIGHUP: files are opened anew");
            }
        }
    }
    info!("stopping; a second signal stops at once");
    service::stopping();
    let accounting = server.accounting().clone();
    let totals = tokio::select! {
        totals = server.stop() => totals,
        _ = terminate.recv() => give_up(&accounting),
        _ = interrupt.recv() => give_up(&accounting),
    };
    totals.listeners.iter().for_each(|listener| info!("{listener}"));
    totals.sinks.iter().for_each(|sink| info!("{sink}"));
    Ok(totals)
}

/// Looks whether the configuration file, or a TLS file that it names, is another one than before.
struct Watch {
    path: Option<PathBuf>,
    tls: Vec<PathBuf>,
    seen: Looks,
    ticks: Interval,
}

/// What files look like from outside, the configuration first; `None`: it is not there. A change that is still going on
/// looks different again a moment later.
type Looks = Vec<Option<(u64, u64, SystemTime)>>;

impl Watch {
    fn new(named: Option<PathBuf>, config: &Config) -> Watch {
        let path = named.or_else(|| PLACES.iter().map(PathBuf::from).find(|place| place.exists()));
        let mut watch = Watch { path, tls: Vec::new(), seen: Looks::new(), ticks: interval(WATCH) };
        watch.seen = watch.look();
        watch.also(config);
        watch.ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        watch
    }

    /// Watches the TLS files that this configuration names.
    fn also(&mut self, config: &Config) {
        let tls = config.tls_files();
        if tls != self.tls {
            self.tls = tls;
            // Whether the configuration is another one since is still to be seen.
            self.seen.truncate(1);
            self.seen.extend(self.look().drain(1..));
        }
    }

    /// Waits until one has changed, and all look the same for one tick after.
    async fn changed(&mut self) {
        let mut new = Looks::new();
        loop {
            self.ticks.tick().await;
            let looks = self.look();
            let is_there = looks.first().is_some_and(Option::is_some);
            if is_there && looks != self.seen && looks == new {
                self.seen = looks;
                return;
            }
            new = looks;
        }
    }

    fn look(&self) -> Looks {
        let look = |path: &PathBuf| {
            let metadata = path.metadata().ok()?;
            Some((metadata.ino(), metadata.len(), metadata.modified().ok()?))
        };
        let config = self.path.as_ref().and_then(look);
        [config].into_iter().chain(self.tls.iter().map(look)).collect()
    }
}

/// Where it listens and dials, and where events go.
fn tell(server: &Server, config: &Config) {
    config.warn_about_exposed_secrets();
    for bound in server.addresses() {
        info!("listener {} ({}) on {}", bound.name, bound.protocol, bound.address);
    }
    if let Some(address) = server.admin_address() {
        info!("admin endpoint on {address}");
    }
    for (name, agents) in server.dialled() {
        for agent in agents {
            let sockets: Vec<_> = [agent.publish, agent.request].into_iter().flatten().collect();
            info!("listener {name} (rbkit) dials {}", sockets.join(" and "));
        }
    }
    for sink in &config.sinks {
        info!("sink {}: {}", sink.name, sink.kind);
    }
}

/// Reads the configuration again and goes on by it. A wrong one changes nothing.
async fn reload(server: &mut Server, config: &mut Config, named: Option<PathBuf>) {
    service::reloading();
    reread(server, config, named).await;
    service::ready();
}

async fn reread(server: &mut Server, config: &mut Config, named: Option<PathBuf>) {
    let (source, loaded) = match load(named) {
        Ok(loaded) => loaded,
        Err(failure) => return error!("everything goes on as before: {failure}"),
    };
    match server.reload(&loaded.config).await {
        Ok(reloaded) => {
            info!("{source}: {reloaded}");
            reloaded.stale.iter().for_each(|why| warn!("{why}"));
            reloaded.failures.iter().for_each(|failure| error!("{failure}"));
            *config = loaded.config;
            tell(server, config);
        }
        Err(failure) => error!("everything goes on as before: {failure}"),
    }
}

fn give_up(accounting: &crate::pipeline::accounting::Accounting) -> Totals {
    warn!("stopped at once; the counters are as they stand");
    accounting.totals()
}

/// Whether everything that was decoded was also given to the sinks, and none of them died.
pub(super) fn verdict(totals: &Totals) -> Result<(), Failure> {
    // A reader that has left wanted no more; what it did not get is no failure.
    let open = || totals.sinks.iter().filter(|sink| !sink.closed);
    let unwritten = |sink: &SinkTotals| i128::from(sink.failed) + sink.in_flight();
    let names = |is_meant: &dyn Fn(&SinkTotals) -> bool| {
        open().filter(|sink| is_meant(sink)).map(|sink| sink.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let failed: i128 = open().map(unwritten).sum();
    if failed > 0 {
        let names = names(&|sink| unwritten(sink) > 0);
        return Err(Failure::Failed(format!("{failed} decoded events could not be written by sink {names}")));
    }
    let dead = names(&|sink| sink.dead);
    if dead.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("sink {dead} failed (on_failure = \"fatal\")"))) }
}
