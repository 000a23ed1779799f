//! The numbers that senders of events have somewhere, by their connection and resource: events of several can alternate.

use std::sync::Arc;

use tributary_event::{EventView, Origin, Resource};

/// The most that are remembered.
const MOST: usize = 32;

/// The senders of the latest events.
#[derive(Debug, Default)]
pub(crate) struct RecentSenders(Vec<(Arc<Resource>, Arc<Origin>, u32)>);

impl RecentSenders {
    /// The number of the sender of an event.
    pub(crate) fn get(&self, event: EventView<'_>) -> Option<u32> {
        let is_it = |(resource, origin, _): &&(Arc<Resource>, Arc<Origin>, u32)| {
            Arc::ptr_eq(resource, event.resource()) && Arc::ptr_eq(origin, event.origin())
        };
        self.0.iter().find(is_it).map(|(.., number)| *number)
    }

    pub(crate) fn add(&mut self, event: EventView<'_>, number: u32) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.push((event.resource().clone(), event.origin().clone(), number));
    }

    /// The numbers are others now.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
