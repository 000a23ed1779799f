//! The file sink on real disks: rotation, compression, retention, torn tails, and files that vanish.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use crate::live::until_async;
use crate::sink_file_support::{
    DAY, LEAP_DAY, all_names, batch_of, files, flush, flush_all, held, in_order, names, names_in, now,
    open_files_below, options, unpacked, write, write_as,
};
use proptest::prelude::*;
use tributary::event::{BatchBuilder, Header, Loss, Origin, Position, Reason, UnixNanos, semconv};
use tributary::sink::file::{Compression, File, Fsync, Options};
use tributary::sink::{Kinds, Selection, Sink};

#[tokio::test]
async fn nothing_is_on_disk_before_the_first_event_and_the_template_names_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(options(&directory, "events/%Y-%m-%d/{protocol}-{listener}.ndjson")).unwrap();
    write_as(&mut sink, &[], "web", LEAP_DAY).await.unwrap();
    sink.flush().await.unwrap();
    sink.tick().await.unwrap();
    assert!(files(directory.path()).is_empty());
    assert!(!directory.path().join("events").exists());
    write_as(&mut sink, &names(0..2, 4), "web", LEAP_DAY).await.unwrap();
    write_as(&mut sink, &names(2..3, 4), "../up", LEAP_DAY + DAY).await.unwrap();
    sink.flush().await.unwrap();
    let files = files(directory.path());
    assert_eq!(names_in(&files["events/2024-02-29/datadog-web.ndjson"]), names(0..2, 4));
    assert_eq!(names_in(&files["events/2024-03-01/datadog-___up.ndjson"]), names(2..3, 4));
    assert_eq!(files.len(), 2);
}

#[test]
fn options_that_cannot_work_are_refused() {
    assert_eq!(Options::default().validate(), Ok(()));
    let wrong = Options { path: "events/{host}.ndjson".to_owned(), ..Options::default() };
    assert!(wrong.validate().unwrap_err().contains("`{host}`"));
    assert_eq!(File::new(wrong.clone()).unwrap_err(), wrong.validate().unwrap_err());
}

#[tokio::test]
async fn a_new_sink_appends_to_the_old_ones_file() {
    let directory = tempfile::tempdir().unwrap();
    for range in [0..3, 3..5] {
        let mut sink = File::new(options(&directory, "app.log")).unwrap();
        write(&mut sink, &names(range, 5)).await;
    }
    assert_eq!(names_in(&fs::read(directory.path().join("app.log")).unwrap()), names(0..5, 5));
}

#[tokio::test]
async fn a_record_torn_by_a_crash_is_cut_off_before_the_next_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.log");
    fs::write(&path, "{\"time\":null,\"name\":\"whole\"}\n{\"time\":null,\"na").unwrap();
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    write(&mut sink, &["next".to_owned()]).await;
    assert_eq!(names_in(&fs::read(path).unwrap()), ["whole", "next"]);
}

#[tokio::test]
async fn at_the_start_torn_records_are_cut_off_in_every_unfinished_file_of_the_template() {
    for compression in [Compression::None, Compression::Gzip] {
        let directory = tempfile::tempdir().unwrap();
        let record = "{\"time\":null,\"name\":\"whole\"}\n";
        let torn = format!("{record}{{\"time\":null,\"na");
        let at = |name: &str| directory.path().join(name);
        let today = today();
        for date in ["2001-02-03", "2024-02-29", &today] {
            fs::create_dir(at(date)).unwrap();
            fs::write(at(&format!("{date}/a.log")), &torn).unwrap();
        }
        fs::create_dir(at("other")).unwrap();
        fs::write(at("other/a.log"), &torn).unwrap();
        fs::write(at("2024-02-29/notes"), &torn).unwrap();
        let locked = fs::File::open(at("2001-02-03/a.log")).unwrap();
        locked.lock().unwrap();
        let template = Options { compression, ..options(&directory, "%F/{listener}.log") };
        let mut sink = File::new(template).unwrap();
        // No event comes: the worker's first call is a tick.
        sink.tick().await.unwrap();
        sink.wait_for_compression().await;
        assert_eq!(fs::read_to_string(at(&format!("{today}/a.log"))).unwrap(), record);
        let past = files(&at("2024-02-29")).into_keys().find(|name| name.starts_with("a.")).unwrap();
        assert_eq!(names_in(&unpacked(&at("2024-02-29").join(past))), ["whole"]);
        assert_eq!(fs::read_to_string(at("2001-02-03/a.log")).unwrap(), torn, "another process is writing it");
        assert_eq!(fs::read_to_string(at("other/a.log")).unwrap(), torn, "the template cannot name it");
        assert_eq!(fs::read_to_string(at("2024-02-29/notes")).unwrap(), torn, "the template cannot name it");
    }
}

fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}

#[tokio::test]
async fn rotation_by_size_never_splits_a_record_nor_exceeds_the_size() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(Options { rotate_bytes: 2_000, ..options(&directory, "app.log") }).unwrap();
    let mut expected = names(0..50, 100);
    expected.push("x".repeat(5_000));
    expected.extend(names(50..100, 100));
    for part in expected.chunks(7) {
        write(&mut sink, part).await;
    }
    let files = in_order(directory.path());
    assert!(files.len() > 3);
    assert_eq!(all_names(directory.path()), expected);
    for path in files {
        let bytes = fs::read(path).unwrap();
        assert!(bytes.len() <= 2_000 || names_in(&bytes).len() == 1);
    }
}

#[tokio::test]
async fn rotation_by_time_finishes_a_file_once_and_never_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    // It has passed at each tick.
    let interval = Duration::from_nanos(1);
    let mut sink = File::new(Options { rotate_interval: interval, ..options(&directory, "app.log") }).unwrap();
    write(&mut sink, &names(0..3, 4)).await;
    for _ in 0..3 {
        sink.tick().await.unwrap();
    }
    assert!(!directory.path().join("app.log").exists());
    assert_eq!(in_order(directory.path()).len(), 1);
    write(&mut sink, &names(3..5, 4)).await;
    assert_eq!(in_order(directory.path()).len(), 2);
    assert_eq!(all_names(directory.path()), names(0..5, 4));
    let live = fs::OpenOptions::new().write(true).open(directory.path().join("app.log")).unwrap();
    live.set_len(0).unwrap();
    sink.tick().await.unwrap();
    assert!(directory.path().join("app.log").exists(), "another process emptied it, so there is nothing to finish");
}

#[tokio::test]
async fn finished_files_are_compressed_and_hold_the_same_records() {
    for (compression, suffix) in [(Compression::Gzip, "gz"), (Compression::Lz4, "lz4"), (Compression::Zstd, "zst")] {
        for fsync in Fsync::ALL {
            let directory = tempfile::tempdir().unwrap();
            let options = Options { compression, fsync, rotate_bytes: 3_000, ..options(&directory, "app.log") };
            let mut sink = File::new(options).unwrap();
            let expected = names(0..200, 80);
            for part in expected.chunks(20) {
                write(&mut sink, part).await;
            }
            sink.wait_for_compression().await;
            sink.tick().await.unwrap();
            sink.wait_for_compression().await;
            let (live, finished) =
                in_order(directory.path()).split_last().map(|(l, f)| (l.clone(), f.to_vec())).unwrap();
            assert_eq!(live.file_name().unwrap(), "app.log");
            assert!(finished.len() > 4);
            assert!(finished.iter().all(|path| path.extension().unwrap() == suffix), "{finished:?}");
            assert_eq!(all_names(directory.path()), expected);
        }
    }
}

