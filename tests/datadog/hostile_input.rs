//! Hostile peers: the memory, output and work that they can cause are bounded, and the events that are written stay valid.

use std::time::Duration;

use crate::hostile_support::wire::{meta, metrics, process, span, string, string_head, trace};
use crate::hostile_support::{Driven, raw};
use tributary::event::Kind;
use tributary::memory::{MemoryBudget, MemoryLease};
use tributary::protocol::End;
use tributary::protocol::datadog::{ListLayout, Options};
use tributary::simulate::datadog::{DatadogDialect, Tracer};

// Events stay valid.

#[test]
fn a_record_cut_both_late_and_immediately_counts_as_one_incomplete_event() {
    let mut options = Options { max_record_entries: 2, ..Options::default() };
    options.max_record_bytes = 10;
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), meta(&[(1, 2)]), string(1, b"key"), string(2, b"a value of more than ten")].concat());
    driven.feed(&metrics(&[(1, 0), (1, 0), (1, 0)]));
    let done = driven.finish(End::Closed);
    assert_eq!(done.of_kind("log").len(), 1);
    let reported: u64 = done.of_kind("loss").iter().map(|event| event["loss"]["events"].as_u64().unwrap()).sum();
    assert_eq!(reported, 1, "{}", done.text);
}

#[test]
fn a_metric_moved_away_from_a_tag_never_has_the_name_of_one_without_a_key() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&[process(0), string(1, b"0000000000000009"), string(2, b"tag")].concat());
    driven.feed(&[span(1, [2; 4]), meta(&[(1, 2)]), metrics(&[(9, 1f64.to_bits()), (1, 2f64.to_bits())])].concat());
    let done = driven.finish(End::Closed);
    let line = done.text.lines().find(|line| line.contains("\"span\":")).unwrap();
    assert_eq!(raw::repeated_keys(line), [""; 0], "{line}");
    let spans = done.of_kind("span");
    assert_eq!(spans[0]["attributes"]["datadog.metric.0000000000000009"].as_f64(), Some(2.0));
    assert_eq!(spans[0]["attributes"]["0000000000000009"], "tag");
}

#[test]
fn a_tag_whose_value_is_never_defined_keeps_its_key() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(
        &[process(0), string(1, b"user"), string(2, b"here"), string(3, b"service.name"), meta(&[(1, 7)])].concat(),
    );
    // Two values of one key that are never defined, one that is; a reserved key; a value that is absent; a metric.
    driven.feed(
        &[span(1, [0; 4]), meta(&[(1, 8), (3, 9), (1, 10), (2, 2), (2, 11), (1, 0)]), metrics(&[(1, 0)])].concat(),
    );
    let done = driven.finish(End::Closed);
    let line = done.text.lines().find(|line| line.contains("\"span\":")).unwrap();
    assert_eq!(raw::repeated_keys(line), [""; 0], "{line}");
    let span = &done.of_kind("span")[0];
    let attributes = &span["attributes"];
    assert_eq!(attributes["datadog.valueless_meta.user"], "000000000000000a", "the last of a key counts: {line}");
    assert_eq!(attributes["datadog.valueless_meta.service.name"], "0000000000000009");
    assert_eq!(attributes["datadog.valueless_meta.here"], "000000000000000b");
    assert_eq!(attributes["here"], "here", "a value that is known stays");
    assert_eq!(attributes["user"].as_f64(), Some(0.0), "no tag has the key of the metric");
    let unresolved = ["0000000000000008", "0000000000000009", "000000000000000a", "000000000000000b"];
    assert_eq!(attributes["datadog.unresolved.meta"], serde_json::json!(unresolved));
    // The process was written unresolved, as an event and as the resource.
    let process = &done.of_kind("log")[0];
    assert_eq!(process["resource"]["datadog.valueless_meta.user"], "0000000000000007", "{}", done.text);
    assert_eq!(process["attributes"]["datadog.unresolved.meta"], "0000000000000007");
}

