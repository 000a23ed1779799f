//! Tests of the files of a sink.

use super::super::disk::faults;
use super::super::options::{Compression, UNSYNCED_SOURCES_BYTES};
use super::*;
use std::sync::Arc;
use tributary_event::{BatchBuilder, Header, Origin, Position, Severity};
use tributary_sink::encode::LineFields;
use tributary_sink::{AckLevel, Kinds};

mod parts;

fn outputs(directory: &Path, fsync: Fsync) -> Outputs {
    let path = format!("{}/app.log", directory.display());
    let options = Options { path, fsync, fsync_interval: Duration::ZERO, ..Options::default() };
    let template = Template::parse(&options.path).unwrap();
    Outputs::new(options, template)
}

fn take_one(outputs: &mut Outputs) {
    take(outputs, "web", 0, AckLevel::Written);
}

/// Takes a batch of one event with this number.
fn take(outputs: &mut Outputs, listener: &str, number: u64, level: AckLevel) {
    let mut batch = BatchBuilder::new(Arc::new(Origin::new("datadog", listener.into(), "peer".into(), 1)));
    let name = batch.push_text("x").into();
    let header = Header { name, time: None, observed: wall_clock::now(), position: Position::default() };
    batch.event(header).log(Severity::Info, None);
    outputs.take(Selection::new(&batch.take(), Kinds::ALL).numbered(number).at_level(level));
}

/// Takes an event that another collector has received on a listener of its own.
fn take_stored(outputs: &mut Outputs, listener: &str, number: u64) {
    let origin = Origin::new("datadog", listener.into(), "peer".into(), 1).stored();
    let mut batch = BatchBuilder::new(Arc::new(origin));
    let name = batch.push_text("x").into();
    let header = Header { name, time: None, observed: wall_clock::now(), position: Position::default() };
    batch.event(header).log(Severity::Info, None);
    outputs.take(Selection::new(&batch.take(), Kinds::ALL).numbered(number));
}

#[test]
fn listeners_of_streams_have_so_many_files_and_the_rest_shares_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = format!("{}/{{listener}}/app.log", directory.path().display());
    let options = Options { path, max_listeners: 5, ..Options::default() };
    let template = Template::parse(&options.path).unwrap();
    let mut outputs = Outputs::new(options, template);
    for number in 0..300 {
        take_stored(&mut outputs, &format!("edge-{number}"), number);
        outputs.flush(true).unwrap();
    }
    // Names of our own configuration are not counted.
    (0..10).for_each(|number| take(&mut outputs, &format!("own-{number}"), 1000 + number, AckLevel::Written));
    take_stored(&mut outputs, "edge-3", 2000);
    outputs.flush(true).unwrap();
    let lines = |listener: &str| {
        let path = directory.path().join(listener).join("app.log");
        std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
    };
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 5 + 1 + 10);
    assert_eq!((lines("edge-3"), lines("edge-4"), lines("edge-5"), lines("others"), lines("own-9")), (2, 1, 0, 295, 1));
    assert_eq!(outputs.status().totals().of_others, 295);
}

fn is_dirty(outputs: &Outputs) -> bool {
    outputs.outputs[0].live.as_ref().unwrap().is_dirty()
}

#[test]
fn written_records_reach_the_disk_with_the_flush_with_the_tick_or_when_the_system_decides() {
    for (fsync, after_flush, after_tick) in
        [(Fsync::Always, false, false), (Fsync::Interval, true, false), (Fsync::Never, true, true)]
    {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = outputs(directory.path(), fsync);
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        assert_eq!(is_dirty(&outputs), after_flush, "{fsync:?}");
        outputs.tick(true).unwrap();
        assert_eq!(is_dirty(&outputs), after_tick, "{fsync:?}");
    }
}

#[test]
fn finished_files_wait_while_a_compression_is_running() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = outputs(directory.path(), Fsync::Never);
    outputs.context.options.compression = Compression::Lz4;
    outputs.context.options.rotate_bytes = 1;
    for _ in 0..3 {
        take_one(&mut outputs);
    }
    outputs.flush(false).unwrap();
    assert!(outputs.take_to_compress().is_empty());
    outputs.tick(true).unwrap();
    assert_eq!(outputs.take_to_compress().len(), 2);
    outputs.tick(true).unwrap();
    assert!(outputs.take_to_compress().is_empty(), "each is returned once");
}