#[tokio::test]
async fn a_file_whose_date_has_passed_is_finished_and_one_of_today_or_later_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let gzip = Options { compression: Compression::Gzip, ..options(&directory, "%Y/app.log") };
    let mut sink = File::new(gzip).unwrap();
    let later = now() + 20 * 366 * DAY;
    for (name, observed) in [("past", LEAP_DAY), ("later", later)] {
        write_as(&mut sink, &[name.to_owned()], "web", observed).await.unwrap();
    }
    sink.flush().await.unwrap();
    sink.tick().await.unwrap();
    sink.wait_for_compression().await;
    let past = in_order(&directory.path().join("2024"));
    assert_eq!(past.len(), 1);
    assert_eq!(past[0].extension().unwrap(), "gz");
    assert_eq!(names_in(&unpacked(&past[0])), ["past"]);
    assert_eq!(files(directory.path()).keys().filter(|name| name.ends_with("/app.log")).count(), 1);
    // For a late event the file is finished already: it goes to another one beside it.
    write_as(&mut sink, &["late".to_owned()], "web", LEAP_DAY).await.unwrap();
    sink.flush().await.unwrap();
    sink.tick().await.unwrap();
    sink.wait_for_compression().await;
    assert_eq!(all_names(&directory.path().join("2024")), ["past", "late"]);
}

#[tokio::test]
async fn without_compression_a_file_whose_date_has_passed_keeps_its_name_and_counts_as_finished() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(Options { keep_files: 2, ..options(&directory, "%Y-%m-%d/app.log") }).unwrap();
    for day in 0..4 {
        write_as(&mut sink, &[day.to_string()], "web", LEAP_DAY + day * DAY).await.unwrap();
        sink.flush().await.unwrap();
    }
    sink.tick().await.unwrap();
    let names: Vec<_> = files(directory.path()).into_keys().collect();
    assert_eq!(names, ["2024-03-02/app.log", "2024-03-03/app.log"]);
    assert!(!directory.path().join("2024-02-29").exists(), "directories that became empty go, too");
}

#[tokio::test]
async fn keep_files_counts_each_listener_and_protocol_by_itself_over_all_dates() {
    for template in ["%Y-%m-%d/{protocol}-{listener}.log", "{listener}/%Y-%m-%d.log"] {
        let directory = tempfile::tempdir().unwrap();
        let sizes = Options { rotate_bytes: 100, keep_files: 3, ..options(&directory, template) };
        let mut sink = File::new(sizes).unwrap();
        for day in 0..2 {
            write_as(&mut sink, &names(day..day + 1, 60), "quiet", LEAP_DAY + day as u64 * DAY).await.unwrap();
            sink.flush().await.unwrap();
        }
        for day in 0..20 {
            write_as(&mut sink, &names(day..day + 1, 60), "loud", LEAP_DAY + day as u64 * DAY).await.unwrap();
            sink.flush().await.unwrap();
        }
        sink.tick().await.unwrap();
        let files = files(directory.path());
        let of = |listener: &str| files.keys().filter(|name| name.contains(listener)).count();
        assert_eq!((of("quiet"), of("loud")), (2, 3), "{template}: {:?}", files.keys());
    }
}

#[tokio::test]
async fn by_default_no_file_is_ever_removed() {
    assert_eq!(Options::default().keep_files, 0);
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(Options { rotate_bytes: 100, ..options(&directory, "app.log") }).unwrap();
    let expected = names(0..100, 60);
    for name in &expected {
        write(&mut sink, std::slice::from_ref(name)).await;
    }
    assert_eq!(all_names(directory.path()), expected);
}

