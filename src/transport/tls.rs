//! TLS by rustls: certificates from files, optional client certificates, both replaced while the listener serves.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::digest::{SHA256, digest};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::options::TlsOptions;
use super::validity::not_after;

/// Why TLS cannot be set up, and with which file.
#[derive(Debug)]
pub struct TlsError {
    path: PathBuf,
    message: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for TlsError {}

/// TLS of one listener. Clones are the same.
#[derive(Clone)]
pub struct Tls(Arc<SharedTls>);

struct SharedTls {
    options: TlsOptions,
    current: Mutex<Current>,
}

/// The certificates that a daemon uses, each with the section of the configuration that names it. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<Mutex<Vec<(String, Tls)>>>);

impl Certificates {
    /// Replaces the list.
    pub fn set(&self, certificates: Vec<(String, Tls)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = certificates;
    }

    /// Until when each certificate is valid, in seconds since 1970; those whose end can be read.
    pub fn expiries(&self) -> Vec<(String, i64)> {
        let certificates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        certificates.iter().filter_map(|(section, tls)| Some((section.clone(), tls.expires()?))).collect()
    }
}

/// The acceptor of new connections, the end of its certificate's validity, and a digest of the files that it was made of.
struct Current {
    acceptor: TlsAcceptor,
    expires: Option<i64>,
    files: Vec<u8>,
}

impl Current {
    fn offer(&mut self, protocols: Vec<Vec<u8>>) {
        let mut config = ServerConfig::clone(self.acceptor.config());
        config.alpn_protocols = protocols;
        self.acceptor = TlsAcceptor::from(Arc::new(config));
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.options).finish()
    }
}

impl Tls {
    /// Reads the files. With `client_ca`, only clients with a certificate of it are accepted.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no certificate or key, or a pair that does not belong together.
    pub fn open(options: &TlsOptions) -> Result<Tls, TlsError> {
        let files = Files::read(options)?;
        let current = Mutex::new(files.current(options)?);
        Ok(Tls(Arc::new(SharedTls { options: options.clone(), current })))
    }

    /// The acceptor for a new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.current().acceptor.clone()
    }

    /// Until when the certificate is valid, in seconds since 1970. None: it cannot be read.
    pub fn expires(&self) -> Option<i64> {
        self.current().expires
    }

    /// Reads the files again. New connections use them; open connections continue. Returns whether the files have changed.
    ///
    /// # Errors
    /// As for [`Tls::open`]; the files that were read before stay in use.
    pub fn reread(&self) -> Result<bool, TlsError> {
        let files = Files::read(&self.0.options)?;
        let digest = files.digest();
        if self.current().files == digest {
            return Ok(false);
        }
        let mut new = files.current(&self.0.options)?;
        let mut current = self.current();
        new.offer(current.acceptor.config().alpn_protocols.clone());
        *current = new;
        Ok(true)
    }

    /// Offers these protocols to new connections (ALPN), the preferred one first. A client that offers others only is refused;
    /// one that offers none is not.
    pub(super) fn offer(&self, protocols: &[&[u8]]) {
        self.current().offer(protocols.iter().map(|protocol| protocol.to_vec()).collect());
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The contents of the files.
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    fn read(options: &TlsOptions) -> Result<Files, TlsError> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| fault(path, error));
        let client_ca = options.client_ca.as_ref().map(read).transpose()?;
        Ok(Files { cert: read(&options.cert)?, key: read(&options.key)?, client_ca })
    }

    fn current(&self, options: &TlsOptions) -> Result<Current, TlsError> {
        let certificates = certificates(&self.cert, &options.cert)?;
        let expires = certificates.first().and_then(|certificate| not_after(certificate));
        Ok(Current { acceptor: self.acceptor(certificates, options)?, expires, files: self.digest() })
    }

    /// A digest of the contents.
    fn digest(&self) -> Vec<u8> {
        let files = [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()];
        files.into_iter().flatten().flat_map(|file| digest(&SHA256, file).as_ref().to_vec()).collect()
    }

    fn acceptor(
        &self,
        certificates: Vec<CertificateDer<'static>>,
        options: &TlsOptions,
    ) -> Result<TlsAcceptor, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| fault(&options.key, error))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| fault(&options.cert, error))?;
        let builder = match (&self.client_ca, &options.client_ca) {
            (Some(file), Some(path)) => {
                let mut roots = RootCertStore::empty();
                for certificate in self::certificates(file, path)? {
                    roots.add(certificate).map_err(|error| fault(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| fault(path, error))?)
            }
            _ => builder.with_no_client_auth(),
        };
        let config = builder.with_single_cert(certificates, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                fault(&options.cert, format!("it does not belong to the key in {}", options.key.display()))
            }
            error => fault(&options.cert, error),
        })?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(file: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(file).collect();
    let certificates = certificates.map_err(|error| fault(path, error))?;
    if certificates.is_empty() { Err(fault(path, "holds no certificate")) } else { Ok(certificates) }
}

fn fault(path: &Path, message: impl fmt::Display) -> TlsError {
    TlsError { path: path.to_owned(), message: message.to_string() }
}
