//! A client of gRPC of another implementation in another language: grpcio of Python (`TRIBUTARY_OTLP_PYTHON`).
#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::path::Path;
use std::process::Command;

use crate::live::Daemon;
use crate::{profiles, records};

/// The exit code of the script if a package is missing.
const NO_PACKAGE: i32 = 3;

#[tokio::test]
async fn a_client_of_grpc_is_answered_with_statuses_of_grpc() {
    let daemon = Daemon::start(
        "[listeners.test]\nprotocol = \"otlp\"\nlisten = \"127.0.0.1:0\"\ngrpc = \"\"\nquarantine.dir = \"\"\nacknowledge = \"written\"\n",
    )
    .await;
    let folder = tempfile::tempdir().unwrap();
    let bodies = [
        ("traces", records::traces()),
        ("logs", records::logs()),
        ("metrics", records::metrics()),
        ("profiles", profiles::profiles()),
    ];
    let files = bodies.map(|(name, body)| {
        let path = folder.path().join(name);
        std::fs::write(&path, body).unwrap();
        path
    });
    let python = std::env::var("TRIBUTARY_OTLP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/otlp/client.py");
    let mut command = Command::new(&python);
    command.arg(script).arg(daemon.server.address().unwrap().to_string()).args(files);
    let Ok(output) = tokio::task::spawn_blocking(move || command.output()).await.unwrap() else {
        eprintln!("NOT TESTED: there is no {python}");
        return;
    };
    if output.status.code() == Some(NO_PACKAGE) {
        eprintln!("NOT TESTED: {python} has no grpcio or opentelemetry-proto");
        return;
    }
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines.len(), 13, "{stdout}");
    for (number, name) in ["trace", "logs", "metrics", "profiles"].into_iter().enumerate() {
        let [plain, at_once, invalid] = &lines[3 * number..3 * number + 3] else { unreachable!("thirteen lines") };
        assert_eq!(*plain, format!("{name} OK ''"));
        assert_eq!(*at_once, format!("{name} at once {{'OK'}}"));
        assert!(invalid.starts_with(&format!("{name} INVALID_ARGUMENT at 0: Export")), "{invalid}");
    }
    assert!(lines[12].starts_with("unknown UNIMPLEMENTED OpenTelemetry SDKs post to"), "{}", lines[12]);
    let events = daemon.events();
    let count = |kind: &str| events.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!((count("span"), count("log"), count("sample")), (2 * 21, 2 * 21, 4 * 21));
    assert_eq!(daemon.counters().buffered(), 0);
}