#[test]
fn keys_without_a_value_are_kept_in_a_record_of_many_entries() {
    let keys = (1..=100).flat_map(|id| string(id, format!("key{id}").as_bytes()));
    let entries: Vec<_> = (1..=100).flat_map(|id| [(id, 1000 + id), (id, 2000 + id)]).collect();
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&[process(0), keys.collect(), span(1, [0; 4]), meta(&entries)].concat());
    let done = driven.finish(End::Closed);
    let span = &done.of_kind("span")[0];
    for id in 1..=100 {
        let value = format!("{:016x}", 2000 + id);
        assert_eq!(span["attributes"][format!("datadog.valueless_meta.key{id}")], value.as_str(), "{}", done.text);
    }
}

#[test]
fn a_late_list_cannot_set_its_owner() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&[process(0), string(1, b"trace_id"), string(2, b"span_id"), span(7, [0; 4])].concat());
    driven.pass(Duration::from_secs(2));
    driven.feed(&meta(&[(1, 1), (2, 2)]));
    let done = driven.finish(End::Closed);
    let line = done.text.lines().last().unwrap();
    assert_eq!(raw::repeated_keys(line), [""; 0], "{line}");
    let events = done.events();
    let late = events.last().unwrap();
    let attributes = &late["attributes"];
    assert_eq!(
        (&late["trace_id"], &attributes["trace_id"]),
        (&"00000000000000000000000000000007".into(), &late["trace_id"])
    );
    assert_eq!(attributes["datadog.meta.trace_id"], "trace_id");
    assert_eq!(attributes["datadog.meta.span_id"], "span_id");
}

#[test]
fn a_padded_late_list_has_its_whole_length() {
    let mut options = Options { list_layout: ListLayout::Padded32, max_record_entries: 1, ..Options::default() };
    options.span_idle = Duration::from_millis(1);
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&process(0));
    driven.pass(Duration::from_secs(1));
    let mut list = metrics(&[(0, 0), (0, 0)]);
    list.resize(515, 0);
    driven.feed(&list);
    let events = driven.finish(End::Closed).events();
    let lengths: Vec<_> = events.iter().map(|event| event["origin"]["length"].as_u64().unwrap()).collect();
    assert_eq!(lengths, [14, 515, 515]);
}

#[test]
fn offline_too_every_record_is_written_when_its_time_is_up() {
    let mut running = crate::common::Running::new(&Options::default());
    running.feed(&[process(0), span(1, [99; 4]).repeat(3000), trace(1)].concat());
    running.pass(Duration::from_secs(10));
    assert_eq!(running.names().iter().filter(|name| *name == "datadog.span").count(), 3000);
}

// Memory: the process-wide budget.

/// Distinct strings of 100 bytes, `count` of them from id `first` on.
fn strings(first: u64, count: u64) -> Vec<u8> {
    (first..first + count).flat_map(|id| string(id, format!("{id:0100}").as_bytes())).collect()
}

#[test]
fn a_connection_with_many_strings_stays_within_the_memory_budget_and_leaves_memory_for_small_ones() {
    let budget = MemoryBudget::new(4 << 20);
    let mut large = Driven::with(&Options::default(), 1 << 20, &budget);
    large.feed(&process(u64::MAX));
    for part in 0..20 {
        large.feed(&strings(part * 1000 + 1, 1000));
        assert!(budget.used() <= budget.limit(), "{} bytes", budget.used());
    }
    assert!(budget.used() > budget.limit() / 2, "the budget can be used: {} bytes", budget.used());
    let mut small: Vec<_> = (0..8).map(|_| Driven::with(&Options::default(), 1 << 20, &budget).keep_lines()).collect();
    small.iter_mut().for_each(|small| small.feed(&[process(0), strings(1, 200)].concat()));
    large.feed(&strings(50_001, 1));
    assert!(budget.used() <= budget.limit(), "{} bytes", budget.used());
    for mut small in small {
        small.feed(&span(1, [1, 50, 100, 200]));
        let done = small.finish(End::Closed);
        assert_eq!(done.of_kind("loss").len(), 0, "{}", done.text);
        assert!(done.of_kind("span")[0]["name"].as_str().unwrap().ends_with("01"));
    }
    drop(large);
    assert_eq!(budget.used(), 0);
}

