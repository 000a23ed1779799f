//! ZICO over HTTP: every recorded conversation against the whole daemon, and the answers to agents.

use std::path::Path;

use crate::live::{Daemon, within};
use crate::zico_support::client::{Reply, ask, converse, listener, post, quarantined, reply};
use crate::zico_support::compare::compare;
use crate::zico_support::offline::Offline;
use crate::zico_support::{Case, DEEPEST, case, cases};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const CBOR: (&str, &str) = ("Content-Type", "application/zorka+cbor+v1");
const RKEY: &str = "demo-registration-key";

async fn daemon(directory: &Path) -> Daemon {
    Daemon::start(&listener(directory, "")).await
}

fn own(session: &str) -> (&str, &str) {
    ("X-Zorka-Session-Id", session)
}

/// Recorded definitions and a trace of gen2.
fn minimal() -> (Vec<u8>, Vec<u8>) {
    let case = case("gen2-writer-min");
    (case.exchanges[0].body.clone(), case.exchanges[1].body.clone())
}

#[tokio::test]
async fn every_recorded_conversation_gets_its_answers_and_gives_the_expected_spans() {
    // The deepest one is decoded without a socket, and 20,000 nested calls with one.
    for case in cases().into_iter().filter(|case| case.name != DEEPEST) {
        let directory = tempfile::tempdir().unwrap();
        let (answers, rest) = converse(&case, &listener(directory.path(), ""), directory.path()).await;
        compare(&case, &answers, &rest);
    }
}

