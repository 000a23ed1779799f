//! Tests of the spool over real directories.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;

use super::segment::HEADER_BYTES;
use super::*;

/// Injected faults of writes and syncs, and what the disk has. Each test runs on a thread of its own.
pub(super) mod faults {
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs::{self, File};
    use std::io;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};
    use std::path::{Path, PathBuf};

    #[derive(Default)]
    struct Disk {
        /// For each write and sync to come, whether it fails; the last one first.
        faults: Vec<bool>,
        /// The synced length of each file, by its inode.
        lens: BTreeMap<u64, u64>,
        /// The segments whose names are synced.
        names: BTreeSet<PathBuf>,
        /// The synced content of each cursor, by its inode.
        cursors: BTreeMap<u64, Vec<u8>>,
    }

    thread_local! {
        static DISK: RefCell<Disk> = RefCell::default();
    }

    /// For each write and sync to come, whether it fails; the last one first.
    pub(crate) fn plan(faults: Vec<bool>) {
        DISK.with_borrow_mut(|disk| disk.faults = faults);
    }

    pub(crate) fn next() -> io::Result<()> {
        let fails = DISK.with_borrow_mut(|disk| disk.faults.pop().unwrap_or(false));
        if fails { Err(io::Error::from_raw_os_error(5)) } else { Ok(()) }
    }

    pub(crate) fn note_synced(file: &File) {
        let metadata = file.metadata().unwrap();
        DISK.with_borrow_mut(|disk| disk.lens.insert(metadata.ino(), metadata.len()));
    }

    pub(crate) fn note_names_synced(directory: &Path) {
        DISK.with_borrow_mut(|disk| disk.names.extend(super::segments(directory)));
    }

    pub(crate) fn note_cursor_synced(file: &File) {
        let metadata = file.metadata().unwrap();
        let mut content = vec![0; metadata.len() as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        DISK.with_borrow_mut(|disk| disk.cursors.insert(metadata.ino(), content));
    }

    /// What the file `cursor` has after a loss of power, if nothing was written that was not synced.
    pub(crate) fn synced_cursor(directory: &Path) -> Vec<u8> {
        let inode = fs::metadata(directory.join("cursor")).unwrap().ino();
        DISK.with_borrow(|disk| disk.cursors[&inode].clone())
    }

    /// The length that this segment has at least after a loss of power. `None`: its name may be gone.
    pub(crate) fn synced_len(path: &Path) -> Option<u64> {
        DISK.with_borrow(|disk| disk.names.contains(path)).then(|| file_len(path))
    }

    /// The length that this file has at least after a loss of power, if its name is there.
    pub(crate) fn file_len(path: &Path) -> u64 {
        let inode = fs::metadata(path).unwrap().ino();
        DISK.with_borrow(|disk| disk.lens.get(&inode).copied().unwrap_or(0))
    }
}

pub(super) const LIMITS: SpoolLimits = SpoolLimits { max_bytes: 1 << 20, segment_bytes: 600, min_free_bytes: 0 };

pub(super) fn open(directory: &Path) -> Spool {
    let (spool, warnings) = Spool::open(directory, LIMITS).unwrap();
    assert_eq!(warnings, []);
    spool
}

/// The payload of record `number`: its length differs from its neighbours'.
pub(super) fn payload(number: u64) -> Bytes {
    let len = 10 + (number * 37 % 90) as usize;
    format!("{number}:").bytes().cycle().take(len).collect()
}

pub(super) fn append(spool: &mut Spool, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        spool.append(payload(number), number as u32).unwrap();
    }
}

/// Takes everything: the numbers of whole records, and the damages as (records, events).
pub(super) fn take_all(spool: &mut Spool) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut numbers, mut damages) = (Vec::new(), Vec::new());
    while let Some(item) = spool.take().unwrap() {
        match item {
            SpoolItem::Record(SpoolRecord { position, events, payload: found, .. }) => {
                let number = position.number;
                assert_eq!((u64::from(events), &*found), (number, &*payload(number)), "record {number}");
                numbers.push(number);
            }
            SpoolItem::Damaged(damage) => damages.push((damage.records(), damage.events())),
        }
    }
    (numbers, damages)
}

