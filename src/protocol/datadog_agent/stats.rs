//! Client statistics, `/v0.6/stats`: hits, errors and durations of groups of spans in buckets of time (notes, section 3).

use std::sync::Arc;

use bytes::Bytes;

use tributary_codec::reader::DecodeError;
use tributary_codec::text::{cut, escape, repair};
use tributary_event::{
    Header, Key, Label, Loss, MetricData, MetricType, Name, Number, Position, Reason, RecentResources, Temporality,
    UnixNanos, Value, semconv, whole_number,
};
use tributary_protocol::{Flow, Now, Output};

use super::body::TracePayload;
use super::cursor::Cursor;
use super::facts::ProcessFacts;
use super::keys::Keys;
use super::resources::{Resources, SenderHeaders, SpanSource};
use super::sketch::Sketch;
use super::span::{BodyPart, WireValue};

/// The most peer tags of a group.
const MAX_PEER_TAGS: usize = 256;

/// The quantiles of a sketch.
const QUANTILES: [f64; 6] = [0.5, 0.75, 0.9, 0.95, 0.99, 1.0];
const OK: [Name; 6] = [
    semconv::DATADOG_OK_P50,
    semconv::DATADOG_OK_P75,
    semconv::DATADOG_OK_P90,
    semconv::DATADOG_OK_P95,
    semconv::DATADOG_OK_P99,
    semconv::DATADOG_OK_MAX,
];
/// Attributes of a group that do not begin with `datadog.`.
const WRITTEN: [Name; 5] = [
    semconv::HTTP_REQUEST_METHOD,
    semconv::HTTP_ROUTE,
    semconv::SPAN_KIND,
    semconv::HTTP_RESPONSE_STATUS_CODE,
    semconv::RPC_GRPC_STATUS_CODE,
];
const ERROR: [Name; 6] = [
    semconv::DATADOG_ERROR_P50,
    semconv::DATADOG_ERROR_P75,
    semconv::DATADOG_ERROR_P90,
    semconv::DATADOG_ERROR_P95,
    semconv::DATADOG_ERROR_P99,
    semconv::DATADOG_ERROR_MAX,
];

/// A group of spans: what they share, and their sums.
#[derive(Debug, Default)]
struct Group {
    service: BodyPart,
    name: BodyPart,
    resource: BodyPart,
    group_type: BodyPart,
    span_kind: BodyPart,
    method: BodyPart,
    endpoint: BodyPart,
    /// A text or a number.
    grpc_status: Option<WireValue>,
    http_status: u64,
    is_synthetics: bool,
    /// 1: they are roots, 2: they are not.
    trace_root: u64,
    peer_tags: Vec<BodyPart>,
    hits: u64,
    errors: u64,
    top_level_hits: u64,
    duration: u64,
    ok: BodyPart,
    error: BodyPart,
}

/// A bucket of time.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    start: u64,
    duration: u64,
    groups: u32,
    groups_at: usize,
    end: usize,
}

/// A body of statistics that was checked and is written.
#[derive(Debug)]
pub(super) struct StatsWriter {
    bytes: Bytes,
    payload: TracePayload,
    process: ProcessFacts,
    headers: SenderHeaders,
    resources: Resources,
    keys: Keys,
    buckets_left: u32,
    offset: usize,
    bucket: Option<Bucket>,
    group: Group,
    max_text_bytes: usize,
}

impl StatsWriter {
    /// Checks a body.
    ///
    /// # Errors
    /// What is wrong where.
    pub(super) fn check(
        bytes: Bytes,
        headers: SenderHeaders,
        max_text_bytes: usize,
        resources: &Arc<RecentResources>,
    ) -> Result<StatsWriter, DecodeError> {
        let mut cursor = Cursor::at(&bytes, 0);
        let (mut payload, mut process) = (TracePayload::default(), ProcessFacts::default());
        let mut group = Group::default();
        for _ in 0..cursor.map("payload")? {
            match cursor.key("payload key")? {
                b"Hostname" => payload.hostname = cursor.text("payload.Hostname")?,
                b"Env" => payload.env = cursor.text("payload.Env")?,
                b"Version" => payload.app_version = cursor.text("payload.Version")?,
                b"Lang" => payload.language = cursor.text("payload.Lang")?,
                b"TracerVersion" => payload.tracer_version = cursor.text("payload.TracerVersion")?,
                b"RuntimeID" => payload.runtime_id = cursor.text("payload.RuntimeID")?,
                b"ContainerID" => payload.container_id = cursor.text("payload.ContainerID")?,
                b"ProcessTags" => process.tags = cursor.text("payload.ProcessTags")?,
                b"Stats" => {
                    let mut check = |cursor: &mut Cursor<'_>| bucket(cursor, |cursor| group.read(cursor)).map(drop);
                    (payload.chunks, payload.chunks_at) = cursor.elements("payload.Stats", &mut check)?;
                }
                _ => cursor.skip("payload value")?,
            }
        }
        cursor.finish()?;
        Ok(StatsWriter {
            buckets_left: payload.chunks,
            offset: payload.chunks_at,
            payload,
            process,
            headers,
            resources: Resources::new(resources),
            keys: Keys::default(),
            bucket: None,
            group,
            max_text_bytes,
            bytes,
        })
    }

