//! Services: their sums are those of every span, by the lines that the daemon writes.

use std::collections::BTreeMap;

use tributary_codec::protobuf::{push_bytes_field, push_fixed64_field, push_message, push_varint_field};

use super::*;

/// Spans of many services, whose parents are in other requests, before or behind them.
struct Traffic {
    state: u64,
}

#[derive(Clone)]
struct Sent {
    service: u64,
    operation: u64,
    trace: u64,
    id: u64,
    parent: u64,
    kind: u64,
    nanos: u64,
    is_error: bool,
}

const SERVICES: u64 = 50;
const START: u64 = 1_795_176_900_000_000_000;

impl Traffic {
    fn below(&mut self, limit: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % limit
    }

    /// A trace: a root, and spans whose parents are among those before them.
    fn trace(&mut self, trace: u64) -> Vec<Sent> {
        let count = 1 + self.below(9);
        let mut spans: Vec<Sent> = Vec::new();
        for number in 0..count {
            let parent = if number == 0 { 0 } else { spans[self.below(number) as usize].id };
            let caller = spans.iter().find(|span| span.id == parent).map(|span| span.service);
            // Each service calls some others.
            let service = match (caller, self.below(2)) {
                (Some(caller), 0) => caller,
                (Some(caller), _) => (caller + 1 + self.below(12)) % SERVICES,
                (None, _) => self.below(SERVICES),
            };
            let magnitude = self.below(30);
            spans.push(Sent {
                service,
                operation: self.below(5),
                trace,
                id: trace * 100 + number + 1,
                parent,
                kind: self.below(6),
                nanos: 1000 + self.below(1 << (10 + magnitude)),
                is_error: self.below(20) == 0,
            });
        }
        spans
    }
}

/// One request with these spans, each with its resource.
fn body(spans: &[Sent]) -> Vec<u8> {
    let mut out = Vec::new();
    for span in spans {
        push_message(&mut out, 1, 2, |out| {
            push_message(out, 1, 1, |out| {
                push_message(out, 1, 1, |out| {
                    push_bytes_field(out, 1, b"service.name");
                    push_message(out, 2, 1, |out| {
                        push_bytes_field(out, 1, format!("service {}", span.service).as_bytes());
                    });
                });
            });
            push_message(out, 2, 1, |out| {
                push_message(out, 2, 1, |out| {
                    push_bytes_field(out, 1, &u128::from(span.trace + 1).to_be_bytes());
                    push_bytes_field(out, 2, &span.id.to_be_bytes());
                    if span.parent > 0 {
                        push_bytes_field(out, 4, &span.parent.to_be_bytes());
                    }
                    push_bytes_field(out, 5, format!("operation {}", span.operation).as_bytes());
                    push_varint_field(out, 6, span.kind);
                    push_fixed64_field(out, 7, START);
                    push_fixed64_field(out, 8, START + span.nanos);
                    if span.is_error {
                        push_message(out, 15, 1, |out| push_varint_field(out, 3, 2));
                    }
                });
            });
        });
    }
    out
}

