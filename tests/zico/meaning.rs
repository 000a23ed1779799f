//! ZICO: the meaning of bodies that are not recorded, over several requests.

use std::time::Duration;

use crate::zico_support::cbor::{array, bytes, gen1, gen2, int, map, null, reference, tag, text};
use crate::zico_support::offline::{Answered, Offline};
use serde_json::{Value, json};
use tributary::memory::MemoryBudget;
use tributary::protocol::zico::Options;

const OWN: &str = "00c0ffee12345678";
const TRACE: &str = "1a4e24519af51247249a70e975bbfafe";
const CLOCK: i64 = 1_700_000_000_000;

/// The definitions of the sessions of these tests; 1 is the method `a.B.run()V`.
const STRINGS: [(i64, &str); 6] = [(1, "a.B"), (2, "run"), (3, "()V"), (7, "http"), (8, "db"), (10, "x")];

fn gen2_definitions() -> Vec<u8> {
    let strings = STRINGS.iter().flat_map(|(id, text)| gen2::string(*id, text));
    strings.chain(gen2::method(1, [1, 2, 3])).collect()
}

fn gen1_definitions() -> Vec<u8> {
    let strings = STRINGS.iter().flat_map(|(id, text)| gen1::string(*id, text, 0));
    strings.chain(gen1::method(1, [1, 2, 3])).collect()
}

/// Opens the session of a gen2 agent.
fn gen2_agent(offline: &mut Offline) {
    let answer = gen2_agd(offline, "true", &gen2_definitions());
    assert_eq!(answer.status, 202);
}

fn gen2_agd(offline: &mut Offline, reset: &str, body: &[u8]) -> Answered {
    offline.ask("/agent/submit/agd", &[("X-Zorka-Session-Id", OWN), ("X-Zorka-Session-Reset", reset)], body)
}

fn gen2_trc(offline: &mut Offline, trace: &str, body: &[u8]) -> Answered {
    offline.ask("/agent/submit/trc", &[("X-Zorka-Session-Id", OWN), ("X-Zorka-Trace-Id", trace)], body)
}

/// A gen1 agent.
struct Gen1 {
    uuid: String,
    authkey: String,
    session: String,
}

impl Gen1 {
    fn register(offline: &mut Offline) -> Gen1 {
        let body = br#"{"rkey":"k","name":"demo.host","app":"demo","env":"TST","attrs":{"rack":7}}"#;
        let registered: Value = serde_json::from_str(&offline.ask("/agent/register", &[], body).body).unwrap();
        let text = |key: &str| registered[key].as_str().unwrap().to_owned();
        let mut agent = Gen1 { uuid: text("uuid"), authkey: text("authkey"), session: String::new() };
        agent.open(offline);
        agent
    }

    fn open(&mut self, offline: &mut Offline) -> Answered {
        let body = json!({ "uuid": self.uuid, "authkey": self.authkey }).to_string();
        let answer = offline.ask("/agent/session", &[], body.as_bytes());
        self.session = serde_json::from_str::<Value>(&answer.body).unwrap()["session"].as_str().unwrap().to_owned();
        answer
    }

    fn agd(&self, offline: &mut Offline, body: &[u8]) -> Answered {
        offline.ask("/agent/submit/agd", &[("X-Zorka-Session-UUID", &self.session)], body)
    }

    /// Sends a trace that no sink takes. Returns the status of the answer.
    fn undelivered(&self, offline: &mut Offline, body: &[u8]) -> u16 {
        let headers = [("X-Zorka-Session-UUID", self.session.as_str()), ("X-Zorka-Trace-UUID", TRACE)];
        offline.ask_undelivered("/agent/submit/trc", &headers, body)
    }

    fn trc(&self, offline: &mut Offline, trace: &str, body: &[u8]) -> Answered {
        let headers = [("X-Zorka-Session-UUID", self.session.as_str()), ("X-Zorka-Trace-UUID", trace)];
        offline.ask("/agent/submit/trc", &headers, body)
    }
}

fn attributes(event: &Value) -> &Value {
    &event["attributes"]
}

