//! Tests of what other processes and bad directories do to a spool, and of spools with many records.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;

use super::tests::{LIMITS, append, open, payload, segments, sum, take_all, take_one};
use super::*;

/// Every file below a directory, with its content.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(self::files(&path)),
            false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
        }
    }
    files
}

/// The numbers of all records that a snapshot reads, and its damages as (records, events).
fn read_all(snapshot: &mut Snapshot) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut numbers, mut damages) = (Vec::new(), Vec::new());
    while let Some(item) = snapshot.next_item().unwrap() {
        match item {
            SpoolItem::Record(record) => {
                assert_eq!(record.payload, payload(record.position.number));
                numbers.push(record.position.number);
            }
            SpoolItem::Damaged(damage) => damages.push((damage.records(), damage.events())),
        }
    }
    (numbers, damages)
}

#[test]
fn a_snapshot_beside_a_daemon_has_what_waits_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    assert!(!is_spool(directory.path()));
    assert_eq!(used_by(directory.path()), UsedBy::Unused);
    let mut spool = open(directory.path());
    append(&mut spool, 1..=30);
    for number in 1..=12 {
        assert_eq!(take_one(&mut spool), number);
        spool.acknowledge(number);
    }
    spool.sync().unwrap();
    spool.tidy().unwrap();
    let before = files(directory.path());
    assert!(is_spool(directory.path()));
    assert_eq!(used_by(directory.path()), UsedBy::Process(std::process::id()));
    let mut snapshot = Snapshot::read(directory.path()).unwrap();
    assert_eq!(snapshot.waiting(), spool.waiting());
    assert_eq!(snapshot.warnings(), []);
    assert_eq!(read_all(&mut snapshot), ((13..=30).collect(), Vec::new()));
    assert_eq!(files(directory.path()), before);
    drop(spool);
    assert_eq!(used_by(directory.path()), UsedBy::Unused);
    assert_eq!(files(directory.path()), before);
}

#[test]
fn segments_that_a_daemon_removes_while_they_are_read_are_no_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=60);
    let mut snapshot = Snapshot::read(directory.path()).unwrap();
    assert!(matches!(snapshot.next_item(), Ok(Some(SpoolItem::Record(record))) if record.position.number == 1));
    let sent = take_all(&mut spool).0;
    sent.iter().filter(|number| **number <= 40).for_each(|number| spool.acknowledge(*number));
    spool.tidy().unwrap();
    append(&mut spool, 61..=70);
    let (numbers, damages) = read_all(&mut snapshot);
    assert_eq!(damages, []);
    // What was read before, the rest of the segment that was open, and what still waits. Later records are not read.
    assert_eq!(numbers.last(), Some(&60));
    assert!((41..=60).all(|number| numbers.contains(&number)), "{numbers:?}");
    let mut snapshot = Snapshot::read(directory.path()).unwrap();
    spool.drop_oldest().unwrap().unwrap();
    let (numbers, damages) = read_all(&mut snapshot);
    assert_eq!((numbers.last(), damages), (Some(&70), Vec::new()));
    // Damage is damage beside a daemon, too.
    let path = &segments(directory.path())[0];
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
    let mut snapshot = Snapshot::read(directory.path()).unwrap();
    assert_eq!(read_all(&mut snapshot).1.len(), 1);
}

#[test]
fn what_an_operator_drops_is_counted_by_the_next_start_and_by_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=30);
    for number in 1..=12 {
        assert_eq!(take_one(&mut spool), number);
        spool.acknowledge(number);
    }
    spool.tidy().unwrap();
    let refused = drop_waiting(directory.path()).unwrap_err().to_string();
    assert_eq!(refused, format!("process {} uses the spool: stop it first", std::process::id()));
    assert_eq!(spool.waiting().records, 18);
    drop(spool);
    let dropped = drop_waiting(directory.path()).unwrap();
    assert_eq!((dropped.records, dropped.events), (18, sum(13..=30)));
    assert_eq!(segments(directory.path()), Vec::<PathBuf>::new());
    assert_eq!(drop_waiting(directory.path()).unwrap().records, 0);
    assert_eq!(Snapshot::read(directory.path()).unwrap().waiting(), SpoolBacklog::default());
    let (mut spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings, [SpoolWarning::Dropped(18, sum(13..=30))]);
    assert_eq!((spool.dropped().records, spool.dropped().events), (18, sum(13..=30)));
    assert_eq!(spool.waiting(), SpoolBacklog::default());
    append(&mut spool, 31..=35);
    drop(spool);
    let mut spool = open(directory.path());
    assert_eq!(spool.dropped(), SpoolBacklog::default());
    assert_eq!(take_all(&mut spool), ((31..=35).collect(), Vec::new()));
}

#[test]
fn a_drop_counts_exactly_without_a_cursor_and_with_damage() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=30);
    drop(spool);
    let path = &segments(directory.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[100] ^= 1;
    fs::write(path, bytes).unwrap();
    fs::remove_file(directory.path().join("cursor")).unwrap();
    assert_eq!(drop_waiting(directory.path()).unwrap().events, sum(1..=30));
    let (spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings, [SpoolWarning::Dropped(30, sum(1..=30))]);
    assert_eq!(spool.waiting(), SpoolBacklog::default());
}

