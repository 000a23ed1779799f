//! Bodies that are sent again, as tracers do that wait in vain for an answer.

use std::sync::Arc;
use std::time::Duration;

use tributary::event::{Batch, BatchBuilder};
use tributary::protocol::datadog_agent::Options;
use tributary::protocol::{Exchange, Flow, Output, RequestOutcome, Work};

use crate::offline::{Offline, Recorded, recorded};

fn body() -> Recorded {
    recorded().into_iter().find(|case| case.name == "py4-v05").unwrap()
}

#[test]
fn a_body_that_is_sent_again_is_answered_as_the_first_and_counted() {
    let (case, mut offline) = (body(), Offline::new());
    let first = offline.replay(&case);
    let again = offline.replay(&case);
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert!(again.events.is_empty() && first.spans().len() == 12);
    let totals = offline.counters.totals();
    assert_eq!((totals.repeats[0], totals.ignored()), (12, case.body.len() as u64));
    offline.elapsed += Duration::from_secs(61);
    assert_eq!(offline.replay(&case).spans().len(), 12, "it is forgotten after a minute");
    offline.assert_balance();
}

#[test]
fn without_repeat_time_every_body_is_written() {
    let (case, mut offline) = (body(), Offline::with(Options { repeat_time: Duration::ZERO, ..Options::default() }));
    assert_eq!((offline.replay(&case).spans().len(), offline.replay(&case).spans().len()), (12, 12));
}

#[test]
fn a_body_whose_first_delivery_failed_is_written_by_its_repeat() {
    let (case, offline) = (body(), Offline::new());
    let request = || Offline::request(&case.path, &[], &case.body);
    let mut out = Output::new(BatchBuilder::new(Offline::origin()));
    let mut first = offline.exchange.work(request(), None, offline.now());
    while first.step(offline.now(), &mut out) == Flow::Again {}
    assert_eq!(out.batch.take().len(), 12);
    // The repeat arrives while the first is worked on: it waits.
    let mut second = offline.exchange.work(request(), None, offline.now());
    assert_eq!(second.step(offline.now(), &mut out), Flow::Again);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(second.poll_ready(&mut context).is_pending());
    assert_eq!(first.respond(RequestOutcome::Failed, offline.now()).status, 503);
    assert!(second.poll_ready(&mut context).is_ready());
    while second.step(offline.now(), &mut out) == Flow::Again {}
    assert_eq!(out.batch.take().len(), 12);
    assert_eq!(second.respond(RequestOutcome::Delivered, offline.now()).status, 200);
}

#[test]
fn bodies_of_one_process_share_its_resource() {
    let offline = Offline::with(Options { repeat_time: Duration::ZERO, ..Options::default() });
    let case = body();
    let batches: Vec<_> = (0..2)
        .map(|_| {
            let mut out = Output::new(BatchBuilder::new(Offline::origin()));
            let mut work = offline.exchange.work(Offline::request(&case.path, &[], &case.body), None, offline.now());
            while work.step(offline.now(), &mut out) == Flow::Again {}
            out.batch.take()
        })
        .collect();
    let resources = |batch: &Batch| batch.events().map(|event| Arc::as_ptr(event.resource())).collect::<Vec<_>>();
    assert_eq!(resources(&batches[0]), resources(&batches[1]));
}

#[test]
fn the_upper_half_of_a_trace_id_is_that_of_an_earlier_chunk() {
    let span = |meta: &str| format!(r#"[[{{"name":"a","trace_id":7,"span_id":1,"start":5,"duration":1{meta}}}]]"#);
    let (mut offline, json) = (Offline::new(), [("content-type", "application/json")]);
    let first = offline.ask("/v0.4/traces", &json, span(r#","meta":{"_dd.p.tid":"6b00350b00000000"}"#).as_bytes());
    let later = offline.ask("/v0.4/traces", &json, span("").as_bytes());
    for answered in [first, later] {
        assert_eq!(answered.events[0]["span"]["trace_id"], "6b00350b000000000000000000000007");
    }
}
