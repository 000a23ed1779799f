//! Small disks: the spool of a daemon whose disk is full while its destination takes events, is away, and comes back. Agents that get no answer must not be stopped by a disk that the destination does not need.

use std::fs;

use crate::live::binary::{Binary, Ended, run, tributary, until};
use crate::small_disk::SmallDisk;
use crate::spool::{Receiver, get, stop};

/// A daemon with a listener of TCP agents, and a sink whose spool is on a small disk.
struct Site {
    directory: tempfile::TempDir,
    receiver: Receiver,
}

impl Site {
    fn new(disk: &SmallDisk, status: u16, spool_options: &str) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(status);
        let (address, dir) = (receiver.address, disk.path().join("spool"));
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n\
             [listeners.spans]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
             [sinks.backend]\ntype = \"http\"\nendpoint = \"http://{address}/\"\nretry_min = \"5ms\"\nretry_max = \"50ms\"\n\
             batch_bytes = \"32KiB\"\nmax_in_flight = 2\nspool = {{ dir = \"{}\", {spool_options} }}\n",
            dir.display()
        );
        fs::write(directory.path().join("t.toml"), toml).unwrap();
        Site { directory, receiver }
    }

    fn config(&self) -> String {
        self.directory.path().join("t.toml").display().to_string()
    }

    fn start(&self) -> Binary {
        Binary::start(tributary(&["run", "--config", &self.config()]))
    }

    fn received(&self) -> u64 {
        let state = self.receiver.state.lock().unwrap();
        state.1.iter().filter(|line| !line.contains("\"tributary.loss\"")).count() as u64
    }

    fn set(&self, status: u16) {
        self.receiver.state.lock().unwrap().0 = status;
    }
}

/// Agents that send this many events, as a process that runs.
fn agents(daemon: &Binary, count: u64) -> Binary {
    let (address, count) = (daemon.address("spans").to_string(), count.to_string());
    Binary::start(tributary(&["simulate", "datadog", "--to", &address, "--count", &count, "--connections", "2"]))
}

fn value(daemon: &Binary, series: &str) -> u64 {
    let metrics = get(daemon, "/metrics").1;
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')).map(str::to_owned);
    line.map_or(0, |line| line.parse().unwrap())
}

const SHED: &str = "tributary_sink_events_total{sink=\"backend\",outcome=\"shed\"}";

fn sent(agents: Ended) -> u64 {
    agents.sent()["events"].as_u64().unwrap()
}

#[test]
fn a_destination_that_takes_events_gets_all_of_them_although_the_disk_has_no_space() {
    for when_full in ["block", "drop_oldest", "drop_newest"] {
        let Some(disk) = SmallDisk::mount(2 << 20) else { return };
        // More than the file system has.
        let site = Site::new(&disk, 200, &format!("when_full = \"{when_full}\", min_free_bytes = \"1GiB\""));
        let deep = run(&["check", "--deep", "--config", &site.config()]);
        assert!(deep.code == Some(1) && deep.stderr.contains("can never keep a request"), "{}", deep.stderr);
        let daemon = site.start();
        assert!(daemon.until_stderr("the spool cannot work").contains("can never keep a request"));
        let events = sent(agents(&daemon, 2_000).end());
        until("everything is received", || (site.received() == events).then_some(()));
        let ended = stop(daemon);
        ended.line(&format!("sink=\"backend\" events={events} written={events} shed=0 failed=0"));
    }
}

#[test]
fn after_an_outage_on_a_small_disk_the_sink_continues_without_a_restart() {
    for (spool_options, has_own_limit) in [
        ("max_bytes = \"1MiB\", min_free_bytes = \"0B\"", true),
        ("max_bytes = \"64MiB\", min_free_bytes = \"0B\"", false),
        ("max_bytes = \"64MiB\"", false),
    ] {
        for when_full in ["block", "drop_oldest", "drop_newest"] {
            let Some(disk) = SmallDisk::mount(if has_own_limit { 12 << 20 } else { 2 << 20 }) else { return };
            let site = Site::new(&disk, 503, &format!("{spool_options}, when_full = \"{when_full}\""));
            let daemon = site.start();
            let during = agents(&daemon, 10_000);
            // A burst that is faster than the first failed attempts is in memory, and nothing of it is shed.
            let is_full = |(status, text): &(u16, String)| *status == 503 && text.contains(" full");
            until("the spool is full", || Some(get(&daemon, "/readyz")).filter(is_full));
            site.set(200);
            let mut events = sent(during.end());
            let waiting = || value(&daemon, "tributary_spool_events{sink=\"backend\"}");
            until("nothing waits", || (waiting() == 0).then_some(()));
            // As before the outage: nothing more is shed.
            let shed = value(&daemon, SHED);
            events += sent(agents(&daemon, 2_000).end());
            until("everything is received", || (site.received() + value(&daemon, SHED) == events).then_some(()));
            assert_eq!(value(&daemon, SHED), shed, "{spool_options} {when_full}");
            assert!(shed == 0 || when_full != "block", "{spool_options}");
            let written = events - shed;
            stop(daemon).line(&format!("events={events} written={written} shed={shed} failed=0"));
        }
    }
}