    /// Writes groups until the batch is full. [`Flow::Continue`]: all are written.
    ///
    /// # Errors
    /// None: the body was checked.
    pub(super) fn step(&mut self, now: Now, out: &mut Output) -> Result<Flow, DecodeError> {
        let bytes = self.bytes.clone();
        while !out.batch.is_full() {
            match &mut self.bucket {
                Some(open) if open.groups > 0 => {
                    open.groups -= 1;
                    let (open, start) = (*open, self.offset);
                    let mut cursor = Cursor::at(&bytes, start);
                    self.group.read(&mut cursor)?;
                    self.offset = cursor.offset();
                    self.write(open, start, now, out);
                }
                Some(open) => {
                    self.offset = open.end;
                    self.bucket = None;
                }
                None if self.buckets_left == 0 => return Ok(Flow::Continue),
                None => {
                    self.buckets_left -= 1;
                    let mut cursor = Cursor::at(&bytes, self.offset);
                    let open = bucket(&mut cursor, |cursor| cursor.skip("group"))?;
                    self.offset = open.groups_at;
                    self.bucket = Some(open);
                }
            }
        }
        Ok(Flow::Again)
    }

    fn write(&mut self, bucket: Bucket, offset: usize, now: Now, out: &mut Output) {
        let end = bucket.start.checked_add(bucket.duration).map(UnixNanos);
        let position = Position { sequence: None, offset: offset as u64, length: (self.offset - offset) as u64 };
        let header = |name: Name| Header { name: name.into(), time: end, observed: now.unix, position };
        let source =
            SpanSource { service: self.group.service, env: self.payload.env, version: self.payload.app_version };
        let attributes = self.attributes(out);
        let (bytes, process, payload) = (&self.bytes, &self.process, &self.payload);
        let mut write = |name: Name, metric: MetricData, resources: &mut Resources| {
            let resource = resources.get(source, process, payload, &self.headers, bytes, &mut out.batch);
            let mut event = out.batch.event(header(name));
            event.resource(resource);
            attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
            event.metric(metric);
        };
        let group = &self.group;
        for (name, unit, number) in [
            (semconv::DATADOG_TRACE_HITS, "", group.hits),
            (semconv::DATADOG_TRACE_ERRORS, "", group.errors),
            (semconv::DATADOG_TRACE_TOP_LEVEL_HITS, "", group.top_level_hits),
            (semconv::DATADOG_TRACE_DURATION, "ns", group.duration),
        ] {
            let metric_type = MetricType::Sum { temporality: Temporality::Delta, monotonic: true };
            let start = Some(UnixNanos(bucket.start));
            write(
                name,
                MetricData { metric_type, unit: Label::Constant(unit), value: Number::U64(number), start },
                &mut self.resources,
            );
        }
        let mut unreadable = 0;
        for (summary, names) in [(group.ok, OK), (group.error, ERROR)] {
            let summary = summary.of(bytes);
            match Sketch::read(summary) {
                Some(sketch) if !sketch.is_empty() => {
                    for (name, share) in names.into_iter().zip(QUANTILES) {
                        let value = Number::F64(sketch.quantile(share));
                        let metric =
                            MetricData { metric_type: MetricType::Gauge, unit: "ns".into(), value, start: None };
                        write(name, metric, &mut self.resources);
                    }
                }
                Some(_) => {}
                None if summary.is_empty() => {}
                None => unreadable += 1,
            }
        }
        if unreadable > 0 {
            // The sums are there: no byte is lost.
            let detail = "a sketch of durations that cannot be read; its sums are written";
            let loss = Loss { reason: Reason::Unsupported, bytes: 0, events: None, detail, excerpt: &[] };
            out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
        }
    }

