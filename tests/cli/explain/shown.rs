//! A reader of sheets.

use std::collections::BTreeMap;

/// The content of one line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum What {
    /// Bytes with their annotation.
    Row {
        offset: usize,
        bytes: Vec<u8>,
        said: String,
    },
    /// The number of bytes of the same field that are not shown.
    More(usize),
    Fault {
        offset: usize,
        said: String,
    },
    Title(String),
}

/// A line with the level of its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) level: usize,
    pub(crate) what: What,
}

/// A message: its offset, its name, and its fields with their values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) offset: usize,
    pub(crate) title: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Message {
    /// The value of the only field of this name.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let mut values = self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} stands there twice: {self:?}");
        value
    }
}

pub(crate) fn lines(sheet: &str) -> Vec<Line> {
    sheet.lines().map(line).collect()
}

fn line(line: &str) -> Line {
    let mut rest = line;
    let mut level = 0;
    while let Some(inside) = rest.strip_prefix("| ") {
        rest = inside;
        level += 1;
    }
    let what = match rest.strip_prefix("          ") {
        Some(words) => match words.strip_prefix("… ").and_then(|words| words.strip_suffix(" bytes more")) {
            Some(count) => What::More(count.parse().unwrap()),
            None => What::Title(words.trim().to_owned()),
        },
        None => {
            let (offset, rest) = rest.split_once("  ").unwrap_or_else(|| panic!("no line of a sheet: {line:?}"));
            let offset = usize::from_str_radix(offset, 16).unwrap_or_else(|_| panic!("no offset: {line:?}"));
            match rest.strip_prefix("!! ") {
                Some(said) => What::Fault { offset, said: said.to_owned() },
                None => {
                    let (hex, said) = rest.split_at(rest.len().min(48));
                    let byte = |digits| u8::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("no hex: {line:?}"));
                    let bytes = hex.split_whitespace().map(byte).collect();
                    What::Row { offset, bytes, said: said.trim().to_owned() }
                }
            }
        }
    };
    Line { level, what }
}

/// Checks that the lines of the outermost level show exactly these bytes, once and in order. The next inner level can show
/// bytes that the outermost omits; `true`: they must be the same bytes.
pub(crate) fn check_bytes(lines: &[Line], bytes: &[u8]) {
    let mut at = 0;
    // The bytes of the inner level since the last row, from its offset 0.
    let mut inside = Inside::default();
    for line in lines {
        match (&line.what, line.level) {
            (What::Row { offset, bytes: row, .. }, 0) => {
                if *offset > at {
                    inside.check(&bytes[at..*offset]);
                    at = *offset;
                }
                inside = Inside::default();
                assert_eq!(*offset, at);
                assert_eq!(row[..], bytes[at..at + row.len()], "at {at}");
                at += row.len();
            }
            (What::More(count), 0) => at += count,
            (What::Row { offset, bytes: row, .. }, 1) => {
                assert_eq!(*offset, inside.length, "inside");
                inside.rows.push((*offset, row.clone()));
                inside.length += row.len();
            }
            (What::More(count), 1) => inside.length += count,
            _ => {}
        }
    }
    if at < bytes.len() {
        inside.check(&bytes[at..]);
        at = bytes.len();
    }
    assert_eq!(at, bytes.len());
}

#[derive(Default)]
struct Inside {
    rows: Vec<(usize, Vec<u8>)>,
    length: usize,
}

impl Inside {
    fn check(&self, bytes: &[u8]) {
        assert_eq!(self.length, bytes.len(), "bytes are left out");
        for (offset, row) in &self.rows {
            assert_eq!(row[..], bytes[*offset..offset + row.len()], "at {offset}, inside");
        }
    }
}

/// The messages of a sheet without levels. Unknown bytes are a message with the name `?`.
pub(crate) fn messages(lines: &[Line]) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut title = None;
    for line in lines {
        match &line.what {
            What::Title(words) => title = Some(words.clone()),
            What::Row { offset, said, .. } => {
                let (name, value) = said.split_once(": ").unwrap_or((said, ""));
                if let Some(title) = title.take() {
                    messages.push(Message { offset: *offset, title, fields: Vec::new() });
                }
                if name == "?" {
                    messages.push(Message { offset: *offset, title: "?".to_owned(), fields: Vec::new() });
                }
                if !said.is_empty() {
                    messages.last_mut().unwrap().fields.push((name.to_owned(), value.to_owned()));
                }
            }
            What::More(_) | What::Fault { .. } => {}
        }
    }
    messages
}

/// The faults of a level: offset and text.
pub(crate) fn faults(lines: &[Line], level: usize) -> Vec<(usize, &str)> {
    let of = lines.iter().filter(|line| line.level == level);
    let faults = of.filter_map(|line| match &line.what {
        What::Fault { offset, said } => Some((*offset, said.as_str())),
        _ => None,
    });
    faults.collect()
}

/// The sheets of several files, by their names.
pub(crate) fn sections(text: &str) -> BTreeMap<&str, &str> {
    let heads: Vec<_> = text
        .match_indices("==> ")
        .filter(|(at, _)| *at == 0 || text[..*at].ends_with('\n'))
        .map(|(at, mark)| {
            let line = &text[at..at + text[at..].find('\n').unwrap()];
            (at, at + line.len() + 1, line[mark.len()..].strip_suffix(" <==").unwrap())
        })
        .collect();
    let ends = heads.iter().skip(1).map(|(at, ..)| *at - 1).chain([text.len()]);
    heads.iter().zip(ends).map(|((_, begin, name), end)| (*name, &text[*begin..end])).collect()
}
