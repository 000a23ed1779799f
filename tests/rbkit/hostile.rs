//! Peers that are not Ruby processes, or misbehave: memory stays bounded, losses have their places,
//! and other agents of the listener are not affected.
//!
//! Each test measures the memory of this process, so they run one after another.

use std::time::Duration;

use crate::hostile_support::{is_in_own_process, process_memory};
use crate::live::{Daemon, losses, until};
use crate::rbkit_support::agent::Agent;
use crate::rbkit_support::compare::of_message;
use crate::rbkit_support::raw::{Raw, Script, Then};
use crate::rbkit_support::{dialled, listener, wire};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

const MIB: u64 = 1 << 20;
/// More than a listener, its connections and this test need, and far less than the sizes that peers announce below.
const MOST_BYTES: u64 = 48 * MIB;

static TURN: Mutex<()> = Mutex::const_new(());

/// A daemon with a good and a hostile agent, and the memory in use before.
struct Scene {
    daemon: Daemon,
    good: Agent,
    raw: Raw,
    counter: u64,
    memory: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    /// `options` are further lines of the listener.
    async fn new(options: &str, script: impl Fn(u64) -> Script + Send + 'static) -> Scene {
        let turn = TURN.lock().await;
        let (good, raw) = (Agent::bind().await, Raw::bind(script).await);
        let hostile = format!("{{ publish = \"{}\" }}", raw.address);
        let memory = process_memory("RssAnon");
        let agents = [hostile, dialled(&good, ", enable = [\"memory_profile\"]")];
        let options = format!("reconnect = {{ min = \"10ms\", max = \"50ms\" }}\n{options}");
        let daemon = Daemon::start(&listener(&agents, &options)).await;
        good.until_started(&["start_memory_profile"]).await;
        Scene { daemon, good, raw, counter: 0, memory, _turn: turn }
    }

    /// Messages of the good agent are still received.
    async fn assert_good_is_received(&mut self) {
        let counter = self.counter;
        self.counter += 1;
        self.good.publish(&wire::collection(counter, &[wire::created(counter)])).await;
        let is_there = |events: &[Value]| !self.of_good(events, counter).is_empty();
        self.daemon.until("the message of the good agent", is_there).await;
    }

    fn of_good(&self, events: &[Value], counter: u64) -> Vec<Value> {
        let mut events = of_message(events, counter);
        let peer = self.good.publish.to_string();
        events.retain(|event| event["origin"]["peer"] == peer);
        events
    }

    fn assert_memory(&self) {
        let now = process_memory("RssAnon");
        let used = now.saturating_sub(self.memory);
        assert!(used < MOST_BYTES, "{} MiB more than before", used / MIB);
    }

    /// Waits for this many losses of the hostile peer; returns the first.
    async fn until_lost(&self, times: usize) -> Value {
        let peer = self.raw.address.to_string();
        let lost = |events: &[Value]| {
            let of_peer = |event: &&Value| event["kind"] == "loss" && event["origin"]["peer"] == peer;
            events.iter().filter(of_peer).cloned().collect::<Vec<_>>()
        };
        let what = format!("{times} losses of the hostile peer");
        let events = self.daemon.until(&what, |events| lost(events).len() >= times).await;
        lost(&events).remove(0)
    }

    /// Asserts that nothing of the good agent is lost, and that the counters balance.
    async fn end(mut self) -> Vec<Value> {
        self.assert_good_is_received().await;
        let Scene { daemon, good, raw, .. } = self;
        let events = daemon.stop().await.events;
        good.assert_no_faults();
        assert_eq!(good.pub_connections(), 1);
        let peer = raw.address.to_string();
        assert!(events.iter().filter(|event| event["kind"] == "loss").all(|event| event["origin"]["peer"] == peer));
        events
    }
}

/// Greeting, READY, and these bytes.
fn stream(frames: &[u8]) -> Vec<u8> {
    [&wire::greeting(0)[..], &wire::ready("PUB"), frames].concat()
}

