//! What a tracer sends beside its traces: statistics, lines of DogStatsD, and profiles.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use tributary_codec::protobuf::{
    push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field, unsigned,
};

use crate::rng::Rng;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct StatsBody<'a> {
    hostname: &'a str,
    env: &'a str,
    version: &'a str,
    lang: &'a str,
    tracer_version: &'a str,
    #[serde(rename = "RuntimeID")]
    runtime_id: &'a str,
    sequence: u64,
    stats: Vec<StatsBucket>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct StatsBucket {
    start: u64,
    duration: u64,
    stats: Vec<StatsGroup>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct StatsGroup {
    service: &'static str,
    name: &'static str,
    resource: String,
    r#type: &'static str,
    #[serde(rename = "HTTPStatusCode")]
    status: u64,
    hits: u64,
    errors: u64,
    duration: u64,
    top_level_hits: u64,
    #[serde(with = "bytes")]
    ok_summary: Vec<u8>,
    #[serde(with = "bytes")]
    error_summary: Vec<u8>,
}

mod bytes {
    pub(super) fn serialize<S: serde::Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }
}

const BUCKET_NANOS: u64 = 10_000_000_000;

/// Statistics of this many groups in one bucket of time.
pub(super) fn stats(rng: &mut Rng, groups: u64, now_nanos: u64, runtime_id: &str) -> io::Result<Vec<u8>> {
    let group = |number: u64, rng: &mut Rng| {
        let hits = 1 + rng.below(500);
        let millis: Vec<u64> = (0..8).map(|_| 1 + rng.below(200)).collect();
        StatsGroup {
            service: "shop",
            name: "flask.request",
            resource: format!("GET /products/{number}"),
            r#type: "web",
            status: 200,
            hits,
            errors: 0,
            duration: hits * 3_000_000,
            top_level_hits: hits,
            ok_summary: sketch(&millis),
            error_summary: sketch(&[]),
        }
    };
    let stats = (0..groups).map(|number| group(number, rng)).collect();
    let start = now_nanos / BUCKET_NANOS * BUCKET_NANOS;
    let body = StatsBody {
        hostname: "",
        env: "prod",
        version: "3.14.1",
        lang: "python",
        tracer_version: "4.16.0",
        runtime_id,
        sequence: 1,
        stats: vec![StatsBucket { start, duration: BUCKET_NANOS, stats }],
    };
    rmp_serde::to_vec_named(&body).map_err(io::Error::other)
}

/// A sketch of durations in milliseconds, with bins of 1 % as the tracers' ones have.
fn sketch(millis: &[u64]) -> Vec<u8> {
    let gamma = 1.015_625_f64;
    let mut bins: BTreeMap<i64, f64> = BTreeMap::new();
    for duration in millis {
        let index = ((*duration as f64 * 1e6).ln() / gamma.ln()).ceil() as i64;
        *bins.entry(index).or_default() += 1.0;
    }
    let mut out = Vec::new();
    push_message(&mut out, 1, 1, |out| push_fixed64_field(out, 1, gamma.to_bits()));
    push_message(&mut out, 2, 2, |out| {
        for (index, count) in bins {
            // An index is a number of 32 bits with its sign in the lowest.
            push_message(out, 1, 1, |out| {
                push_varint_field(out, 1, unsigned(index));
                push_fixed64_field(out, 2, count.to_bits());
            });
        }
    });
    out
}

const METRICS: [&str; 4] = ["shop.cart.items", "shop.orders", "shop.checkout.time", "shop.visitors"];

/// This many lines of DogStatsD, of every type; now and then one that is no line, as a client with a bug writes it.
pub(super) fn lines(rng: &mut Rng, lines: u64) -> Vec<u8> {
    let mut text = String::new();
    for _ in 0..lines {
        let (name, value, shard) = (rng.pick(&METRICS), rng.below(1000), rng.below(8));
        let line = match rng.below(64) {
            0 => writeln!(text, "{name} {value}"),
            1..16 => writeln!(text, "{name}:{value}|c|@0.5|#service:shop,env:prod,shard:{shard}"),
            16..32 => writeln!(text, "{name}:{value}|g|#service:shop,env:prod,shard:{shard}|c:ci-1"),
            32..48 => writeln!(text, "{name}:{value}:{shard}|d|#service:shop,env:prod"),
            48..56 => writeln!(text, "{name}:{value}|ms|#service:shop,env:prod"),
            _ => writeln!(text, "{name}:u{value}|s|#service:shop,env:prod"),
        };
        // A text takes everything.
        let _ = line;
    }
    text.into_bytes()
}

