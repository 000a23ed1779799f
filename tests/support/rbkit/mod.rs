//! Support for the tests of rbkit: the recordings, the expected events of each message by the event model, and
//! an agent on real sockets. Nothing here uses the decoder of the daemon.

pub mod agent;
pub mod compare;
pub mod contract;
pub mod process;
pub mod profiles;
pub mod raw;
pub mod recording;
pub mod serve;
pub mod wire;

use crate::live::Daemon;
use agent::Agent;

/// A handshake interval that no test reaches.
const PATIENT: &str = "handshake_interval = \"5m\"";

/// The configuration of one rbkit listener called `test`: these agents, in TOML, and further lines. The last events of agents
/// are not awaited, unless these lines say so.
pub fn listener(agents: &[String], options: &str) -> String {
    let flush_wait = if options.contains("flush_wait") { "" } else { "flush_wait = \"0s\"\n" };
    let agents = agents.join(", ");
    format!("[listeners.test]\nprotocol = \"rbkit\"\nagents = [{agents}]\n{flush_wait}{options}\n")
}

/// An agent in TOML, with further keys, each after a comma.
pub fn dialled(agent: &Agent, keys: &str) -> String {
    format!("{{ publish = \"{}\", request = \"{}\"{keys} }}", agent.publish, agent.request)
}

/// A daemon that connects to `agent` and enables the memory profile. The handshake interval is five minutes, unless `options`
/// have another.
pub async fn daemon_for(agent: &Agent, options: &str) -> Daemon {
    let options =
        if options.contains("handshake_interval") { options.to_owned() } else { format!("{PATIENT}\n{options}") };
    Daemon::start(&listener(&[dialled(agent, ", enable = [\"memory_profile\"]")], &options)).await
}
