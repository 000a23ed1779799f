//! A simulated program with an OpenTelemetry SDK: traces, logs, metrics and profiles of a shop as protobuf over HTTP.

use std::io;

use tributary_codec::protobuf::{
    push_bytes_field, push_fixed32_field, push_fixed64_field, push_message, push_varint_field,
};

use super::Counts;
use super::http::{Upload, Uploader};
use super::otlp_profile::{push_dictionary, push_profile};
use super::rng::Rng;

/// What a program sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub enum OtlpDialect {
    #[default]
    Traces,
    Logs,
    Metrics,
    Profiles,
}

impl OtlpDialect {
    /// Every dialect, with its name.
    pub const ALL: [(&'static str, OtlpDialect); 4] = [
        ("traces", OtlpDialect::Traces),
        ("logs", OtlpDialect::Logs),
        ("metrics", OtlpDialect::Metrics),
        ("profiles", OtlpDialect::Profiles),
    ];

    fn path(self) -> &'static str {
        match self {
            OtlpDialect::Traces => "/v1/traces",
            OtlpDialect::Logs => "/v1/logs",
            OtlpDialect::Metrics => "/v1/metrics",
            OtlpDialect::Profiles => "/v1development/profiles",
        }
    }
}

/// One program.
#[derive(Debug)]
pub struct OtlpProgram {
    rng: Rng,
    dialect: OtlpDialect,
    instance: String,
    pid: u64,
    now_nanos: u64,
    /// Values of counters.
    orders: u64,
}

const ROUTES: [(&str, &str, &str); 4] = [
    ("GET /cart", "GET", "/cart"),
    ("POST /orders", "POST", "/orders"),
    ("GET /products/{id}", "GET", "/products/{id}"),
    ("GET /", "GET", "/"),
];
const QUERIES: [&str; 3] = ["SELECT shop.products", "INSERT shop.orders", "UPDATE shop.carts"];
/// The most spans of a request, beside its root.
const MOST_QUERIES: u64 = 4;

/// Flags of a span: whether its parent is remote is known.
const FLAGS: u32 = 0x100;

/// The value of an attribute.
enum SentValue<'a> {
    Text(&'a str),
    Int(u64),
}

fn push_attribute(out: &mut Vec<u8>, field: u8, key: &str, value: SentValue<'_>) {
    push_message(out, field, 1, |out| {
        push_bytes_field(out, 1, key.as_bytes());
        push_message(out, 2, 1, |out| match value {
            SentValue::Text(text) => push_bytes_field(out, 1, text.as_bytes()),
            SentValue::Int(number) => push_varint_field(out, 3, number),
        });
    });
}

impl OtlpProgram {
    /// A program that has not sent anything. `seed` and `connection` (its number in a run) determine everything but the time.
    pub fn new(seed: u64, connection: u64, now_unix_nanos: u64, dialect: OtlpDialect) -> Self {
        let mut rng = Rng::new(seed, connection);
        let instance = format!("{:016x}{:016x}", rng.next(), rng.next());
        let pid = 1000 + rng.below(30_000);
        OtlpProgram { rng, dialect, instance, pid, now_nanos: now_unix_nanos, orders: 0 }
    }

    /// The next request, with this many spans, logs, points or samples.
    ///
    /// # Errors
    /// None that is expected.
    pub fn request(&mut self, events: u64) -> io::Result<Vec<u8>> {
        Ok(self.upload(events, "tributary")?.request)
    }

    /// The body of a request.
    fn body(&mut self, events: u64) -> Vec<u8> {
        let mut out = Vec::new();
        push_message(&mut out, 1, 3, |out| {
            push_message(out, 1, 2, |out| self.push_resource(out));
            push_message(out, 2, 3, |out| {
                push_message(out, 1, 1, |out| {
                    push_bytes_field(out, 1, b"shop.http");
                    push_bytes_field(out, 2, b"3.14.1");
                });
                match self.dialect {
                    OtlpDialect::Traces => self.push_spans(out, events),
                    OtlpDialect::Logs => (0..events).for_each(|_| self.push_log(out)),
                    OtlpDialect::Metrics => self.push_metrics(out, events),
                    OtlpDialect::Profiles => push_profile(out, &mut self.rng, self.now_nanos, events),
                }
            });
        });
        if self.dialect == OtlpDialect::Profiles {
            push_dictionary(&mut out);
        }
        out
    }

    fn push_resource(&self, out: &mut Vec<u8>) {
        for (key, text) in [
            ("service.name", "shop"),
            ("service.version", "3.14.1"),
            ("service.instance.id", &self.instance),
            ("deployment.environment.name", "prod"),
            ("telemetry.sdk.name", "opentelemetry"),
            ("telemetry.sdk.language", "python"),
            ("telemetry.sdk.version", "1.42.1"),
        ] {
            push_attribute(out, 1, key, SentValue::Text(text));
        }
        push_attribute(out, 1, "process.pid", SentValue::Int(self.pid));
    }

    /// Requests to the shop: each a root, and the queries that it made.
    fn push_spans(&mut self, out: &mut Vec<u8>, spans: u64) {
        let mut left = spans;
        while left > 0 {
            let count = (1 + self.rng.below(1 + MOST_QUERIES)).min(left);
            left -= count;
            self.push_trace(out, count);
        }
    }