#[tokio::test]
async fn keep_bytes_limits_the_finished_files_of_each_listener_and_counts_what_it_removes() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = Options { rotate_bytes: 400, keep_bytes: 1_500, ..options(&directory, "{listener}.log") };
    let mut sink = File::new(sizes).unwrap();
    for name in names(0..20, 60) {
        write_as(&mut sink, std::slice::from_ref(&name), "loud", now()).await.unwrap();
        sink.flush().await.unwrap();
    }
    write_as(&mut sink, &names(0..1, 60), "quiet", now()).await.unwrap();
    sink.flush().await.unwrap();
    sink.tick().await.unwrap();
    let files = files(directory.path());
    let finished: Vec<usize> =
        files.iter().filter(|(name, _)| name.starts_with("loud.2")).map(|(_, bytes)| bytes.len()).collect();
    let (kept, all) = (finished.iter().sum::<usize>(), files.values().map(Vec::len).sum::<usize>());
    assert!(kept <= 1_500 && kept + 400 > 1_500, "{kept} bytes are kept");
    assert!(files.contains_key("loud.log") && files.contains_key("quiet.log"), "{:?}", files.keys());
    let totals = sink.files().unwrap().totals();
    assert!(totals.removed > 0);
    assert_eq!(totals.finished, totals.removed + finished.len() as u64);
    assert_eq!(totals.bytes, totals.removed_bytes + all as u64);
}

#[tokio::test]
async fn keep_time_removes_files_by_the_time_in_their_name() {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("app.20210101T000000.000.log", "old"), ("app.29990101T000000.000.log.gz", "new")] {
        fs::write(directory.path().join(name), text).unwrap();
    }
    let keep = Options { keep_time: Duration::from_secs(3600), ..options(&directory, "app.log") };
    let mut sink = File::new(keep).unwrap();
    sink.tick().await.unwrap();
    assert_eq!(files(directory.path()).into_keys().collect::<Vec<_>>(), ["app.29990101T000000.000.log.gz"]);
}

#[tokio::test]
async fn keep_files_removes_the_oldest_of_its_own_and_no_other_file() {
    let directory = tempfile::tempdir().unwrap();
    let foreign = [
        "app.log.1",
        "app.log.bak",
        "app.20200101T000000.log",
        "app.20200101T000000.000.log.bak",
        "app.20200101T000000.000.txt",
        "other.20200101T000000.000.log",
        "sub/app.20200101T000000.000.log",
    ];
    fs::create_dir(directory.path().join("sub")).unwrap();
    for name in foreign {
        fs::write(directory.path().join(name), "mine\n").unwrap();
    }
    fs::write(directory.path().join("app.20200101T000000.000.log"), "old\n").unwrap();
    let sizes = Options { rotate_bytes: 100, keep_files: 3, ..options(&directory, "app.log") };
    let mut sink = File::new(sizes).unwrap();
    for name in names(0..10, 60) {
        write(&mut sink, &[name]).await;
    }
    let after = files(directory.path());
    for name in foreign {
        assert_eq!(after[name], b"mine\n", "{name}");
    }
    assert_eq!(after.len(), foreign.len() + 3 + 1);
    let ours: Vec<_> = after.iter().filter(|(name, _)| !foreign.contains(&name.as_str())).collect();
    let mut kept: Vec<_> = ours.into_iter().flat_map(|(_, bytes)| names_in(bytes)).collect();
    kept.sort();
    assert_eq!(kept, names(6..10, 60));
}

#[tokio::test]
async fn a_compression_that_a_crash_interrupted_is_completed_by_the_next_run() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("2024")).unwrap();
    let record = |name: &str| format!("{{\"time\":null,\"name\":\"{name}\"}}\n");
    fs::write(at("2024/app.20240101T000000.000.log"), record("finished")).unwrap();
    fs::write(at("2024/app.20240101T000000.000.log.gz.tmp"), "torn").unwrap();
    fs::write(at("2024/app.20240102T000000.000.log"), record("both")).unwrap();
    fs::write(at("2024/app.20240102T000000.000.log.gz"), "maybe torn").unwrap();
    fs::write(at("2024/app.log"), record("last of the year") + "{\"time\":nu").unwrap();
    fs::write(at("2024/notes.tmp"), "mine").unwrap();
    let gzip = Options { compression: Compression::Gzip, ..options(&directory, "%Y/app.log") };
    let mut sink = File::new(gzip).unwrap();
    write(&mut sink, &["new".to_owned()]).await;
    sink.wait_for_compression().await;
    assert_eq!(all_names(&at("2024")), ["finished", "both", "last of the year"]);
    let names: Vec<_> = files(&at("2024")).into_keys().collect();
    assert_eq!(names.iter().filter(|name| name.ends_with(".log.gz")).count(), 3, "{names:?}");
    assert_eq!(names.len(), 4);
    assert_eq!(fs::read(at("2024/notes.tmp")).unwrap(), b"mine");
}