/// Takes a whole record; its number.
pub(super) fn take_one(spool: &mut Spool) -> u64 {
    match spool.take() {
        Ok(Some(SpoolItem::Record(record))) => record.position.number,
        other => panic!("{other:?}"),
    }
}

pub(super) fn segments(directory: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "spool"));
    paths.sort();
    paths
}

pub(super) fn sum(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().sum()
}

#[test]
fn records_come_back_in_order_and_once_across_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=30);
    assert_eq!(take_all(&mut spool).0, (1..=30).collect::<Vec<_>>());
    // Acknowledged out of order: only 1 to 10 are contiguous.
    for number in (1..=10).rev().chain([13, 20]) {
        spool.acknowledge(number);
        spool.acknowledge(number);
    }
    let waiting = spool.waiting();
    assert_eq!((waiting.records, waiting.events), (18, sum(11..=30) - 33));
    spool.tidy().unwrap();
    drop(spool);
    let mut spool = open(directory.path());
    assert_eq!(spool.waiting().events, sum(11..=30) - 33);
    append(&mut spool, 31..=32);
    assert_eq!(take_all(&mut spool).0, (11..=32).filter(|number| ![13, 20].contains(number)).collect::<Vec<_>>());
    (11..=32).for_each(|number| spool.acknowledge(number));
    assert_eq!((spool.waiting().records, spool.waiting().events), (0, 0));
    spool.tidy().unwrap();
    assert!(segments(directory.path()).len() <= 1, "acknowledged segments are removed");
    drop(spool);
    let mut spool = open(directory.path());
    append(&mut spool, 33..=33);
    assert_eq!(take_all(&mut spool).0, [33], "numbers continue when no segment is left");
}

#[test]
fn what_was_taken_can_be_taken_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=9);
    take_all(&mut spool);
    [1, 2, 5].into_iter().for_each(|number| spool.acknowledge(number));
    spool.take_again();
    assert_eq!(take_all(&mut spool).0, [3, 4, 6, 7, 8, 9]);
}

#[test]
fn a_second_process_cannot_open_the_spool() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path());
    let (path, error) = Spool::open(directory.path(), LIMITS).unwrap_err();
    assert!(path.ends_with("lock") && error.to_string().contains("another process"), "{error}");
    drop(spool);
    open(directory.path());
}

/// Cut at every byte of the last segment, as a kill or a loss of power can leave it.
#[test]
fn a_segment_torn_at_any_byte_keeps_all_whole_records_and_new_ones_follow() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=4);
    drop(spool);
    let [path] = segments(directory.path()).try_into().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut ends = vec![HEADER_BYTES as usize];
    for number in 1..=4 {
        ends.push(ends[ends.len() - 1] + record::HEAD_BYTES + payload(number).len());
    }
    for cut in 0..=whole.len() {
        for entry in segments(directory.path()) {
            fs::remove_file(entry).unwrap();
        }
        fs::write(&path, &whole[..cut]).unwrap();
        let (mut spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
        // The cursor of the first spool was never saved.
        assert!(warnings.contains(&SpoolWarning::NoCursor));
        let kept = ends.iter().filter(|end| **end <= cut).count().saturating_sub(1) as u64;
        let torn = warnings.iter().any(|warning| matches!(warning, SpoolWarning::Torn { .. }));
        assert_eq!(torn, cut > 16 && !ends.contains(&cut), "cut at {cut}");
        append(&mut spool, kept + 1..=6);
        assert_eq!(take_all(&mut spool), ((1..=6).collect(), Vec::new()), "cut at {cut}");
    }
}

/// One bit of every byte of a segment in the middle is flipped.
#[test]
fn a_damaged_byte_loses_one_record_which_is_counted_exactly_and_copied() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=12);
    drop(spool);
    let paths = segments(directory.path());
    assert!(paths.len() >= 2);
    let whole = fs::read(&paths[0]).unwrap();
    for at in HEADER_BYTES as usize..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&paths[0], &damaged).unwrap();
        let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
        let (numbers, damages) = take_all(&mut spool);
        let lost: Vec<u64> = (1..=12).filter(|number| !numbers.contains(number)).collect();
        assert_eq!(lost.len(), 1, "byte {at}: {numbers:?}");
        assert_eq!(damages, [(1, lost[0])], "byte {at}");
        assert!(fs::read_dir(directory.path().join("damaged")).unwrap().count() > 0);
        assert_eq!(spool.waiting().records, 11);
    }
}

