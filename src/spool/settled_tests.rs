//! Tests of requests that are settled before an older one is.

use std::path::Path;

use super::segment::HEADER_BYTES;
use super::tests::{LIMITS, append, faults, open, payload, segments, sum, take_all};
use super::*;

/// Appends 30 records, takes them, and settles these.
fn settle(directory: &Path, settled: &[u64]) -> Spool {
    let mut spool = open(directory);
    append(&mut spool, 1..=30);
    take_all(&mut spool);
    settled.iter().for_each(|number| spool.acknowledge(*number));
    spool
}

fn rest(settled: &[u64]) -> Vec<u64> {
    (1..=30).filter(|number| !settled.contains(number)).collect()
}

/// What waits, as a snapshot and as a spool that is opened say it, and what both read.
fn assert_waiting(directory: &Path, numbers: &[u64]) {
    let of = |waiting: SpoolBacklog| (waiting.records, waiting.events);
    let expected = (numbers.len() as u64, sum(numbers.iter().copied()));
    let mut snapshot = Snapshot::read(directory).unwrap();
    assert_eq!(of(snapshot.waiting()), expected);
    let mut read = Vec::new();
    while let Some(item) = snapshot.next_item().unwrap() {
        let SpoolItem::Record(record) = item else { panic!("{item:?}") };
        assert_eq!(record.payload, payload(record.position.number));
        read.push(record.position.number);
    }
    assert_eq!(read, numbers);
    let mut spool = open(directory);
    assert_eq!(of(spool.waiting()), expected);
    assert_eq!(take_all(&mut spool), (numbers.to_vec(), vec![]));
    assert_eq!(of(spool.waiting()), expected);
}

#[test]
fn what_is_settled_behind_an_unsettled_record_is_not_taken_by_the_next_process() {
    for settled in [&[2][..], &[2, 3, 4, 30], &[1, 2, 5, 7, 8, 9, 20, 22, 24, 29], &[30, 28, 26], &[1]] {
        for is_killed in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let mut spool = settle(directory.path(), settled);
            if !is_killed {
                spool.sync().unwrap();
                spool.tidy().unwrap();
            }
            drop(spool);
            assert_waiting(directory.path(), &rest(settled));
            // Several processes after each other; each settles the first one and the last but one.
            let mut left = rest(settled);
            while left.len() > 2 {
                let mut spool = open(directory.path());
                assert_eq!(take_all(&mut spool), (left.clone(), vec![]));
                let last_but_one = left.len() - 2;
                spool.acknowledge(left.remove(last_but_one));
                spool.acknowledge(left.remove(0));
                drop(spool);
                assert_waiting(directory.path(), &left);
            }
            let mut spool = open(directory.path());
            append(&mut spool, 31..=32);
            left.extend([31, 32]);
            assert_eq!(take_all(&mut spool), (left.clone(), vec![]));
            left.iter().for_each(|number| spool.acknowledge(*number));
            spool.tidy().unwrap();
            assert_eq!(spool.waiting().records, 0);
            assert!(segments(directory.path()).len() <= 1);
        }
    }
}

#[test]
fn damage_of_settled_records_is_none_and_beside_them_it_is_counted_exactly() {
    let settled = [4, 5, 6, 9];
    let directory = tempfile::tempdir().unwrap();
    drop(settle(directory.path(), &settled));
    let path = segments(directory.path()).remove(0);
    let whole = fs::read(&path).unwrap();
    let mut at = HEADER_BYTES as usize;
    let first_segment = (1..=30).take_while(|number| {
        at += record::HEAD_BYTES + payload(*number).len();
        at <= whole.len()
    });
    let first_segment = first_segment.count() as u64;
    assert!(first_segment > 5);
    at = HEADER_BYTES as usize;
    for number in 1..=first_segment {
        let mut damaged = whole.clone();
        damaged[at + 10] ^= 1;
        fs::write(&path, damaged).unwrap();
        at += record::HEAD_BYTES + payload(number).len();
        let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
        let is_settled = settled.contains(&number);
        let expected: Vec<u64> = rest(&settled).into_iter().filter(|rest| *rest != number).collect();
        let damages = if is_settled { vec![] } else { vec![(1, number)] };
        assert_eq!(take_all(&mut spool), (expected, damages), "record {number} is damaged");
        assert_eq!(spool.waiting().records, if is_settled { 26 } else { 25 });
        // The next one finds the same.
        drop(spool);
        fs::remove_file(directory.path().join("cursor")).unwrap();
        fs::write(&path, &whole).unwrap();
        drop(settle_again(directory.path(), &settled));
    }
}

/// Opens a spool without a cursor, and settles these.
fn settle_again(directory: &Path, settled: &[u64]) -> Spool {
    let (mut spool, _) = Spool::open(directory, LIMITS).unwrap();
    take_all(&mut spool);
    settled.iter().for_each(|number| spool.acknowledge(*number));
    spool
}