#[tokio::test]
async fn a_compressed_file_beside_its_original_is_removed_so_that_no_event_exists_twice() {
    let directory = tempfile::tempdir().unwrap();
    let original = "app.20240102T000000.000.log";
    fs::write(directory.path().join(original), "{\"name\":\"old\"}\n").unwrap();
    fs::write(directory.path().join(format!("{original}.gz")), "whole or torn").unwrap();
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    write(&mut sink, &["new".to_owned()]).await;
    assert_eq!(files(directory.path()).into_keys().collect::<Vec<_>>(), [original, "app.log"]);
    assert_eq!(all_names(directory.path()), ["old", "new"]);
}

#[tokio::test]
async fn after_reopen_the_next_event_goes_to_a_new_file_at_the_path() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("app.log"), directory.path().join("moved"));
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    write(&mut sink, &names(0..1, 4)).await;
    fs::rename(&path, &moved).unwrap();
    sink.reopen();
    write(&mut sink, &names(1..2, 4)).await;
    assert_eq!(names_in(&fs::read(&moved).unwrap()), names(0..1, 4));
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(1..2, 4));
    // Without anything being moved the file is simply opened again.
    sink.reopen();
    sink.tick().await.unwrap();
    assert_eq!(open_files_below(directory.path()), 0);
    write(&mut sink, &names(2..3, 4)).await;
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(1..3, 4));
}

#[tokio::test]
async fn a_file_that_another_process_moves_removes_or_empties_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("deep/er/app.log"), directory.path().join("moved"));
    let sizes = Options { rotate_bytes: 1_000, ..options(&directory, "deep/er/app.log") };
    let mut sink = File::new(sizes).unwrap();
    write(&mut sink, &names(0..1, 4)).await;
    fs::rename(&path, &moved).unwrap();
    write(&mut sink, &names(1..2, 4)).await;
    assert_eq!(names_in(&fs::read(&moved).unwrap()), names(0..1, 4));
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(1..2, 4));
    fs::remove_dir_all(directory.path().join("deep")).unwrap();
    write(&mut sink, &names(2..3, 4)).await;
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(2..3, 4));
    // Removed while idle: the tick closes it.
    fs::remove_dir_all(directory.path().join("deep")).unwrap();
    sink.tick().await.unwrap();
    assert_eq!(open_files_below(directory.path()), 0);
    write(&mut sink, &names(3..4, 900)).await;
    // Emptied in place, as logrotate's copytruncate does: its length starts at zero again, so nothing is rotated.
    fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    write(&mut sink, &names(4..5, 900)).await;
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(4..5, 900));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

/// Writes one event of a listener in a batch of this number.
async fn write_numbered(sink: &mut File, name: &str, listener: &str, number: u64) {
    let batch = batch_of(&[name.to_owned()], listener, now());
    sink.write(Selection::new(&batch, Kinds::ALL).numbered(number)).await.unwrap();
}

/// A file that another process is writing, until the returned handle is dropped.
fn lock(path: &std::path::Path) -> fs::File {
    let file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.lock().unwrap();
    file
}

