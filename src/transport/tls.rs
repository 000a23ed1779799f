//! TLS by rustls: certificates from files, client certificates on request.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::options::TlsOptions;

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

/// Reads the files and builds what accepts TLS connections. With `client_ca`, only clients with a certificate of it.
///
/// # Errors
/// A file that cannot be read, or holds no certificate or key, or a pair that does not belong together.
pub fn acceptor(options: &TlsOptions) -> Result<TlsAcceptor, TlsError> {
    let certificates = certificates(&options.cert)?;
    let key = PrivateKeyDer::from_pem_file(&options.key).map_err(|error| fault(&options.key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| fault(&options.cert, error))?;
    let builder = match &options.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in self::certificates(path)? {
                roots.add(certificate).map_err(|error| fault(path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| fault(path, error))?)
        }
    };
    let config = builder.with_single_cert(certificates, key).map_err(|error| fault(&options.cert, error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| fault(path, error))?.collect();
    let certificates = certificates.map_err(|error| fault(path, error))?;
    if certificates.is_empty() { Err(fault(path, "holds no certificate")) } else { Ok(certificates) }
}

fn fault(path: &Path, message: impl fmt::Display) -> TlsError {
    TlsError { path: path.to_owned(), message: message.to_string() }
}
