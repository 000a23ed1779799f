//! Digests that stand for a secret where it must not be shown.

use std::fmt::Write;

use ring::digest::{SHA256, digest};

/// The first 16 hexadecimal digits of the SHA-256 of a text in lower case. Equal texts have equal digests, so that what
/// belongs together can be found; the text itself cannot be computed from it, if it is random.
pub fn short_digest(text: &str) -> String {
    short_digest_of(text.to_ascii_lowercase().as_bytes())
}

/// The first 16 hexadecimal digits of the SHA-256 of bytes.
pub fn short_digest_of(bytes: &[u8]) -> String {
    let hash = digest(&SHA256, bytes);
    hash.as_ref().iter().take(8).fold(String::with_capacity(16), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_ignores_case_and_differs_otherwise() {
        assert_eq!(short_digest("abc"), "ba7816bf8f01cfea");
        assert_eq!(short_digest("ABC"), short_digest("abc"));
        assert_ne!(short_digest("abd"), short_digest("abc"));
    }
}
