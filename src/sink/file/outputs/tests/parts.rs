//! Tests of messages in files: each line is there once, also after kills. A kill is a sink that is dropped: what it has appended
//! is in the files, and nothing else of it is left.

use super::super::super::disk::lock;
use super::*;
use std::fs::{self, OpenOptions};
use tributary_event::{Batch, Loss, MessagePart, Reason};
use tributary_sink::Chosen;
use tributary_system::locked_file::LockedFile;

/// A sink with a file for each kind of events.
fn sink(directory: &Path) -> Outputs {
    let mut outputs = outputs(directory, Fsync::Interval);
    outputs.context.options.path = format!("{}/{{kind}}.log", directory.display());
    outputs.template = Template::parse(&outputs.context.options.path).unwrap();
    outputs.context.messages = Messages::new(directory, "test", 100);
    outputs
}

/// A batch of logs and losses with these names. With a number, it is the message of the stream with that number.
fn batch(sequence: Option<u64>, logs: &[&str], losses: &[&str]) -> Batch {
    let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", "web".into(), "peer".into(), 1)));
    for (index, name) in logs.iter().chain(losses).enumerate() {
        let name = batch.push_text(name).into();
        let header = Header { name, time: None, observed: wall_clock::now(), position: Position::default() };
        if index < logs.len() {
            batch.event(header).log(Severity::Info, None);
        } else {
            batch.loss(header, Loss { reason: Reason::Failed, bytes: 1, events: None, detail: "", excerpt: b"" });
        }
    }
    let mut batch = batch.take();
    if let Some(sequence) = sequence {
        let end_line = u32::try_from(batch.len()).unwrap();
        batch.set_message(MessagePart { stream: 1, sequence, first_line: 0, end_line });
    }
    batch
}

/// Takes a batch at this level, and flushes as the sink does.
fn write_at(level: AckLevel, outputs: &mut Outputs, number: u64, batch: &Batch) {
    outputs.take(Selection::new(batch, Kinds::ALL).numbered(number).at_level(level));
    flush(outputs);
}

fn write(outputs: &mut Outputs, number: u64, batch: &Batch) {
    write_at(AckLevel::Written, outputs, number, batch);
}

fn flush(outputs: &mut Outputs) {
    if outputs.has_work() {
        outputs.flush(true).unwrap();
    }
}

/// Files that cannot be written are tried again now.
fn retry(outputs: &mut Outputs) {
    outputs.outputs.iter_mut().for_each(|output| output.write_retry = None);
    flush(outputs);
}

/// The batches that are held, unsynced and failed.
fn reported(outputs: &mut Outputs) -> [Vec<u64>; 3] {
    let Unwritten { held, unsynced, failed, .. } = outputs.take_unwritten();
    [held.into_keys().collect(), unsynced.into_iter().collect(), failed.into_keys().collect()]
}

const NOTHING: [Vec<u64>; 3] = [Vec::new(), Vec::new(), Vec::new()];

/// Another process writes this file as long as the value lives.
fn taken(path: &Path) -> LockedFile {
    lock(OpenOptions::new().create(true).append(true).open(path).unwrap()).unwrap()
}

/// The names of the events in the files of a kind, finished ones too, sorted.
fn names(directory: &Path, kind: &str) -> Vec<String> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(kind));
    let text: String = paths.map(|path| fs::read_to_string(path).unwrap()).collect();
    let name = |line: &str| line.split("\"name\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let mut names: Vec<_> = text.lines().map(name).collect();
    names.sort();
    names
}

#[test]
fn a_kill_takes_nothing_back_that_was_delivered_while_a_message_waits_for_another_file() {
    let directory = tempfile::tempdir().unwrap();
    let waiting = batch(Some(1), &["a", "b"], &["c"]);
    let mut first = sink(directory.path());
    let other_process = taken(&directory.path().join("loss.log"));
    write(&mut first, 1, &waiting);
    assert_eq!(reported(&mut first), [vec![1], vec![], vec![]]);
    write(&mut first, 2, &batch(None, &["d"], &[]));
    assert_eq!(reported(&mut first), [vec![1], vec![], vec![]], "the other one is answered");
    drop((first, other_process));
    let mut second = sink(directory.path());
    write(&mut second, 1, &waiting);
    assert_eq!(reported(&mut second), NOTHING);
    assert_eq!(
        (names(directory.path(), "log"), names(directory.path(), "loss")),
        (vec!["a".into(), "b".into(), "d".into()], vec!["c".into()])
    );
    assert_eq!(second.status().totals().repeats, 2);
    drop(second);
    let mut third = sink(directory.path());
    write(&mut third, 1, &waiting);
    assert_eq!((names(directory.path(), "log").len(), names(directory.path(), "loss").len()), (3, 1), "it is known");
}

