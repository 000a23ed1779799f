//! `decode bytefrog --as coverage`: what ran, and with `--classes` what did not run.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::live::binary::run;
use crate::profiles::{decode, run_files};

/// The methods of the program of the recordings that ran.
const RAN: [(&str, &[(&str, &str)]); 4] = [
    (
        "demo/Tracee",
        &[
            ("<clinit>", "()V"),
            ("main", "([Ljava/lang/String;)V"),
            ("grüße_世界", "()V"),
            ("bump", "()V"),
            ("pause", "()V"),
        ],
    ),
    ("demo/Tracee$Base", &[("<init>", "(I)V")]),
    ("demo/Tracee$AppException", &[("<init>", "(Ljava/lang/String;)V")]),
    (
        "demo/Tracee$Worker",
        &[
            ("<init>", "(II)V"),
            ("run", "()V"),
            ("work", "(I)I"),
            ("leaf", "(I)I"),
            ("caught", "(I)V"),
            ("middle", "(I)V"),
            ("thrower", "(I)V"),
            ("onApp", "(Ldemo/Tracee$AppException;)V"),
            ("divide", "(I)V"),
            ("div", "(II)I"),
            ("onIse", "(Ljava/lang/IllegalStateException;)V"),
        ],
    ),
];

/// A class file with these methods; those of `bare` have no code.
fn class_file(name: &str, methods: &[(&str, &str)], bare: &[(&str, &str)]) -> Vec<u8> {
    let mut pool: Vec<Vec<u8>> = Vec::new();
    let mut constant = |content: Vec<u8>| {
        pool.push(content);
        (pool.len() as u16).to_be_bytes()
    };
    let text = |text: &str| [&[1], &(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    let this = constant(text(name));
    let this = constant([&[7], &this[..]].concat());
    let code = constant(text("Code"));
    let mut body = Vec::new();
    for (method, has_code) in methods.iter().map(|one| (one, true)).chain(bare.iter().map(|one| (one, false))) {
        let (name, descriptor) = (constant(text(method.0)), constant(text(method.1)));
        let access: u16 = if has_code { 1 } else { 0x401 };
        body.extend([access.to_be_bytes(), name, descriptor, u16::from(has_code).to_be_bytes()].concat());
        if has_code {
            // 13 bytes: stack, locals, one instruction `return`, no handlers, no attributes.
            body.extend([&code[..], &[0, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 1, 0xB1, 0, 0, 0, 0]].concat());
        }
    }
    let mut file = vec![0xCA, 0xFE, 0xBA, 0xBE, 0, 0, 0, 52];
    file.extend((pool.len() as u16 + 1).to_be_bytes());
    file.extend(pool.concat());
    file.extend([0, 0x21]);
    file.extend(this);
    file.extend([0; 6]);
    file.extend(((methods.len() + bare.len()) as u16).to_be_bytes());
    file.extend(body);
    file.extend([0, 0]);
    file
}

/// The program of the recordings, in a directory: three classes in a jar, one as a file.
fn program(folder: &Path) -> String {
    let directory = folder.join("classes");
    fs::create_dir_all(directory.join("lib")).unwrap();
    let mut jar = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut jar);
    for (name, methods) in RAN {
        // The recorded run never made a `Tracee`, and never asked its base for `value`.
        let (more, bare): (&[_], &[_]) = match name {
            "demo/Tracee" => (&[("<init>", "()V"), ("bump", "(J)V")], &[]),
            "demo/Tracee$Base" => (&[("value", "()I")], &[("work", "(I)I")]),
            _ => (&[], &[]),
        };
        let content = class_file(name, &[methods, more].concat(), bare);
        if name == "demo/Tracee" {
            fs::write(directory.join("Tracee.class"), content).unwrap();
            continue;
        }
        let path = format!("{name}.class");
        let (mut entry, config) = archive.new_file(&path).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        writer.write_all(&content).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    fs::write(directory.join("lib/tracee.jar"), jar).unwrap();
    directory.display().to_string()
}

#[test]
fn without_class_files_no_version_of_the_agent_has_a_share() {
    for name in ["v1-orig-mix", "v2-release-mix", "v3-release-smap", "v4-codepulse-mix"] {
        let files = run_files(name);
        let text = decode("bytefrog", &["--as", "coverage"], &files);
        assert_eq!(text.code, Some(0), "{}", text.stderr);
        assert!(
            !text.stdout.contains('%') && text.stdout.contains("never ran is not known"),
            "{name}: {}",
            text.stdout
        );
        let json: Value = serde_json::from_str(&decode("bytefrog", &["--as", "coverage-json"], &files).stdout).unwrap();
        assert_eq!(json["methods"]["run"], json["methods"]["named"], "{name}: agents name methods that run");
        assert_eq!(json["methods"]["share"], Value::Null);
        let lcov = decode("bytefrog", &["--as", "lcov"], &files);
        assert_eq!(lcov.code, Some(2));
        assert!(lcov.stderr.contains("--as lcov needs --classes"), "{}", lcov.stderr);
    }
}

#[test]
fn class_files_show_the_methods_that_never_ran() {
    let folder = tempfile::tempdir().unwrap();
    let classes = program(folder.path());
    for name in ["v1-orig-mix", "v2-release-mix", "v4-codepulse-mix"] {
        let files = run_files(name);
        let text = decode("bytefrog", &["--as", "coverage", "--classes", &classes], &files);
        for line in [
            "       5        7   71.4%  demo.Tracee",
            "       1        2   50.0%  demo.Tracee$Base",
            "         0  demo.Tracee.<init>",
            "         0  demo.Tracee.bump(J)V",
            "      18       21   85.7%  total",
        ] {
            assert!(text.stdout.lines().any(|found| found == line), "{name}: no {line:?} in\n{}", text.stdout);
        }
        let json = decode("bytefrog", &["--as", "coverage-json", "--classes", &classes], &files).stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["methods"], json!({"run": 18, "all": 21, "share": 18.0 / 21.0, "outside": 0}), "{name}");
        // Events of the daemon say the same.
        let events = folder.path().join("events.ndjson");
        fs::write(&events, decode("bytefrog", &["-o", "calls=events", "-o", "coverage=true"], &files).stdout).unwrap();
        let events = [events.display().to_string()];
        let of_events = decode("bytefrog", &["--as", "coverage-json", "--classes", &classes], &events);
        let of_events: Value = serde_json::from_str(&of_events.stdout).unwrap();
        assert_eq!(of_events["methods"], json["methods"], "{name}");
    }
}

#[test]
fn coverage_of_a_recorded_run_is_the_same_in_every_form_and_from_events() {
    let folder = tempfile::tempdir().unwrap();
    let classes = program(folder.path());
    let files = run_files("v1-orig-mix");
    let text = decode("bytefrog", &["--as", "coverage"], &files);
    assert!(text.stdout.lines().any(|line| line.ends_with("       160  demo.Tracee$Worker.work")), "{}", text.stdout);
    let json = decode("bytefrog", &["--as", "coverage-json"], &files).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let run = json["methods"]["run"].as_u64().unwrap();
    assert_eq!(run, 18);
    // The agent of version 1 sends no lines; of version 3 it does.
    let lcov = decode("bytefrog", &["--as", "lcov", "--classes", &classes], &files).stdout;
    assert!(lcov.contains("SF:demo/Tracee.java\n") && lcov.contains("FNDA:160,Tracee$Worker.work\n"), "{lcov}");
    assert!(lcov.contains("FNDA:0,Tracee.<init>\n") && lcov.contains("FNF:21\nFNH:18\n"), "{lcov}");
    let lines = decode("bytefrog", &["--as", "coverage-json"], &run_files("v3-release-smap")).stdout;
    let lines: Value = serde_json::from_str(&lines).unwrap();
    assert!(lines["details"][0]["methods"][0]["lines"].is_object(), "{lines}");
    // The daemon's own events.
    let covered = decode("bytefrog", &["-o", "calls=profile", "-o", "coverage=true"], &files).stdout;
    let events: Vec<Value> = covered.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();
    assert_eq!(of("bytefrog.method.covered").len() as u64, run);
    assert_eq!(of("bytefrog.coverage")[0]["attributes"]["bytefrog.coverage.methods"], json["methods"]["run"]);
    assert_eq!(of("bytefrog.coverage")[0]["attributes"]["bytefrog.coverage.classes"], json["classes"]["run"]);
    let path = folder.path().join("java.info");
    fs::write(&path, &lcov).unwrap();
    if Command::new("genhtml").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("skipped: reading by genhtml, because lcov is not installed");
        return;
    }
    let mut genhtml = Command::new("genhtml");
    genhtml.args(["--ignore-errors", "source", "--output-directory"]).arg(folder.path().join("html")).arg(&path);
    let output = genhtml.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && shown.contains("functions..:"),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn class_files_that_cannot_be_read_are_errors_with_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let files = run_files("v4-codepulse-mix");
    let path = folder.path().join("app.jar");
    fs::write(&path, b"PK\x03\x04").unwrap();
    let path = path.display().to_string();
    let ended = decode("bytefrog", &["--as", "coverage", "--classes", &path], &files);
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(&format!("--classes {path}: it is no jar that can be read")), "{}", ended.stderr);
    let none = decode("bytefrog", &["--as", "coverage", "--classes", "missing.jar"], &files);
    assert!(none.code == Some(1) && none.stderr.contains("--classes missing.jar: "), "{}", none.stderr);
    let unused = run(&["decode", "bytefrog", "--as", "top", "--classes", &path, "-"]);
    assert!(unused.code == Some(2) && unused.stderr.contains("--classes needs --as coverage"), "{}", unused.stderr);
}