#[test]
fn a_part_keeps_its_definitions_if_they_change_before_the_next_part() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let x = [(reference(10), reference(8))];
    let first = [gen1::open(100, 1), gen1::begin(CLOCK, 7), gen1::attributes(&x)].concat();
    let answer = agent.trc(&mut offline, TRACE, &first);
    assert!(answer.spans().is_empty());
    let again =
        [gen1::string(1, "c.D", 5), gen1::string(7, "job", 0), gen1::string(8, "other", 0), gen1::string(10, "y", 0)];
    agent.agd(&mut offline, &again.concat());
    let up = [(reference(10), text("late"))];
    let second = [gen1::open(110, 1), gen1::upward(7, &up), gen1::close(120, 1), gen1::close(130, 2)].concat();
    let answer = agent.trc(&mut offline, TRACE, &second);
    let [inner, outer] = answer.spans()[..] else { panic!("{:?}", answer.events) };
    assert_eq!((&outer["name"], &inner["name"]), (&json!("a.B.run"), &json!("c.D.run")));
    assert_eq!(attributes(outer)["zico.trace.type"], "http");
    assert_eq!((&attributes(outer)["x"], &attributes(outer)["y"]), (&json!("db"), &json!("late")));
    assert_eq!(inner["span"]["parent_span_id"], outer["span"]["span_id"]);
    assert_eq!(outer["span"]["duration_ns"], 30 * 65_536);
    assert_eq!(inner["time"], "2023-11-14T22:13:20.000655360Z");
}

#[test]
fn ids_do_not_depend_on_how_a_trace_is_divided_or_where_it_is_in_a_body() {
    let records: Vec<Vec<u8>> = vec![
        gen1::open(100, 1),
        gen1::begin(CLOCK, 7),
        gen1::open(110, 1),
        gen1::close(120, 1),
        gen1::open(121, 1),
        gen1::attributes(&[(text("long"), text(&"x".repeat(300)))]),
        gen1::close(122, 1),
        gen1::close(130, 3),
    ];
    let ids = |cuts: &[usize]| {
        let mut offline = Offline::new(Options::default());
        let agent = Gen1::register(&mut offline);
        agent.agd(&mut offline, &gen1_definitions());
        let mut from = 0;
        let mut ids = Vec::new();
        for cut in cuts.iter().chain(&[records.len()]) {
            let answer = agent.trc(&mut offline, TRACE, &records[from..*cut].concat());
            ids.extend(answer.spans().iter().map(|span| (span["span"].clone(), span["attributes"].clone())));
            from = *cut;
        }
        ids
    };
    let whole = ids(&[]);
    assert_eq!(whole.len(), 3);
    for cut in 1..records.len() {
        assert_eq!(ids(&[cut]), whole, "cut at {cut}");
    }
    assert_eq!(ids(&[1, 2, 3, 4, 5, 6, 7]), whole);
}

