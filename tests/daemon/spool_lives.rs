//! The totals of one spool over several lives of daemons: stopped, killed, taken over by another one, full, and emptied by the
//! operator. Whatever a life ends with, `waiting` is what the next one resumes, and each number appears once.

use tributary::spool::Snapshot;

use super::spool::{Site, get, stop, upload};
use crate::live::binary::{Binary, Ended, field, run, until};

/// The totals of a sink.
#[derive(Debug)]
struct Totals {
    events: u64,
    resumed: u64,
    written: u64,
    shed: u64,
    failed: u64,
    waiting: u64,
}

/// Reads the totals of a stop. They add up, and what waits is on the disk, undamaged.
fn totals(site: &Site, ended: &Ended) -> Totals {
    let line = ended.line("sink totals sink=\"backend\"");
    let number = |name: &str| if line.contains(&format!(" {name}=")) { field(line, name).parse().unwrap() } else { 0 };
    let [events, resumed, written, shed, failed, waiting] =
        ["events", "resumed", "written", "shed", "failed", "waiting"].map(number);
    assert_eq!(events + resumed, written + shed + failed + waiting, "{line}");
    assert!(!line.contains("in_flight"), "{line}");
    assert_eq!(waiting_on_disk(site), waiting, "{line}");
    Totals { events, resumed, written, shed, failed, waiting }
}

/// The events that wait in the spool of a daemon that has ended. Nothing of it is damaged.
fn waiting_on_disk(site: &Site) -> u64 {
    let verified = run(&["spool", "verify", "--config", &site.config()]);
    assert_eq!(verified.code, Some(0), "{}", verified.stdout);
    Snapshot::read(&site.spool()).unwrap().waiting().events
}

fn waiting(daemon: &Binary) -> u64 {
    let metrics = get(daemon, "/metrics").1;
    let line = metrics.lines().find_map(|line| line.strip_prefix("tributary_spool_events{sink=\"backend\"} "));
    line.map_or(0, |events| events.parse().unwrap())
}

#[test]
fn what_one_life_leaves_is_what_the_next_one_resumes() {
    // With "block", as much as the spool takes; otherwise more.
    for (when_full, uploads) in [("block", 3), ("drop_oldest", 25), ("drop_newest", 25)] {
        let site = Site::new(&format!("min_free_bytes = \"0B\", max_bytes = \"1MiB\", when_full = \"{when_full}\""));
        let fill = |daemon: &Binary, seed: u64| (0..uploads).map(|n| upload(daemon, 300, seed + n)).sum::<u64>();
        // The destination is away. A stop.
        let daemon = site.start();
        let sent = fill(&daemon, 100);
        let first = totals(&site, &stop(daemon));
        assert_eq!((first.events, first.resumed, first.written, first.failed), (sent, 0, 0, 0), "{when_full}");
        assert_eq!(first.shed > 0, when_full != "block", "{when_full}: {first:?}");
        // A kill.
        let daemon = site.start();
        until("the spool is open", || (waiting(&daemon) == first.waiting).then_some(()));
        if when_full != "block" {
            fill(&daemon, 200);
        }
        daemon.signal("KILL");
        drop(daemon.end());
        let killed = waiting_on_disk(&site);
        // Another daemon waits for the spool, and takes it over.
        let daemon = site.start();
        until("the spool is open", || (waiting(&daemon) == killed).then_some(()));
        let other = site.start();
        until("the spool is in use", || get(&other, "/readyz").1.contains("another process uses").then_some(()));
        let third = totals(&site, &stop(daemon));
        assert_eq!((third.resumed, third.waiting), (killed, killed), "{when_full}");
        until("the spool is taken over", || (waiting(&other) == killed).then_some(()));
        let fourth = totals(&site, &stop(other));
        assert_eq!((fourth.events, fourth.resumed, fourth.waiting), (0, killed, killed), "{when_full}");
        // The operator removes everything.
        let dropped = run(&["spool", "drop", "--yes", "--config", &site.config(), "backend"]);
        assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
        site.set(200);
        let daemon = site.start();
        until("the destination knows", || (!site.received().1.is_empty()).then_some(()));
        let sent = upload(&daemon, 300, 400);
        let fifth = totals(&site, &stop(daemon));
        assert_eq!((fifth.events, fifth.resumed, fifth.shed), (sent, killed, killed), "{when_full}");
        assert_eq!((fifth.written, fifth.waiting), (sent, 0), "{when_full}");
        let (events, losses) = site.received();
        assert_eq!(events.len() as u64, sent, "{when_full}");
        let reported: Vec<_> = losses.iter().map(|loss| (&loss["loss"]["detail"], &loss["loss"]["events"])).collect();
        assert_eq!(
            reported,
            [(&"an operator removed them from the spool of this sink".into(), &killed.into())],
            "{when_full}"
        );
    }
}

/// A destination that sends interim responses for ever keeps the sink from nothing: what waits is on the disk after the stop.
#[test]
fn endless_interim_responses_keep_no_sink_from_its_end() {
    let site = Site::new("min_free_bytes = \"0B\"");
    site.set(100);
    let daemon = site.start();
    let sent = upload(&daemon, 300, 1);
    let first = totals(&site, &stop(daemon));
    assert_eq!((first.events, first.waiting, first.failed), (sent, sent, 0));
    site.set(200);
    let daemon = site.start();
    until("everything is received", || (site.received().0.len() as u64 >= sent).then_some(()));
    let second = totals(&site, &stop(daemon));
    assert_eq!((second.resumed, second.written, second.waiting), (sent, sent, 0));
}

#[test]
fn a_second_signal_says_what_waits_and_what_becomes_of_it() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let config = std::fs::read_to_string(site.config()).unwrap();
    let direct = config[config.find("[sinks.backend]").unwrap()..].lines().take(5).collect::<Vec<_>>().join("\n");
    let direct = direct.replace("backend", "direct");
    let spans = "[listeners.spans]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(site.config(), format!("{config}{spans}{direct}\n")).unwrap();
    let daemon = site.start();
    let to = daemon.address("spans").to_string();
    let sent = run(&["simulate", "datadog", "--to", &to, "--count", "50"]).sent();
    let events = sent["events"].as_u64().unwrap();
    until("the spool has them", || (waiting(&daemon) == events).then_some(()));
    daemon.signal("TERM");
    daemon.until_stderr("stopping; ");
    // Without a spool its sink makes attempts until the grace period is over.
    daemon.signal("TERM");
    let ended = daemon.end();
    let spooled = ended.line("events wait in the spool; the next start sends them");
    assert_eq!((field(spooled, "sink"), field(spooled, "events")), ("backend", &*events.to_string()), "{spooled}");
    assert!(field(spooled, "requests").parse::<u64>().unwrap() > 0 && spooled.contains(" bytes="), "{spooled}");
    let direct = ended.line("events wait for the destination; those that it does not take in time count as failed");
    assert_eq!((field(direct, "sink"), field(direct, "events")), ("direct", &*events.to_string()), "{direct}");
    let totals = totals(&site, &ended);
    assert_eq!((totals.events, totals.waiting), (events, events));
    assert!(ended.line("sink totals sink=\"direct\"").contains(&format!(" failed={events}")), "{}", ended.stderr);
}
