//! Events of a run that cannot be written yet: they wait for the mapping of an id, or for the numbers before them.
//!
//! The run bounds each queue in number and in time. No queue drops an event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use tributary_event::UnixNanos;

use super::dictionary::{Dictionary, Id};
use super::slots::Slots;
use super::wire::{Call, What};

/// The numbers from the next one on are stored by index, as long as there are no more of them than this …
const MIN_NEAR: usize = 512;
/// … and this many for each event among them. So memory and time are proportional to the events.
const NEAR_PER_EVENT: usize = 4;
/// Ids without a mapping that no event waits for any longer. Events wait for further ids each time.
const MAX_ABANDONED: usize = 65_536;

/// A numbered event of a run.
#[derive(Debug)]
pub(super) struct Event {
    pub body: Body,
    /// Its number, unwrapped.
    pub number: u64,
    /// The index of its connection among those of the run.
    pub source: u16,
    /// Its size and offset there.
    pub length: u32,
    pub offset: u64,
    /// When it was read, on both clocks.
    pub observed: UnixNanos,
    pub arrived: Duration,
    /// It arrived after its turn: it opens and closes no call.
    pub is_late: bool,
    /// Its wait for an id has ended without a mapping: it waits for no other id.
    pub has_waited: bool,
}

/// The content of an event.
#[derive(Debug)]
pub(super) enum Body {
    Call(Call),
    Marker(Box<Marker>),
}

/// The texts of a marker, and whether something in them was repaired.
#[derive(Debug)]
pub(super) struct Marker {
    pub time: u32,
    pub key: Box<str>,
    pub value: Box<str>,
    pub is_repaired: bool,
}

impl Marker {
    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Marker>() + self.key.len() + self.value.len()
    }
}

impl Event {
    /// The agent's time in milliseconds.
    pub(super) fn time(&self) -> u32 {
        match &self.body {
            Body::Call(call) => call.time,
            Body::Marker(marker) => marker.time,
        }
    }

    /// The first id that the dictionary does not have. Thread ids count in versions that name threads. `is_counted`: the event
    /// is counted in a profile and not written, which needs the thread of an entry only.
    #[inline]
    pub(super) fn missing(&self, dictionary: &Dictionary, names_threads: bool, is_counted: bool) -> Option<Id> {
        if is_counted {
            return self.missing_thread(dictionary, names_threads);
        }
        let Body::Call(call) = &self.body else { return None };
        let method = Id::Method(call.method);
        if !dictionary.knows(method) {
            return Some(method);
        }
        let other = match call.what {
            What::Entry | What::Exit { .. } | What::ExitAtLine(_) => None,
            What::Thrown { exception, .. } | What::Bubbled { exception } => Some(Id::Exception(exception)),
            What::Visit { location } => Some(Id::SourceLocation(location)),
        };
        if let Some(other) = other.filter(|id| !dictionary.knows(*id)) {
            return Some(other);
        }
        Some(Id::Thread(call.thread)).filter(|id| names_threads && !dictionary.knows(*id))
    }

    /// The thread of an entry, if it has no name yet.
    fn missing_thread(&self, dictionary: &Dictionary, names_threads: bool) -> Option<Id> {
        match &self.body {
            Body::Call(Call { what: What::Entry, thread, .. }) if names_threads => {
                Some(Id::Thread(*thread)).filter(|id| !dictionary.knows(*id))
            }
            _ => None,
        }
    }
}

/// Events that wait for the mapping of an id (rule 20), by the first id that is missing.
#[derive(Debug, Default)]
pub(super) struct UnresolvedEvents {
    events: HashMap<Id, Vec<Event>, RandomState>,
    /// The ids and their deadlines, ascending. Some are mapped already.
    due: VecDeque<(Id, Duration)>,
    /// Ids that no event waits for any longer.
    abandoned: HashSet<Id, RandomState>,
    len: usize,
}

impl UnresolvedEvents {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory of the abandoned ids.
    pub(super) fn abandoned_bytes(&self) -> usize {
        self.abandoned.capacity() * (size_of::<Id>() + 1)
    }

    /// Whether no event waits for the id any longer.
    pub(super) fn is_abandoned(&self, id: Id) -> bool {
        !self.abandoned.is_empty() && self.abandoned.contains(&id)
    }

