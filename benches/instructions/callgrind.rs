//! Runs this program under callgrind, which counts while [`counted_work`] runs and writes a new file each time that function
//! returns. Nothing else is counted, neither the preparation of the bytes nor the start.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use super::BELOW_VALGRIND;
use super::baseline::{Count, Counts};

/// The name of the function below in callgrind.
const NAME: &str = concat!(module_path!(), "::counted_work");

#[inline(never)]
pub fn counted_work(part: &mut dyn FnMut()) {
    part();
    // Prevents a tail call above, after which callgrind would not see this function return.
    black_box(());
}

/// Runs this program under callgrind.
pub fn count() -> Result<Counts, String> {
    let folder = env::temp_dir().join(format!("tributary-instructions-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let counts = run(&folder);
    let _ = fs::remove_dir_all(&folder);
    counts
}

fn run(folder: &Path) -> Result<Counts, String> {
    let dumps = folder.join("counted");
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--toggle-collect={NAME}"), &format!("--dump-after={NAME}")])
        .arg(format!("--callgrind-out-file={}", dumps.display()))
        .arg(env::current_exe().unwrap())
        .arg(BELOW_VALGRIND)
        // Otherwise long copies would use `rep movsb`, which counts as one instruction for each byte.
        .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_movsb_threshold=0x10000000")
        .output()
        .map_err(|error| format!("cannot run valgrind, which counts instructions: {error}"))?;
    let output = String::from_utf8_lossy(&ran.stdout);
    let lines: Vec<_> = output.lines().filter_map(|line| line.split_once('\t')).collect();
    if !ran.status.success() || lines.is_empty() {
        return Err(format!("{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr)));
    }
    let counted = |line: usize, (name, events): &(&str, &str)| {
        let events: f64 = events.parse().map_err(|error| format!("{name}: {error}"))?;
        let [decode, encode] = [sum(&dumps, 2 * line + 1)? / events, sum(&dumps, 2 * line + 2)? / events];
        Ok(((*name).to_owned(), Count { decode, encode }))
    };
    lines.iter().enumerate().map(|(line, fields)| counted(line, fields)).collect()
}

/// The count in the `number`th file of callgrind.
fn sum(dumps: &Path, number: usize) -> Result<f64, String> {
    let path = format!("{}.{number}", dumps.display());
    let dump = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let sum = dump.lines().find_map(|line| line.strip_prefix("summary: "));
    sum.and_then(|sum| sum.trim().parse().ok()).filter(|sum| *sum > 0.0).ok_or(format!("{path}: nothing was counted"))
}
