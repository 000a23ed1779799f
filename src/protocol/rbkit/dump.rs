//! Heap dumps: which event belongs to which dump, and whether all objects have been received (rule 15).

use tributary_event::InternedRun;
use tributary_protocol::{Now, Output};

use super::heap_sums::HeapSums;
use super::normalize::{self, DumpOf, StreamPosition};
use super::texts::TextCache;
use super::wire::{DumpObject, MessageHead};

/// The dumps of one process. At most one is open.
#[derive(Debug, Default)]
pub(super) struct Dumps {
    open: Option<OpenDump>,
    /// The correlation id of the last complete dump: a further event with this id does not open a new dump.
    complete: Option<u64>,
    /// Dumps without a correlation id, so far.
    unnumbered: u64,
    /// The dump of the current event.
    current: Option<DumpOf>,
    /// Its attributes in the batch.
    run: InternedRun,
    /// The sums by class and site, if they are wanted.
    sums: Option<Box<HeapSums>>,
}

#[derive(Debug)]
struct OpenDump {
    dump: DumpOf,
    /// Objects received.
    received: u64,
    /// The place of its first event.
    place: StreamPosition,
}

impl Dumps {
    /// From now on dumps are summed up.
    pub(super) fn sum_up(&mut self, sums: impl FnOnce() -> HeapSums) {
        self.sums.get_or_insert_with(|| Box::new(sums()));
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        self.sums.as_ref().map_or(0, |sums| sums.memory_bytes())
    }

    /// Whether the sums of a dump that has ended are being written: they come before what follows the dump.
    pub(super) fn is_writing(&self) -> bool {
        self.sums.as_ref().is_some_and(|sums| sums.is_writing())
    }

    /// Writes the next of these sums. `false`: there is none.
    pub(super) fn write_next(&mut self, now: Now, texts: &mut TextCache, out: &mut Output) -> bool {
        self.sums.as_mut().is_some_and(|sums| sums.write_next(now, texts, out))
    }

    /// Adds an object to the sums. Without memory it gets no class and site of its own.
    pub(super) fn add(&mut self, object: &DumpObject<'_>, has_memory: bool) {
        if let Some(sums) = &mut self.sums {
            sums.add(object, has_memory);
        }
    }

    /// Begins an event with `count` objects. With a correlation id it is part of a dump of `complete_message_count`
    /// objects; without one it is a whole dump (dialect v0.1.10).
    pub(super) fn begin_part(&mut self, head: &MessageHead<'_>, count: u32, place: StreamPosition, out: &mut Output) {
        let dump = match head.correlation {
            Some(id) => DumpOf { id, objects: head.total, time: head.time },
            None => {
                self.unnumbered += 1;
                DumpOf { id: self.unnumbered, objects: Some(count.into()), time: head.time }
            }
        };
        self.current = Some(dump);
        self.run = InternedRun::default();
        let continues = |open: &OpenDump| head.correlation.is_some() && open.dump.id == dump.id;
        if self.open.as_ref().is_some_and(continues) {
            return;
        }
        self.close("another dump started", place, out);
        if head.correlation.is_none() || self.complete != head.correlation {
            self.complete = None;
            self.open = Some(OpenDump { dump, received: 0, place });
        }
    }

    /// The dump of the current event.
    fn current(&self) -> DumpOf {
        self.current.unwrap_or(DumpOf { id: 0, objects: None, time: None })
    }

    /// Counts an object, valid or not. Returns its dump, and where the batch has the attributes of that dump.
    pub(super) fn count_object(&mut self) -> (DumpOf, &mut InternedRun) {
        if let Some(open) = &mut self.open {
            open.received += 1;
        }
        (self.current(), &mut self.run)
    }

    /// Ends the event: the dump may be complete.
    pub(super) fn end_part(&mut self, place: StreamPosition, out: &mut Output) {
        if let Some(open) = &self.open
            && open.dump.objects.is_some_and(|objects| open.received >= objects)
        {
            let id = open.dump.id;
            match &mut self.sums {
                // It is complete when its sums are written.
                Some(sums) => sums.end(open.dump, true, place),
                None => normalize::dump_complete(out, self.current(), place),
            }
            self.complete = Some(id);
            self.open = None;
        }
    }

    /// Closes the open dump: no more of its objects will be received.
    pub(super) fn close(&mut self, why: &str, place: StreamPosition, out: &mut Output) {
        let Some(OpenDump { dump, received, place: first }) = self.open.take() else { return };
        let missing = dump.objects.unwrap_or(received).saturating_sub(received);
        if missing > 0 {
            normalize::dump_incomplete(out, dump, missing, why, StreamPosition { now: place.now, ..first });
        }
        if let Some(sums) = &mut self.sums {
            sums.end(dump, false, StreamPosition { now: place.now, ..first });
        }
    }

    /// The connection has ended. The next one may be to another process.
    pub(super) fn end(&mut self, why: &str, place: StreamPosition, out: &mut Output) {
        self.close(why, place, out);
        self.complete = None;
    }

    /// The process was restarted: its ids begin again.
    pub(super) fn restart(&mut self, place: StreamPosition, out: &mut Output) {
        self.end("the process was restarted", place, out);
    }
}
