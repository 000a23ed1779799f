//! `tributary run`: the daemon.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::pin::pin;
use std::time::{Duration, SystemTime};

use tokio::runtime::{Builder, Handle};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;
use tracing::{error, info, warn};

use crate::config::{Config, Loaded};
use crate::server::Server;
use tributary_options::Files;
use tributary_pipeline::accounting::{SinkTotals, Totals};
use tributary_protocol::Protocol;
use tributary_system::blocking;
use tributary_transport::descriptors;

use super::changed_options::ChangedOptions;
use super::service::{self, Manager};
use super::signals::{self, StopSignals};
use super::{CommandLineError, block_on_with, totals};

/// Paths of the configuration when none is named, in this order.
const PLACES: [&str; 2] = ["./tributary.toml", "/etc/tributary/tributary.toml"];

/// How often a watched configuration is checked for changes.
const WATCH: Duration = Duration::from_millis(500);

/// Run the daemon
///
/// SIGTERM, SIGINT and SIGQUIT drain and end it. A second one ends it within seconds and does no harm to traced Java programs; a
/// third one ends it at once, and they hang. SIGHUP reads the configuration again and reopens files. Other signals that would end
/// a process are ignored.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary run                                the configuration found, or built-in defaults
  tributary run tributary.toml                 the same as --config tributary.toml
  tributary run --config tributary.toml | jq 'select(.kind == \"span\")'
  tributary run --log-format json --log-level warn")]
pub(super) struct Arguments {
    /// The configuration [default: ./tributary.toml, then /etc/tributary/tributary.toml, then built-in defaults]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The same as `--config FILE`
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    let named = arguments.config.as_ref().or(arguments.file.as_ref()).cloned();
    let (source, loaded) = load(named.clone())?;
    info!(version = env!("CARGO_PKG_VERSION"), configuration = source, "starting");
    descriptors::raise_limit();
    let threads = loaded.config.limits.threads();
    blocking::check_threads(loaded.config.threads())
        .map_err(|error| CommandLineError::Failed(format!("cannot start: {error}")))?;
    let decoding = Builder::new_multi_thread().worker_threads(threads).thread_name("decode").enable_all().build()?;
    // Signals, health and the admin endpoint have the main thread: a session that decodes for long delays none of them.
    let serving = serve(loaded, named, decoding.handle().clone());
    let totals = block_on_with(&mut Builder::new_current_thread(), serving);
    decoding.shutdown_background();
    check_written(&totals??)
}

/// Loads the named configuration, or the first that exists, or the built-in one. Returns its name, too.
pub(super) fn load(named: Option<PathBuf>) -> Result<(String, Loaded), CommandLineError> {
    let found = named.or_else(|| PLACES.iter().map(PathBuf::from).find(|place| place.exists()));
    let (source, loaded) = match found {
        Some(path) => (path.display().to_string(), Config::load(&path)),
        None => ("built-in defaults".to_owned(), Config::parse("built-in defaults", "")),
    };
    let loaded = loaded.map_err(|errors| CommandLineError::Misused(format!("invalid configuration\n{errors}")))?;
    Ok((source, loaded))
}

async fn serve(mut running: Loaded, named: Option<PathBuf>, decoding: Handle) -> Result<Totals, CommandLineError> {
    let mut stop_signals = StopSignals::new()?;
    let manager = Manager::from_environment();
    let mut hang_up = signal(SignalKind::hangup())?;
    signals::ignore_others()?;
    // Before the TLS files are read, so that no later change is missed.
    let mut watch = Watch::new(&running);
    let started = Server::start_on(&running.config, service::sockets()?, &decoding, |_| {}).await;
    let mut server = started.map_err(|error| CommandLineError::Failed(error.to_string()))?;
    log_addresses(&server, &running.config);
    let _watchdog = AbortOnDropHandle::new(tokio::spawn(manager.feed_watchdog(server.health().clone())));
    manager.ready();
    loop {
        tokio::select! {
            () = stop_signals.next() => break,
            () = server.wants_to_stop() => break,
            () = watch.changed(), if running.config.watch => info!("the configuration or a certificate has changed"),
            _ = hang_up.recv() => server.reopen(),
        }
        if reload(&mut server, &mut running, named.clone(), &mut stop_signals, &manager).await {
            watch.follow(&running);
        }
    }
    match server.traced_programs() {
        0 => info!("stopping; a second signal ends the daemon within seconds, a third one at once"),
        traced_programs => info!(
            traced_programs,
            "stopping; it waits until the agents of these Java programs have sent their events. A second signal makes the agents \
             drop them, which takes seconds and does no harm to the programs; a third one ends the daemon at once, and the \
             programs hang"
        ),
    }
    manager.stopping();
    let totals = stop(server, &mut stop_signals).await;
    totals::log(&totals);
    Ok(totals)
}

