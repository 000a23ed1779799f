//! Other programs read the files: DuckDB, pyarrow and polars, and the questions of docs/recipes.md.
//!
//! `TRIBUTARY_DUCKDB_PYTHON` names a Python that has them; otherwise `python3` is tried. Without them the tests print a note and
//! pass.

#![allow(clippy::print_stderr, reason = "a test that cannot run says why")]

use std::fs;
use std::path::Path;
use std::process::Command;

use tributary::event::Batch;

use super::recorded::recordings;
use super::{options, write};

const PACKAGES: &str = "import duckdb, pyarrow.parquet, polars";

/// A Python with the packages.
fn python() -> Option<String> {
    let python = std::env::var("TRIBUTARY_DUCKDB_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_packages =
        Command::new(&python).args(["-c", PACKAGES]).output().is_ok_and(|output| output.status.success());
    if !has_packages {
        eprintln!(
            "NOT TESTED: {python} has no duckdb, pyarrow and polars (TRIBUTARY_DUCKDB_PYTHON=a python that has them)"
        );
    }
    has_packages.then_some(python)
}

/// Runs a script; returns what it prints.
fn run(python: &str, script: &str, arguments: &[&Path]) -> String {
    let output = Command::new(python).arg("-c").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// An archive of recordings of every protocol, and the same events as JSON lines.
async fn archive(directory: &Path) -> usize {
    let (lines, batches): (Vec<_>, Vec<_>) =
        recordings().iter().map(|one| (&*one.decoded().0, &one.decoded().1)).unzip();
    let batches = || batches.iter().copied().flatten();
    fs::create_dir(directory.join("events")).unwrap();
    fs::write(directory.join("events/all.ndjson"), lines.concat()).unwrap();
    let rows = batches().map(Batch::len).sum();
    let path = format!("{}/{{kind}}/date=%Y-%m-%d/{{protocol}}", directory.display());
    write(tributary::sink::parquet::Options { path, ..options(directory) }, batches()).await;
    rows
}

const OPEN: &str = r#"
import sys, glob, duckdb, polars, pyarrow.parquet as pq
files = sorted(glob.glob(sys.argv[1] + "/**/*.parquet", recursive=True))
rows = [0, 0, 0]
for file in files:
    rows[0] += duckdb.sql(f"SELECT * FROM read_parquet('{file}')").fetch_arrow_table().num_rows
    table = pq.read_table(file, partitioning=None)
    table.validate(full=True)
    rows[1] += table.num_rows
    rows[2] += polars.read_parquet(file, hive_partitioning=False).height
print(*rows)
"#;

/// Runs every `sql` block of the page, in order; each but those that make views must have rows. Then every `python` block, which
/// must print something.
const RECIPES: &str = r#"
import contextlib, io, sys, re, duckdb
page, archive = open(sys.argv[1]).read(), sys.argv[2]
connection = duckdb.connect()
run = 0
for block in re.findall(r"```sql\n(.*?)```", page, re.S):
    text = block.replace("'archive/", "'" + archive + "/").replace("'events/", "'" + archive + "/events/")
    for statement in [one for one in text.split(";") if one.strip()]:
        try:
            found = connection.execute(statement).fetchall()
        except Exception as error:
            sys.exit(f"{error}\n{statement}")
        if not re.match(r"\s*(--[^\n]*\n\s*)*CREATE", statement):
            run += 1
            if not found:
                sys.exit(f"no rows:\n{statement}")
for block in re.findall(r"```python\n(.*?)```", page, re.S):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(block.replace('"archive/', '"' + archive + "/"), {})
    if not out.getvalue().strip():
        sys.exit(f"nothing printed:\n{block}")
print(run)
"#;

#[tokio::test]
async fn other_programs_read_every_file_and_answer_the_recipes() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let rows = archive(directory.path()).await;
    let found = run(&python, OPEN, &[directory.path()]);
    assert_eq!(found.trim(), format!("{rows} {rows} {rows}"));
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md");
    let queries: usize = run(&python, RECIPES, &[&page, directory.path()]).trim().parse().unwrap();
    let blocks = fs::read_to_string(&page).unwrap().matches("```sql").count();
    assert!(queries >= 30 && queries >= blocks - 2, "{queries} queries in {blocks} blocks");
}
