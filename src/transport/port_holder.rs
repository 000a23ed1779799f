//! Which process has an address that cannot be bound, and what to do.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

/// The error with what to do about it, for an address that cannot be bound.
pub fn explained(address: SocketAddr, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{error}{}", remedy(address, error)))
}

/// What to do about an address that cannot be bound, as the end of a sentence.
pub fn remedy(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        ErrorKind::AddrInUse => match holder(port) {
            Some(holder) => format!("; {holder} has it: stop that, or set another port"),
            None => format!("; `ss -ltnp 'sport = :{port}'`, as root, shows the process that has it"),
        },
        ErrorKind::PermissionDenied => {
            format!("; ports below 1024 need the capability CAP_NET_BIND_SERVICE, or a socket of systemd (port {port})")
        }
        ErrorKind::AddrNotAvailable => "; this machine does not have this address".to_owned(),
        _ => String::new(),
    }
}

/// The process that listens on this port, as far as this process may see it.
fn holder(port: u16) -> Option<String> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let has_socket = |process: &fs::DirEntry| {
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { return false };
        let mut files = descriptors.flatten().filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
        files.any(|file| file.to_str().is_some_and(|file| sockets.iter().any(|socket| socket == file)))
    };
    let process = fs::read_dir("/proc").ok()?.flatten().filter(|entry| id(entry).is_some()).find(has_socket)?;
    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
    let name: String = name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Some(format!("process {} ({name})", id(&process)?))
}

fn id(process: &fs::DirEntry) -> Option<u32> {
    process.file_name().to_str()?.parse().ok()
}

/// The inodes of the sockets that listen on a port, from a table of the kernel.
fn listening(table: &str, port: u16) -> Vec<String> {
    let end = format!(":{port:04X}");
    table.lines().filter_map(|line| inode(line, &end)).map(str::to_owned).collect()
}

/// The inode in a line of the table, if it has a socket that listens and its address ends so. The fields: number, local address,
/// remote address, state, queues, timer, retransmissions, user, time-out, inode.
fn inode<'a>(line: &'a str, end: &str) -> Option<&'a str> {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_wanted = fields.get(1)?.ends_with(end) && *fields.get(3)? == LISTEN;
    if is_wanted { fields.get(9).copied() } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_process_that_has_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = TcpListener::bind(address).unwrap_err();
        let text = explained(address, &error).to_string();
        let own = format!("; process {} (", std::process::id());
        assert!(text.contains(&own), "{text}");
        assert_eq!(explained(address, &error).kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn only_sockets_that_listen_on_the_port_are_found() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                     0: 0100007F:1FC8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n   \
                     1: 0100007F:1FC8 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n   \
                     2: 0100007F:1FC9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0\n  3: x\n";
        assert_eq!(listening(table, 0x1FC8), ["4711"]);
    }
}
