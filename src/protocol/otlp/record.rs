//! What all records of a scope have in common: the resource, the scope, the limits.

use tributary_event::{
    AttributeKeys, BatchBuilder, BatchResource, EventBuilder, Header, Key, Name, Position, UnixNanos, Value, semconv,
};
use tributary_protocol::{Now, Output};

use super::profile_dictionary::Strings;
use super::value::{TextMarks, ValueWriter, WireAttribute};

/// What the keys of the attributes of a scope begin with.
const SCOPE_PREFIX: &[u8] = semconv::OTLP_SCOPE.as_str().as_bytes();

/// Limits of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordLimits {
    pub(super) max_text_bytes: usize,
    pub(super) max_attributes: usize,
    pub(super) max_frames: usize,
}

/// What a record needs beside its message.
pub(super) struct RecordContext<'a> {
    pub(super) keys: &'a mut AttributeKeys,
    pub(super) limits: RecordLimits,
    pub(super) resource: BatchResource,
    /// The attributes of the scope.
    pub(super) scope: Option<u32>,
    pub(super) position: Position,
    pub(super) now: Now,
}

impl RecordContext<'_> {
    /// Writes values of a record with these attributes to the batch.
    pub(super) fn values_of<'b>(
        &'b mut self,
        attributes: &[WireAttribute<'_>],
        batch: &'b mut BatchBuilder,
    ) -> ValueWriter<'b> {
        if has_scope(attributes) {
            self.scope = None;
        }
        self.values(batch)
    }

    /// Writes values to the batch.
    pub(super) fn values<'b>(&'b mut self, batch: &'b mut BatchBuilder) -> ValueWriter<'b> {
        ValueWriter {
            keys: self.keys,
            batch,
            marks: TextMarks::default(),
            max_text_bytes: self.limits.max_text_bytes,
            max_attributes: self.limits.max_attributes,
            dropped: 0,
            prefix: "",
            strings: Strings::default(),
            strings_left: self.limits.max_text_bytes,
        }
    }

    /// Begins the event of a record. `observed`: when another collector has read it; `None`: now.
    pub(super) fn event<'b>(
        &self,
        name: Key,
        time: Option<UnixNanos>,
        observed: Option<UnixNanos>,
        attributes: &[(Key, Value)],
        out: &'b mut Output,
    ) -> EventBuilder<'b> {
        let header = Header { name, time, observed: observed.unwrap_or(self.now.unix), position: self.position };
        let mut event = out.batch.event(header);
        event.resource(self.resource);
        attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
        if let Some(scope) = self.scope {
            event.run(scope);
        }
        event
    }
}

/// Whether a record has a scope among its attributes, because another tributary has received it. It keeps that: keys do not repeat.
pub(super) fn has_scope(attributes: &[WireAttribute<'_>]) -> bool {
    attributes.iter().any(|one| one.key.starts_with(SCOPE_PREFIX))
}

/// The attributes of a record and what is said of them. What the record says itself, as one that another tributary sends, stays.
pub(super) fn record_attributes(
    mut attributes: Vec<(Key, Value)>,
    marks: TextMarks,
    dropped: u64,
) -> Vec<(Key, Value)> {
    if dropped > 0 {
        push_new(&mut attributes, semconv::OTLP_DROPPED_ATTRIBUTES, Value::U64(dropped));
    }
    if marks.is_repaired {
        push_new(&mut attributes, semconv::TEXT_REPAIRED, true.into());
    }
    if marks.is_cut {
        push_new(&mut attributes, semconv::TEXT_TRUNCATED, true.into());
    }
    attributes
}

/// Adds an attribute, unless there is one with this name.
pub(super) fn push_new(attributes: &mut Vec<(Key, Value)>, name: Name, value: Value) {
    if !attributes.iter().any(|(key, _)| key.is(name)) {
        attributes.push((name.into(), value));
    }
}
