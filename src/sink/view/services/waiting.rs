//! Spans whose parent has not come yet.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::pop_if;

/// A span that waits for its parent.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingChild {
    pub(super) service: u32,
    pub(super) step: u64,
    pub(super) nanos: Option<u64>,
    pub(super) is_error: bool,
    /// It counts as an entry of its service already.
    pub(super) is_entry: bool,
}

#[derive(Debug)]
struct WaitingPlace {
    child: WaitingChild,
    parent: u64,
    /// The number of the child of the same parent that came before it.
    before: Option<u64>,
    is_found: bool,
}

/// Children in the order in which they came, each with a number.
#[derive(Debug, Default)]
pub(super) struct WaitingChildren {
    places: VecDeque<WaitingPlace>,
    /// The number of the first one.
    first: u64,
    /// The last child of each parent.
    of_parent: HashMap<u64, u64, RandomState>,
}

impl WaitingChildren {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn add(&mut self, parent: u64, child: WaitingChild) {
        let number = self.first + self.places.len() as u64;
        let before = self.of_parent.insert(parent, number);
        self.places.push_back(WaitingPlace { child, parent, before, is_found: false });
    }

    /// The children of a parent that has come.
    #[inline]
    pub(super) fn found(&mut self, parent: u64) -> Vec<WaitingChild> {
        let mut found = Vec::new();
        let mut next = self.of_parent.remove(&parent);
        while let Some(place) = next.and_then(|number| self.places.get_mut(number.checked_sub(self.first)? as usize)) {
            place.is_found = true;
            found.push(place.child);
            next = place.before;
        }
        found
    }

    /// Removes the oldest child if `leaves`. `Some(None)`: its parent has come.
    pub(super) fn pop_if(&mut self, leaves: impl FnOnce(&WaitingChild) -> bool) -> Option<Option<WaitingChild>> {
        let place = pop_if(&mut self.places, |place| leaves(&place.child))?;
        let number = self.first;
        self.first += 1;
        if self.of_parent.get(&place.parent) == Some(&number) {
            self.of_parent.remove(&place.parent);
        }
        Some((!place.is_found).then_some(place.child))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.places.capacity() * size_of::<WaitingPlace>() + self.of_parent.allocation_size()
    }
}
