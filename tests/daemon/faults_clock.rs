//! A wall clock that steps back and forward while agents are connected: what waits, waits as long as it should; what is
//! remembered is not forgotten; what is written is written once, under the date of its moment.
//!
//! Sessions, stores and sinks get the time as an argument, so the test passes it to the real ones. The whole daemon
//! gets a clock that steps from libfaketime, where that is installed (Debian's package `faketime`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::live::binary::{Binary, run, tributary, until};
use crate::live::wire;
use crate::sink_file_support::{DAY, LEAP_DAY, files, names, names_in, options, unpacked, write_as};
use crate::zico_support::open_store;
use serde_json::Value;
use tributary::decode::{Offline, answer};
use tributary::event::{Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::datadog::{self, DatadogSession};
use tributary::protocol::endless::{self, EndlessExchange};
use tributary::protocol::zico::agents::{Agents, Opening, Registration, ZicoAgentError};
use tributary::protocol::{End, Now, Protocol, Request, RequestHead};
use tributary::sink::Sink;
use tributary::sink::file::{Compression, File, Options};
use tributary::zico_store::StoreOptions;

/// What the wall clock does with every step of time: nothing, or whatever machines have been seen to do.
type Wall = fn(u64) -> UnixNanos;

const YEAR: u64 = 365 * DAY;

fn steady(step: u64) -> UnixNanos {
    UnixNanos(crate::common::START.0 + step * 1_000_000)
}

fn stepping(step: u64) -> UnixNanos {
    match step % 5 {
        0 => steady(step),
        1 => UnixNanos(steady(step).0 + YEAR),
        2 => UnixNanos(steady(step).0 - YEAR),
        3 => UnixNanos(0),
        _ => UnixNanos(u64::MAX),
    }
}

fn at(step: u64, wall: Wall) -> Now {
    Now { unix: wall(step), elapsed: Duration::from_millis(step) }
}

fn session(options: &datadog::Options) -> (Offline<DatadogSession>, Arc<ListenerCounters>) {
    let counters = ListenerCounters::new("test".into(), Protocol::Datadog);
    let origin = Arc::new(Origin::new("datadog", "test".into(), "test".into(), 1));
    let session = DatadogSession::new(options.clone(), 16 << 20, false, &MemoryBudget::new(256 << 20));
    (Offline::new(session, origin, counters.clone()), counters)
}

fn events(lines: &[u8]) -> Vec<Value> {
    std::str::from_utf8(lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What comes of a conversation, in pieces with a millisecond between them.
fn played(bytes: &[u8], wall: Wall) -> Vec<Value> {
    let (mut session, counters) = session(&datadog::Options::default());
    let mut lines = Vec::new();
    let mut step = 0;
    for piece in bytes.chunks(61) {
        step += 1;
        session.pass_time(at(step, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
        session.feed(piece, at(step, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
    }
    session.finish(End::Closed, at(step, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
    assert_eq!(counters.totals().buffered(), 0);
    events(&lines).iter().map(crate::live::timeless).collect()
}

#[test]
fn recorded_conversations_give_the_same_events_whatever_the_wall_clock_does() {
    let mut conversations = 0;
    for entry in fs::read_dir("tests/data/datadog").unwrap() {
        let Ok(bytes) = fs::read(entry.unwrap().path().join("wire.bin")) else { continue };
        let expected = played(&bytes, steady);
        let found = played(&bytes, stepping);
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert!(found.len() == expected.len() && differs.is_none(), "{differs:?}");
        conversations += usize::from(!expected.is_empty());
    }
    assert!(conversations > 40, "{conversations}");
}

#[test]
fn what_waits_waits_as_long_as_it_should() {
    let options = datadog::Options::default();
    let waiting = options.waiting.time.as_millis() as u64;
    for wall in [steady as Wall, stepping] {
        let (mut session, _) = session(&options);
        let mut lines = Vec::new();
        let spans = |lines: &[u8]| events(lines).into_iter().filter(|event| event["kind"] == "span").count();
        session.feed(&wire::process(), at(0, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
        // Two spans whose names never come; what follows shows that both are complete.
        let input = [wire::span(1), wire::span(2), wire::trace()].concat();
        session.feed(&input, at(1, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
        for step in 2..=waiting {
            session.pass_time(at(step, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
        }
        assert_eq!(spans(&lines), 0);
        session.pass_time(at(1 + waiting, wall), &mut |batch| crate::common::encode(&batch, &mut lines));
        assert_eq!(spans(&lines), 2);
        // They say when they were read, by the wall clock of that moment.
        let read = crate::common::rfc3339(wall(1).0);
        let reported = events(&lines).into_iter().filter(|event| event["kind"] == "span");
        assert!(reported.map(|event| event["observed_time"].clone()).all(|time| time == read));
    }
}

#[test]
fn an_upload_is_known_again_for_as_long_as_it_should_be() {
    let recorded = fs::read("tests/data/endless/v3-mixed/request.http").unwrap();
    let end = recorded.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(recorded[..end].to_vec()).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    let headers = vec![("x-endless-content-encoding".to_owned(), b"gzip".to_vec())];
    let head = RequestHead { method: "PUT".to_owned(), target, headers };
    let exchange = EndlessExchange::new(endless::Options::default(), &MemoryBudget::new(256 << 20));
    let hour = Duration::from_secs(3600);
    let keeps = endless::Options::default().dedup.time;
    let upload = |elapsed: Duration, unix: u64| {
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let origin = Arc::new(Origin::new("endless", "test".into(), "test".into(), 1));
        let request = Request { head: head.clone(), body: recorded[end + 4..].to_vec().into(), number: 1 };
        let mut lines = Vec::new();
        let now = Now { unix: UnixNanos(unix), elapsed };
        let (response, _) = answer(&exchange, request, origin, &counters, now, &mut |batch| {
            crate::common::encode(&batch, &mut lines);
        });
        assert_eq!(response.status, 200);
        events(&lines).iter().any(|event| event["kind"] == "loss" && event["loss"]["reason"] == "duplicate")
    };
    let start = crate::common::START.0;
    assert!(!upload(Duration::ZERO, start));
    for unix in [start + YEAR, start - YEAR, start] {
        assert!(upload(hour, unix), "{unix}");
    }
    // And is forgotten when its time is over, though the wall clock stands still.
    assert!(!upload(keeps + 2 * hour, start));
}

#[test]
fn agents_stay_known_and_sessions_end_early_at_worst() {
    let home = tempfile::tempdir().unwrap();
    let options = StoreOptions { state_dir: Some(home.path().to_owned()), ..StoreOptions::default() };
    let store = open_store(&options, "zorka").unwrap();
    let asked = Registration { rkey: "key".into(), name: "host".into(), ..Default::default() };
    let (now, later, before) = (UnixNanos(LEAP_DAY), UnixNanos(LEAP_DAY + YEAR), UnixNanos(LEAP_DAY - YEAR));
    let registered = store.register(&asked, "192.0.2.1", now).unwrap();
    let opening = Opening::new(&registered.agent.uuid, &registered.authkey);
    let first = store.open(&opening, now).unwrap();
    // Back: nothing is over.
    assert!(store.session(&first.session, None, before).is_ok());
    assert_eq!(store.open(&opening, before).unwrap().session, first.session);
    // Forward: the session is over, as after a long silence; the agent's key opens another.
    assert!(matches!(store.session(&first.session, None, later), Err(ZicoAgentError::Denied(_))));
    let second = store.open(&opening, later).unwrap();
    assert!(second.is_new && store.session(&second.session, None, later).is_ok());
    // And back to what it was: what was opened in the future is good.
    assert!(store.session(&second.session, None, now).is_ok());
    assert_eq!(store.open(&opening, now).unwrap().session, second.session);
    drop(store);
    let store = open_store(&options, "zorka").unwrap();
    assert!(store.session(&second.session, None, before).is_ok());
    assert_eq!(store.register(&asked, "192.0.2.1", before).unwrap().agent.uuid, registered.agent.uuid);
}

#[tokio::test]
async fn files_of_every_date_hold_what_was_read_under_it_once() {
    for compression in [Compression::None, Compression::Gzip] {
        let directory = tempfile::tempdir().unwrap();
        let template = Options { compression, rotate_bytes: 600, keep_files: 0, ..options(&directory, "%F.ndjson") };
        let mut sink = File::new(template).unwrap();
        let dates = ["2024-02-28", "2024-02-29", "2024-03-01"];
        let days = [1, 0, 2, 0, 1, 1, 2, 0, 0, 2, 1, 0];
        let all = names(0..60, 20);
        for (number, names) in all.chunks(5).enumerate() {
            write_as(&mut sink, names, "web", LEAP_DAY - DAY + days[number] * DAY).await.unwrap();
            sink.flush().await.unwrap();
            sink.tick().await.unwrap();
            sink.wait_for_compression().await;
        }
        drop(sink);
        let mut found = Vec::new();
        for (day, date) in (0..).zip(dates) {
            let of_date = files(directory.path()).into_keys().filter(|name| name.starts_with(date));
            let mut held: Vec<_> = of_date.flat_map(|name| names_in(&unpacked(&directory.path().join(name)))).collect();
            held.sort();
            let expected: Vec<_> =
                all.chunks(5).zip(days).filter(|(_, of)| *of == day).flat_map(|(names, _)| names.to_vec()).collect();
            assert_eq!(held, expected, "{date} {compression:?}");
            found.extend(held);
        }
        assert_eq!(found.len(), all.len());
    }
}

/// The library that shows a process another clock, where it is installed.
fn faketime() -> Option<PathBuf> {
    let below = fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    below.map(|path| path.join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

/// How many events of a protocol are written under a date, losses apart.
fn written(home: &Path, date: &str, protocol: &str) -> usize {
    let text = fs::read_to_string(home.join(date).join(format!("{protocol}.ndjson"))).unwrap_or_default();
    text.lines().filter(|line| !line.contains("\"kind\":\"loss\"")).count()
}

#[test]
fn the_whole_daemon_goes_on_over_a_day_back_and_a_year_forward() {
    let Some(library) = faketime() else {
        eprintln!("libfaketime is not installed: nothing is tested");
        return;
    };
    const PROTOCOLS: [&str; 4] = ["datadog", "bytefrog", "endless", "zico"];
    let home = tempfile::tempdir().unwrap();
    let clock = home.path().join("clock");
    // Written beside it and renamed: the daemon reads it whenever it looks at the time.
    let set = |date: &str| {
        fs::write(home.path().join("next"), format!("@{date} 12:00:00\n")).unwrap();
        fs::rename(home.path().join("next"), &clock).unwrap();
    };
    set("2026-11-20");
    let path = |name: &str| home.path().join(name).display().to_string();
    let mut toml = format!(
        "[admin]\nlisten = \"\"\n[sinks.f]\ntype = \"file\"\nrotate_interval = \"0s\"\npath = {:?}\n",
        path("%F/{protocol}.ndjson")
    );
    for protocol in PROTOCOLS {
        toml += &format!("[listeners.{protocol}]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n");
    }
    // Sessions that end with the step forward.
    toml += &format!("state_dir = {:?}\n", path("state"));
    toml = toml.replace("[listeners.endless]\n", "[listeners.endless]\nquarantine.dir = \"\"\n");
    fs::write(home.path().join("t.toml"), toml).unwrap();
    let mut command = tributary(&["run", "--config", &path("t.toml")]);
    command.env("LD_PRELOAD", &library).env("TZ", "UTC");
    command.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let daemon = Binary::start(command);
    let agents: Vec<_> = PROTOCOLS
        .into_iter()
        .map(|protocol| {
            let address = daemon.address(protocol).to_string();
            let more: &[&str] = if protocol == "zico" { &["--dialect", "gen1"] } else { &[] };
            let arguments = ["simulate", protocol, "--to", &address, "--count", "6000", "--rate", "1000"];
            let arguments: Vec<_> = arguments.iter().chain(more).map(|word| (*word).to_owned()).collect();
            std::thread::spawn(move || run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()))
        })
        .collect();
    for (date, next) in [("2026-11-20", "2026-11-19"), ("2026-11-19", "2027-11-20"), ("2027-11-20", "2026-11-20")] {
        let is_reached = || PROTOCOLS.iter().all(|protocol| written(home.path(), date, protocol) > 0).then_some(());
        until(&format!("everybody is written under {date}"), is_reached);
        set(next);
    }
    let sent: Vec<_> = agents.into_iter().map(|agent| agent.join().unwrap().sent()).collect();
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for (protocol, sent) in PROTOCOLS.into_iter().zip(&sent) {
        let dates = ["2026-11-19", "2026-11-20", "2027-11-20"];
        let total: usize = dates.iter().map(|date| written(home.path(), date, protocol)).sum();
        assert_eq!(Some(total as u64), sent["events"].as_u64(), "{protocol}: {}", ended.stderr);
        // Only the session of `zico` was over, once, and its agent has sent again what was refused.
        let is_whole = ended.total("listener", protocol, "bytes_lost") == 0;
        assert!(is_whole || protocol == "zico", "{}", ended.stderr);
    }
}

#[test]
fn a_clock_that_steps_from_1970_ages_no_file_that_was_finished_before() {
    let Some(library) = faketime() else {
        eprintln!("libfaketime is not installed: nothing is tested");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let (clock, events) = (home.path().join("clock"), home.path().join("events"));
    let set = |date: &str| {
        fs::write(home.path().join("next"), format!("@{date} 12:00:00\n")).unwrap();
        fs::rename(home.path().join("next"), &clock).unwrap();
    };
    set("1970-01-02");
    let toml = format!(
        "[admin]\nlisten = \"\"\n[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
         [sinks.f]\ntype = \"file\"\nrotate_bytes = \"64KiB\"\nkeep_time = \"1h\"\npath = {:?}\n",
        events.join("a.ndjson").display().to_string()
    );
    fs::write(home.path().join("t.toml"), toml).unwrap();
    let mut command = tributary(&["run", "--config", home.path().join("t.toml").to_str().unwrap()]);
    command.env("LD_PRELOAD", &library).env("TZ", "UTC");
    command.env("FAKETIME_TIMESTAMP_FILE", &clock).env("FAKETIME_NO_CACHE", "1");
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let daemon = Binary::start(command);
    let address = daemon.address("a").to_string();
    let send = || run(&["simulate", "datadog", "--to", &address, "--count", "1000"]).sent()["events"].as_u64().unwrap();
    let finished = |year: &str| {
        let names = fs::read_dir(&events).ok()?.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let finished: Vec<_> = names.filter(|name| name.starts_with(&format!("a.{year}"))).collect();
        (finished.len() > 1).then_some(finished)
    };
    let mut sent = send();
    let before = until("files are finished in 1970", || finished("1970"));
    set("2026-11-20");
    sent += send();
    // A file that is finished is followed by a look at all of them.
    until("files are finished in 2026", || finished("2026"));
    sent += send();
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
    assert!(before.iter().all(|name| events.join(name).exists()), "{before:?}");
    let files = fs::read_dir(&events).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap());
    assert_eq!(files.map(|text| text.lines().count() as u64).sum::<u64>(), sent);
}
