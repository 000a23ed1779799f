//! A receiver of another implementation in another language: grpcio and opentelemetry-proto of Python.
//!
//! `TRIBUTARY_OTLP_PYTHON` names a Python that has them; otherwise `python3` is tried. Without them the tests print a note and go
//! on without it; `cargo test --test sink otlp -- --nocapture` shows it.
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;

use tributary::codec::base64;
use tributary::sink::otlp::Signal;

use crate::live::PATIENCE;
use crate::otlp_support::Decoded;

/// The exit code of the script if a package is missing.
const NO_PACKAGE: i32 = 3;

/// The process. It prints each request, as it writes what it has read, before it answers.
pub(super) struct Python {
    child: Child,
    /// Asks for a mark in the output.
    stdin: Option<ChildStdin>,
    port: u16,
    /// What was read between two marks.
    decoded: mpsc::Receiver<Decoded>,
}

impl Python {
    /// `None`: there is no Python with these packages; that was printed.
    pub(super) fn start() -> Option<Python> {
        let python = std::env::var("TRIBUTARY_OTLP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sink/otlp/receiver.py");
        let mut command = Command::new(&python);
        let Ok(mut child) = command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            eprintln!("NOT TESTED: there is no {python}");
            return None;
        };
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        if stdout.read_line(&mut port).unwrap() == 0 {
            assert_eq!(child.wait().unwrap().code(), Some(NO_PACKAGE), "{python} fails");
            eprintln!(
                "NOT TESTED: {python} has no grpcio or opentelemetry-proto (pip install, TRIBUTARY_OTLP_PYTHON=that python)"
            );
            return None;
        }
        let (sender, decoded) = mpsc::channel();
        std::thread::spawn(move || {
            let mut all = Decoded::default();
            for line in stdout.lines() {
                let line = line.unwrap();
                let Some((signal, message)) = line.split_once(' ') else {
                    let _ = sender.send(std::mem::take(&mut all));
                    continue;
                };
                let signal = Signal::ALL.into_iter().find(|known| known.as_str() == signal).unwrap();
                all.add(signal, &base64::decode(message.as_bytes()).unwrap());
            }
        });
        let stdin = child.stdin.take();
        Some(Python { child, stdin, port: port.trim().parse().unwrap(), decoded })
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it has read since the last call. All of its answers have been received.
    pub(super) fn take(&mut self) -> Decoded {
        self.stdin.as_mut().unwrap().write_all(b"mark\n").unwrap();
        self.decoded.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