#[test]
fn waiting_records_count_with_all_their_memory_and_release_it_when_their_time_is_up() {
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&Options::default(), 1 << 20, &budget);
    driven.feed(&process(0));
    for at in 0..4000 {
        let id = 1000 + 8 * at;
        driven.feed(&[span(1, [id, id + 1, id + 2, id + 3]), meta(&[(id + 4, id + 5)])].concat());
    }
    assert_eq!(driven.spans(), 0);
    assert!(budget.used() > 4000 * 6 * 100, "six ids each: {} bytes", budget.used());
    driven.pass(Duration::from_secs(11));
    assert_eq!(driven.spans(), 4000);
    assert!(budget.used() <= MemoryLease::FLOOR, "{} bytes", budget.used());
    drop(driven);
    assert_eq!(budget.used(), 0);
}

#[test]
fn ids_that_are_never_defined_take_no_more_memory_than_the_waiting_limits() {
    let mut options = Options::default();
    options.waiting.bytes = 1 << 20;
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&options, 1 << 20, &budget);
    driven.feed(&process(0));
    let entries: Vec<_> = (0..255).map(|at| (1000 + 2 * at, 1001 + 2 * at)).collect();
    for record in 0..200 {
        driven.feed(&[span(1, [0; 4]), meta(&entries)].concat());
        assert!(budget.used() <= (1 << 20) + 256 * 1024, "{} bytes after {record}", budget.used());
    }
    assert!(driven.warnings("pending_overflow") > 0);
    let done = driven.finish(End::Closed);
    assert_eq!((done.totals.buffered(), done.totals.lost()), (0, 0));
}

#[test]
fn trace_meta_stays_within_the_limits_when_nothing_waits() {
    let mut options = Options::default();
    options.waiting.bytes = 64 * 1024;
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&options, 1 << 20, &budget);
    driven.feed(&[process(0), string(1, b"key"), string(2, b"value")].concat());
    for id in 0..4000 {
        driven.feed(&[trace(id), meta(&[(1, 2); 20])].concat());
    }
    assert!(budget.used() >= 64 * 1024, "it is accounted for: {} bytes", budget.used());
    assert!(budget.used() <= 64 * 1024 + 32 * 1024, "{} bytes", budget.used());
}

#[test]
fn with_waiting_bytes_of_0_no_trace_is_remembered() {
    let mut options = Options::default();
    options.waiting.bytes = 0;
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), string(1, b"key"), trace(7), meta(&[(1, 1)]), span(7, [0; 4])].concat());
    assert!(!driven.finish(End::Closed).text.contains("datadog.trace.meta."));
}

// Amplification: a peer causes no more output than its credit, and then has to wait.

/// Limits under which few bytes show an attack.
fn tight() -> Options {
    let mut options = Options::default();
    (options.amplification.burst, options.amplification.rate) = (1 << 20, 1 << 20);
    options
}

/// Asserts that no more was written than the input, the burst and the elapsed time have earned, plus a margin for the batch in
/// flight and for the inaccuracy of the estimated output.
fn assert_within_credit(driven: &Driven, options: &Options) {
    let earned = options.amplification.ratio * driven.totals().bytes_in
        + options.amplification.burst
        + (options.amplification.rate as f64 * driven.elapsed.as_secs_f64()) as u64;
    let output = driven.output_bytes;
    assert!(output <= earned + earned / 4 + (2 << 20), "{output} bytes were written, {earned} were earned");
}

