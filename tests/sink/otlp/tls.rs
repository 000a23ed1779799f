//! TLS between the sink and a receiver: certificates of both sides.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tributary::pipeline::DeliveryOutcome;
use tributary::sink::otlp::{ClientTls, Options, Protocol};

use super::receiver::Receiver;
use super::{logs, names, start};
use crate::live::{until, within};
use crate::tls_support::World;

/// A receiver with the certificate of `world`, for the name localhost. It may require certificates of clients.
pub(super) async fn receiver(world: &World, protocol: Protocol, requires_certificate: bool) -> Receiver {
    let certificate = |pem: String| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = if requires_certificate {
        let mut roots = RootCertStore::empty();
        roots.add(certificate(world.authority())).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let server = world.server();
    let key = PrivateKeyDer::from_pem_slice(server.key.as_bytes()).unwrap();
    let mut config = builder.with_single_cert(vec![certificate(server.cert)], key).unwrap();
    config.alpn_protocols = vec![if protocol == Protocol::Grpc { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    Receiver::serve(listener, protocol, Some(TlsAcceptor::from(Arc::new(config))))
}

/// The options of a sink that trusts the authority of `world`, and expects the name localhost.
fn options(receiver: &Receiver, world: &World) -> Options {
    let endpoint = format!("https://{}", receiver.address).parse().unwrap();
    let (ca, server_name) = (Some(world.path("ca.pem")), Some("localhost".to_owned()));
    Options { endpoint, tls: ClientTls { ca, identity: None, server_name }, ..receiver.options() }
}

/// The files of a client certificate of `world`.
fn identity(world: &World) -> Option<(PathBuf, PathBuf)> {
    let (cert, key) = (world.path("client.pem"), world.path("client.key"));
    fs::write(&cert, &world.client.cert).unwrap();
    fs::write(&key, &world.client.key).unwrap();
    Some((cert, key))
}

async fn expect_accepted(receiver: &Receiver, options: Options) {
    let sending = start(options);
    assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
    assert_eq!(sending.finish().await.written, 5);
    assert_eq!(receiver.names(), names(5, 4));
}

/// No request reaches the receiver. The sink retries until it is stopped.
async fn expect_no_connection(receiver: &Receiver, options: Options) {
    let sending = start(options);
    let sender = sending.sender.clone();
    let delivering = tokio::spawn(async move { sender.deliver(logs(&names(5, 4))).await });
    until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
    let totals = sending.abort().await;
    assert_eq!((totals.written, totals.failed), (0, 5));
    assert_eq!(within("it has an outcome", delivering).await.unwrap(), DeliveryOutcome::Failed);
    assert!(receiver.state().attempts.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_the_receiver_must_be_of_a_known_authority_and_for_its_name() {
    let (world, other) = (World::new(), World::new());
    for protocol in Protocol::ALL {
        let receiver = receiver(&world, protocol, false).await;
        let wrong_name = ClientTls { server_name: None, ..options(&receiver, &world).tls };
        let wrong_name = Options { tls: wrong_name, ..options(&receiver, &world) };
        expect_no_connection(&receiver, wrong_name).await;
        expect_no_connection(&receiver, options(&receiver, &other)).await;
        expect_accepted(&receiver, options(&receiver, &world)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_requires_a_certificate_gets_it_or_nothing() {
    let (world, other) = (World::new(), World::new());
    for protocol in Protocol::ALL {
        let receiver = receiver(&world, protocol, true).await;
        let with = |identity| {
            let options = options(&receiver, &world);
            Options { tls: ClientTls { identity, ..options.tls.clone() }, ..options }
        };
        expect_no_connection(&receiver, with(None)).await;
        expect_no_connection(&receiver, with(identity(&other))).await;
        expect_accepted(&receiver, with(identity(&world))).await;
    }
}
