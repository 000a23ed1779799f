//! The transcripts of README.md and docs/ are true: each is run here and its output compared, or is marked as an excerpt.
//!
//! docs/contributing.md describes how a transcript is written. Each page has a directory, a shell and a network of its own, so
//! that the ports of the pages are free.

#![allow(clippy::print_stdout, reason = "tests print what they skip")]

mod page;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use page::{Block, Mark, Page};
use shell::Shell;
use tributary::config::Config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md and the pages below docs/, without the decisions, which are history.
fn pages() -> Vec<Page> {
    let mut paths = vec![PathBuf::from("README.md")];
    let mut directories = vec![PathBuf::from("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root().join(&directory)).unwrap() {
            let path = directory.join(entry.unwrap().file_name());
            if path.ends_with("decisions") {
                continue;
            } else if root().join(&path).is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    paths.iter().map(|path| Page::parse(path, &fs::read_to_string(root().join(path)).unwrap())).collect()
}

#[test]
fn every_transcript_is_run_or_marked_as_an_excerpt() {
    for page in pages() {
        for block in &page.blocks {
            let is_transcript = block.lines.iter().any(|line| line.starts_with("$ "));
            let place = format!("{}:{}", page.name, block.line);
            assert_eq!(
                is_transcript,
                block.mark.is_some(),
                "{place}: a transcript is a block `console`, `console varying` or `console excerpt`"
            );
        }
    }
}

/// A block of another program is `toml vector`, for example.
#[test]
fn every_configuration_is_valid() {
    let mut count = 0;
    for page in pages() {
        for block in page.blocks.iter().filter(|block| block.language == "toml") {
            let text = block.lines.join("\n");
            if let Err(errors) = Config::parse(&page.name, &text) {
                panic!("{}:{}: not a valid configuration\n{errors}", page.name, block.line);
            }
            count += 1;
        }
    }
    assert!(count > 30, "{count} configurations");
}

#[test]
fn transcripts_are_true() {
    if let Err(why) = Shell::start(root()) {
        println!("skipped: the transcripts are not run: {why}");
        return;
    }
    let is_run = |block: &Block| matches!(block.mark, Some(Mark::Exact | Mark::Varying));
    let pages: Vec<Page> = pages().into_iter().filter(|page| page.blocks.iter().any(is_run)).collect();
    assert!(pages.len() >= 3, "{}", pages.len());
    let faults: Vec<String> = thread::scope(|scope| {
        let running: Vec<_> = pages.iter().map(|page| scope.spawn(|| run(page))).collect();
        running.into_iter().flat_map(|page| page.join().unwrap()).collect()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Runs the transcripts of a page in their order. Returns what was otherwise; the page ends there.
#[allow(clippy::print_stdout, reason = "a test says what it skips")]
fn run(page: &Page) -> Option<String> {
    let mut shell = Shell::start(root()).unwrap();
    for block in &page.blocks {
        if let Some((name, content)) = block.file() {
            fs::write(shell.directory().join(name), content).unwrap();
        }
        let is_varying = match block.mark {
            Some(Mark::Exact) => false,
            Some(Mark::Varying) => true,
            Some(Mark::Excerpt) | None => continue,
        };
        if let Some(missing) = shell.missing(block) {
            println!("skipped: {}:{} is not run: there is no {missing}", page.name, block.line);
            continue;
        }
        for step in block.steps() {
            if let Err(actual) = shell.run(&step, is_varying) {
                let (command, expected) = (&step.command, step.expected.join("\n"));
                let place = format!("{}:{}", page.name, block.line);
                return Some(format!("{place}: $ {command}\nThe page has:\n{expected}\nIt printed:\n{actual}"));
            }
        }
    }
    None
}
