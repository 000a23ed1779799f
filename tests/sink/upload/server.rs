//! A real S3 server: moto, in a process of its own.
//!
//! `TRIBUTARY_MOTO_PYTHON` names a Python that has it; otherwise `python3` is tried. Without it the tests print a note and pass.
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::live::binary::end_with_this_thread;

/// The exit code of the script if moto is missing.
const NO_MOTO: i32 = 3;
/// The bucket of all tests.
pub(super) const BUCKET: &str = "events";

/// The process. Its objects are in its memory.
pub(super) struct Server {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    pub(super) address: SocketAddr,
}

impl Server {
    /// A server with an empty bucket. `None`: there is no Python with moto; that was printed.
    pub(super) fn start() -> Option<Server> {
        let python = std::env::var("TRIBUTARY_MOTO_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut command = Command::new(&python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sink/upload/server.py"));
        // Parts may be as small as the files of a test.
        command.env("S3_UPLOAD_PART_MIN_SIZE", "1").stderr(Stdio::null());
        end_with_this_thread(&mut command);
        let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            eprintln!("NOT TESTED: there is no {python}");
            return None;
        };
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        if stdout.read_line(&mut port).unwrap() == 0 {
            assert_eq!(child.wait().unwrap().code(), Some(NO_MOTO), "{python} fails");
            eprintln!(
                "NOT TESTED: {python} has no moto (pip install 'moto[server]', TRIBUTARY_MOTO_PYTHON=that python)"
            );
            return None;
        }
        let address = format!("127.0.0.1:{}", port.trim()).parse().unwrap();
        let stdin = child.stdin.take();
        let mut server = Server { child, stdin, stdout, address };
        server.ask(&format!("bucket {BUCKET}"));
        Some(server)
    }

    /// Gives the script a line, and returns its answer.
    pub(super) fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        assert!(!answer.is_empty(), "the server has failed at {line:?}");
        answer.trim_end().to_owned()
    }

    /// The lengths of the objects.
    pub(super) fn objects(&mut self) -> BTreeMap<String, u64> {
        serde_json::from_str(&self.ask(&format!("objects {BUCKET}"))).unwrap()
    }

    /// Writes the objects below a directory.
    pub(super) fn fetch(&mut self, directory: &Path) {
        self.ask(&format!("fetch {BUCKET} {}", directory.display()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