#[tokio::test]
async fn a_frame_of_a_tebibyte_closes_the_connection_before_its_body_arrives() {
    let bytes = stream(&wire::long_head(0, 1 << 40));
    let mut scene = Scene::new("", move |_| Script::send(bytes.clone(), Then::Listen)).await;
    let loss = scene.until_lost(3).await;
    assert_eq!(loss["loss"]["reason"], "too_large");
    assert!(loss["loss"]["detail"].as_str().unwrap().contains("max_frame_bytes"), "{loss}");
    assert_eq!((&loss["origin"]["offset"], &loss["loss"]["bytes"]), (&91.into(), &9.into()), "{loss}");
    scene.assert_good_is_received().await;
    scene.assert_memory();
    scene.end().await;
}

/// Memory is not reserved for announced bytes, and unusable bytes are not kept.
#[tokio::test]
async fn the_largest_allowed_frame_costs_only_the_bytes_that_have_arrived() {
    for filler in [0x00, 0xc1, 0x91, 0xdd, 0xff] {
        let head = wire::long_head(0, 256 * MIB);
        let bytes = [stream(&head), vec![filler; 8 << 20]].concat();
        let sent = bytes.len() as u64;
        let mut scene = Scene::new("", move |number| match number {
            0 => Script::send(bytes.clone(), Then::Listen),
            _ => Script::send(stream(&[]), Then::Listen),
        })
        .await;
        until("all bytes are sent, or the connection is closed", || {
            (scene.raw.bytes() >= sent || scene.raw.closed() > 0).then_some(())
        })
        .await;
        scene.assert_good_is_received().await;
        scene.assert_memory();
        scene.end().await;
    }
}

/// A text, a list of references, a stack, a dump, an unknown value: each well-formed and as long as the frame may be.
#[tokio::test]
async fn long_parts_of_a_message_are_not_buffered_beyond_the_limit() {
    if !is_in_own_process(long_parts_of_a_message_are_not_buffered_beyond_the_limit) {
        return;
    }
    let head = [&wire::collection(1, &[])[..], &[]].concat();
    let head = &head[..head.len() - 1];
    let event = |number: u8| [&[0x91, 0x83, 0, number, 1, 0xcb][..], &[0; 8], &[2]].concat();
    let count = |marker: u8| [&[marker][..], &(200_u32 << 20).to_be_bytes()].concat();
    let object = [0x82, 3, 1, 5, 0x90];
    // Parts that become events cause much output for few bytes.
    for (what, begin, filler, enough) in [
        ("a class name", [&event(0)[..], &[0x82, 3, 1, 4], &count(0xdb)].concat(), vec![b'a'; 1 << 16], 24),
        ("references", [&event(5)[..], &[0x91, 0x82, 3, 1, 5], &count(0xdd)].concat(), vec![7; 1 << 16], 24),
        ("a stack", [&event(9)[..], &count(0xdd)].concat(), [0x81, 13, 0xa1, b'f'].repeat(1 << 14), 24),
        ("a dump", [&event(5)[..], &count(0xdd)].concat(), object.repeat(1 << 14), 3),
        ("events", count(0xdd), wire::gc_start().repeat(1 << 12), 4),
        ("an unknown value", [&[0x91, 0x84, 0x63][..], &count(0xdb)].concat(), vec![b'a'; 1 << 16], 24),
        ("statistics", [&event(6)[..], &count(0xdf)].concat(), [0xa1, b'k', 1].repeat(1 << 14), 3),
    ] {
        let begin = stream(&[&wire::long_head(0, 255 * MIB)[..], head, &begin].concat());
        let again = begin.len();
        let bytes = [begin, filler].concat();
        let turn = TURN.lock().await;
        let raw = Raw::bind(move |number| match number {
            0 => Script::send(bytes.clone(), Then::Repeat(again)),
            _ => Script::send(stream(&[]), Then::Listen),
        })
        .await;
        let memory = process_memory("RssAnon");
        // Events in memory would hide the memory of the session.
        let agent = format!("{{ publish = \"{}\" }}", raw.address);
        let toml = format!("{}\n[sinks.out]\ntype = \"discard\"\n", listener(&[agent], "max_message_bytes = \"1MiB\""));
        let server = tributary::server::Server::start(&crate::live::config(&toml)).await.unwrap();
        until(&format!("{what}: {enough} MiB are read, or it is closed"), || {
            (crate::live::counters(&server).bytes_in >= enough * MIB || raw.closed() > 0).then_some(())
        })
        .await;
        let used = process_memory("RssAnon").saturating_sub(memory);
        println!("{what}: {} MiB more", used / MIB);
        assert!(used < 20 * MIB, "{what}: {} MiB", used / MIB);
        drop(raw);
        assert!(crate::live::within("the end", server.stop()).await.are_balanced(), "{what}");
        drop(turn);
    }
}

