//! The `tributary` binary as a process: its output while it runs, and its end.

use std::fs;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use super::PATIENCE;

/// A running process. Killed when dropped.
pub struct Binary {
    child: Child,
    stdout: Option<OutputText>,
    stderr: OutputText,
}

/// A process that has ended by itself.
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A command for the binary with these arguments.
pub fn tributary(arguments: &[&str]) -> Command {
    let mut command = Command::new(crate::program());
    command.args(arguments);
    command
}

/// Copies the binary, for users who cannot read it where it is. Another process copies it: a child that another test starts
/// meanwhile would hold this process' descriptor, and a program that is open for writing cannot be run.
pub fn copy_to(path: &Path) {
    let copied = Command::new("cp").args(["--preserve=mode", crate::program()]).arg(path).status().unwrap();
    assert!(copied.success(), "{}: {copied}", path.display());
}

/// Runs the binary to its end, with nothing on stdin.
pub fn run(arguments: &[&str]) -> Ended {
    Binary::start(tributary(arguments)).end()
}

impl Binary {
    /// Starts a process and collects its output.
    pub fn start(command: Command) -> Binary {
        let mut binary = Binary::start_unread(command);
        binary.stdout = Some(OutputText::collect(binary.child.stdout.take().unwrap()));
        binary
    }

    /// Starts a process with the variable `TRIBUTARY_LOG` of the command.
    pub fn start_with_log(command: Command) -> Binary {
        let mut binary = Binary::spawn(command);
        binary.stdout = Some(OutputText::collect(binary.child.stdout.take().unwrap()));
        binary
    }

    /// Starts a process whose stdout is a pipe that is not read; see [`Binary::take_stdout`].
    pub fn start_unread(mut command: Command) -> Binary {
        command.env_remove("TRIBUTARY_LOG");
        Binary::spawn(command)
    }

    fn spawn(mut command: Command) -> Binary {
        end_with_this_thread(&mut command);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = OutputText::collect(child.stderr.take().unwrap());
        Binary { child, stdout: None, stderr }
    }

    pub fn take_stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    /// Waits for a line on stderr with this text. Returns the line.
    pub fn until_stderr(&self, what: &str) -> String {
        until(what, || {
            let text = self.stderr.text();
            // An incomplete line may still grow.
            let lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            lines.map(str::trim_end).find(|line| line.contains(what)).map(str::to_owned)
        })
    }

    /// Waits for `count` occurrences of this text on stderr.
    pub fn until_stderr_has(&self, count: usize, what: &str) {
        until(what, || (self.stderr.text().matches(what).count() >= count).then_some(()));
    }

    /// Waits until stdout has this text. The process must have been started with [`Binary::start`].
    pub fn until_stdout(&self, what: &str) {
        until(what, || self.stdout.as_ref()?.text().contains(what).then_some(()));
    }

    /// Waits until its stdout has this number of lines.
    pub fn until_stdout_lines(&self, count: usize) {
        until("lines on stdout", || (self.stdout.as_ref()?.text().lines().count() >= count).then_some(()));
    }

    /// The address of the listener with this name, from the log.
    pub fn address(&self, name: &str) -> SocketAddr {
        field(&self.until_stderr(&format!("listening listener=\"{name}\"")), "address").parse().unwrap()
    }

    /// The address of the admin endpoint, from the log.
    pub fn admin_address(&self) -> SocketAddr {
        field(&self.until_stderr("admin endpoint address="), "address").parse().unwrap()
    }

    /// Whether the process has this file open.
    pub fn has_open(&self, path: &Path) -> bool {
        let files = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|open| open == path))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, e.g. `TERM`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        drop(self.child.stdin.take());
        let status: ExitStatus = until("the end of the process", || self.child.try_wait().unwrap());
        Ended {
            code: status.code(),
            stdout: self.stdout.take().map(OutputText::all).unwrap_or_default(),
            stderr: std::mem::take(&mut self.stderr).all(),
        }
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The lines of stdout; each must be JSON.
    pub fn events(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"))).collect()
    }

    pub fn last_words(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// The line of stderr with this text.
    pub fn line(&self, what: &str) -> &str {
        let line = self.stderr.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no {what:?} in\n{}", self.stderr))
    }

    /// The number of this field in the totals of a listener or sink, which end the log.
    pub fn total(&self, of: &str, name: &str, number: &str) -> u64 {
        field(self.line(&format!("{of} totals {of}=\"{name}\" ")), number).parse().unwrap()
    }

    /// The line of stderr that is a JSON object: the report of `simulate`.
    pub fn sent(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        serde_json::from_str(self.last_words()).unwrap()
    }
}

/// The value of a field in a line of the log.
pub fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let value = line.split_once(&format!(" {name}=")).unwrap_or_else(|| panic!("no {name} in {line}")).1;
    match value.strip_prefix('"') {
        Some(text) => text.split('"').next().unwrap_or_default(),
        None => value.split(' ').next().unwrap_or_default(),
    }
}

/// Lets the system kill the process when the thread that starts it has ended, so that a test that is killed leaves no daemon.
#[expect(unsafe_code, reason = "between fork and exec only one system call is made, which is safe there")]
pub fn end_with_this_thread(command: &mut Command) {
    let set = || rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    unsafe { command.pre_exec(move || Ok(set()?)) };
}

/// A port of loopback that is free now, for a process that is started later or again. They are below those that the system
/// chooses, and each is returned once.
pub fn free_port() -> u16 {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let first = 10_000 + (std::process::id() % 100) as u16 * 200;
    loop {
        let port = first + COUNT.fetch_add(1, Ordering::Relaxed) % 2_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// An address of loopback with such a port.
pub fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}

/// Waits for something, blocking this thread.
pub fn until<T>(what: &str, ask: impl FnMut() -> Option<T>) -> T {
    crate::wait::poll_blocking(PATIENCE, ask).unwrap_or_else(|| panic!("this did not happen in time: {what}"))
}

/// Sends a signal to a process. After `STOP` none of its threads runs.
pub fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
    if name == "STOP" {
        until("no thread of the process runs", || is_stopped(process).then_some(()));
    }
}

/// Whether the system has stopped every thread of a process. On a busy machine one can still answer when `kill` has returned.
fn is_stopped(process: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // One that has ended since does not run either.
    let stat = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("stat")).ok();
    let is_stopped = |stat: String| stat.rsplit_once(") ").unwrap().1.starts_with('T');
    threads.map(Result::unwrap).all(|thread| stat(thread).is_none_or(is_stopped))
}

/// The output of a process so far, collected by a thread.
#[derive(Default)]
struct OutputText {
    bytes: Arc<Mutex<Vec<u8>>>,
    listener: Option<JoinHandle<()>>,
}

impl OutputText {
    fn collect(mut stream: impl Read + Send + 'static) -> OutputText {
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let output = bytes.clone();
        let listener = thread::spawn(move || {
            let mut piece = [0; 16 * 1024];
            loop {
                match stream.read(&mut piece) {
                    Ok(0) => return,
                    Ok(count) => output.lock().unwrap().extend_from_slice(&piece[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        OutputText { bytes, listener: Some(listener) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn all(mut self) -> String {
        self.listener.take().unwrap().join().unwrap();
        self.text()
    }
}