/// Stops the daemon in order. A further signal hurries it, and another one ends it at once.
async fn stop(server: Server, stop_signals: &mut StopSignals) -> Totals {
    let (hurry, stop_now, accounting) = (server.hurry_token(), server.stop_now_token(), server.accounting().clone());
    let mut stopping = pin!(server.stop());
    tokio::select! {
        totals = &mut stopping => return totals,
        () = stop_signals.next() => {}
    }
    warn!(
        "second signal: the daemon ends within seconds; events that are not written by then count as failed. A third signal ends it \
         at once, and Java programs that are still traced hang"
    );
    totals::log_waiting(&accounting);
    hurry.cancel();
    tokio::select! {
        totals = &mut stopping => return totals,
        () = stop_signals.next() => {}
    }
    warn!("third signal: the daemon ends at once; events that are not written count as failed");
    stop_now.cancel();
    stopping.await
}

/// Notices when a file of the configuration, or a TLS file that it names, is replaced, changed, added or removed.
struct Watch {
    files: Files,
    tls: Vec<PathBuf>,
    seen: Fingerprints,
    ticks: Interval,
}

/// Inode, length and time of files; a file that does not exist is missing. While a file is being written its fingerprint
/// keeps changing.
type Fingerprints = BTreeMap<PathBuf, (u64, u64, SystemTime)>;

/// The fingerprint of a file that was removed after it was read. No file has it.
const REMOVED: (u64, u64, SystemTime) = (0, 0, SystemTime::UNIX_EPOCH);

impl Watch {
    fn new(running: &Loaded) -> Watch {
        let mut watch =
            Watch { files: Files::default(), tls: Vec::new(), seen: Fingerprints::new(), ticks: interval(WATCH) };
        watch.ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        watch.follow(running);
        watch
    }

    /// Watches the files of a configuration that has just come into force, and the TLS files that it names. A file that was
    /// changed, added or removed since it was read is noticed.
    fn follow(&mut self, running: &Loaded) {
        (self.files, self.tls) = (running.files.clone(), running.config.tls_files());
        let (current, read) = (self.fingerprints(), self.files.read());
        self.seen.retain(|path, _| read.contains(path) || self.tls.contains(path));
        // The fingerprint of a file that was watched before stays.
        for path in read {
            self.seen.entry(path.clone()).or_insert_with(|| current.get(path).copied().unwrap_or(REMOVED));
        }
        for (path, fingerprint) in current.into_iter().filter(|(path, _)| self.tls.contains(path)) {
            self.seen.entry(path).or_insert(fingerprint);
        }
    }

    /// Waits until a file has changed, and then none has for one tick.
    async fn changed(&mut self) {
        let mut last = Fingerprints::new();
        loop {
            self.ticks.tick().await;
            let current = self.fingerprints();
            let exists = self.files.main().is_some_and(|main| current.contains_key(main));
            if exists && current != self.seen && current == last {
                self.seen = current;
                return;
            }
            last = current;
        }
    }

    fn fingerprints(&self) -> Fingerprints {
        let fingerprint = |path: &PathBuf| {
            let metadata = path.metadata().ok()?;
            Some((path.clone(), (metadata.ino(), metadata.len(), metadata.modified().ok()?)))
        };
        self.files.paths().iter().chain(&self.tls).filter_map(fingerprint).collect()
    }
}

/// The address of the page in a browser.
pub(super) fn page_address(address: SocketAddr, config: &Config) -> String {
    let scheme = if config.admin.tls.is_some() { "https" } else { "http" };
    format!("{scheme}://{address}/")
}

/// Logs where the daemon listens and dials, and where events go.
fn log_addresses(server: &Server, config: &Config) {
    config.warn_about_exposed_secrets();
    config
        .memory_warning()
        .iter()
        .for_each(|note| warn!(%note, "the system allows less memory than the daemon may use"));
    for bound in server.addresses() {
        info!(listener = bound.name, protocol = %bound.protocol, address = %bound.address, "listening");
    }
    for listener in &config.listeners {
        for address in listener.protocol.further_addresses() {
            info!(listener = listener.name, protocol = %listener.protocol.protocol(), %address, "listening");
        }
    }
    if let Some(address) = server.admin_address() {
        info!(%address, page = page_address(address, config), "admin endpoint");
    }
    if let Some(address) = server.metrics_address() {
        info!(%address, "metrics endpoint: /metrics, /livez and /readyz without a token");
    }
    for (name, agents) in server.dialled() {
        for agent in agents {
            let sockets: Vec<_> = [agent.publish, agent.request].into_iter().flatten().collect();
            info!(listener = name, protocol = %Protocol::Rbkit, agent = sockets.join(" and "), "connecting to an agent");
        }
    }
    for sink in &config.sinks {
        info!(sink = sink.name, writes = %sink.kind, proxy = sink.kind.proxy(), "sink");
    }
    config.acknowledge_notes().iter().for_each(|note| info!(%note, "acknowledgements are not durable"));
}

