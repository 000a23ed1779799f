//! Traces of Zorka agents that are sent again to another daemon.

use tributary::simulate::zico::{Bodies, Jvm, ZicoDialect};

use super::endless::now;
use super::{Edge, STREAM, events, ids, metric, post};
use crate::live::binary::{Binary, run, until};
use crate::nats_server::NatsServer;

const SESSION: &str = "675135e76025b0d2";

/// Posts the definitions and the trace as a gen2 agent does; returns the statuses.
fn deliver(daemon: &Binary, trace: &str, bodies: &Bodies, is_reset: bool) -> Vec<u16> {
    let to = daemon.address("zorka");
    let session = format!("Content-Type: application/zorka+cbor+v1\r\nX-Zorka-Session-Id: {SESSION}\r\n");
    let mut statuses = Vec::new();
    if !bodies.symbols.is_empty() {
        let headers = format!("{session}X-Zorka-Session-Reset: {is_reset}\r\n");
        statuses.push(post(to, "/agent/submit/agd", &headers, &bodies.symbols).status);
    }
    for part in &bodies.parts {
        let headers = format!("{session}X-Zorka-Session-Reset: false\r\nX-Zorka-Trace-Id: {trace}\r\n");
        statuses.push(post(to, "/agent/submit/trc", &headers, part).status);
    }
    statuses
}

fn spans(server: &NatsServer) -> usize {
    events(server).iter().filter(|event| event["kind"] == "span").count()
}

#[test]
fn a_trace_that_is_sent_again_to_another_daemon_after_a_lost_answer_is_in_the_stream_once() {
    let Some(server) = NatsServer::start() else { return };
    let edges = [Edge::new(&server, "", "", ""), Edge::new(&server, "", "", "")];
    let [first, second] = edges.each_ref().map(Edge::start);
    let mut jvm = Jvm::new(7, 0, now(), ZicoDialect::Gen2);
    let mut is_open = false;
    let mut compared = 0;
    for number in 0..40_u64 {
        let trace = jvm.trace(200, now());
        let submissions = trace.submissions();
        let whole = submissions.last().unwrap();
        let id = format!("{:032x}", 0xabc0_0000 + number);
        let bodies = jvm.bodies(whole);
        let sent = deliver(&first, &id, &bodies, !is_open);
        assert!(sent.iter().all(|status| *status == 202), "{sent:?}");
        let (stored, in_stream) = (ids(&server).len(), spans(&server));
        // The answer is lost. The agent forgets what it has defined, and gives its methods new numbers.
        jvm.forget();
        let again = jvm.bodies(whole);
        jvm.forget();
        // Without a distributed context the ids of spans are others, and so would be that of the trace.
        if again.parts != jvm.bodies(whole).parts {
            jvm.forget();
            is_open = false;
            continue;
        }
        assert!(deliver(&second, &id, &again, true).iter().all(|status| *status == 202));
        assert_eq!(spans(&server), in_stream, "trace {number}");
        // The session that it opens there is one more message.
        assert!(ids(&server).len() <= stored + 1);
        compared += u64::from(again.parts != bodies.parts);
        is_open = false;
    }
    assert!(compared > 3, "{compared} traces were encoded otherwise");
}

#[test]
fn each_report_of_a_trace_that_is_sent_again_is_in_the_stream() {
    let Some(server) = NatsServer::start() else { return };
    let edge = Edge::new(&server, "", "", "");
    let daemon = edge.start();
    let mut jvm = Jvm::new(7, 0, now(), ZicoDialect::Gen2);
    let trace = jvm.trace(200, now());
    let bodies = jvm.bodies(trace.submissions().last().unwrap());
    let id = "1a4e24519af51247249a70e975bbfafe";
    for repeats in 0..3 {
        let sent = deliver(&daemon, id, &bodies, repeats == 0);
        assert!(sent.iter().all(|status| *status == 202), "{sent:?}");
        let reported = metric(&daemon, "tributary_losses_total", "protocol=\"zico\",reason=\"duplicate\"");
        assert_eq!(reported, repeats);
        assert_eq!(server.lines(STREAM).1.len() as u64, repeats, "losses in the stream");
    }
}

#[test]
fn no_event_of_simulated_agents_is_taken_for_a_repeat() {
    let Some(server) = NatsServer::start() else { return };
    let edge = Edge::new(&server, "", "", "");
    let daemon = edge.start();
    let to = daemon.address("zorka").to_string();
    for dialect in ["gen1", "gen2", "doc"] {
        let arguments =
            ["simulate", "zico", "--to", &to, "--count", "3000", "--connections", "4", "--dialect", dialect];
        let ended = run(&arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    for kind in ["span", "log"] {
        let labels = format!("listener=\"zorka\",protocol=\"zico\",kind=\"{kind}\"");
        let handed_over = metric(&daemon, "tributary_events_total", &labels);
        let count = || events(&server).iter().filter(|event| event["kind"] == kind).count() as u64;
        // No answer waits for the last ones.
        until("the events are in the stream", || (count() >= handed_over).then_some(()));
        let found = count();
        assert_eq!(found, handed_over, "{kind}");
        assert!(found > 50, "{kind}: {found}");
    }
}

#[test]
fn traces_of_one_distributed_trace_and_of_other_sessions_are_all_kept() {
    let Some(server) = NatsServer::start() else { return };
    let edge = Edge::new(&server, "", "max_remembered = 0", "");
    let daemon = edge.start();
    let mut jvm = Jvm::new(9, 0, now(), ZicoDialect::Gen2);
    for number in 0..30 {
        let trace = jvm.trace(50, now());
        for submission in trace.submissions() {
            let bodies = jvm.bodies(&submission);
            // All of them have the same trace id, as those of one distributed trace.
            let sent = deliver(&daemon, "1a4e24519af51247249a70e975bbfafe", &bodies, number == 0);
            assert!(sent.iter().all(|status| *status == 202), "{sent:?}");
        }
    }
    let published: u64 =
        metric(&daemon, "tributary_events_total", "listener=\"zorka\",protocol=\"zico\",kind=\"span\"");
    let found = spans(&server) as u64;
    assert_eq!(published, found, "every span that was handed to the sink is in the stream");
    assert!(found > 30);
}
