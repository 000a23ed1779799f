//! Standard output: a pipe whose reader stalls, and a process that has none.

use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::live::within;
use crate::sink_file_support::{batch_of, names, names_in, now};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio_util::sync::CancellationToken;
use tributary::pipeline::Sinks;
use tributary::pipeline::options::QueueOptions;
use tributary::sink::encode::Format;
use tributary::sink::stdout::Stdout;

#[tokio::test]
async fn when_the_grace_period_ends_the_output_to_a_pipe_ends_after_a_whole_line() {
    // Short lines are written whole or not at all; the rest of a long one is written while the reader reads on.
    for len in [300, 60_000] {
        let (writer, mut reader) = pipe::pipe().unwrap();
        let writer = std::sync::Mutex::new(Some(writer));
        let mut sinks = Sinks::new(CancellationToken::new());
        sinks.add("console", QueueOptions::default(), move || {
            Ok(Stdout::to_pipe(writer.lock().unwrap().take().unwrap(), Format::Json))
        });
        let counters = sinks.counters()[0].clone();
        let (sender, mut workers) = sinks.start();
        let expected = names(0..1_000, len);
        let sending = tokio::spawn(async move {
            for name in expected {
                sender.send(batch_of(&[name], "web", now())).await;
            }
        });
        // The sink is at work, and then waits for the reader, who reads no further.
        let mut seen = vec![0];
        within("the first byte", reader.read_exact(&mut seen)).await.unwrap();
        let rest = tokio::spawn(async move {
            let mut bytes = Vec::new();
            // The short lines are read only after the sink has given up.
            reader.read_to_end(&mut bytes).await.unwrap();
            bytes
        });
        within("the worker ends", workers.abort()).await;
        seen.extend(within("the end of the output", rest).await.unwrap());
        within("no sender waits for the sink", sending).await.unwrap();
        let seen = names_in(&seen);
        assert_eq!(seen, names(0..seen.len(), len));
        assert!(counters.totals().failed > 0, "there was more to write");
    }
}

#[test]
fn without_a_standard_output_the_daemon_refuses_to_start() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("t.toml");
    let listener = "admin.listen = \"\"\n[listeners.test]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&config, listener).unwrap();
    for redirection in [">&-", "1<>/dev/null"] {
        let script = format!("exec \"$0\" run --config \"$1\" {redirection}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_tributary")]).arg(&config);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{redirection}: {stderr}");
        let last = stderr.lines().last().unwrap();
        assert!(last.starts_with("tributary: cannot start sink console: standard output is closed"), "{last}");
    }
}

#[test]
fn standard_output_to_the_null_device_is_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("t.toml");
    let listener = "admin.listen = \"\"\n[listeners.test]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    std::fs::write(&config, listener).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tributary"));
    command.args(["run", "--config"]).arg(&config).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = command.spawn().unwrap();
    let mut stderr = daemon.stderr.take().unwrap();
    let mut text = Vec::new();
    let mut block = [0; 4096];
    while !String::from_utf8_lossy(&text).contains("sink=\"console\"") {
        let count = stderr.read(&mut block).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&block[..count]);
    }
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}