#[test]
fn repeated_references_to_one_long_string_are_limited_by_the_credit() {
    let options = tight();
    let mut driven = Driven::new(&options);
    driven.feed(&[process(0), string(1, &[b'x'; 65_536]), string(2, b"a"), string(3, b"b")].concat());
    let keys: Vec<_> = (0..40).map(|at| (10 + at, 1)).collect();
    driven.feed(&(0..40).flat_map(|at| string(10 + at, &[b'k', at as u8])).collect::<Vec<_>>());
    for _ in 0..40 {
        driven.feed(&[span(1, [1; 4]), meta(&keys), meta(&keys)].concat());
        assert_within_credit(&driven, &options);
    }
    assert!(driven.held > Duration::from_secs(10), "{:?}", driven.held);
    assert!(driven.longest_line <= 2 << 20, "{} bytes", driven.longest_line);
    assert!(driven.batch_bytes <= 4 << 20, "{} bytes", driven.batch_bytes);
}

#[test]
fn a_process_with_much_meta_is_charged_for_it_with_every_event() {
    let options = tight();
    let mut driven = Driven::new(&options);
    driven.feed(&[process(0), string(1, &[b'x'; 25_000]), string(2, b"a"), string(3, b"b"), string(4, b"c")].concat());
    driven.feed(&meta(&[(2, 1), (3, 1), (4, 1)]));
    for _ in 0..300 {
        driven.feed(&span(1, [0; 4]));
    }
    driven.feed(&trace(1));
    assert_eq!(driven.spans(), 300);
    assert!(driven.held > Duration::from_secs(10), "{:?}", driven.held);
    assert_within_credit(&driven, &options);
}

#[test]
fn names_count_as_output_too() {
    let mut options = tight();
    options.max_text.name = 1 << 20;
    let mut driven = Driven::new(&options);
    driven.feed(&[process(0), string(1, &[b'x'; 65_536])].concat());
    for _ in 0..300 {
        driven.feed(&span(1, [1, 0, 0, 0]));
    }
    assert!(driven.held > Duration::from_secs(10), "{:?}", driven.held);
    assert_within_credit(&driven, &options);
}

#[test]
fn waiting_records_are_charged_before_they_are_written() {
    for is_defined_first in [true, false] {
        let options = tight();
        let text = string(1, &[b'x'; 25_000]);
        let keys: Vec<_> = (0..8).map(|at| (10 + at, 1)).collect();
        let record = [span(1, [99, 0, 0, 0]), meta(&keys)].concat();
        let mut driven = Driven::new(&options);
        driven.feed(&process(0));
        driven.feed(&(0..8).flat_map(|at| string(10 + at, &[b'k', at as u8])).collect::<Vec<_>>());
        if is_defined_first {
            driven.feed(&text);
        }
        for _ in 0..300 {
            driven.feed(&record);
        }
        driven.feed(&trace(1));
        if !is_defined_first {
            driven.feed(&text);
        }
        driven.feed(&trace(2));
        assert!(driven.held > Duration::from_secs(10), "{:?}", driven.held);
        driven.pass(Duration::from_secs(10));
        assert_eq!(driven.spans(), 300);
        assert_within_credit(&driven, &options);
    }
}

#[test]
fn trace_meta_that_every_span_visits_is_charged_even_when_it_adds_nothing() {
    for entry in [(1, 1), (98, 99)] {
        let options = Options { max_trace_entries: 4096, ..tight() };
        let mut driven = Driven::new(&options);
        driven.feed(&[process(0), string(1, b"k"), trace(1)].concat());
        (0..16).for_each(|_| driven.feed(&[meta(&[entry; 255]), metrics(&[])].concat()));
        let spans = span(1, [0; 4]).repeat(300);
        driven.feed(&spans);
        let before = (driven.calls, driven.held);
        driven.feed(&spans);
        assert!(driven.calls > before.0 + 50, "{} turns", driven.calls - before.0);
        assert!(driven.held > before.1 + Duration::from_secs(10), "{:?}", driven.held - before.1);
    }
}