#[test]
fn a_cursor_that_cannot_be_read_is_set_aside_and_nothing_is_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let cursor = directory.path().join("cursor");
    for (number, content) in [(1, &b"a cursor of tributary 9"[..]), (2, &[0; 5000])] {
        let mut spool = open(directory.path());
        append(&mut spool, number..=number);
        drop(spool);
        fs::write(&cursor, content).unwrap();
        let found = Snapshot::read(directory.path()).unwrap();
        assert_eq!(found.warnings(), [SpoolWarning::DamagedCursor(cursor.clone())]);
        let (mut spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
        assert_eq!(warnings, [SpoolWarning::DamagedCursor(cursor.clone())]);
        assert_eq!(take_all(&mut spool).0, (1..=number).collect::<Vec<_>>(), "everything is sent again");
        spool.tidy().unwrap();
    }
    fs::remove_file(&cursor).unwrap();
    fs::create_dir(&cursor).unwrap();
    let (_, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings, [SpoolWarning::DamagedCursor(cursor)]);
    let aside = directory.path().join("aside");
    assert_eq!(fs::read(aside.join("cursor")).unwrap(), b"a cursor of tributary 9");
    assert_eq!(fs::read(aside.join("cursor.1")).unwrap(), [0; 5000]);
    assert!(aside.join("cursor.2").is_dir());
}

#[test]
fn files_of_others_are_never_removed_or_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=3);
    drop(spool);
    let [segment] = segments(directory.path()).try_into().unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap().to_owned();
    let mut newer = fs::read(&segment).unwrap();
    newer[15] = 9;
    fs::write(&segment, &newer).unwrap();
    fs::create_dir(directory.path().join("aside")).unwrap();
    fs::write(directory.path().join("aside").join(&name), "an older one of this name").unwrap();
    let foreign = ["report.unfinished", "cursor.bak", "x.spool"];
    for name in foreign {
        fs::write(directory.path().join(name), "mine").unwrap();
    }
    // Half of a segment that was being rewritten is ours, and can be removed.
    let unfinished = directory.path().join(name.replacen('1', "2", 1) + directory::UNFINISHED);
    fs::write(&unfinished, "half").unwrap();
    let (spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings.len(), 1 + foreign.len(), "{warnings:?}");
    drop(spool);
    for name in foreign {
        assert_eq!(fs::read(directory.path().join(name)).unwrap(), b"mine");
    }
    assert!(!unfinished.exists());
    let aside = directory.path().join("aside");
    assert_eq!(fs::read(aside.join(&name)).unwrap(), b"an older one of this name");
    assert_eq!(fs::read(aside.join(format!("{name}.1"))).unwrap(), newer);
}

#[test]
fn a_file_in_the_place_of_the_directory_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("backend");
    fs::write(&path, "mine").unwrap();
    let (at, error) = Spool::open(&path, LIMITS).unwrap_err();
    assert_eq!((at, error.to_string().as_str()), (path.clone(), "it is a file, and must be a directory"));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    let (at, error) = Spool::open(&path.join("x"), LIMITS).unwrap_err();
    assert_eq!((at, error.kind()), (path.join("x"), io::ErrorKind::NotADirectory));
}

/// While the oldest request is not answered, everything behind it is settled.
#[test]
fn the_memory_of_a_spool_with_many_records_does_not_grow_with_their_number() {
    const RECORDS: u64 = 30_000;
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { max_bytes: 1 << 30, segment_bytes: 256 << 10, min_free_bytes: 0 };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    for _ in 0..RECORDS {
        spool.append(Bytes::from_static(b"{}\n"), 1).unwrap();
    }
    drop(spool);
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let (mut in_flight, mut most) = (VecDeque::new(), 0);
    assert_eq!(take_one_of(&mut spool), Some(1));
    while let Some(number) = take_one_of(&mut spool) {
        in_flight.push_back(number);
        if in_flight.len() == 3 {
            // The one in the middle is answered first.
            spool.acknowledge(in_flight.remove(1).unwrap());
            spool.acknowledge(in_flight.pop_front().unwrap());
        }
        most = most.max(spool.unsettled.len());
    }
    in_flight.into_iter().for_each(|number| spool.acknowledge(number));
    assert!(most <= 2 * 4 + 1, "{most} entries");
    assert_eq!((spool.waiting().records, spool.waiting().events), (1, 1));
    spool.acknowledge(1);
    spool.tidy().unwrap();
    assert_eq!(spool.waiting(), SpoolBacklog::default());
}

fn take_one_of(spool: &mut Spool) -> Option<u64> {
    spool.take().unwrap().map(|item| match item {
        SpoolItem::Record(record) => record.position.number,
        SpoolItem::Damaged(damage) => panic!("{damage:?}"),
    })
}