#[tokio::test]
async fn a_message_of_endless_frames_ends_at_the_limit() {
    if !is_in_own_process(a_message_of_endless_frames_ends_at_the_limit) {
        return;
    }
    // Frames of no bytes, of some bytes, and of the largest allowed sum.
    for (length, times) in [(0, 1_000), (100, 1_000), (16 * MIB as usize, 4)] {
        let frames = wire::frame(wire::MORE, &vec![0; length]).repeat(times);
        let bytes = stream(&frames);
        let options = "max_frame_bytes = \"32MiB\"";
        let mut scene = Scene::new(options, move |_| Script::send(bytes.clone(), Then::Repeat(0))).await;
        let loss = scene.until_lost(2).await;
        let reason = loss["loss"]["reason"].as_str().unwrap();
        assert!(["malformed", "too_large"].contains(&reason), "{loss}");
        scene.raw.until_closed(2).await;
        scene.assert_good_is_received().await;
        // The test itself holds the bytes that it sends, and a piece of them for each connection.
        let now = process_memory("RssAnon").saturating_sub(scene.memory + 6 * (length * times) as u64);
        assert!(now < MOST_BYTES, "{} MiB", now / MIB);
        scene.end().await;
    }
}

/// Each message of several frames is dropped, and the connection stays open.
#[tokio::test]
async fn multipart_messages_leave_bounded_losses_and_other_messages_are_read() {
    let multipart = [wire::frame(wire::MORE, b"a"), wire::frame(0, b"b")].concat().repeat(1_000);
    let good = wire::frame(0, &wire::collection(7, &[wire::gc_start()]));
    let bytes = stream(&[&multipart[..], &good].concat());
    let mut scene = Scene::new("", move |_| Script::send(bytes.clone(), Then::Listen)).await;
    scene.daemon.until("the good message", |events| !of_message(events, 7).is_empty()).await;
    scene.assert_good_is_received().await;
    assert_eq!(scene.raw.opened(), 1);
    let events = scene.end().await;
    let lost: u64 = losses(&events).iter().map(|loss| loss["bytes"].as_u64().unwrap()).sum();
    assert_eq!(lost, multipart.len() as u64);
}

#[tokio::test]
async fn a_slow_greeting_ends_at_its_time_limit_and_does_not_delay_others() {
    let script = |_| Script {
        piece: 1,
        pause: Duration::from_millis(50),
        ..Script::send([wire::greeting(0), wire::ready("PUB")].concat(), Then::Listen)
    };
    let mut scene = Scene::new("handshake_timeout = \"500ms\"", script).await;
    scene.assert_good_is_received().await;
    scene.raw.until_closed(2).await;
    let loss = scene.until_lost(2).await;
    let lost = loss["loss"]["bytes"].as_u64().unwrap();
    assert!(loss["loss"]["reason"] == "truncated" && lost > 0 && lost < 64, "{loss}");
    scene.end().await;
}