#[test]
fn a_header_that_is_damaged_costs_nothing_and_a_missing_segment_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=40);
    drop(spool);
    let paths = segments(directory.path());
    let mut bytes = fs::read(&paths[0]).unwrap();
    bytes[..16].fill(0);
    fs::write(&paths[0], bytes).unwrap();
    fs::remove_file(&paths[2]).unwrap();
    let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
    let (numbers, damages) = take_all(&mut spool);
    let lost: Vec<u64> = (1..=40).filter(|number| !numbers.contains(number)).collect();
    assert_eq!(damages, [(lost.len() as u64, sum(lost.iter().copied()))]);
    assert!(!lost.is_empty() && numbers[0] == 1 && numbers.ends_with(&[40]));
}

#[test]
fn payloads_that_look_like_records_are_no_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    spool.append(payload(1), 1).unwrap();
    drop(spool);
    let [path] = segments(directory.path()).try_into().unwrap();
    let forged = Bytes::from(fs::read(&path).unwrap()[16..].repeat(3));
    let limits = SpoolLimits { segment_bytes: 1 << 16, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    for _ in 0..3 {
        spool.append(forged.clone(), 1).unwrap();
    }
    drop(spool);
    let path = segments(directory.path()).pop().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    // The first of them loses its head, so the next one is searched through its payload.
    bytes[16] ^= 1;
    fs::write(&path, bytes).unwrap();
    let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
    let mut found = Vec::new();
    while let Some(item) = spool.take().unwrap() {
        found.push(match item {
            SpoolItem::Record(record) => record.position.number,
            SpoolItem::Damaged(damage) => 100 + damage.records(),
        });
    }
    assert_eq!(found, [1, 101, 3, 4]);
}

#[test]
fn foreign_files_stay_and_segments_of_a_newer_version_are_moved() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=3);
    spool.tidy().unwrap();
    drop(spool);
    let [path] = segments(directory.path()).try_into().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[15] = 9;
    fs::write(&path, bytes).unwrap();
    for name in ["notes.txt", "1.2.3.4.spool"] {
        fs::write(directory.path().join(name), "mine").unwrap();
    }
    let (mut spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings.contains(&SpoolWarning::Newer(path.clone(), 9)));
    assert!(directory.path().join("aside").join(path.file_name().unwrap()).exists() && !path.exists());
    spool.append(payload(1), 1).unwrap();
    assert_eq!(take_all(&mut spool).0, [1]);
    for name in ["notes.txt", "1.2.3.4.spool"] {
        assert_eq!(fs::read(directory.path().join(name)).unwrap(), b"mine");
    }
}

