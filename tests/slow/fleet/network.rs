//! The hosts of a fleet: network namespaces, between which this process routes. Where namespaces cannot be made, all hosts are
//! loopback.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use crate::live::binary::end_with_this_thread;

/// Set in the process that has a network of its own.
const OWN: &str = "TRIBUTARY_FLEET_IN_OWN_NETWORK";
/// A directory for names of namespaces, and packets between them.
const SETUP: &str =
    "mount -t tmpfs tmpfs /run && ip link set lo up && echo 1 > /proc/sys/net/ipv4/ip_forward && exec \"$@\"";

/// A host.
pub(super) struct Host {
    pub(super) address: Ipv4Addr,
    namespace: Option<String>,
}

/// The hosts of `test`. `None`: it has run in a network of its own, and passed.
pub(super) fn hosts<T>(_test: T, count: usize) -> Option<Vec<Host>> {
    if std::env::var_os(OWN).is_some() {
        return Some((1..=count).map(Host::in_namespace).collect());
    }
    if !in_own_network(&["true"]).status().is_ok_and(|status| status.success()) {
        eprintln!(
            "NOT TESTED in network namespaces, which unshare or ip cannot make here: a partition is a stopped process"
        );
        return Some((0..count).map(|_| Host { address: Ipv4Addr::LOCALHOST, namespace: None }).collect());
    }
    let (_crate, test) = std::any::type_name::<T>().split_once("::").unwrap();
    let program = std::env::current_exe().unwrap().display().to_string();
    let mut command = in_own_network(&[&program, test, "--exact", "--nocapture", "--test-threads=1"]);
    let output = command.env(OWN, "1").stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains("1 passed"), "{stdout}{stderr}");
    eprint!("{stderr}");
    None
}

/// A program in a network of its own, and with processes of its own, which end with it.
fn in_own_network(program: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["sh", "-c", SETUP, "sh"]).args(program).stdout(Stdio::null()).stderr(Stdio::null());
    end_with_this_thread(&mut command);
    command
}

impl Host {
    /// A namespace of this number, with one link to this process.
    fn in_namespace(number: usize) -> Host {
        let (name, link, network) = (format!("host{number}"), format!("link{number}"), format!("10.77.{number}"));
        let commands = [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name eth0 netns {name}"),
            format!("addr add {network}.1/24 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {network}.2/24 dev eth0"),
            format!("-n {name} link set eth0 up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} route add default via {network}.1"),
        ];
        commands.iter().for_each(|command| ip(command));
        Host { address: Ipv4Addr::new(10, 77, number as u8, 2), namespace: Some(name) }
    }

    /// A command that runs on this host.
    pub(super) fn command(&self, program: &str) -> Command {
        let Some(namespace) = &self.namespace else { return Command::new(program) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, program]);
        command
    }

    /// Whether its packets can be dropped.
    pub(super) fn can_be_cut(&self) -> bool {
        self.namespace.is_some()
    }

    /// Drops all packets to and from this host, silently, or lets them pass again.
    pub(super) fn cut(&self, is_cut: bool) {
        let action = if is_cut { "add" } else { "del" };
        for direction in ["to", "from"] {
            ip(&format!("rule {action} priority 10 {direction} {} blackhole", self.address));
        }
    }
}

fn ip(arguments: &str) {
    assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
}
