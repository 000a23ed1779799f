//! The journal: a kill loses nothing that was durable, repeats nothing, and its damage is set aside. What is kept of finished
//! files.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use tributary::event::{Batch, Kind};
use tributary::sink::parquet::{Options, Parquet};
use tributary::sink::{Kinds, Selection, Sink};

use super::{archived, assert_same, files, options, take, write};
use crate::live::until_async;
use tributary_workloads as workloads;

/// Some batches of every protocol.
fn batches() -> Vec<Batch> {
    workloads::all().into_iter().flat_map(|workload| workload.batches().into_iter().take(2)).collect()
}

/// Two batches that make one file each.
fn of_one_kind() -> [Batch; 2] {
    let is_one = |batch: &Batch| Kind::ALL.iter().any(|kind| batch.count(*kind) == batch.len() as u64);
    let mut found = workloads::all().into_iter().flat_map(|workload| workload.batches()).filter(is_one);
    [found.next().unwrap(), found.next().unwrap()]
}

/// A sink that is dropped as a killed process leaves it: nothing is closed.
async fn killed(directory: &Path, batches: &[Batch]) {
    let mut sink = Parquet::new(options(directory)).unwrap();
    take(&mut sink, batches).await;
}

/// Starts a sink on what another has left, and stops it.
async fn restarted(directory: &Path) {
    let mut sink = Parquet::new(options(directory)).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
}

#[tokio::test]
async fn the_rows_of_a_killed_process_are_in_files_after_the_restart_once() {
    let directory = tempfile::tempdir().unwrap();
    killed(directory.path(), &batches()).await;
    assert!(archived(directory.path()).is_empty());
    assert!(!files(directory.path(), ".rows").is_empty());
    restarted(directory.path()).await;
    assert_same(&archived(directory.path()), &batches(), "after the restart");
    assert!(files(directory.path(), ".rows").is_empty());
}

#[tokio::test]
async fn a_journal_that_a_killed_process_could_not_remove_is_not_written_again() {
    let directory = tempfile::tempdir().unwrap();
    killed(directory.path(), &batches()).await;
    // The first start gives the journals the names of finished ones, and cannot convert them.
    let journals: Vec<_> = files(directory.path(), ".rows");
    restarted(directory.path()).await;
    let archive = files(directory.path(), ".parquet");
    assert_eq!(archive.len(), journals.len());
    // As if the process had been killed between the rename of the file and the removal of its journal.
    let again = tempfile::tempdir().unwrap();
    killed(again.path(), &batches()).await;
    for live in files(again.path(), ".rows") {
        let stem = live.file_stem().unwrap().to_str().unwrap().to_owned();
        let name =
            |path: &&std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{stem}."));
        let finished = archive.iter().find(name).unwrap().with_extension("rows");
        let place = directory.path().join(".journal").join(finished.strip_prefix(directory.path()).unwrap());
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(&live, &place).unwrap();
    }
    assert_eq!(files(directory.path(), ".rows").len(), journals.len());
    restarted(directory.path()).await;
    assert_same(&archived(directory.path()), &batches(), "once");
    assert!(files(directory.path(), ".rows").is_empty());
}

#[tokio::test]
async fn other_rows_under_the_name_of_a_file_get_another_name() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = of_one_kind();
    write(options(directory.path()), &[first]).await;
    let file = files(directory.path(), ".parquet").pop().unwrap();
    let again = tempfile::tempdir().unwrap();
    killed(again.path(), &[second]).await;
    let live = files(again.path(), ".rows").pop().unwrap();
    let place = directory.path().join(".journal").join(file.strip_prefix(directory.path()).unwrap());
    fs::copy(&live, place.with_extension("rows")).unwrap();
    restarted(directory.path()).await;
    assert_eq!(files(directory.path(), ".parquet").len(), 2);
    assert!(files(directory.path(), ".rows").is_empty());
    assert_same(&archived(directory.path()), &of_one_kind(), "both");
}

#[tokio::test]
async fn rows_whose_numbered_name_is_taken_get_the_next_number_which_limits_and_uploads_know() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = of_one_kind();
    write(options(directory.path()), &[first]).await;
    let file = files(directory.path(), ".parquet").pop().unwrap();
    let numbered = |file: &Path, number: u32| {
        let stem = file.file_stem().unwrap().to_str().unwrap();
        file.with_file_name(format!("{stem}-{number}.parquet"))
    };
    fs::rename(&file, numbered(&file, 2)).unwrap();
    let again = tempfile::tempdir().unwrap();
    killed(again.path(), &[second]).await;
    let live = files(again.path(), ".rows").pop().unwrap();
    let place = directory.path().join(".journal").join(numbered(&file, 2).strip_prefix(directory.path()).unwrap());
    fs::copy(&live, place.with_extension("rows")).unwrap();
    restarted(directory.path()).await;
    assert_eq!(files(directory.path(), ".parquet"), [numbered(&file, 2), numbered(&file, 3)]);
    assert_same(&archived(directory.path()), &of_one_kind(), "both");
}

