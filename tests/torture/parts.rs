//! The four parts: kills, losses of power, faults of the disk, a misbehaving destination.

use std::fs;
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

/// A position behind everything.
const END: u64 = u64::MAX;

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
        sleep(Duration::from_millis(rng.below(150)));
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
    let environment = preload(&library, &site, &log, None, run.lie);
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
        let verdict = power_image(directory.path(), &disk, &acknowledged, &receiver, position, &mut rng);
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

/// Starts a daemon on one image, lets it send what its spool has, and compares.
fn power_image(
    directory: &Path,
    disk: &Disk,
    acknowledged: &Acknowledged,
    recorded: &Receiver,
    position: u64,
    rng: &mut Rng,
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
    let begin = Instant::now();
    while !check::is_drained(acknowledged, &receiver, position) && begin.elapsed() < Duration::from_secs(3) {
        sleep(Duration::from_millis(2));
    }
    let forgotten = check::forgotten(&site, acknowledged, position);
    assert_eq!(daemon.stop(), Some(0), "{}", site.log());
    let verdict = Verdict { forgotten, ..check::compare(&site, acknowledged, &receiver, position) };
    let is_good = verdict.missing.is_empty() && verdict.torn.is_empty() && verdict.forgotten.is_empty();
    if is_good {
        fs::remove_dir_all(&place).unwrap();
    }
    verdict
}

/// Makes `count` file operations fail while the daemon runs, then compares, also with an image of the disk.
pub(crate) fn faults(run: &Run) -> String {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = journal::build(directory.path()) else { return "skipped: there is no C compiler".to_owned() };
    let mut rng = Rng::new(run.seed, 3);
    let (mut faults, mut lives, mut requests, mut images, mut ended, mut holes) = (0, 0, 0, 0, 0, 0);
    while faults < run.count {
        lives += 1;
        let receiver = Receiver::start();
        let log = directory.path().join("journal");
        receiver.state().journal = log.clone();
        let place = directory.path().join(format!("site-{lives}"));
        let site = Site::new(&place, receiver.address, "durable");
        let plan = Some((rng.below(1 << 40), [500, 3_000, 15_000][lives % 3]));
        let environment = preload(&library, &site, &log, plan, 0);
        let agents = Agents::start(&site, log.clone(), run.seed + lives as u64);
        let begin = Instant::now();
        // A daemon that cannot start because of a fault is started again, as a service manager does.
        let limit = Duration::from_secs(3);
        while begin.elapsed() < limit && agents.acknowledged() < 150 {
            let Ok(mut daemon) = site.start(&environment) else {
                ended += 1;
                continue;
            };
            let life = Duration::from_millis(300 + rng.below(1500));
            let born = Instant::now();
            while born.elapsed() < life && begin.elapsed() < limit && daemon.is_running() {
                sleep(Duration::from_millis(5));
            }
            ended += u64::from(!daemon.is_running());
            if rng.below(2) == 0 {
                daemon.kill();
            } else {
                let _ = daemon.stop();
            }
        }
        let acknowledged = agents.stop();
        let entries = journal::read(&fs::read(&log).unwrap_or_default(), &site.directory);
        faults += entries.iter().filter(|entry| matches!(entry.operation, Operation::Fault)).count() as u64;
        requests += acknowledged.requests.len();
        let mut disk = Disk::default();
        entries.iter().for_each(|entry| disk.apply(&entry.operation));
        let mut verdict = power_image(directory.path(), &disk, &acknowledged, &receiver, END - 1, &mut rng);
        images += 1;
        // What a failed sync has lost of events that were not acknowledged may be a hole in a file that is given up.
        holes += verdict.torn.drain(..).count();
        assert_good(&verdict, run, &format!("life {lives}, the disk after a loss of power"));
        let daemon = site.start(&[]).unwrap();
        finish(&site, &acknowledged, &receiver, END);
        assert_eq!(daemon.stop(), Some(0), "{}", site.log());
        assert_good(&check::compare(&site, &acknowledged, &receiver, END), run, &format!("life {lives}"));
        fs::remove_dir_all(&place).unwrap();
        fs::remove_file(&log).unwrap();
    }
    format!(
        "{faults} faults in {lives} lives, {images} images ({holes} with a hole), {requests} requests acknowledged, lost 0; {ended} daemons \
         ended by themselves and were started again"
    )
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
        sleep(Duration::from_millis(50 + rng.below(300)));
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
    let begin = Instant::now();
    while !check::is_drained(acknowledged, receiver, position) && begin.elapsed() < PATIENCE / 4 {
        sleep(Duration::from_millis(5));
    }
    assert_eq!(check::forgotten(site, acknowledged, position), [""; 0], "registered agents are forgotten");
}

fn preload(
    library: &Path,
    site: &Site,
    log: &Path,
    faults: Option<(u64, u64)>,
    lie: u64,
) -> Vec<(&'static str, String)> {
    let mut environment = vec![
        ("LD_PRELOAD", library.display().to_string()),
        ("TORTURE_ROOT", site.directory.display().to_string()),
        ("TORTURE_LOG", log.display().to_string()),
    ];
    environment.extend(faults.map(|(seed, rate)| ("TORTURE_FAULTS", format!("{seed} {rate}"))));
    environment.extend((lie > 0).then(|| ("TORTURE_LIE", lie.to_string())));
    environment
}

fn wait(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < PATIENCE, "{what} does not come");
        sleep(Duration::from_millis(2));
    }
}

fn assert_good(verdict: &Verdict, run: &Run, place: &str) {
    let Verdict { acknowledged, missing, torn, forgotten, .. } = verdict;
    let first = |list: &[String]| list.iter().take(5).cloned().collect::<Vec<_>>();
    assert!(
        missing.is_empty() && torn.is_empty() && forgotten.is_empty(),
        "seed {}, {place}: of {acknowledged} acknowledged requests {} events are missing {:?}; {} torn lines {:?}; {} agents \
         are forgotten {:?}",
        run.seed,
        missing.len(),
        first(missing),
        torn.len(),
        first(torn),
        forgotten.len(),
        first(forgotten)
    );
}

fn judged(verdict: &Verdict, site: &Site, run: &Run) -> String {
    assert_good(verdict, run, &site.log());
    let Verdict { acknowledged, repeated: (files, remote), .. } = verdict;
    format!(
        "{acknowledged} requests acknowledged, lost 0, torn 0; repeated events: {files} in files, {remote} at the destination"
    )
}