#[test]
fn a_full_spool_refuses_or_drops_its_oldest_segment() {
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { max_bytes: 2000, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let mut last = 0;
    let why = loop {
        match spool.append(payload(last + 1), (last + 1) as u32) {
            Ok(()) => last += 1,
            Err(error) => break error.to_string(),
        }
    };
    assert_eq!(why, "the spool is full: max_bytes = 2000 is reached");
    assert!(spool.waiting().bytes <= 2000);
    // Two are being sent.
    assert_eq!(take_one(&mut spool), 1);
    assert_eq!(take_one(&mut spool), 2);
    let before = spool.waiting().events;
    let Dropped { numbers, events: dropped } = spool.drop_oldest().unwrap().unwrap();
    assert_eq!((numbers.start, sum(numbers)), (3, dropped));
    assert!(dropped > 0);
    assert_eq!(spool.waiting().events, before - dropped, "what is being sent still waits");
    append(&mut spool, last + 1..=last + 1);
    spool.acknowledge(1);
    spool.acknowledge(2);
    let (numbers, damages) = take_all(&mut spool);
    assert!(damages.is_empty());
    assert_eq!(sum(3..=last + 1), dropped + sum(numbers.iter().copied()));
    numbers.iter().for_each(|number| spool.acknowledge(*number));
    assert_eq!(spool.waiting().events, 0);
    while spool.drop_oldest().unwrap().is_some() {}
    append(&mut spool, last + 2..=last + 2);
    assert_eq!(take_all(&mut spool).0, [last + 2]);
}

#[test]
fn the_file_system_keeps_its_free_space() {
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { min_free_bytes: u64::MAX / 2, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let error = spool.append(payload(1), 1).unwrap_err().to_string();
    assert!(error.starts_with("the spool is full: its file system has "), "{error}");
}

#[test]
fn records_of_a_segment_that_cannot_be_synced_go_to_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=2);
    spool.sync().unwrap();
    append(&mut spool, 3..=4);
    assert_eq!(take_one(&mut spool), 1);
    // The sync fails; then the second write to the new segment; then its sync.
    faults::plan(vec![true]);
    spool.sync().unwrap();
    assert_eq!(segments(directory.path()).len(), 2);
    append(&mut spool, 5..=5);
    for plan in [vec![true, false, true], vec![true, true], vec![true, false, false, true], vec![true; 9]] {
        faults::plan(plan);
        assert!(spool.sync().is_err());
    }
    // Nothing is appended before the records that are not written.
    assert!(spool.append(payload(6), 6).is_err());
    assert_eq!(take_one(&mut spool), 2);
    assert_eq!(segments(directory.path()).len(), 2, "failed attempts leave nothing");
    faults::plan(Vec::new());
    append(&mut spool, 6..=6);
    spool.sync().unwrap();
    assert_eq!(take_all(&mut spool), ((3..=6).collect(), Vec::new()));
    drop(spool);
    let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(take_all(&mut spool), ((1..=6).collect(), Vec::new()));
}

#[test]
fn settled_records_of_a_segment_that_cannot_be_synced_are_not_damaged_after_a_loss_of_power() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=3);
    (1..=2).for_each(|number| assert_eq!(take_one(&mut spool), number));
    (1..=2).for_each(|number| spool.acknowledge(number));
    spool.forget_settled();
    faults::plan(vec![true]);
    spool.sync().unwrap();
    drop(spool);
    let [old, new] = &segments(directory.path())[..] else { panic!("two segments") };
    assert_eq!((faults::synced_len(old), faults::synced_len(new)), (Some(0), Some(fs::metadata(new).unwrap().len())));
    fs::write(old, b"").unwrap();
    fs::write(directory.path().join("cursor"), faults::synced_cursor(directory.path())).unwrap();
    let mut spool = Spool::open(directory.path(), LIMITS).unwrap().0;
    assert_eq!(take_all(&mut spool), (vec![3], vec![]));
}

#[test]
fn a_refused_request_is_on_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path());
    for plan in [vec![true], vec![true, false]] {
        faults::plan(plan);
        assert!(spool.keep_refused("1-1", 7, "why", b"request").is_err());
    }
    let path = spool.keep_refused("1-1", 7, "why", b"request").unwrap().unwrap();
    assert!(fs::read(&path).unwrap().ends_with(b"\nrequest"));
    assert_eq!(faults::file_len(&path), fs::metadata(&path).unwrap().len());
}

#[test]
fn a_removed_segment_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=3);
    spool.sync().unwrap();
    take_all(&mut spool);
    let open_segments = || {
        let links = fs::read_dir("/proc/self/fd").unwrap().map(|entry| fs::read_link(entry.unwrap().path()));
        let is_segment =
            |path: &PathBuf| path.starts_with(directory.path()) && path.to_string_lossy().contains(".spool");
        links.flatten().filter(is_segment).count()
    };
    assert_eq!(open_segments(), 2, "it is written and read");
    (1..=3).for_each(|number| spool.acknowledge(number));
    spool.tidy().unwrap();
    assert_eq!((segments(directory.path()).len(), open_segments()), (0, 0));
}

#[test]
fn a_write_that_fails_appends_nothing_and_the_next_one_continues() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    for number in 1..=20 {
        faults::plan(vec![number % 3 != 0]);
        while spool.append(payload(number), number as u32).is_err() {}
    }
    assert_eq!(take_all(&mut spool), ((1..=20).collect(), Vec::new()));
    drop(spool);
    assert_eq!(take_all(&mut Spool::open(directory.path(), LIMITS).unwrap().0).0, (1..=20).collect::<Vec<_>>());
}

