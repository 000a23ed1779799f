//! Commands to agents: one that would harm a traced program is refused with a reason and never sent.

use crate::bytefrog_support::agent::{Agent, Connection};
use crate::bytefrog_support::configuration::CollectorMessage;
use crate::bytefrog_support::{daemon, wire};
use crate::live::{Daemon, until};
use tributary::protocol::bytefrog::BytefrogCommand;

const ALL: [(BytefrogCommand, CollectorMessage); 6] = [
    (BytefrogCommand::Start, CollectorMessage::Start),
    (BytefrogCommand::Stop, CollectorMessage::Stop),
    (BytefrogCommand::Pause, CollectorMessage::Pause),
    (BytefrogCommand::Unpause, CollectorMessage::Unpause),
    (BytefrogCommand::Suspend, CollectorMessage::Suspend),
    (BytefrogCommand::Unsuspend, CollectorMessage::Unsuspend),
];

/// Sends a command as these tests do: the reason if it is refused.
fn command(daemon: &Daemon, run: u8, command: BytefrogCommand) -> Result<(), String> {
    let agents = daemon.server.bytefrog("test").unwrap();
    agents.command(run, command).map_err(|refusal| refusal.to_string())
}

/// Sends every command: those that were accepted.
fn accepted(daemon: &Daemon, run: u8, commands: impl IntoIterator<Item = BytefrogCommand>) -> Vec<BytefrogCommand> {
    let is_accepted = |one: &BytefrogCommand| match command(daemon, run, *one) {
        Ok(()) => true,
        Err(reason) => {
            assert!(reason.len() > 10, "a refusal gives its reason: {reason:?}");
            false
        }
    };
    commands.into_iter().filter(is_accepted).collect()
}

/// Sends a heartbeat and waits until the daemon has handled it.
async fn beat(daemon: &Daemon, agent: &mut Agent, mode: u8) {
    let beats = || daemon.events().iter().filter(|event| event["name"] == "bytefrog.heartbeat").count();
    let before = beats();
    agent.control.send(&wire::heartbeat(mode)).await;
    until("the heartbeat is known", || (beats() > before).then_some(())).await;
}

/// An agent in mode T that is settled.
async fn tracing(daemon: &Daemon, version: u8) -> (Agent, Vec<Connection>) {
    let mut agent = Agent::connect(&daemon.server, version).await;
    beat(daemon, &mut agent, b'I').await;
    agent.until_message(&CollectorMessage::Start).await;
    let mut data = Vec::new();
    for _ in 0..agent.configuration.senders {
        data.push(agent.data(&daemon.server).await);
    }
    agent.control.send(&wire::class_ignored("demo/Main")).await;
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
        let others = ALL.map(|(command, _)| command).into_iter().filter(|command| *command != BytefrogCommand::Start);
        assert_eq!(accepted(&daemon, run, others), [], "before start");
        assert_eq!(command(&daemon, run, BytefrogCommand::Start), Ok(()));
        agent.until_message(&CollectorMessage::Start).await;
        assert_eq!(agent.messages_received().len(), 2, "{:?}", agent.messages_received());
        assert_eq!(accepted(&daemon, run, [BytefrogCommand::Start]), [], "a second start");
    }
}

/// Immediately after `start`, `suspend` stops the controller of the agent and `stop` is ignored.
#[tokio::test]
async fn commands_wait_for_every_data_connection_and_until_the_agent_has_settled() {
    let daemon = daemon("data_connections = 2").await;
    let mut agent = Agent::connect(&daemon.server, 1).await;
    let run = agent.configuration.run;
    let all = || ALL.map(|(command, _)| command);
    agent.until_message(&CollectorMessage::Start).await;
    assert_eq!(accepted(&daemon, run, all()), [], "no data connection is there");
    let _first = agent.data(&daemon.server).await;
    beat(&daemon, &mut agent, b'T').await;
    assert_eq!(accepted(&daemon, run, all()), [], "one data connection of two is there");
    let _second = agent.data(&daemon.server).await;
    assert_eq!(accepted(&daemon, run, all()), [], "nothing shows that its buffers follow commands");
    agent.control.send(&wire::class_ignored("demo/Main")).await;
    beat(&daemon, &mut agent, b'T').await;
    assert_eq!(command(&daemon, run, BytefrogCommand::Suspend), Ok(()));
    agent.until_message(&CollectorMessage::Suspend).await;
    assert_eq!(agent.messages_received()[1..], [CollectorMessage::Start, CollectorMessage::Suspend]);
}