#[test]
fn consecutive_items_of_no_record_are_one_loss_and_reading_continues() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let record = [gen1::open(5, 1), gen1::close(6, 1)].concat();
    let run = [gen1::close(1, 1), vec![0xFF], gen1::attributes(&[]), gen1::close(2, 1)].concat();
    let answer = agent.trc(&mut offline, TRACE, &[&run[..], &record, &gen1::close(9, 9), &record].concat());
    assert_eq!(answer.spans().len(), 2);
    let reported: Vec<_> = answer
        .losses()
        .iter()
        .map(|loss| (loss["origin"]["offset"].as_u64().unwrap(), loss["loss"]["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(reported, [(0, run.len() as u64), ((run.len() + record.len()) as u64, gen1::close(9, 9).len() as u64)]);
    assert!(answer.losses().iter().all(|loss| loss["loss"]["reason"] == "malformed"));
    assert_eq!(answer.losses()[1]["loss"]["events"], 1);
    assert_eq!(answer.aside, None, "it was understood");
}

#[test]
fn a_bare_break_closes_a_record_in_gen1_and_not_in_gen2() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let answer = agent.trc(&mut offline, TRACE, &[gen1::open(1, 1), gen1::begin(CLOCK, 7), vec![0xFF]].concat());
    let [span] = answer.spans()[..] else { panic!() };
    assert_eq!(attributes(span)["tributary.incomplete"], json!(["end"]));
    assert!(attributes(span).get("zico.calls").is_none() && span["span"].get("end_time").is_none());
    assert!(answer.losses().is_empty());
    gen2_agent(&mut offline);
    let body = [gen2::open(1, 1), vec![0xFF], gen2::close(2, 1, None)].concat();
    let answer = gen2_trc(&mut offline, TRACE, &body);
    assert_eq!(answer.spans()[0]["span"]["duration_ns"], 1);
    assert_eq!(answer.losses()[0]["loss"]["bytes"], 1);
}

#[test]
fn a_copy_of_a_delivered_trace_is_left_out_and_linked_to_without_a_loss() {
    let sent = Some(0x2108);
    let inner = |span: i64, flags| {
        [
            gen2::open(50, 1),
            gen2::begin(CLOCK + 1, 8, &[span]),
            gen2::open(51, 1),
            gen2::close(52, 1, flags),
            gen2::close(60, 2, flags),
        ]
        .concat()
    };
    let outer = |inner: &[u8]| {
        [&gen2::open(10, 1)[..], &gen2::begin(CLOCK, 7, &[99]), inner, &gen2::close(90, 3, sent)].concat()
    };
    let count = |bodies: &[(&str, Vec<u8>)]| {
        let mut offline = Offline::new(Options::default());
        gen2_agent(&mut offline);
        let answers: Vec<_> = bodies.iter().map(|(trace, body)| gen2_trc(&mut offline, trace, body)).collect();
        assert_eq!(offline.counters.totals().buffered(), 0);
        let lost: u64 =
            answers.iter().flat_map(Answered::losses).map(|loss| loss["loss"]["events"].as_u64().unwrap()).sum();
        let spans: Vec<_> = answers.iter().flat_map(Answered::spans).collect();
        let links: Vec<&Value> =
            spans.iter().flat_map(|span| span["span"]["links"].as_array().into_iter().flatten()).collect();
        // Every link leads to a span that is there.
        for link in &links {
            let is_target = |span: &&&Value| {
                span["span"]["span_id"] == link["span_id"] && span["span"]["trace_id"] == link["trace_id"]
            };
            assert_eq!(spans.iter().filter(is_target).count(), 1, "{link}");
        }
        (answers.iter().map(|answer| answer.spans().len()).collect::<Vec<_>>(), links.len(), lost)
    };
    let other = "ffff24519af51247249a70e975bbfafe";
    // Another trace id and another span id, but the same times on both clocks.
    assert_eq!(count(&[(TRACE, inner(5, sent)), (other, outer(&inner(6, sent)))]), (vec![2, 1], 1, 0));
    // The same ids, also without the flag.
    assert_eq!(count(&[(TRACE, inner(5, None)), (TRACE, outer(&inner(5, None)))]), (vec![2, 1], 1, 0));
    // The same submission again is a loss: it is no inner trace.
    assert_eq!(count(&[(TRACE, inner(5, sent)), (TRACE, inner(5, sent))]), (vec![2, 0], 0, 2));
    let all = outer(&inner(5, sent));
    assert_eq!(count(&[(TRACE, inner(5, sent)), (TRACE, all.clone()), (TRACE, all)]), (vec![2, 1, 0], 1, 3));
    // Not submitted before, or without the flag, or submitted by itself under another id: no copy.
    assert_eq!(count(&[(other, outer(&inner(6, sent)))]), (vec![3], 0, 0));
    assert_eq!(count(&[(TRACE, inner(5, None)), (other, outer(&inner(6, None)))]), (vec![2, 3], 0, 0));
    assert_eq!(count(&[(TRACE, inner(5, sent)), (other, inner(6, sent))]), (vec![2, 2], 0, 0));
    // A trace has one copy: a second one is another trace.
    let twice = [inner(6, sent), inner(7, sent)].concat();
    assert_eq!(count(&[(TRACE, inner(5, sent)), (other, outer(&twice))]), (vec![2, 3], 1, 0));
    // Nested copies: the inner copy is left out with the outer one.
    let middle = |inner: &[u8], span| {
        [&gen2::open(40, 1)[..], &gen2::begin(CLOCK, 8, &[span]), inner, &gen2::close(70, 3, sent)].concat()
    };
    let third = "eeee24519af51247249a70e975bbfafe";
    let bodies =
        [(TRACE, inner(5, sent)), (other, middle(&inner(6, sent), 20)), (third, outer(&middle(&inner(7, sent), 21)))];
    assert_eq!(count(&bodies), (vec![2, 1, 1], 2, 0));
}

#[test]
fn a_copy_of_the_local_tracer_of_gen1_takes_one_tick_more_at_most() {
    // Times are counted from the start of the trace that is submitted.
    let call = |start: u64, ticks: u64, kind, clock| {
        [gen1::open(start, 1), gen1::begin(clock, kind), gen1::close(start + ticks, 1)].concat()
    };
    let outer =
        |inner: &[Vec<u8>]| [gen1::open(0, 1), gen1::begin(CLOCK, 7), inner.concat(), gen1::close(900, 3)].concat();
    let count = |bodies: &[Vec<u8>]| {
        let mut offline = Offline::new(Options::default());
        let agent = Gen1::register(&mut offline);
        agent.agd(&mut offline, &gen1_definitions());
        let answers: Vec<_> = (0..)
            .zip(bodies)
            .map(|(number, body)| agent.trc(&mut offline, &format!("{:032x}", 7 + number), body))
            .collect();
        assert_eq!(offline.counters.totals().buffered(), 0);
        assert!(answers.iter().all(|answer| answer.losses().is_empty()), "nothing is lost");
        let spans = answers.iter().flat_map(Answered::spans);
        let links: Vec<String> = spans
            .flat_map(|span| span["span"]["links"].as_array().into_iter().flatten())
            .map(|link| link["trace_id"].as_str().unwrap().trim_start_matches('0').to_owned())
            .collect();
        (answers.iter().map(|answer| answer.spans().len()).collect::<Vec<_>>(), links.join(" "))
    };
    let at = CLOCK + 1;
    let reported = |spans: &[usize], links: &str| (spans.to_vec(), links.to_owned());
    assert_eq!(count(&[call(0, 20, 8, at), outer(&[call(3, 20, 8, at)])]), reported(&[1, 1], "7"));
    assert_eq!(count(&[call(0, 20, 8, at), outer(&[call(3, 21, 8, at)])]), reported(&[1, 1], "7"));
    for other in [call(3, 19, 8, at), call(3, 22, 8, at), call(3, 20, 7, at), call(3, 20, 8, at + 1)] {
        assert_eq!(count(&[call(0, 20, 8, at), outer(&[other])]), reported(&[1, 2], ""));
    }
    // Not submitted by itself.
    assert_eq!(count(&[outer(&[call(3, 20, 8, at)])]), reported(&[2], ""));
    // Three in one millisecond: each is linked to, and a fourth is in the tree.
    let three = [call(0, 4, 8, at), call(0, 5, 8, at), call(0, 4, 8, at)];
    let copies = [call(3, 5, 8, at), call(8, 6, 8, at), call(14, 4, 8, at), call(18, 4, 8, at)];
    let bodies: Vec<_> = three.into_iter().chain([outer(&copies)]).collect();
    assert_eq!(count(&bodies), reported(&[1, 1, 1, 2], "7 8 9"));
    // In a copy of a copy the inner one is left out with the outer one.
    let middle = |start: u64, ticks| {
        [gen1::open(start, 1), gen1::begin(at, 7), call(start + 2, 20, 8, at), gen1::close(start + ticks, 2)].concat()
    };
    assert_eq!(count(&[call(0, 20, 8, at), middle(0, 30), outer(&[middle(5, 31)])]), reported(&[1, 1, 1], "7 8"));
    // Bodies of the streaming tracer have absolute times, and it sends each trace once.
    let streamed = [gen1::open(800, 1), gen1::begin(CLOCK, 7), call(803, 20, 8, at), gen1::close(900, 3)].concat();
    assert_eq!(count(&[call(0, 20, 8, at), streamed]), reported(&[1, 2], ""));
}

#[test]
fn a_copy_is_recognised_after_the_session_is_opened_again() {
    let mut offline = Offline::new(Options::default());
    let mut agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let inner = |start, method| [gen1::open(start, method), gen1::begin(CLOCK, 8), gen1::close(start + 20, 1)].concat();
    assert_eq!(agent.trc(&mut offline, TRACE, &inner(0, 1)).spans().len(), 1);
    // Methods are numbered again.
    agent.open(&mut offline);
    let strings: Vec<u8> = STRINGS.iter().flat_map(|(id, text)| gen1::string(*id, text, 0)).collect();
    agent.agd(&mut offline, &[&strings[..], &gen1::method(1, [2, 1, 3]), &gen1::method(2, [1, 2, 3])].concat());
    let outer = [gen1::open(0, 1), gen1::begin(CLOCK, 7), inner(3, 2), gen1::close(900, 3)].concat();
    let answer = agent.trc(&mut offline, "ffff24519af51247249a70e975bbfafe", &outer);
    let [outer] = answer.spans()[..] else { panic!("{:?}", answer.events) };
    assert_eq!(outer["span"]["links"][0]["trace_id"], TRACE);
}

#[test]
fn a_copy_is_left_out_only_after_its_trace_is_delivered() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let inner = |start| [gen1::open(start, 1), gen1::begin(CLOCK, 8), gen1::close(start + 20, 1)].concat();
    let outer = [gen1::open(0, 1), gen1::begin(CLOCK, 7), inner(3), gen1::close(900, 3)].concat();
    assert_eq!(agent.undelivered(&mut offline, &inner(0)), 503);
    assert_eq!(agent.trc(&mut offline, TRACE, &outer).spans().len(), 2);
    // An outer trace that is sent again because it was not delivered is linked again.
    agent.trc(&mut offline, TRACE, &inner(0));
    assert_eq!(agent.undelivered(&mut offline, &outer), 503);
    assert_eq!(agent.trc(&mut offline, TRACE, &outer).spans().len(), 1);
    assert_eq!(agent.trc(&mut offline, TRACE, &outer).spans().len(), 2, "its copy was delivered before");
}

