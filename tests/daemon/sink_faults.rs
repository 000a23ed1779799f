//! Sinks whose last write failed: the daemon is not ready and says why, until a write succeeds.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use crate::live::binary::{Binary, copy_to, run, tributary, until};
use crate::live::{listener, send_all, wire};
use tributary::server::Server;

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";
/// A user without permissions.
const UNPRIVILEGED: u32 = 65_534;

/// A daemon of this configuration in this process.
async fn start(toml: &str) -> Server {
    Server::start(&crate::live::config(&format!("{}{toml}", listener("")))).await.unwrap()
}

/// The events of a process: a log, and a span.
async fn send_events(server: &Server) {
    send_all(crate::live::connect(server).await, &[wire::process(), wire::named_span(1, "work")].concat()).await;
}

/// Waits until the daemon is not ready for reasons that contain all of these.
async fn until_not_ready(server: &Server, reasons: &[&str]) -> String {
    let is_named = |why: &String| reasons.iter().all(|reason| why.contains(reason));
    crate::live::until("the daemon says why it is not ready", || server.health().not_ready().filter(is_named)).await
}

async fn until_ready(server: &Server) {
    crate::live::until("the daemon is ready", || server.health().not_ready().is_none().then_some(())).await;
}

#[tokio::test]
async fn a_daemon_whose_output_paths_are_directories_is_not_ready_and_names_all_of_them_until_they_can_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let toml =
        format!("[sinks.archive]\ntype = \"file\"\npath = \"{path}/{{kind}}.ndjson\"\nrotate_interval = \"2s\"\n");
    let blocked = ["log", "span"].map(|kind| format!("{path}/{kind}.ndjson"));
    blocked.iter().for_each(|path| fs::create_dir(path).unwrap());
    let server = start(&toml).await;
    assert_eq!(server.health().not_ready(), None, "nothing was written yet");
    send_events(&server).await;
    let reasons = [&blocked[0], &blocked[1], "not a regular file", "count as failed"];
    let why = until_not_ready(&server, &reasons).await;
    assert!(why.starts_with("sink archive: cannot write"), "{why}");
    let totals = || server.accounting().totals().sinks.remove(0);
    assert!(!totals().is_retrying && totals().failed == 2, "{:?}", totals());
    // A loss has a file of its own, which can be written. When the sink finishes it two seconds later, it has also tried the others
    // again, without any event for them.
    send_all(crate::live::connect(&server).await, b"no such thing").await;
    crate::live::until("the file of the loss is finished", || {
        (server.accounting().files()[0].1.finished == 1).then_some(())
    })
    .await;
    assert_eq!(totals().failed, 2);
    until_not_ready(&server, &reasons).await;
    fs::remove_dir(&blocked[0]).unwrap();
    crate::live::until("only the other one is named", || {
        let why = server.health().not_ready()?;
        (!why.contains(&blocked[0]) && why.contains(&blocked[1])).then_some(())
    })
    .await;
    fs::remove_dir(&blocked[1]).unwrap();
    until_ready(&server).await;
    send_events(&server).await;
    crate::live::until("events are written", || (totals().written == 1 + 2).then_some(())).await;
    server.stop().await;
}

#[tokio::test]
async fn an_archive_whose_files_cannot_be_written_is_not_up_until_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display().to_string();
    let toml = format!(
        "[sinks.archive]\ntype = \"parquet\"\npath = \"{path}/{{kind}}\"\nrotate_interval = \"1s\"\nkinds = [\"span\"]\n"
    );
    // Where the directory of the finished files is to be.
    let blocked = directory.path().join("span");
    fs::write(&blocked, "").unwrap();
    let server = start(&toml).await;
    send_events(&server).await;
    let why = until_not_ready(&server, &["sink archive: cannot write", "/span/", "its rows stay in the journal"]).await;
    assert!(why.contains("Not a directory") || why.contains("File exists"), "{why}");
    fs::remove_file(&blocked).unwrap();
    until_ready(&server).await;
    assert_eq!(fs::read_dir(&blocked).unwrap().count(), 1);
    server.stop().await;
}