/// A sink that has written "x" and, of a message of five logs, two; it cannot write the others as long as the file lives.
fn with_a_part_in_part(directory: &Path, part: &Batch) -> (Outputs, LockedFile) {
    let mut outputs = sink(directory);
    outputs.context.options.rotate_records = 3;
    outputs.context.disk.sync_directory = faults::sync_directory;
    write(&mut outputs, 1, &batch(None, &["x"], &[]));
    // The file is finished in the middle of the part, and the name of the finished one cannot be forced to the disk.
    faults::fail_syncs(1);
    write(&mut outputs, 2, part);
    let other_process = taken(&directory.join("log.log"));
    assert_eq!(outputs.take_unwritten().held, BTreeMap::from([(2, 3)]));
    (outputs, other_process)
}

#[test]
fn a_message_that_waits_in_the_middle_of_a_file_is_there_once_although_others_are_completed_before_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let waiting = batch(Some(1), &["a", "b", "c", "d", "e"], &[]);
    let other = batch(Some(2), &[], &["y"]);
    let (mut first, other_process) = with_a_part_in_part(directory.path(), &waiting);
    write(&mut first, 3, &other);
    assert_eq!(reported(&mut first), [vec![2], vec![], vec![]]);
    drop((first, other_process));
    let mut second = sink(directory.path());
    write(&mut second, 1, &other);
    write(&mut second, 2, &waiting);
    assert_eq!(reported(&mut second), NOTHING);
    assert_eq!(names(directory.path(), "log"), ["a", "b", "c", "d", "e", "x"]);
    assert_eq!(names(directory.path(), "loss"), ["y"]);
}

#[test]
fn if_other_events_are_chosen_than_before_a_kill_none_is_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let waiting = batch(Some(1), &["a", "b", "c", "d", "e"], &[]);
    drop(with_a_part_in_part(directory.path(), &waiting));
    let mut second = sink(directory.path());
    let mut chosen = Chosen::none_of(5);
    [0, 3, 4].into_iter().for_each(|index| chosen.add(index));
    second.take(Selection::new(&waiting, Kinds::ALL).chosen(Some(&chosen)).numbered(1));
    flush(&mut second);
    assert_eq!(names(directory.path(), "log"), ["a", "a", "b", "d", "e", "x"]);
}

#[test]
fn a_second_copy_of_a_message_that_waits_is_delivered_with_the_first_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let waiting = batch(Some(1), &["a"], &["b"]);
    let mut outputs = sink(directory.path());
    let other_process = taken(&directory.path().join("loss.log"));
    for number in 1..=3 {
        write(&mut outputs, number, &waiting);
    }
    assert_eq!(reported(&mut outputs), [vec![1, 2, 3], vec![], vec![]]);
    drop(other_process);
    retry(&mut outputs);
    assert_eq!(reported(&mut outputs), NOTHING);
    assert_eq!((names(directory.path(), "log"), names(directory.path(), "loss")), (vec!["a".into()], vec!["b".into()]));
    assert_eq!(outputs.status().totals().repeats, 4);
}

