//! What the network, the server and its rules do to uploads.

use std::fs;

use tributary::sink::parquet::{Options, Parquet};
use tributary::sink::{Kinds, Selection, Sink as _};

use super::proxy::Fault;
use super::server::BUCKET;
use super::{KEY, Store, batches, ticked_until, until_fault, uploads, with_upload};
use crate::live;
use crate::parquet::{archived, assert_same, files, take, write};

#[tokio::test]
async fn an_upload_that_is_cut_off_counts_for_nothing_and_is_repeated() {
    for part_bytes in [8 << 20, 4096] {
        let Some(mut store) = Store::start() else { return };
        let directory = tempfile::tempdir().unwrap();
        let options = with_upload(store.options(directory.path()), |upload| upload.part_bytes = part_bytes);
        store.proxy.set(Fault::CutPut(2500));
        write(Options { upload: None, ..options.clone() }, &batches()).await;
        let here = files(directory.path(), ".parquet").len();
        let mut sink = Parquet::new(options).unwrap();
        sink.tick().await.unwrap();
        live::until("an attempt fails", || (uploads(&sink).failed >= 2).then_some(())).await;
        assert_eq!(files(directory.path(), ".parquet").len(), here, "nothing is removed");
        assert!(store.server.objects().is_empty());
        store.proxy.set(Fault::None);
        sink.close().await.unwrap();
        assert!(files(directory.path(), ".parquet").is_empty());
        store.assert_exactly_once(directory.path(), &batches());
    }
}

#[tokio::test]
async fn a_refusal_is_shown_in_the_words_of_the_server_and_files_wait_for_its_end() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = with_upload(store.options(directory.path()), |upload| upload.url.bucket = "missing".to_owned());
    let mut sink = Parquet::new(options.clone()).unwrap();
    take(&mut sink, &batches()).await;
    sink.close().await.unwrap();
    assert!(uploads(&sink).fault.unwrap().contains("NoSuchBucket"), "{:?}", uploads(&sink));
    let mut sink = Parquet::new(store.options(directory.path())).unwrap();
    store.server.ask("refuse");
    sink.tick().await.unwrap();
    let fault = until_fault(&sink, "InvalidAccessKeyId").await;
    assert!(fault.contains("does not exist in our records") && !fault.contains(KEY), "{fault}");
    assert_same(&archived(directory.path()), &batches(), "everything is here");
    assert!(store.server.objects().is_empty());
    store.server.ask("accept");
    live::until("all files are uploaded", || files(directory.path(), ".parquet").is_empty().then_some(())).await;
    store.assert_exactly_once(directory.path(), &batches());
    sink.close().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_stopped_and_started_again_gets_all_files() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let mut sink = Parquet::new(store.options(directory.path())).unwrap();
    let all = batches();
    let (first, second) = all.split_at(all.len() / 2);
    take(&mut sink, first).await;
    sink.reopen();
    sink.tick().await.unwrap();
    live::until("a file is uploaded", || (uploads(&sink).uploaded > 0).then_some(())).await;
    store.server.ask("stop");
    take(&mut sink, second).await;
    sink.reopen();
    let mut sink = ticked_until(sink, |sink| uploads(sink).failed > 0).await;
    store.server.ask("start");
    sink.close().await.unwrap();
    // The last attempt may have been under way when the server came back.
    let mut sink = Parquet::new(store.options(directory.path())).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
    assert!(files(directory.path(), ".parquet").is_empty());
    store.assert_exactly_once(directory.path(), &all);
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_no_event() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    store.proxy.set(Fault::Stall);
    let mut sink = Parquet::new(Options { rotate_rows: 100, ..store.options(directory.path()) }).unwrap();
    let all = batches();
    for batch in &all {
        sink.write(Selection::new(batch, Kinds::ALL)).await.unwrap();
        sink.flush().await.unwrap();
        sink.tick().await.unwrap();
    }
    sink.reopen();
    // Everything is accepted, and files are finished, while the first upload waits.
    let sink = ticked_until(sink, |_| files(directory.path(), ".rows").is_empty()).await;
    assert_same(&archived(directory.path()), &all, "everything is here");
    assert_eq!((uploads(&sink).uploaded, uploads(&sink).failed), (0, 0));
    store.proxy.set(Fault::None);
    let mut sink = sink;
    sink.close().await.unwrap();
    assert!(files(directory.path(), ".parquet").is_empty());
    store.assert_exactly_once(directory.path(), &all);
}

#[tokio::test]
async fn a_sink_that_ends_during_an_upload_leaves_the_file_to_the_next_one() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    write(Options { upload: None, ..options.clone() }, &batches()).await;
    let here = files(directory.path(), ".parquet").len();
    store.proxy.set(Fault::StallAnswerOfPut);
    let mut sink = Parquet::new(options.clone()).unwrap();
    sink.tick().await.unwrap();
    live::until("an object is there", || (store.server.objects().len() == 1).then_some(())).await;
    // As after the grace period.
    drop(sink);
    assert_eq!(files(directory.path(), ".parquet").len(), here, "nothing is confirmed");
    store.proxy.set(Fault::None);
    let puts = store.proxy.puts();
    let mut sink = Parquet::new(options).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
    assert_eq!(uploads(&sink).uploaded, here as u64);
    assert_eq!(store.proxy.puts() - puts, here as u64 - 1, "the first is there already");
    store.assert_exactly_once(directory.path(), &batches());
}

#[tokio::test]
async fn an_object_of_another_file_keeps_its_name() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    write(Options { upload: None, ..options.clone() }, &batches()).await;
    // As another daemon with the same prefix would have used these names.
    let all = files(directory.path(), ".parquet");
    let (first, second) = (&all[0], all.last().unwrap());
    let (bytes, others) = (fs::read(first).unwrap(), fs::read(second).unwrap());
    fs::write(first, &others).unwrap();
    upload_all(options.clone()).await;
    fs::create_dir_all(first.parent().unwrap()).unwrap();
    fs::write(first, &bytes).unwrap();
    upload_all(options).await;
    let objects = store.server.objects();
    assert_eq!(objects.len(), all.len() + 1, "{objects:?}");
    let taken = format!("archive/{}", first.strip_prefix(directory.path()).unwrap().display());
    assert_eq!(objects[&taken], others.len() as u64);
    assert_eq!(objects[&taken.replace(".parquet", "-1.parquet")], bytes.len() as u64);
    assert_eq!(store.server.ask(&format!("parts {BUCKET}")), "0");
}

#[tokio::test]
async fn a_file_waits_while_its_journal_is_there() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = store.options(directory.path());
    write(Options { upload: None, ..options.clone() }, &batches()).await;
    let first = files(directory.path(), ".parquet").remove(0);
    // A directory is never converted, as a journal that cannot be read.
    let journal = directory.path().join(".journal").join(first.strip_prefix(directory.path()).unwrap());
    let journal = journal.with_extension("rows");
    fs::create_dir_all(&journal).unwrap();
    upload_all(options.clone()).await;
    assert_eq!(files(directory.path(), ".parquet"), [first]);
    fs::remove_dir(&journal).unwrap();
    upload_all(options).await;
    assert!(files(directory.path(), ".parquet").is_empty());
    store.assert_exactly_once(directory.path(), &batches());
}

async fn upload_all(options: Options) {
    let mut sink = Parquet::new(options).unwrap();
    sink.tick().await.unwrap();
    sink.close().await.unwrap();
}
