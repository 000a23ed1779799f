//! JSON looked at as text, because parsers hide what this looks for.

use std::collections::HashSet;

/// Keys that stand twice in one object of a JSON text without white space between its tokens.
pub fn repeated_keys(line: &str) -> Vec<&str> {
    let bytes = line.as_bytes();
    let (mut keys, mut repeated): (Vec<HashSet<&str>>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'{' | b'[' => keys.push(HashSet::new()),
            b'}' | b']' => drop(keys.pop()),
            b'"' => {
                let start = at + 1;
                at = start;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                let text = &line[start..at];
                let is_key = bytes.get(at + 1) == Some(&b':');
                if is_key && !keys.last_mut().is_some_and(|keys| keys.insert(text)) {
                    repeated.push(text);
                }
            }
            _ => {}
        }
        at += 1;
    }
    repeated
}