#[test]
fn a_span_has_so_many_entries_of_its_trace_and_the_trace_has_all() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    let names: Vec<_> = (0..1000u64).flat_map(|id| string(10 + id, format!("k{id}").as_bytes())).collect();
    driven.feed(&[process(2000), names, trace(1)].concat());
    let entries: Vec<_> = (0..1000).map(|id| (10 + id, 10 + id)).collect();
    entries.chunks(250).for_each(|entries| driven.feed(&[meta(entries), metrics(&[])].concat()));
    driven.feed(&span(1, [0; 4]));
    let done = driven.finish(End::Closed);
    let of_trace = |event: &serde_json::Value| {
        let attributes = event["attributes"].as_object().unwrap();
        attributes.values().filter(|value| value.as_str().is_some_and(|value| value.starts_with('k'))).count()
    };
    assert_eq!(of_trace(&done.of_kind("span")[0]), 256, "{}", done.text);
    let traces = done.of_kind("log");
    let trace = traces.iter().find(|event| of_trace(event) > 0).unwrap();
    assert_eq!(
        (of_trace(trace), &trace["attributes"]["datadog.warnings"]),
        (1000, &serde_json::json!(["trace_entries_left_out"]))
    );
}

#[test]
fn trace_meta_does_not_displace_the_own_entries_of_a_span_that_fit() {
    let options = Options { max_record_bytes: 100, ..Options::default() };
    let mut driven = Driven::new(&options).keep_lines();
    let texts = [string(1, b"k"), string(2, &[b'x'; 60]), string(3, b"own")].concat();
    driven.feed(&[process(0), texts, trace(1), meta(&[(1, 2)]), trace(1), meta(&[(1, 2)])].concat());
    driven.feed(&[span(1, [0; 4]), meta(&[(3, 1)])].concat());
    let done = driven.finish(End::Closed);
    let span = &done.of_kind("span")[0];
    assert_eq!(span["attributes"]["own"], "k", "{}", done.text);
    assert_eq!(span["attributes"]["datadog.entries_dropped"], 1);
}

#[test]
fn a_dropped_entry_takes_no_space_from_later_ones() {
    let options = Options { max_record_bytes: 10, ..Options::default() };
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), string(1, b"twelve bytes"), span(1, [0; 4]), meta(&[(1, 2), (3, 3)])].concat());
    driven.feed(&[string(2, b"nine more"), string(3, b"kv")].concat());
    let done = driven.finish(End::Closed);
    let span = &done.of_kind("span")[0];
    assert_eq!(span["attributes"]["kv"], "kv", "{}", done.text);
    assert_eq!(span["attributes"]["datadog.entries_dropped"], 1);
}

#[test]
fn a_metric_that_is_dropped_is_unresolved_as_a_metric() {
    let options = Options { max_record_bytes: 4, ..Options::default() };
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), span(1, [0; 4]), metrics(&[(9, 0)])].concat());
    let done = driven.finish(End::Closed);
    let span = &done.of_kind("span")[0];
    assert_eq!(span["attributes"]["datadog.unresolved.metrics"], "0000000000000009", "{}", done.text);
}

#[test]
fn honest_tracers_are_never_throttled() {
    for (seed, cache) in [(1, 0), (2, 16), (3, 1024)] {
        let mut tracer =
            Tracer::new(seed, 0, 1_795_176_900_000_000_000, DatadogDialect::Exact).with_string_cache_size(cache);
        let mut wire = Vec::new();
        tracer.hello(&mut wire);
        for _ in 0..300 {
            tracer.trace(u64::MAX, &mut wire);
        }
        let mut driven = Driven::new(&Options::default());
        driven.feed_in_reads(&wire);
        assert_eq!(driven.held, Duration::ZERO);
        assert_eq!(driven.finish(End::Closed).totals.lost(), 0);
    }
}

