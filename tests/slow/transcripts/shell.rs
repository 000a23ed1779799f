//! A shell in a directory and a network of its own, and the comparison of what its commands print.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::page::{Block, Step};
use tributary_testing::wait::poll_blocking;

/// The longest time that one command may take, and that its lines may take to appear.
const PATIENCE: Duration = Duration::from_secs(60);
/// The line that the shell prints when a command has ended.
const END: &str = "-- end of the command --";
/// Behind the start of a daemon: a reader of the page waits for its lines before the next command, too.
const UNTIL_READY: &str = "\nfor _ in {1..300}; do tributary health >/dev/null 2>&1 && break; sleep 0.1; done";
/// Commands of the system that transcripts use.
const TOOLS: [&str; 5] = ["jq", "curl", "python3", "sqlite3", "openssl"];
/// Commands that change nothing: they are run again until they print what the page has.
const READERS: [&str; 11] = [
    "tributary spool list",
    "tributary spool show",
    "tributary services",
    "tributary traces",
    "curl -s 127.0.0.1",
    "sleep",
    "grep",
    "head",
    "jq",
    "ls",
    "wc",
];

/// A shell. It ends, with its background jobs, when it is dropped: the kernel kills what is left in its process namespace.
pub(super) struct Shell {
    child: Child,
    input: ChildStdin,
    output: Receiver<String>,
    directory: TempDir,
    /// The bytes of the jobs' output that were compared.
    seen: usize,
}

