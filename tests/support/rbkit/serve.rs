//! A recorded conversation, served by an agent on sockets.

use super::agent::Agent;
use super::recording::{Session, Step};
use super::wire;
use crate::live::{Daemon, until};

/// Serves a conversation as its agent did: the published messages in order, in pieces of at most `piece` bytes, and
/// every handshake reply, so the handshake interval must be short. Waits until all of it has been received.
pub async fn serve(daemon: &Daemon, agent: &Agent, session: &Session, piece: usize) {
    for step in &session.steps {
        match step {
            Step::Request(_) | Step::Ok => {}
            Step::Handshake(message) => {
                agent.set_handshake(&message.body);
                until("the reply is sent", || (agent.answered() > 0).then_some(())).await;
                agent.until_subscribed().await;
            }
            Step::Publish(message) => agent.write(&wire::frame(0, &message.body), piece).await,
        }
    }
    until_received(daemon, agent).await;
}

/// Waits until the daemon has read every byte. Handshakes may continue.
pub async fn until_received(daemon: &Daemon, agent: &Agent) {
    let written = agent.bytes_written();
    daemon
        .until_totals("every byte is received", |counters| counters.bytes_in >= written && counters.buffered() == 0)
        .await;
}
