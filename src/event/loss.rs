//! Loss: the event kind for bytes and events that did not become events, so that all bytes are accounted for.

/// Why bytes or events did not become events. The names are those of `loss.reason` in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reason {
    /// Violates its format.
    Malformed,
    /// Well formed, but of an unknown version or type.
    Unsupported,
    /// Over a limit.
    TooLarge,
    /// The stream ended inside a message.
    Truncated,
    /// Ids that were never defined.
    Unresolved,
    /// Numbers that the peer skipped.
    Gap,
    /// Already delivered; recognised as a repetition.
    Duplicate,
    /// The peer is not authorized.
    Unauthorized,
    /// Dropped by a full queue, as configured.
    Shed,
    /// A sink or this program failed.
    Failed,
}

impl Reason {
    /// Every reason, in the order of [`Reason::index`].
    pub const ALL: [Reason; 10] = [
        Reason::Malformed,
        Reason::Unsupported,
        Reason::TooLarge,
        Reason::Truncated,
        Reason::Unresolved,
        Reason::Gap,
        Reason::Duplicate,
        Reason::Unauthorized,
        Reason::Shed,
        Reason::Failed,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::Unsupported => "unsupported",
            Reason::TooLarge => "too_large",
            Reason::Truncated => "truncated",
            Reason::Unresolved => "unresolved",
            Reason::Gap => "gap",
            Reason::Duplicate => "duplicate",
            Reason::Unauthorized => "unauthorized",
            Reason::Shed => "shed",
            Reason::Failed => "failed",
        }
    }

    /// Position in [`Reason::ALL`], for counters kept per reason.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The data of a loss event.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// Why.
    pub reason: Reason,
    /// Bytes of the peer that are in no event; 0 where none are missing (gap, unresolved).
    pub bytes: u64,
    /// Number of events that were not written or are incomplete; `None`: unknown.
    pub events: Option<u64>,
    /// One sentence: what was found where, and what is allowed.
    pub detail: &'a str,
    /// The first bytes of what was lost; cut to [`Loss::EXCERPT`].
    pub excerpt: &'a [u8],
}

impl Loss<'_> {
    /// The most bytes an excerpt shows.
    pub const EXCERPT: usize = 64;
}

/// What stands in the detail of several losses that are reported together, before the detail of the first.
pub const TOGETHER: &str = " losses, reported together (max_losses_per_second); the first: ";
/// Of a detail, this much distinguishes causes, in bytes.
const CAUSE_BYTES: usize = 500;

/// The cause of a loss: its detail with `#` for each number, whole or in hex, so that losses of one cause have the same text.
pub fn cause(detail: &str) -> String {
    let detail = detail.split_once(TOGETHER).map_or(detail, |(_, first)| first);
    let detail = &detail[..detail.floor_char_boundary(CAUSE_BYTES)];
    let mut cause = String::with_capacity(detail.len());
    let mut rest = detail;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        if end == 0 {
            cause.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, next) = rest.split_at(end);
        push_word(&mut cause, word);
        rest = next;
    }
    cause
}

/// Appends a word: `#` for a number in hex (`0xdd77`, `7f0010`), and for the digits in any other word.
fn push_word(cause: &mut String, word: &str) {
    let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
    let is_hex = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_id = is_hex(word) && (has_digit && word.len() >= 4 || word.len() >= 8);
    if is_id || word.strip_prefix("0x").is_some_and(is_hex) {
        cause.push('#');
        return;
    }
    let mut is_number = false;
    for c in word.chars() {
        match (c.is_ascii_digit(), is_number) {
            (false, _) => cause.push(c),
            (true, false) => cause.push('#'),
            (true, true) => {}
        }
        is_number = c.is_ascii_digit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_one_cause_have_one_text() {
        for (detail, expected) in [
            ("object type 9 at offset 1234; valid are 1 to 6", "object type # at offset #; valid are # to #"),
            (
                "at 14: object_type: 0xdd77 is not supported, only dd01 and dd02",
                "at #: object_type: # is not supported, only # and #",
            ),
            ("7 losses, reported together (max_losses_per_second); the first: at 3: bad", "at #: bad"),
            ("trace 6e1b5e0e-6cf5-4b0e-9d3a-5a4a0c1b7a54", "trace #-#-#-#-#"),
            ("event 0123456789abcdef0123456789abcdef: feedface", "event #: #"),
            ("UTF-8 is broken at x86 and größe 12ü", "UTF-# is broken at x# and größe #ü"),
            ("a face in the facade, -1.5", "a face in the facade, -#.#"),
            ("", ""),
        ] {
            assert_eq!(cause(detail), expected);
        }
        assert_eq!(cause(&"ü".repeat(CAUSE_BYTES)).chars().count(), CAUSE_BYTES / 2);
    }
}