    fn push_trace(&mut self, out: &mut Vec<u8>, spans: u64) {
        let trace_id = [(self.rng.next() | 1).to_be_bytes(), (self.rng.next() | 1).to_be_bytes()].concat();
        let root = (self.rng.next() | 1).to_be_bytes();
        let took = 1_000_000 + self.rng.below(200_000_000);
        let start = self.now_nanos.saturating_sub(took);
        let (name, method, route) = *self.rng.pick(&ROUTES);
        let is_failed = self.rng.one_in(20);
        push_message(out, 2, 2, |out| {
            push_bytes_field(out, 1, &trace_id);
            push_bytes_field(out, 2, &root);
            push_bytes_field(out, 5, name.as_bytes());
            push_varint_field(out, 6, 2);
            push_fixed64_field(out, 7, start);
            push_fixed64_field(out, 8, start + took);
            push_attribute(out, 9, "http.request.method", SentValue::Text(method));
            push_attribute(out, 9, "http.route", SentValue::Text(route));
            push_attribute(out, 9, "http.response.status_code", SentValue::Int(if is_failed { 500 } else { 200 }));
            push_attribute(out, 9, "url.scheme", SentValue::Text("https"));
            push_attribute(out, 9, "server.address", SentValue::Text("shop.example"));
            push_attribute(out, 9, "network.protocol.version", SentValue::Text("1.1"));
            if is_failed {
                push_message(out, 11, 1, |out| {
                    push_fixed64_field(out, 1, start + took / 2);
                    push_bytes_field(out, 2, b"exception");
                    push_attribute(out, 3, "exception.type", SentValue::Text("RuntimeError"));
                    push_attribute(out, 3, "exception.message", SentValue::Text("the cart is locked"));
                });
                push_message(out, 15, 1, |out| push_varint_field(out, 3, 2));
            }
            push_fixed32_field(out, 16, FLAGS);
        });
        for number in 1..spans {
            let (part, query) = (took / spans, *self.rng.pick(&QUERIES));
            let span_id = (self.rng.next() | 1).to_be_bytes();
            push_message(out, 2, 2, |out| {
                push_bytes_field(out, 1, &trace_id);
                push_bytes_field(out, 2, &span_id);
                push_bytes_field(out, 4, &root);
                push_bytes_field(out, 5, query.as_bytes());
                push_varint_field(out, 6, 3);
                push_fixed64_field(out, 7, start + number * part);
                push_fixed64_field(out, 8, start + number * part + part / 2);
                push_attribute(out, 9, "db.system.name", SentValue::Text("postgresql"));
                push_attribute(out, 9, "db.namespace", SentValue::Text("shop"));
                push_attribute(out, 9, "server.address", SentValue::Text("db-1"));
                push_attribute(out, 9, "server.port", SentValue::Int(5432));
                push_fixed32_field(out, 16, FLAGS);
            });
        }
    }

    fn push_log(&mut self, out: &mut Vec<u8>) {
        let (trace_id, span_id) = ([1 + self.rng.below(250) as u8; 16], [1 + self.rng.below(250) as u8; 8]);
        let order = self.rng.below(100_000);
        let is_warning = self.rng.one_in(10);
        push_message(out, 2, 2, |out| {
            push_fixed64_field(out, 1, self.now_nanos);
            push_varint_field(out, 2, if is_warning { 13 } else { 9 });
            push_bytes_field(out, 3, if is_warning { b"WARN" } else { b"INFO" });
            push_message(out, 5, 1, |out| {
                push_bytes_field(out, 1, format!("order {order} was paid").as_bytes());
            });
            push_attribute(out, 6, "code.function.name", SentValue::Text("shop.orders.pay"));
            push_attribute(out, 6, "code.line.number", SentValue::Int(41));
            push_fixed32_field(out, 8, 1);
            push_bytes_field(out, 9, &trace_id);
            push_bytes_field(out, 10, &span_id);
            push_fixed64_field(out, 11, self.now_nanos);
        });
    }

    /// A sum and a gauge, whose points alternate.
    fn push_metrics(&mut self, out: &mut Vec<u8>, points: u64) {
        for number in 0..points {
            let (is_sum, region) = (number % 2 == 0, ["eu", "us", "ap"][self.rng.below(3) as usize]);
            self.orders += 1 + self.rng.below(5);
            let value = if is_sum { self.orders } else { self.rng.below(1 << 30) };
            let (name, unit) = if is_sum { ("shop.orders", "{order}") } else { ("process.memory.usage", "By") };
            push_message(out, 2, 1, |out| {
                push_bytes_field(out, 1, name.as_bytes());
                push_bytes_field(out, 3, unit.as_bytes());
                push_message(out, if is_sum { 7 } else { 5 }, 1, |out| {
                    push_message(out, 1, 1, |out| {
                        push_fixed64_field(out, 2, self.now_nanos.saturating_sub(10_000_000_000));
                        push_fixed64_field(out, 3, self.now_nanos);
                        push_fixed64_field(out, 6, value);
                        push_attribute(out, 7, "cloud.region", SentValue::Text(region));
                    });
                    if is_sum {
                        push_varint_field(out, 2, 2);
                        push_varint_field(out, 3, 1);
                    }
                });
            });
        }
    }
}

impl Uploader for OtlpProgram {
    fn set_clock(&mut self, unix_nanos: u64) {
        self.now_nanos = self.now_nanos.max(unix_nanos);
    }

    fn upload(&mut self, events: u64, host: &str) -> io::Result<Upload> {
        let (path, body) = (self.dialect.path(), self.body(events));
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: OTel-OTLP-Exporter-Python/1.42.1\r\n\
             Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
            body.len(),
        );
        Ok(Upload { request: [head.as_bytes(), &body].concat(), counts: Counts { messages: 1, events } })
    }
}