#[tokio::test]
async fn a_file_that_cannot_be_written_now_holds_its_own_events_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let locked = lock(&at("b.log"));
    let mut sink = File::new(options(&directory, "{listener}.log")).unwrap();
    for round in 0..3 {
        for (listener, number) in [("a", 1), ("b", 2), ("c", 3)] {
            write_numbered(&mut sink, &format!("{listener}{round}"), listener, number + 10 * round).await;
        }
        let unwritten = flush(&mut sink).await;
        assert_eq!(unwritten.held, (0..=round).map(|round| (2 + 10 * round, 1)).collect());
        assert!(unwritten.failed.is_empty(), "{unwritten:?}");
        if round == 0 {
            let fault = unwritten.held_fault.unwrap().to_string();
            assert!(fault.starts_with("cannot write ") && fault.contains("b.log: another process"), "{fault}");
        }
    }
    assert_eq!(names_in(&fs::read(at("a.log")).unwrap()), ["a0", "a1", "a2"]);
    assert_eq!(names_in(&fs::read(at("c.log")).unwrap()), ["c0", "c1", "c2"]);
    drop(locked);
    flush_all(&mut sink).await;
    assert_eq!(names_in(&fs::read(at("b.log")).unwrap()), ["b0", "b1", "b2"]);
}

#[tokio::test]
async fn the_tick_writes_what_is_held_when_no_further_event_comes() {
    let directory = tempfile::tempdir().unwrap();
    let locked = lock(&directory.path().join("app.log"));
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    write_as(&mut sink, &names(0..1, 4), "web", now()).await.unwrap();
    held(&mut sink).await;
    drop(locked);
    while !sink.unwritten().is_empty() {
        sink.tick().await.unwrap();
    }
    assert_eq!(all_names(directory.path()), names(0..1, 4));
}

#[tokio::test]
async fn events_for_a_path_that_cannot_be_a_file_fail_and_others_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A directory, a name that is too long, a file where a directory should be, a loop of links.
    fs::create_dir(at("b.log")).unwrap();
    let long = "n".repeat(300);
    fs::write(at("file"), "").unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    for (template, bad) in [
        ("{listener}.log", "b"),
        ("{listener}.log", long.as_str()),
        ("{listener}/x.log", "file"),
        ("{listener}", "loop"),
    ] {
        let mut sink = File::new(options(&directory, template)).unwrap();
        write_numbered(&mut sink, "good", "good", 1).await;
        write_numbered(&mut sink, "bad", bad, 2).await;
        let unwritten = flush(&mut sink).await;
        assert!(unwritten.held.is_empty(), "{bad}: {unwritten:?}");
        assert_eq!(unwritten.failed, [(2, 1)].into(), "{bad}");
        assert!(unwritten.failed_fault.is_some());
        let good = template.replace("{listener}", "good");
        assert_eq!(names_in(&fs::read(at(&good)).unwrap()), ["good"]);
        fs::remove_file(at(&good)).unwrap();
        let _ = fs::remove_dir(at("good"));
    }
    // Once the obstacle is gone, events are written again.
    let mut sink = File::new(options(&directory, "{listener}.log")).unwrap();
    write_numbered(&mut sink, "failed", "b", 1).await;
    assert_eq!(flush(&mut sink).await.failed, [(1, 1)].into());
    fs::remove_dir(at("b.log")).unwrap();
    let mut number = 1;
    until_async("an event is written", async || {
        number += 1;
        write_numbered(&mut sink, "written", "b", number).await;
        flush(&mut sink).await.failed.is_empty().then_some(())
    })
    .await;
    assert_eq!(names_in(&fs::read(at("b.log")).unwrap()), ["written"]);
}

#[tokio::test]
async fn losses_of_several_listeners_in_one_batch_go_to_the_files_of_their_listeners() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(options(&directory, "{listener}.log")).unwrap();
    let origin = |listener: &str| Arc::new(Origin::new("datadog", listener.into(), "peer".into(), 1));
    let mut builder = BatchBuilder::new(origin("alpha"));
    for (listener, events) in [("alpha", 3), ("beta", 5), ("beta", 7), ("alpha", 11)] {
        builder.set_origin(origin(listener));
        let header = Header::observed_at(semconv::LOSS, UnixNanos(now()), Position::default());
        let loss = Loss { reason: Reason::Shed, bytes: 0, events: Some(events), detail: "", excerpt: &[] };
        builder.loss(header, loss);
    }
    sink.write(Selection::new(&builder.take(), Kinds::ALL)).await.unwrap();
    assert!(flush(&mut sink).await.is_empty());
    for (listener, events) in [("alpha", [3, 11]), ("beta", [5, 7])] {
        let text = fs::read_to_string(directory.path().join(format!("{listener}.log"))).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| line["origin"]["listener"] == listener), "{text}");
        assert_eq!(lines.iter().map(|line| line["loss"]["events"].as_u64().unwrap()).collect::<Vec<_>>(), events);
    }
}

