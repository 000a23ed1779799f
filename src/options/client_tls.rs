//! The TLS options of everything that connects to a server.

use std::path::PathBuf;

use super::{Section, options};

options! {
    /// The TLS options of a client.
    #[derive(Clone, PartialEq, Eq, Debug)]
    pub struct ClientTls {
        /// PEM file with the authorities of server certificates. Not set: those of the system.
        pub ca: Option<PathBuf> = optional_path(),
        /// PEM files of a client certificate and its key.
        pub identity: Option<(PathBuf, PathBuf)> = flat(identity),
        /// The name that the certificate of the server must have. Not set: the host of the endpoint.
        pub server_name: Option<String> = no_option(None),
    }
}

fn identity(section: &mut Section<'_>) -> Option<(PathBuf, PathBuf)> {
    let cert = section.about("PEM file with a client certificate.").optional_path("cert");
    let key = section.about("PEM file with the key of the client certificate.").optional_path("key");
    match (cert, key) {
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
