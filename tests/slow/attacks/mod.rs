//! Loss of service: each attack by itself, beside honest agents of every protocol.
//!
//! While an attack lasts, new honest agents connect, send and end, one after the other, and others run for the whole time.
//! Every conversation must be over within a bound, every event of every honest agent must be written, none may be lost, and
//! the daemon must still stop in time.
//!
//! Attackers connect from 127.0.0.2 and the following addresses, honest agents from 127.0.0.1, so the events and losses
//! of both can be distinguished.

mod attackers;
mod floods;
mod honest;
mod identities;
mod site;
mod slow;

use std::time::{Duration, Instant};

use serde_json::Value;

use attackers::Attackers;
use honest::{BALANCED_PEER, Honest, Times};
use site::{Options, Site};
use tributary::simulate::rbkit;

/// How long a conversation of an honest agent may take under attack: a quarter of `handshake_timeout`, the shortest time limit
/// of a listener. On a busy machine more: this many times as long as the slowest one without an attack.
const BOUND: Duration = Duration::from_secs(5);
const BOUND_FACTOR: u32 = 20;
/// The interval at which a Ruby process publishes.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(1);
/// Conversations of each kind, without an attack and under it.
const CONVERSATIONS: (usize, usize) = (2, 5);
/// An attack lasts at least this long.
const MIN_DURATION: Duration = Duration::from_secs(1);

/// An attack, and the daemon that it needs.
struct Attack {
    /// Options of the daemon.
    options: Options,
    start: fn(&mut Attackers),
    /// The attack has its effect when the attackers have counted this many steps, each as `start` defines it.
    steps: u64,
    /// Honest agents begin when the attack has had its effect for this long. None: before the attack.
    honest_after: Option<Duration>,
}

/// The result of an attack.
struct Outcome {
    /// Losses that attackers have caused.
    losses: Vec<Value>,
    attackers: u64,
    /// From the start of the attackers to the end of the daemon.
    duration: Duration,
}

/// Attacks a daemon and asserts that honest agents do not notice.
async fn withstand(attack: Attack) -> Outcome {
    let any = "127.0.0.1:0".parse().unwrap();
    let process = rbkit::SimulatedProcess::bind(rbkit::Options { publish: any, request: any, ..Default::default() })
        .await
        .unwrap();
    let site = Site::start(attack.options, &process);
    let mut attackers = Attackers::new(&site.addresses);
    let begin = Instant::now();
    let (honest, mut calm) = match attack.honest_after {
        None => {
            let honest = Honest::start(&site.addresses, process);
            honest.until_conversations(CONVERSATIONS.0).await;
            let calm = honest.take_times();
            (attack.start)(&mut attackers);
            attackers.until_steps(attack.steps).await;
            honest.take_times();
            (honest, calm)
        }
        Some(wait) => {
            (attack.start)(&mut attackers);
            attackers.until_steps(attack.steps).await;
            tokio::time::sleep(wait).await;
            (Honest::start(&site.addresses, process), Times::new())
        }
    };
    let effective = Instant::now();
    let cpu = site.cpu();
    honest.until_conversations(CONVERSATIONS.1).await;
    tokio::time::sleep(MIN_DURATION.saturating_sub(effective.elapsed())).await;
    let attacked = honest.take_times();
    let (cpu, wall) = (site.cpu() - cpu, effective.elapsed());
    let steps = attackers.stop().await;
    if calm.is_empty() {
        honest.until_conversations(CONVERSATIONS.0).await;
        calm = honest.take_times();
    }
    let sent = honest.stop();
    let written = site.stop();
    let duration = begin.elapsed();

    let (honest_losses, losses): (Vec<_>, Vec<_>) = written.losses.into_iter().partition(is_honest);
    assert_eq!(honest_losses, [Value::Null; 0], "honest agents have lost data");
    for (listener, sent) in sent {
        let events = written.events.iter().filter(|event| is_honest(event) && event["origin"]["listener"] == listener);
        // They report late heartbeats, which a busy machine causes.
        let is_health = |event: &Value| {
            matches!(event["name"].as_str(), Some("bytefrog.agent.unhealthy" | "bytefrog.agent.recovered"))
        };
        assert_eq!(events.filter(|event| !is_health(event)).count() as u64, sent, "events of {listener}");
    }
    let figures = format!(
        "{steps} steps; {wall:?} under attack, {cpu:?} of processor time; slowest {:?} without, {:?} under attack",
        slowest(&calm),
        slowest(&attacked)
    );
    let bound = BOUND.max(calm.values().flatten().max().copied().unwrap_or_default() * BOUND_FACTOR);
    for (kind, times) in &attacked {
        let slowest = times.iter().max().unwrap();
        assert!(*slowest < bound, "{kind}: {slowest:?} of at most {bound:?}; {times:?}; {figures}");
    }
    let ages = written.events.iter().filter(|event| is_honest(event)).filter_map(age);
    let oldest = ages.max().unwrap();
    assert!(oldest < bound + PUBLISH_INTERVAL, "an event was read {oldest:?} after it was made");
    Outcome { losses, attackers: steps, duration }
}

fn slowest(times: &Times) -> Vec<(&str, Duration)> {
    times.iter().map(|(kind, times)| (*kind, *times.iter().max().unwrap())).collect()
}

/// Whether the peer of this event is an honest agent.
fn is_honest(event: &Value) -> bool {
    let peer = event["origin"]["peer"].as_str().unwrap();
    peer.starts_with("127.0.0.1:") || peer == BALANCED_PEER
}

/// The time from the making of an event to its arrival, of events that have both. The simulated Ruby process takes the time
/// when it makes an event; a tracer's traces end when they are made, and so do their first spans.
fn age(event: &Value) -> Option<Duration> {
    let made = match event["origin"]["protocol"].as_str()? {
        "rbkit" if event["name"] != "rbkit.handshake" => &event["time"],
        "datadog"
            if event["kind"] == "span" && event["span"]["parent_span_id"].is_null() && event["name"] != "balanced" =>
        {
            &event["span"]["end_time"]
        }
        _ => return None,
    };
    Some(Duration::from_nanos(
        nanos_of_day(event["observed_time"].as_str()?).saturating_sub(nanos_of_day(made.as_str()?)),
    ))
}

/// The nanoseconds since midnight of a time like 2026-11-20T12:15:00.123456789Z.
fn nanos_of_day(time: &str) -> u64 {
    let (seconds, fraction) =
        time[11..].trim_end_matches('Z').split_once('.').unwrap_or((time[11..].trim_end_matches('Z'), "0"));
    let seconds = seconds.split(':').fold(0, |sum, part| 60 * sum + part.parse::<u64>().unwrap());
    seconds * 1_000_000_000 + format!("{fraction:0<9}").parse::<u64>().unwrap()
}
