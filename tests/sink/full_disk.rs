//! The file sink on a disk that is full.

use std::time::Duration;

use crate::live::{until, within};
use crate::sink_file_support::{all_names, batch_of, files, flush_all, held, in_order, names, now, write_as};
use tokio_util::sync::CancellationToken;
use tributary::pipeline::options::QueueOptions;
use tributary::pipeline::{DeliveryOutcome, Sinks};
use tributary::sink::Sink;
use tributary::sink::file::{Compression, File, Fsync, Options};
use tributary_testing::small_disk::SmallDisk;

const DISK_BYTES: usize = 1 << 20;

#[tokio::test]
async fn a_full_disk_tears_no_record_and_every_record_is_written_once_there_is_space() {
    for fsync in Fsync::ALL {
        let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
        // Space for some of the records, but not for all.
        disk.occupy(DISK_BYTES - (40 << 10));
        let path = format!("{}/app.log", disk.path().display());
        let mut sink = File::new(Options { path, fsync, ..Options::default() }).unwrap();
        let expected = names(0..100, 700);
        for part in expected.chunks(10) {
            write_as(&mut sink, part, "web", now()).await.unwrap();
        }
        let message = held(&mut sink).await;
        assert!(message.contains("app.log: ") && message.contains("space"), "{message}");
        let before = all_names(disk.path());
        assert_eq!(before, expected[..before.len()]);
        // With fsync in every flush, a part that is not on the disk as a whole is removed as a whole.
        assert_eq!(before.is_empty(), fsync == Fsync::Always);
        held(&mut sink).await;
        assert_eq!(all_names(disk.path()), before);
        disk.release();
        flush_all(&mut sink).await;
        sink.tick().await.unwrap();
        assert_eq!(all_names(disk.path()), expected, "fsync {}", fsync.as_str());
    }
}

#[tokio::test]
async fn events_that_are_in_the_file_count_as_written_when_the_disk_stays_full_to_the_end() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    disk.occupy(DISK_BYTES - (40 << 10));
    let options = Options { path: format!("{}/app.log", disk.path().display()), ..Options::default() };
    let mut sinks = Sinks::new(CancellationToken::new());
    sinks.add("archive", QueueOptions::default(), move || Ok(File::new(options.clone()).unwrap()));
    let counters = sinks.counters()[0].clone();
    let (sender, mut workers) = sinks.start();
    // One batch; a part of it fits.
    let expected = names(0..100, 700);
    let batch = batch_of(&expected, "web", now());
    let delivery = tokio::spawn(async move { sender.deliver(batch).await });
    until("the disk is full", || counters.totals().is_retrying.then_some(())).await;
    within("the worker ends", workers.abort()).await;
    assert_eq!(within("the outcome", delivery).await.unwrap(), DeliveryOutcome::Failed, "it must be sent again");
    let written = all_names(disk.path());
    assert_eq!(written, expected[..written.len()]);
    assert!(!written.is_empty() && written.len() < 100);
    let totals = counters.totals();
    assert_eq!((totals.written, totals.failed), (written.len() as u64, 100 - written.len() as u64));
}

#[tokio::test]
async fn a_disk_too_full_to_compress_keeps_the_original() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    let path = format!("{}/app.log", disk.path().display());
    // It has passed at each tick.
    let interval = Duration::from_nanos(1);
    let gzip = Options { path, compression: Compression::Gzip, rotate_interval: interval, ..Options::default() };
    let mut sink = File::new(gzip).unwrap();
    write_as(&mut sink, &names(0..20, 700), "web", now()).await.unwrap();
    sink.flush().await.unwrap();
    disk.occupy_all(DISK_BYTES);
    sink.tick().await.unwrap();
    sink.wait_for_compression().await;
    assert_eq!(suffixes(&disk), ["log"]);
    assert_eq!(files(disk.path()).len(), 2, "no beginning of a compressed file is left");
    assert_eq!(all_names(disk.path()), names(0..20, 700));
    // It is compressed when the next file is finished.
    disk.release();
    write_as(&mut sink, &names(20..21, 700), "web", now()).await.unwrap();
    sink.flush().await.unwrap();
    sink.tick().await.unwrap();
    sink.wait_for_compression().await;
    assert_eq!(suffixes(&disk), ["gz", "gz"]);
    assert_eq!(all_names(disk.path()), names(0..21, 700));
}

fn suffixes(disk: &SmallDisk) -> Vec<String> {
    in_order(disk.path()).iter().map(|path| path.extension().unwrap().to_str().unwrap().to_owned()).collect()
}