#[test]
fn a_fault_inside_a_copy_is_no_loss_because_its_trace_was_delivered() {
    let mut offline = Offline::new(Options { max_record_bytes: 1 << 10, ..Options::default() });
    gen2_agent(&mut offline);
    let inside = [
        vec![0xFF],
        gen2::attribute(10, text(&"x".repeat(2000))),
        tag(6, array(&[int(7), int(10), text(&"y".repeat(2000))])),
        tag(7, array(&[int(1), int(1), text(&"z".repeat(2000)), int(0), array(&[])])),
        tag(8, int(1)),
    ];
    let body = |inside: &[u8]| {
        let copy = [&gen2::open(5, 1)[..], &gen2::begin(CLOCK, 8, &[55]), inside, &gen2::close(6, 1, None)].concat();
        [gen2::open(1, 1), gen2::begin(CLOCK, 7, &[]), copy, gen2::close(9, 2, None)].concat()
    };
    gen2_trc(&mut offline, TRACE, &body(&[]));
    let answer = gen2_trc(&mut offline, TRACE, &body(&inside.concat()));
    assert!(answer.losses().is_empty(), "{:?}", answer.losses());
    assert_eq!(answer.spans().len(), 1);
    assert_eq!(offline.counters.totals().buffered(), 0);
    // Cut at each byte.
    let whole = body(&inside.concat());
    for end in 0..whole.len() {
        gen2_trc(&mut offline, TRACE, &whole[..end]);
        assert_eq!(offline.counters.totals().buffered(), 0, "{end}");
    }
}