// The attacks listed in docs/protocols/datadog.md, and some more.

#[test]
fn a_declared_cache_of_any_size_is_kept_within_the_limits() {
    for (declared, kept) in [(0, 4), (5, 5), (u64::MAX, 8)] {
        let mut options = Options::default();
        (options.string_cache.min_entries, options.string_cache.max_entries) = (4, 8);
        let mut driven = Driven::new(&options);
        driven.feed(&[process(declared), strings(1, 20)].concat());
        (1..=20).for_each(|id| driven.feed(&span(1, [id, 0, 0, 0])));
        let done = driven.finish(End::Closed);
        assert_eq!(done.totals.bytes_lost, [0; 10]);
        let mut driven = Driven::new(&options).keep_lines();
        driven.feed(&[process(declared), strings(1, 20)].concat());
        (1..=20).for_each(|id| driven.feed(&span(1, [id, 0, 0, 0])));
        let spans = driven.finish(End::Closed).of_kind("span");
        let known = spans.iter().filter(|span| span["name"] != "datadog.span").count();
        assert_eq!(known, kept, "declared {declared}");
    }
}

#[test]
fn a_string_of_four_gigabytes_is_refused_from_its_head() {
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&Options::default(), 16 << 20, &budget).keep_lines();
    driven.feed(&[process(0), string_head(1, u32::MAX)].concat());
    assert!(driven.is_closed);
    driven.feed(&[0; 1000]);
    let done = driven.finish(End::Closed);
    let loss = &done.of_kind("loss")[0]["loss"];
    assert_eq!((&loss["reason"], &loss["bytes"]), (&"too_large".into(), &1014.into()));
}

#[test]
fn a_string_at_the_hard_limit_is_read_and_one_over_it_is_not() {
    for (len, is_accepted) in [(100_000, true), (100_001, false)] {
        let mut driven = Driven::with(&Options::default(), 100_000, &MemoryBudget::new(1 << 30));
        driven.feed(&[process(0), string(1, &vec![b'x'; len])].concat());
        assert_eq!(driven.is_closed, !is_accepted);
        assert_eq!(driven.warnings("string_truncated"), u64::from(is_accepted));
        assert_eq!(driven.finish(End::Closed).totals.lost() == 0, is_accepted);
    }
}

#[test]
fn a_string_that_arrives_byte_by_byte_is_cut_at_a_character() {
    // Characters of one to four bytes cross the limit at each of their bytes.
    for before in 0..4 {
        let text = format!("{}{}", "x".repeat(before), "\u{1f600}\u{20ac}\u{e9}".repeat(40));
        let options = Options { kept_string_bytes: 200, ..Options::default() };
        let mut driven = Driven::new(&options).keep_lines();
        driven.feed(&process(0));
        string(1, text.as_bytes()).iter().for_each(|byte| driven.feed(&[*byte]));
        driven.feed(&span(1, [0, 0, 1, 0]));
        let done = driven.finish(End::Closed);
        let span = &done.of_kind("span")[0];
        assert_eq!(span["attributes"]["datadog.resource"], text[..text.floor_char_boundary(200)]);
        assert_eq!(span["attributes"]["tributary.text.truncated"], true);
        assert!(span["attributes"].get("tributary.text.repaired").is_none());
    }
}

#[test]
fn endless_alternating_lists_grow_one_record_to_its_limit() {
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&Options::default(), 16 << 20, &budget);
    driven.feed(&[process(0), span(1, [0; 4])].concat());
    let lists = [meta(&[(97, 98); 255]), metrics(&[(99, 0); 255])].concat();
    (0..50).for_each(|_| driven.feed(&lists));
    assert!(budget.used() < 1 << 20, "{} bytes", budget.used());
    let done = driven.finish(End::Closed);
    assert_eq!(done.totals.count(Kind::Span), 1);
    assert_eq!(done.totals.lost(), (50 * 510 - 4096) * 16);
    assert_eq!(done.totals.buffered(), 0);
}

