//! Subjects of messages: made from a template.

use tributary_event::Origin;

/// What a template can contain.
const ITEMS: [&str; 3] = ["{protocol}", "{kind}", "{listener}"];
/// The longest template, in bytes. Names of listeners have at most 64 characters.
const MAX_BYTES: usize = 256;

/// Checks a template.
///
/// # Errors
/// What is wrong.
pub(super) fn check(template: &str) -> Result<(), String> {
    if template.len() > MAX_BYTES {
        return Err(format!("has more than {MAX_BYTES} bytes"));
    }
    if template.starts_with('$') {
        return Err("begins with `$`, which is reserved for the server".into());
    }
    let plain = ITEMS.iter().fold(template.to_owned(), |text, item| text.replace(item, "x"));
    if plain.split('.').any(str::is_empty) {
        return Err("has an empty part between two dots".into());
    }
    match plain.chars().find(|c| c.is_whitespace() || c.is_control() || ['*', '>', '{', '}'].contains(c)) {
        Some(c) => Err(format!("contains `{}`; it can contain {}", c.escape_default(), ITEMS.join(", "))),
        None => Ok(()),
    }
}

/// The subject of events of this origin and kind.
pub(super) fn of(template: &str, origin: &Origin, kind: &str) -> String {
    let subject = template.replace(ITEMS[0], &token(origin.protocol)).replace(ITEMS[1], kind);
    subject.replace(ITEMS[2], &token(&origin.listener))
}

/// The pattern of all subjects of a template: each part that depends on the event is `*`.
pub(super) fn pattern(template: &str) -> String {
    let part = |part: &str| if ITEMS.iter().any(|item| part.contains(item)) { "*".to_owned() } else { part.to_owned() };
    template.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// A text as a part of a subject.
fn token(text: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    if text.is_empty() { "_".to_owned() } else { text.chars().map(valid).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_made_of_templates_that_are_checked() {
        let origin = Origin::new("zico", "a.b c".into(), "".into(), 1);
        assert_eq!(of("t.{protocol}.{kind}", &origin, "span"), "t.zico.span");
        assert_eq!(of("{kind}.x-{listener}", &origin, "log"), "log.x-a_b_c");
        assert_eq!(pattern("t.{protocol}.x-{kind}.y"), "t.*.*.y");
        for template in ["tributary.{protocol}.{kind}", "a", "{listener}.{kind}"] {
            assert_eq!(check(template), Ok(()));
        }
        for template in ["", "a..b", "a.", "a b", "a.*", "a.>", "{peer}", "a.{kind", "$JS.x", &"a".repeat(300)] {
            assert!(check(template).is_err(), "{template}");
        }
    }
}