#[test]
fn a_new_date_starts_a_search_for_closed_files_of_past_dates() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = outputs(directory.path(), Fsync::Never);
    outputs.template = Template::parse(&format!("{}/%Y/app.log", directory.path().display())).unwrap();
    outputs.context.options.compression = Compression::Gzip;
    outputs.tick(true).unwrap();
    let old = directory.path().join("2001");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("app.log"), "x\n").unwrap();
    outputs.tick(true).unwrap();
    assert!(outputs.take_to_compress().is_empty(), "no search while the date stays the same");
    outputs.date = Some(old.join("app.log"));
    outputs.tick(true).unwrap();
    assert_eq!(outputs.take_to_compress().len(), 1);
}

/// Outputs whose next `count` syncs fail.
fn with_failing_syncs(directory: &Path, fsync: Fsync, count: u32) -> Outputs {
    let mut outputs = outputs(directory, fsync);
    outputs.context.disk.sync_data = faults::sync_data;
    outputs.context.disk.sync_directory = faults::sync_directory;
    faults::fail_syncs(count);
    outputs
}

fn records_in(directory: &Path) -> usize {
    std::fs::read_to_string(directory.join("app.log")).unwrap_or_default().lines().count()
}

/// The records of the live file and of the finished ones.
fn records_in_all(directory: &Path) -> (usize, Vec<usize>) {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let finished = files.filter(|path| !path.ends_with("app.log"));
    let lines = |path: PathBuf| std::fs::read_to_string(path).unwrap().lines().count();
    (records_in(directory), finished.map(lines).collect())
}

#[test]
fn after_a_failed_fsync_the_records_since_the_last_one_are_written_again_to_a_new_file() {
    for synced in [0, 2] {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        for _ in 0..synced {
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
            outputs.tick(true).unwrap();
        }
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        faults::fail_syncs(1);
        outputs.tick(true).unwrap();
        assert!(outputs.take_unwritten().is_empty(), "nothing is lost");
        assert!(!is_dirty(&outputs), "the new file is synced");
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        let finished = if synced > 0 { vec![synced] } else { vec![] };
        assert_eq!(records_in_all(directory.path()), (2, finished), "each is there once");
    }
}

/// The lines of the live file.
fn lines_in(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("app.log")).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// How many lines define a source, and how many events name one that a line before them defines.
fn defined_and_naming(lines: &[String]) -> (usize, usize) {
    let id = |line: &str| Some(line.split_once("\"source\":\"")?.1[..16].to_owned());
    let (mut defined, mut naming) = (Vec::new(), 0);
    for line in lines {
        match (line.starts_with("{\"source\":"), id(line)) {
            (true, Some(id)) => defined.push(id),
            (_, Some(id)) => naming += usize::from(defined.contains(&id)),
            (_, None) => {}
        }
    }
    (defined.len(), naming)
}

fn compact_outputs(directory: &Path, fsync: Fsync, failing_syncs: u32) -> Outputs {
    let mut outputs = with_failing_syncs(directory, fsync, failing_syncs);
    outputs.encoder = Encoder::new(outputs.options().format).with_fields(LineFields::Compact);
    outputs
}

#[test]
fn the_new_file_after_a_failed_fsync_defines_the_sources_of_its_records() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = compact_outputs(directory.path(), Fsync::Interval, 0);
    for listener in ["a", "b", "c"] {
        take(&mut outputs, listener, 0, AckLevel::Written);
    }
    outputs.flush(true).unwrap();
    outputs.tick(true).unwrap();
    assert_eq!(defined_and_naming(&lines_in(directory.path())), (3, 3));
    // Their sources are defined before the last good sync.
    for listener in ["a", "c", "d"] {
        take(&mut outputs, listener, 0, AckLevel::Written);
        outputs.flush(true).unwrap();
    }
    faults::fail_syncs(1);
    outputs.tick(true).unwrap();
    assert!(outputs.take_unwritten().is_empty(), "nothing is lost");
    let lines = lines_in(directory.path());
    assert_eq!(defined_and_naming(&lines).1, 3, "{lines:#?}");
    take(&mut outputs, "b", 0, AckLevel::Written);
    outputs.flush(true).unwrap();
    assert_eq!(defined_and_naming(&lines_in(directory.path())).1, 4);
}

