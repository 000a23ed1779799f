//! What `tributary check` says about uploads.

use std::fs;
use std::path::Path;

use super::{BUCKET, KEY, Store};
use crate::live::binary::{Ended, run};

fn check(directory: &Path, upload: &str, arguments: &[&str]) -> Ended {
    let file = directory.join("tributary.toml");
    let path = directory.join("archive").display().to_string();
    let listener = "[listeners.test]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";
    let sink =
        format!("[sinks.archive]\ntype = \"parquet\"\npath = \"{path}/{{kind}}\"\n[sinks.archive.upload]\n{upload}\n");
    fs::write(&file, format!("{listener}{sink}[admin]\nlisten = \"127.0.0.1:0\"\n")).unwrap();
    run(&[&["check", "--config", file.to_str().unwrap()], arguments].concat())
}

#[test]
fn a_deep_check_asks_the_store_and_changes_nothing() {
    let Some(mut store) = Store::start() else { return };
    let directory = tempfile::tempdir().unwrap();
    let upload = |bucket: &str| {
        format!(
            "url = \"s3://{bucket}/x\"\naws_endpoint = \"http://{}\"\nallow_http = true\naws_access_key_id = \"the-key-of-tests\"\n\
             aws_secret_access_key = \"{KEY}\"",
            store.proxy.address
        )
    };
    let (good, missing) = (upload(BUCKET), upload("missing"));
    let found = check(directory.path(), &good, &["--deep"]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    let found = check(directory.path(), &missing, &["--deep"]);
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    let line = found.line("sinks.archive.upload: s3://missing/x cannot be used");
    assert!(line.contains("NoSuchBucket"), "{line}");
    store.server.ask("refuse");
    let found = check(directory.path(), &good, &["--deep"]);
    assert!(found.line("sinks.archive.upload").contains("InvalidAccessKeyId"), "{}", found.stderr);
    assert!(!found.stderr.contains(KEY));
    store.server.ask("accept");
    store.server.ask("stop");
    let found = check(directory.path(), &good, &["--deep"]);
    assert!(found.line("sinks.archive.upload").contains("cannot be used"), "{}", found.stderr);
    store.server.ask("start");
    assert!(store.server.objects().is_empty());
}

#[test]
fn secrets_are_not_printed_and_their_places_are() {
    let directory = tempfile::tempdir().unwrap();
    let upload = format!(
        "url = \"az://logs/x\"\nazure_storage_account_name = \"acme\"\nazure_storage_account_key = \"{KEY}\"\n\
         azure_storage_client_secret = {{ env = \"SECRET\" }}\nazure_storage_sas_key = {{ file = \"/etc/key\" }}"
    );
    let found = check(directory.path(), &upload, &["--print"]);
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    for line in [
        "upload.url = \"az://logs/x\"",
        "upload.delete_after = true",
        "upload.azure_storage_account_name = \"acme\"",
        "upload.azure_storage_account_key = \"***\"",
        "upload.azure_storage_client_secret = { env = \"SECRET\" }",
        "upload.azure_storage_sas_key = { file = \"/etc/key\" }",
        "# upload.azure_storage_tenant_id is not set",
    ] {
        assert!(found.stdout.lines().any(|found| found == line), "{line}\n{}", found.stdout);
    }
    assert!(!found.stdout.contains(KEY) && !found.stderr.contains(KEY));
    assert!(found.stderr.contains("sink archive uploads finished files to az://logs/x"), "{}", found.stderr);
}

#[test]
fn settings_of_another_store_and_half_of_a_pair_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    for (upload, what) in [
        ("delete_after = false", "`url`"),
        ("url = \"http://bucket/x\"", "unknown scheme http"),
        ("url = \"gs://bucket\"\naws_region = \"eu-1\"", "it is for a url that begins with s3://"),
        ("url = \"s3://bucket\"\naws_access_key_id = \"x\"", "`aws_access_key_id` needs `aws_secret_access_key`"),
        ("url = \"s3://bucket\"\naws_endpoint = \"http://x\"", "is an address of http"),
        ("url = \"s3://bucket\"\naws_reggion = \"x\"", "did you mean `aws_region`?"),
        ("url = \"s3://bucket\"\naws_region = 1", "`aws_region` has no valid value"),
        ("url = \"s3://bucket\"\npart_bytes = \"1MiB\"", "part_bytes"),
    ] {
        let found = check(directory.path(), upload, &[]);
        assert_eq!(found.code, Some(2), "{upload}: {}", found.stderr);
        assert!(found.stderr.contains(what), "{upload}: {}", found.stderr);
    }
}
