//! Receivers behind a proxy: their names are known to the proxy alone.

use std::fs;
use std::path::Path;

use tributary::pipeline::DeliveryOutcome;
use tributary::sink::otlp::{ClientTls, Options, Protocol, Proxy, Secret};

use super::receiver::{Receiver, Reply};
use super::{logs, names, start, tls};
use crate::forward_proxy::{Asked, ForwardProxy};
use crate::live::binary::{Binary, tributary};
use crate::live::until;
use crate::tls_support::World;

const CREDENTIALS: &str = "Basic dXNlcjpzZWNyZXQ=";

/// A proxy in front of the receiver, and options that name it in a file, with credentials.
fn proxied(receiver: &Receiver, directory: &Path) -> (ForwardProxy, Options) {
    let proxy = ForwardProxy::start(receiver.address.parse().unwrap(), None);
    let file = directory.join("proxy");
    fs::write(&file, format!("http://user:secret@{}\n", proxy.address)).unwrap();
    let options = Options { proxy: Proxy::Url(Secret::File(file)), ..receiver.options() };
    (proxy, options)
}

async fn expect_delivered(receiver: &Receiver, options: Options) {
    let sending = start(options);
    assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
    assert_eq!(sending.finish().await.written, 5);
    assert_eq!(receiver.names(), names(5, 4));
    assert!(receiver.state().attempts.iter().all(|(_, _, headers)| !headers.contains_key("proxy-authorization")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_forwards_plain_http_and_connects_for_grpc() {
    let directory = tempfile::tempdir().unwrap();
    for (protocol, line) in [
        (Protocol::Http, "POST http://tempo.invalid:4318/v1/logs HTTP/1.1"),
        (Protocol::Grpc, "CONNECT tempo.invalid:4318 HTTP/1.1"),
    ] {
        let receiver = Receiver::start(protocol).await;
        let (proxy, options) = proxied(&receiver, directory.path());
        let endpoint = "http://tempo.invalid:4318".parse().unwrap();
        expect_delivered(&receiver, Options { endpoint, ..options }).await;
        let asked = proxy.asked();
        let expected = Asked { line: line.to_owned(), credentials: Some(CREDENTIALS.to_owned()) };
        assert!(!asked.is_empty() && asked.iter().all(|asked| *asked == expected), "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handshake_of_tls_is_with_the_receiver_behind_the_proxy() {
    let (world, directory) = (World::new(), tempfile::tempdir().unwrap());
    for protocol in Protocol::ALL {
        let receiver = tls::receiver(&world, protocol, false).await;
        let (proxy, options) = proxied(&receiver, directory.path());
        let tls = ClientTls { ca: Some(world.path("ca.pem")), identity: None, server_name: Some("localhost".into()) };
        let endpoint = "https://tempo.invalid".parse().unwrap();
        expect_delivered(&receiver, Options { endpoint, tls, ..options }).await;
        let expected =
            Asked { line: "CONNECT tempo.invalid:443 HTTP/1.1".to_owned(), credentials: Some(CREDENTIALS.to_owned()) };
        assert_eq!(proxy.asked()[0], expected);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_proxy_refuses_nothing_is_lost() {
    for (protocol, status) in [(Protocol::Grpc, 407), (Protocol::Grpc, 403), (Protocol::Http, 407)] {
        let receiver = Receiver::start(protocol).await;
        let proxy = ForwardProxy::start(receiver.address.parse().unwrap(), Some(status));
        let url = Proxy::Url(Secret::Text(format!("http://{}", proxy.address)));
        let sending = start(Options { proxy: url, ..receiver.options() });
        let sender = sending.sender.clone();
        let delivering = tokio::spawn(async move { sender.deliver(logs(&names(5, 4))).await });
        until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
        assert_eq!(sending.abort().await.failed, 5, "only what is given up at the end");
        assert_eq!(delivering.await.unwrap(), DeliveryOutcome::Failed);
        assert!(receiver.state().attempts.is_empty() && !proxy.asked().is_empty());
    }
}

/// `check --deep` of a sink with these lines, and these variables of the environment. Returns its exit code and its messages.
async fn deep(directory: &Path, sink: &str, environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let file = directory.join("t.toml");
    let listener = "[admin]\nlisten = \"\"\n[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&file, format!("{listener}[sinks.s]\ntype = \"otlp\"\n{sink}")).unwrap();
    let mut command = tributary(&["check", "--deep", "--config", file.to_str().unwrap()]);
    command.envs(environment.iter().copied());
    let ended = tokio::task::spawn_blocking(move || Binary::start(command).end()).await.unwrap();
    (ended.code, ended.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deep_check_sends_an_empty_export_through_the_proxy_of_the_environment_and_says_what_is_answered() {
    let (world, other, directory) = (World::new(), World::new(), tempfile::tempdir().unwrap());
    let receiver = tls::receiver(&world, Protocol::Grpc, false).await;
    let proxy = ForwardProxy::start(receiver.address.parse().unwrap(), None);
    let url = format!("http://user:secret@{}", proxy.address);
    let environment = [("HTTPS_PROXY", url.as_str()), ("NO_PROXY", "")];
    let sink = |world: &World| {
        let ca = world.path("ca.pem");
        format!("endpoint = \"https://tempo.invalid:4317\"\ntls = {{ ca = {ca:?}, server_name = \"localhost\" }}\n")
    };
    let (code, text) = deep(directory.path(), &sink(&world), &environment).await;
    assert_eq!(code, Some(0), "{text}");
    let accepted = "sinks.s: the receiver has accepted an empty export of ";
    assert!(text.contains(&format!("{accepted}logs, traces, metrics, profiles\n")), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let line = "CONNECT tempo.invalid:4317 HTTP/1.1".to_owned();
    assert_eq!(proxy.asked()[0], Asked { line, credentials: Some(CREDENTIALS.to_owned()) });
    assert!(receiver.names().is_empty());

    receiver.state().of_path = Some(("profiles", Reply::Refuse("12", 404)));
    let (code, text) = deep(directory.path(), &sink(&world), &environment).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("{accepted}logs, traces, metrics\n")), "{text}");
    assert!(text.contains("warning: sinks.s: the receiver does not take an empty export of profiles: gRPC status 12"));

    receiver.state().of_path = Some(("trace", Reply::Refuse("16", 401)));
    let (code, text) = deep(directory.path(), &sink(&world), &environment).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: sinks.s: the receiver does not take an empty export of traces: gRPC status 16"));

    let (code, text) = deep(directory.path(), &sink(&other), &environment).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: sinks.s.endpoint: tempo.invalid:4317 cannot be reached: "), "{text}");
    assert!(text.contains("certificate"), "{text}");

    let refusing = ForwardProxy::start(receiver.address.parse().unwrap(), Some(407));
    let option = format!("{}proxy = \"http://{}\"\n", sink(&world), refusing.address);
    let (code, text) = deep(directory.path(), &option, &environment).await;
    assert_eq!(code, Some(1), "{text}");
    let expected = format!(
        "no connection to tempo.invalid:4317 by the proxy http://{}: tunnel error: proxy authorization",
        refusing.address
    );
    assert!(text.contains(&expected), "{text}");
}
