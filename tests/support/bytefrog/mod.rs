//! Support for the tests of protocol `bytefrog`: the recordings, an agent that replays them, and the events that each
//! message must become. Nothing here comes from the decoder under test.

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

/// A daemon with one bytefrog listener, called `test`, with these lines of configuration.
pub async fn daemon(options: &str) -> Daemon {
    // Agents of a test that are open at its end do not answer `stop`.
    Daemon::start(&format!("limits.shutdown_grace = \"3s\"\n{}", listener(options))).await
}

/// As [`daemon`], for recordings: those have up to three data connections, and no more than the configured number are
/// accepted. However busy the machine is, no event is written because of a time limit.
pub async fn daemon_for_recordings(options: &str) -> Daemon {
    let mut patient = "data_connections = 3\nunresolved_wait = \"5m\"\nreorder_window = \"5m\"\n".to_owned();
    if !options.contains("rename_wait") {
        patient.push_str("rename_wait = \"5m\"\n");
    }
    daemon(&(patient + options)).await
}
