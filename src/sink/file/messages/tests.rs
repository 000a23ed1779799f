//! Tests of the log of messages, with files that are appended to by hand.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use super::log::boot;
use super::*;

/// Two lines of a message.
fn part(sequence: u64, first_line: u32) -> MessagePart {
    MessagePart { stream: 7, sequence, first_line, end_line: first_line + 2 }
}

/// Messages in a directory, and a file with them.
fn messages(directory: &Path) -> (Messages, Disk, PathBuf) {
    let disk = Disk::new(Fsync::Interval);
    let mut messages = Messages::new(directory, "x", 4);
    messages.load(&disk).unwrap();
    (messages, disk, directory.join("app.log"))
}

/// Whether a batch of one event is to be written.
fn begins(messages: &mut Messages, number: u64, part: MessagePart) -> bool {
    messages.begin(number, part, (1, AckLevel::Written)) == Begin::New
}

fn append(messages: &mut Messages, path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    let metadata = file.metadata().unwrap();
    messages.note(path, (metadata.dev(), metadata.ino()), metadata.len()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn commit(messages: &mut Messages) {
    messages.commit(&BTreeMap::new(), Fsync::Interval).unwrap();
}

fn failed(number: u64) -> Unwritten {
    Unwritten { failed: BTreeMap::from([(number, 1)]), ..Unwritten::default() }
}

fn log_in(directory: &Path) -> Option<PathBuf> {
    let mut paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| path.file_name().unwrap().to_string_lossy().starts_with(".tributary-messages-"))
}

#[test]
fn after_a_kill_what_is_not_committed_is_cut_off_under_any_name_and_what_is_committed_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _, path) = messages(directory.path());
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "no log without messages");
    append(&mut first, &path, "other\n");
    assert!(begins(&mut first, 1, part(1, 0)));
    append(&mut first, &path, "one\n");
    commit(&mut first);
    assert!(!begins(&mut first, 2, part(1, 0)) && begins(&mut first, 3, part(1, 2)));
    append(&mut first, &path, "two\n");
    // It is finished, and another one begins, before the kill.
    fs::rename(&path, directory.path().join("app.log.1")).unwrap();
    append(&mut first, &path, "three\n");
    drop(first);
    let (mut second, ..) = messages(directory.path());
    assert_eq!(fs::read_to_string(directory.path().join("app.log.1")).unwrap(), "other\none\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    assert!(!begins(&mut second, 1, part(1, 0)) && begins(&mut second, 2, part(1, 2)));
    assert!(begins(&mut second, 3, MessagePart { stream: 8, ..part(1, 0) }), "of another stream");
}

#[test]
fn a_part_of_other_lines_is_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, ..) = messages(directory.path());
    assert!(begins(&mut first, 1, part(1, 0)));
    commit(&mut first);
    drop(first);
    // Another version divides the message otherwise.
    let (mut second, ..) = messages(directory.path());
    for (first_line, end_line, is_new) in [(0, 2, false), (0, 4, true), (0, 1, true), (1, 2, true), (2, 4, true)] {
        let part = MessagePart { first_line, end_line, ..part(1, 0) };
        assert_eq!(begins(&mut second, u64::from(first_line * 10 + end_line), part), is_new, "{part:?}");
    }
}

#[test]
fn what_waits_or_has_failed_is_not_known_and_the_oldest_are_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, ..) = messages(directory.path());
    (1..=3).for_each(|number| assert!(begins(&mut first, number, part(number, 0))));
    first.forget(&failed(2)).unwrap();
    first.commit(&BTreeMap::from([(1, BTreeMap::new())]), Fsync::Interval).unwrap();
    assert!(first.is_needed() && begins(&mut first, 4, part(2, 0)) && !begins(&mut first, 5, part(3, 0)));
    commit(&mut first);
    // The sync of the second one fails.
    first.forget(&failed(4)).unwrap();
    (5..=7).for_each(|number| assert!(begins(&mut first, number, part(number, 0))));
    commit(&mut first);
    first.mark().unwrap();
    drop(first);
    let (mut second, ..) = messages(directory.path());
    let known: Vec<_> = (1..=7).filter(|number| !begins(&mut second, *number, part(*number, 0))).collect();
    assert_eq!(known, [1, 5, 6, 7], "four of them");
}

