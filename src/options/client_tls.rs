//! The TLS options of everything that connects to a server.

use std::path::PathBuf;

use super::Section;

/// The TLS options of a client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClientTls {
    /// PEM file with the authorities of server certificates. Default those of the system.
    pub ca: Option<PathBuf>,
    /// PEM files of a client certificate and its key. Default none.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the certificate of the server must have. Default the host of the endpoint.
    pub server_name: Option<String>,
}

impl ClientTls {
    /// Reads `ca`, `cert` and `key`.
    pub fn read(section: &mut Section<'_>) -> ClientTls {
        ClientTls { ca: section.optional_path("ca"), identity: identity(section), server_name: None }
    }
}

fn identity(section: &mut Section<'_>) -> Option<(PathBuf, PathBuf)> {
    match (section.optional_path("cert"), section.optional_path("key")) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => {
            section.error("cert", "needs `key`", None);
            None
        }
        (None, Some(_)) => {
            section.error("key", "needs `cert`", None);
            None
        }
    }
}