#[test]
fn under_always_the_new_file_after_a_failed_fsync_stands_alone() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = compact_outputs(directory.path(), Fsync::Always, 0);
    take_one(&mut outputs);
    outputs.flush(true).unwrap();
    take_one(&mut outputs);
    faults::fail_syncs(1);
    outputs.flush(true).unwrap();
    outputs.outputs[0].write_retry = None;
    outputs.flush(true).unwrap();
    assert!(outputs.take_unwritten().is_empty());
    assert_eq!(defined_and_naming(&lines_in(directory.path())), (1, 1));
}

#[test]
fn a_file_is_synced_before_the_sources_that_wait_for_a_sync_are_too_many() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = compact_outputs(directory.path(), Fsync::Interval, 0);
    take_one(&mut outputs);
    outputs.flush(true).unwrap();
    let before = faults::syncs();
    // The name of a listener is a part of its sources.
    for number in 0..6 {
        let listener = format!("{number}{}", "x".repeat(100_000));
        take(&mut outputs, &listener, 0, AckLevel::Written);
        outputs.flush(true).unwrap();
        assert!(outputs.outputs[0].live.as_ref().unwrap().unsynced_sources_bytes() <= UNSYNCED_SOURCES_BYTES);
    }
    assert_eq!(defined_and_naming(&lines_in(directory.path())), (7, 7));
    assert_eq!(faults::syncs() - before, 2, "one after each three");
}

#[test]
fn definitions_whose_events_cannot_be_written_are_no_file_to_finish() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = compact_outputs(directory.path(), Fsync::Always, 0);
    outputs.context.options.rotate_bytes = 1;
    take_one(&mut outputs);
    outputs.context.disk.sync_data = |_| Err(io::Error::from_raw_os_error(28));
    outputs.flush(true).unwrap();
    assert_eq!(outputs.take_unwritten().held.len(), 1);
    outputs.context.disk.sync_data = faults::sync_data;
    outputs.outputs[0].write_retry = None;
    outputs.flush(true).unwrap();
    assert!(outputs.take_unwritten().is_empty());
    assert_eq!(records_in_all(directory.path()), (2, vec![]), "a definition and an event");
}

#[test]
fn under_always_the_records_of_a_failed_fsync_go_to_a_new_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = with_failing_syncs(directory.path(), Fsync::Always, 0);
    take_one(&mut outputs);
    outputs.flush(true).unwrap();
    take_one(&mut outputs);
    faults::fail_syncs(1);
    outputs.flush(true).unwrap();
    assert_eq!(outputs.take_unwritten().held.len(), 1);
    outputs.outputs[0].write_retry = None;
    outputs.flush(true).unwrap();
    assert!(outputs.take_unwritten().is_empty());
    assert_eq!(records_in_all(directory.path()), (1, vec![1]));
}

#[test]
fn records_that_a_failed_fsync_lost_are_reported_and_not_taken_for_synced() {
    for damage in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        take_one(&mut outputs);
        outputs.flush(true).unwrap();
        outputs.tick(true).unwrap();
        for _ in 0..2 {
            take_one(&mut outputs);
            outputs.flush(true).unwrap();
        }
        if damage {
            zero_the_end(directory.path());
        }
        // Without damage the new file cannot be forced to the disk either.
        faults::fail_syncs(if damage { 1 } else { 2 });
        outputs.tick(true).unwrap();
        let unwritten = outputs.take_unwritten();
        assert_eq!(unwritten.lost.iter().map(|(_, events)| *events).collect::<Vec<_>>(), [2]);
        let fault = unwritten.lost_fault.unwrap().to_string();
        assert!(fault.starts_with("cannot sync ") && fault.contains("app.log"), "{fault}");
        outputs.tick(true).unwrap();
        assert!(outputs.take_unwritten().is_empty(), "each loss is reported once");
    }
}

/// The system drops the last pages and reads zeros from the disk.
fn zero_the_end(directory: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(directory.join("app.log")).unwrap();
    let len = file.metadata().unwrap().len();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 100], len - 100).unwrap();
}

#[test]
fn a_batch_that_asks_for_it_waits_for_a_sync_of_its_file_and_of_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
    outputs.template = Template::parse(&format!("{}/{{listener}}.log", directory.path().display())).unwrap();
    take(&mut outputs, "agents", 1, AckLevel::Durable);
    take(&mut outputs, "agents", 2, AckLevel::Durable);
    take(&mut outputs, "stream", 3, AckLevel::Written);
    outputs.flush(true).unwrap();
    let unwritten = outputs.take_unwritten();
    assert_eq!((unwritten.unsynced.into_iter().collect(), unwritten.held.len()), (vec![1, 2], 0));
    let before = faults::syncs();
    outputs.sync();
    assert_eq!(faults::syncs() - before, 1, "both batches share it");
    assert!(outputs.take_unwritten().is_empty());
    let is_dirty = |output: &FileOutput| output.live.as_ref().unwrap().is_dirty();
    assert_eq!(outputs.outputs.iter().map(is_dirty).collect::<Vec<_>>(), [false, true]);
    outputs.sync();
    assert_eq!(faults::syncs() - before, 1, "no request waits");
}

