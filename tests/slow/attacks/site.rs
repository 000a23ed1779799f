//! The daemon under attack: the binary, with a listener of each protocol, and its events in files.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::live::binary::{self, Binary, tributary};
use serde_json::Value;
use tempfile::TempDir;
use tributary::simulate::rbkit;

const MIB: u64 = 1 << 20;
/// The memory that peers share.
const SHARED_MEMORY: u64 = 66 * MIB;
/// `limits.shutdown_grace`.
const GRACE: Duration = Duration::from_secs(20);

/// The name of the listener of each protocol.
pub(super) const LISTENERS: [&str; 5] = ["spans", "java", "desktops", "zorka", "ruby"];

/// Options in addition to those of the attack: a section, and lines for it.
pub(super) type Options = &'static [(&'static str, &'static str)];

/// A running daemon.
pub(super) struct Site {
    binary: Binary,
    directory: TempDir,
    /// The address of each listener, and of the admin endpoint as `admin`.
    pub(super) addresses: Addresses,
}

pub(super) type Addresses = BTreeMap<&'static str, SocketAddr>;

/// What a daemon has written when it has ended.
pub(super) struct Written {
    pub(super) events: Vec<Value>,
    pub(super) losses: Vec<Value>,
}

impl Site {
    /// Starts a daemon that dials `process`.
    pub(super) fn start(options: Options, process: &rbkit::SimulatedProcess) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tributary.toml");
        let toml = |memory: u64| configuration(directory.path(), options, &process.options(), memory);
        let needed = crate::live::config(&toml(1 << 30)).bounds().sum();
        fs::write(&path, toml(needed + SHARED_MEMORY)).unwrap();
        let checked = binary::run(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(checked.code, Some(0), "{}", checked.stderr);
        let binary = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
        binary.until_stderr("sink=\"events\"");
        let mut addresses: Addresses = LISTENERS.iter().map(|name| (*name, binary.address(name))).collect();
        addresses.insert("admin", binary.admin_address());
        if options.iter().any(|(section, _)| *section == BALANCED) {
            addresses.insert(BALANCED, binary.address(BALANCED));
        }
        Site { binary, directory, addresses }
    }

    /// Processor time that the daemon has used.
    pub(super) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.binary.pid())).unwrap();
        // Behind the name of the program, which may contain spaces: 12th and 13th field, in hundredths of a second.
        let fields: Vec<_> = stat[stat.rfind(')').unwrap()..].split(' ').collect();
        let ticks: u64 = fields[12..=13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Stops the daemon, which must end with balanced counters and at most a second after the grace period; a busy machine may
    /// take longer to notice.
    pub(super) fn stop(self) -> Written {
        let begin = Instant::now();
        self.binary.signal("TERM");
        let ended = self.binary.end();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(begin.elapsed() < GRACE * 2, "the daemon waited for its peers: {:?}", begin.elapsed());
        for listener in self.addresses.keys().filter(|name| **name != "admin") {
            let numbers = ["bytes_in", "bytes_decoded", "bytes_lost"];
            let [bytes_in, decoded, lost] = numbers.map(|number| ended.total("listener", listener, number));
            assert_eq!(bytes_in, decoded + lost, "{}", ended.stderr);
        }
        let (mut events, mut losses) = (Vec::new(), Vec::new());
        for file in fs::read_dir(self.directory.path().join("events")).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            for line in text.lines() {
                let event: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"));
                if event["kind"] == "loss" { losses.push(event) } else { events.push(event) }
            }
        }
        Written { events, losses }
    }
}

/// The section of a listener behind a load balancer, which an attack may add.
pub(super) const BALANCED: &str = "balanced";

fn configuration(directory: &Path, options: Options, process: &rbkit::Options, memory: u64) -> String {
    let extra = |section: &str| -> String {
        let lines = options.iter().filter(|(name, _)| *name == section).map(|(_, lines)| format!("{lines}\n"));
        lines.collect()
    };
    let directory = directory.display();
    let rbkit::Options { publish, request, .. } = process;
    let grace = GRACE.as_secs();
    let mut toml = format!(
        r#"
[limits]
memory_bytes = {memory}
threads = 2
shutdown_grace = "{grace}s"
[admin]
listen = "127.0.0.1:0"
{}
[sinks.events]
type = "file"
path = "{directory}/events/{{listener}}.ndjson"
fsync = "never"
"#,
        extra("admin")
    );
    for (name, protocol, lines) in [
        ("spans", "datadog", String::new()),
        // An agent of Java takes a heartbeat interval to end.
        (
            "java",
            "bytefrog",
            "heartbeat_interval = \"100ms\"\nreorder_window = \"1m\"\nunresolved_wait = \"1m\"".to_owned(),
        ),
        ("desktops", "endless", "quarantine.dir = \"\"".to_owned()),
        ("zorka", "zico", format!("quarantine.dir = \"\"\nstate_dir = \"{directory}\"")),
        (
            "ruby",
            "rbkit",
            format!(
                "listen_publish = \"127.0.0.1:0\"\nreconnect.max = \"200ms\"\n\
                 agents = [{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\"] }}]"
            ),
        ),
    ] {
        let listen = if name == "ruby" { "" } else { "listen = \"127.0.0.1:0\"\n" };
        toml += &format!("[listeners.{name}]\nprotocol = \"{protocol}\"\n{listen}{lines}\n{}", extra(name));
    }
    let balanced = extra(BALANCED);
    if !balanced.is_empty() {
        toml += &format!("[listeners.{BALANCED}]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n{balanced}");
    }
    toml
}