impl Shell {
    /// Starts a shell whose directory has the folders `config` and `tests` of the repository, and whose path begins with the
    /// binary.
    ///
    /// # Errors
    /// The machine cannot give it a network of its own.
    pub(super) fn start(root: &Path) -> Result<Shell, String> {
        let directory = tempfile::tempdir().unwrap();
        for name in ["config", "tests"] {
            symlink(root.join(name), directory.path().join(name)).unwrap();
        }
        let programs = directory.path().join(".bin");
        fs::create_dir(&programs).unwrap();
        symlink(env!("CARGO_BIN_EXE_tributary"), programs.join("tributary")).unwrap();
        if let Ok(python) = env::var("TRIBUTARY_DUCKDB_PYTHON") {
            let wrapper = programs.join("python3");
            fs::write(&wrapper, format!("#!/bin/sh\nexec {python} \"$@\"\n")).unwrap();
            Command::new("chmod").arg("755").arg(&wrapper).status().unwrap();
        }
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--net", "--pid", "--fork", "--kill-child", "setsid", "bash", "-c"]);
        // A session of its own: `kill %1` in a transcript reaches no process outside.
        command.arg(format!("ip link set lo up && echo '{END}' && exec bash 2>&1"));
        command.current_dir(directory.path()).env_remove("TRIBUTARY_LOG").env("NO_COLOR", "1").env("LC_ALL", "C.UTF-8");
        command.env("PATH", format!("{}:{}:/usr/sbin:/sbin", programs.display(), env::var("PATH").unwrap_or_default()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("cannot run unshare: {error}"))?;
        let (input, output) = (child.stdin.take().unwrap(), lines(child.stdout.take().unwrap()));
        let mut shell = Shell { child, input, output, directory, seen: 0 };
        match shell.output.recv_timeout(PATIENCE) {
            Ok(line) if line == END => {}
            _ => return Err("a network of their own needs unshare, ip and the right to use them".to_owned()),
        }
        shell.send("set -m; touch .jobs");
        Ok(shell)
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A tool that the block needs and this machine does not have.
    pub(super) fn missing(&mut self, block: &Block) -> Option<String> {
        let text = block.lines.join("\n");
        let has = |shell: &mut Shell, check: &str| {
            shell.send(&format!("{check} >/dev/null 2>&1 && echo yes; echo '{END}'"));
            shell.until_end().contains(&"yes".to_owned())
        };
        let is_used = |tool: &&&str| text.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == **tool);
        let missing = TOOLS.iter().filter(is_used).find(|tool| !has(self, &format!("command -v {tool}")));
        match missing {
            Some(tool) => Some((*tool).to_owned()),
            None if text.contains("import duckdb") => {
                (!has(self, "python3 -c 'import duckdb'")).then(|| "duckdb for python3".to_owned())
            }
            None => None,
        }
    }

    /// Runs a command, and waits until its output and that of background jobs is what the page has. A command that changes nothing
    /// is run again meanwhile.
    ///
    /// # Errors
    /// The output, if it is another one.
    pub(super) fn run(&mut self, step: &Step, is_varying: bool) -> Result<(), String> {
        let expected: Vec<String> = step.expected.iter().map(|line| normalized(line, is_varying)).collect();
        let runs_again = changes_nothing(&step.command);
        let mut printed = None;
        let mut actual = Vec::new();
        let compared = poll_blocking(PATIENCE, || {
            let printed = match &mut printed {
                Some(printed) if !runs_again => printed,
                printed => printed.insert(self.output_of(&step.command)),
            };
            let jobs = fs::read_to_string(self.directory.path().join(".jobs")).unwrap();
            let new = jobs.get(self.seen..jobs.rfind('\n').map_or(0, |end| end + 1)).unwrap_or_default();
            actual = printed.iter().map(String::as_str).chain(new.lines()).map(str::to_owned).collect();
            let lines: Vec<String> = actual.iter().map(|line| normalized(line, is_varying)).collect();
            is_match(&expected, &lines).then_some(new.len())
        });
        self.seen += compared.ok_or_else(|| actual.join("\n"))?;
        Ok(())
    }

    fn output_of(&mut self, command: &str) -> Vec<String> {
        self.send(&format!("{}\necho '{END}'", with_jobs_in_the_background(command)));
        self.until_end()
    }

    fn send(&mut self, text: &str) {
        writeln!(self.input, "{text}").unwrap();
    }

    /// The lines until the command has ended.
    fn until_end(&mut self) -> Vec<String> {
        let (mut lines, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == END => return lines,
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("a command takes too long: {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => panic!("the shell has ended: {lines:?}"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Whether every part of a pipeline or list is one of [`READERS`].
fn changes_nothing(command: &str) -> bool {
    let is_reader = |part: &str| READERS.iter().any(|reader| part.trim().starts_with(reader));
    !command.contains('>') && command.split(" | ").flat_map(|part| part.split("; ")).all(is_reader)
}

/// The command, so that a job (`tributary run &`) prints into the file of the jobs, and a daemon is ready when the command has
/// ended.
fn with_jobs_in_the_background(command: &str) -> String {
    match command.rsplit_once(" &") {
        Some((job, rest)) if rest.is_empty() || rest.starts_with(' ') => {
            let wait = if job.contains("tributary run") { UNTIL_READY } else { "" };
            format!("{job} >>.jobs 2>&1 &{rest}{wait}")
        }
        _ => command.to_owned(),
    }
}

/// Whether the lines are those of the page. A line `…` stands for any lines, and `…` in a line for any text.
fn is_match(expected: &[String], actual: &[String]) -> bool {
    match expected.split_first() {
        None => actual.is_empty(),
        Some((any, rest)) if any == "…" => (0..=actual.len()).any(|skipped| is_match(rest, &actual[skipped..])),
        Some((line, rest)) => {
            actual.split_first().is_some_and(|(first, others)| is_line(line, first) && is_match(rest, others))
        }
    }
}

fn is_line(expected: &str, actual: &str) -> bool {
    match expected.split_once('…') {
        None => expected == actual,
        Some((before, after)) => actual
            .strip_prefix(before)
            .is_some_and(|rest| (0..=rest.len()).filter_map(|at| rest.get(at..)).any(|rest| is_line(after, rest))),
    }
}

/// A line with words in place of what differs between two runs, and with single spaces.
fn normalized(line: &str, is_varying: bool) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let line = words.join(" ");
    let mut text = String::new();
    let mut rest = line.as_str();
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let end = from.find(|c: char| !(c.is_ascii_digit() || ".:-TZ".contains(c))).unwrap_or(from.len());
        let number = from[..end].trim_end_matches(|c: char| !c.is_ascii_digit() && c != 'Z');
        text.push_str(before);
        text.push_str(&number_word(number, is_varying));
        rest = &from[number.len()..];
    }
    text + rest
}

fn number_word(number: &str, is_varying: bool) -> String {
    let is_chosen = |port: &str| port.parse::<u16>().is_ok_and(|port| port >= 32768);
    let is_decimal = number.split('.').count() == 2 && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    match number.rsplit_once(':') {
        _ if number.contains('T') && number.ends_with('Z') => "<time>".to_owned(),
        _ if number.len() == 10 && number.split('-').count() == 3 => "<date>".to_owned(),
        Some((host, port)) if host.contains('.') && is_chosen(port) => format!("{host}:<port>"),
        Some((host, _)) if host.contains('.') => number.to_owned(),
        _ if is_decimal => "<decimal>".to_owned(),
        _ if is_varying => "<number>".to_owned(),
        _ => number.to_owned(),
    }
}

#[test]
fn only_commands_that_change_nothing_are_run_again() {
    assert!(changes_nothing("sleep 2; curl -s 127.0.0.1:9464/metrics | grep -E '^tributary_sink_(events_total|up)'"));
    assert!(changes_nothing("tributary spool list --config spool.toml"));
    assert!(!changes_nothing("tributary spool drop --config spool.toml"));
    assert!(!changes_nothing("tributary simulate datadog --count 253; tributary spool list"));
    assert!(!changes_nothing("ls > files"));
}

#[test]
fn what_differs_between_two_runs_is_not_compared() {
    let line = "2026-11-22T18:34:11.726432Z  INFO on 127.0.0.1:8136, 127.0.0.1:42725: 100 events in 0.07 s";
    assert_eq!(normalized(line, false), "<time> INFO on 127.0.0.1:8136, 127.0.0.1:<port>: 100 events in <decimal> s");
    assert_eq!(normalized("events/2026-11-22/a.ndjson 7", true), "events/<date>/a.ndjson <number>");
    let lines = |text: &[&str]| text.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(is_match(&lines(&["a", "…", "c … e"]), &lines(&["a", "b", "b", "c d e"])));
    assert!(!is_match(&lines(&["a"]), &lines(&["a", "b"])));
}