    /// Stores an event until its id is mapped, at most until `due`.
    pub(super) fn push(&mut self, id: Id, event: Event, due: Duration) {
        self.len += 1;
        // Most ids have one event.
        let events = self.events.entry(id).or_insert_with(|| Vec::with_capacity(1));
        if events.is_empty() {
            self.due.push_back((id, due));
        }
        events.push(event);
    }

    /// The id has been mapped: the events that waited for it.
    pub(super) fn resolve(&mut self, id: Id) -> Vec<Event> {
        self.abandoned.remove(&id);
        let events = self.events.remove(&id).unwrap_or_default();
        self.len -= events.len();
        if self.due.len() > 2 * self.events.len() + 64 {
            self.due.retain(|(id, _)| self.events.contains_key(id));
        }
        events
    }

    /// The next deadline of an id.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        while let Some((id, due)) = self.due.front() {
            if self.events.contains_key(id) {
                return Some(*due);
            }
            self.due.pop_front();
        }
        None
    }

    /// Abandons the id with the earliest deadline. The events that waited for it.
    pub(super) fn give_up(&mut self) -> Option<Vec<Event>> {
        self.deadline()?;
        let (id, _) = self.due.pop_front()?;
        let mut events = self.resolve(id);
        events.iter_mut().for_each(|event| event.has_waited = true);
        self.abandon(id);
        Some(events)
    }

    /// No event waits for the id from now on.
    pub(super) fn abandon(&mut self, id: Id) {
        if self.abandoned.len() < MAX_ABANDONED {
            self.abandoned.insert(id);
        }
    }
}

/// Events in the order of their numbers (`order = "sequence"`, rules 16 and 17).
#[derive(Debug)]
pub(super) struct ReorderBuffer {
    /// Events from `next` on, by number.
    events: Slots<Event>,
    next: u64,
    /// The events among them.
    near: usize,
    /// Events too far ahead for `events`.
    far: BTreeMap<u64, Event>,
}

impl ReorderBuffer {
    /// An empty buffer.
    pub(super) fn new() -> Self {
        ReorderBuffer { events: Slots::new(), next: 0, near: 0, far: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.near + self.far.len()
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.events.memory_bytes() + self.far.len() * (size_of::<Event>() + 32)
    }

    /// The next number to be written.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Stores an event. `Some`: it is too late for its turn. `start` is the first number of the run.
    pub(super) fn push(&mut self, event: Event, start: u64) -> Option<Event> {
        self.next = self.next.max(start);
        if event.number < self.next {
            return Some(event);
        }
        if self.is_near(event.number) {
            self.place(event);
        } else {
            self.far.insert(event.number, event);
        }
        None
    }

    /// Whether this is the number of the next event to be written, and no other event is here: then it need not be stored, and
    /// counts as written. `start` is the first number of the run: before any event was written, lower numbers may arrive.
    #[inline]
    pub(super) fn pass(&mut self, number: u64, start: u64) -> bool {
        let is_next = self.near == 0 && self.far.is_empty() && number == self.next && start < number;
        if is_next {
            self.events.clear();
            self.next = number + 1;
        }
        is_next
    }

    /// The next event to be written. Numbers below `awaited` that are not here are given up.
    pub(super) fn front(&mut self, awaited: u64) -> Option<&Event> {
        loop {
            self.draw_near();
            if self.events.front().is_some() || self.next >= awaited {
                break;
            }
            self.next = match self.events.pop_front() {
                Some(_) => self.next + 1,
                None => self.far.keys().next().map_or(awaited, |far| awaited.min(*far)),
            };
        }
        self.events.front()
    }

    /// Removes the event of [`ReorderBuffer::front`].
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()??;
        self.next = event.number + 1;
        self.near -= 1;
        Some(event)
    }

    /// Moves events that are no longer far ahead.
    fn draw_near(&mut self) {
        while let Some((number, _)) = self.far.first_key_value()
            && self.is_near(*number)
            && let Some((_, event)) = self.far.pop_first()
        {
            self.place(event);
        }
    }

    fn is_near(&self, number: u64) -> bool {
        number - self.next < (MIN_NEAR + NEAR_PER_EVENT * self.near) as u64
    }

    fn place(&mut self, event: Event) {
        self.events.set((event.number - self.next) as usize, event);
        self.near += 1;
    }
}
