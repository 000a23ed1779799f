//! Client statistics: the sums of every group, and quantiles from its sketches.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::offline::Offline;

fn cases() -> Vec<(String, Vec<u8>, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog_agent/stats");
    let read = |name: &str| {
        let directory = root.join(name);
        let decoded = serde_json::from_slice(&fs::read(directory.join("1.json")).unwrap()).unwrap();
        (name.to_owned(), fs::read(directory.join("1.bin")).unwrap(), decoded)
    };
    ["js-client-stats", "py4-client-stats"].map(read).into()
}

/// The metrics with this name of a group, by what identifies it.
fn number(events: &[Value], group: &Value, name: &str) -> Option<f64> {
    let is_it = |event: &&Value| {
        event["name"] == name
            && event["resource"]["service.name"] == group["Service"]
            && event["attributes"]["datadog.name"] == group["Name"]
            && event["attributes"]["datadog.resource"] == group["Resource"]
            && event["attributes"]["http.response.status_code"].as_u64().unwrap_or(0)
                == group["HTTPStatusCode"].as_u64().unwrap_or(0)
    };
    events.iter().find(is_it).map(|event| event["metric"]["value"].as_f64().unwrap())
}

#[test]
fn every_group_of_a_recording_gives_its_sums_and_quantiles() {
    for (name, body, decoded) in cases() {
        let mut offline = Offline::new();
        let answered = offline.ask("/v0.6/stats", &[], &body);
        assert_eq!((answered.status, answered.body.as_str()), (200, "{}"), "{name}");
        let mut groups = 0;
        for bucket in decoded["Stats"].as_array().unwrap() {
            for group in bucket["Stats"].as_array().unwrap() {
                groups += 1;
                for (metric, key) in [
                    ("datadog.trace.hits", "Hits"),
                    ("datadog.trace.errors", "Errors"),
                    ("datadog.trace.top_level_hits", "TopLevelHits"),
                    ("datadog.trace.duration", "Duration"),
                ] {
                    let found = number(&answered.events, group, metric);
                    assert_eq!(found, group[key].as_f64(), "{name}: {metric} of {group}");
                }
                let [hits, errors, duration] = ["Hits", "Errors", "Duration"].map(|key| group[key].as_f64().unwrap());
                let max = ["ok", "error"]
                    .map(|of| number(&answered.events, group, &format!("datadog.trace.duration.{of}.max")));
                assert_eq!(max.map(|max| max.is_some()), [hits > errors, errors > 0.0], "{name}: {group}");
                if hits == 1.0 {
                    let max = max.into_iter().flatten().next().unwrap();
                    assert!((max / duration - 1.0).abs() < 0.02, "{name}: {max} of {duration}");
                }
                if let (Some(max), Some(middle)) =
                    (max[0], number(&answered.events, group, "datadog.trace.duration.ok.p50"))
                {
                    assert!(middle <= max && max <= duration * 1.02, "{name}: {middle} {max} of {duration}");
                }
            }
        }
        assert!(groups > 0, "{name}");
        assert!(answered.events.iter().all(|event| event["kind"] == "metric"), "{name}: no loss");
        let event = &answered.events[0];
        assert_eq!(event["metric"]["temporality"], "delta");
        assert!(event["metric"]["start_time"].is_string());
        offline.assert_balance();
    }
}

#[test]
fn a_truncated_body_is_refused_whole_and_a_bad_sketch_leaves_the_sums() {
    let (_, body, _) = cases().remove(1);
    for end in 0..body.len() {
        let mut offline = Offline::new();
        let answered = offline.ask("/v0.6/stats", &[], &body[..end]);
        assert_eq!(answered.status, 400, "{end}");
        assert_eq!((answered.events.len(), &answered.events[0]["loss"]["bytes"]), (1, &end.into()));
        offline.assert_balance();
    }
    let group =
        [&[0x81, 0xA5][..], b"Stats", &[0x91, 0x81, 0xA5], b"Stats", &[0x91, 0x82, 0xA4], b"Hits", &[7, 0xA9]].concat();
    let body = [&group[..], b"OkSummary", &[0xC4, 2, 0x0A, 9]].concat();
    let answered = Offline::new().ask("/v0.6/stats", &[], &body);
    assert_eq!(answered.status, 200, "{}", answered.body);
    assert_eq!(answered.events[0]["metric"]["value"], 7);
    assert_eq!(answered.events.last().unwrap()["loss"]["reason"], "unsupported");
}
