//! Commands to agents: what would harm a traced program is refused with a reason, and never reaches it.

use crate::bytefrog_support::agent::{Agent, Connection, soon};
use crate::bytefrog_support::configuration::Said;
use crate::bytefrog_support::{daemon, wire};
use crate::live::Daemon;
use tributary::protocol::bytefrog::Command;

const ALL: [(Command, Said); 6] = [
    (Command::Start, Said::Start),
    (Command::Stop, Said::Stop),
    (Command::Pause, Said::Pause),
    (Command::Unpause, Said::Unpause),
    (Command::Suspend, Said::Suspend),
    (Command::Unsuspend, Said::Unsuspend),
];

/// The one way in which these tests give a command: why it was refused, if it was.
fn command(daemon: &Daemon, run: u8, command: Command) -> Result<(), String> {
    let agents = daemon.server.bytefrog("test").unwrap();
    agents.command(run, command).map_err(|refusal| refusal.to_string())
}

/// Gives every command; answers those that were accepted.
fn accepted(daemon: &Daemon, run: u8, commands: impl IntoIterator<Item = Command>) -> Vec<Command> {
    let is_accepted = |one: &Command| match command(daemon, run, *one) {
        Ok(()) => true,
        Err(reason) => {
            assert!(reason.len() > 10, "a refusal says why: {reason:?}");
            false
        }
    };
    commands.into_iter().filter(is_accepted).collect()
}

/// Sends a heartbeat and waits until the daemon knows of it.
async fn beat(daemon: &Daemon, agent: &mut Agent, mode: u8) {
    let beats = || daemon.events().iter().filter(|event| event["name"] == "bytefrog.heartbeat").count();
    let before = beats();
    agent.control.send(&wire::heartbeat(mode)).await;
    soon("the heartbeat is known", || (beats() > before).then_some(())).await;
}

/// An agent in mode T with everything settled.
async fn tracing(daemon: &Daemon, version: u8) -> (Agent, Vec<Connection>) {
    let mut agent = Agent::connect(&daemon.server, version).await;
    beat(daemon, &mut agent, b'I').await;
    agent.until_said(&Said::Start).await;
    let mut data = Vec::new();
    for _ in 0..agent.configuration.senders {
        data.push(agent.data(&daemon.server).await);
    }
    beat(daemon, &mut agent, b'T').await;
    (agent, data)
}

#[tokio::test]
async fn stop_pause_and_error_are_never_sent_before_start() {
    let daemon = daemon("start = \"on_command\"").await;
    for version in [1, 4] {
        let mut agent = Agent::connect(&daemon.server, version).await;
        let run = agent.configuration.run;
        beat(&daemon, &mut agent, b'I').await;
        let others = ALL.map(|(command, _)| command).into_iter().filter(|command| *command != Command::Start);
        assert_eq!(accepted(&daemon, run, others), [], "before start");
        assert_eq!(command(&daemon, run, Command::Start), Ok(()));
        agent.until_said(&Said::Start).await;
        assert_eq!(agent.said().len(), 2, "{:?}", agent.said());
        assert_eq!(accepted(&daemon, run, [Command::Start]), [], "a second start");
    }
}

/// In the same breath as start, suspend kills the agent's controller and stop is ignored.
#[tokio::test]
async fn commands_wait_for_every_data_connection_and_a_heartbeat_after_the_last() {
    let daemon = daemon("data_connections = 2").await;
    let mut agent = Agent::connect(&daemon.server, 1).await;
    let run = agent.configuration.run;
    let all = || ALL.map(|(command, _)| command);
    agent.until_said(&Said::Start).await;
    assert_eq!(accepted(&daemon, run, all()), [], "no data connection is there");
    let _first = agent.data(&daemon.server).await;
    beat(&daemon, &mut agent, b'T').await;
    assert_eq!(accepted(&daemon, run, all()), [], "one data connection of two is there");
    let _second = agent.data(&daemon.server).await;
    assert_eq!(accepted(&daemon, run, all()), [], "no heartbeat came since");
    beat(&daemon, &mut agent, b'T').await;
    assert_eq!(command(&daemon, run, Command::Suspend), Ok(()));
    agent.until_said(&Said::Suspend).await;
    assert_eq!(agent.said()[1..], [Said::Start, Said::Suspend]);
}