    /// What the spans of the group share.
    fn attributes(&mut self, out: &mut Output) -> Vec<(Key, Value)> {
        let (bytes, limit, group, batch) = (&self.bytes, self.max_text_bytes, &self.group, &mut out.batch);
        let mut all: Vec<(Key, Value)> = Vec::new();
        for (name, place) in [
            (semconv::DATADOG_NAME, group.name),
            (semconv::DATADOG_RESOURCE, group.resource),
            (semconv::DATADOG_TYPE, group.group_type),
            (semconv::HTTP_REQUEST_METHOD, group.method),
            (semconv::HTTP_ROUTE, group.endpoint),
            (semconv::SPAN_KIND, group.span_kind),
        ] {
            if !place.is_empty() {
                let (text, _) = repair(place.of(bytes));
                all.push((name.into(), batch.push_text(cut(&text, limit)).into()));
            }
        }
        if group.http_status > 0 {
            all.push((semconv::HTTP_RESPONSE_STATUS_CODE.into(), group.http_status.into()));
        }
        match group.grpc_status {
            Some(WireValue::Text(place)) if !place.is_empty() => {
                let (text, _) = repair(place.of(bytes));
                let value = whole_number(&text).map_or_else(|| batch.push_text(cut(&text, limit)).into(), Value::I64);
                all.push((semconv::RPC_GRPC_STATUS_CODE.into(), value));
            }
            Some(WireValue::U64(number)) => all.push((semconv::RPC_GRPC_STATUS_CODE.into(), number.into())),
            _ => {}
        }
        if let 1 | 2 = group.trace_root {
            all.push((semconv::DATADOG_IS_TRACE_ROOT.into(), (group.trace_root == 1).into()));
        }
        if group.is_synthetics {
            all.push((semconv::DATADOG_SYNTHETICS.into(), true.into()));
        }
        for (place, tag) in group.peer_tags.iter().enumerate() {
            let tag = tag.of(bytes);
            let Some(colon) = tag.iter().position(|byte| *byte == b':') else { continue };
            let (key, value) = (&tag[..colon], &tag[colon + 1..]);
            let begins_so = |other: &BodyPart| other.of(bytes).get(..=colon) == Some(&tag[..=colon]);
            if !group.peer_tags[..place].iter().any(begins_so) {
                let (text, _) = repair(value);
                let value = batch.push_text(cut(&text, limit)).into();
                let key = match Name::of(&escape(key)) {
                    Some(name) if WRITTEN.contains(&name) => {
                        batch.push_parts(&[semconv::DATADOG_META.as_str(), name.as_str()]).into()
                    }
                    _ => self.keys.get(key, batch).0,
                };
                all.push((key, value));
            }
        }
        all
    }
}

/// A bucket; its groups are read by `each` where they stand.
fn bucket(
    cursor: &mut Cursor<'_>,
    mut each: impl FnMut(&mut Cursor<'_>) -> Result<(), DecodeError>,
) -> Result<Bucket, DecodeError> {
    let mut read = Bucket::default();
    for _ in 0..cursor.map("bucket")? {
        match cursor.key("bucket key")? {
            b"Start" => read.start = cursor.unsigned("bucket.Start")?,
            b"Duration" => read.duration = cursor.unsigned("bucket.Duration")?,
            b"Stats" => {
                (read.groups, read.groups_at) = cursor.elements("bucket.Stats", &mut each)?;
            }
            _ => cursor.skip("bucket value")?,
        }
    }
    read.end = cursor.offset();
    Ok(read)
}

impl Group {
    fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), DecodeError> {
        let peer_tags = std::mem::take(&mut self.peer_tags);
        *self = Group { peer_tags, ..Group::default() };
        self.peer_tags.clear();
        for _ in 0..cursor.map("group")? {
            match cursor.key("group key")? {
                b"Service" => self.service = cursor.text("group.Service")?,
                b"Name" => self.name = cursor.text("group.Name")?,
                b"Resource" => self.resource = cursor.text("group.Resource")?,
                b"Type" => self.group_type = cursor.text("group.Type")?,
                b"SpanKind" => self.span_kind = cursor.text("group.SpanKind")?,
                b"HTTPMethod" => self.method = cursor.text("group.HTTPMethod")?,
                b"HTTPEndpoint" => self.endpoint = cursor.text("group.HTTPEndpoint")?,
                // ddtrace 3.19.9 spells it in the second way.
                b"GRPCStatusCode" | b"GrpcStatusCode" => {
                    let at = cursor.offset();
                    let value = cursor.next("group.GRPCStatusCode")?;
                    self.grpc_status = WireValue::scalar(value, cursor.offset());
                    if self.grpc_status.is_none() {
                        return Err(cursor.wrong("group.GRPCStatusCode", at, "a text or a number"));
                    }
                }
                b"HTTPStatusCode" => self.http_status = cursor.unsigned("group.HTTPStatusCode")?,
                b"Synthetics" => self.is_synthetics = cursor.bool("group.Synthetics")?,
                b"IsTraceRoot" => self.trace_root = cursor.unsigned("group.IsTraceRoot")?,
                b"PeerTags" => {
                    for _ in 0..cursor.array("group.PeerTags")? {
                        let tag = cursor.text("group.PeerTags")?;
                        if self.peer_tags.len() < MAX_PEER_TAGS {
                            self.peer_tags.push(tag);
                        }
                    }
                }
                b"Hits" => self.hits = cursor.unsigned("group.Hits")?,
                b"Errors" => self.errors = cursor.unsigned("group.Errors")?,
                b"TopLevelHits" => self.top_level_hits = cursor.unsigned("group.TopLevelHits")?,
                b"Duration" => self.duration = cursor.unsigned("group.Duration")?,
                b"OkSummary" => self.ok = cursor.bytes("group.OkSummary")?,
                b"ErrorSummary" => self.error = cursor.bytes("group.ErrorSummary")?,
                _ => cursor.skip("group value")?,
            }
        }
        Ok(())
    }
}