async fn export(daemon: &Daemon, spans: &[Sent]) {
    let body = body(spans);
    let address = daemon.server.address().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).await.unwrap();
    let mut answer = Vec::new();
    within("an answer", stream.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

/// Counts, errors and durations by name.
type Rows = BTreeMap<String, (u64, u64, Vec<u64>)>;

fn add(rows: &mut Rows, name: String, span: &Value) {
    let row = rows.entry(name).or_default();
    row.0 += 1;
    row.1 += u64::from(span["span"]["status"] == "error");
    row.2.push(span["span"]["duration_ns"].as_u64().unwrap());
}

fn check(what: &str, rows: &mut Rows, found: &[(String, &Value)]) {
    let count = |row: &Value, name: &str| row[name].as_u64().unwrap();
    let shown: BTreeMap<_, _> =
        found.iter().map(|(name, row)| (name, (count(row, "count"), count(row, "errors")))).collect();
    let expected: BTreeMap<_, _> = rows.iter().map(|(name, row)| (name, (row.0, row.1))).collect();
    assert_eq!(shown, expected, "{what}");
    for (name, row) in found {
        let durations = &mut rows.get_mut(name).unwrap().2;
        durations.sort_unstable();
        for (key, share) in [("p50_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99)] {
            let rank = (share * durations.len() as f64).ceil() as usize;
            let (exact, found) = (durations[rank.max(1) - 1] as f64, row[key].as_f64().unwrap());
            assert!((found - exact).abs() <= exact * 0.01, "{what} {name} {key}: {found}, not {exact}");
        }
    }
}

#[tokio::test]
async fn sums_of_services_are_those_of_every_span() {
    let daemon = Daemon::start(&format!(
        "{SETTINGS}[listeners.test]\nprotocol = \"otlp\"\nlisten = \"127.0.0.1:0\"\ngrpc = \"\"\nquarantine.dir = \"\"\nacknowledge = \"written\"\n"
    ))
    .await;
    let mut traffic = Traffic { state: 0x5EED_1234_5678_9ABC };
    let mut spans: Vec<Sent> = (0..4000).flat_map(|trace| traffic.trace(trace)).collect();
    // Children before their parents, in other requests.
    for at in (1..spans.len()).rev() {
        let near = at.saturating_sub(traffic.below(300) as usize);
        spans.swap(at, near);
    }
    for part in spans.chunks(500) {
        export(&daemon, part).await;
    }
    let lines: Vec<Value> = daemon.events().into_iter().filter(|event| event["kind"] == "span").collect();
    assert_eq!(lines.len(), spans.len());
    let service = |line: &Value| line["resource"]["service.name"].as_str().unwrap().to_owned();
    let of_id: BTreeMap<String, String> =
        lines.iter().map(|line| (line["span"]["span_id"].as_str().unwrap().to_owned(), service(line))).collect();
    let (mut entries, mut operations, mut edges) = (Rows::new(), Rows::new(), Rows::new());
    for line in &lines {
        let (own, kind) = (service(line), line["span"]["kind"].as_str());
        add(&mut operations, format!("{own}/{}/{}", kind.unwrap_or(""), line["name"].as_str().unwrap()), line);
        let caller = line["span"]["parent_span_id"].as_str().map(|parent| of_id[parent].clone());
        let is_entry = caller.as_ref().is_none_or(|caller| *caller != own);
        if is_entry || matches!(kind, Some("server" | "consumer")) {
            add(&mut entries, own.clone(), line);
        }
        if let Some(caller) = caller.filter(|caller| *caller != own) {
            add(&mut edges, format!("{caller} -> {own}"), line);
        }
    }
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or("").to_owned();
    let all = json(&daemon, "services").await;
    let rows: Vec<_> = array(&all, "services").iter().map(|row| (text(row, "name"), row)).collect();
    assert_eq!(rows.len() as u64, SERVICES);
    let steps =
        |row: &Value| row["steps"][0].as_array().unwrap().iter().map(|step| step.as_u64().unwrap()).sum::<u64>();
    assert!(rows.iter().all(|(_, row)| steps(row) == row["count"].as_u64().unwrap()));
    check("services", &mut entries, &rows);
    assert_eq!(all["extent"]["spans"], spans.len());
    let mut found = Vec::new();
    for number in 0..SERVICES {
        let name = format!("service {number}");
        let one = json(&daemon, &format!("services/service%20{number}")).await;
        assert_eq!(one["service"]["name"], *name);
        let entries = one["service"]["count"].as_u64().unwrap();
        let heat = array(&one["heat"], "minutes").iter().flat_map(|minute| array(minute, "cells"));
        assert_eq!(heat.map(|cell| cell[2].as_u64().unwrap()).sum::<u64>(), entries, "the cells have every entry");
        assert_eq!(array(&one, "history").iter().map(|minute| minute["count"].as_u64().unwrap()).sum::<u64>(), entries);
        found.extend(
            array(&one, "operations")
                .iter()
                .map(|row| (format!("{name}/{}/{}", text(row, "kind"), text(row, "name")), row.clone())),
        );
    }
    check("operations", &mut operations, &found.iter().map(|(name, row)| (name.clone(), row)).collect::<Vec<_>>());
    let map = json(&daemon, "map").await;
    let rows: Vec<_> = array(&map, "edges")
        .iter()
        .map(|row| (format!("{} -> {}", text(row, "caller"), text(row, "callee")), row))
        .collect();
    check("edges", &mut edges, &rows);
}