#[test]
fn a_trace_in_another_session_is_no_copy() {
    let mut offline = Offline::new(Options::default());
    let body = [gen2::open(50, 1), gen2::begin(CLOCK, 8, &[5]), gen2::close(60, 1, Some(0x2108))].concat();
    for session in ["0000000000000001", "0000000000000002"] {
        let headers = [("X-Zorka-Session-Id", session), ("X-Zorka-Session-Reset", "true"), ("X-Zorka-Trace-Id", TRACE)];
        offline.ask("/agent/submit/agd", &headers, &gen2_definitions());
        let answer = offline.ask("/agent/submit/trc", &headers, &body);
        assert_eq!(answer.spans().len(), 1);
        // The id itself, with which anyone could submit, is not shown.
        let digest = &crate::zico_support::sha256(session)[..16];
        assert_eq!(answer.spans()[0]["resource"]["zico.session.id"], digest);
    }
}

#[test]
fn values_of_every_kind_are_shown_and_null_removes_a_key() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let pairs = [
        (text("null"), null()),
        (text("gone"), int(1)),
        (text("gone"), null()),
        (text("twice"), int(1)),
        (text("twice"), int(2)),
        (text("bytes"), bytes(&[1, 2, 3])),
        (text("least"), tag_free(&[0x3B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])),
        (text("most"), tag_free(&[0x1B, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])),
        (text("list"), array(&[null(), reference(8), bytes(&[255]), array(&[])])),
        (text("map"), map(&[(int(1), text("a")), (reference(7), int(-2)), (text("1"), text("b"))])),
        (text("tagged"), tag(33, array(&[text("t")]))),
        (text("unknown"), reference(4711)),
        (text("pieces"), tag_free(&[0x7F, 0x61, b'a', 0x60, 0x62, b'b', b'c', 0xFF])),
        (text("open"), tag_free(&[0xBF, 0x61, b'k', 0x9F, 0x01, 0xFF, 0xFF])),
        (text("infinite"), tag_free(&[0xF9, 0x7C, 0x00])),
        (text("zico.calls"), int(3)),
        (int(17), int(17)),
        (array(&[int(1)]), int(18)),
    ];
    let body = [gen1::open(1, 1), gen1::attributes(&pairs), gen1::close(2, 1)].concat();
    let answer = agent.trc(&mut offline, TRACE, &body);
    let mut found = attributes(answer.spans()[0]).clone();
    for own in ["code.function.name", "zico.method.signature", "zico.calls"] {
        found.as_object_mut().unwrap().remove(own).unwrap();
    }
    let expected = json!({
        "twice": 2, "bytes_base64": "AQID", "least": -18446744073709551616.0, "most": u64::MAX,
        "list": [null, "db", "/w==", []], "map": { "http": -2, "1": "b" }, "tagged": { "tag": 33, "value": ["t"] },
        "unknown": "symbol#4711", "pieces": "abc", "open": { "k": [1] }, "infinite": "Infinity",
        "zico.attribute.zico.calls": 3, "17": 17, "cbor:8101": 18, "zico.unresolved.symbols": [4711],
    });
    assert_eq!(crate::zico_support::contract::plain(&found), crate::zico_support::contract::plain(&expected));
    assert_eq!(
        answer.losses()[0]["loss"],
        json!({ "reason": "unresolved", "bytes": 0, "events": 1, "detail": "records use ids of methods or strings that were not defined" })
    );
}

