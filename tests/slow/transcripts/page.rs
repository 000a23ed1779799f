//! A page of Markdown: its blocks of code, and the steps of a transcript.

use std::path::Path;

/// The blocks of code of one page, in their order.
pub(super) struct Page {
    pub(super) name: String,
    pub(super) blocks: Vec<Block>,
}

/// One block of code.
pub(super) struct Block {
    /// The number of its first line in the page.
    pub(super) line: usize,
    pub(super) language: String,
    pub(super) mark: Option<Mark>,
    pub(super) lines: Vec<String>,
}

/// What a transcript is.
pub(super) enum Mark {
    /// `console`: it is run, and the output is the same but for times, decimal numbers and ports that the system chose.
    Exact,
    /// `console varying`: it is run, and all numbers of the output may differ.
    Varying,
    /// `console excerpt`: it is not run.
    Excerpt,
}

/// A command and the lines that follow it in the page.
pub(super) struct Step {
    pub(super) command: String,
    pub(super) expected: Vec<String>,
}

impl Page {
    pub(super) fn parse(path: &Path, text: &str) -> Page {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (index, line) in text.lines().enumerate() {
            match (line.trim_start().strip_prefix("```"), &mut open) {
                (Some(_), Some(_)) => blocks.extend(open.take()),
                (Some(info), None) => open = Some(Block::begin(index + 2, info)),
                (None, Some(block)) => block.lines.push(line.to_owned()),
                (None, None) => {}
            }
        }
        Page { name: path.display().to_string(), blocks }
    }
}

impl Block {
    fn begin(line: usize, info: &str) -> Block {
        let mark = match info {
            "console" => Some(Mark::Exact),
            "console varying" => Some(Mark::Varying),
            "console excerpt" => Some(Mark::Excerpt),
            _ => None,
        };
        Block { line, language: info.to_owned(), mark, lines: Vec::new() }
    }

    /// The file that the block shows: a block `toml` whose first line is a comment with its name.
    pub(super) fn file(&self) -> Option<(&str, String)> {
        let name =
            self.lines.first()?.strip_prefix("# ").filter(|name| name.ends_with(".toml") && !name.contains(' '))?;
        (self.language == "toml").then(|| (name, self.lines.join("\n") + "\n"))
    }

    /// The commands of a transcript. A command whose line ends with a backslash goes on in the next line.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for line in &self.lines {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), expected: Vec::new() }),
                (None, Some(step)) if step.expected.is_empty() && step.command.ends_with('\\') => {
                    step.command.push('\n');
                    step.command.push_str(line);
                }
                (None, Some(step)) => step.expected.push(line.clone()),
                (None, None) => {}
            }
        }
        steps
    }
}