#[tokio::test]
async fn a_torn_row_is_cut_off_and_a_damaged_one_is_set_aside() {
    let directory = tempfile::tempdir().unwrap();
    let batches = [workloads::all().remove(0).batches().remove(0)];
    killed(directory.path(), &batches).await;
    let journal = files(directory.path(), ".rows");
    let mut file = OpenOptions::new().append(true).open(&journal[0]).unwrap();
    file.write_all(b"Rtorn").unwrap();
    restarted(directory.path()).await;
    assert_same(&archived(directory.path()), &batches, "torn");
    assert!(files(directory.path(), ".damaged").is_empty());

    let directory = tempfile::tempdir().unwrap();
    killed(directory.path(), &batches).await;
    let journal = files(directory.path(), ".rows");
    let mut bytes = fs::read(&journal[0]).unwrap();
    bytes[10] ^= 1;
    fs::write(&journal[0], bytes).unwrap();
    restarted(directory.path()).await;
    let rows = |batches: &[Batch]| batches.iter().map(Batch::len).sum::<usize>();
    assert_eq!(rows(&archived(directory.path())), rows(&batches) - 1);
    assert_eq!(files(directory.path(), ".damaged").len(), 1, "it is kept");
}

#[tokio::test]
async fn files_are_finished_by_their_rows_and_are_whole_whenever_they_are_seen() {
    let directory = tempfile::tempdir().unwrap();
    let batches = workloads::all().remove(0).batches();
    let mut sink = Parquet::new(Options { rotate_rows: 1000, ..options(directory.path()) }).unwrap();
    for batch in &batches[..20.min(batches.len())] {
        sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
        sink.flush().await.unwrap();
        sink.tick().await.unwrap();
        // Reading fails if one is not whole.
        let _ = archived(directory.path());
    }
    sink.close().await.unwrap();
    let totals = sink.files().unwrap().totals();
    let found = files(directory.path(), ".parquet");
    assert_eq!(totals.finished, found.len() as u64);
    assert_eq!(totals.bytes, found.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>());
    for path in &found {
        assert!(super::read(path).iter().map(Batch::len).sum::<usize>() <= 1000);
    }
    assert!(found.len() > 1);
    assert_same(&archived(directory.path()), &batches[..20.min(batches.len())], "all files");
}

#[tokio::test]
async fn files_that_are_written_at_once_have_each_event_once() {
    let directory = tempfile::tempdir().unwrap();
    let batches = batches();
    killed(directory.path(), &batches).await;
    // The files of both sinks of a series have equal names but for their times and numbers.
    write(Options { conversions: Some(4), rotate_rows: 300, ..options(directory.path()) }, &batches).await;
    let all: Vec<&Batch> = batches.iter().chain(&batches).collect();
    let copies: Vec<Batch> = all.into_iter().map(|batch| batch.copy_of(|_| true)).collect();
    assert_same(&archived(directory.path()), &copies, "all files");
    assert!(files(directory.path(), ".parquet").len() > 8);
    assert!(files(directory.path(), ".rows").is_empty() && files(directory.path(), ".tmp").is_empty());
}

#[tokio::test]
async fn finished_files_beyond_the_limits_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let [batch, _] = of_one_kind();
    write(options(directory.path()), &[batch]).await;
    assert_eq!(files(directory.path(), ".parquet").len(), 1);
    let mut sink = Parquet::new(Options { keep_time: Duration::from_nanos(1), ..options(directory.path()) }).unwrap();
    until_async("the file is removed", async || {
        sink.tick().await.unwrap();
        files(directory.path(), ".parquet").is_empty().then_some(())
    })
    .await;
    assert_eq!(sink.files().unwrap().totals().removed, 1);
    for _ in 0..3 {
        let [batch, _] = of_one_kind();
        write(options(directory.path()), &[batch]).await;
    }
    let before = files(directory.path(), ".parquet");
    assert_eq!(before.len(), 3);
    let mut sink = Parquet::new(Options { keep_files: 2, ..options(directory.path()) }).unwrap();
    sink.tick().await.unwrap();
    assert_eq!(files(directory.path(), ".parquet"), before[1..]);
}