/// A short program never reports mode T: `stop` does not wait for it.
#[tokio::test]
async fn stop_does_not_wait_for_mode_t() {
    let daemon = daemon("").await;
    let mut agent = Agent::connect(&daemon.server, 1).await;
    agent.until_message(&CollectorMessage::Start).await;
    let _data = agent.data(&daemon.server).await;
    agent.control.send(&wire::class_ignored("demo/Main")).await;
    beat(&daemon, &mut agent, b'I').await;
    let run = agent.configuration.run;
    assert_eq!(
        accepted(
            &daemon,
            run,
            [BytefrogCommand::Pause, BytefrogCommand::Suspend, BytefrogCommand::Unpause, BytefrogCommand::Unsuspend]
        ),
        []
    );
    assert_eq!(command(&daemon, run, BytefrogCommand::Stop), Ok(()));
    agent.until_message(&CollectorMessage::Suspend).await;
    for _ in 0..3 {
        beat(&daemon, &mut agent, b'S').await;
    }
    agent.until_message(&CollectorMessage::Stop).await;
}

#[tokio::test]
async fn pause_and_suspend_need_mode_t_unpause_p_and_unsuspend_s() {
    let daemon = daemon("").await;
    let modes = [
        (b'T', vec![CollectorMessage::Pause, CollectorMessage::Suspend]),
        (b'P', vec![CollectorMessage::Unpause]),
        (b'S', vec![CollectorMessage::Unsuspend]),
        (b'X', vec![]),
        (b'?', vec![]),
    ];
    for (mode, allowed) in modes {
        for (one, messages_received) in
            ALL.into_iter().filter(|(one, _)| !matches!(one, BytefrogCommand::Start | BytefrogCommand::Stop))
        {
            let (mut agent, _data) = tracing(&daemon, 1).await;
            if mode == b'P' || mode == b'S' {
                let way = if mode == b'P' { BytefrogCommand::Pause } else { BytefrogCommand::Suspend };
                assert_eq!(command(&daemon, agent.configuration.run, way), Ok(()));
            }
            beat(&daemon, &mut agent, mode).await;
            let answer = command(&daemon, agent.configuration.run, one);
            assert_eq!(
                answer.is_ok(),
                allowed.contains(&messages_received),
                "{messages_received:?} in mode {}: {answer:?}",
                mode as char
            );
            if answer.is_ok() {
                agent.until_message(&messages_received).await;
            }
        }
    }
}

/// The agent handles a command some time after it was sent. Until it reports the mode, the next command could meet the
/// old one.
#[tokio::test]
async fn a_second_pause_is_refused_until_the_agent_has_reported_its_mode() {
    let daemon = daemon("").await;
    let (mut agent, _data) = tracing(&daemon, 1).await;
    let run = agent.configuration.run;
    assert_eq!(command(&daemon, run, BytefrogCommand::Pause), Ok(()));
    assert_eq!(
        accepted(&daemon, run, [BytefrogCommand::Pause, BytefrogCommand::Suspend]),
        [],
        "it may be paused already"
    );
    beat(&daemon, &mut agent, b'P').await;
    assert_eq!(command(&daemon, run, BytefrogCommand::Unpause), Ok(()));
    agent.until_message(&CollectorMessage::Unpause).await;
    assert_eq!(agent.messages_received()[2..], [CollectorMessage::Pause, CollectorMessage::Unpause]);
}

/// A script that pauses and unpauses must not leave the program paused.
#[tokio::test]
async fn an_unpause_right_after_pause_is_sent_when_the_agent_has_confirmed() {
    let daemon = daemon("heartbeat_interval = \"5s\"").await;
    let (mut agent, _data) = tracing(&daemon, 1).await;
    let run = agent.configuration.run;
    assert_eq!(
        accepted(&daemon, run, [BytefrogCommand::Pause, BytefrogCommand::Unpause]),
        [BytefrogCommand::Pause, BytefrogCommand::Unpause]
    );
    agent.until_message(&CollectorMessage::Pause).await;
    beat(&daemon, &mut agent, b'T').await;
    assert!(!agent.messages_received().contains(&CollectorMessage::Unpause), "it is not paused yet");
    beat(&daemon, &mut agent, b'P').await;
    agent.until_message(&CollectorMessage::Unpause).await;
    let [.., pause, unpause] = &agent.messages_received()[..] else { panic!() };
    assert_eq!((pause, unpause), (&CollectorMessage::Pause, &CollectorMessage::Unpause));
}

#[tokio::test]
async fn nothing_is_sent_to_a_run_that_does_not_exist() {
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