#[test]
fn synced_records_that_are_missing_at_the_end_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=4);
    spool.sync().unwrap();
    spool.tidy().unwrap();
    drop(spool);
    let [path] = segments(directory.path()).try_into().unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
    append(&mut spool, 5..=5);
    assert_eq!(take_all(&mut spool), (vec![1, 2, 3, 5], vec![(1, 4)]));
}

/// What a loss of power leaves: synced bytes, and any prefix of the others. Names that were not synced may be gone, and so may
/// what the cursor says.
fn lose_power(directory: &Path, random: &mut impl FnMut(u64) -> u64) {
    if random(2) == 0 {
        fs::write(directory.join("cursor"), faults::synced_cursor(directory)).unwrap();
    }
    for path in segments(directory) {
        let len = fs::metadata(&path).unwrap().len();
        match faults::synced_len(&path) {
            None if random(2) == 0 => fs::remove_file(&path).unwrap(),
            kept => {
                let kept = kept.unwrap_or(0).min(len);
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(kept + random(len - kept + 1)).unwrap();
            }
        }
    }
}

/// Random operations, faults, kills and losses of power against a list of numbers.
#[test]
fn whatever_happens_synced_records_are_taken_in_order_and_nothing_is_lost() {
    for seed in 1..=40 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below.max(1)
        };
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        faults::plan(Vec::new());
        let mut spool = open(directory);
        // Numbers appended and synced up to there, those that are settled, the smallest that may be taken next, and those that are
        // taken and not settled.
        let (mut appended, mut synced, mut settled, mut next) = (0, 0, BTreeSet::new(), 1);
        let mut taken = Vec::new();
        // Written up to there, those that a kill or a loss of power may have removed, and those that were ever settled.
        let (mut written, mut uncertain, mut ever_settled) = (0, BTreeSet::new(), BTreeSet::new());
        for step in 0..200 {
            faults::plan((0..4).map(|_| random(12) == 0).collect());
            match random(19) {
                0..4 => {
                    let is_appended = spool.append(payload(appended + 1), (appended + 1) as u32).is_ok();
                    appended += u64::from(is_appended);
                    written = if is_appended { appended } else { written };
                }
                4..6 => appended += u64::from(spool.hold(payload(appended + 1), (appended + 1) as u32).is_ok()),
                6..8 => {
                    let is_synced = spool.sync().is_ok();
                    (written, synced) = if is_synced { (appended, appended) } else { (written, synced) };
                }
                8..12 => {
                    let item = spool.take().unwrap();
                    next = (next..).find(|number| !settled.contains(number)).unwrap();
                    match item {
                        Some(SpoolItem::Record(SpoolRecord { position, payload: found, .. })) if found.is_empty() => {
                            assert!(ever_settled.contains(&position.number), "seed {seed}, step {step}");
                            settled.insert(position.number);
                            spool.acknowledge(position.number);
                        }
                        Some(SpoolItem::Record(SpoolRecord { position, payload: found, .. })) => {
                            let number = position.number;
                            assert_eq!((number, &*found), (next, &*payload(number)), "seed {seed}, step {step}");
                            taken.push(number);
                            next += 1;
                        }
                        Some(SpoolItem::Damaged(damage)) => {
                            // Not safe, and before one that was accepted.
                            let mut lost = damage.start.number..damage.end.number;
                            let is_uncertain = lost.all(|number| uncertain.contains(&number));
                            assert!(is_uncertain, "seed {seed}, step {step}: {damage:?}");
                            assert_eq!(damage.start.number, next, "seed {seed}, step {step}: {damage:?}");
                            next = damage.end.number;
                            settled.extend(damage.start.number..next);
                        }
                        None => {}
                    }
                }
                12..14 if !taken.is_empty() => {
                    let number = taken.remove(random(taken.len() as u64) as usize);
                    settled.insert(number);
                    ever_settled.insert(number);
                    spool.acknowledge(number);
                }
                14 => {
                    spool.tidy().unwrap();
                    let left = (1..=appended).filter(|number| !settled.contains(number));
                    let waiting = spool.waiting();
                    assert_eq!(waiting.records, left.clone().count() as u64, "seed {seed}, step {step}");
                    assert_eq!(waiting.events, sum(left), "seed {seed}, step {step}");
                }
                15 => {
                    drop(spool);
                    let is_power_lost = random(2) == 0;
                    if is_power_lost {
                        lose_power(directory, &mut random);
                    }
                    faults::plan(Vec::new());
                    let (opened, _) = Spool::open(directory, LIMITS).unwrap();
                    spool = opened;
                    let ranges =
                        spool.unsettled.settled().into_iter().flat_map(|range| range.start.number..range.end.number);
                    let found: BTreeSet<u64> = (1..spool.unsettled.acknowledged().number).chain(ranges).collect();
                    let last = spool.recent.end().number - 1;
                    assert!(found.is_subset(&settled), "seed {seed}, step {step}");
                    assert!(is_power_lost || found == settled, "seed {seed}, step {step}");
                    // Records that are settled before their sync is due are not synced.
                    assert!((last + 1..=synced).all(|number| settled.contains(&number)), "seed {seed}, step {step}");
                    assert!(is_power_lost || last >= written, "seed {seed}, step {step}");
                    uncertain.extend(1 + if is_power_lost { synced } else { written }..=last);
                    (appended, settled, next) = (last, found, 1);
                    taken.clear();
                    (written, synced) = (appended, appended);
                }
                16 => {
                    let all_before = spool.recent.is_empty();
                    let is_synced = spool.sync_waiting(Duration::ZERO).is_ok();
                    synced =
                        if is_synced && !all_before { synced.max(spool.recent.start().number - 1) } else { synced };
                    written = written.max(synced);
                }
                17 => {
                    if let Ok(Some(Dropped { numbers, events })) = spool.drop_oldest() {
                        let dropped: Vec<u64> = numbers.filter(|number| !settled.contains(number)).collect();
                        assert_eq!(events, sum(dropped.iter().copied()), "seed {seed}, step {step}");
                        assert!(dropped.iter().all(|number| !taken.contains(number)), "seed {seed}, step {step}");
                        ever_settled.extend(dropped.iter().copied());
                        settled.extend(dropped);
                    }
                }
                18 => drop(spool.free()),
                _ => {}
            }
        }
    }
}

