//! `tributary decode bytefrog`: recordings as files give the same events as over sockets.

use crate::bytefrog_support::calls::{Model, Spans, check_lines};
use crate::bytefrog_support::compare::{self, Problems};
use crate::bytefrog_support::contract;
use crate::bytefrog_support::names::Known;
use crate::bytefrog_support::recording::{self, Recording};
use crate::bytefrog_support::replay::Replayed;
use crate::live::binary::{Ended, run};

/// Decodes the files of a recording with these options of the listener.
fn decoded(recording: &Recording, options: &[&str]) -> (Replayed, Ended) {
    let directory = recording::directory().join(&recording.name);
    let path = |name: &str| directory.join(format!("{name}.agent.bin")).display().to_string();
    let peers: Vec<String> = recording.streams.iter().map(|stream| path(&stream.name)).collect();
    let options = options.iter().flat_map(|option| ["-o", option]);
    let mut arguments: Vec<&str> = ["decode", "bytefrog"].into_iter().chain(options).collect();
    arguments.extend(peers.iter().map(String::as_str));
    let ended = run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let run = ended.events().iter().find_map(|event| event["resource"]["bytefrog.run.id"].as_u64());
    (Replayed { run: run.map(|run| run as u8), received: Vec::new(), bytes_sent: 0, peers }, ended)
}

/// All recordings of one run: files have no unregistered connections.
fn runs(prefixes: &[&str]) -> Vec<Recording> {
    let mut all = recording::all(prefixes);
    all.retain(|recording| recording.has_run() && recording.name != "bad-v1-unknown-run");
    all
}

#[test]
fn files_give_the_events_that_sockets_give() {
    let mut problems = Problems::default();
    for recording in runs(&["v1-orig-m", "v2-", "v3-", "v4-codepulse-p", "gen-", "edge-", "bad-"]) {
        problems.with(&recording.name);
        let (replayed, ended) = decoded(&recording, &["emit_definitions=true"]);
        let expected = contract::expected(&recording, Known::All);
        compare::check(&mut problems, &recording, &replayed, &ended.events(), &expected);
        for (stream, peer) in recording.streams.iter().zip(&replayed.peers) {
            let sum = format!("{peer}: {} bytes = ", stream.bytes.len());
            problems.check(ended.stderr.contains(&sum), || format!("no {sum:?} in {}", ended.stderr));
        }
    }
    problems.assert_none();
}

#[test]
fn files_give_the_same_spans_with_the_same_ids_each_time() {
    let mut problems = Problems::default();
    for recording in runs(&["v1-orig-m", "v4-codepulse-m", "gen-"]) {
        problems.with(&recording.name);
        let seen = [(), ()].map(|()| {
            let (_, ended) = decoded(&recording, &["calls=spans"]);
            Spans::of(&mut problems, &recording, &ended.events())
        });
        let [first, second] = &seen;
        check_lines(&mut problems, "a call", &Model::of(&recording, true).calls, &first.calls);
        problems.check(first.ids == second.ids, || "ids differ".to_owned());
    }
    problems.assert_none();
}
