//! Words of the source: a name says what it is without its path.

use std::collections::BTreeMap;
use std::fs;
use std::mem::take;
use std::path::{Path, PathBuf};

/// These say nothing alone, so no type has one of them as its whole name.
const EMPTY_TYPE_NAMES: &str = "State Shared Place Part Phase Step Known Kept Found Open Ended Waiting Named";
/// The most types that one name stands for, except for names whose modules say of what they are.
const MAX_TYPES_OF_A_NAME: usize = 3;
const COMMON_TYPE_NAMES: &str = "Options Error Arguments Reader Writer";
/// Ends of the names of types that are errors: all end in `Error`, and what an error consists of in `ErrorKind`.
const BANNED_TYPE_ENDS: [&str; 3] = ["Fault", "Refusal", "Problem"];
/// Names of modules that say nothing until they are read.
const BANNED_MODULES: [&str; 9] = ["taken", "finding", "walk", "trouble", "tidy", "tail", "elsewhere", "deep", "exact"];
/// Parts of identifiers instead of which there is a term: space, capacity, reported, received.
const BANNED_PARTS: [&str; 3] = ["room", "told", "heard"];
/// Phrases of comments instead of which the amount is named.
const BANNED_PHRASES: [&str; 4] = ["so many", "so long", "so much", "of which"];

#[test]
fn names_and_comments_of_the_source_say_what_they_mean() {
    let paths = paths(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).into_iter();
    let sources = paths.filter(|path| path.extension() == Some("rs".as_ref()));
    let files: Vec<_> = sources.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    let faults = faults(&files);
    assert!(faults.is_empty() && files.len() > 100, "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_kind_of_fault_is_found_in_a_sample_whose_texts_are_no_code() {
    let sample = "// As much as\n/// so many 'of these'\n#[derive(Debug)]\nenum Open<'a> { A(&'a str) }\n\
        impl<T> Iterator for X {\n    type Item = Step;\n}\n\
        let hasRoom = \"a \\\" room\" + r#\"\"told\"\"#; // heard\nfn make_room(bathroom: char = '\"') {}\n\
        struct Item; struct Item; mod x { enum Item {} type Item = u8; }\n\
        mod tail; struct IoFault;\n";
    let faults = faults(&[("a.rs".into(), sample.to_owned())]);
    let lines: Vec<_> = faults.iter().filter_map(|fault| fault.split(':').nth(1)).collect();
    assert_eq!(lines, ["2", "8", "9", "11", "11", "10", "10", "10", "10", "4"], "{faults:#?}");
}

fn paths(at: &Path) -> Vec<PathBuf> {
    let entries = |entries: fs::ReadDir| entries.flat_map(|entry| paths(&entry.unwrap().path())).collect();
    fs::read_dir(at).map_or_else(|_| vec![at.to_owned()], entries)
}

fn faults(files: &[(PathBuf, String)]) -> Vec<String> {
    let (mut faults, mut types) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for (path, text) in files {
        let at = |line: usize, fault: &str, word: &str| format!("{}:{line}: {fault}: `{word}`", path.display());
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//")) {
            let words = format!(" {} ", line.to_lowercase().replace(|c: char| !c.is_alphanumeric(), " "));
            let found = BANNED_PHRASES.into_iter().filter(|phrase| words.contains(&format!(" {phrase} ")));
            faults.extend(found.map(|phrase| at(number, "a phrase that names no amount", phrase)));
        }
        // The tokens since the last block or statement; and of each open block whether its types are associated types.
        let (mut head, mut blocks) = (Vec::new(), Vec::new());
        for (line, token) in tokens(text) {
            let before = head.last().copied().unwrap_or_default();
            let is_type = before == "type" && blocks.last() != Some(&true);
            if (is_type || ["struct", "enum", "trait"].contains(&before)) && token.starts_with(char::is_alphabetic) {
                types.entry(token).or_default().push(at(
                    line,
                    "a name that says nothing, ends like no other error, or is of too many types",
                    token,
                ));
            }
            if before == "mod" && BANNED_MODULES.contains(&token) {
                faults.push(at(line, "a module whose name says nothing", token));
            }
            if has_banned_part(token) {
                faults.push(at(line, "an identifier that has a standard term", token));
            }
            match token {
                "{" => blocks.push(take(&mut head).iter().any(|word| ["impl", "trait"].contains(word))),
                "}" => (_, head) = (blocks.pop(), Vec::new()),
                ";" => head.clear(),
                _ => head.push(token),
            }
        }
    }
    let is_in = |names: &str, name: &str| names.split(' ').any(|one| one == name);
    types.retain(|name, found| {
        let is_of_too_many = found.len() > MAX_TYPES_OF_A_NAME && !is_in(COMMON_TYPE_NAMES, name);
        is_of_too_many || is_in(EMPTY_TYPE_NAMES, name) || BANNED_TYPE_ENDS.iter().any(|end| name.ends_with(end))
    });
    faults.into_iter().chain(types.into_values().flatten()).collect()
}

/// Parts are between `_` and before capital letters.
fn has_banned_part(identifier: &str) -> bool {
    let is_same_part = |a: &u8, b: &u8| !(a.is_ascii_lowercase() && b.is_ascii_uppercase());
    let mut pieces = identifier.as_bytes().chunk_by(is_same_part).flat_map(|piece| piece.split(|byte| *byte == b'_'));
    pieces.any(|piece| BANNED_PARTS.iter().any(|part| piece.eq_ignore_ascii_case(part.as_bytes())))
}

/// The words and signs of code with their lines, without comments, texts and characters.
fn tokens(mut code: &str) -> Vec<(usize, &str)> {
    let (mut tokens, mut line) = (Vec::new(), 1);
    while let Some(first) = code.chars().next() {
        let word = code.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(code.len());
        let literal = literal_bytes(code);
        let (token, rest) = code.split_at(literal.unwrap_or(word.max(first.len_utf8())));
        if literal.is_none() && !first.is_whitespace() {
            tokens.push((line, token));
        }
        line += token.matches('\n').count();
        code = rest;
    }
    tokens
}

/// The length of the comment, text or character at the start of code, if one is there.
fn literal_bytes(code: &str) -> Option<usize> {
    let until = |end: &str, from: usize| Some(code[from..].find(end).map_or(code.len(), |at| from + at + end.len()));
    let raw = code.strip_prefix("br").or(code.strip_prefix('r')).unwrap_or_default();
    let quote = raw.trim_start_matches('#');
    let mut letters = code.chars();
    match [letters.next(), letters.next(), letters.next()].map(Option::unwrap_or_default) {
        ['/', '/', _] => until("\n", 0),
        ['\'', '\\', _] => until("'", 3),
        ['\'', one, '\''] => Some(one.len_utf8() + 2),
        ['"', ..] => {
            let is_escaped = |end: &usize| code[..*end].bytes().rev().take_while(|c| *c == b'\\').count() % 2 == 1;
            code.match_indices('"').map(|(at, _)| at).skip(1).find(|end| !is_escaped(end)).map(|end| end + 1)
        }
        _ if quote.starts_with('"') => until(&["\"", raw.strip_suffix(quote)?].concat(), code.len() - quote.len() + 1),
        _ => None,
    }
}
