//! The classes of events that are kept apart, so that many of one class do not displace the few of another.

use tributary_event::{Batch, EventView, KeyView, Kind, Name, semconv};

/// A class of events.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Class {
    /// Spans.
    Spans,
    /// Samples of profiles.
    Samples,
    /// Entries and exits of Java methods, and what is known of methods.
    Calls,
    /// Created and destroyed objects of Ruby.
    Objects,
    /// Objects of heap dumps, which are added to tables and not kept.
    HeapObjects,
    /// All other logs.
    Logs,
    /// Metrics.
    Metrics,
    /// Losses.
    Losses,
}

impl Class {
    /// Every class.
    pub const ALL: [Class; 8] = [
        Class::Spans,
        Class::Samples,
        Class::Calls,
        Class::Objects,
        Class::HeapObjects,
        Class::Logs,
        Class::Metrics,
        Class::Losses,
    ];

    /// The class of an event.
    pub fn of(event: EventView<'_>) -> Class {
        match event.kind() {
            Kind::Span => Class::Spans,
            Kind::Sample => Class::Samples,
            Kind::Metric => Class::Metrics,
            Kind::Loss => Class::Losses,
            Kind::Log => match event.name_key() {
                KeyView::Name(name) => of_log(name),
                KeyView::Text(_) => Class::Logs,
            },
        }
    }

    /// The kind of its events.
    pub fn kind(self) -> Kind {
        match self {
            Class::Spans => Kind::Span,
            Class::Samples => Kind::Sample,
            Class::Metrics => Kind::Metric,
            Class::Losses => Kind::Loss,
            Class::Calls | Class::Objects | Class::HeapObjects | Class::Logs => Kind::Log,
        }
    }
}

fn of_log(name: Name) -> Class {
    const CALLS: [Name; 10] = [
        semconv::BYTEFROG_METHOD_ENTRY,
        semconv::BYTEFROG_METHOD_EXIT,
        semconv::BYTEFROG_METHOD_VISIT,
        semconv::BYTEFROG_EXCEPTION_BUBBLED,
        semconv::BYTEFROG_METHOD_MAPPED,
        semconv::BYTEFROG_METHOD_COVERED,
        semconv::BYTEFROG_SOURCE_LOCATION_MAPPED,
        semconv::BYTEFROG_SOURCE_LOCATION_COUNTED,
        semconv::BYTEFROG_EXCEPTION_MAPPED,
        semconv::BYTEFROG_THREAD_NAMED,
    ];
    match name {
        semconv::RBKIT_HEAP_OBJECT => Class::HeapObjects,
        semconv::RBKIT_OBJECT_CREATED | semconv::RBKIT_OBJECT_DESTROYED => Class::Objects,
        name if CALLS.contains(&name) => Class::Calls,
        _ => Class::Logs,
    }
}

/// The classes of the events of a batch.
#[derive(Debug)]
pub(super) struct Classes {
    /// By event. Empty: all have the class `only`.
    of: Vec<Class>,
    counts: [u64; Class::ALL.len()],
}

/// Finds the class of every event.
pub(super) fn classes(batch: &Batch) -> Classes {
    let mut counts = [0; Class::ALL.len()];
    let len = batch.len() as u64;
    for class in [Class::Spans, Class::Samples, Class::Metrics, Class::Losses] {
        if batch.count(class.kind()) == len {
            counts[class as usize] = len;
            return Classes { of: Vec::new(), counts };
        }
    }
    let of: Vec<Class> = batch.events().map(Class::of).collect();
    of.iter().for_each(|class| counts[*class as usize] += 1);
    Classes { of, counts }
}

impl Classes {
    /// Whether an event has this class.
    pub(super) fn has(&self, class: Class) -> bool {
        self.counts[class as usize] > 0
    }

    /// The classes that events have, with the number of their events.
    pub(super) fn counts(&self) -> impl Iterator<Item = (Class, u64)> {
        Class::ALL.into_iter().zip(self.counts).filter(|(_, count)| *count > 0)
    }

    /// Whether the event with this index has this class.
    pub(super) fn is(&self, index: usize, class: Class) -> bool {
        self.of.get(index).is_none_or(|of| *of == class)
    }
}
