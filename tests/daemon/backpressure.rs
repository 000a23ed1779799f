//! A sink that cannot write slows the agents down and loses nothing.

use std::time::Duration;

use crate::live::puppet::{Mood, Strings};
use crate::live::{connect, losses, send_all, until, until_handshake_timeout, wire, within};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use tributary::pipeline::accounting::Totals;
use tributary::pipeline::options::QueueOptions;
use tributary::server::Server;

/// The maximum number of spans between a peer and a sink that stalls: 64 batches of 1,024 that the sink has taken, those of
/// its queue, and the buffers of a socket, about 6 MiB with 83 bytes for each span.
const MAX_IN_FLIGHT: u64 = 200_000;

/// A write that waits this long counts as one that the daemon does not read. Nothing but time shows it: the buffers of the system do not
/// say how much they still take.
const NOT_READ: Duration = Duration::from_millis(300);

/// A daemon with one sink, whose queue holds one batch.
async fn daemon(strings: &Strings, options: &str) -> Server {
    let strings = strings.clone();
    let queue = QueueOptions { buffer_batches: 1, ..QueueOptions::default() };
    let add = |sinks: &mut tributary::pipeline::Sinks| sinks.add("puppet", queue, move || Ok(strings.puppet()));
    Server::start_with(&crate::live::config(&crate::live::listener(options)), add).await.unwrap()
}

async fn stop(server: Server) -> Totals {
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    totals
}

/// How many events the sink claims: those that wait for capacity of its queue, too.
fn claimed(server: &Server) -> u64 {
    server.accounting().totals().sinks[0].events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_sink_stops_the_senders_writes_and_nothing_is_lost() {
    let strings = Strings::new(Mood::Stall);
    let server = daemon(&strings, "span_idle = \"1h\"").await;
    let mut stream = connect(&server).await;
    socket2::SockRef::from(&stream).set_send_buffer_size(64 << 10).unwrap();
    stream.write_all(&wire::work(0).0).await.unwrap();
    let spans = wire::span(1).repeat(500);
    let (mut rest, mut sent, mut waited) = (&spans[..], 0_u64, 0);
    // Only an answer that stays out for a good while is taken for a stop.
    while waited < 3 {
        assert!(sent < MAX_IN_FLIGHT, "the sender may go on and on");
        match timeout(NOT_READ, stream.write(rest)).await {
            Ok(written) => rest = &rest[written.unwrap()..],
            Err(_) => waited += 1,
        }
        if rest.is_empty() {
            (rest, sent) = (&spans[..], sent + 500);
        }
    }
    let in_hand = crate::live::counters(&server).bytes_in;
    assert!(in_hand < sent * 83, "the daemon has stopped reading");
    strings.set(Mood::Write);
    within("the sender continues", stream.write_all(rest)).await.unwrap();
    send_all(stream, &[]).await;
    let totals = stop(server).await;
    assert_eq!(totals.sinks[0].written, 1 + sent + 500);
    assert_eq!(totals.listeners[0].lost(), 0);
    assert!(losses(&strings.written()).is_empty());
}

#[tokio::test]
async fn time_that_the_daemon_takes_is_not_counted_against_the_peer() {
    let strings = Strings::new(Mood::Write);
    let limits = "message_timeout = \"3500ms\"\nmin_message_rate = 0\nidle_timeout = \"3500ms\"\nspan_idle = \"1h\"\n\
                  handshake_timeout = \"4500ms\"";
    let server = daemon(&strings, limits).await;
    // The first two fill the sink and its queue. Each of the others has the daemon wait with a whole span in its hands,
    // and after that there is: nothing, half a span, half of a long string.
    let half_span = &wire::span(2)[..40];
    let half_string = [wire::string_head(3, 100_000), vec![b'x'; 1_000]].concat();
    let rests = [&[][..], &[], &[], half_span, &half_string];
    strings.set(Mood::Stall);
    let mut streams = Vec::new();
    for (number, rest) in (1..).zip(rests) {
        let mut stream = connect(&server).await;
        // The process goes out with the span, and blocks.
        let begin = [&wire::process()[..], &wire::named_span(1, "one"), &wire::trace(), rest].concat();
        stream.write_all(&begin).await.unwrap();
        until("it is claimed", || (claimed(&server) == 2 * number).then_some(())).await;
        streams.push(stream);
    }
    // Every other limit is shorter: it would have passed, if this time counted.
    until_handshake_timeout(&server).await;
    strings.set(Mood::Write);
    let ends = [
        wire::named_span(2, "two"),
        [&wire::span(2)[40..], &wire::string(2, "two")[..]].concat(),
        [vec![b'x'; 99_000], wire::named_span(2, "two")].concat(),
    ];
    for (stream, end) in streams[2..].iter_mut().zip(ends) {
        stream.write_all(&end).await.unwrap();
    }
    for stream in streams.drain(2..) {
        send_all(stream, &[]).await;
    }
    let totals = stop(server).await;
    assert_eq!(losses(&strings.written()), [&serde_json::Value::Null; 0]);
    assert_eq!(totals.listeners[0].lost(), 0, "{totals:?}");
    assert_eq!(strings.written_names().iter().filter(|name| *name == "two").count(), 3);
}

#[tokio::test]
async fn a_span_whose_lists_wait_with_the_system_is_not_taken_for_complete() {
    let strings = Strings::new(Mood::Write);
    let server = daemon(&strings, "span_idle = \"1s\"\nhandshake_timeout = \"2s\"").await;
    let mut stream = connect(&server).await;
    stream.write_all(&[wire::process(), wire::string(2, "load")].concat()).await.unwrap();
    until("the process is written", || (strings.written().len() == 1).then_some(())).await;
    // Each span lets the one before it go: into the sink, which stalls, into its queue, and the third waits for
    // capacity.
    strings.set(Mood::Stall);
    for (claims, name) in [(1, "one"), (2, "two"), (3, "three"), (4, "four")] {
        stream.write_all(&wire::named_span(1, name)).await.unwrap();
        until("it is claimed", || (claimed(&server) >= claims).then_some(())).await;
    }
    // The daemon reads nothing by now.
    stream.write_all(&wire::metric(2, 0.5)).await.unwrap();
    // `span_idle` is shorter: it has passed, too.
    until_handshake_timeout(&server).await;
    strings.set(Mood::Write);
    send_all(stream, &[]).await;
    stop(server).await;
    let written = strings.written();
    assert_eq!(strings.written_names().last().unwrap(), "four", "{written:?}");
    assert_eq!(written.last().unwrap()["attributes"]["load"], 0.5);
}