#[test]
fn a_second_copy_of_a_message_that_is_not_synced_fails_with_the_first() {
    let directory = tempfile::tempdir().unwrap();
    let message = batch(Some(1), &["a"], &[]);
    let mut outputs = sink(directory.path());
    outputs.context.disk.sync_data = faults::sync_data;
    for number in 1..=2 {
        write_at(AckLevel::Durable, &mut outputs, number, &message);
    }
    assert_eq!(reported(&mut outputs), [vec![], vec![1, 2], vec![]]);
    // Neither the file nor the one in its place can be forced to the disk.
    faults::fail_syncs(2);
    outputs.sync();
    assert_eq!(reported(&mut outputs), [vec![], vec![], vec![1, 2]]);
    write_at(AckLevel::Durable, &mut outputs, 3, &message);
    outputs.sync();
    assert_eq!(reported(&mut outputs), NOTHING);
    assert!(fs::read_to_string(directory.path().join("log.log")).unwrap().contains("\"a\""), "it is written again");
}

#[test]
fn a_second_copy_that_asks_for_it_waits_for_a_sync_if_the_first_did_not() {
    let directory = tempfile::tempdir().unwrap();
    let message = batch(Some(1), &["a"], &[]);
    let mut outputs = sink(directory.path());
    outputs.context.disk.sync_data = faults::sync_data;
    write(&mut outputs, 1, &message);
    assert_eq!(reported(&mut outputs), NOTHING);
    write(&mut outputs, 2, &message);
    assert_eq!(reported(&mut outputs), NOTHING, "it does not ask for it");
    write_at(AckLevel::Durable, &mut outputs, 3, &message);
    assert_eq!(reported(&mut outputs), [vec![], vec![3], vec![]]);
    let before = faults::syncs();
    outputs.sync();
    assert_eq!((faults::syncs() - before, reported(&mut outputs)), (1, NOTHING));
    write_at(AckLevel::Durable, &mut outputs, 4, &message);
    assert_eq!(reported(&mut outputs), NOTHING);
    // The same, and the first is lost with the sync that the copy asks for.
    let message = batch(Some(2), &["b"], &[]);
    write(&mut outputs, 5, &message);
    assert_eq!(reported(&mut outputs), NOTHING);
    write_at(AckLevel::Durable, &mut outputs, 6, &message);
    faults::fail_syncs(2);
    outputs.sync();
    let unwritten = outputs.take_unwritten();
    assert_eq!((unwritten.lost.len(), unwritten.failed), (1, BTreeMap::from([(6, 1)])));
    write(&mut outputs, 7, &message);
    assert!(fs::read_to_string(directory.path().join("log.log")).unwrap().contains("\"b\""), "it is written again");
}

#[test]
fn a_message_whose_events_are_all_dropped_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("loss.log");
    fs::create_dir(&path).unwrap();
    let dropped = batch(Some(1), &[], &["a"]);
    let mut outputs = sink(directory.path());
    write(&mut outputs, 1, &dropped);
    assert_eq!(reported(&mut outputs), [vec![], vec![], vec![1]]);
    // Its next try is not due for seconds.
    let source = io::Error::from(io::ErrorKind::IsADirectory);
    let fault = ActionError { action: "write".to_owned(), source };
    let retry = (0..8).fold(None, |before: Option<WriteRetry>, _| Some(WriteRetry::after(before.as_ref(), &fault)));
    let origin = Arc::new(Origin::new("datadog", "web".into(), "peer".into(), 1));
    let mut output = FileOutput::new(path.clone(), UnixNanos(0), origin);
    output.write_retry = retry;
    outputs.outputs = vec![output];
    write(&mut outputs, 2, &dropped);
    assert_eq!(reported(&mut outputs), [vec![], vec![], vec![2]]);
    write(&mut outputs, 3, &batch(Some(2), &["b"], &[]));
    assert_eq!(reported(&mut outputs), NOTHING);
    fs::remove_dir(&path).unwrap();
    outputs.outputs.iter_mut().for_each(|output| output.write_retry = None);
    write(&mut outputs, 4, &dropped);
    assert_eq!((reported(&mut outputs), names(directory.path(), "loss")), (NOTHING, vec!["a".into()]));
}

