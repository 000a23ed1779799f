//! The four parts: kills, losses of power, faults of the disk, a misbehaving destination.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Run;
use super::agents::{Acknowledged, Agents};
use super::check::{self, Verdict};
use super::image::Disk;
use super::journal::{self, Operation};
use super::receiver::{MANNERS, Manner, Receiver};
use super::rng::Rng;
use super::site::{PATIENCE, Site};
use super::wait::poll_blocking;

/// A position behind everything.
const END: u64 = u64::MAX;
/// A daemon that is killed has run for at most this many milliseconds: it is killed while it starts, and while it works.
const LONGEST_LIFE: u64 = 150;
/// A daemon whose disk has faults runs for this many milliseconds, unless it ends by itself.
const FAULTY_LIFE: Range<u64> = 300..1_800;
/// A destination keeps its manner for this many milliseconds: shorter and longer than the pauses of the sink.
const MANNER_TIME: Range<u64> = 50..350;
/// How long a daemon may take to send what its spool has.
const DRAIN_TIME: Duration = Duration::from_secs(30);
/// The same where syncs were skipped: the image that shows it never sends everything.
const LYING_DRAIN_TIME: Duration = Duration::from_secs(3);

/// Kills the daemon `count` times.
pub(crate) fn kill(run: &Run) -> String {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let site = Site::new(&directory.path().join("site"), receiver.address, "written");
    let agents = Agents::start(&site, "".into(), run.seed);
    let mut rng = Rng::new(run.seed, 1);
    for _ in 0..run.count {
        // Away half of the time, so that the spool has something at each start.
        receiver.state().manner = if rng.below(2) == 0 { Manner::Refuse } else { Manner::Accept };
        let daemon = site.start(&[]).unwrap();
        sleep(Duration::from_millis(rng.below(LONGEST_LIFE)));
        daemon.kill();
    }
    receiver.state().manner = Manner::Accept;
    let daemon = site.start(&[]).unwrap();
    let before = agents.acknowledged();
    wait("a request after the last kill", || agents.acknowledged() > before);
    let acknowledged = agents.stop();
    finish(&site, &acknowledged, &receiver, END);
    assert_eq!(daemon.stop(), Some(0), "{}", site.log());
    let verdict = check::compare(&site, &acknowledged, &receiver, END);
    format!("{} kills, {}", run.count, judged(&verdict, &site, run))
}

/// Records a run, and starts daemons on `count` images of its disk.
pub(crate) fn power(run: &Run) -> String {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = journal::build(directory.path()) else { return "skipped: there is no C compiler".to_owned() };
    let receiver = Receiver::start();
    let log = directory.path().join("journal");
    receiver.state().journal = log.clone();
    let site = Site::new(&directory.path().join("site"), receiver.address, "durable");
    let environment = preload(&library, &site, &log, run.lie);
    let mut rng = Rng::new(run.seed, 2);
    let agents = Agents::start(&site, log.clone(), run.seed);
    // Several lives, so that images also have what a start and a stop write.
    for life in 1..=4 {
        let daemon = site.start(&environment).unwrap();
        receiver.state().manner = if rng.below(2) == 0 { Manner::Refuse } else { Manner::Accept };
        let enough = life * (25 + run.count / 20);
        wait("requests of the recorded run", || agents.acknowledged() >= enough);
        if rng.below(2) == 0 { daemon.kill() } else { assert_eq!(daemon.stop(), Some(0)) }
    }
    let acknowledged = agents.stop();
    let entries = journal::read(&fs::read(&log).unwrap(), &site.directory);
    let mut points: Vec<_> = (0..run.count).map(|_| rng.below(entries.len() as u64) as usize).collect();
    points.sort_unstable();
    let (mut disk, mut applied, mut checked, mut found) = (Disk::default(), 0, 0, None);
    for (image, point) in points.into_iter().enumerate() {
        while applied <= point {
            disk.apply(&entries[applied].operation);
            applied += 1;
        }
        let position = entries[point].end;
        let limit = if run.lie > 0 { LYING_DRAIN_TIME } else { DRAIN_TIME };
        let verdict = power_image(directory.path(), &disk, &acknowledged, &receiver, position, &mut rng, limit);
        checked += verdict.acknowledged;
        if run.lie > 0 && !(verdict.missing.is_empty() && verdict.forgotten.is_empty()) {
            found = Some(image + 1);
            break;
        }
        if run.lie == 0 {
            assert_good(&verdict, run, &format!("image {image}, operation {point} of {}", entries.len()));
        }
    }
    if run.lie > 0 {
        let found = found.expect("syncs were skipped, and no image shows it");
        return format!("{} of 1,000 syncs were skipped: image {found} shows a loss", run.lie);
    }
    format!(
        "{} images of {} operations, {} requests acknowledged ({checked} over all images), lost 0, torn 0",
        run.count,
        entries.len(),
        acknowledged.requests.len()
    )
}

