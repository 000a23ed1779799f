//! Endless OS metrics over HTTP: every recorded request against the whole daemon.

use std::path::Path;

use crate::endless_support::http::{ask, listener, plain, put, quarantined, reply, send, sha512};
use crate::endless_support::{Case, assert_events, cases, comparable, expected_events, gunzip, http_cases, unix_nanos};
use crate::live::binary::run;
use crate::live::{Daemon, within};
use serde_json::Value;
use tokio::io::AsyncReadExt;

async fn daemon(quarantine: &Path) -> Daemon {
    Daemon::start(&listener(quarantine, "")).await
}

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

fn is_loss(event: &Value) -> bool {
    event["kind"] == "loss"
}

/// The body of a quarantined request, and its reason.
fn kept(file: &[u8]) -> (&[u8], String) {
    let end = file.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&file[..end]).unwrap();
    let reason = head.lines().find_map(|line| line.strip_prefix("x-tributary-reason: ")).unwrap();
    (&file[end + 4..], reason.to_owned())
}

#[tokio::test]
async fn every_recorded_upload_gets_its_answer_and_gives_the_expected_events() {
    for case in cases() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path()).await;
        let mut stream = daemon.connect().await;
        let reply = within("the answer", ask(&mut stream, &case.request)).await;
        assert_eq!(reply.status, 200, "{}: {}", case.name, reply.body);
        // The answer says that the events are written, so the test need not wait for them.
        let events = daemon.events();
        let received = events.first().map_or(0, |event| unix_nanos(event["observed_time"].as_str().unwrap()));
        let found: Vec<_> = events.iter().filter(|event| !is_loss(event)).map(comparable).collect();
        assert_events(&case.name, &found, &expected_events(&case, received));
        let files = quarantined(directory.path());
        if case.is_normal() {
            assert!(files.is_empty(), "{}", case.name);
        } else {
            let [file] = files.as_slice() else { panic!("{}: {} files", case.name, files.len()) };
            let (body, reason) = kept(file);
            assert_eq!(gunzip(body), case.body, "{}: kept whole", case.name);
            let loss = events.iter().find(|event| is_loss(event)).unwrap();
            assert!(reason.starts_with(loss["loss"]["detail"].as_str().unwrap()), "{}: {reason}", case.name);
        }
        let stopped = daemon.stop().await;
        assert_eq!(stopped.totals.listeners[0].bytes_in, case.body.len() as u64, "{}", case.name);
    }
}

#[tokio::test]
async fn every_recorded_request_about_http_is_answered_as_agents_need_it() {
    for case in http_cases() {
        let directory = tempfile::tempdir().unwrap();
        let daemon = daemon(directory.path()).await;
        let mut stream = daemon.connect().await;
        let reply = within("the answer", ask(&mut stream, &case.request)).await;
        assert!(case.statuses.contains(&reply.status), "{}: {} {}", case.name, reply.status, reply.body);
        let is_head = case.name.starts_with("head");
        assert!(reply.status < 400 || is_head || reply.body.len() > 10, "{}: a sentence", case.name);
        let files = quarantined(directory.path()).len();
        let stopped = daemon.stop().await;
        let events = stopped.events.iter().filter(|event| !is_loss(event)).count();
        let losses = stopped.events.len() - events;
        match case.action.as_str() {
            // The bundles of versions 1 and 2 contain a sequence without items.
            "deliver" => {
                assert!(events > 0 && losses == usize::from(case.name == "v2-ok") && files == 0, "{}", case.name);
            }
            "quarantine" => assert!(events == 0 && losses == 1 && files == 1, "{}", case.name),
            // A request that is answered 200 and not delivered is quarantined.
            "drop, counted" => assert!(events == 0 && losses == 1 && files == 1, "{}", case.name),
            "health" => assert!(stopped.events.is_empty(), "{}", case.name),
            "refuse" | "ignore" | "refuse while inflating, memory bounded" => {
                assert!(events == 0 && files == 0, "{}", case.name);
            }
            _ => assert_eq!(reply.status == 200, events > 0, "{}: {}", case.name, case.action),
        }
    }
}

#[tokio::test]
async fn a_connection_serves_one_request_after_another() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let names = ["real-v3-basic", "real-v2-basic", "v3-payload-zoo", "v0-mixed"];
    for name in names {
        assert_eq!(within(name, ask(&mut stream, &case(name).request)).await.status, 200);
    }
    let events = daemon.events();
    let numbers: Vec<_> = events.iter().map(|event| event["origin"]["sequence"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.contains(&1) && numbers.contains(&4));
    assert_eq!(daemon.stop().await.totals.listeners[0].connections, 1);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let (good, bad) = (case("v3-mixed").body, b"not a bundle".as_slice());
    send(&mut stream, &[plain(3, &good), plain(3, bad), put(3, &sha512(bad), "", &good)].concat()).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(within("an answer", reply(&mut stream)).await.status);
    }
    assert_eq!(statuses, [200, 200, 400]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_chunked_body_is_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let body = case("v3-mixed").body;
    let mut request =
        format!("PUT /3/{} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", sha512(&body)).into_bytes();
    for chunk in body.chunks(100) {
        request.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    assert_eq!(within("the answer", ask(&mut stream, &request)).await.status, 200);
    assert_eq!(daemon.events().len(), 9);
    daemon.stop().await;
}

#[tokio::test]
async fn expect_100_is_answered_by_100_or_a_refusal() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "max_body_bytes = \"1KiB\"")).await;
    let mut stream = daemon.connect().await;
    let body = case("v3-mixed").body;
    let request = put(3, &sha512(&body), "Expect: 100-continue\r\n", &body);
    let (head, body) = request.split_at(request.len() - body.len());
    send(&mut stream, head).await;
    let mut asked = [0; 25];
    within("to be asked", stream.read_exact(&mut asked)).await.unwrap();
    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(within("the answer", ask(&mut stream, body)).await.status, 200);
    let mut stream = daemon.connect().await;
    let request = put(3, &sha512(b""), "Expect: 100-continue\r\n", &[0; 1025]);
    let head = &request[..request.len() - 1025];
    assert_eq!(within("the refusal", ask(&mut stream, head)).await.status, 413);
    daemon.stop().await;
}

