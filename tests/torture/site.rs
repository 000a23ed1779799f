//! A directory with a daemon that can be started in it again and again.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use super::rng::{self, Rng};
use super::wait::poll_blocking;

/// How long a step may take before it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A directory, and the addresses of its daemon.
pub(crate) struct Site {
    pub(crate) directory: PathBuf,
    pub(crate) endless: SocketAddr,
    pub(crate) zico: SocketAddr,
}

/// A daemon that runs. Killed when dropped.
pub(crate) struct Daemon {
    child: Child,
    /// The journal of its file operations, if they are recorded.
    journal: Option<PathBuf>,
}

/// A port of loopback that is free, and that the system gives to no connection of another program while the daemon is away. Each
/// is returned once.
fn free_address() -> SocketAddr {
    static NUMBERS: Mutex<Option<(Rng, BTreeSet<u16>)>> = Mutex::new(None);
    let mut numbers = NUMBERS.lock().unwrap();
    // Not those of the run: two runs with the same seed do not disturb each other.
    let (numbers, returned) =
        numbers.get_or_insert_with(|| (Rng::new(rng::from_clock(), std::process::id().into()), BTreeSet::new()));
    loop {
        // Linux takes ports from 32768 on by itself.
        let port = 10_000 + numbers.below(22_768) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port))
            && returned.insert(port)
        {
            return listener.local_addr().unwrap();
        }
    }
}

impl Site {
    /// Prepares a directory: its daemon writes files and an archive, and sends to `receiver` through a spool.
    pub(crate) fn new(directory: &Path, receiver: SocketAddr, acknowledge: &str) -> Site {
        let spool = "spool.dir = \"spool\"\nspool.min_free_bytes = \"1MiB\"";
        Site::with_spool(directory, receiver, acknowledge, spool)
    }

    /// The same with these options of its spool.
    pub(crate) fn with_spool(directory: &Path, receiver: SocketAddr, acknowledge: &str, spool: &str) -> Site {
        let site = Site { directory: directory.to_owned(), endless: free_address(), zico: free_address() };
        let Site { endless, zico, .. } = &site;
        let toml = format!(
            r#"
[limits]
shutdown_grace = "30s"

[admin]
listen = ""

[listeners.desktops]
protocol = "endless"
listen = "{endless}"
acknowledge = "{acknowledge}"
delivery_timeout = "5s"
max_connections_per_address = 100

[listeners.zorka]
protocol = "zico"
listen = "{zico}"
acknowledge = "{acknowledge}"
state_dir = "state"
max_agents = 1000000
max_agents_per_address = 1000000

[sinks.files]
type = "file"
path = "events/%Y-%m-%d/{{listener}}.ndjson"
rotate_bytes = "64KiB"
keep_files = 0

[sinks.archive]
type = "parquet"
path = "archive/{{kind}}/{{listener}}"
rotate_rows = 150
rotate_interval = "700ms"

[sinks.remote]
type = "http"
endpoint = "http://{receiver}/"
batch_bytes = "8KiB"
retry_min = "10ms"
retry_max = "200ms"
request_timeout = "2s"
{spool}
"#
        );
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("tributary.toml"), toml).unwrap();
        site
    }

    /// Starts the daemon with these variables in its environment, and waits until it accepts connections.
    ///
    /// # Errors
    /// What it has written to stderr, if it has ended instead.
    pub(crate) fn start(&self, environment: &[(&str, String)]) -> Result<Daemon, String> {
        let log = fs::File::create(self.directory.with_extension("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
        command.args(["run", "--config", "tributary.toml"]).current_dir(&self.directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let journal = environment.iter().find(|(name, _)| *name == "TORTURE_LOG").map(|(_, path)| path.into());
        let mut daemon = Daemon { child: command.spawn().unwrap(), journal };
        let started = poll_blocking(PATIENCE, || {
            if TcpStream::connect(self.endless).is_ok() && TcpStream::connect(self.zico).is_ok() {
                return Some(Ok(()));
            }
            let status = daemon.child.try_wait().unwrap()?;
            Some(Err(format!("the daemon ended with {status}: {}", self.log())))
        });
        started.unwrap_or_else(|| panic!("the daemon does not start: {}", self.log())).map(|()| daemon)
    }

    pub(crate) fn log(&self) -> String {
        let mut log = Vec::new();
        if let Ok(mut file) = fs::File::open(self.directory.with_extension("log")) {
            let _ = file.read_to_end(&mut log);
        }
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Daemon {
    /// `kill -9`, not between a recorded operation and its record: the image would lack what the disk has.
    pub(crate) fn kill(mut self) {
        let journal = self.journal.take().and_then(|path| fs::File::open(path).ok());
        if let Some(journal) = &journal {
            journal.lock().unwrap();
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it with SIGTERM. Returns its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        if let Some(status) = self.child.try_wait().unwrap() {
            return status.code();
        }
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let status = poll_blocking(PATIENCE, || self.child.try_wait().unwrap());
        status.expect("the daemon stops").code()
    }

    /// Whether it runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