#[test]
fn what_is_delivered_is_removed_when_a_record_needs_its_space() {
    let directory = tempfile::tempdir().unwrap();
    // One segment is all that it may have.
    let limits = SpoolLimits { max_bytes: 600, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let mut last = 0;
    for _ in 0..20 {
        while spool.append(payload(last + 1), (last + 1) as u32).is_ok() {
            last += 1;
        }
        assert!(spool.shortage().is_some_and(|why| why.contains("max_bytes = 600 is reached")));
        let (numbers, damages) = take_all(&mut spool);
        assert!(!numbers.is_empty() && damages.is_empty());
        numbers.iter().for_each(|number| spool.acknowledge(*number));
        // At once: nothing else has to be called.
        assert_eq!((segments(directory.path()).len(), spool.waiting().bytes), (0, 0));
    }
    assert!(last > 40);
}

#[test]
fn records_that_are_held_are_taken_from_memory_and_leave_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    for number in 1..=300 {
        spool.hold(payload(number), number as u32).unwrap();
        assert_eq!(take_one(&mut spool), number);
        spool.acknowledge(number);
    }
    assert_eq!((segments(directory.path()).len(), spool.waiting().records), (0, 0));
    // A record after more settled records than `MAX_GAP` gets a segment of its own, a record after few of them does
    // not.
    append(&mut spool, 301..=301);
    (302..=305).for_each(|number| spool.hold(payload(number), number as u32).unwrap());
    assert_eq!(take_all(&mut spool).0, (301..=305).collect::<Vec<_>>());
    (301..=304).for_each(|number| spool.acknowledge(number));
    append(&mut spool, 306..=306);
    spool.sync().unwrap();
    assert_eq!(segments(directory.path()).len(), 1);
    assert!(spool.has_kept(1..307, true));
    // What a loss of power leaves has no gap.
    fs::write(directory.path().join("cursor"), faults::synced_cursor(directory.path())).unwrap();
    drop(spool);
    let mut spool = Spool::open(directory.path(), LIMITS).unwrap().0;
    let mut found = Vec::new();
    while let Some(item) = spool.take().unwrap() {
        let SpoolItem::Record(record) = item else { panic!("{item:?}") };
        found.push((record.position.number, record.payload.is_empty()));
    }
    assert_eq!(found, [(301, false), (302, true), (303, true), (304, true), (305, false), (306, false)]);
}