/// Starts a daemon on one image, lets it send what its spool has, within `limit`, and compares.
fn power_image(
    directory: &Path,
    disk: &Disk,
    acknowledged: &Acknowledged,
    recorded: &Receiver,
    position: u64,
    rng: &mut Rng,
    limit: Duration,
) -> Verdict {
    let receiver = Receiver::start();
    receiver.state().received = recorded
        .state()
        .received
        .iter()
        .filter(|(_, (at, _))| *at <= position)
        .map(|(mark, at)| (mark.clone(), *at))
        .collect();
    let place = directory.join("image");
    let _ = fs::remove_dir_all(&place);
    let site = Site::new(&place, receiver.address, "durable");
    disk.write(&place, rng);
    let daemon = site.start(&[]).unwrap();
    // If it does not send everything, the comparison says what is missing.
    let is_drained = || check::is_drained(acknowledged, &receiver, position).then_some(());
    let _ = poll_blocking(limit, is_drained);
    let forgotten = check::forgotten(&site, acknowledged, position);
    assert_eq!(daemon.stop(), Some(0), "{}", site.log());
    let verdict = Verdict { forgotten, ..check::compare(&site, acknowledged, &receiver, position) };
    if verdict.is_good() {
        fs::remove_dir_all(&place).unwrap();
    }
    verdict
}

/// Which operations fail in a life: the number of a million, and the text in their paths.
const FAULTS: [(u64, &str); 4] = [(3_000, "/"), (30_000, "/state/"), (15_000, "/"), (500, "/")];

/// Makes `count` file operations fail while the daemon runs, then compares, also with an image of the disk.
pub(crate) fn faults(run: &Run) -> String {
    let mut directory = tempfile::tempdir().unwrap();
    directory.disable_cleanup(run.keep);
    if run.keep {
        println!("in {}", directory.path().display());
    }
    let Some(library) = journal::build(directory.path()) else { return "skipped: there is no C compiler".to_owned() };
    let mut rng = Rng::new(run.seed, 3);
    let mut sum = Faults::default();
    while sum.faults < run.count {
        sum.lives += 1;
        let place = directory.path().join(format!("site-{}", sum.lives));
        faulty_life(run, &library, &place, &mut rng, &mut sum);
        fs::remove_dir_all(&place).unwrap();
    }
    directory.disable_cleanup(false);
    let Faults { faults, lives, holes, requests, registrations, ended } = sum;
    format!(
        "{faults} faults in {lives} lives, each with an image ({holes} with a hole), {requests} requests and {registrations} \
         registrations acknowledged, lost 0; {ended} daemons ended by themselves and were started again"
    )
}

/// The sums of the part `faults`.
#[derive(Default)]
struct Faults {
    faults: u64,
    lives: usize,
    holes: usize,
    requests: usize,
    registrations: usize,
    ended: usize,
}

/// One disk, with daemons on it that are killed, stopped, and started again, and what is on it at the end.
fn faulty_life(run: &Run, library: &Path, place: &Path, rng: &mut Rng, sum: &mut Faults) {
    let life = format!("life {}", sum.lives);
    let receiver = Receiver::start();
    let [log, switch] = ["journal", "switch"].map(|name| place.with_extension(name));
    receiver.state().journal = log.clone();
    let site = Site::new(place, receiver.address, "durable");
    let agents = Agents::start(&site, log.clone(), run.seed + sum.lives as u64);
    let begin = Instant::now();
    // Each life must show something.
    while agents.acknowledged() < 100 || agents.registered() < 3 {
        assert!(begin.elapsed() < PATIENCE, "{life}: nothing is acknowledged: {}", site.log());
        let (rate, part) = FAULTS[sum.lives % FAULTS.len()];
        let mut environment = preload(library, &site, &log, 0);
        environment.push(("TORTURE_FAULTS", format!("{} {rate} {part}", rng.below(1 << 40))));
        environment.push(("TORTURE_SWITCH", switch.display().to_string()));
        // A few starts have faults, too. A daemon that cannot start is started again, as a service manager does.
        let _ = fs::remove_file(&switch);
        let is_start_faulty = rng.below(4) == 0;
        if is_start_faulty {
            fs::write(&switch, "").unwrap();
        }
        let Ok(mut daemon) = site.start(&environment) else {
            assert!(is_start_faulty, "{life}: {}", site.log());
            sum.ended += 1;
            continue;
        };
        fs::write(&switch, "").unwrap();
        let life = Duration::from_millis(rng.within(FAULTY_LIFE));
        let _ = poll_blocking(life, || (!daemon.is_running()).then_some(()));
        sum.ended += usize::from(!daemon.is_running());
        if rng.below(2) == 0 {
            daemon.kill();
        } else {
            let _ = daemon.stop();
        }
    }
    let acknowledged = agents.stop();
    sum.requests += acknowledged.requests.len();
    sum.registrations += acknowledged.registrations.len();
    let entries = journal::read(&fs::read(&log).unwrap(), &site.directory);
    sum.faults += entries.iter().filter(|entry| matches!(entry.operation, Operation::Fault)).count() as u64;
    let mut disk = Disk::default();
    entries.iter().for_each(|entry| disk.apply(&entry.operation));
    let directory = place.parent().unwrap();
    let mut verdict = power_image(directory, &disk, &acknowledged, &receiver, END - 1, rng, DRAIN_TIME);
    // What a failed sync has lost of events that were not acknowledged may be a hole, or a line of which a part is left.
    sum.holes += verdict.holes.drain(..).count() + verdict.torn.drain(..).count();
    assert_good(&verdict, run, &format!("{life}, the disk after a loss of power"));
    let daemon = site.start(&[]).unwrap();
    finish(&site, &acknowledged, &receiver, END);
    assert_eq!(daemon.stop(), Some(0), "{}", site.log());
    assert_good(&check::compare(&site, &acknowledged, &receiver, END), run, &life);
    [log, switch].iter().for_each(|path| fs::remove_file(path).unwrap());
}

