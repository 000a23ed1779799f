//! Requests and their answers.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tributary_driver::capture::{MAGIC, Reader, What};
use tributary_transport::options::{CaptureOptions, HttpOptions, ListenerOptions, TlsOptions};

use crate::client::{Client, StreamAfterPreface, post};
use crate::listener::Served;
use crate::{PREFACE, within};

#[tokio::test]
async fn a_request_with_prior_knowledge_is_answered() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    let answer = client.post("/", 5).await;
    assert_eq!((answer.status, &*answer.body), (200, "1 t.example 5"), "`:authority` is the host");
    assert_eq!(client.post("/", 0).await.body, "2 t.example 0");
    let (totals, events) = served.stop().await;
    assert_eq!((totals.connections, totals.bytes_in, totals.bytes_decoded, events.len()), (1, 5, 5, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_of_a_connection_are_answered_at_the_same_time() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    let (began, mut answers) = (Instant::now(), JoinSet::new());
    for _ in 0..20 {
        let client = client.clone();
        answers.spawn(async move { client.post("/wait/500", 10_000).await });
    }
    let answers = answers.join_all().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(answers.iter().all(|answer| answer.status == 200));
    let numbers: BTreeSet<_> = answers.iter().map(|answer| answer.number()).collect();
    assert_eq!(numbers, (1..=20).collect());
    let (totals, events) = served.stop().await;
    assert_eq!((totals.bytes_decoded, events.len()), (200_000, 20));
}

#[tokio::test]
async fn streams_over_the_limit_wait_for_others() {
    let http = HttpOptions { max_concurrent_streams: 2, ..HttpOptions::default() };
    let served = Served::with(ListenerOptions::default(), http);
    let client = Client::connect(served.address).await;
    // The settings of the listener have arrived.
    client.post("/", 1).await;
    let (began, mut answers) = (Instant::now(), JoinSet::new());
    for _ in 0..6 {
        let client = client.clone();
        answers.spawn(async move { client.post("/wait/100", 1).await.status });
    }
    assert_eq!(answers.join_all().await, [200; 6]);
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    served.stop().await;
}

#[tokio::test]
async fn a_large_body_passes_the_window() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    assert_eq!(client.post("/", 299_999).await.body, "1 t.example 299999");
    served.stop().await;
}

#[tokio::test]
async fn a_preface_may_arrive_in_single_bytes() {
    let served = Served::new();
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for byte in PREFACE {
        stream.write_all(&[*byte]).await.unwrap();
        sleep(Duration::from_millis(3)).await;
    }
    let (client, _) = Client::over(StreamAfterPreface { stream, written: PREFACE.len() }).await;
    assert_eq!(client.post("/", 5).await.status, 200);
    served.stop().await;
}