/// A short program never reports mode T: stop does not wait for it.
#[tokio::test]
async fn stop_does_not_wait_for_mode_t() {
    let daemon = daemon("").await;
    let mut agent = Agent::connect(&daemon.server, 1).await;
    agent.until_said(&Said::Start).await;
    let _data = agent.data(&daemon.server).await;
    beat(&daemon, &mut agent, b'I').await;
    let run = agent.configuration.run;
    assert_eq!(accepted(&daemon, run, [Command::Pause, Command::Suspend, Command::Unpause, Command::Unsuspend]), []);
    assert_eq!(command(&daemon, run, Command::Stop), Ok(()));
    agent.until_said(&Said::Stop).await;
}

#[tokio::test]
async fn pause_and_suspend_need_mode_t_unpause_p_and_unsuspend_s() {
    let daemon = daemon("").await;
    let modes = [
        (b'T', vec![Said::Pause, Said::Suspend]),
        (b'P', vec![Said::Unpause]),
        (b'S', vec![Said::Unsuspend]),
        (b'X', vec![]),
        (b'?', vec![]),
    ];
    for (mode, allowed) in modes {
        for (one, said) in ALL.into_iter().filter(|(one, _)| !matches!(one, Command::Start | Command::Stop)) {
            let (mut agent, _data) = tracing(&daemon, 1).await;
            if mode == b'P' || mode == b'S' {
                let way = if mode == b'P' { Command::Pause } else { Command::Suspend };
                assert_eq!(command(&daemon, agent.configuration.run, way), Ok(()));
            }
            beat(&daemon, &mut agent, mode).await;
            let answer = command(&daemon, agent.configuration.run, one);
            assert_eq!(answer.is_ok(), allowed.contains(&said), "{said:?} in mode {}: {answer:?}", mode as char);
            if answer.is_ok() {
                agent.until_said(&said).await;
            }
        }
    }
}

/// The agent acts on a command some time after it was sent; until its mode says so, the next one could meet the old mode.
#[tokio::test]
async fn a_second_pause_is_refused_until_the_agent_has_said_its_mode() {
    let daemon = daemon("").await;
    let (mut agent, _data) = tracing(&daemon, 1).await;
    let run = agent.configuration.run;
    assert_eq!(command(&daemon, run, Command::Pause), Ok(()));
    assert_eq!(accepted(&daemon, run, [Command::Pause, Command::Suspend]), [], "it may be paused already");
    beat(&daemon, &mut agent, b'P').await;
    assert_eq!(command(&daemon, run, Command::Unpause), Ok(()));
    agent.until_said(&Said::Unpause).await;
    assert_eq!(agent.said()[2..], [Said::Pause, Said::Unpause]);
}

#[tokio::test]
async fn nothing_is_sent_to_a_run_that_is_not_there() {
    let daemon = daemon("").await;
    assert_eq!(accepted(&daemon, 5, ALL.map(|(command, _)| command)), []);
    let (mut agent, mut data) = tracing(&daemon, 1).await;
    let run = agent.configuration.run;
    agent.control.end().await;
    agent.control.until_closed().await;
    assert_eq!(accepted(&daemon, run, ALL.map(|(command, _)| command)), [], "control is lost");
    data[0].end().await;
    daemon.until_named("bytefrog.run.ended").await;
    assert_eq!(accepted(&daemon, run, ALL.map(|(command, _)| command)), [], "the run has ended");
    assert!(daemon.server.bytefrog("other").is_none());
}
