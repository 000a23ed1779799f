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
    // The stacks of each service have every span, below the spans of the same service that have called it.
    let line_of: BTreeMap<&str, &Value> =
        lines.iter().map(|line| (line["span"]["span_id"].as_str().unwrap(), line)).collect();
    let mut paths: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for line in &lines {
        let (own, mut path, mut at) = (service(line), line["name"].as_str().unwrap().to_owned(), line);
        while let Some(caller) = at["span"]["parent_span_id"].as_str().map(|parent| line_of[parent])
            && service(caller) == own
        {
            path = format!("{};{path}", caller["name"].as_str().unwrap());
            at = caller;
        }
        *paths.entry(own).or_default().entry(path).or_default() += 1;
    }
    let profiles = json(&daemon, "profiles").await;
    assert_eq!(profiles["coverage"]["kept"], spans.len());
    assert_eq!(array(&profiles, "profiles").len() as u64, SERVICES);
    for profile in array(&profiles, "profiles") {
        let agent = text(profile, "agent");
        let flame = json(&daemon, &format!("profiles/flame?type=calls&agent={}", encoded(&agent))).await;
        let (nodes, mut found, mut names) = (&flame["nodes"], BTreeMap::new(), Vec::new());
        for (at, calls) in array(nodes, "self").iter().enumerate() {
            let name = flame["names"][nodes["name"][at].as_u64().unwrap() as usize].as_str().unwrap();
            let path = match nodes["parent"][at].as_u64() {
                Some(parent) => format!("{};{name}", names[parent as usize]),
                None => name.to_owned(),
            };
            found.insert(path.clone(), calls.as_u64().unwrap());
            names.push(path);
        }
        found.retain(|_, calls| *calls > 0);
        let name = agent.split(" (").next().unwrap();
        // A number at the end of a frame would be the value of a folded stack.
        let expected = paths[name].iter().map(|(path, calls)| (path.replace("operation ", "operation_"), *calls));
        assert_eq!(found, expected.collect::<BTreeMap<_, _>>(), "{agent}");
    }
}

#[tokio::test]
async fn requests_and_durations_of_operations_are_exported_as_metrics() {
    let settings = SETTINGS.replace("[view]", "[view]\nexport = \"1s\"");
    assert!(settings.contains("export"), "{SETTINGS}");
    let daemon = Daemon::start(&format!(
        "{settings}[listeners.test]\nprotocol = \"otlp\"\nlisten = \"127.0.0.1:0\"\ngrpc = \"\"\nquarantine.dir = \"\"\nacknowledge = \"written\"\n"
    ))
    .await;
    let mut traffic = Traffic { state: 0x5EED_1234_5678_9ABC };
    let spans: Vec<Sent> = (0..200).flat_map(|trace| traffic.trace(trace)).collect();
    let (first, rest) = spans.split_at(spans.len() / 2);
    export(&daemon, first).await;
    daemon.until_named("traces.span.metrics.calls").await;
    export(&daemon, rest).await;
    // The stop exports the rest.
    let events = daemon.stop().await.events;
    let of = |name: &str| {
        let metrics = events.iter().filter(|event| event["name"] == name);
        metrics.cloned().collect::<Vec<Value>>()
    };
    let (calls, durations) = (of("traces.span.metrics.calls"), of("traces.span.metrics.duration"));
    let mut expected: BTreeMap<(String, String, bool), (u64, f64)> = BTreeMap::new();
    for span in &spans {
        let key = (format!("service {}", span.service), format!("operation {}", span.operation), span.is_error);
        let sums = expected.entry(key).or_default();
        (sums.0, sums.1) = (sums.0 + 1, sums.1 + span.nanos as f64 / 1e6);
    }
    let sums = |metrics: &[Value], value: &dyn Fn(&Value) -> f64| {
        let mut sums: BTreeMap<(String, String, bool), f64> = BTreeMap::new();
        for metric in metrics {
            assert_eq!(metric["origin"]["protocol"], "tributary");
            assert_eq!(metric["metric"]["temporality"], "delta");
            let text = |of: &Value| of.as_str().unwrap().to_owned();
            let is_error = metric["attributes"]["status.code"] == "STATUS_CODE_ERROR";
            let key = (text(&metric["resource"]["service.name"]), text(&metric["attributes"]["span.name"]), is_error);
            *sums.entry(key).or_default() += value(&metric["metric"]);
        }
        sums
    };
    let counts = sums(&calls, &|metric| metric["value"].as_f64().unwrap());
    let expected_counts = expected.iter().map(|(key, (count, _))| (key.clone(), *count as f64));
    assert_eq!(counts, expected_counts.collect::<BTreeMap<_, _>>());
    let buckets = |metric: &Value| {
        let counts = metric["positive"]["counts"].as_array().unwrap();
        counts.iter().map(|count| count.as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!(sums(&durations, &buckets), counts);
    for (key, millis) in sums(&durations, &|metric| metric["sum"].as_f64().unwrap()) {
        let exact = expected[&key].1;
        assert!((millis - exact).abs() <= exact * 1e-9, "{key:?}: {millis}, not {exact}");
    }
}
