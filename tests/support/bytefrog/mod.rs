//! What the tests of the Bytefrog collector share: the recordings, an agent that plays them, and what the contract
//! says must come of each message. Nothing here is made from the collector's own decoder.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod agent;
pub mod calls;
pub mod compare;
pub mod configuration;
pub mod contract;
pub mod names;
pub mod recording;
pub mod replay;
pub mod text;
pub mod wire;

use crate::live::Daemon;

/// The configuration of one bytefrog listener called `test`, with further lines of its own.
pub fn listener(options: &str) -> String {
    format!("[listeners.test]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\n{options}\n")
}

/// A daemon with one bytefrog listener, called `test`, that has these lines of configuration.
pub async fn daemon(options: &str) -> Daemon {
    Daemon::start(&listener(options)).await
}

/// As [`daemon`], for recordings: those have up to three data connections, and no more are let in than were asked for.
/// However busy the machine is, nothing goes out for lack of time.
pub async fn daemon_for_recordings(options: &str) -> Daemon {
    let mut patient = "data_connections = 3\nunresolved_wait = \"5m\"\nreorder_window = \"5m\"\n".to_owned();
    if !options.contains("rename_wait") {
        patient.push_str("rename_wait = \"5m\"\n");
    }
    daemon(&(patient + options)).await
}