#[test]
fn after_a_loss_of_power_nothing_is_cut_and_only_what_is_on_the_disk_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _, path) = messages(directory.path());
    let file = Path::new("waits");
    // It waits for another file until the mark, and is completed after it.
    assert!(begins(&mut first, 9, part(9, 0)));
    first.set_shares(9, Shares::from([(file.to_owned(), Share { written: 0, total: 5 })]));
    for number in 1..=3 {
        assert!(begins(&mut first, number, part(number, 0)));
        append(&mut first, &path, "line\n");
        if number < 3 {
            let rest = BTreeMap::from([(file, 3)]);
            let waits = if number == 1 { BTreeMap::from([(9, rest)]) } else { BTreeMap::new() };
            first.commit(&waits, Fsync::Interval).unwrap();
        }
        if number == 1 {
            first.mark().unwrap();
        }
    }
    drop(first);
    let log = log_in(directory.path()).unwrap();
    let text = fs::read_to_string(&log).unwrap().replace(&boot(), "another-start");
    // Its end is torn, too.
    fs::write(&log, text + "= 0000").unwrap();
    let (mut second, ..) = messages(directory.path());
    assert_eq!(fs::read_to_string(&path).unwrap(), "line\n".repeat(3));
    let known: Vec<_> = (1..=3).filter(|number| !begins(&mut second, *number, part(*number, 0))).collect();
    assert_eq!(known, [1]);
    let begun = Shares::from([(file.to_owned(), Share { written: 2, total: 5 })]);
    assert_eq!(second.begin(9, part(9, 0), (5, AckLevel::Written)), Begin::Rest(begun));
}

#[test]
fn what_is_written_of_a_part_that_waits_survives_kills_until_the_part_is_complete_or_has_failed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, ..) = messages(directory.path());
    let path = Path::new("a b");
    let share = |written| Shares::from([(path.to_owned(), Share { written, total: 5 })]);
    let waits = |number, rest| BTreeMap::from([(number, BTreeMap::from([(path, rest)]))]);
    for number in 1..=3 {
        assert!(begins(&mut first, number, part(number, 0)));
        first.set_shares(number, share(0));
        first.commit(&(1..=number).flat_map(|number| waits(number, 2)).collect(), Fsync::Interval).unwrap();
    }
    drop(first);
    // The first is completed, the second fails, of the third more is written.
    let (mut second, ..) = messages(directory.path());
    for number in 1..=3 {
        let begin = second.begin(number, part(number, 0), (5, AckLevel::Written));
        assert_eq!(begin, Begin::Rest(share(3)));
    }
    second.forget(&failed(2)).unwrap();
    second.commit(&waits(3, 1), Fsync::Interval).unwrap();
    drop(second);
    for _ in 0..2 {
        // Also if it does not come again before the next kill.
        drop(messages(directory.path()));
    }
    let (mut third, ..) = messages(directory.path());
    let mut begin = |number| third.begin(number, part(number, 0), (5, AckLevel::Written));
    assert_eq!([1, 2, 3].map(&mut begin), [Begin::Known, Begin::New, Begin::Rest(share(4))]);
}

#[test]
fn a_log_becomes_shorter_although_a_part_waits() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _, path) = messages(directory.path());
    assert!(begins(&mut first, 1, part(1, 0)) && begins(&mut first, 2, part(2, 0)));
    let share = |written| Shares::from([(path.clone(), Share { written, total: 5 })]);
    first.set_shares(1, share(0));
    let long = directory.path().join("x".repeat(4000));
    for inode in 0..2500 {
        first.note(&long, (0, inode), 0).unwrap();
    }
    first.mark().unwrap();
    assert!(first.is_long(), "not in the middle of a round");
    first.commit(&BTreeMap::from([(1, BTreeMap::from([(&*path, 2)]))]), Fsync::Interval).unwrap();
    assert!(first.is_long());
    first.mark().unwrap();
    assert!(!first.is_long() && fs::metadata(log_in(directory.path()).unwrap()).unwrap().len() < 1000);
    drop(first);
    let (mut second, ..) = messages(directory.path());
    assert_eq!(second.begin(1, part(1, 0), (5, AckLevel::Written)), Begin::Rest(share(3)));
    assert!(!begins(&mut second, 2, part(2, 0)));
}

#[test]
fn after_a_fault_of_the_log_the_next_mark_writes_what_is_remembered_to_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, _, path) = messages(directory.path());
    for number in 1..=3 {
        assert!(begins(&mut first, number, part(number, 0)));
        append(&mut first, &path, "line\n");
        if number == 2 {
            first.log.fill_disk();
            assert!(first.commit(&BTreeMap::new(), Fsync::Interval).is_err());
            assert!(log_in(directory.path()).is_none());
        } else {
            commit(&mut first);
        }
    }
    first.mark().unwrap();
    drop(first);
    let (mut second, ..) = messages(directory.path());
    assert_eq!(fs::read_to_string(&path).unwrap(), "line\n".repeat(3));
    assert!(!(1..=3).any(|number| begins(&mut second, number, part(number, 0))));
}

#[test]
fn a_process_that_remembers_nothing_cuts_off_what_is_left_and_removes_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let (mut first, disk, path) = messages(directory.path());
    assert!(begins(&mut first, 1, part(1, 0)));
    append(&mut first, &path, "one\n");
    drop(first);
    let mut second = Messages::new(directory.path(), "x", 0);
    second.load(&disk).unwrap();
    assert!(begins(&mut second, 1, part(1, 0)) && begins(&mut second, 2, part(1, 0)));
    append(&mut second, &path, "again\n");
    commit(&mut second);
    assert!(log_in(directory.path()).is_none());
    drop(second);
    drop(messages(directory.path()));
    assert_eq!(fs::read_to_string(&path).unwrap(), "again\n");
}
