//! What was read lately, so that events of several connections and resources that alternate share one copy of each.

/// The most that is kept.
const MOST: usize = 32;

/// The latest of what was read, the last one first.
#[derive(Debug)]
pub(super) struct Recent<T>(Vec<T>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent(Vec::new())
    }
}

impl<T> Recent<T> {
    /// The first one that `is_it`, which is the last one that was read then.
    #[inline]
    pub(super) fn find(&mut self, is_it: impl Fn(&T) -> bool) -> Option<&T> {
        let at = self.0.iter().position(is_it)?;
        self.0[..=at].rotate_right(1);
        self.0.first()
    }

    /// The last one that was read.
    pub(super) fn last(&self) -> Option<&T> {
        self.0.first()
    }

    pub(super) fn add(&mut self, read: T) -> &T {
        self.0.truncate(MOST - 1);
        self.0.insert(0, read);
        &self.0[0]
    }
}
