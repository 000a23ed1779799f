//! Files with secrets that the configuration names: TLS keys, tokens, registration keys, keys of hashes, headers.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use super::{Config, ProtocolOptions, SinkConfig, SinkKind};
use tributary_options::Secret;
use tributary_sink::headers;

/// The permission bits of users that are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// A file with a secret that every user of the machine can read or write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExposedSecret {
    /// The file.
    pub path: PathBuf,
    /// The option that names it: `listeners.spans.tls.key`.
    pub option: String,
    /// Its permission bits.
    pub mode: u32,
}

impl Config {
    /// Logs a warning for each of [`Config::exposed_secrets`].
    pub fn warn_about_exposed_secrets(&self) {
        for ExposedSecret { path, option, mode } in self.exposed_secrets() {
            let (path, mode) = (path.display(), format!("{mode:04o}"));
            warn!(%path, option, mode, "every user of this machine can access this secret; run `chmod o= FILE`");
        }
    }

    /// The files with secrets whose permissions let every user of the machine read or write them. Files that cannot be
    /// examined are left out: their errors are reported where they are used.
    pub fn exposed_secrets(&self) -> Vec<ExposedSecret> {
        let (mut exposed, mut seen) = (Vec::new(), BTreeSet::new());
        for (option, path) in self.secrets() {
            let Ok(metadata) = path.metadata() else { continue };
            let mode = metadata.mode() & 0o7777;
            if mode & OTHERS != 0 && seen.insert(path) {
                exposed.push(ExposedSecret { path: path.to_owned(), option, mode });
            }
        }
        exposed
    }

    /// Every option that names a file with a secret, and the file.
    pub(crate) fn secrets(&self) -> Vec<(String, &Path)> {
        let mut secrets = Vec::new();
        if let Some(tls) = &self.admin.tls {
            secrets.push(("admin.tls.key".to_owned(), &*tls.key));
        }
        if let Some(path) = &self.admin.token_file {
            secrets.push(("admin.token_file".to_owned(), path));
        }
        for listener in &self.listeners {
            let name = &listener.name;
            if let Some(tls) = &listener.options.tls {
                secrets.push((format!("listeners.{name}.tls.key"), &tls.key));
            }
            if let ProtocolOptions::Zico(_, store, _) = &listener.protocol
                && let Some(path) = &store.keys_file
            {
                secrets.push((format!("listeners.{name}.keys_file"), path));
            }
            if let Some(bucket) = listener.protocol.bucket() {
                let files = bucket.servers.secrets().into_iter();
                secrets.extend(files.map(|(option, path)| (format!("listeners.{name}.nats.{option}"), path)));
            }
            if let ProtocolOptions::Nats(options) = &listener.protocol {
                let files = options.servers.secrets().into_iter();
                secrets.extend(files.map(|(option, path)| (format!("listeners.{name}.{option}"), path)));
            }
        }
        for SinkConfig { name, kind, select, .. } in &self.sinks {
            if let Some(hash) = &select.hash {
                secrets.push((format!("sinks.{name}.hash.key_file"), &hash.key_file));
            }
            match kind {
                SinkKind::Http(options) => {
                    let keys = options.tls.identity.iter().map(|(_, key)| (format!("sinks.{name}.key"), &**key));
                    let proxy = options.proxy.secret_file().map(|path| (format!("sinks.{name}.proxy"), path));
                    secrets.extend(keys.chain(of_headers(name, &options.headers)).chain(proxy));
                }
                SinkKind::Otlp(options) => {
                    let keys = options.tls.identity.iter().map(|(_, key)| (format!("sinks.{name}.tls.key"), &**key));
                    let proxy = options.proxy.secret_file().map(|path| (format!("sinks.{name}.proxy"), path));
                    secrets.extend(keys.chain(of_headers(name, &options.headers)).chain(proxy));
                }
                SinkKind::Nats(options) => {
                    let files = options.servers.secrets().into_iter();
                    secrets.extend(files.map(|(option, path)| (format!("sinks.{name}.{option}"), path)));
                }
                SinkKind::Parquet(options) => {
                    let files = options.upload.iter().flat_map(|upload| upload.secret_files());
                    secrets.extend(files.map(|(key, path)| (format!("sinks.{name}.upload.{key}"), path)));
                    let proxy = options.upload.as_ref().and_then(|upload| upload.proxy.secret_file());
                    secrets.extend(proxy.map(|path| (format!("sinks.{name}.upload.proxy"), path)));
                }
                SinkKind::Stdout(_) | SinkKind::File(_) | SinkKind::Tcp(_) | SinkKind::Discard => {}
            }
        }
        secrets
    }
}

/// The files with values of headers of a sink.
fn of_headers<'a>(sink: &str, headers: &'a [(String, Secret)]) -> impl Iterator<Item = (String, &'a Path)> {
    headers::files(headers).map(move |(header, path)| (format!("sinks.{sink}.headers.{header}"), path))
}
