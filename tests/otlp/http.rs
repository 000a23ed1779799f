//! Requests of SDKs against the whole daemon.

use tokio::net::TcpStream;
use tributary_testing::endless::http::{Reply, ask};

use crate::live::{Daemon, within};
use crate::records;

const LISTENER: &str =
    "[listeners.test]\nprotocol = \"otlp\"\nlisten = \"127.0.0.1:0\"\ngrpc = \"\"\nquarantine.dir = \"\"\n";
const PROTOBUF: &str = "Content-Type: application/x-protobuf\r\n";

async fn send(stream: &mut TcpStream, path: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    within("the answer", ask(stream, &[head.as_bytes(), body].concat())).await
}

#[tokio::test]
async fn an_exporter_is_answered_when_its_records_are_written() {
    let daemon = Daemon::start(LISTENER).await;
    let mut stream = daemon.connect().await;
    for (path, body) in
        [("/v1/traces", records::traces()), ("/v1/logs", records::logs()), ("/v1/metrics", records::metrics())]
    {
        let reply = send(&mut stream, path, PROTOBUF, &body).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, ""), "{path}");
    }
    assert_eq!(daemon.events().len(), 2 + 2 + 3);
    let reply = send(&mut stream, "/v1/traces", "Content-Type: application/json\r\n", b"{\"resourceSpans\":[]}").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "{}"));
    let reply = send(&mut stream, "/v1/traces", "Content-Type: application/json\r\n", b"{\"resourceSpans\":[5]}").await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.starts_with("{\"code\":3,\"message\":\"JSON: "), "{}", reply.body);
    let reply = send(&mut stream, "/v1/traces", PROTOBUF, &records::traces()).await;
    assert_eq!(reply.status, 200, "other requests of the connection live on");
    assert_eq!(daemon.counters().bytes_ignored["traces"], records::traces().len() as u64, "the repeat");
    assert_eq!(daemon.counters().buffered(), 0);
}
