//! Payloads that are decoded element by element: heap dumps and statistics.

use tributary_codec::msgpack::{MsgpackValue as Wire, Reader};
use tributary_codec::reader::DecodeError;
use tributary_event::Reason;
use tributary_protocol::Output;

use super::super::normalize;
use super::super::options::HeapDumps;
use super::super::wire::{DumpObject, MessageHead, MessageKind, Payload};
use super::{Buffers, MessageContext, MessageDecoder, MessageError, MessageState};

impl MessageDecoder {
    /// Decodes a dump or a statistic up to the first element of its payload.
    pub(super) fn begin_pieces(
        &mut self,
        kind: MessageKind,
        head: &MessageHead<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, MessageError> {
        let expected =
            if kind == MessageKind::Dump { "a dump without an array of objects" } else { "gc_stats without a map" };
        let malformed = MessageError::Part(Reason::Malformed, expected);
        let Some(Payload { reader: mut payload, after }) = head.payload else { return Err(malformed) };
        match (kind, payload.next("payload")?) {
            (MessageKind::Dump, Wire::Array(left)) => {
                context.dumps.begin_part(head, left, self.place(payload.offset(), context.now), out);
                self.state = MessageState::Objects { left, after };
            }
            (MessageKind::GcStats, Wire::Map(left)) => {
                self.state = MessageState::Stats { left, after, time: head.time }
            }
            _ => return Err(malformed),
        }
        Ok(payload.offset())
    }

    /// Decodes the next object of a dump.
    pub(super) fn object(
        &mut self,
        whole: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let MessageState::Objects { left, after } = &mut self.state else { return Ok(0) };
        if *left == 0 {
            let after = *after;
            context.dumps.end_part(self.place(0, context.now), out);
            self.state = MessageState::EventPairs(after);
            return Ok(0);
        }
        let mut reader = whole;
        let Buffers { references, texts, .. } = &mut *context.buffers;
        let object = match reader.next("object")? {
            Wire::Map(pairs) => {
                let object = DumpObject::read(&mut reader, pairs, (&mut *references, context.options.max_references))?;
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
        let place = self.place(bytes.len(), context.now);
        let dump = context.dumps.count_object();
        let Some(object) = object else {
            normalize::lost(out, Reason::Malformed, bytes, Some(1), "an object without object_id", place);
            return Ok(bytes.len());
        };
        if context.options.heap != HeapDumps::Summary {
            normalize::heap_object(out, &object, references, dump, texts, place);
        }
        context.dumps.add(&object, !context.is_short_of_memory);
        if context.options.heap == HeapDumps::Summary {
            return Ok(bytes.len());
        }
        let cut = object.references.map_or(0, |references| references.cut);
        if cut > 0 {
            let detail = format!("{cut} bytes of references are over max_references");
            normalize::lost(out, Reason::TooLarge, &bytes[bytes.len().saturating_sub(cut)..], None, &detail, place);
        }
        Ok(bytes.len())
    }

    /// Decodes the next number of a statistic.
    pub(super) fn stat(
        &mut self,
        whole: Reader<'_>,
        context: &mut MessageContext<'_>,
        out: &mut Output,
    ) -> Result<usize, DecodeError> {
        let MessageState::Stats { left, after, time } = &mut self.state else { return Ok(0) };
        if *left == 0 {
            self.state = MessageState::EventPairs(*after);
            return Ok(0);
        }
        let time = *time;
        let mut reader = whole;
        let mut pair = whole;
        reader.skip("statistic")?;
        reader.skip("statistic")?;
        *left -= 1;
        let bytes = &whole.rest()[..reader.offset()];
        let place = self.place(bytes.len(), context.now);
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