/// A peer that sends nothing, and one that sends a greeting and no READY.
#[tokio::test]
async fn a_missing_greeting_ends_at_its_time_limit() {
    for bytes in [Vec::new(), wire::greeting(1)] {
        let script = move |_| Script::send(bytes.clone(), Then::Listen);
        let mut scene = Scene::new("handshake_timeout = \"300ms\"", script).await;
        scene.raw.until_closed(2).await;
        scene.assert_good_is_received().await;
        scene.end().await;
    }
}

/// A frame whose rest does not arrive.
#[tokio::test]
async fn an_incomplete_frame_ends_at_its_time_limit() {
    let frame = wire::frame(0, &wire::collection(7, &[wire::gc_start()]));
    let bytes = stream(&frame[..frame.len() - 3]);
    let script = move |_| Script::send(bytes.clone(), Then::Listen);
    let mut scene = Scene::new("message_timeout = \"300ms\"", script).await;
    scene.raw.until_closed(1).await;
    let loss = scene.until_lost(1).await;
    // The head of the frame is at 91, and its complete parts have been decoded.
    assert!((91..=93).contains(&loss["origin"]["offset"].as_u64().unwrap()), "{loss}");
    scene.assert_good_is_received().await;
    let Scene { daemon, .. } = scene;
    daemon.stop().await;
}

/// Huge counts and deep nesting.
#[tokio::test]
async fn huge_counts_and_deep_nesting_cost_nothing_and_the_next_message_is_read() {
    if !is_in_own_process(huge_counts_and_deep_nesting_cost_nothing_and_the_next_message_is_read) {
        return;
    }
    let head = wire::collection(1, &[]);
    let head = &head[..head.len() - 1];
    let event = [&[0x83, 0, 5, 1][..], &[0xcb; 1], &[0; 8], &[2]].concat();
    let most = [0xff; 4];
    let bodies: Vec<Vec<u8>> = vec![
        [head, &[0xdd], &most].concat(),
        [head, &[0xdf], &most].concat(),
        [&[0xdf][..], &most].concat(),
        [head, &[0xdb], &most, b"x"].concat(),
        [head, &[0x91], &event, &[0xdd], &most, &[0x81]].concat(),
        [head, &[0x91], &event, &[0x91, 0x82, 3, 1, 5, 0xdd], &most].concat(),
        [head, &vec![0x91; 4 << 20]].concat(),
        [head, &[0x91], &vec![0x81; 4 << 20]].concat(),
        [&[0x81, 0x64][..], &vec![0x91; 4 << 20]].concat(),
        [head, &vec![0xdd; 4 << 20]].concat(),
        [head, &[0xdc, 0xff, 0xff], &vec![0xc1; 1 << 20]].concat(),
    ];
    let count = bodies.len();
    let good = wire::frame(0, &wire::collection(2, &[wire::gc_start()]));
    let frames: Vec<u8> = bodies.iter().flat_map(|body| wire::frame(0, body)).chain(good).collect();
    let bytes = stream(&frames);
    let mut scene = Scene::new("", move |_| Script::send(bytes.clone(), Then::Listen)).await;
    let is_there = |events: &[Value]| events.iter().any(|event| event["name"] == "rbkit.gc.start");
    scene.daemon.until("the good message", is_there).await;
    scene.assert_good_is_received().await;
    assert_eq!(scene.raw.opened(), 1);
    let now = process_memory("RssAnon").saturating_sub(scene.memory + 3 * frames.len() as u64);
    assert!(now < MOST_BYTES, "{} MiB", now / MIB);
    let raw = scene.raw.address.to_string();
    let events = scene.end().await;
    let mut places: Vec<_> = events
        .iter()
        .filter(|event| event["kind"] == "loss" && event["loss"]["reason"] != "gap")
        .inspect(|event| assert_eq!(event["origin"]["peer"], raw))
        .map(|event| event["origin"]["offset"].as_u64().unwrap())
        .collect();
    assert!(places.is_sorted());
    // Each message has its own loss with its place.
    places.dedup();
    let mut at = 91;
    let starts = bodies.iter().map(|body| {
        let start = at;
        at += wire::frame(0, body).len() as u64;
        start..at
    });
    let missed: Vec<_> = starts.filter(|place| !places.iter().any(|loss| place.contains(loss))).collect();
    assert!(missed.is_empty() && places.len() >= count, "{missed:?} of {count}: {places:?}");
}