/// Reads the configuration again and puts it into force, or returns false: an invalid one changes nothing. A stop signal does
/// not wait for the reload.
async fn reload(
    server: &mut Server,
    running: &mut Loaded,
    named: Option<PathBuf>,
    stop_signals: &mut StopSignals,
    manager: &Manager,
) -> bool {
    manager.reloading();
    let stop = server.stop_token();
    let mut rereading = pin!(reread(server, running, named));
    let is_reloaded = tokio::select! {
        is_reloaded = &mut rereading => is_reloaded,
        () = stop_signals.next() => {
            // From now on the reload waits for nothing.
            stop.cancel();
            rereading.await
        }
    };
    manager.ready();
    is_reloaded
}

async fn reread(server: &mut Server, running: &mut Loaded, named: Option<PathBuf>) -> bool {
    let result = reread_file(server, running, named).await;
    server.health().note_reload(result.is_ok());
    if let Err(why) = &result {
        error!(error = why, "cannot reload; the running configuration stays in force");
    }
    result.is_ok()
}

async fn reread_file(server: &mut Server, running: &mut Loaded, named: Option<PathBuf>) -> Result<(), String> {
    let (source, loaded) = match load(named) {
        Ok(loaded) => loaded,
        Err(failure) => return Err(failure.to_string()),
    };
    if let Some(lost) = lost_section(&running.config, &loaded) {
        return Err(format!(
            "{source} has no [{lost}] any more, as if it were cut off; to run with the built-in {lost}, \
             restart the daemon"
        ));
    }
    match server.reload(&loaded.config).await {
        Ok(reloaded) => {
            let options = ChangedOptions::between(&running.options, &loaded.options);
            let options = (!options.is_empty()).then(|| tracing::field::display(options));
            info!(configuration = source, changes = %reloaded, options, "configuration reloaded");
            reloaded.stale.iter().for_each(|why| warn!(why, "a change is not in force"));
            reloaded
                .failures
                .iter()
                .for_each(|failure| error!(error = %failure, "a part of the configuration cannot start"));
            *running = loaded;
            if !reloaded.changes.is_empty() {
                log_addresses(server, &running.config);
            }
            Ok(())
        }
        Err(failure) => Err(failure.to_string()),
    }
}

/// The section that the running configuration has and a new one has lost completely, so that the built-in one would take
/// its place. A file that is being written, or was cut off, may be valid: an empty one is.
fn lost_section(running: &Config, loaded: &Loaded) -> Option<&'static str> {
    let is_lost = |section| loaded.builtin.contains(&section);
    let builtin = Config::builtin();
    if running.listeners != builtin.listeners && is_lost("listeners") {
        return Some("listeners");
    }
    (running.sinks != builtin.sinks && is_lost("sinks")).then_some("sinks")
}

/// Whether all decoded events were written, and no sink failed that must not fail.
pub(super) fn check_written(totals: &Totals) -> Result<(), CommandLineError> {
    // When the reader has closed a sink, events that it did not read are no failure.
    let open = || totals.sinks.iter().filter(|sink| !sink.is_closed);
    let unwritten = |sink: &SinkTotals| i128::from(sink.failed) + sink.in_flight();
    let names = |is_listed: &dyn Fn(&SinkTotals) -> bool| {
        open().filter(|sink| is_listed(sink)).map(|sink| sink.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let failed: i128 = open().map(unwritten).sum();
    if failed > 0 {
        let names = names(&|sink| unwritten(sink) > 0);
        return Err(CommandLineError::Failed(format!("{failed} decoded events could not be written by sink {names}")));
    }
    let dead = names(&|sink| sink.is_dead);
    if dead.is_empty() {
        Ok(())
    } else {
        Err(CommandLineError::Failed(format!("sink {dead} failed (on_failure = \"fatal\")")))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_file_that_changes_between_reading_and_following_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("conf.d")).unwrap();
        fs::write(path("main.toml"), "include = [\"conf.d/*.toml\"]\n").unwrap();
        let is_noticed = |change: &dyn Fn()| {
            fs::write(path("conf.d/b.toml"), "").unwrap();
            let loaded = Config::load(&path("main.toml")).unwrap();
            change();
            let watch = Watch::new(&loaded);
            watch.fingerprints() != watch.seen
        };
        assert!(!is_noticed(&|| {}));
        assert!(is_noticed(&|| fs::remove_file(path("conf.d/b.toml")).unwrap()));
        assert!(is_noticed(&|| fs::write(path("conf.d/c.toml"), "").unwrap()));
    }

    #[tokio::test]
    async fn a_file_that_is_removed_during_a_reload_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        fs::write(path("main.toml"), "include = [\"b*.toml\"]\n").unwrap();
        let mut watch = Watch::new(&Config::load(&path("main.toml")).unwrap());
        fs::write(path("b.toml"), "").unwrap();
        watch.changed().await;
        let loaded = Config::load(&path("main.toml")).unwrap();
        fs::remove_file(path("b.toml")).unwrap();
        watch.follow(&loaded);
        assert_ne!(watch.fingerprints(), watch.seen);
    }
}
