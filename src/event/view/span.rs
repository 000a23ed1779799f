//! Spans, their links and their events.

use std::ops::Deref;

use super::super::UnixNanos;
use super::super::batch::Batch;
use super::super::span::{DroppedCounts, Link, SpanData, SpanEvent, SpanExtras, SpanLink};
use super::{Members, TextView};

/// A span, its links and its events.
#[derive(Clone, Copy, Debug)]
pub struct SpanView<'a> {
    pub(super) batch: &'a Batch,
    pub(super) place: u32,
    pub(super) data: &'a SpanData,
}

/// A link of a span.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LinkView<'a> {
    pub to: Link,
    pub attributes: Members<'a>,
    pub trace_state: Option<TextView<'a>>,
    pub flags: Option<u32>,
}

/// What few spans have.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct SpanExtrasView<'a> {
    pub trace_state: Option<TextView<'a>>,
    /// 0: none.
    pub flags: u32,
    pub dropped: DroppedCounts,
}

/// What happened during a span.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct SpanEventView<'a> {
    pub time: Option<UnixNanos>,
    pub name: TextView<'a>,
    pub attributes: Members<'a>,
}

impl Deref for SpanView<'_> {
    type Target = SpanData;

    #[inline]
    fn deref(&self) -> &SpanData {
        self.data
    }
}

impl<'a> SpanView<'a> {
    /// What went wrong.
    #[inline]
    pub fn status_message(&self) -> Option<TextView<'a>> {
        self.data.status_message.map(|text| self.batch.text(text))
    }

    /// What few spans have; `None`: it has nothing of that.
    #[inline]
    pub fn extras(&self) -> Option<SpanExtrasView<'a>> {
        let batch = self.batch;
        let (_, SpanExtras { trace_state, flags, dropped }) = of_span(&batch.span_extras, self.place).first()?;
        let trace_state = trace_state.map(|text| batch.text(text));
        Some(SpanExtrasView { trace_state, flags: *flags, dropped: *dropped })
    }

    /// Its links, in the order in which they were written.
    #[inline]
    pub fn links(&self) -> impl ExactSizeIterator<Item = LinkView<'a>> + use<'a> {
        let batch = self.batch;
        of_span(&batch.links, self.place).iter().map(|(_, SpanLink { to, attributes, trace_state, flags })| LinkView {
            to: *to,
            attributes: batch.members_of(*attributes),
            trace_state: trace_state.map(|text| batch.text(text)),
            flags: *flags,
        })
    }

    /// What happened during it, in the order in which it was written.
    #[inline]
    pub fn events(&self) -> impl ExactSizeIterator<Item = SpanEventView<'a>> + use<'a> {
        let batch = self.batch;
        of_span(&batch.span_events, self.place).iter().map(|(_, SpanEvent { time, name, attributes })| SpanEventView {
            time: *time,
            name: batch.key(*name).text(),
            attributes: batch.members_of(*attributes),
        })
    }
}

/// The parts of the span with this index.
#[inline]
pub(in super::super) fn of_span<T>(all: &[(u32, T)], place: u32) -> &[(u32, T)] {
    if all.is_empty() {
        return all;
    }
    let start = all.partition_point(|(of, _)| *of < place);
    let end = all.partition_point(|(of, _)| *of <= place);
    &all[start..end]
}
