//! What `config/tributary.toml` and the pages below `docs/` say about options comes from the readers. With
//! `TRIBUTARY_UPDATE_DOCS=1` the tests write it.

use std::fs;
use std::path::{Path, PathBuf};

use tributary::config::Config;
use tributary::options::{Description, Setting, ValueKind};

/// The width of comments in the reference file.
const WIDTH: usize = 120;
const BEGIN: &str = "<!-- options ";
const END: &str = "<!-- end of options -->";

#[test]
fn the_reference_file_has_the_default_and_the_sentence_of_every_option() {
    let path = root().join("config/tributary.toml");
    let text = fs::read_to_string(&path).unwrap();
    compare(&path, &text, &reference(&text, &Config::describe()));
}

#[test]
fn the_tables_of_options_in_the_pages_are_those_of_the_code() {
    let description = Config::describe();
    let pages = ["docs", "docs/protocols"].map(|directory| fs::read_dir(root().join(directory)).unwrap());
    let pages = pages.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut tables = 0;
    for path in pages.filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(&path).unwrap();
        let mut parts = text.split(BEGIN);
        let mut expected = parts.next().unwrap().to_owned();
        for part in parts {
            let (head, rest) = part.split_once(" -->\n").unwrap();
            let (_, after) = rest.split_once(END).unwrap_or_else(|| panic!("{}: {head} has no end", path.display()));
            expected += &format!("{BEGIN}{head} -->\n{}{END}{after}", table(head, &description));
            tables += 1;
        }
        compare(&path, &text, &expected);
    }
    assert!(tables >= 9, "{tables} tables");
}

