//! Directories of spools that cannot be used, or have something else in them: the daemon says what is wrong, and replaces
//! nothing.

#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::live::binary::{Binary, copy_to, run, tributary, until};
use crate::small_disk::SmallDisk;
use crate::spool::{Site, get, stop, upload};

/// The daemon is not ready, and says why; the sink is not up.
fn assert_cannot_start(daemon: &Binary, why: &str) {
    let (status, text) =
        until("the daemon is not ready", || Some(get(daemon, "/readyz")).filter(|(status, _)| *status == 503));
    let start = "sink backend cannot start, and its listeners wait: cannot open the spool ";
    assert!(status == 503 && text.starts_with(start) && text.contains(why), "{text}");
    assert!(daemon.until_stderr("cannot open the spool").contains(why));
    let metrics = get(daemon, "/metrics").1;
    assert!(metrics.contains("tributary_sink_up{sink=\"backend\"} 0\n"), "{metrics}");
}

/// The daemon becomes ready by itself, and takes events.
fn assert_starts(daemon: Binary) {
    until("the daemon is ready", || (get(&daemon, "/readyz").0 == 200).then_some(()));
    let metrics = get(&daemon, "/metrics").1;
    assert!(metrics.contains("tributary_sink_up{sink=\"backend\"} 1\n"), "{metrics}");
    assert!(upload(&daemon, 5, 6) > 0);
    assert_eq!(stop(daemon).code, Some(0));
}

#[test]
fn a_file_in_the_place_of_the_directory_stays_and_the_daemon_is_not_ready_until_it_is_gone() {
    let site = Site::new("min_free_bytes = \"0B\"");
    fs::create_dir(site.directory.path().join("spool")).unwrap();
    fs::write(site.spool(), "a file of another program").unwrap();
    let daemon = site.start();
    assert_cannot_start(&daemon, "it is a file, and must be a directory");
    assert_eq!(fs::read(site.spool()).unwrap(), b"a file of another program");
    fs::remove_file(site.spool()).unwrap();
    assert_starts(daemon);
}

#[test]
fn a_directory_that_may_not_be_written_is_named_and_nothing_in_it_changes() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let Some(mut command) = as_another_user(&site) else { return };
    fs::create_dir_all(site.spool()).unwrap();
    fs::write(site.spool().join("note"), "mine").unwrap();
    let set_mode = |mode| fs::set_permissions(site.spool(), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o555);
    command.args(["run", "--config", &site.config()]);
    let daemon = Binary::start(command);
    assert_cannot_start(&daemon, "Permission denied");
    assert_eq!(fs::read_dir(site.spool()).unwrap().count(), 1);
    set_mode(0o777);
    assert_starts(daemon);
    assert_eq!(fs::read(site.spool().join("note")).unwrap(), b"mine");
}

/// A command for the binary as a user who is not root. `None`, with a line on stderr: that is not possible here.
fn as_another_user(site: &Site) -> Option<Command> {
    let home = site.directory.path();
    // Root may write everywhere.
    let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        return Some(tributary(&[]));
    }
    let binary = home.join("tributary");
    copy_to(&binary);
    for (path, mode) in [(home, 0o755), (&binary, 0o755), (&home.join("t.toml"), 0o644)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary);
    let mut trial = Command::new("setpriv");
    trial.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&binary).arg("--version");
    if trial.output().is_ok_and(|output| output.status.success()) {
        return Some(command);
    }
    eprintln!("note: setpriv cannot start the daemon as another user, so missing permission is not tested here");
    None
}

#[test]
fn a_read_only_file_system_is_named_and_used_as_soon_as_it_can_be_written() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    let site = Site::with_spools(tempfile::tempdir().unwrap(), disk.path().join("spool"), "min_free_bytes = \"0B\"");
    disk.set_read_only(true);
    let daemon = site.start();
    assert_cannot_start(&daemon, "Read-only file system");
    disk.set_read_only(false);
    assert_starts(daemon);
}

#[test]
fn a_full_disk_is_a_full_spool_and_everything_is_kept_as_soon_as_there_is_space() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    let site = Site::with_spools(tempfile::tempdir().unwrap(), disk.path().join("spool"), "min_free_bytes = \"0B\"");
    let daemon = site.start();
    let before = upload(&daemon, 20, 1);
    disk.occupy_all(4 << 20);
    // A machine sends again after each 503.
    let address = daemon.address("desktops").to_string();
    let machine = Binary::start(tributary(&["simulate", "endless", "--to", &address, "--count", "200", "--seed", "2"]));
    // Before that, the reason can be that the destination has not answered.
    let is_full = |(status, text): &(u16, String)| *status == 503 && text.contains("the spool is full: ");
    let (_, text) = until("the spool is full", || Some(get(&daemon, "/readyz")).filter(is_full));
    assert!(text.contains("No space left on device"), "{text}");
    let verified = run(&["spool", "verify", "--config", &site.config()]);
    assert_eq!(verified.code, Some(0), "no half request: {}", verified.stdout);
    disk.release();
    let sent = machine.end().sent()["events"].as_u64().unwrap();
    site.set(200);
    until("everything is received", || (site.received().0.len() as u64 >= before + sent).then_some(()));
    assert_eq!(stop(daemon).code, Some(0));
}

#[test]
fn segments_of_a_newer_version_and_foreign_files_stay_and_a_truncated_segment_costs_what_it_lacks() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let mut sent = Vec::new();
    for seed in 0..3 {
        let daemon = site.start();
        sent.push(upload(&daemon, 40, seed));
        stop(daemon);
    }
    let [newer, truncated, whole] = site.segments().try_into().unwrap();
    let mut bytes = fs::read(&newer).unwrap();
    bytes[15] = 9;
    fs::write(&newer, &bytes).unwrap();
    fs::write(&truncated, &fs::read(&truncated).unwrap()[..20]).unwrap();
    let foreign = site.spool().join("0001.spool");
    fs::write(&foreign, "mine").unwrap();
    let kept = fs::read(&whole).unwrap();
    let daemon = site.start();
    let line = daemon.until_stderr("version 9");
    assert!(line.contains("WARN") && line.contains(&*newer.to_string_lossy()), "{line}");
    daemon.until_stderr("0001.spool");
    let aside = site.spool().join("aside").join(newer.file_name().unwrap());
    assert_eq!((fs::read(aside).unwrap(), fs::read(&foreign).unwrap()), (bytes, b"mine".to_vec()));
    assert_eq!(fs::read(&whole).unwrap(), kept);
    site.set(200);
    until("the rest is received", || (site.received().0.len() as u64 >= sent[2]).then_some(()));
    let lost = sent[0] + sent[1];
    stop(daemon).line(&format!("resumed={} written={} shed=0 failed={lost}", lost + sent[2], sent[2]));
}
