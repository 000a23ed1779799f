//! A simulated tracer that sends to a Datadog agent over HTTP: traces of a shop, its statistics, metrics and profiles.
//!
//! It behaves as ddtrace: one body at a time, and the same body again when the answer is late or no success.

mod reports;
mod streaming;

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::Counts;
use super::http::{Upload, Uploader};
use super::rng::Rng;

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TracerDialect {
    /// Maps: the default of dd-trace-js and of the gem `datadog`.
    V04,
    /// A table of strings: the default of ddtrace.
    #[default]
    V05,
    /// Maps with what is known of the process: what an Agent forwards.
    V07,
    /// Streaming strings: the default of dd-trace-go.
    V10,
    /// Statistics of groups of spans.
    Stats,
    /// Lines of metrics.
    DogStatsD,
    /// Profiles of processor time.
    Profiles,
}

impl TracerDialect {
    /// All of them, with their names.
    pub const ALL: [(&str, TracerDialect); 7] = [
        ("v0.4", TracerDialect::V04),
        ("v0.5", TracerDialect::V05),
        ("v0.7", TracerDialect::V07),
        ("v1.0", TracerDialect::V10),
        ("stats", TracerDialect::Stats),
        ("dogstatsd", TracerDialect::DogStatsD),
        ("profiles", TracerDialect::Profiles),
    ];
}

/// One process. Equal arguments give equal bodies.
#[derive(Debug)]
pub struct Tracer {
    rng: Rng,
    dialect: TracerDialect,
    runtime_id: String,
    pid: u64,
    now_nanos: u64,
}

/// A span of version 0.4; absent fields are left out, as ddtrace does.
#[derive(Debug, Serialize)]
struct Span {
    service: &'static str,
    name: &'static str,
    resource: &'static str,
    trace_id: u64,
    span_id: u64,
    #[serde(skip_serializing_if = "is_zero")]
    parent_id: u64,
    start: i64,
    duration: i64,
    #[serde(skip_serializing_if = "is_zero")]
    error: u64,
    meta: BTreeMap<&'static str, String>,
    metrics: BTreeMap<&'static str, f64>,
    r#type: &'static str,
}

/// A span of version 0.5: 12 fields, with numbers of the table instead of texts.
type TableSpan = (u32, u32, u32, u64, u64, u64, i64, i64, u64, BTreeMap<u32, u32>, BTreeMap<u32, f64>, u32);

const REQUESTS: [(&str, &str); 4] =
    [("GET /cart", "/cart"), ("POST /orders", "/orders"), ("GET /products/{id}", "/products/7"), ("GET /", "/")];
const QUERIES: [&str; 3] = [
    "SELECT * FROM products WHERE id = ?",
    "INSERT INTO orders (cart_id, total) VALUES (?, ?)",
    "UPDATE carts SET total = ? WHERE id = ?",
];
/// The most database spans of a request.
const MOST_QUERIES: u64 = 4;

impl Tracer {
    /// A process that has not sent anything. `seed` and `connection` (its number in a run) determine everything but the time.
    pub fn new(seed: u64, connection: u64, now_unix_nanos: u64, dialect: TracerDialect) -> Self {
        let mut rng = Rng::new(seed, connection);
        let runtime_id = format!("{:016x}{:016x}", rng.next(), rng.next());
        let pid = 1000 + rng.below(30_000);
        Tracer { rng, dialect, runtime_id, pid, now_nanos: now_unix_nanos }
    }

    /// The next request, with this many spans, groups, lines or stacks.
    ///
    /// # Errors
    /// None that is expected: what it sends can be encoded.
    pub fn request(&mut self, events: u64) -> io::Result<Vec<u8>> {
        Ok(self.upload(events, "tributary")?.request)
    }

    /// Chunks with this many spans.
    fn chunks(&mut self, spans: u64) -> Vec<Vec<Span>> {
        let (mut left, mut chunks) = (spans, Vec::new());
        while left > 0 {
            let most = 1 + self.rng.below(1 + MOST_QUERIES);
            let chunk = self.chunk(left.min(most));
            left -= chunk.len() as u64;
            chunks.push(chunk);
        }
        chunks
    }

