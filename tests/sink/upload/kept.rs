//! Files that are kept after their upload, and the limits of what is kept.

use std::time::Duration;

use tributary::sink::Sink as _;
use tributary::sink::parquet::{Options, Parquet};

use super::proxy::Fault;
use super::{Store, batches, uploads, with_upload};
use crate::live;
use crate::parquet::{archived, assert_same, files, take, write};

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
    std::fs::remove_file(files(directory.path(), "").into_iter().find(|path| is_list(path)).unwrap()).unwrap();
    let mut sink = Parquet::new(options).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
    assert_eq!((uploads(&sink).uploaded, store.proxy.puts()), (here, here));
}

fn is_list(path: &std::path::Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with(".uploaded-")
}

#[tokio::test]
async fn a_file_that_the_limits_remove_before_its_upload_is_counted() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    write(Options { upload: None, ..options.clone() }, &batches()).await;
    let here = files(directory.path(), ".parquet").len() as u64;
    store.proxy.set(Fault::Stall);
    let mut sink = Parquet::new(Options { keep_time: Duration::from_millis(1), ..options }).unwrap();
    let all_but_one = |sink: &mut Parquet| (uploads(sink).discarded == here - 1).then_some(());
    let deadline = tokio::time::Instant::now() + live::PATIENCE;
    while all_but_one(&mut sink).is_none() {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", uploads(&sink));
        sink.tick().await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The file that is being uploaded stays until the server has it.
    assert_eq!(files(directory.path(), ".parquet").len(), 1);
    store.proxy.set(Fault::None);
    sink.close().await.unwrap();
    assert_eq!((uploads(&sink).uploaded, uploads(&sink).discarded), (1, here - 1));
    assert_eq!(store.server.objects().len(), 1);
    assert_eq!(sink.files().unwrap().totals().removed, here - 1);
}
