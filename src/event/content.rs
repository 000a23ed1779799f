//! What batches are made of, by an id that every process computes: the same upload that is sent to two daemons gives batches with
//! the same ids.

use twox_hash::XxHash3_128;

use super::batch::{Batch, EventData};

/// The id of what a batch was made of. Equal content has equal ids in every process and in every version. Different content has
/// different ids, except content that was constructed to have the same: a sender can do that with two of its own uploads. Shown as
/// 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentId(pub u128);

impl ContentId {
    /// The id of these bytes. `domain` says what they are: equal bytes of another domain have another id.
    pub fn of(domain: &str, bytes: &[u8]) -> ContentId {
        let seed = XxHash3_128::oneshot(domain.as_bytes()) as u64;
        ContentId(XxHash3_128::oneshot_with_seed(seed, bytes))
    }

    /// The id of this content together with something else.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> ContentId {
        let both = [self.0, XxHash3_128::oneshot(bytes)].map(u128::to_be_bytes).concat();
        ContentId(XxHash3_128::oneshot(&both))
    }
}

impl std::fmt::Display for ContentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Content that is being written to batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenContent {
    id: ContentId,
    /// The number of its batches so far.
    batches: u64,
    /// The place of its last event so far.
    after: u64,
}

impl OpenContent {
    pub(super) fn new(id: ContentId) -> OpenContent {
        OpenContent { id, batches: 0, after: 0 }
    }

    /// The id of the next batch: it stands for all events of the content behind the batch before it, up to the last one of this
    /// batch. So two batches that were cut at different places have different ids, and two that were cut at the same places have
    /// the same id even if events in between were left out of one of them, as delivered before.
    ///
    /// `None`: the batch has only losses. These have no places, and with the same id as the losses of another attempt, or of another
    /// part of a trace, they would count as repeats of those. The next batch follows the one before this.
    pub(super) fn close(&mut self, batch: &Batch) -> Option<ContentId> {
        let last = place_of_last(batch)?;
        let bounds = [self.batches, self.after, last].map(u64::to_be_bytes).concat();
        self.batches += 1;
        self.after = last;
        Some(self.id.with(&bounds))
    }
}

/// The place of the last event that is no loss: the id of its span, which does not depend on how a body is encoded, or else its
/// offset in the body. `None`: there is no such event.
fn place_of_last(batch: &Batch) -> Option<u64> {
    let event = batch.events.iter().rfind(|event| !matches!(event.data, EventData::Loss(_)))?;
    let span = match &event.data {
        EventData::Span(index) => batch.spans.get(*index as usize).map(|span| span.span_id),
        EventData::Log { context, .. } => batch.contexts.get(*context as usize).and_then(|context| context.span_id),
        EventData::Metric(_) | EventData::Sample { .. } | EventData::Loss(_) => None,
    };
    Some(span.map_or(event.header.position.offset, |span| u64::from_be_bytes(span.0)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{BatchBuilder, Header, Loss, Origin, Position, Reason, Severity, UnixNanos, semconv};
    use super::*;

    fn builder() -> BatchBuilder {
        BatchBuilder::new(Arc::new(Origin::new("endless", "desktops".into(), "peer".into(), 1)))
    }

    fn log(builder: &mut BatchBuilder, offset: u64) {
        let position = Position { sequence: None, offset, length: 1 };
        builder.event(Header::observed_at(semconv::LOSS, UnixNanos(7), position)).log(Severity::Info, None);
    }

    fn loss(builder: &mut BatchBuilder, offset: u64) {
        let loss = Loss { reason: Reason::Malformed, bytes: 1, events: None, detail: "", excerpt: &[] };
        builder.loss(
            Header::observed_at(semconv::LOSS, UnixNanos(7), Position { sequence: None, offset, length: 1 }),
            loss,
        );
    }

    /// The ids of the batches of this content, each with events at these offsets.
    fn ids(content: &[u8], batches: &[&[u64]]) -> Vec<ContentId> {
        let mut builder = builder();
        builder.set_content(Some(ContentId::of("test", content)));
        let mut id = |offsets: &&[u64]| {
            offsets.iter().for_each(|offset| log(&mut builder, *offset));
            builder.take().content().unwrap()
        };
        batches.iter().map(&mut id).collect()
    }

    #[test]
    fn ids_are_the_same_in_every_version() {
        // Daemons of different versions share streams.
        assert_eq!(ContentId::of("test", b"body").to_string(), "aea2c22d3d3455fa554b112ee819573e");
        assert_eq!(ContentId::of("test", b"body").with(b"more").to_string(), "2c68b88fb4d09acfbbc93438d1feb453");
        assert_ne!(ContentId::of("other", b"body"), ContentId::of("test", b"body"));
    }

    #[test]
    fn batches_of_the_same_content_have_the_same_ids_if_they_are_cut_at_the_same_places() {
        let whole = ids(b"a", &[&[1, 2, 3], &[4, 5], &[6]]);
        assert_eq!(whole, ids(b"a", &[&[1, 2, 3], &[4, 5], &[6]]));
        // The first two events were left out.
        assert_eq!(whole, ids(b"a", &[&[3], &[4, 5], &[6]]));
        assert!(ids(b"b", &[&[1, 2, 3], &[4, 5], &[6]]).iter().all(|id| !whole.contains(id)));
        let other = ids(b"a", &[&[1, 2], &[3, 4, 5], &[6]]);
        assert!(other[..2].iter().all(|id| !whole.contains(id)));
        assert_eq!(other[2], whole[2]);
    }

    #[test]
    fn losses_at_the_end_do_not_change_the_id_and_a_batch_without_content_has_none() {
        let mut builder = builder();
        let mut id = |loses: bool| {
            builder.set_content(Some(ContentId::of("test", b"a")));
            log(&mut builder, 3);
            if loses {
                loss(&mut builder, 0);
            }
            builder.take().content()
        };
        let [with, without] = [true, false].map(&mut id);
        assert!(with.is_some() && with == without);
        builder.set_content(None);
        log(&mut builder, 3);
        assert_eq!(builder.take().content(), None);
    }

    #[test]
    fn a_batch_of_losses_only_has_no_id_and_does_not_change_those_of_others() {
        let ids = |losses_before: u64| {
            let mut builder = builder();
            builder.set_content(Some(ContentId::of("test", b"a")));
            for offset in 0..losses_before {
                loss(&mut builder, offset);
                assert_eq!(builder.take().content(), None);
            }
            log(&mut builder, 3);
            builder.take().content().unwrap()
        };
        assert_eq!([1, 2].map(ids), [ids(0); 2]);
    }

    #[test]
    fn a_copy_has_the_id_of_its_batch() {
        let mut builder = builder();
        builder.set_content(Some(ContentId::of("test", b"a")));
        (1..4).for_each(|offset| log(&mut builder, offset));
        let batch = builder.take();
        let copy = batch.copy_of(|index| index == 1);
        assert_eq!((copy.len(), copy.content()), (1, batch.content()));
    }
}