/// A CBOR byte string without a tag.
fn tag_free(bytes: &[u8]) -> Vec<u8> {
    bytes.to_vec()
}

#[test]
fn upward_attributes_find_the_nearest_trace_of_their_type() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let up = |kind, key: &str| gen1::upward(kind, &[(text(key), int(1))]);
    let body = [
        gen1::open(1, 1),
        up(0, "before"),
        gen1::begin(CLOCK, 7),
        gen1::open(2, 1),
        gen1::begin(CLOCK, 7),
        gen1::open(3, 1),
        gen1::begin(CLOCK, 8),
        gen1::open(4, 1),
        up(0, "any"),
        up(7, "http"),
        up(8, "db"),
        up(10, "none"),
        gen1::close(5, 1),
        up(8, "own"),
        gen1::close(6, 1),
        up(8, "nowhere"),
        gen1::close(7, 1),
        up(7, "outer"),
        gen1::close(8, 1),
    ]
    .concat();
    let answer = agent.trc(&mut offline, TRACE, &body);
    let found: Vec<Vec<&str>> = answer
        .spans()
        .iter()
        .map(|span| {
            let keys = attributes(span).as_object().unwrap().keys().map(String::as_str);
            keys.filter(|key| !key.contains('.')).collect()
        })
        .collect();
    assert_eq!(found, [vec!["none"], vec!["any", "db", "own"], vec!["http", "nowhere"], vec!["before", "outer"]]);
}

