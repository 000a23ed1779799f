//! What the tests of the Rbkit collector share: the recordings, what the event model says must come of each message, and
//! an agent on real sockets. Nothing here is made from the collector's own decoder.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod agent;
pub mod compare;
pub mod contract;
pub mod raw;
pub mod recording;
pub mod serve;
pub mod wire;

use crate::live::Daemon;
use agent::Agent;

/// So long may a time limit be that no test is to meet.
const PATIENT: &str = "handshake_interval = \"5m\"";

/// The configuration of one rbkit listener called `test`: these agents, in TOML, and further lines of its own.
pub fn listener(agents: &[String], options: &str) -> String {
    format!("[listeners.test]\nprotocol = \"rbkit\"\nagents = [{}]\n{options}\n", agents.join(", "))
}

/// An agent in TOML, with further keys, each with a comma in front.
pub fn dialled(agent: &Agent, keys: &str) -> String {
    format!("{{ publish = \"{}\", request = \"{}\"{keys} }}", agent.publish, agent.request)
}

/// A daemon that dials `agent`, asks for the memory profile, and looks after it every five minutes unless `options` say
/// otherwise.
pub async fn daemon_for(agent: &Agent, options: &str) -> Daemon {
    let options =
        if options.contains("handshake_interval") { options.to_owned() } else { format!("{PATIENT}\n{options}") };
    Daemon::start(&listener(&[dialled(agent, ", enable = [\"memory_profile\"]")], &options)).await
}