#[test]
fn a_record_of_4096_entries_may_get_its_texts_one_by_one() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&[process(0), span(1, [0; 4])].concat());
    let ids: Vec<u64> = (1..=4096).collect();
    for ids in ids.chunks(128) {
        let entries: Vec<_> = ids.iter().map(|id| (*id, *id)).collect();
        driven.feed(&[meta(&entries), metrics(&[])].concat());
    }
    driven.feed(&trace(1));
    ids.iter().rev().for_each(|id| {
        assert_eq!(driven.spans(), 0);
        driven.feed(&string(*id, id.to_string().as_bytes()));
    });
    let done = driven.finish(End::Closed);
    assert_eq!(done.totals.count(Kind::Loss), 0);
    let span = &done.of_kind("span")[0];
    assert!(ids.iter().map(u64::to_string).all(|text| span["attributes"][&text] == text.as_str()));
}

#[test]
fn four_thousand_records_that_wait_for_one_id_all_get_its_text() {
    let mut driven = Driven::new(&Options::default());
    driven.feed(&[process(0), span(1, [9; 4]).repeat(4096), trace(1)].concat());
    assert_eq!(driven.spans(), 0);
    driven.feed(&string(9, b"text"));
    assert_eq!(driven.spans(), 4096);
    assert!(driven.batch_events <= 1024 + 3, "{} events", driven.batch_events);
    assert_eq!(driven.finish(End::Closed).totals.count(Kind::Loss), 0);
}

#[test]
fn endless_redefinitions_of_one_id_keep_one_text() {
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&Options::default(), 16 << 20, &budget);
    driven.feed(&process(0));
    (0..20_000u32).for_each(|text| driven.feed(&string(1, text.to_string().as_bytes())));
    assert_eq!(driven.warnings("string_redefined"), 19_999);
    assert!(budget.used() <= 16 * 1024, "{} bytes", budget.used());
}

#[test]
fn an_eviction_does_not_change_a_waiting_record_and_its_texts_count_as_memory() {
    let mut options = Options::default();
    options.string_cache.bytes = 64 * 1024;
    let budget = MemoryBudget::new(256 << 20);
    let mut driven = Driven::with(&options, 16 << 20, &budget).keep_lines();
    driven.feed(&process(0));
    for at in 0..100 {
        let text = [b'a' + (at % 20) as u8; 50_000];
        driven.feed(&[string(1, &text), span(1, [99, 0, 1, 0])].concat());
    }
    driven.feed(&trace(1));
    assert!(budget.used() >= 100 * 50_000, "{} bytes", budget.used());
    driven.feed(&string(99, b"name"));
    assert_eq!(driven.spans(), 100);
    driven.feed(&string(2, b"other"));
    assert!(budget.used() <= 128 * 1024, "{} bytes", budget.used());
    let spans = driven.finish(End::Closed).of_kind("span");
    let first_letter = |at: usize| spans[at]["attributes"]["datadog.resource"].as_str().unwrap().as_bytes()[0];
    assert!((0..100).all(|at| first_letter(at) == b'a' + (at % 20) as u8));
}

#[test]
fn traces_are_forgotten_in_the_order_of_their_last_use() {
    let options = Options { max_traces: 2, ..Options::default() };
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), string(1, b"k")].concat());
    for id in [1, 2] {
        driven.feed(&[trace(id), meta(&[(1, 1)])].concat());
    }
    driven.feed(&[span(1, [0; 4]), trace(3), meta(&[(1, 1)])].concat());
    [1, 2, 3].iter().for_each(|id| driven.feed(&span(*id, [0; 4])));
    let spans = driven.finish(End::Closed).of_kind("span");
    let has_meta: Vec<_> = spans.iter().map(|span| span["attributes"]["datadog.trace.meta.k"] == "k").collect();
    assert_eq!(has_meta, [true, true, false, true]);
}
