//! The JSON Schema of `check --schema`: it has the options that the readers have, and takes what they take.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tributary::config::Config;

use super::config::with_examples;
use crate::live::binary::{Binary, tributary};

fn schema() -> Value {
    let ended = Binary::start(tributary(&["check", "--schema"])).end();
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The dotted paths of the options of a table in the schema.
fn keys(table: &Value, before: &str) -> BTreeSet<String> {
    let members = table["properties"].as_object().unwrap().iter();
    let of = |(key, value): (&String, &Value)| match value.get("properties") {
        Some(_) => keys(value, &format!("{before}{key}.")),
        None => BTreeSet::from([format!("{before}{key}")]),
    };
    members.flat_map(of).collect()
}

#[test]
fn the_schema_has_every_option_of_the_reference_file_and_no_other() {
    let schema = schema();
    let mut shown: BTreeSet<_> = keys(&schema, "");
    shown.retain(|key| !["include", "listeners", "sinks"].contains(&key.as_str()));
    for (name, definition) in schema["$defs"].as_object().unwrap() {
        shown.extend(keys(definition, &format!("{name}.")));
    }
    // The reference file has the options of S3 only, and names its listeners and sinks.
    shown.retain(|key| !key.contains(".upload.google_") && !key.contains(".upload.azure_"));
    let loaded = Config::parse("t.toml", &with_examples()).unwrap();
    let listeners = loaded.config.listeners.iter();
    let listeners = listeners.map(|one| ("listeners", one.name.clone(), one.protocol.protocol().as_str()));
    let sinks = loaded.config.sinks.iter().map(|one| ("sinks", one.name.clone(), one.kind.name()));
    let variants: Vec<_> = listeners.chain(sinks).collect();
    let mut options: BTreeSet<_> = BTreeSet::new();
    for (path, _) in &loaded.options {
        let of = variants.iter().find_map(|(group, name, variant)| {
            let key = path.strip_prefix(&format!("{group}.{name}."))?;
            Some(format!("{group}.{variant}.{key}"))
        });
        options.insert(of.unwrap_or_else(|| path.clone()));
    }
    // It is a sink of one key in the file: every other one is that of every sink.
    shown.retain(|key| !key.starts_with("sinks.discard."));
    let difference: Vec<_> = shown.symmetric_difference(&options).collect();
    assert!(difference.is_empty(), "{difference:?}");
}

#[test]
fn every_option_in_the_schema_has_a_sentence_and_its_bounds() {
    fn check(value: &Value, at: &str) {
        for (key, option) in value["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{key}");
            let is_table = option.get("properties").is_some() || option["additionalProperties"].get("anyOf").is_some();
            assert!(is_table || option["description"].as_str().is_some_and(|text| text.len() > 10), "{at}: {option}");
            check(option, &at);
            check(&option["items"], &at);
        }
    }
    let schema = schema();
    check(&schema, "");
    schema["$defs"].as_object().unwrap().iter().for_each(|(name, one)| check(one, name));
    let body = &schema["$defs"]["listeners.zico"]["properties"]["max_body_bytes"];
    assert_eq!(body["default"], "64MiB");
    assert_eq!((&body["minimum"], &body["maximum"]), (&(1 << 10).into(), &(1 << 30).into()));
    assert!(body["description"].as_str().unwrap().ends_with(" 1KiB to 1GiB."), "{body}");
}

/// Each file of a directory that a validator that is not ours must accept or refuse.
#[test]
fn a_validator_takes_valid_files_and_refuses_wrong_keys_types_and_bounds() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: String, text: &str| fs::write(directory.path().join(name), text).unwrap();
    write("schema.json".to_owned(), &schema().to_string());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let files = ["tributary.toml", "minimal.toml", "debian/tributary.toml", "oci/tributary.toml", "pgo/training.toml"];
    let mut valid: Vec<String> = files.iter().map(|path| read(&format!("config/{path}"))).collect();
    valid.push(with_examples());
    for page in ["configure", "sinks", "selection", "fleet", "run", "admin", "memory"] {
        let page = read(&format!("docs/{page}.md"));
        valid.extend(page.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned()));
    }
    assert!(valid.len() > 15, "{}", valid.len());
    for (number, text) in valid.iter().enumerate() {
        write(format!("valid-{number}.toml"), text);
    }
    let listener = |line: &str| format!("[listeners.a]\nprotocol = \"zico\"\n{line}\n");
    let sink = |line: &str| format!("[sinks.a]\ntype = \"file\"\n{line}\n");
    let invalid = [
        listener("max_body_byte = 1024"),
        listener("list_layout = \"exact\""),
        listener("max_body_bytes = 1"),
        listener("max_body_bytes = \"1 MiB\""),
        listener("max_body_bytes = true"),
        listener("trace_timeout = 10"),
        listener("trace_timeout = \"10 s\""),
        listener("records = \"span\""),
        listener("max_sessions = \"7\""),
        listener("allow = \"10.0.0.0/8\""),
        listener("tls.key = \"k\""),
        listener("amplification.ratios = 1"),
        "[listeners.a]\nlisten = \"127.0.0.1:1\"\n".to_owned(),
        sink("fsync = \"sometimes\""),
        sink("kinds = [\"spans\"]"),
        sink("where = [{ kinds = \"span\" }]"),
        sink("sample.keep = 2"),
        sink("endpoint = \"http://a\""),
        "[limits]\nthreads = 0\n".to_owned(),
        "[limit]\nthreads = 1\n".to_owned(),
    ];
    for (number, text) in invalid.iter().enumerate() {
        assert!(Config::parse("t.toml", text).is_err(), "{text}");
        write(format!("invalid-{number}.toml"), text);
    }
    let script = "\
import json, pathlib, sys, tomllib
try: import jsonschema
except ImportError: sys.exit(3)
files = pathlib.Path(sys.argv[1])
schema = json.loads((files / 'schema.json').read_text())
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
for file in sorted(files.glob('*.toml')):
    text = file.read_text()
    errors = [e.json_path + ': ' + (e.context[0].message if e.context else e.message) for e in validator.iter_errors(tomllib.loads(text))]
    if bool(errors) == file.name.startswith('valid'): print(file.name, errors, text[:300])
";
    let Ok(output) = Command::new("python3").args(["-c", script]).arg(directory.path()).output() else {
        eprintln!("no python3: the schema is not validated by another program");
        return;
    };
    if output.status.code() == Some(3) {
        eprintln!("python3 has no jsonschema: the schema is not validated by another program");
        return;
    }
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