#[tokio::test]
async fn success_is_an_empty_202_with_a_length_and_a_refusal_gives_a_reason() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let (agd, trc) = minimal();
    let reset = [own("00c0ffee12345678"), ("x-zorka-session-reset", "true"), CBOR];
    let refused = ask(&mut stream, &post("/agent/submit/trc", &[own("00c0ffee12345678"), CBOR], &trc)).await;
    assert_eq!(refused.status, 401);
    assert!(serde_json::from_str::<Value>(&refused.body).unwrap()["reason"].is_string());
    for request in [
        post("/agent/submit/agd", &reset, &agd),
        // Header names in any case, a slash behind the path, the session in upper case.
        post("/agent/submit/trc/", &[("x-zOrKa-SESSION-id", "00C0FFEE12345678"), CBOR], &trc),
        post("/agent/submit/trc", &[own("00c0ffee12345678"), CBOR], b""),
    ] {
        let Reply { status, headers, body } = ask(&mut stream, &request).await;
        assert_eq!((status, headers["content-length"].as_str(), body.as_str()), (202, "0", ""));
    }
    let nowhere = ask(&mut stream, &post("/agent", &[], b"x")).await;
    assert_eq!(nowhere.status, 404);
    let get = ask(&mut stream, b"GET /agent/submit/trc HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert_eq!((get.status, get.headers["allow"].as_str()), (405, "POST"));
    let stopped = daemon.stop().await;
    assert_eq!(stopped.events.iter().filter(|event| event["kind"] == "span").count(), 1);
    let refused: u64 = stopped
        .events
        .iter()
        .filter(|event| event["loss"]["reason"] == "unauthorized")
        .map(|event| event["loss"]["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(refused, trc.len() as u64);
}

#[tokio::test]
async fn the_loss_of_a_refused_request_does_not_contain_a_key_of_its_query() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let refused = ask(&mut stream, &post("/nowhere?api_key=SECRET&page=1", &[], b"x")).await;
    assert_eq!(refused.status, 404);
    let stopped = daemon.stop().await;
    let details: Vec<_> = stopped.events.iter().filter_map(|event| event["loss"]["detail"].as_str()).collect();
    assert_eq!(details, ["the request was refused: POST /nowhere?api_key=hidden&page=1, 404"]);
}

#[tokio::test]
async fn a_chunked_body_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let (agd, trc) = minimal();
    for (path, reset, body) in [("agd", "true", agd), ("trc", "false", trc)] {
        let head = format!(
            "POST /agent/submit/{path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\
             X-Zorka-Session-Id: 00c0ffee12345678\r\nX-Zorka-Session-Reset: {reset}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        for piece in body.chunks(7) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            stream.write_all(&chunk).await.unwrap();
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
        assert_eq!(within("an answer", reply(&mut stream)).await.unwrap().status, 202);
    }
    assert!(daemon.events().iter().any(|event| event["kind"] == "span"));
    daemon.stop().await;
}

/// A conversation with refusals: each trace that was answered with success is delivered once.
#[tokio::test]
async fn after_refusals_nothing_is_lost_or_doubled() {
    for name in ["gen1-1.90.6-faults", "gen2-2.0.3-faults"] {
        let case = case(name);
        let directory = tempfile::tempdir().unwrap();
        let (answers, rest) = converse(&case, &listener(directory.path(), ""), directory.path()).await;
        let spans = |events: &[Value]| events.iter().filter(|event| event["kind"] == "span").count();
        let taken =
            answers.iter().filter(|answer| answer.status < 300).map(|answer| spans(&answer.events)).sum::<usize>();
        let refused =
            answers.iter().filter(|answer| answer.status >= 300).map(|answer| spans(&answer.events)).sum::<usize>();
        assert_eq!((refused, spans(&rest)), (0, 0), "{name}");
        let ids: std::collections::BTreeSet<_> = answers
            .iter()
            .flat_map(|answer| answer.spans())
            .map(|span| (span["span"]["trace_id"].to_string(), span["span"]["span_id"].to_string()))
            .collect();
        assert_eq!(ids.len(), taken, "{name}: every span once");
    }
}

#[tokio::test]
async fn a_body_over_its_limit_is_refused_and_a_loss() {
    let directory = tempfile::tempdir().unwrap();
    let options = "max_body_bytes = \"1KiB\"\nmax_registration_bytes = \"1KiB\"";
    let daemon = Daemon::start(&listener(directory.path(), options)).await;
    let headers = [own("00c0ffee12345678"), ("X-Zorka-Session-Reset", "true")];
    let mut stream = daemon.connect().await;
    let answer = ask(&mut stream, &post("/agent/submit/agd", &headers, &[0xC1; 1025])).await;
    assert_eq!(answer.status, 413);
    assert!(answer.body.contains("max_body_bytes"), "{}", answer.body);
    let secret = format!("{{\"rkey\":\"{RKEY}\",\"name\":\"{}\"}}", "n".repeat(1100));
    let mut stream = daemon.connect().await;
    let answer = ask(&mut stream, &post("/agent/register", &[], secret.as_bytes())).await;
    assert_eq!(answer.status, 413);
    let stopped = daemon.stop().await;
    let losses: Vec<_> = stopped.events.iter().filter(|event| event["kind"] == "loss").collect();
    assert_eq!(losses.len(), 2);
    assert!(losses.iter().all(|loss| loss["loss"]["reason"] == "too_large"));
    assert!(losses[0]["loss"].get("excerpt").is_some());
    assert!(losses[1]["loss"].get("excerpt").is_none(), "{}", losses[1]);
    assert!(quarantined(directory.path()).is_empty());
}

/// Rule 27, for accepted, refused and broken requests with keys.
#[tokio::test]
async fn no_key_is_in_events_or_in_the_quarantine() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let register = format!("{{\"rkey\":\"{RKEY}\",\"name\":\"h\",\"app\":\"a\",\"env\":\"e\"}}");
    let registered = ask(&mut stream, &post("/agent/register", &[], register.as_bytes())).await;
    assert_eq!(registered.status, 201);
    let given: Value = serde_json::from_str(&registered.body).unwrap();
    let (uuid, authkey) = (given["uuid"].as_str().unwrap(), given["authkey"].as_str().unwrap());
    let open = format!("{{\"uuid\":\"{uuid}\",\"authkey\":\"{authkey}\"}}");
    assert_eq!(ask(&mut stream, &post("/agent/session", &[], open.as_bytes())).await.status, 200);
    let wrong = open.replace(uuid, "9");
    assert_eq!(ask(&mut stream, &post("/agent/session", &[], wrong.as_bytes())).await.status, 401);
    for broken in [&register[..register.len() - 1], &register.replace("\"a\"", "null"), &open[..open.len() - 1]] {
        let path = if broken.contains("rkey") { "/agent/register" } else { "/agent/session" };
        assert_eq!(ask(&mut stream, &post(path, &[], broken.as_bytes())).await.status, 400, "{broken}");
    }
    // With another path or method.
    for (method, path) in [("POST", "/zico/agent/register"), ("PUT", "/agent/register"), ("POST", "/")] {
        let request = post(path, &[], register.as_bytes());
        let request = [method.as_bytes(), &request[4..]].concat();
        let answer = ask(&mut daemon.connect().await, &request).await;
        assert!([404, 405].contains(&answer.status));
    }
    // One that is cut off.
    let request = post("/agent/register", &[], register.as_bytes());
    let mut cut = daemon.connect().await;
    cut.write_all(&request[..request.len() - 9]).await.unwrap();
    cut.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let _ = within("the end", cut.read_to_end(&mut rest)).await;
    let stopped = daemon.stop().await;
    assert!(stopped.events.iter().filter(|event| event["kind"] == "loss").count() >= 8);
    for event in &stopped.events {
        let text = event.to_string();
        for key in [RKEY, authkey] {
            assert!(!text.contains(key) && !text.contains(&hex(key)[..16]), "{text}");
        }
    }
    assert!(quarantined(directory.path()).is_empty());
}

