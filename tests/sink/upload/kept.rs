//! Files that are kept after their upload, and the limits of what is kept.

use std::fs;
use std::path::Path;

use tributary::event::{Batch, Kind};
use tributary::sink::Sink as _;
use tributary::sink::parquet::{Options, Parquet};

use super::proxy::Fault;
use super::{Store, batches, ticked_until, uploads, with_upload};
use crate::live;
use crate::parquet::{archived, assert_same, files, take, write};
use tributary_workloads as workloads;

#[tokio::test]
async fn files_that_are_kept_are_uploaded_once() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = with_upload(store.options(directory.path()), |upload| upload.delete_after = false);
    let mut sink = Parquet::new(options.clone()).unwrap();
    take(&mut sink, &batches()).await;
    sink.close().await.unwrap();
    let here = files(directory.path(), ".parquet").len() as u64;
    assert_eq!((uploads(&sink).uploaded, store.proxy.puts()), (here, here));
    assert_same(&archived(directory.path()), &batches(), "everything is here");
    store.assert_exactly_once(directory.path(), &batches());
    // The next process does not ask the server.
    store.server.ask("stop");
    let mut sink = Parquet::new(options.clone()).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
    assert_eq!((uploads(&sink).uploaded, uploads(&sink).failed), (0, 0));
    store.server.ask("start");
    // What it has forgotten is not sent again: the server has it.
    fs::remove_file(files(directory.path(), "").into_iter().find(|path| is_list(path)).unwrap()).unwrap();
    let mut sink = Parquet::new(options).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
    assert_eq!((uploads(&sink).uploaded, store.proxy.puts()), (here, here));
}

fn is_list(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with(".uploaded-")
}

#[tokio::test]
async fn a_file_that_the_limits_remove_before_its_upload_is_counted_and_one_that_is_sent_stays() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    let batch = [of_one_kind()];
    write(Options { upload: None, ..options.clone() }, &batch).await;
    let [first] = &files(directory.path(), ".parquet")[..] else { panic!("one file") };
    let keep_bytes = fs::metadata(first).unwrap().len() * 3 / 2;
    store.proxy.set(Fault::StallAnswerOfPut);
    let mut sink = Parquet::new(Options { keep_bytes, ..options }).unwrap();
    sink.tick().await.unwrap();
    live::until("the first file is sent", || (store.server.objects().len() == 1).then_some(())).await;
    // With two more files the limit is exceeded.
    for number in 2..=3 {
        take(&mut sink, &batch).await;
        sink.reopen();
        sink = ticked_until(sink, |sink| sink.files().unwrap().totals().finished == number - 1).await;
    }
    let mut sink = ticked_until(sink, |sink| uploads(sink).discarded > 0).await;
    assert!(first.exists());
    assert_eq!(files(directory.path(), ".parquet").len(), 2);
    store.proxy.set(Fault::None);
    sink.close().await.unwrap();
    assert_eq!((uploads(&sink).uploaded, uploads(&sink).discarded), (2, 1));
    assert_eq!(store.server.objects().len(), 2);
    assert_eq!(sink.files().unwrap().totals().removed, 1);
}

/// A batch that makes one file.
fn of_one_kind() -> Batch {
    let is_one = |batch: &Batch| Kind::ALL.iter().any(|kind| batch.count(*kind) == batch.len() as u64);
    workloads::all().into_iter().flat_map(|workload| workload.batches()).find(is_one).unwrap()
}
