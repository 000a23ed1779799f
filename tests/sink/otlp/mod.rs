//! The sink `otlp`: what it writes, decoded by other implementations, and how it treats receivers on loopback.

mod delivery;
mod encoding;
mod faults;
mod protocols;
mod proxy;
mod python;
mod receiver;
mod runs;
mod tls;

use std::sync::Arc;

use tributary::event::{
    Batch, BatchBuilder, Header, MetricData, MetricType, Number, Origin, Position, Severity, SpanData, SpanId, Status,
    TraceId, UnixNanos,
};
use tributary::sink::otlp::{Options, Otlp};

use crate::sending::Sending;

fn start(options: Options) -> Sending {
    Sending::start(move || Otlp::new("remote", options.clone()))
}

fn builder(listener: &str) -> BatchBuilder {
    BatchBuilder::new(Arc::new(Origin::new("datadog", listener.into(), "127.0.0.1:40112".into(), 9)))
}

fn header(builder: &mut BatchBuilder, name: &str) -> Header {
    let name = builder.push_text(name).into();
    Header { name, time: Some(UnixNanos(5)), observed: UnixNanos(7), position: Position::default() }
}

/// Logs of these names.
fn logs(names: &[String]) -> Batch {
    let mut builder = builder("apm");
    for name in names {
        let header = header(&mut builder, name);
        builder.event(header).log(Severity::Info, None);
    }
    builder.take()
}

fn names(count: usize, length: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:0>length$}")).collect()
}

/// A log, a span and a metric of each number.
fn mixed(numbers: std::ops::Range<u64>) -> Batch {
    let mut builder = builder("apm");
    for number in numbers {
        let head = header(&mut builder, &format!("log {number}"));
        let mut event = builder.event(head);
        event.text(tributary::event::semconv::DATADOG_TYPE, "web");
        event.log(Severity::Warn, None);
        let head = header(&mut builder, "GET /");
        let span = SpanData {
            end: Some(UnixNanos(9)),
            duration_nanos: Some(4),
            status: Status::Error,
            ..SpanData::new(TraceId([1; 16]), SpanId(number.to_be_bytes()))
        };
        builder.event(head).span(span);
        let head = header(&mut builder, "queue");
        let metric =
            MetricData { metric_type: MetricType::Gauge, unit: "By".into(), value: Number::U64(number), start: None };
        builder.event(head).metric(metric);
    }
    builder.take()
}
