//! The part `disk`: the spool is on a disk of 12 MB that other files fill, the destination answers 500 or 503 for some lives, and
//! there are requests that it never takes.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use super::Run;
use super::agents::{Acknowledged, Agents};
use super::check;
use super::parts::{judged, wait};
use super::receiver::{Manner, Receiver};
use super::rng::Rng;
use super::site::{PATIENCE, Site};
use super::small_disk::SmallDisk;
use super::wait::poll_blocking;

const DISK_BYTES: u64 = 12 * 1024 * 1024;
/// What of the disk the spool may use in a life, at most.
const FREE_BYTES: u64 = 512 * 1024;

/// A life lasts for at most this many milliseconds.
const LONGEST_LIFE: u64 = 400;

/// Runs `count` lives of a daemon, each of which ends with a kill or a stop.
pub(crate) fn disk(run: &Run) -> String {
    let directory = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(DISK_BYTES as usize);
    let place = disk.as_ref().map_or_else(|| directory.path().join("disk"), |disk| disk.path().to_owned());
    fs::create_dir_all(&place).unwrap();
    let spools = place.join("spools");
    let receiver = Receiver::start();
    let options = format!(
        "give_up_attempts = 10\ngive_up_time = \"1s\"\n\
         spool = {{ dir = \"{}\", max_bytes = \"1GiB\", min_free_bytes = \"64KiB\" }}",
        spools.display()
    );
    let site = Site::with_spool(&directory.path().join("site"), receiver.address, "durable", &options);
    // A stop waits for this time until a disk or a destination takes what is in memory.
    let file = site.directory.join("tributary.toml");
    let toml = fs::read_to_string(&file).unwrap().replace("shutdown_grace = \"30s\"", "shutdown_grace = \"2s\"");
    fs::write(file, toml).unwrap();
    let agents = Agents::start(&site, "".into(), run.seed);
    let mut rng = Rng::new(run.seed, 5);
    // What the last life has left, if it was stopped.
    let mut left = None;
    for _ in 0..run.count {
        receiver.state().manner = [Manner::Accept, Manner::Accept, Manner::Fail, Manner::Refuse][rng.below(4) as usize];
        receiver.state().poison_next = rng.below(4) == 0;
        if disk.is_some() {
            fill(&place, DISK_BYTES - 96 * 1024 - rng.below(FREE_BYTES));
        }
        let daemon = site.start(&[]).unwrap();
        sleep(Duration::from_millis(rng.below(LONGEST_LIFE)));
        if rng.below(2) == 0 {
            daemon.kill();
            left = None;
        } else {
            // Agents whose requests are not acknowledged repeat them: a stop may count those of them that fail.
            let _ = daemon.stop();
            left = Some(stopped(&site, left));
        }
    }
    receiver.state().manner = Manner::Accept;
    receiver.state().poison_next = false;
    fill(&place, 0);
    let daemon = site.start(&[]).unwrap();
    let before = agents.acknowledged();
    wait("a request after the last life", || agents.acknowledged() > before);
    // While agents go on: a request is given up while others are taken.
    let acknowledged = agents.until_now();
    let refused = drain(&acknowledged, &receiver, &spools);
    let acknowledged = agents.stop();
    drain(&acknowledged, &receiver, &spools);
    assert_eq!(check::forgotten(&site, &acknowledged, u64::MAX), [""; 0], "registered agents are forgotten");
    let _ = daemon.stop();
    stopped(&site, None);
    let poison = receiver.state().poison.len();
    let verdict = check::compare(&site, &acknowledged, &receiver, u64::MAX);
    let disk = if disk.is_some() { "a disk of 12 MB" } else { "no small disk" };
    format!(
        "{} lives on {disk}, {poison} requests never taken, {refused} of them in refused/, {}",
        run.count,
        judged(&verdict, &site, run)
    )
}

/// Waits until everything that was acknowledged is at the destination or in `refused/`. Returns how many requests are there.
fn drain(acknowledged: &Acknowledged, receiver: &Receiver, spools: &Path) -> usize {
    let mut refused = 0;
    // If something does not come, the comparison says what is missing.
    let _ = poll_blocking(PATIENCE / 2, || {
        refused = take_refused(&spools.join("remote/refused"), receiver);
        check::is_drained(acknowledged, receiver, u64::MAX).then_some(())
    });
    refused
}

/// Fills the disk up to `bytes`, with a file beside the spools.
fn fill(place: &Path, bytes: u64) {
    let ballast = place.join("ballast");
    let used: u64 =
        files(&place.join("spools")).iter().map(|path| fs::metadata(path).map_or(0, |found| found.len())).sum();
    // What does not fit is not written.
    let _ = fs::write(&ballast, vec![0; bytes.saturating_sub(used) as usize]);
}

/// The files in a directory and in those below it.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The destination does not want what is in `refused/`, so nothing of it is missing there. Returns the number of requests.
fn take_refused(directory: &Path, receiver: &Receiver) -> usize {
    let refused = files(directory);
    for path in &refused {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        let mut state = receiver.state();
        for mark in check::marks(&text) {
            state.received.entry(mark.to_owned()).or_insert((0, 1));
        }
    }
    refused.len()
}

/// Reads the totals of a daemon that was stopped. They add up, and it has resumed what the one before has left, if that is
/// known. Returns what waits.
fn stopped(site: &Site, left: Option<u64>) -> u64 {
    let log = site.log();
    let line = log.lines().find(|line| line.contains("sink totals sink=\"remote\""));
    let line = line.unwrap_or_else(|| panic!("no totals in {log}"));
    let number = |name: &str| {
        let value = line.split_once(&format!(" {name}=")).map_or("0", |(_, rest)| rest.split(' ').next().unwrap());
        value.parse::<u64>().unwrap_or_else(|error| panic!("{name} in {line}: {error}"))
    };
    let [written, shed, failed, waiting] = ["written", "shed", "failed", "waiting"].map(number);
    assert_eq!(number("events") + number("resumed"), written + shed + failed + waiting, "{line}");
    if let Some(left) = left {
        assert_eq!(number("resumed"), left, "the life before has left that: {line}");
    }
    waiting
}