#[test]
fn definitions_that_a_host_sent_in_forms_apply_to_its_doc_traces() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    let string = |id, of: &str| tag(0x0D, array(&[int(id), text(of), int(0)]));
    let method = tag(0x0E, array(&[int(1), int(1), int(2), int(3)]));
    let definitions =
        [string(1, "a.B"), string(2, "run"), string(3, "()V"), method, tag(0x0F, array(&[text("rack"), int(8)]))];
    let form = |data: &[u8]| format!("host={}&data={}", agent.uuid, base64(data).replace('+', "%2B"));
    let answer = offline.ask("/submit/agent", &[], form(&definitions.concat()).as_bytes());
    assert_eq!((answer.status, answer.events.len()), (202, 0), "{:?}", answer.events);
    let word = |low: u64, high: u64| bytes(&(high << 40 | low).to_be_bytes());
    let record = [vec![0xCA, 0x9F], word(1000, 1), tag(0x0D, word(1001, 1)), vec![0xFF]].concat();
    let in_session = agent.trc(&mut offline, TRACE, &record);
    assert_eq!(in_session.names(), ["a.B.run"]);
    // The session's own definitions come first.
    agent.agd(&mut offline, &string(2, "own"));
    assert_eq!(agent.trc(&mut offline, TRACE, &record).names(), ["a.B.own"]);
    let in_form = offline.ask("/submit/agent", &[], form(&record).as_bytes());
    let [span] = in_form.spans()[..] else { panic!("{:?}", in_form.events) };
    assert_eq!(span["name"], "a.B.run");
    let resource = &span["resource"];
    assert_eq!((&resource["host.name"], &resource["zico.agent.rack"]), (&json!("demo.host"), &json!(8)));
    assert_eq!(in_session.spans()[0]["resource"]["zico.agent.rack"], 7, "as it registered");
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let word = group.iter().chain([0, 0].iter()).take(3).fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        for place in 0..4 {
            let digit = ALPHABET[(word >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[test]
fn events_report_that_sessions_open_reset_and_end() {
    let mut offline = Offline::new(Options::default());
    let names = |answer: Answered| answer.names().iter().map(ToString::to_string).collect::<Vec<_>>();
    let definitions = gen2_definitions();
    assert_eq!(names(gen2_agd(&mut offline, "true", &definitions)), ["zico.session.opened"]);
    assert!(names(gen2_agd(&mut offline, "false", &definitions)).is_empty());
    assert_eq!(names(gen2_agd(&mut offline, "True", &gen2::string(1, "c.D"))), ["zico.session.reset"]);
    let record = [gen2::open(1, 1), gen2::close(2, 1, None)].concat();
    let answer = gen2_trc(&mut offline, TRACE, &record);
    assert_eq!(answer.spans()[0]["name"], "method#1", "its definition is gone");
    assert_eq!(attributes(answer.spans()[0])["zico.unresolved.method"], 1);
    offline.elapsed += Duration::from_secs(3600);
    assert_eq!(gen2_trc(&mut offline, TRACE, &record).status, 401);
    offline.pass(Duration::ZERO);
    assert_eq!(names(gen2_agd(&mut offline, "true", &definitions)), ["zico.session.opened"]);
    // Gen1: a registration is an event, and a key has one session while it is live.
    let mut agent = Gen1::register(&mut offline);
    let session = agent.session.clone();
    assert_eq!(names(agent.open(&mut offline)), ["zico.session.reset"]);
    assert_eq!(agent.session, session);
    let again = offline.ask("/agent/register", &[], br#"{"rkey":"k","name":"demo.host","app":"demo","env":"TST"}"#);
    assert_eq!((again.status, names(again)), (200, vec!["zico.agent.seen".to_owned()]));
}

#[test]
fn definitions_are_events_with_emit_definitions() {
    let mut offline = Offline::with(Options::default(), MemoryBudget::new(256 << 20), true);
    let agent = Gen1::register(&mut offline);
    let answer = agent.agd(&mut offline, &gen1_definitions());
    assert_eq!(answer.events.len(), STRINGS.len() + 1);
    let (string, method) = (&answer.events[0], &answer.events[STRINGS.len()]);
    assert_eq!((&string["name"], &string["severity"]), (&json!("zico.string"), &json!("DEBUG")));
    assert_eq!(attributes(string)["zico.string.text"], "a.B");
    assert_eq!(
        (&method["name"], &attributes(method)["code.function.name"]),
        (&json!("zico.method"), &json!("a.B.run"))
    );
    assert_eq!(attributes(method)["zico.method.signature"], "()V");
}

#[test]
fn ticks_continue_when_their_counter_wraps_and_a_backward_record_is_marked() {
    let mut offline = Offline::new(Options::default());
    let agent = Gen1::register(&mut offline);
    agent.agd(&mut offline, &gen1_definitions());
    let last = (1 << 40) - 1;
    let body = [gen1::open(last, 1), gen1::begin(CLOCK, 7), gen1::open(3, 1), gen1::close(2, 1), gen1::close(9, 2)];
    let answer = agent.trc(&mut offline, TRACE, &body.concat());
    let [inner, outer] = answer.spans()[..] else { panic!() };
    assert_eq!(
        (&outer["span"]["duration_ns"], &inner["time"]),
        (&json!(10 * 65_536), &json!("2023-11-14T22:13:20.000262144Z"))
    );
    assert_eq!(attributes(inner)["zico.time.backward"], true);
    assert!(inner["span"].get("duration_ns").is_none() && inner["span"].get("end_time").is_none());
    assert!(attributes(inner).get("tributary.incomplete").is_none());
}