/// A choice without a word about it would be found in the schema only.
#[test]
fn the_sentence_of_a_choice_has_every_value() {
    for setting in Config::describe().settings {
        if let ValueKind::Choice(names) = &setting.kind {
            let missing = names.iter().find(|name| !setting.sentence.contains(&format!("\"{name}\"")));
            assert_eq!(missing, None, "{}", setting.path());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

fn compare(path: &Path, text: &str, expected: &str) {
    if text == expected {
        return;
    }
    if std::env::var_os("TRIBUTARY_UPDATE_DOCS").is_some() {
        fs::write(path, expected).unwrap();
        return;
    }
    let number = text.lines().zip(expected.lines()).take_while(|(found, expected)| found == expected).count();
    let line = |text: &str| text.lines().nth(number).unwrap_or("the end of the file").to_owned();
    panic!(
        "{}:{}: run the test with TRIBUTARY_UPDATE_DOCS=1\n   found {}\nexpected {}",
        path.display(),
        number + 1,
        line(text),
        line(expected)
    );
}

/// The table of the options of a header, from one key to another: `listeners.zico max_body_bytes min_duration`.
fn table(head: &str, description: &Description) -> String {
    let [header, first, last] = head.split(' ').collect::<Vec<_>>()[..] else { panic!("{head}") };
    let of_header: Vec<_> = description.settings.iter().filter(|setting| setting.header == header).collect();
    let at = |key: &str| of_header.iter().position(|setting| setting.key == key).unwrap_or_else(|| panic!("{head}"));
    let row = |setting: &&Setting| {
        let default = match &setting.value {
            _ if setting.is_required => "required".to_owned(),
            None => "not set".to_owned(),
            Some(value) => format!("`{value}`"),
        };
        format!("| `{}` | {default} | {} |\n", setting.key, meaning(setting, description).replace('|', "\\|"))
    };
    let rows: String = of_header[at(first)..=at(last)].iter().map(row).collect();
    format!("| option | default | meaning |\n|---|---|---|\n{rows}")
}

/// What an option means; of the first option of a table, also what the table means.
fn meaning(setting: &Setting, description: &Description) -> String {
    let first_of = |(table, sentence): &(String, &'static str)| {
        let is_in = |other: &&Setting| other.path().strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
        let first = description.settings.iter().find(is_in)?;
        (table.len() > setting.header.len() && first == setting).then_some(*sentence)
    };
    let table = description.tables.iter().find_map(first_of);
    table.map_or_else(|| setting.meaning(), |table| format!("{table} {}", setting.meaning()))
}

/// The reference file as it must be. A paragraph of comments before options says what they mean, with anything behind that; one
/// that begins with "As for" says where that is written. An option that is missing is behind the one that is read before it.
fn reference(text: &str, description: &Description) -> String {
    let mut paragraphs = paragraphs(text, &description.settings);
    let mut before: Option<&Setting> = None;
    for setting in &description.settings {
        let after = before.replace(setting).filter(|before| before.header == setting.header);
        let shows =
            |paragraph: &Paragraph, setting: &Setting| paragraph.options.iter().any(|(one, ..)| *one == setting);
        if paragraphs.iter().any(|paragraph| shows(paragraph, setting)) {
            continue;
        }
        let Some(at) = after.and_then(|after| paragraphs.iter().position(|one| shows(one, after))) else { continue };
        let mark = paragraphs[at].options[0].1;
        let option = (setting, mark, setting.value.as_deref().unwrap_or("\"…\""));
        if paragraphs[at].is_list() {
            let position = paragraphs[at].options.iter().position(|(one, ..)| Some(*one) == after).unwrap();
            paragraphs[at].options.insert(position + 1, option);
        } else {
            paragraphs.insert(at + 1, Paragraph { comments: vec!["#"], options: vec![option] });
        }
    }
    let paragraphs: Vec<_> = paragraphs.iter().map(|paragraph| paragraph.rendered(description)).collect();
    paragraphs.join("\n\n")
}

/// Comments, and options behind them with their comment signs and values.
struct Paragraph<'a> {
    comments: Vec<&'a str>,
    options: Vec<(&'a Setting, &'a str, &'a str)>,
}

fn paragraphs<'a>(text: &'a str, settings: &'a [Setting]) -> Vec<Paragraph<'a>> {
    let mut header = String::new();
    let read = |paragraph: &'a str| {
        let mut read = Paragraph { comments: Vec::new(), options: Vec::new() };
        for line in paragraph.split('\n') {
            let (mark, content) = marked(line);
            if is_header(content) {
                header = content.trim_matches(['[', ']']).to_owned();
            }
            let (key, value) = content.split_once(" = ").unwrap_or_default();
            if let (group @ "listeners", "protocol") | (group @ "sinks", "type") =
                (header.split('.').next().unwrap(), key)
            {
                header = format!("{group}.{}", value.trim_matches('"'));
            }
            match settings.iter().find(|one| one.header == header && one.key == key) {
                Some(setting) => read.options.push((setting, mark, value)),
                None => read.comments.push(line),
            }
        }
        read
    };
    text.split("\n\n").map(read).collect()
}

impl Paragraph<'_> {
    /// Whether the comments do not say what each option means.
    fn is_list(&self) -> bool {
        let has_header = self.comments.iter().any(|line| is_header(marked(line).1));
        has_header || self.comments.first().is_none_or(|line| line.starts_with("# As for"))
    }

    fn rendered(&self, description: &Description) -> String {
        let said = self.comments.iter().map(|line| line.trim_start_matches('#').trim()).collect::<Vec<_>>().join(" ");
        let meanings: Vec<_> = self.options.iter().map(|(setting, ..)| meaning(setting, description)).collect();
        let is_said = meanings.iter().all(|meaning| said.starts_with(meaning));
        let is_kept = is_said || self.is_list();
        let mut lines: Vec<_> = self.comments.iter().filter(|_| is_kept).map(|line| (*line).to_owned()).collect();
        for (index, (setting, mark, value)) in self.options.iter().enumerate() {
            if !is_kept && (index == 0 || meanings[index] != meanings[index - 1]) {
                lines.extend((index > 0).then(String::new));
                lines.extend(wrapped(&meanings[index]));
            }
            let default = setting.value.as_deref().filter(|_| !setting.is_required);
            lines.push(format!("{mark}{} = {}", setting.key, default.unwrap_or(value)));
        }
        lines.join("\n")
    }
}

fn is_header(content: &str) -> bool {
    content.starts_with('[') && content.ends_with(']')
}

/// The comment sign before an option, and the option.
fn marked(line: &str) -> (&str, &str) {
    let mark = ["#: ", "# "].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
    line.split_at(mark.len())
}

/// A text as lines of a comment.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec!["#".to_owned()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < WIDTH => *line += &format!(" {word}"),
            _ => lines.push(format!("# {word}")),
        }
    }
    lines
}