/// Rule 9; a quarantined request decodes offline to the same events.
#[tokio::test]
async fn an_undecodable_body_is_accepted_reported_and_quarantined() {
    let directory = tempfile::tempdir().unwrap();
    let case = case("malformed-gen2-items");
    let (answers, _) = converse(&case, &listener(directory.path(), ""), directory.path()).await;
    assert!(answers.iter().all(|answer| answer.status == 202));
    let files = quarantined(directory.path());
    let faulty: Vec<_> = case.exchanges.iter().zip(&answers).filter(|(_, answer)| answer.aside.is_some()).collect();
    assert_eq!(files.len(), faulty.len());
    for (file, (recorded, answer)) in files.iter().zip(faulty) {
        assert!(file.ends_with(&recorded.body));
        let head = String::from_utf8_lossy(&file[..file.len() - recorded.body.len()]).into_owned();
        let loss = answer.losses()[0]["loss"]["detail"].as_str().unwrap();
        assert!(head.contains(&format!("x-tributary-reason: {loss}\r\n")), "{head}");
        let requests = tributary::decode::requests(file).unwrap();
        let mut offline = Offline::recorded();
        let headers: Vec<_> = requests[0]
            .head
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), std::str::from_utf8(value).unwrap()))
            .collect();
        let again = offline.ask(&recorded.path, &headers, &requests[0].body);
        let places =
            |losses: Vec<&Value>| losses.iter().map(|loss| loss["origin"]["offset"].clone()).collect::<Vec<_>>();
        let malformed = |answer: &crate::zico_support::offline::Answered| {
            places(answer.losses().into_iter().filter(|loss| loss["loss"]["reason"] != "unresolved").collect())
        };
        assert_eq!(malformed(&again), malformed(answer));
    }
}

/// Opens a gen1 session; returns the headers of its requests.
async fn gen1(daemon: &Daemon, case: &Case) -> Vec<(String, String)> {
    let mut stream = daemon.connect().await;
    let registered = ask(&mut stream, &post("/agent/register", &[], &case.exchanges[0].body)).await;
    let given: Value = serde_json::from_str(&registered.body).unwrap();
    open(daemon, given["id"].as_str().unwrap(), given["authkey"].as_str().unwrap()).await
}

