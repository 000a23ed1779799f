//! Every command, sent from the page to a simulated agent: the page says what it will do and what happened.

use std::future::pending;

use tributary::protocol::{bytefrog as bytefrog_protocol, rbkit as rbkit_protocol};
use tributary::simulate::{self, AgentKind, Amount, Plan, bytefrog, rbkit};

use crate::browser::Browser;
use crate::live::{PATIENCE, within};
use crate::world::World;

/// Sends a command as a person does: button, explanation, confirmation.
async fn command(browser: &Browser, name: &str) {
    browser.click(&format!("[data-command={name}]"), "").await;
    let explained = browser.text("dialog p").await;
    assert!(explained.len() > 20, "{name} is explained: {explained:?}");
    browser.click(&format!("[data-confirm={name}]"), "Send the command").await;
    browser
        .until(
            &format!("the outcome of {name}"),
            "return !document.querySelector('.outcome').innerText.includes('sending')",
        )
        .await;
}

#[tokio::test]
async fn a_java_program_is_started_paused_suspended_and_stopped_from_its_page() {
    let Some(browser) = Browser::open().await else { return };
    let toml = "[listeners.java]\nprotocol = \"bytefrog\"\nlisten = \"127.0.0.1:0\"\nstart = \"on_command\"\nheartbeat_interval = \"100ms\"\n";
    let world = World::start("", toml).await;
    let plan =
        Plan { to: world.address("java"), amount: Amount::For(PATIENCE * 2), rate: Some(100), connections: 1, seed: 7 };
    let running = tokio::spawn(simulate::run(AgentKind::Bytefrog(bytefrog::Options::default()), plan, pending()));
    let connected = world.daemon.until_named("bytefrog.agent.connected").await;
    let run = &connected["resource"]["bytefrog.run.id"];
    browser.goto(&world.page(&format!("agents/java%3A{run}"))).await;
    let states = [
        ("start", "tracing"),
        ("pause", "paused"),
        ("unpause", "tracing"),
        ("suspend", "suspended"),
        ("unsuspend", "tracing"),
    ];
    for (name, state) in states {
        command(&browser, name).await;
        browser.until_text(".outcome", "sent").await;
        browser.until_text("dl.facts .pill", state).await;
    }
    command(&browser, "stop").await;
    let ended = world.daemon.until_named("bytefrog.run.ended").await;
    assert_eq!(&ended["resource"]["bytefrog.run.id"], run);
    let known = bytefrog_protocol::BytefrogCommand::ALL.map(bytefrog_protocol::BytefrogCommand::as_str);
    assert_eq!(known.len(), states.len() + 1, "every command is tested: {known:?}");
    browser.close().await;
    running.abort();
    world.stop().await;
}

#[tokio::test]
async fn every_command_of_a_ruby_process_arrives_once() {
    let Some(browser) = Browser::open().await else { return };
    let any = ([127, 0, 0, 1], 0).into();
    let options = rbkit::Options { publish: any, request: any, heap_objects: 100, ..Default::default() };
    let process = rbkit::SimulatedProcess::bind(options).await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let toml = format!(
        "[listeners.ruby]\nprotocol = \"rbkit\"\nagents = [{{ publish = \"{publish}\", request = \"{request}\" }}]\n"
    );
    let world = World::start("", &toml).await;
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let plan = rbkit::Plan { amount: Amount::For(PATIENCE * 2), rate: Some(50), seed: 1 };
    let running = tokio::spawn(process.run(plan, async { ended.await.unwrap_or_default() }));
    browser.goto(&world.page("agents/ruby%3A0")).await;
    browser.until_text("dl.facts .pill", "subscribed").await;
    let commands = rbkit_protocol::RbkitCommand::ALL.map(rbkit_protocol::RbkitCommand::as_str);
    for name in commands {
        command(&browser, name).await;
        browser.until_text(".outcome div:first-child", "received").await;
    }
    browser.close().await;
    end.send(()).unwrap();
    let report = within("the process ends", running).await.unwrap().unwrap();
    for name in commands.into_iter().filter(|name| *name != "handshake") {
        assert_eq!(report.received.requests.get(name), Some(&1), "{name}: {:?}", report.received.requests);
    }
    assert_eq!(report.received.faults(), 0);
    world.stop().await;
}