#[test]
fn a_message_that_a_tick_writes_and_cannot_sync_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let message = batch(Some(1), &["a"], &[]);
    let mut outputs = sink(directory.path());
    outputs.context.disk.sync_data = faults::sync_data;
    let other_process = taken(&directory.path().join("log.log"));
    write_at(AckLevel::Durable, &mut outputs, 1, &message);
    assert_eq!(reported(&mut outputs), [vec![1], vec![], vec![]]);
    drop(other_process);
    outputs.outputs[0].write_retry = None;
    faults::fail_syncs(2);
    outputs.tick(true).unwrap();
    assert_eq!(reported(&mut outputs), [vec![], vec![], vec![1]]);
    write_at(AckLevel::Durable, &mut outputs, 2, &message);
    assert_eq!(reported(&mut outputs), [vec![], vec![2], vec![]], "it is written again");
}

/// A sink that has appended the message, the second batch, and could not force the name of another file to the disk.
fn with_a_message_of_an_unsynced_directory(directory: &Path, message: &Batch) -> Outputs {
    let mut outputs = sink(directory);
    outputs.context.disk.sync_directory = faults::sync_directory;
    write(&mut outputs, 1, &batch(None, &["x"], &[]));
    outputs.context.disk.note_change(directory);
    faults::fail_syncs(1);
    write(&mut outputs, 2, message);
    assert_eq!(outputs.take_unwritten().held, BTreeMap::from([(2, 0)]));
    outputs
}

#[test]
fn a_flush_tries_a_directory_again_although_all_records_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = with_a_message_of_an_unsynced_directory(directory.path(), &batch(None, &["a"], &[]));
    assert!(outputs.has_work());
    retry(&mut outputs);
    assert_eq!((reported(&mut outputs), names(directory.path(), "log")), (NOTHING, vec!["a".into(), "x".into()]));
    assert!(!outputs.has_work());
}

#[test]
fn a_message_of_which_a_failed_sync_took_events_while_it_waited_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let message = batch(Some(1), &["a"], &[]);
    let mut outputs = with_a_message_of_an_unsynced_directory(directory.path(), &message);
    outputs.context.disk.sync_data = faults::sync_data;
    // Neither the file nor the directory of one in its place can be forced to the disk.
    outputs.context.disk.sync_directory = |_| Err(io::Error::from_raw_os_error(5));
    faults::fail_syncs(1);
    assert!(outputs.tick(true).is_err());
    assert_eq!(reported(&mut outputs), [vec![2], vec![], vec![2]]);
    outputs.context.disk.sync_directory = |_| Ok(());
    retry(&mut outputs);
    assert_eq!(reported(&mut outputs), NOTHING, "it has ended, and failed");
    write(&mut outputs, 3, &message);
    assert!(fs::read_to_string(directory.path().join("log.log")).unwrap().contains("\"a\""), "it is written again");
}

#[test]
fn a_start_forces_the_directory_of_what_a_killed_process_has_written_to_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let message = batch(Some(1), &["a"], &[]);
    drop(with_a_message_of_an_unsynced_directory(directory.path(), &message));
    let mut second = sink(directory.path());
    second.context.disk.sync_directory = faults::sync_directory;
    faults::fail_syncs(1);
    assert!(second.tick(true).is_err(), "nothing of it may be taken for durable");
    second.tick(true).unwrap();
    write_at(AckLevel::Durable, &mut second, 1, &message);
    assert_eq!((reported(&mut second), names(directory.path(), "log")), (NOTHING, vec!["a".into(), "x".into()]));
}

#[test]
fn a_long_log_is_made_shorter_by_a_sync_of_all_files_although_a_message_waits() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = sink(directory.path());
    let _other_process = taken(&directory.path().join("loss.log"));
    outputs.take(Selection::new(&batch(Some(1), &["a"], &["b"]), Kinds::ALL).numbered(1));
    let long = directory.path().join("x".repeat(4000));
    for inode in 0..2500 {
        outputs.context.messages.note(&long, (0, inode), 0).unwrap();
    }
    flush(&mut outputs);
    assert_eq!(reported(&mut outputs), [vec![1], vec![], vec![]]);
    assert!(outputs.outputs.iter().all(|output| output.live.as_ref().is_none_or(|live| !live.is_dirty())));
    let log = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap());
    let log = log.filter(|entry| entry.file_name().to_string_lossy().starts_with(".tributary-messages-"));
    assert_eq!(log.map(|entry| entry.metadata().unwrap().len() < 1000).collect::<Vec<_>>(), [true]);
}
