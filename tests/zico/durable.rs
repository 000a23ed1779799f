//! Registrations are on the disk before they are answered, with the names of new files and directories.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::live::PATIENCE;
use crate::live::strace::{Traced, is_available, is_synced};

#[test]
fn a_registration_is_synced_with_the_directory_of_its_file_before_it_is_answered() {
    if !is_available() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().display();
    let toml = format!(
        "[admin]\nlisten = \"\"\n[listeners.zorka]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\n\
         acknowledge = \"durable\"\nstate_dir = \"{dir}/new/state\"\nquarantine.dir = \"\"\n\
         [sinks.archive]\ntype = \"file\"\npath = \"{dir}/out.ndjson\"\nfsync_interval = \"1h\"\n"
    );
    let daemon = Traced::start(directory.path(), &toml, None);
    let mut stream = TcpStream::connect(daemon.address("zorka")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let body = r#"{"rkey":"secret","name":"one","app":"shop","env":"TST"}"#;
    let head = "POST /agent/register HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 201");
    daemon.until_call("HTTP/1.1 201");
    let calls = daemon.calls();
    let answered = calls.iter().position(|call| call.contains("HTTP/1.1 201")).unwrap();
    let before = &calls[..answered];
    let is_data = |call: &&String| call.contains("sync(") && call.contains("zorka.db-wal>") && call.ends_with("= 0");
    let listening = before.iter().position(|call| call.contains("INFO listen")).unwrap();
    assert!(before[listening..].iter().any(|call| is_data(&call)), "the registration itself: {calls:#?}");
    assert!(before.iter().any(|call| is_synced(call) && call.contains("out.ndjson")), "its event: {calls:#?}");
    for name in ["", "/new", "/new/state"] {
        let synced = format!("{dir}{name}>)");
        let is_it = |call: &&String| call.contains("sync(") && call.contains(&synced) && call.ends_with("= 0");
        assert!(before.iter().any(|call| is_it(&call)), "{synced} in {calls:#?}");
    }
    daemon.stop();
}