#[tokio::test]
async fn a_batch_larger_than_the_buffer_is_taken_even_when_it_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let locked = lock(&directory.path().join("app.log"));
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    let expected = names(0..3_000, 1_000);
    for part in expected.chunks(600) {
        // Beyond a few MiB the whole sink waits: memory is bounded.
        let _ = write_as(&mut sink, part, "web", now()).await;
    }
    assert!(matches!(sink.flush().await, Err(tributary::sink::SinkError::Retry(_))));
    drop(locked);
    until_async("the sink takes events again", async || sink.flush().await.ok()).await;
    flush_all(&mut sink).await;
    assert_eq!(all_names(directory.path()), expected);
}

#[tokio::test]
async fn a_file_that_another_sink_is_writing_is_left_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = File::new(options(&directory, "app.log")).unwrap();
    let mut second = File::new(options(&directory, "app.log")).unwrap();
    write(&mut first, &names(0..1, 4)).await;
    write_as(&mut second, &names(1..2, 4), "web", now()).await.unwrap();
    assert!(held(&mut second).await.contains("another process"));
    drop(first);
    flush_all(&mut second).await;
    assert_eq!(all_names(directory.path()), names(0..2, 4));
}

#[tokio::test]
async fn more_files_than_may_be_open_are_all_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut sink = File::new(options(&directory, "{listener}.log")).unwrap();
    for round in 0..3 {
        for listener in 0..40 {
            write_as(&mut sink, &[round.to_string()], &listener.to_string(), now()).await.unwrap();
        }
        sink.flush().await.unwrap();
        assert_eq!(open_files_below(directory.path()), 16);
    }
    let files = files(directory.path());
    assert_eq!(files.len(), 40);
    assert!(files.values().all(|bytes| names_in(bytes) == ["0", "1", "2"]));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn with_any_sizes_no_record_is_lost_written_twice_split_or_out_of_order(
        batches in prop::collection::vec((prop::collection::vec(8_usize..300, 0..12), any::<bool>()), 1..12),
        rotate_bytes in 0_u64..1_500,
        new_sink_every in 2_usize..6,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = Options { rotate_bytes, keep_files: 0, ..options(&directory, "app.log") };
        let mut expected = Vec::new();
        runtime.block_on(async {
            let mut sink = File::new(options.clone()).unwrap();
            for (index, (sizes, flush)) in batches.into_iter().enumerate() {
                let first = expected.len();
                expected.extend(sizes.iter().enumerate().map(|(at, len)| format!("{:0>len$}", first + at)));
                write_as(&mut sink, &expected[first..], "web", now()).await.unwrap();
                let restart = index % new_sink_every == 0;
                if flush || restart {
                    // A file can be locked for a moment after its sink was dropped: another test of this process starts a
                    // program, which has the descriptor between `fork` and `exec`.
                    flush_all(&mut sink).await;
                }
                if restart {
                    drop(sink);
                    sink = File::new(options.clone()).unwrap();
                }
            }
            flush_all(&mut sink).await;
        });
        prop_assert_eq!(all_names(directory.path()), expected);
        for path in in_order(directory.path()) {
            let bytes = fs::read(path).unwrap();
            prop_assert!(rotate_bytes == 0 || bytes.len() as u64 <= rotate_bytes || names_in(&bytes).len() == 1);
        }
    }
}
