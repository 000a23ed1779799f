//! What the log has said once.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// The most that is remembered; further ones are not said.
const MAX_SEEN: usize = 1024;

/// Texts that were seen.
#[derive(Debug, Default)]
pub(super) struct SeenOnce(Mutex<HashSet<String>>);

impl SeenOnce {
    /// Whether a text is new. `false` also when too many were seen.
    pub(super) fn is_new(&self, text: impl FnOnce() -> String) -> bool {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.len() < MAX_SEEN && seen.insert(text())
    }
}
