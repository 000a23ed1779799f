//! The service manager: notifications to systemd, and the sockets that it hands over.

use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::live::binary::{Binary, tributary, until};
use crate::live::wire;
use crate::spool::get;

/// The notifications that a service manager receives, in order.
struct Manager(UnixDatagram);

impl Manager {
    fn at(path: &Path) -> Manager {
        Manager::of(UnixDatagram::bind(path).unwrap())
    }

    fn of(socket: UnixDatagram) -> Manager {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Manager(socket)
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 1024];
        let length = self.0.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).trim().to_owned()
    }

    fn receive_other_than(&self, ignored: &str) -> String {
        std::iter::repeat_with(|| self.receive()).find(|notification| notification != ignored).unwrap()
    }
}

#[test]
fn a_service_manager_is_notified_of_readiness_progress_reloads_and_the_stop() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("notify"), directory.path().join("t.toml"));
    let manager = Manager::at(&socket);
    let quiet = "[admin]\nlisten = \"\"\n[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&file, format!("{quiet}[sinks.none]\ntype = \"discard\"\n")).unwrap();
    let mut command = tributary(&["run", "--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let daemon = Binary::start(command);
    assert_eq!(manager.receive_other_than("WATCHDOG=1"), "READY=1");
    assert_eq!(manager.receive(), "WATCHDOG=1");
    assert_eq!(manager.receive(), "WATCHDOG=1");
    daemon.signal("HUP");
    let notification = manager.receive_other_than("WATCHDOG=1");
    assert!(notification.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{notification}");
    assert_eq!(manager.receive_other_than("WATCHDOG=1"), "READY=1");
    daemon.signal("TERM");
    assert_eq!(manager.receive_other_than("WATCHDOG=1"), "STOPPING=1");
    assert_eq!(daemon.end().code, Some(0));
}

/// A configuration with this port of the admin endpoint, and a command that runs it for the service manager at this address.
fn quiet_daemon(directory: &Path, admin: &str, notify: &str) -> Command {
    let file = directory.join("t.toml");
    let listener = "[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    fs::write(&file, format!("[admin]\nlisten = {admin:?}\n{listener}[sinks.none]\ntype = \"discard\"\n")).unwrap();
    let mut command = tributary(&["run", "--config", file.to_str().unwrap()]);
    command.env("NOTIFY_SOCKET", notify).env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    command
}

#[test]
fn a_service_manager_with_an_abstract_socket_is_notified() {
    let directory = tempfile::tempdir().unwrap();
    let name = format!("tributary-test-{}", std::process::id());
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let manager = Manager::of(socket);
    let daemon = Binary::start(quiet_daemon(directory.path(), "", &format!("@{name}")));
    assert_eq!(manager.receive_other_than("WATCHDOG=1"), "READY=1");
    daemon.signal("TERM");
    assert_eq!(manager.receive_other_than("WATCHDOG=1"), "STOPPING=1");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn a_service_manager_that_does_not_read_delays_nothing_and_gets_the_notification_later() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify");
    let manager = Manager::at(&path);
    let other = UnixDatagram::unbound().unwrap();
    other.set_nonblocking(true).unwrap();
    while other.send_to(b"other", &path).is_ok() {}
    let daemon = Binary::start(quiet_daemon(directory.path(), "127.0.0.1:0", path.to_str().unwrap()));
    daemon.until_stderr("the service manager does not take a notification; trying again notification=\"READY=1\"");
    assert_eq!(get(&daemon, "/livez").0, 200);
    daemon.signal("HUP");
    daemon.until_stderr("configuration reloaded");
    let is_other = |notification: &str| ["other", "WATCHDOG=1"].contains(&notification);
    let mut notifications = std::iter::repeat_with(|| manager.receive()).filter(|notification| !is_other(notification));
    assert_eq!(notifications.next().unwrap(), "READY=1");
    assert!(notifications.next().unwrap().starts_with("RELOADING=1\n"));
    assert_eq!(notifications.next().unwrap(), "READY=1");
    while other.send_to(b"other", &path).is_ok() {}
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}

#[test]
fn a_socket_that_was_handed_over_is_served_with_the_connections_that_waited() {
    let directory = tempfile::tempdir().unwrap();
    let (file, events) = (directory.path().join("t.toml"), directory.path().join("events.ndjson"));
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // Before the daemon starts.
    let mut early = TcpStream::connect(address).unwrap();
    early.write_all(&[wire::process(), wire::named_span(1, "early")].concat()).unwrap();
    drop(early);
    let sink = format!("[sinks.file]\ntype = \"file\"\npath = {:?}\n", events.display().to_string());
    let listener = format!("[listeners.a]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n");
    fs::write(&file, format!("[admin]\nlisten = \"\"\n{listener}{sink}")).unwrap();
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" run --config \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tributary"), file.to_str().unwrap()]);
    let mut daemon = command.stdin(Stdio::from(OwnedFd::from(socket))).stderr(Stdio::null()).spawn().unwrap();
    until("the span is written", || fs::read_to_string(&events).ok().filter(|text| text.contains("\"early\"")));
    let pid = daemon.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(until("the daemon ends", || daemon.try_wait().unwrap()).success());
}

#[test]
fn a_socket_that_no_listener_uses_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("t.toml");
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let listener =
        "[listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n[sinks.none]\ntype = \"discard\"\n";
    fs::write(&file, format!("[admin]\nlisten = \"\"\n{listener}")).unwrap();
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" run --config \"$1\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tributary"), file.to_str().unwrap()]);
    let daemon = command.stdin(Stdio::from(OwnedFd::from(socket))).stderr(Stdio::piped()).spawn().unwrap();
    let ended = daemon.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{stderr}");
    let expected = format!(
        "tributary: cannot start with the socket {address}, which the service manager has handed over (LISTEN_FDS): \
         no listener has `listen = \"{address}\"`; add one, or remove the socket from its unit\n"
    );
    assert!(stderr.ends_with(&expected), "{stderr}");
}