#[test]
fn a_file_that_is_finished_or_closed_is_synced_for_the_batches_that_ask_for_it() {
    for rotate_bytes in [1, 0] {
        let directory = tempfile::tempdir().unwrap();
        let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
        outputs.context.options.rotate_bytes = rotate_bytes;
        for number in 1..=2 {
            take(&mut outputs, "web", number, AckLevel::Durable);
            outputs.flush(true).unwrap();
        }
        let unsynced: Vec<_> = outputs.take_unwritten().unsynced.into_iter().collect();
        assert_eq!(unsynced, if rotate_bytes == 1 { vec![2] } else { vec![1, 2] });
        outputs.reopen();
        outputs.tick(true).unwrap();
        assert!(outputs.take_unwritten().is_empty());
    }
}

#[test]
fn the_names_of_files_and_directories_that_a_killed_process_has_left_are_synced_before_they_are_written() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("day")).unwrap();
    std::fs::write(directory.path().join("day/app.log"), "").unwrap();
    let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
    outputs.template = Template::parse(&format!("{}/day/app.log", directory.path().display())).unwrap();
    let before = faults::syncs();
    take(&mut outputs, "web", 1, AckLevel::Durable);
    outputs.flush(true).unwrap();
    assert_eq!(faults::syncs() - before, 2, "that of the file's directory, and of the one above");
    outputs.reopen();
    outputs.tick(true).unwrap();
    faults::fail_syncs(1);
    take(&mut outputs, "web", 2, AckLevel::Durable);
    outputs.flush(true).unwrap();
    assert_eq!(outputs.take_unwritten().held.into_iter().collect::<Vec<_>>(), [(2, 1)], "nothing is written");
}

#[test]
fn batches_that_cannot_be_made_durable_fail_and_events_that_were_written_before_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = with_failing_syncs(directory.path(), Fsync::Interval, 0);
    take(&mut outputs, "web", 1, AckLevel::Written);
    outputs.flush(true).unwrap();
    assert!(outputs.take_unwritten().is_empty(), "it is completed");
    take(&mut outputs, "web", 2, AckLevel::Durable);
    take(&mut outputs, "web", 3, AckLevel::Durable);
    outputs.flush(true).unwrap();
    zero_the_end(directory.path());
    faults::fail_syncs(1);
    outputs.sync();
    let unwritten = outputs.take_unwritten();
    assert_eq!(unwritten.failed.into_iter().collect::<Vec<_>>(), [(2, 1), (3, 1)]);
    assert_eq!(unwritten.lost.iter().map(|(_, events)| *events).sum::<u64>(), 1);
    assert!(unwritten.unsynced.is_empty() && unwritten.failed_fault.is_some() && unwritten.lost_fault.is_some());
    take(&mut outputs, "web", 4, AckLevel::Durable);
    outputs.flush(true).unwrap();
    outputs.sync();
    assert!(outputs.take_unwritten().is_empty(), "the next ones are durable");
}

#[test]
fn a_failed_sync_of_a_directory_is_retried_before_anything_counts_as_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut outputs = with_failing_syncs(directory.path(), Fsync::Always, 1);
    let template = format!("{}/a/b/app.log", directory.path().display());
    outputs.template = Template::parse(&template).unwrap();
    take_one(&mut outputs);
    outputs.flush(true).unwrap();
    assert_eq!(outputs.take_unwritten().held.len(), 1, "the directory is not on the disk");
    // The file exists now, but its directory has not been synced: the next try must not forget that.
    faults::fail_syncs(1);
    outputs.outputs[0].write_retry = None;
    outputs.flush(true).unwrap();
    assert_eq!(outputs.take_unwritten().held.len(), 1, "the directory is not on the disk");
    outputs.outputs[0].write_retry = None;
    outputs.flush(true).unwrap();
    assert!(outputs.take_unwritten().is_empty());
    assert_eq!(records_in(&directory.path().join("a/b")), 1);
}