#[tokio::test]
async fn uploads_may_have_a_path_prefix() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "path_prefix = \"/eos/prod/\"")).await;
    let body = case("v3-mixed").body;
    for (prefix, status) in [("/eos/prod", 200), ("", 404), ("/eos", 404)] {
        let mut stream = daemon.connect().await;
        let request = String::from_utf8_lossy(&plain(3, b"")).replace("PUT /", &format!("PUT {prefix}/"));
        let request = request.replace("Content-Length: 0", &format!("Content-Length: {}", body.len()));
        let request = request.replace(&sha512(b""), &sha512(&body));
        let reply = within("the answer", ask(&mut stream, &[request.as_bytes(), &body].concat())).await;
        assert_eq!(reply.status, status, "{prefix}: {}", reply.body);
    }
    let stopped = daemon.stop().await;
    let refused = stopped.events.iter().filter(|event| is_loss(event)).collect::<Vec<_>>();
    assert_eq!(refused.len(), 2, "bytes that came with a refused request are told");
    assert!(refused.iter().all(|loss| loss["loss"]["reason"] == "unsupported"));
}

/// Without the option, `decode` names it; with what it names, it reads the file.
#[tokio::test]
async fn a_quarantined_request_with_a_path_prefix_is_decoded_with_the_option_that_decode_names() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "path_prefix = \"/eos/prod\"")).await;
    let unreadable = String::from_utf8(plain(3, b"no bundle")).unwrap().replace("PUT /", "PUT /eos/prod/");
    let mut stream = daemon.connect().await;
    assert_eq!(within("the answer", ask(&mut stream, unreadable.as_bytes())).await.status, 200);
    let live = daemon.stop().await.events;
    let files = std::fs::read_dir(directory.path().join("test")).unwrap();
    let file = files.map(|file| file.unwrap().path().display().to_string()).next().unwrap();
    let named = decode(&[&file]);
    let detail = named[0]["loss"]["detail"].as_str().unwrap();
    let (_, option) = detail.rsplit_once("decode with ").unwrap_or_else(|| panic!("{detail}"));
    let arguments: Vec<&str> = option.split(' ').chain([&*file]).collect();
    assert_eq!(arguments[..2], ["-o", "path_prefix=/eos/prod"]);
    let events = decode(&arguments);
    assert_eq!(events.len(), live.len());
    assert_eq!(events[0]["loss"], live[0]["loss"]);
    // The other way round: the option is set, and the request has no prefix.
    let other = directory.path().join("other.http");
    std::fs::write(&other, plain(3, b"no bundle")).unwrap();
    let named = decode(&["-o", "path_prefix=/eos/prod", other.to_str().unwrap()]);
    assert!(named[0]["loss"]["detail"].as_str().unwrap().ends_with("decode with -o path_prefix="), "{named:?}");
}

/// The events that `tributary decode endless` writes with these arguments.
fn decode(arguments: &[&str]) -> Vec<Value> {
    run(&[&["decode", "endless"], arguments].concat()).events()
}

#[tokio::test]
async fn a_connection_that_is_not_http_is_a_loss_and_closed() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let reply = within("the answer", ask(&mut stream, b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n")).await;
    assert_eq!(reply.status, 400);
    let loss = daemon.until_named("tributary.loss").await;
    assert_eq!(loss["loss"]["reason"], "malformed");
    assert_eq!(loss["loss"]["bytes"], 12);
    let mut stream = daemon.connect().await;
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(17 << 10));
    assert_eq!(within("the answer", ask(&mut stream, long.as_bytes())).await.status, 431);
    daemon.stop().await;
}

#[tokio::test]
async fn answers_have_a_date_and_are_never_redirects() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = daemon(directory.path()).await;
    let mut stream = daemon.connect().await;
    let reply = within("the answer", ask(&mut stream, b"GET /anything?x=1 HTTP/1.1\r\nHost: t\r\n\r\n")).await;
    assert_eq!((reply.status, reply.headers.contains_key("date")), (200, true));
    let reply =
        within("the answer", ask(&mut stream, b"POST /3/x HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n")).await;
    assert_eq!((reply.status, reply.headers["allow"].as_str()), (405, "PUT, GET, HEAD"));
    let reply = ask(&mut stream, b"HEAD / HTTP/1.1\r\nHost: t\r\n\r\n").await;
    assert_eq!(reply.status, 200);
    daemon.stop().await;
}
