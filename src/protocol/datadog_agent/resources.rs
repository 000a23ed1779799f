//! Who a span is from: its service, and the process that sent it.

use std::sync::Arc;

use tributary_codec::http::RequestHead;
use tributary_codec::text::repair;
use tributary_event::{
    BatchBuilder, BatchResource, InternedResource, RecentResources, Resource, ResourceValue, whole_number,
};

use super::body::TracePayload;
use super::facts::{ProcessFacts, SpanTags};
use super::process::{ProcessDescription, cut};
use super::span::{BodyPart, WireSpan, WireValue};

/// The most resources of a body that are remembered.
const MAX_RESOURCES: usize = 64;

/// What the headers of a request say of its sender (notes, section 1).
#[derive(Clone, Debug, Default)]
pub(super) struct SenderHeaders {
    language: Option<String>,
    tracer_version: Option<String>,
    interpreter: Option<String>,
    language_version: Option<String>,
    container_id: Option<String>,
}

impl SenderHeaders {
    pub(super) fn read(head: &RequestHead) -> SenderHeaders {
        let text = |name| head.header(name).filter(|text| !text.is_empty()).map(|text| cut(text).to_owned());
        SenderHeaders {
            language: text("datadog-meta-lang"),
            tracer_version: text("datadog-meta-tracer-version"),
            interpreter: text("datadog-meta-lang-interpreter"),
            language_version: text("datadog-meta-lang-version"),
            container_id: text("datadog-container-id"),
        }
    }
}

/// What makes the resource of a span, as places in the body.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanSource {
    pub(super) service: BodyPart,
    pub(super) env: BodyPart,
    pub(super) version: BodyPart,
}

impl SpanSource {
    /// Of a span; what it does not say is that of its payload.
    pub(super) fn of(span: &WireSpan, tags: &SpanTags, payload: &TracePayload) -> SpanSource {
        let first = |texts: [BodyPart; 3]| texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
        SpanSource {
            service: span.service,
            env: first([span.env, tags.env, payload.env]),
            version: first([span.version, tags.version, payload.app_version]),
        }
    }
}

/// The resources of the spans of a body.
#[derive(Debug)]
pub(super) struct Resources {
    known: Vec<KnownResource>,
    /// Those of other bodies.
    recent: Arc<RecentResources>,
}

#[derive(Debug)]
struct KnownResource {
    source: SpanSource,
    runtime_id: BodyPart,
    resource: Arc<Resource>,
    interned: InternedResource,
}

impl Resources {
    pub(super) fn new(recent: &Arc<RecentResources>) -> Resources {
        Resources { known: Vec::new(), recent: recent.clone() }
    }

    /// The resource of a span in the batch.
    pub(super) fn get(
        &mut self,
        source: SpanSource,
        process: &ProcessFacts,
        payload: &TracePayload,
        headers: &SenderHeaders,
        body: &[u8],
        batch: &mut BatchBuilder,
    ) -> BatchResource {
        let is_same = |a: BodyPart, b: BodyPart| a == b || a.of(body) == b.of(body);
        let place = self.known.iter().position(|known| {
            is_same(known.source.service, source.service)
                && is_same(known.source.env, source.env)
                && is_same(known.source.version, source.version)
                && is_same(known.runtime_id, process.runtime_id)
        });
        let place = place.unwrap_or_else(|| {
            if self.known.len() >= MAX_RESOURCES {
                self.known.clear();
            }
            let agent = self.recent.share(agent(source, process, payload, headers, body));
            let service = text(source.service, body);
            let of_service = |agent| self.recent.share(Resource::of_service(agent, &service));
            let resource = if service.is_empty() { agent } else { of_service(&agent) };
            let interned = InternedResource::default();
            self.known.push(KnownResource { source, runtime_id: process.runtime_id, resource, interned });
            self.known.len() - 1
        });
        let KnownResource { resource, interned, .. } = &mut self.known[place];
        batch.intern_resource(interned, resource)
    }
}

/// The process that sent a span.
fn agent(
    source: SpanSource,
    process: &ProcessFacts,
    payload: &TracePayload,
    headers: &SenderHeaders,
    body: &[u8],
) -> Resource {
    let first = |places: &[BodyPart], header: &Option<String>| {
        let place = places.iter().find(|place| !place.is_empty()).map(|place| text(*place, body));
        place.or_else(|| header.clone())
    };
    let none = &None;
    let described = ProcessDescription {
        environment: first(&[source.env], none),
        version: first(&[source.version], none),
        runtime_id: first(&[process.runtime_id, payload.runtime_id], none),
        language: first(&[process.language, payload.language], &headers.language),
        tracer_version: first(&[payload.tracer_version], &headers.tracer_version),
        interpreter: headers.interpreter.clone(),
        language_version: first(&[payload.language_version], &headers.language_version),
        container_id: first(&[payload.container_id], &headers.container_id),
        hostname: first(&[payload.hostname, process.hostname], none),
        tags: first(&[process.tags], none),
        service: first(&[process.service], none),
        pid: process.pid.and_then(|pid| pid_value(pid, body)),
    };
    described.resource()
}

fn pid_value(pid: WireValue, body: &[u8]) -> Option<ResourceValue> {
    match pid {
        WireValue::U64(number) => Some(ResourceValue::U64(number)),
        WireValue::I64(number) => Some(ResourceValue::I64(number)),
        WireValue::F64(number) if number.fract() == 0.0 && (0.0..9e15).contains(&number) => {
            Some(ResourceValue::U64(number as u64))
        }
        WireValue::F64(number) => Some(ResourceValue::F64(number)),
        WireValue::Text(place) => {
            let text = text(place, body);
            Some(whole_number(&text).map_or(ResourceValue::Text(text), ResourceValue::I64))
        }
        _ => None,
    }
}

fn text(place: BodyPart, body: &[u8]) -> String {
    let (text, _) = repair(place.of(body));
    cut(&text).to_owned()
}