const FUNCTIONS: [&str; 6] = ["checkout", "total", "render", "query", "encode", "wait"];
/// What begins each part of a form.
const BOUNDARY: &str = "shop-7f3a";

/// A form with a profile of this many stacks, and its content type.
pub(super) fn profile(rng: &mut Rng, stacks: u64, now_nanos: u64, runtime_id: &str) -> io::Result<(String, Vec<u8>)> {
    let time = |nanos: u64| jiff::Timestamp::from_nanosecond(nanos.into()).map(|time| time.to_string());
    let start = time(now_nanos.saturating_sub(60_000_000_000)).map_err(io::Error::other)?;
    let end = time(now_nanos).map_err(io::Error::other)?;
    let event = serde_json::json!({
        "attachments": ["profile.pprof"], "start": start, "end": end, "family": "python", "version": "4",
        "tags_profiler": format!(
            "service:shop,env:prod,version:3.14.1,language:python,runtime:CPython,runtime-id:{runtime_id},profiler_version:4.16.0"
        ),
    });
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&pprof(rng, stacks, now_nanos))?;
    let pprof = gzip.finish()?;
    let mut body = Vec::new();
    for (name, content) in [("event.json", event.to_string().into_bytes()), ("profile.pprof", pprof)] {
        let part = if name == "event.json" { "event" } else { name };
        write!(body, "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{part}\"; filename=\"{name}\"\r\n\r\n")?;
        body.extend_from_slice(&content);
        body.extend_from_slice(b"\r\n");
    }
    write!(body, "--{BOUNDARY}--\r\n")?;
    Ok((format!("multipart/form-data; boundary={BOUNDARY}"), body))
}

fn pprof(rng: &mut Rng, stacks: u64, now_nanos: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let texts =
        ["", "cpu-time", "nanoseconds", "cpu-samples", "count", "thread name", "MainThread", "/srv/shop/app.py"];
    let first = texts.len() as u64;
    for (of, unit) in [(1, 2), (3, 4)] {
        push_message(&mut out, 1, 1, |out| {
            push_varint_field(out, 1, of);
            push_varint_field(out, 2, unit);
        });
    }
    for _ in 0..stacks {
        let depth = 1 + rng.below(12);
        let locations: Vec<u64> = (0..depth).map(|_| 1 + rng.below(FUNCTIONS.len() as u64)).collect();
        let count = 1 + rng.below(20);
        push_message(&mut out, 2, 1, |out| {
            let packed = |numbers: &[u64]| {
                let mut packed = Vec::new();
                numbers.iter().for_each(|number| push_varint(&mut packed, *number));
                packed
            };
            push_bytes_field(out, 1, &packed(&locations));
            push_bytes_field(out, 2, &packed(&[count * 10_000_000, count]));
            push_message(out, 3, 1, |out| {
                push_varint_field(out, 1, 5);
                push_varint_field(out, 2, 6);
            });
        });
    }
    for number in 1..=FUNCTIONS.len() as u64 {
        push_message(&mut out, 4, 1, |out| {
            push_varint_field(out, 1, number);
            push_message(out, 4, 1, |out| {
                push_varint_field(out, 1, number);
                push_varint_field(out, 2, 10 * number);
            });
        });
        push_message(&mut out, 5, 1, |out| {
            push_varint_field(out, 1, number);
            push_varint_field(out, 2, first + number - 1);
            push_varint_field(out, 4, 7);
        });
    }
    texts.iter().chain(&FUNCTIONS).for_each(|text| push_bytes_field(&mut out, 6, text.as_bytes()));
    push_varint_field(&mut out, 9, now_nanos.saturating_sub(60_000_000_000));
    push_varint_field(&mut out, 10, 60_000_000_000);
    out
}