    /// The path, the type and the body of a request, and the number of its chunks.
    fn body(&mut self, events: u64) -> io::Result<(&'static str, String, Vec<u8>, Option<usize>)> {
        let (now, runtime_id) = (self.now_nanos, self.runtime_id.clone());
        let msgpack = "application/msgpack".to_owned();
        match self.dialect {
            TracerDialect::Stats => {
                Ok(("/v0.6/stats", msgpack, reports::stats(&mut self.rng, events, now, &runtime_id)?, None))
            }
            TracerDialect::DogStatsD => {
                let lines = reports::lines(&mut self.rng, events);
                Ok(("/dogstatsd/v2/proxy", "text/plain".to_owned(), lines, None))
            }
            TracerDialect::Profiles => {
                let (content_type, body) = reports::profile(&mut self.rng, events, now, &runtime_id)?;
                Ok(("/profiling/v1/input", content_type, body, None))
            }
            TracerDialect::V04 | TracerDialect::V05 | TracerDialect::V07 | TracerDialect::V10 => {
                let chunks = self.chunks(events);
                let (path, body) = match self.dialect {
                    TracerDialect::V05 => ("/v0.5/traces", rmp_serde::to_vec(&table(&chunks))),
                    TracerDialect::V07 => {
                        ("/v0.7/traces", rmp_serde::to_vec_named(&ProcessPayload::of(&chunks, &runtime_id)))
                    }
                    TracerDialect::V10 => ("/v1.0/traces", Ok(streaming::body(&chunks, &runtime_id))),
                    _ => ("/v0.4/traces", rmp_serde::to_vec_named(&chunks)),
                };
                Ok((path, msgpack, body.map_err(io::Error::other)?, Some(chunks.len())))
            }
        }
    }

    /// A request to the shop: the root, and the queries that it made.
    fn chunk(&mut self, spans: u64) -> Vec<Span> {
        let (resource, path) = *self.rng.pick(&REQUESTS);
        let (trace_id, root) = (self.rng.next() | 1, self.rng.next() | 1);
        let took = 1_000_000 + self.rng.below(200_000_000);
        let start = self.now_nanos.saturating_sub(took) as i64;
        let is_failed = self.rng.one_in(20);
        let mut meta = BTreeMap::from([
            ("_dd.p.tid", format!("{:016x}", (self.now_nanos / 1_000_000_000) << 32)),
            ("_dd.p.dm", "-1".to_owned()),
            ("component", "flask".to_owned()),
            ("env", "prod".to_owned()),
            ("http.method", resource.split(' ').next().unwrap_or_default().to_owned()),
            ("http.status_code", if is_failed { "500" } else { "200" }.to_owned()),
            ("http.url", format!("http://shop.example{path}")),
            ("language", "python".to_owned()),
            ("runtime-id", self.runtime_id.clone()),
            ("span.kind", "server".to_owned()),
            ("version", "3.14.1".to_owned()),
        ]);
        if is_failed {
            meta.insert("error.message", "the cart is locked".to_owned());
            meta.insert("error.type", "builtins.RuntimeError".to_owned());
            meta.insert("error.stack", "Traceback (most recent call last):\n  File \"shop.py\", line 41".to_owned());
        }
        let metrics =
            BTreeMap::from([("_dd.top_level", 1.0), ("_sampling_priority_v1", 1.0), ("process_id", self.pid as f64)]);
        let mut all = vec![Span {
            service: "shop",
            name: "flask.request",
            resource,
            trace_id,
            span_id: root,
            parent_id: 0,
            start,
            duration: took as i64,
            error: is_failed.into(),
            meta,
            metrics,
            r#type: "web",
        }];
        for number in 1..spans {
            let part = took / spans.max(1);
            let query: &&str = self.rng.pick(&QUERIES);
            all.push(Span {
                service: "postgres",
                name: "postgres.query",
                resource: query,
                trace_id,
                span_id: self.rng.next() | 1,
                parent_id: root,
                start: start + (number * part) as i64,
                duration: (part / 2) as i64,
                error: 0,
                meta: BTreeMap::from([
                    ("db.system", "postgresql".to_owned()),
                    ("env", "prod".to_owned()),
                    ("span.kind", "client".to_owned()),
                ]),
                metrics: BTreeMap::from([
                    ("db.row_count", self.rng.below(100) as f64),
                    ("network.destination.port", 5432.0),
                ]),
                r#type: "sql",
            });
        }
        all
    }
}