/// Changes the manners of the destination `count` times.
pub(crate) fn peer(run: &Run) -> String {
    let directory = tempfile::tempdir().unwrap();
    let receiver = Receiver::start();
    let site = Site::new(&directory.path().join("site"), receiver.address, "durable");
    let agents = Agents::start(&site, "".into(), run.seed);
    let mut rng = Rng::new(run.seed, 4);
    let mut daemon = site.start(&[]).unwrap();
    for change in 0..run.count {
        receiver.state().manner = MANNERS[(rng.below(MANNERS.len() as u64)) as usize];
        sleep(Duration::from_millis(rng.within(MANNER_TIME)));
        if change % 8 == 7 {
            if rng.below(2) == 0 {
                daemon.kill();
            } else {
                assert_eq!(daemon.stop(), Some(0), "{}", site.log());
            }
            daemon = site.start(&[]).unwrap();
        }
    }
    receiver.state().manner = Manner::Accept;
    let acknowledged = agents.stop();
    finish(&site, &acknowledged, &receiver, END);
    assert_eq!(daemon.stop(), Some(0), "{}", site.log());
    let misdeeds = receiver.state().misdeeds;
    let verdict = check::compare(&site, &acknowledged, &receiver, END);
    format!("{misdeeds} requests treated badly, {}", judged(&verdict, &site, run))
}

/// Waits until the receiver has everything that was acknowledged, and asserts that all registered agents are known.
fn finish(site: &Site, acknowledged: &Acknowledged, receiver: &Receiver, position: u64) {
    // If it does not get everything, the comparison says what is missing.
    let is_drained = || check::is_drained(acknowledged, receiver, position).then_some(());
    let _ = poll_blocking(DRAIN_TIME, is_drained);
    assert_eq!(check::forgotten(site, acknowledged, position), [""; 0], "registered agents are forgotten");
}

fn preload(library: &Path, site: &Site, log: &Path, lie: u64) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("TORTURE_ROOT", site.directory.display().to_string()),
        ("TORTURE_LOG", log.display().to_string()),
    ];
    environment.extend((lie > 0).then(|| ("TORTURE_LIE", lie.to_string())));
    environment
}

pub(crate) fn wait(what: &str, mut is_true: impl FnMut() -> bool) {
    let is_reached = poll_blocking(PATIENCE, || is_true().then_some(()));
    assert!(is_reached.is_some(), "{what} does not come");
}

fn assert_good(verdict: &Verdict, run: &Run, place: &str) {
    let Verdict { acknowledged, missing, torn, holes, forgotten, .. } = verdict;
    let first = |list: &[String]| list.iter().take(5).cloned().collect::<Vec<_>>();
    assert!(
        verdict.is_good(),
        "seed {}, {place}: of {acknowledged} acknowledged requests {} events are missing {:?}; {} torn lines {:?}; {} holes \
         {:?}; {} agents are forgotten {:?}",
        run.seed,
        missing.len(),
        first(missing),
        torn.len(),
        first(torn),
        holes.len(),
        first(holes),
        forgotten.len(),
        first(forgotten)
    );
}

pub(crate) fn judged(verdict: &Verdict, site: &Site, run: &Run) -> String {
    assert_good(verdict, run, &site.log());
    let Verdict { acknowledged, repeated: (files, remote, archive), .. } = verdict;
    format!(
        "{acknowledged} requests acknowledged, lost 0, torn 0; repeated events: {files} in files, {archive} in \
         the archive, {remote} at the destination"
    )
}
