//! `tributary decode rbkit`: files of messages give the same events as sockets.

use crate::live::binary::{Ended, run};
use crate::rbkit_support::compare::{Problems, check_message, check_resource, named, of_message};
use crate::rbkit_support::recording::{self, Session, Step};

fn decode(arguments: &[String]) -> Ended {
    let all: Vec<&str> = ["decode", "rbkit"].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let ended = run(&all);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

/// The files of a conversation in order.
fn files(session: &Session) -> Vec<String> {
    let file = |step: &Step| match step {
        Step::Handshake(message) | Step::Publish(message) => Some(session.path(message).display().to_string()),
        _ => None,
    };
    session.steps.iter().filter_map(file).collect()
}

#[test]
fn files_of_all_dialects_give_the_same_events_as_sockets() {
    let mut problems = Problems::default();
    for session in recording::sessions() {
        let events = decode(&files(&session)).events();
        let mut count = 0;
        for message in session.published() {
            problems.with(format!("{} {}", session.name, message.file));
            let mine = of_message(&events, message.counter().unwrap());
            count += mine.len();
            check_message(&mut problems, message, &mine);
        }
        problems.with(&session.name);
        let mut answers: Vec<_> = session.handshakes().map(|message| &message.decoded).collect();
        answers.dedup_by(|later, earlier| later["payload"] == earlier["payload"]);
        let handshakes = named(&events, "rbkit.handshake").len();
        problems.check(handshakes == answers.len(), || format!("{handshakes} handshakes, not {}", answers.len()));
        problems.check(events.len() == count + handshakes, || format!("{} events more", events.len() - count));
        check_resource(&mut problems, answers[0], &events);
    }
    problems.assert_none();
}

/// A single message is decoded without a handshake.
#[test]
fn single_messages_and_replies_are_decoded_or_lost() {
    let mut problems = Problems::default();
    for (channel, cases) in [("pub", recording::messages()), ("rep", recording::replies())] {
        for case in cases {
            problems.with(&case.name);
            let path = recording::directory().join(&case.message.file).display().to_string();
            let events = decode(&["--channel".to_owned(), channel.to_owned(), path]).events();
            let faults: Vec<_> =
                crate::live::losses(&events).into_iter().filter(|loss| loss["reason"] != "gap").collect();
            // The request of a single `ok` is unknown.
            let is_good = case.outcome == "ok" || case.message.body == b"ok";
            problems.check(faults.is_empty() == is_good, || format!("{}: {faults:?}", case.outcome));
            if case.outcome == "reject" {
                continue;
            }
            if channel == "rep" {
                check_resource(&mut problems, &case.message.decoded, named(&events, "rbkit.handshake"));
                problems.check(named(&events, "rbkit.handshake").len() == 1, || "no handshake".to_owned());
            } else {
                check_message(&mut problems, &case.message, &of_message(&events, case.message.counter().unwrap()));
            }
        }
    }
    problems.assert_none();
}

/// The form of a file shows what it is.
#[test]
fn a_file_may_have_the_bytes_of_a_connection() {
    for (name, side, handshakes, messages) in [
        ("libzmq-client-3.1", "pub-agent-to-client", 0, 4),
        ("libzmq-client-3.1", "rep-agent-to-client", 1, 0),
        ("minimal-client-3.0", "pub-agent-to-client", 0, 4),
        ("minimal-client-3.0", "rep-agent-to-client", 1, 0),
    ] {
        let path = recording::directory().join(format!("zmtp/{name}/{side}.bin")).display().to_string();
        let ended = decode(&[path]);
        let events = ended.events();
        assert!(crate::live::losses(&events).is_empty(), "{name} {side}");
        assert_eq!(named(&events, "rbkit.handshake").len(), handshakes, "{name} {side}: {}", ended.stderr);
        let mut counters: Vec<_> = events.iter().filter_map(|event| event["origin"]["sequence"].as_u64()).collect();
        counters.dedup();
        if messages > 0 {
            assert_eq!(counters.len(), messages, "{name} {side}");
        }
    }
}
