//! The file sink on real disks: rotation, compression, torn tails, and files that vanish.

use std::fs;
use std::time::Duration;

use crate::sink_file_support::{
    DAY, LEAP_DAY, all_names, files, in_order, is_retry, names, names_in, now, open_files_below, options, unpacked,
    write, write_as,
};
use proptest::prelude::*;
use tributary::sink::Sink;
use tributary::sink::file::{Compression, File, Fsync, Options};

#[tokio::test]
async fn nothing_is_on_disk_before_the_first_event_and_the_template_says_where_it_goes() {
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
    let interval = Duration::from_millis(1);
    let mut sink = File::new(Options { rotate_interval: interval, ..options(&directory, "app.log") }).unwrap();
    write(&mut sink, &names(0..3, 4)).await;
    for _ in 0..3 {
        std::thread::sleep(interval * 2);
        sink.tick().await.unwrap();
    }
    assert!(!directory.path().join("app.log").exists());
    assert_eq!(in_order(directory.path()).len(), 1);
    write(&mut sink, &names(3..5, 4)).await;
    assert_eq!(in_order(directory.path()).len(), 2);
    assert_eq!(all_names(directory.path()), names(0..5, 4));
    let live = fs::OpenOptions::new().write(true).open(directory.path().join("app.log")).unwrap();
    live.set_len(0).unwrap();
    std::thread::sleep(interval * 2);
    sink.tick().await.unwrap();
    assert!(directory.path().join("app.log").exists(), "somebody emptied it, so there is nothing to finish");
}

#[tokio::test]
async fn finished_files_are_compressed_and_hold_the_same_records() {
    for (compression, suffix) in [(Compression::Gzip, "gz"), (Compression::Lz4, "lz4")] {
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
    // An event that comes late finds its file gone and begins another beside it.
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
async fn keep_files_removes_the_oldest_of_its_own_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let strangers = [
        "app.log.1",
        "app.log.bak",
        "app.20200101T000000.log",
        "app.20200101T000000.000.log.bak",
        "app.20200101T000000.000.txt",
        "other.20200101T000000.000.log",
        "sub/app.20200101T000000.000.log",
    ];
    fs::create_dir(directory.path().join("sub")).unwrap();
    for name in strangers {
        fs::write(directory.path().join(name), "mine\n").unwrap();
    }
    fs::write(directory.path().join("app.20200101T000000.000.log"), "old\n").unwrap();
    let sizes = Options { rotate_bytes: 100, keep_files: 3, ..options(&directory, "app.log") };
    let mut sink = File::new(sizes).unwrap();
    for name in names(0..10, 60) {
        write(&mut sink, &[name]).await;
    }
    let after = files(directory.path());
    for name in strangers {
        assert_eq!(after[name], b"mine\n", "{name}");
    }
    assert_eq!(after.len(), strangers.len() + 3 + 1);
    let ours: Vec<_> = after.iter().filter(|(name, _)| !strangers.contains(&name.as_str())).collect();
    let mut kept: Vec<_> = ours.into_iter().flat_map(|(_, bytes)| names_in(bytes)).collect();
    kept.sort();
    assert_eq!(kept, names(6..10, 60));
}

#[tokio::test]
async fn what_a_crash_left_half_compressed_is_completed_by_the_next_run() {
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
async fn a_compressed_file_beside_its_original_goes_so_that_no_event_is_there_twice() {
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
async fn a_file_that_is_moved_removed_or_emptied_by_others_is_noticed_without_being_told() {
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
    // Removed while idle: the tick lets go of it.
    fs::remove_dir_all(directory.path().join("deep")).unwrap();
    sink.tick().await.unwrap();
    assert_eq!(open_files_below(directory.path()), 0);
    write(&mut sink, &names(3..4, 900)).await;
    // Emptied in place, as logrotate's copytruncate does: its length starts anew, so nothing is rotated.
    fs::OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    write(&mut sink, &names(4..5, 900)).await;
    assert_eq!(names_in(&fs::read(&path).unwrap()), names(4..5, 900));
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

#[tokio::test]
async fn what_cannot_be_written_now_is_kept_and_written_once_later() {
    let directory = tempfile::tempdir().unwrap();
    let obstacle = directory.path().join("logs");
    fs::write(&obstacle, "a file where a directory should be").unwrap();
    let mut sink = File::new(options(&directory, "logs/{listener}.log")).unwrap();
    write_as(&mut sink, &names(0..3, 4), "a", now()).await.unwrap();
    let message = is_retry(sink.flush().await);
    assert!(message.starts_with("cannot write ") && message.contains("/logs/a.log: "), "{message}");
    is_retry(sink.flush().await);
    fs::remove_file(&obstacle).unwrap();
    sink.flush().await.unwrap();
    write_as(&mut sink, &names(3..4, 4), "a", now()).await.unwrap();
    sink.flush().await.unwrap();
    assert_eq!(names_in(&fs::read(obstacle.join("a.log")).unwrap()), names(0..4, 4));
}

#[tokio::test]
async fn one_file_in_trouble_does_not_hold_up_the_others() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("b.log")).unwrap();
    let mut sink = File::new(options(&directory, "{listener}.log")).unwrap();
    for listener in ["a", "b", "c"] {
        write_as(&mut sink, &[listener.to_owned()], listener, now()).await.unwrap();
    }
    assert!(is_retry(sink.flush().await).contains("b.log: not a regular file"));
    let files = files(directory.path());
    assert_eq!(files.keys().collect::<Vec<_>>(), ["a.log", "c.log"]);
    fs::remove_dir(directory.path().join("b.log")).unwrap();
    sink.flush().await.unwrap();
    assert_eq!(names_in(&fs::read(directory.path().join("b.log")).unwrap()), ["b"]);
}

#[tokio::test]
async fn a_batch_larger_than_the_buffer_is_taken_even_when_it_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let obstacle = directory.path().join("app.log");
    fs::create_dir(&obstacle).unwrap();
    let mut sink = File::new(options(&directory, "app.log")).unwrap();
    let expected = names(0..600, 1_000);
    is_retry(write_as(&mut sink, &expected, "web", now()).await);
    fs::remove_dir(&obstacle).unwrap();
    sink.flush().await.unwrap();
    assert_eq!(all_names(directory.path()), expected);
}

#[tokio::test]
async fn a_file_that_another_sink_is_writing_is_left_to_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = File::new(options(&directory, "app.log")).unwrap();
    let mut second = File::new(options(&directory, "app.log")).unwrap();
    write(&mut first, &names(0..1, 4)).await;
    write_as(&mut second, &names(1..2, 4), "web", now()).await.unwrap();
    assert!(is_retry(second.flush().await).contains("another process"));
    drop(first);
    second.flush().await.unwrap();
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
    fn whatever_the_sizes_nothing_is_lost_doubled_split_or_out_of_order(
        batches in prop::collection::vec((prop::collection::vec(8_usize..300, 0..12), any::<bool>()), 1..12),
        rotate_bytes in 0_u64..1_500,
        new_sink_every in 2_usize..6,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
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
                    sink.flush().await.unwrap();
                }
                if restart {
                    drop(sink);
                    sink = File::new(options.clone()).unwrap();
                }
            }
            sink.flush().await.unwrap();
        });
        prop_assert_eq!(all_names(directory.path()), expected);
        for path in in_order(directory.path()) {
            let bytes = fs::read(path).unwrap();
            prop_assert!(rotate_bytes == 0 || bytes.len() as u64 <= rotate_bytes || names_in(&bytes).len() == 1);
        }
    }
}