#[tokio::test]
async fn http_1_works_on_the_same_port_however_its_first_bytes_are_cut() {
    let served = Served::new();
    let request = b"POST / HTTP/1.1\r\nhost: one\r\ncontent-length: 3\r\n\r\nabc";
    for cut in [0, 1, 2, 10, 24, 30] {
        let began = Instant::now();
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream.write_all(&request[..cut]).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        stream.write_all(&request[cut..]).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = within("the answer", stream.read(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("1 one 3\n"), "{answer}");
        assert!(!answer.to_lowercase().contains("transfer-encoding"), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    let (totals, _) = served.stop().await;
    assert_eq!((totals.bytes_decoded, totals.lost()), (18, 0));
}

#[tokio::test]
async fn trailers_arrive_and_an_answer_without_a_body_ends_with_its_headers() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    let answer = client.post("/trailers", 1).await;
    assert_eq!(answer.body, "1 t.example 1");
    assert_eq!(
        (&answer.trailers.unwrap()["grpc-status"], answer.headers.get("content-length")),
        (&"0".parse().unwrap(), None)
    );
    let answer = client.post("/headers", 1).await;
    assert!(answer.is_headers_only && answer.trailers.is_none());
    assert_eq!((answer.status, &answer.headers["grpc-status"]), (200, &"0".parse().unwrap()));
    served.stop().await;
}

#[tokio::test]
async fn http_1_gets_no_trailers() {
    let served = Served::new();
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let request = b"GET /trailers HTTP/1.1\r\nhost: one\r\nte: trailers\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.contains("content-length: 8\r\n") && answer.ends_with("\r\n1 one 0\n"), "{answer}");
    served.stop().await;
}

#[tokio::test]
async fn answers_of_the_transport_have_the_form_of_the_exchange() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    for (path, length) in [("/none", 3), ("/", 300_001)] {
        let mut request = post(path, vec![0; length]);
        request.headers_mut().insert("form", "grpc".parse().unwrap());
        let answer = client.send(request).await;
        assert_eq!((answer.status, &answer.headers["grpc-status"]), (200, &"13".parse().unwrap()));
        assert!(answer.is_headers_only);
    }
    let two_hosts = Request::post("http://t.example/").header("host", "a").header("host", "b").header("form", "grpc");
    let answer = client.send(two_hosts.body(Full::new(Bytes::new())).unwrap()).await;
    assert_eq!(answer.headers["grpc-status"], "13");
    let (totals, _) = served.stop().await;
    assert_eq!(totals.lost(), 300_004);
}

#[tokio::test]
async fn tls_clients_agree_on_the_version() {
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(&cert, signed.cert.pem()).unwrap();
    fs::write(&key, signed.signing_key.serialize_pem()).unwrap();
    let tls = Some(TlsOptions { cert, key, client_ca: None, allow_plain: false });
    let served = Served::with(ListenerOptions { tls, ..Default::default() }, HttpOptions::default());
    let mut roots = RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    for (offered, agreed) in [(vec!["h2"], Some("h2")), (vec!["http/1.1"], Some("http/1.1")), (vec![], None)] {
        config.alpn_protocols = offered.iter().map(|offered: &&str| offered.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(served.address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config.clone()));
        let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), agreed.map(str::as_bytes));
        if agreed == Some("h2") {
            let (client, _) = Client::over(stream).await;
            assert_eq!(client.post("/", 1).await.body, "1 t.example 1");
            continue;
        }
        let mut stream = stream;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: one\r\n\r\n").await.unwrap();
        let mut answer = [0; 15];
        within("the answer", stream.read_exact(&mut answer)).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
    served.stop().await;
}

#[tokio::test]
async fn captures_have_the_requests_in_http_1() {
    let directory = tempfile::tempdir().unwrap();
    let capture = Some(CaptureOptions { dir: directory.path().into(), max_bytes: 1 << 20 });
    let served = Served::with(ListenerOptions { capture, ..Default::default() }, HttpOptions::default());
    let client = Client::connect(served.address).await;
    client.send(post("/a?b", "first")).await;
    client.send(post("/c", "second")).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"POST /third HTTP/1.1\r\nhost: one\r\ncontent-length: 3\r\n\r\nabc").await.unwrap();
    within("the answer", stream.read_u8()).await.unwrap();
    drop((client, stream));
    served.stop().await;
    let files = fs::read_dir(directory.path().join("test")).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let recorded: Vec<_> = paths.iter().map(|path| received(&fs::read(path).unwrap())).collect();
    let (first, second) = (
        "POST /a?b HTTP/1.1\r\nhost: t.example\r\ncontent-length: 5\r\n\r\nfirst",
        "POST /c HTTP/1.1\r\nhost: t.example\r\ncontent-length: 6\r\n\r\nsecond",
    );
    let third = "POST /third HTTP/1.1\r\nhost: one\r\ncontent-length: 3\r\n\r\nabc";
    assert_eq!(recorded, [[first, second].concat(), third.to_owned()]);
}

/// What a connection has received, of its capture.
fn received(capture: &[u8]) -> String {
    let mut reader = Reader::new(capture.strip_prefix(MAGIC).unwrap()).unwrap();
    let mut received = Vec::new();
    while let Some(record) = reader.record().unwrap() {
        match record.what {
            What::Bytes(bytes) => received.extend_from_slice(&bytes),
            other => assert!(matches!(other, What::End(_)), "{other:?}"),
        }
    }
    String::from_utf8(received).unwrap()
}

#[tokio::test]
async fn bytes_that_are_no_head_are_lost_with_those_that_were_read_to_know_the_version() {
    let served = Served::new();
    for sent in ["PRI * HTTP/2.0\r\n\r\nXX", "P\0", "\x16\x03\x01", "GET / HTTP/1.1 and no more than that\r\n\r\n"] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        within("the end", stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{sent:?} {}", String::from_utf8_lossy(&answer));
    }
    let (totals, events) = served.stop().await;
    assert_eq!((totals.lost(), events.len()), (20 + 2 + 3 + 40, 4), "{events:?}");
}
