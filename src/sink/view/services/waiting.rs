//! Spans whose parent has not come yet.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

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
}

/// Children that wait, by a number in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct WaitingChildren {
    places: HashMap<u64, WaitingPlace, RandomState>,
    /// No child has a lower number.
    first: u64,
    /// The number of the next child.
    next: u64,
    /// The last child of each parent.
    of_parent: HashMap<u64, u64, RandomState>,
}

impl WaitingChildren {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn add(&mut self, parent: u64, child: WaitingChild) {
        let before = self.of_parent.insert(parent, self.next);
        self.places.insert(self.next, WaitingPlace { child, parent, before });
        self.next += 1;
    }

    /// Removes the children of a parent that has come.
    #[inline]
    pub(super) fn found(&mut self, parent: u64) -> Vec<WaitingChild> {
        let mut found = Vec::new();
        let mut next = self.of_parent.remove(&parent);
        while let Some(place) = next.and_then(|number| self.places.remove(&number)) {
            found.push(place.child);
            next = place.before;
        }
        found
    }

    /// Removes the oldest child if `leaves`.
    pub(super) fn pop_if(&mut self, leaves: impl FnOnce(&WaitingChild) -> bool) -> Option<WaitingChild> {
        while self.first < self.next && !self.places.contains_key(&self.first) {
            self.first += 1;
        }
        let number = self.first;
        self.places.get(&number).filter(|place| leaves(&place.child))?;
        let WaitingPlace { child, parent, .. } = self.places.remove(&number)?;
        // Children of the same parent that came later end their list where this one is missing.
        if self.of_parent.get(&parent) == Some(&number) {
            self.of_parent.remove(&parent);
        }
        Some(child)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.places.allocation_size() + self.of_parent.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(service: u32) -> WaitingChild {
        WaitingChild { service, step: 1, nanos: None, is_error: false, is_entry: false }
    }

    #[test]
    fn a_child_waits_until_its_parent_comes_or_it_is_the_oldest() {
        let mut waiting = WaitingChildren::default();
        for (parent, service) in [(7, 1), (8, 2), (7, 3), (9, 4), (7, 5)] {
            waiting.add(parent, child(service));
        }
        let services = |children: Vec<WaitingChild>| children.iter().map(|child| child.service).collect::<Vec<_>>();
        assert!(waiting.pop_if(|_| false).is_none());
        assert_eq!(waiting.pop_if(|_| true).map(|child| child.service), Some(1));
        assert_eq!(services(waiting.found(7)), [5, 3]);
        assert_eq!((services(waiting.found(7)), waiting.len()), (vec![], 2));
        assert_eq!(waiting.pop_if(|_| true).map(|child| child.service), Some(2));
        assert_eq!(waiting.pop_if(|_| true).map(|child| child.service), Some(4));
        assert!(waiting.pop_if(|_| true).is_none() && waiting.found(9).is_empty() && waiting.len() == 0);
    }
}
