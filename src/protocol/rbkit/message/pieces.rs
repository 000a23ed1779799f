//! Payloads that are worked off piece by piece: heap dumps and statistics.

use crate::codec::msgpack::{Reader, Value as Wire};
use crate::codec::reader::DecodeError;
use crate::event::Reason;
use crate::protocol::Output;

use super::super::normalize;
use super::super::wire::{Head, Kind, Object, Payload};
use super::{Failure, Message, Scratch, State, Surroundings};

impl Message {
    /// A dump or a statistic: what stands in front of its payload's elements.
    pub(super) fn begin_pieces(
        &mut self,
        kind: Kind,
        head: &Head<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, Failure> {
        let expected = if kind == Kind::Dump { "a dump without an array of objects" } else { "gc_stats without a map" };
        let malformed = Failure::Part(Reason::Malformed, expected);
        let Some(Payload { reader: mut payload, after }) = head.payload else { return Err(malformed) };
        match (kind, payload.next("payload")?) {
            (Kind::Dump, Wire::Array(left)) => {
                around.dumps.begin(head, left, self.place(payload.offset(), around.now), out);
                self.state = State::Objects { left, after };
            }
            (Kind::GcStats, Wire::Map(left)) => self.state = State::Stats { left, after, time: head.time },
            _ => return Err(malformed),
        }
        Ok(payload.offset())
    }

    /// The next object of a dump.
    pub(super) fn object(
        &mut self,
        whole: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let State::Objects { left, after } = &mut self.state else { return Ok(0) };
        if *left == 0 {
            let after = *after;
            around.dumps.end_part(self.place(0, around.now), out);
            self.state = State::EventPairs(after);
            return Ok(0);
        }
        let mut reader = whole;
        let Scratch { references, texts, .. } = &mut *around.scratch;
        let object = match reader.next("object")? {
            Wire::Map(pairs) => {
                let object = Object::read(&mut reader, pairs, (&mut *references, around.options.max_references))?;
                Some(object).filter(|object| object.id.is_some())
            }
            _ => {
                reader = whole;
                reader.skip("object")?;
                None
            }
        };
        *left -= 1;
        let bytes = &whole.rest()[..reader.offset()];
        let place = self.place(bytes.len(), around.now);
        let dump = around.dumps.saw_object();
        let Some(object) = object else {
            normalize::lost(out, Reason::Malformed, bytes, Some(1), "an object without object_id", place);
            return Ok(bytes.len());
        };
        normalize::heap_object(out, &object, references, dump, texts, place);
        let cut = object.references.map_or(0, |references| references.cut);
        if cut > 0 {
            let detail = format!("{cut} bytes of references are over max_references");
            normalize::lost(out, Reason::TooLarge, &bytes[bytes.len().saturating_sub(cut)..], None, &detail, place);
        }
        Ok(bytes.len())
    }

    /// The next number of a statistic.
    pub(super) fn stat(
        &mut self,
        whole: Reader<'_>,
        around: &mut Surroundings<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let State::Stats { left, after, time } = &mut self.state else { return Ok(0) };
        if *left == 0 {
            self.state = State::EventPairs(*after);
            return Ok(0);
        }
        let time = *time;
        let mut reader = whole;
        let mut pair = whole;
        reader.skip("statistic")?;
        reader.skip("statistic")?;
        *left -= 1;
        let bytes = &whole.rest()[..reader.offset()];
        let place = self.place(bytes.len(), around.now);
        let key = pair.next("statistic")?;
        let is_number = match key {
            Wire::Text(key) => normalize::gc_stat(out, key, pair.next("statistic")?, time, place),
            _ => false,
        };
        if !is_number {
            normalize::lost(
                out,
                Reason::Malformed,
                bytes,
                Some(1),
                "a statistic that is not a text to a number",
                place,
            );
        }
        Ok(bytes.len())
    }
}
