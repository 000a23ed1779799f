//! Events of a run that cannot go out yet: for a rename that may still be on its way, for the mapping of an id, or for
//! the numbers before them.
//!
//! Each queue is bounded by its owner in number and gives up by time; none of them drops an event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::event::UnixNanos;

use super::dictionary::{Dictionary, Id};
use super::wire::{Call, What};

/// Events so many numbers ahead may have a place of their own …
const MAX_NEAR: u64 = 8192;
/// … and no event makes more empty places than that before its own: they are passed one by one.
const MAX_EMPTY: u64 = 512;
/// Ids that were waited for in vain, and are not waited for again. More of them are waited for each time.
const MAX_HOPELESS: usize = 65_536;

/// A numbered event of a run.
#[derive(Debug)]
pub(super) struct Event {
    pub body: Body,
    /// Its number, unwrapped.
    pub number: u64,
    /// Which of the run's connections brought it.
    pub source: u16,
    /// Its place there.
    pub length: u32,
    pub offset: u64,
    /// When it was read, on both clocks.
    pub observed: UnixNanos,
    pub arrived: Duration,
    /// Its turn had passed when it came: it takes no part in calls.
    pub is_late: bool,
    /// It has waited for an id in vain, and waits for no other.
    pub has_waited: bool,
}

/// What an event says.
#[derive(Debug)]
pub(super) enum Body {
    Call(Call),
    Marker(Box<Marker>),
}

/// A marker's texts, with what was repaired in them.
#[derive(Debug)]
pub(super) struct Marker {
    pub time: u32,
    pub key: Box<str>,
    pub value: Box<str>,
    pub is_repaired: bool,
}

impl Marker {
    /// Bytes of memory, roughly.
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

    /// The first id that the dictionary does not know. Names of threads are waited for where they come at all.
    pub(super) fn missing(&self, dictionary: &Dictionary, names_threads: bool) -> Option<Id> {
        let Body::Call(call) = &self.body else { return None };
        let what = match call.what {
            What::Thrown { exception, .. } | What::Bubbled { exception } => Some(Id::Exception(exception)),
            What::Visit { location } => Some(Id::SourceLocation(location)),
            What::Entry | What::Exit { .. } | What::ExitAtLine(_) => None,
        };
        let thread = names_threads.then_some(Id::Thread(call.thread));
        [Some(Id::Method(call.method)), what, thread].into_iter().flatten().find(|id| !dictionary.knows(*id))
    }
}

/// Events that wait for the mapping of an id (rule 20), by the first id that they miss.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    events: HashMap<Id, Vec<Event>, RandomState>,
    /// Which ids are waited for, and until when. Some have come meanwhile.
    due: VecDeque<(Id, Duration)>,
    hopeless: HashSet<Id, RandomState>,
    len: usize,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// What the ids that were given up take of memory.
    pub(super) fn hopeless_bytes(&self) -> usize {
        self.hopeless.capacity() * (size_of::<Id>() + 1)
    }

    /// Whether waiting for the id makes no sense any more.
    pub(super) fn is_hopeless(&self, id: Id) -> bool {
        !self.hopeless.is_empty() && self.hopeless.contains(&id)
    }

    /// Keeps an event until its id is mapped, at most until `due`.
    pub(super) fn push(&mut self, id: Id, event: Event, due: Duration) {
        self.len += 1;
        // Most ids are waited for by one event.
        let events = self.events.entry(id).or_insert_with(|| Vec::with_capacity(1));
        if events.is_empty() {
            self.due.push_back((id, due));
        }
        events.push(event);
    }

    /// The id has been mapped: the events that waited for it.
    pub(super) fn resolve(&mut self, id: Id) -> Vec<Event> {
        self.hopeless.remove(&id);
        let events = self.events.remove(&id).unwrap_or_default();
        self.len -= events.len();
        if self.due.len() > 2 * self.events.len() + 64 {
            self.due.retain(|(id, _)| self.events.contains_key(id));
        }
        events
    }

    /// When the next id is given up.
    pub(super) fn deadline(&mut self) -> Option<Duration> {
        while let Some((id, due)) = self.due.front() {
            if self.events.contains_key(id) {
                return Some(*due);
            }
            self.due.pop_front();
        }
        None
    }

    /// Gives up the id that is waited for longest: its events.
    pub(super) fn give_up(&mut self) -> Option<Vec<Event>> {
        self.deadline()?;
        let (id, _) = self.due.pop_front()?;
        let mut events = self.resolve(id);
        events.iter_mut().for_each(|event| event.has_waited = true);
        self.despair(id);
        Some(events)
    }

    /// From now on nothing waits for the id.
    pub(super) fn despair(&mut self, id: Id) {
        if self.hopeless.len() < MAX_HOPELESS {
            self.hopeless.insert(id);
        }
    }
}

/// Events that wait for their turn by number (`order = "sequence"`, rules 16 and 17).
#[derive(Debug)]
pub(super) struct Turns {
    /// Events from `next` on; holes are numbers not here.
    events: VecDeque<Option<Event>>,
    next: u64,
    /// Events too far ahead for a place.
    far: BTreeMap<u64, Event>,
    max_ahead: u64,
    len: usize,
}

impl Turns {
    /// No events; those up to `max_ahead` numbers from the one whose turn it is have a place of their own.
    pub(super) fn new(max_ahead: u64) -> Self {
        Turns { events: VecDeque::new(), next: 0, far: BTreeMap::new(), max_ahead: max_ahead.min(MAX_NEAR), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory, roughly.
    pub(super) fn memory_bytes(&self) -> usize {
        self.events.capacity() * size_of::<Option<Event>>() + self.far.len() * (size_of::<Event>() + 32)
    }

    /// The number whose turn it is.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Keeps an event until its turn. The event itself: its turn has passed. `start` is the run's first number.
    pub(super) fn push(&mut self, event: Event, start: u64) -> Option<Event> {
        self.next = self.next.max(start);
        if event.number < self.next {
            return Some(event);
        }
        self.len += 1;
        if self.is_near(event.number) {
            self.place(event);
        } else {
            self.far.insert(event.number, event);
        }
        None
    }

    /// The event whose turn it is. Numbers below `awaited` that are not here will not come.
    pub(super) fn front(&mut self, awaited: u64) -> Option<&Event> {
        loop {
            self.draw_near();
            if matches!(self.events.front(), Some(Some(_))) || self.next >= awaited {
                break;
            }
            self.next = match self.events.pop_front() {
                Some(_) => self.next + 1,
                None => self.far.keys().next().map_or(awaited, |far| awaited.min(*far)),
            };
        }
        self.events.front()?.as_ref()
    }

    /// Takes it.
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front()??;
        self.next = event.number + 1;
        self.len -= 1;
        Some(event)
    }

    /// Gives their places to the events that are not far ahead any more.
    fn draw_near(&mut self) {
        while let Some((number, _)) = self.far.first_key_value()
            && self.is_near(*number)
            && let Some((_, event)) = self.far.pop_first()
        {
            self.place(event);
        }
    }

    fn is_near(&self, number: u64) -> bool {
        number - self.next < self.max_ahead.min(self.events.len() as u64 + MAX_EMPTY)
    }

    fn place(&mut self, event: Event) {
        let index = (event.number - self.next) as usize;
        if index >= self.events.len() {
            self.events.resize_with(index + 1, || None);
        }
        self.events[index] = Some(event);
    }
}
