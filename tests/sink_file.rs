//! The file sink on real disks: rotation, compression, torn tails, full disks, and files that vanish.

#![allow(clippy::unwrap_used, reason = "clippy knows test functions, but not what they call")]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tempfile::TempDir;
use tributary::event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos};
use tributary::sink::file::{Compression, File, Fsync, Options};
use tributary::sink::{Kinds, Selection, Sink, SinkError};

const DAY: u64 = 86_400_000_000_000;
/// 2024-02-29T13:07:09Z.
const LEAP_DAY: u64 = 1_709_212_029_123_456_789;

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

fn batch_of(names: &[String], listener: &str, observed: u64) -> Batch {
    let origin = Origin::new("datadog", listener.into(), "127.0.0.1:1".into(), 1);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    for name in names {
        let name = builder.push_text(name).into();
        let header = Header { name, time: None, observed: UnixNanos(observed), position: Position::default() };
        builder.event(header).log(Severity::Info, None);
    }
    builder.take()
}

/// Records that can be told apart, `len` bytes of name each.
fn names(range: std::ops::Range<usize>, len: usize) -> Vec<String> {
    range.map(|number| format!("{number:0>len$}")).collect()
}

async fn write_as(sink: &mut File, names: &[String], listener: &str, observed: u64) -> Result<(), SinkError> {
    sink.write(Selection::new(&batch_of(names, listener, observed), Kinds::ALL)).await
}

async fn write(sink: &mut File, names: &[String]) {
    write_as(sink, names, "web", now()).await.unwrap();
    sink.flush().await.unwrap();
}

fn options(directory: &TempDir, path: &str) -> Options {
    Options { path: format!("{}/{path}", directory.path().display()), fsync: Fsync::Never, ..Options::default() }
}

/// Every regular file below, by its path from there.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// The paths of `app.log` and its finished forms, oldest first, the live one last.
fn in_order(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = files(directory).into_keys().filter(|name| name.starts_with("app.")).collect();
    files.sort_by_key(|name| {
        let inner = name.trim_start_matches("app.").split(".log").next().unwrap().trim_end_matches("log").to_owned();
        let (stamp, number) = inner.split_once('-').unwrap_or((&inner, "0"));
        (stamp.is_empty(), stamp.to_owned(), number.parse::<usize>().unwrap())
    });
    files.into_iter().map(|name| directory.join(name)).collect()
}

fn unpacked(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap();
    let mut bytes = Vec::new();
    match path.extension().unwrap().to_str().unwrap() {
        "gz" => flate2::read::MultiGzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        "lz4" => lz4_flex::frame::FrameDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        _ => { file }.read_to_end(&mut bytes).unwrap(),
    };
    bytes
}

/// The names in a file's records. Fails on every line that is not a whole record.
fn names_in(bytes: &[u8]) -> Vec<String> {
    let text = str::from_utf8(bytes).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "torn: {:?}", text.lines().last());
    text.lines()
        .map(|line| {
            let record: serde_json::Value = serde_json::from_str(line).unwrap();
            record["name"].as_str().unwrap().to_owned()
        })
        .collect()
}

fn all_names(directory: &Path) -> Vec<String> {
    in_order(directory).iter().flat_map(|path| names_in(&unpacked(path))).collect()
}

fn is_retry<T: std::fmt::Debug>(result: Result<T, SinkError>) -> String {
    match result {
        Err(SinkError::Retry(fault)) => fault.to_string(),
        other => panic!("expected a retry, got {other:?}"),
    }
}

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
    let expected = names(0..300, 1_000);
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

#[tokio::test]
async fn a_full_disk_tears_nothing_and_everything_is_there_once_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("note: not allowed to mount a tmpfs, so the full disk is not tested here");
        return;
    };
    for fsync in Fsync::ALL {
        let filler = disk.path().join("filler");
        // 1 MiB less room for a few dozen records, and not a multiple of what a record needs.
        fs::write(&filler, vec![0; 1024 * 1024 - 40 * 1024]).unwrap();
        let path = format!("{}/app.log", disk.path().display());
        let mut sink = File::new(Options { path, fsync, ..Options::default() }).unwrap();
        let expected = names(0..200, 700);
        for (index, part) in expected.chunks(10).enumerate() {
            let written = write_as(&mut sink, part, "web", now()).await;
            if index == 19 {
                written.unwrap();
            }
        }
        let message = is_retry(sink.flush().await);
        assert!(message.contains("app.log: ") && message.contains("space"), "{message}");
        let before = all_names(disk.path());
        assert_eq!(before, expected[..before.len()]);
        is_retry(sink.flush().await);
        assert_eq!(all_names(disk.path()), before);
        fs::remove_file(&filler).unwrap();
        sink.flush().await.unwrap();
        sink.tick().await.unwrap();
        assert_eq!(all_names(disk.path()), expected, "fsync {}", fsync.as_str());
        drop(sink);
        fs::remove_file(disk.path().join("app.log")).unwrap();
    }
}

#[tokio::test]
async fn a_disk_too_full_to_compress_keeps_the_original() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("note: not allowed to mount a tmpfs, so the full disk is not tested here");
        return;
    };
    let path = format!("{}/app.log", disk.path().display());
    let gzip = Options { path, compression: Compression::Gzip, rotate_bytes: 10_000, ..Options::default() };
    let mut sink = File::new(gzip).unwrap();
    let expected = names(0..20, 700);
    // Room for the records, for the empty file that takes the new name, and for no further page.
    fs::write(disk.path().join("filler"), vec![0; 1024 * 1024 - 5 * 4096]).unwrap();
    write_as(&mut sink, &expected, "web", now()).await.unwrap();
    sink.flush().await.unwrap();
    sink.wait_for_compression().await;
    let ours = in_order(disk.path());
    assert_eq!(ours.len(), 2);
    assert!(ours.iter().all(|path| path.extension().unwrap() == "log"), "{ours:?}");
    assert_eq!(files(disk.path()).len(), 3, "no beginning of a compressed file is left");
    assert_eq!(all_names(disk.path()), expected);
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

/// How many files below a directory this process has open.
fn open_files_below(directory: &Path) -> usize {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter(|entry| fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|path| path.starts_with(directory)))
        .count()
}

/// A file system of 1 MiB, gone when dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// `None` when this process may not mount.
    fn mount() -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(directory.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(SmallDisk(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, so that a file which a failed test left open does not keep it.
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