/// Endless texts and ids: the memory between messages is bounded.
#[tokio::test]
async fn endless_objects_and_dumps_need_bounded_memory() {
    if !is_in_own_process(endless_objects_and_dumps_need_bounded_memory) {
        return;
    }
    let mut frames = Vec::new();
    for counter in 0..40_000 {
        let dump = wire::dump((counter % 100) as u8, 100, 1, 2);
        frames.extend(wire::frame(0, &wire::collection(counter, &[wire::created(counter << 20), dump])));
    }
    let bytes = stream(&frames);
    let sent = bytes.len() as u64;
    let script = move |_| Script::send(bytes.clone(), Then::Listen);
    let directory = tempfile::tempdir().unwrap();
    let raw = Raw::bind(script).await;
    let _turn = TURN.lock().await;
    // Events in memory would hide the memory of the session.
    let sink = "[sinks.out]\ntype = \"discard\"";
    let toml = format!("{}\n{sink}\n", listener(&[format!("{{ publish = \"{}\" }}", raw.address)], ""));
    let config = crate::live::config(&toml);
    let memory = process_memory("RssAnon");
    let server = tributary::server::Server::start(&config).await.unwrap();
    until("all is received", || {
        let counters = crate::live::counters(&server);
        (counters.bytes_in == sent && counters.buffered() == 0).then_some(())
    })
    .await;
    let used = process_memory("RssAnon").saturating_sub(memory);
    assert!(used < MOST_BYTES, "{} MiB", used / MIB);
    assert!(server.stop().await.are_balanced());
    drop(directory);
}

/// On the REP socket: an endless reply, and a reply without a request.
#[tokio::test]
async fn an_endless_reply_and_a_reply_without_a_request_close_the_connection() {
    if !is_in_own_process(an_endless_reply_and_a_reply_without_a_request_close_the_connection) {
        return;
    }
    let _turn = TURN.lock().await;
    let ready = [wire::greeting(0), wire::ready("REP")].concat();
    let huge = [&ready[..], &wire::frame(wire::MORE, b""), &wire::long_head(0, 1 << 40)].concat();
    let endless = [&ready[..], &wire::frame(wire::MORE, b"").repeat(10_000)].concat();
    let unasked = [&ready[..], &wire::reply(b"ok").repeat(1_000)].concat();
    for bytes in [huge, endless, unasked] {
        let memory = process_memory("RssAnon");
        let raw = Raw::bind(move |_| Script::send(bytes.clone(), Then::Listen)).await;
        let good = Agent::bind().await;
        let hostile = format!("{{ publish = \"{}\", request = \"{}\" }}", good.publish, raw.address);
        let options = "reconnect = { min = \"10ms\", max = \"50ms\" }\nrequest_timeout = \"500ms\"";
        let daemon = Daemon::start(&listener(&[hostile], options)).await;
        raw.until_closed(2).await;
        // The PUB socket is not affected.
        good.until_subscribed().await;
        good.publish(&wire::collection(0, &[wire::gc_start()])).await;
        daemon.until_named("rbkit.gc.start").await;
        let used = process_memory("RssAnon").saturating_sub(memory);
        assert!(used < MOST_BYTES, "{} MiB", used / MIB);
        let stopped = daemon.stop().await;
        let peer = raw.address.to_string();
        let is_located = |event: &&Value| event["kind"] == "loss" && event["origin"]["peer"] == peer;
        assert!(stopped.events.iter().any(|event| is_located(&event)), "its bytes are lost");
        assert_eq!(good.pub_connections(), 1);
    }
}
