//! Writes the records of a body that was checked, in bounded steps.

use std::sync::Arc;

use bytes::Bytes;

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_event::{
    AttributeKeys, BatchBuilder, InternedResource, InternedRun, Key, Position, RecentResources, Resource, Value,
    semconv,
};
use tributary_protocol::{Flow, Now, Output};

use super::metric::OpenMetric;
use super::profile::ProfileReader;
use super::profile_dictionary::Strings;
use super::record::{RecordContext, RecordLimits};
use super::record_places::{MessagePlace, NextPlace, RecordPlaces, next_message};
use super::resource::{resource, text};
use super::route::Signal;
use super::value::{TextMarks, ValueWriter, members};
use super::{log, span};

/// The most steps between two looks at the batch: messages without records fill none.
const STEP_MESSAGES: usize = 4096;

/// The records of a body that are written.
#[derive(Debug)]
pub(super) struct RecordWriter {
    signal: Signal,
    body: Bytes,
    places: RecordPlaces,
    keys: AttributeKeys,
    limits: RecordLimits,
    recent: Arc<RecentResources>,
    resource: (Arc<Resource>, InternedResource),
    /// The scope of the next records. Empty: they have none.
    scope: (MessagePlace, InternedRun),
    metric: Option<OpenMetric>,
    /// Of a request with profiles.
    profiles: Option<Box<ProfileReader>>,
    /// Records up to now.
    number: u64,
}

impl RecordWriter {
    /// Of a body that was checked.
    pub(super) fn new(
        signal: Signal,
        body: Bytes,
        profiles: Option<ProfileReader>,
        limits: RecordLimits,
        recent: Arc<RecentResources>,
    ) -> RecordWriter {
        RecordWriter {
            signal,
            places: RecordPlaces::new(&body),
            body,
            keys: AttributeKeys::default(),
            limits,
            recent,
            resource: (Arc::default(), InternedResource::default()),
            scope: (0..0, InternedRun::default()),
            metric: None,
            profiles: profiles.map(Box::new),
            number: 0,
        }
    }

    /// The number of records that were written.
    pub(super) fn records(&self) -> u64 {
        self.number
    }

    /// Writes records until the batch is full. [`Flow::Continue`]: all are written.
    pub(super) fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        if let Some(profiles) = &mut self.profiles {
            // What it keeps is of the batch before.
            profiles.begin_batch();
        }
        for _ in 0..STEP_MESSAGES {
            if out.batch.is_full() {
                return Flow::Again;
            }
            if let Some(mut metric) = self.metric.take()
                && let Some(point) = next_message(&self.body, &mut metric.points, 1)
            {
                let body = self.body.clone();
                let mut context = self.context(point.clone(), now, out, Strings::default());
                metric.write(&body, point, &mut context, out);
                self.metric = Some(metric);
                continue;
            }
            if let Some(mut profiles) = self.profiles.take() {
                let value = profiles.next(&self.body, self.limits.max_attributes);
                if let Some(value) = &value {
                    let body = self.body.clone();
                    let mut context = self.context(value.place.clone(), now, out, profiles.strings(&body));
                    profiles.write(&body, value, &mut context, out);
                }
                self.profiles = Some(profiles);
                if value.is_some() {
                    continue;
                }
            }
            match self.places.next(&self.body) {
                NextPlace::Resource(place) => {
                    let strings = self.profiles.as_ref().map(|profiles| profiles.strings(&self.body));
                    let resource = resource(&self.body[place], strings.unwrap_or_default());
                    self.resource = (self.recent.share(resource), InternedResource::default());
                }
                NextPlace::Scope(place) => self.scope = (place, InternedRun::default()),
                NextPlace::Record(place) if self.signal == Signal::Metrics => {
                    self.metric = Some(OpenMetric::open(&self.body, place));
                }
                NextPlace::Record(place) if self.signal == Signal::Profiles => {
                    if let Some(profiles) = &mut self.profiles {
                        profiles.open(&self.body, place, self.limits.max_attributes, out);
                    }
                }
                NextPlace::Record(place) => {
                    let body = self.body.clone();
                    let record = &body[place.clone()];
                    let signal = self.signal;
                    let mut context = self.context(place, now, out, Strings::default());
                    match signal {
                        Signal::Logs => log::write(record, &mut context, out),
                        _ => span::write(record, &mut context, out),
                    }
                }
                NextPlace::End => return Flow::Continue,
            }
        }
        Flow::Again
    }

    /// What the next record, which stands at this place, has in common with others.
    fn context(&mut self, place: MessagePlace, now: Now, out: &mut Output, strings: Strings<'_>) -> RecordContext<'_> {
        self.number += 1;
        let resource = out.batch.intern_resource(&mut self.resource.1, &self.resource.0);
        let (scope, memo) = &mut self.scope;
        let message = &self.body[scope.clone()];
        let (keys, limits) = (&mut self.keys, self.limits);
        let run = (!message.is_empty())
            .then(|| out.batch.intern_run(memo, |batch| scope_attributes(message, keys, limits, strings, batch)));
        let position = Position { sequence: Some(self.number), offset: place.start as u64, length: place.len() as u64 };
        RecordContext { keys: &mut self.keys, limits, resource, scope: run, position, now }
    }
}

/// The attributes that stand for a message `InstrumentationScope`.
fn scope_attributes(
    message: &[u8],
    keys: &mut AttributeKeys,
    limits: RecordLimits,
    strings: Strings<'_>,
    batch: &mut BatchBuilder,
) -> Vec<(Key, Value)> {
    let mut all = Vec::new();
    for field in ProtobufFields::of(message) {
        let name = match field.number {
            1 => semconv::OTLP_SCOPE_NAME,
            2 => semconv::OTLP_SCOPE_VERSION,
            _ => continue,
        };
        if let ProtobufValue::Bytes(content) = field.value
            && !content.is_empty()
            && !all.iter().any(|(key, _): &(Key, Value)| key.is(name))
        {
            all.push((name.into(), batch.push_text(&text(content)).into()));
        }
    }
    // These keys are those of its name and version.
    let own = members(message, 3, strings).filter(|member| !matches!(member.key, b"name" | b"version"));
    let own: Vec<_> = own.collect();
    let RecordLimits { max_text_bytes, max_attributes, .. } = limits;
    let mut writer = ValueWriter {
        keys,
        batch,
        marks: TextMarks::default(),
        max_text_bytes,
        max_attributes,
        dropped: 0,
        prefix: semconv::OTLP_SCOPE.as_str(),
        strings,
        strings_left: max_text_bytes,
    };
    all.extend(writer.pairs(&own, true));
    all
}
