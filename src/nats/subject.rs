//! Subjects of messages, matched with those of a stream.

/// Whether this is a subject, or a pattern of subjects.
pub fn is_pattern(text: &str) -> bool {
    let is_valid = |c: char| !c.is_whitespace() && !c.is_control();
    let parts: Vec<_> = text.split('.').collect();
    let (last, others) = parts.split_last().unwrap_or((&"", &[]));
    text.len() <= 256
        && text.chars().all(is_valid)
        && !last.is_empty()
        && others.iter().all(|part| !part.is_empty() && *part != ">")
}

/// Whether a subject, or each subject of a pattern, is one of those that `taken` stands for.
pub fn is_taken_by(subject: &str, taken: &str) -> bool {
    let mut parts = subject.split('.');
    for of in taken.split('.') {
        match (of, parts.next()) {
            (">", Some(_)) => return true,
            ("*", Some(part)) if part != ">" => {}
            (of, Some(part)) if of == part => {}
            _ => return false,
        }
    }
    parts.next().is_none()
}

/// Whether two patterns have a subject in common.
pub fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_no_empty_parts_and_end_with_all() {
        assert!([">", "a", "a.*.b", "a.b.>", "*"].iter().all(|text| is_pattern(text)));
        assert!(!["", ".", "a.", ".a", "a..b", "a.>.b", "a b"].iter().any(|text| is_pattern(text)));
    }

    #[test]
    fn patterns_match_as_the_server_matches_them() {
        for (subject, taken) in [("a.b", "a.b"), ("a.b", "a.*"), ("a.b.c", "a.>"), ("a.*", "*.*"), ("a.b", ">")] {
            assert!(is_taken_by(subject, taken), "{subject} {taken}");
            assert!(overlap(subject, taken), "{subject} {taken}");
        }
        for (subject, taken) in
            [("a.b", "a.c"), ("a", "a.>"), ("a.b", "a"), ("a.b", "a.b.c"), ("a.*", "a.b"), ("a.>", "a.*")]
        {
            assert!(!is_taken_by(subject, taken), "{subject} {taken}");
        }
        assert!(overlap("a.*.*", "a.zico.span") && overlap("a.*", ">"));
        assert!(!overlap("a.*.*", "a.b") && !overlap("a.*", "b.>"));
    }
}
