//! Heap dumps: which event belongs to which, and whether all objects have come (rule 15).

use crate::event::InternedRun;
use crate::protocol::Output;

use super::normalize::{self, DumpOf, Place};
use super::wire::Head;

/// The dumps of one connection. One is open at a time.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    open: Option<Open>,
    /// The correlation id of the dump that was complete last: what still comes of it is no new one.
    complete: Option<u64>,
    /// Dumps without an id of their own.
    unnumbered: u64,
    /// What objects say of the dump that they stand in.
    current: Option<DumpOf>,
    /// Where that stands in the batch being written.
    said: InternedRun,
}

#[derive(Debug)]
struct Open {
    dump: DumpOf,
    seen: u64,
    place: Place,
}

impl Dumps {
    /// An event with `count` objects begins. With a correlation id it is part of a dump of `complete_message_count`
    /// objects, without one it is all of a dump (dialect v0.1.10).
    pub(super) fn begin(&mut self, head: &Head<'_>, count: u32, place: Place, out: &mut Output) {
        let dump = match head.correlation {
            Some(id) => DumpOf { id, objects: head.total, time: head.time },
            None => {
                self.unnumbered += 1;
                DumpOf { id: self.unnumbered, objects: Some(count.into()), time: head.time }
            }
        };
        self.current = Some(dump);
        self.said = InternedRun::default();
        let continues = |open: &Open| head.correlation.is_some() && open.dump.id == dump.id;
        if self.open.as_ref().is_some_and(continues) {
            return;
        }
        self.close("another dump has begun", place, out);
        if head.correlation.is_none() || self.complete != head.correlation {
            self.complete = None;
            self.open = Some(Open { dump, seen: 0, place });
        }
    }

    /// The dump that objects stand in now.
    fn current(&self) -> DumpOf {
        self.current.unwrap_or(DumpOf { id: 0, objects: None, time: None })
    }

    /// An object, readable or not. Answers the dump that it stands in, and where the batch has what it says of that.
    pub(super) fn saw_object(&mut self) -> (DumpOf, &mut InternedRun) {
        if let Some(open) = &mut self.open {
            open.seen += 1;
        }
        (self.current(), &mut self.said)
    }

    /// The event is over: the dump may be complete.
    pub(super) fn end_part(&mut self, place: Place, out: &mut Output) {
        if let Some(open) = &self.open
            && open.dump.objects.is_some_and(|objects| open.seen >= objects)
        {
            normalize::dump_complete(out, self.current(), place);
            self.complete = Some(open.dump.id);
            self.open = None;
        }
    }

    /// Nothing more will come of an open dump.
    pub(super) fn close(&mut self, why: &str, place: Place, out: &mut Output) {
        let Some(Open { dump, seen, place: began }) = self.open.take() else { return };
        let missing = dump.objects.unwrap_or(seen).saturating_sub(seen);
        if missing > 0 {
            normalize::dump_incomplete(out, dump, missing, why, Place { now: place.now, ..began });
        }
    }

    /// The connection is over. What comes on the next may be another process's.
    pub(super) fn end(&mut self, why: &str, place: Place, out: &mut Output) {
        self.close(why, place, out);
        self.complete = None;
    }

    /// The process is another one: so are its ids.
    pub(super) fn restart(&mut self, place: Place, out: &mut Output) {
        self.end("the process was restarted", place, out);
    }
}