impl Uploader for Tracer {
    fn set_clock(&mut self, unix_nanos: u64) {
        self.now_nanos = self.now_nanos.max(unix_nanos);
    }

    fn upload(&mut self, events: u64, host: &str) -> io::Result<Upload> {
        let (path, content_type, body, count) = self.body(events)?;
        let count = count.map(|count| format!("X-Datadog-Trace-Count: {count}\r\n")).unwrap_or_default();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             {count}Datadog-Meta-Lang: python\r\nDatadog-Meta-Lang-Version: 3.12.3\r\n\
             Datadog-Meta-Lang-Interpreter: CPython\r\nDatadog-Meta-Tracer-Version: 4.16.0\r\n\
             Datadog-Client-Computed-Top-Level: true\r\n\r\n",
            body.len(),
        );
        Ok(Upload { request: [head.as_bytes(), &body].concat(), counts: Counts { messages: 1, events } })
    }
}

/// A body of version 0.7.
#[derive(Serialize)]
struct ProcessPayload<'a> {
    language_name: &'a str,
    tracer_version: &'a str,
    runtime_id: &'a str,
    env: &'a str,
    hostname: &'a str,
    app_version: &'a str,
    tags: BTreeMap<&'a str, &'a str>,
    chunks: Vec<ProcessChunk<'a>>,
}

#[derive(Serialize)]
struct ProcessChunk<'a> {
    priority: i32,
    origin: &'a str,
    spans: &'a [Span],
    tags: BTreeMap<&'a str, &'a str>,
    dropped_trace: bool,
}

impl<'a> ProcessPayload<'a> {
    fn of(chunks: &'a [Vec<Span>], runtime_id: &'a str) -> Self {
        let chunk = |spans: &'a Vec<Span>| ProcessChunk {
            priority: 1,
            origin: "",
            spans,
            tags: BTreeMap::from([("_dd.p.dm", "-1")]),
            dropped_trace: false,
        };
        ProcessPayload {
            language_name: "python",
            tracer_version: "4.16.0",
            runtime_id,
            env: "prod",
            hostname: "web-1",
            app_version: "3.14.1",
            tags: BTreeMap::from([("_dd.git.commit.sha", "7f3a")]),
            chunks: chunks.iter().map(chunk).collect(),
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The table of strings, and the chunks.
fn table(chunks: &[Vec<Span>]) -> (Vec<String>, Vec<Vec<TableSpan>>) {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::from([(String::new(), 0)]);
    let mut number = |text: &str| {
        let next = numbers.len() as u32;
        *numbers.entry(text.to_owned()).or_insert(next)
    };
    let mut spans = Vec::new();
    for chunk in chunks {
        let of_span = |span: &Span| {
            (
                number(span.service),
                number(span.name),
                number(span.resource),
                span.trace_id,
                span.span_id,
                span.parent_id,
                span.start,
                span.duration,
                span.error,
                span.meta.iter().map(|(key, value)| (number(key), number(value))).collect(),
                span.metrics.iter().map(|(key, value)| (number(key), *value)).collect(),
                number(span.r#type),
            )
        };
        spans.push(chunk.iter().map(of_span).collect());
    }
    let mut texts: Vec<_> = numbers.into_iter().collect();
    texts.sort_by_key(|(_, number)| *number);
    (texts.into_iter().map(|(text, _)| text).collect(), spans)
}