/// The response of `/readyz`, by way of the command.
fn readiness(daemon: &Binary) -> (Option<i32>, String) {
    let ended = run(&["health", "--admin", &daemon.admin_address().to_string()]);
    (ended.code, ended.stdout + &ended.stderr)
}

fn until_unready(daemon: &Binary, reasons: &[&str]) {
    until("the daemon says why it is not ready", || {
        let (code, why) = readiness(daemon);
        (code == Some(1) && reasons.iter().all(|reason| why.contains(reason))).then_some(())
    });
}

#[test]
fn a_stream_that_takes_nothing_is_not_up_although_its_sink_is_started_again_and_again() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("tributary.toml");
    fs::write(&config, format!("{ADMIN}{}[sinks.console]\ntype = \"stdout\"\n", listener(""))).unwrap();
    let program = tributary(&["run", "--config", config.to_str().unwrap()]);
    let shell = format!("exec {} \"$@\" >/dev/full", program.get_program().to_str().unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &shell, "sh"]).args(program.get_args());
    let daemon = Binary::start(command);
    assert_eq!(readiness(&daemon).0, Some(0), "nothing was written yet");
    let mut stream = TcpStream::connect(daemon.address("test")).unwrap();
    stream.write_all(&wire::work(1).0).unwrap();
    daemon.until_stderr("sink failed; restarting it");
    for _ in 0..20 {
        let (code, why) = readiness(&daemon);
        assert_eq!(code, Some(1));
        assert!(why.contains("sink console") && why.contains("No space left on device"), "{why}");
    }
    // The report of the loss cannot be written either: the stop does not wait for that until its grace period is over.
    let before = std::time::Instant::now();
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(1));
    assert!(before.elapsed() < std::time::Duration::from_secs(30), "{:?}", before.elapsed());
}

#[test]
fn a_directory_without_permission_keeps_the_daemon_unready_after_its_events_count_as_failed() {
    let home = tempfile::tempdir().unwrap();
    let inside = home.path().join("inside");
    fs::create_dir(&inside).unwrap();
    // Root has all permissions, so root runs it as another user, which needs access to the binary and the directory.
    let program = home.path().join("tributary");
    copy_to(&program);
    let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    allow(home.path(), 0o755);
    allow(&inside, 0o777);
    let (config, events) = (home.path().join("tributary.toml"), inside.join("events.ndjson"));
    let sink = format!("[sinks.archive]\ntype = \"file\"\npath = {events:?}\n");
    fs::write(&config, format!("{ADMIN}{}{sink}", listener(""))).unwrap();
    let mut command = Command::new(&program);
    command.args(["run", "--config"]).arg(&config);
    if fs::metadata(home.path()).unwrap().uid() == 0 {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    let daemon = Binary::start(command);
    let send_events = || {
        let mut stream = TcpStream::connect(daemon.address("test")).unwrap();
        stream.write_all(&wire::work(1).0).unwrap();
    };
    send_events();
    until("events are written", || events.exists().then_some(()));
    // An open file stays writable, so it is closed.
    allow(&inside, 0o000);
    daemon.signal("HUP");
    until("the file is closed", || (!daemon.has_open(&events)).then_some(()));
    send_events();
    let (path, denied) = (events.display().to_string(), "Permission denied");
    until_unready(&daemon, &["sink archive", &path, denied, "its events wait in memory"]);
    until_unready(&daemon, &["sink archive", &path, denied, "its events count as failed"]);
    // The log has one line for each state.
    daemon.until_stderr("its events count as failed");
    allow(&inside, 0o777);
    until("it is ready", || (readiness(&daemon).0 == Some(0)).then_some(()));
    daemon.until_stderr("every destination can be written again");
    daemon.signal("TERM");
    daemon.end();
}