/// The destination has accepted records that were never synced, and a record before them is lost with the power.
#[test]
fn numbers_of_settled_records_that_a_loss_of_power_removes_are_not_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut spool = open(directory.path());
    append(&mut spool, 1..=2);
    spool.sync().unwrap();
    append(&mut spool, 3..=5);
    take_all(&mut spool);
    [1, 4, 5].into_iter().for_each(|number| spool.acknowledge(number));
    spool.tidy().unwrap();
    drop(spool);
    for path in segments(directory.path()) {
        let kept = faults::synced_len(&path).unwrap_or(0);
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(kept).unwrap();
    }
    fs::write(directory.path().join("cursor"), faults::synced_cursor(directory.path())).unwrap();
    let (mut spool, _) = Spool::open(directory.path(), LIMITS).unwrap();
    append(&mut spool, 6..=6);
    assert_eq!(take_all(&mut spool), (vec![2, 6], vec![(1, 3)]), "3 was not confirmed, and is counted");
    assert_eq!((spool.waiting().records, spool.waiting().events), (2, 8));
}

#[test]
fn an_operator_drops_what_waits_and_not_what_is_settled() {
    let settled = [2, 3, 8];
    let directory = tempfile::tempdir().unwrap();
    drop(settle(directory.path(), &settled));
    let rest = rest(&settled);
    let expected = (rest.len() as u64, sum(rest.iter().copied()));
    let dropped = drop_waiting(directory.path()).unwrap();
    assert_eq!((dropped.records, dropped.events), expected);
    let (mut spool, warnings) = Spool::open(directory.path(), LIMITS).unwrap();
    assert_eq!(warnings, [SpoolWarning::Dropped(expected.0, expected.1)]);
    assert_eq!((spool.dropped().records, spool.dropped().events), expected);
    append(&mut spool, 31..=31);
    assert_eq!(take_all(&mut spool), (vec![31], vec![]));
}

/// What the files of a spool take.
fn bytes(directory: &Path) -> u64 {
    segments(directory).iter().map(|path| fs::metadata(path).unwrap().len()).sum()
}

fn take(spool: &mut Spool) -> SpoolRecord {
    let Some(SpoolItem::Record(record)) = spool.take().unwrap() else { panic!("no record") };
    record
}

/// Requests that the destination never takes, among many that it takes.
#[test]
fn what_is_settled_frees_its_space_although_older_records_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { max_bytes: 3000, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let never_taken = [1, 40, 41, 170, 290];
    let mut ids = Vec::new();
    for number in 1..=300 {
        append(&mut spool, number..=number);
        assert!(bytes(directory.path()) <= limits.max_bytes);
        let record = take(&mut spool);
        assert_eq!(record.position.number, number);
        match never_taken.contains(&number) {
            true => ids.push(record.id),
            false => spool.acknowledge(number),
        }
    }
    let waiting = (never_taken.len() as u64, sum(never_taken));
    assert_eq!((spool.waiting().records, spool.waiting().events), waiting);
    drop(spool);
    assert_waiting(directory.path(), &never_taken);
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let again: Vec<String> = (0..never_taken.len()).map(|_| take(&mut spool).id).collect();
    assert_eq!(again, ids, "the destination recognizes what is sent again");
    never_taken.iter().for_each(|number| spool.acknowledge(*number));
    spool.tidy().unwrap();
    assert_eq!((spool.waiting().records, segments(directory.path()).len()), (0, 0));
}

#[test]
fn what_is_being_sent_stays_on_the_disk_when_the_oldest_records_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let limits = SpoolLimits { max_bytes: 2000, ..LIMITS };
    let (mut spool, _) = Spool::open(directory.path(), limits).unwrap();
    let (mut dropped, mut last) = (0, 0);
    append(&mut spool, 1..=3);
    (1..=2).for_each(|number| assert_eq!(take(&mut spool).position.number, number));
    spool.acknowledge(2);
    while dropped < 200 {
        last = spool.last_number() + 1;
        if spool.append(payload(last), last as u32).is_err() {
            dropped += spool.drop_oldest().unwrap().unwrap().events;
            assert!(bytes(directory.path()) <= limits.max_bytes);
        }
    }
    let left = spool.waiting();
    assert_eq!(left.events, sum(1..=spool.last_number()) - 2 - dropped);
    drop(spool);
    let (mut spool, warnings) = Spool::open(directory.path(), limits).unwrap();
    assert_eq!((warnings, spool.waiting()), (vec![], left));
    let (numbers, damages) = take_all(&mut spool);
    assert_eq!((sum(numbers.iter().copied()), damages), (left.events, vec![]));
    assert!(numbers[0] == 1 && numbers[1] > 3 && last >= numbers[numbers.len() - 1]);
}