#[test]
fn records_that_the_disk_does_not_take_are_taken_from_memory_and_written_as_soon_as_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { min_free_bytes: u64::MAX / 2, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    (1..=5).for_each(|number| spool.hold(payload(number), number as u32).unwrap());
    assert!(spool.append(payload(6), 6).is_err() && spool.sync().is_err());
    assert_eq!((take_one(&mut spool), take_one(&mut spool)), (1, 2));
    spool.acknowledge(2);
    assert!(!spool.has_kept(1..2, false) && spool.has_kept(2..3, true) && !spool.has_kept(1..6, false));
    assert_eq!(spool.unwritten().events, 1 + 3 + 4 + 5);
    spool.limits = LIMITS;
    spool.write_out().unwrap();
    assert!(spool.has_kept(1..6, false) && !spool.has_kept(1..6, true) && spool.shortage().is_none());
    assert_eq!(spool.unwritten().events, 0);
    assert_eq!(take_all(&mut spool).0, [3, 4, 5]);
    drop(spool);
    let mut spool = open(directory.path());
    assert_eq!(take_all(&mut spool).0, [1, 3, 4, 5]);
}

#[test]
fn records_that_are_settled_before_their_sync_is_due_are_never_synced() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    for number in 1..=30 {
        append(&mut spool, number..=number);
        let taken = take_one(&mut spool);
        spool.acknowledge(taken);
        spool.sync_waiting(Duration::ZERO).unwrap();
    }
    assert!(segments(directory.path()).len() > 2);
    assert!(segments(directory.path()).iter().all(|path| faults::synced_len(path).is_none()));
    // A segment that is gone after a loss of power was settled, so nothing is missing.
    append(&mut spool, 31..=31);
    spool.sync().unwrap();
    drop(spool);
    for path in &segments(directory.path())[..2] {
        fs::write(path, b"").unwrap();
    }
    let mut spool = Spool::open(directory.path(), LIMITS).unwrap().0;
    assert_eq!(take_all(&mut spool), (vec![31], vec![]));
}

#[test]
fn a_record_that_waits_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=2);
    let taken = take_one(&mut spool);
    spool.acknowledge(taken);
    spool.sync_waiting(Duration::from_secs(3600)).unwrap();
    let [path] = &segments(directory.path())[..] else { panic!("one segment") };
    assert_eq!(faults::synced_len(path), None, "it has not waited for so long");
    spool.recent.set_oldest_time(|time| time - 2);
    spool.sync_waiting(Duration::from_millis(1)).unwrap();
    assert_eq!(faults::synced_len(path), Some(fs::metadata(path).unwrap().len()));
    // A clock that was set back delays nothing.
    append(&mut spool, 3..=3);
    spool.recent.set_oldest_time(|time| time + 3_600_000);
    spool.sync_waiting(Duration::from_secs(1)).unwrap();
    assert!(spool.recent.is_empty());
}

#[test]
fn records_that_are_not_synced_are_taken_from_memory_and_later_ones_from_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=3);
    // The file is damaged, but nothing of it is read.
    let [path] = &segments(directory.path())[..] else { panic!("one segment") };
    let whole = fs::read(path).unwrap();
    fs::write(path, vec![0; whole.len()]).unwrap();
    assert_eq!(take_all(&mut spool), (vec![1, 2, 3], vec![]));
    fs::write(path, &whole).unwrap();
    // Now they are read, behind those that were not.
    append(&mut spool, 4..=5);
    spool.sync().unwrap();
    assert_eq!(take_all(&mut spool), (vec![4, 5], vec![]));
    spool.take_again();
    assert_eq!(take_all(&mut spool), (vec![1, 2, 3, 4, 5], vec![]));
}
