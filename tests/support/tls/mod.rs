//! Certificates made here, and a TLS client that shares no code with the daemon's side but rustls.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::live::{Daemon, within};

/// A certificate and its key, in PEM.
pub struct Identity {
    pub cert: String,
    pub key: String,
}

/// An authority, and a server and a client that it vouches for. The server's files are in the directory.
pub struct World {
    pub directory: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
    pub client: Identity,
}

impl Identity {
    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }
}

impl World {
    pub fn new() -> World {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let client = identity(&authority, "agent");
        let world = World { directory: tempfile::tempdir().unwrap(), authority, client };
        world.install(&world.server());
        fs::write(world.path("ca.pem"), world.authority()).unwrap();
        world
    }

    /// The authority's certificate.
    pub fn authority(&self) -> String {
        self.authority.pem()
    }

    /// Another server that the authority vouches for.
    pub fn server(&self) -> Identity {
        identity(&self.authority, "localhost")
    }

    /// Puts the server's files where the listener has them.
    pub fn install(&self, server: &Identity) {
        fs::write(self.path("cert.pem"), &server.cert).unwrap();
        fs::write(self.path("key.pem"), &server.key).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The listener's TLS keys; more may follow.
    pub fn tls(&self, more: &str) -> String {
        let path = |name: &str| self.path(name).display().to_string();
        let (cert, key, ca) = (path("cert.pem"), path("key.pem"), path("ca.pem"));
        format!("tls.cert = \"{cert}\"\ntls.key = \"{key}\"\n{}", more.replace("CA", &ca))
    }

    /// A client that trusts the authority, and shows a certificate if it has one.
    pub async fn connect(&self, daemon: &Daemon, identity: Option<&Identity>) -> std::io::Result<TlsStream<TcpStream>> {
        self.shake_hands(daemon.connect().await, identity).await
    }

    pub async fn connect_to(
        &self,
        address: SocketAddr,
        identity: Option<&Identity>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        self.shake_hands(TcpStream::connect(address).await.unwrap(), identity).await
    }

    /// The same over a connection that is there.
    pub async fn shake_hands(
        &self,
        stream: TcpStream,
        identity: Option<&Identity>,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![identity.der()], key).unwrap()
            }
        };
        let name = ServerName::try_from("localhost").unwrap();
        within("the handshake", TlsConnector::from(Arc::new(config)).connect(name, stream)).await
    }
}

fn identity(authority: &CertifiedIssuer<'static, KeyPair>, name: &str) -> Identity {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    Identity { cert: params.signed_by(&key, authority).unwrap().pem(), key: key.serialize_pem() }
}

/// The certificate that a server has shown.
pub fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone()
}

/// Sends everything in pieces, ends TLS properly, and waits for the daemon to do so too.
pub async fn send_secretly(mut stream: TlsStream<TcpStream>, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
    }
    stream.shutdown().await.unwrap();
    let mut said = Vec::new();
    // Without its close_notify, an end is an end all the same.
    let _ = within("the daemon closes", stream.read_to_end(&mut said)).await;
    assert_eq!(said, [0; 0]);
}