async fn open(daemon: &Daemon, agent: &str, authkey: &str) -> Vec<(String, String)> {
    let mut stream = daemon.connect().await;
    let body = format!("{{\"id\":\"{agent}\",\"authkey\":\"{authkey}\"}}");
    let opened = ask(&mut stream, &post("/agent/session", &[], body.as_bytes())).await;
    assert_eq!(opened.status, 200, "{}", opened.body);
    let opened: Value = serde_json::from_str(&opened.body).unwrap();
    let session = opened["session"].as_str().unwrap();
    [("X-Zorka-Agent-Id", agent), ("X-Zorka-Session-Uuid", session), ("X-Zorka-Trace-Uuid", TRACE)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

const TRACE: &str = "5e5e0000-0000-4000-8000-000000000006";

async fn submit(daemon: &Daemon, what: &str, headers: &[(String, String)], body: &[u8]) -> u16 {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut stream = daemon.connect().await;
    ask(&mut stream, &post(&format!("/agent/submit/{what}"), &headers, body)).await.status
}

/// Rule 19: the ways in which a trace in parts ends without its last part.
#[tokio::test]
async fn open_records_are_emitted_with_a_mark_after_a_timeout_a_new_session_or_a_stop() {
    let case = case("gen1-writer-two-part");
    let (agd, first) = (&case.exchanges[2].body, &case.exchanges[3].body);
    let is_marked = |event: &Value| {
        event["name"] == "com.example.Web.handle"
            && event["attributes"]["tributary.incomplete"] == serde_json::json!(["end"])
    };
    for (options, ending) in [("trace_timeout = \"1s\"", "idle"), ("", "reopened"), ("", "stop")] {
        let directory = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(&listener(directory.path(), options)).await;
        let mut stream = daemon.connect().await;
        let registered = ask(&mut stream, &post("/agent/register", &[], &case.exchanges[0].body)).await;
        let given: Value = serde_json::from_str(&registered.body).unwrap();
        let (agent, authkey) = (given["uuid"].as_str().unwrap(), given["authkey"].as_str().unwrap());
        let headers = open(&daemon, agent, authkey).await;
        assert_eq!(submit(&daemon, "agd", &headers, agd).await, 202);
        assert_eq!(submit(&daemon, "trc", &headers, first).await, 202);
        assert!(!daemon.events().iter().any(is_marked), "{ending}");
        match ending {
            "idle" => drop(daemon.until("it goes out", |events| events.iter().any(is_marked)).await),
            "reopened" => {
                open(&daemon, agent, authkey).await;
                daemon.until("it goes out", |events| events.iter().any(is_marked)).await;
            }
            _ => {}
        }
        let stopped = daemon.stop().await;
        let marked: Vec<_> = stopped.events.iter().filter(|event| is_marked(event)).collect();
        assert_eq!(marked.len(), 1, "{ending}");
        let child = stopped.events.iter().find(|event| event["name"] == "com.example.Dao.query").unwrap();
        assert_eq!(child["span"]["parent_span_id"], marked[0]["span"]["span_id"]);
        assert_eq!(marked[0]["resource"]["host.name"], "demo.host");
    }
}

/// A session survives a restart, its definitions do not: the agent must send them again.
#[tokio::test]
async fn after_a_restart_the_first_request_of_a_session_is_answered_401() {
    let case = case("gen1-writer-two-part");
    let (agd, first) = (&case.exchanges[2].body, &case.exchanges[3].body);
    let directory = tempfile::tempdir().unwrap();
    let toml = listener(directory.path(), &format!("state_dir = \"{}\"", directory.path().display()));
    let before = Daemon::start(&toml).await;
    let headers = gen1(&before, &case).await;
    assert_eq!(submit(&before, "agd", &headers, agd).await, 202);
    let (own_agd, own_trc) = minimal();
    let own: Vec<_> = [("X-Zorka-Session-Id", "00c0ffee12345678"), ("X-Zorka-Session-Reset", "true")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    assert_eq!(submit(&before, "agd", &own, &own_agd).await, 202);
    before.stop().await;
    let after = Daemon::start(&toml).await;
    assert_eq!(submit(&after, "trc", &headers, first).await, 401);
    assert_eq!(submit(&after, "agd", &headers, agd).await, 401);
    assert_eq!(submit(&after, "trc", &own, &own_trc).await, 401);
    assert_eq!(submit(&after, "agd", &own, &own_agd).await, 202);
    assert_eq!(submit(&after, "trc", &own, &own_trc).await, 202);
    let events = after.stop().await.events;
    assert_eq!(events.iter().filter(|event| event["kind"] == "span").count(), 1);
}
