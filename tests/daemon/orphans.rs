//! A test that is killed leaves no daemon behind.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::live::binary::{Binary, end_with_this_thread, tributary, until};

/// Set in the process that is killed: the configuration of its daemon.
const CONFIG: &str = "TRIBUTARY_TEST_ORPHANS_CONFIG";

#[test]
fn a_test_that_is_killed_leaves_no_daemon() {
    if let Ok(config) = env::var(CONFIG) {
        let daemon = Binary::start(tributary(&["run", "--config", &config]));
        daemon.address("test");
        println!("\ndaemon {}", daemon.pid());
        // Until the process is killed.
        loop {
            thread::park();
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("tributary.toml");
    fs::write(
        &config,
        "admin.listen = \"\"\n".to_owned() + &crate::live::listener("") + "[sinks.none]\ntype = \"discard\"\n",
    )
    .unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["orphans::a_test_that_is_killed_leaves_no_daemon", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(CONFIG, &config).stdout(Stdio::piped());
    end_with_this_thread(&mut command);
    let mut test = command.spawn().unwrap();
    let lines = BufReader::new(test.stdout.take().unwrap()).lines();
    let daemon = lines.map(Result::unwrap).find_map(|line| line.strip_prefix("daemon ").map(str::to_owned)).unwrap();
    assert!(is_running(&daemon));
    test.kill().unwrap();
    test.wait().unwrap();
    until("the end of the daemon", || (!is_running(&daemon)).then_some(()));
}

/// Whether the process exists and has not ended; its parent may not have collected its status.
fn is_running(pid: &str) -> bool {
    let state = fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    state.is_ok_and(|state| !state.rsplit_once(") ").unwrap().1.starts_with('Z'))
}
