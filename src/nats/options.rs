//! How servers of NATS are reached: keys that a sink and a listener have in common.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MISSING;
use super::address::{PORT, ServerAddress};
use tributary_options::{ClientTls, LONGEST, Section, defaults, options};

options! {
    /// The servers, and how they are reached.
    #[derive(Clone, PartialEq, Debug)]
    pub struct Servers(has_addresses: bool) {
        /// The servers: nats://HOST:PORT or tls://HOST:PORT, with the port 4222 if none is written. One of them is used, another one
        /// when that is away.
        pub servers: Vec<ServerAddress> =
            flat(|section| if has_addresses { read_servers(section) } else { Vec::new() }),
        /// A file with the credentials of a user (JWT and key), as `nsc` writes it. It is read for each connection.
        pub credentials_file: Option<PathBuf> = optional_path(),
        /// A file with a token. It is read for each connection.
        pub token_file: Option<PathBuf> = optional_path(),
        /// TLS of connections to the servers. With any of these options, or with tls://, connections are encrypted; otherwise if the
        /// server asks for it.
        pub tls: ClientTls = section(ClientTls::read),
        /// How long connecting to a server may take.
        pub connect_timeout: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
        /// How long an answer of JetStream may take.
        pub request_timeout: Duration = duration(Duration::from_secs(10), Duration::from_millis(1)..=LONGEST),
    }
}

impl Servers {
    /// These servers, reached as by default.
    pub fn new(servers: Vec<ServerAddress>) -> Servers {
        Servers { servers, ..defaults(|section| Servers::read(section, false)) }
    }

    /// Whether connections are encrypted in any case. Otherwise they are when the server asks for it.
    pub(super) fn requires_tls(&self) -> bool {
        self.tls != ClientTls::default() || self.servers.iter().any(ServerAddress::is_tls)
    }

    /// The options that name a file with a secret, and the files.
    pub fn secrets(&self) -> Vec<(&'static str, &Path)> {
        let key = self.tls.identity.as_ref().map(|(_, key)| ("tls.key", &**key));
        let files = [("credentials_file", &self.credentials_file), ("token_file", &self.token_file)];
        let files = files.into_iter().filter_map(|(option, path)| Some((option, path.as_deref()?)));
        key.into_iter().chain(files).collect()
    }

    /// The servers, for messages.
    pub fn shown(&self) -> String {
        self.servers.iter().map(ServerAddress::to_string).collect::<Vec<_>>().join(", ")
    }
}

/// Reports a value of `key` that cannot be the name of a stream, or of a consumer.
pub fn check_name(section: &mut Section<'_>, key: &str, name: &str) {
    if !is_name(name) {
        let message = format!("is not the name of a {key}: 1 to 255 characters without white space and . * > / \\");
        section.error(key, message, None);
    }
}

/// Whether this can be the name of a stream, or of what belongs to one.
pub(super) fn is_name(text: &str) -> bool {
    let is_valid = |c: char| !c.is_whitespace() && !c.is_control() && !['.', '*', '>', '/', '\\'].contains(&c);
    !text.is_empty() && text.len() <= 255 && text.chars().all(is_valid)
}

fn read_servers(section: &mut Section<'_>) -> Vec<ServerAddress> {
    let example = format!("write servers = [\"nats://host:{PORT}\"]");
    let texts = section.required().list_of_text("servers");
    if texts.is_empty() && MISSING.is_none() {
        section.error("servers", "`servers` is missing or empty", Some(example.clone()));
    }
    server_addresses(section, "servers", texts, &example)
}

/// The addresses of servers, which `key` has; errors are reported to the section.
pub(super) fn server_addresses(
    section: &mut Section<'_>,
    key: &str,
    texts: Vec<String>,
    example: &str,
) -> Vec<ServerAddress> {
    if let Some(why) = MISSING {
        section.error(key, why, Some("install the program with all of its features".into()));
    }
    let mut servers = Vec::new();
    for text in texts {
        match text.parse() {
            Ok(server) => servers.push(server),
            Err(why) if text.contains('@') => {
                section.error(key, why, Some("use credentials_file or token_file".into()));
            }
            Err(why) => section.error(key, format!("`{text}` {why}"), Some(example.to_owned())),
        }
    }
    servers
}
