//! Records as profiles, and short records added to their parents: the sums are those of the spans.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::live::binary::run;
use crate::zico_support::{Case, Recorded, cases};
use serde_json::Value;

fn request(recorded: &Recorded) -> Vec<u8> {
    let headers: String = recorded.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    [format!("POST {} HTTP/1.1\r\n{headers}\r\n", recorded.path).as_bytes(), &recorded.body].concat()
}

/// The events of a conversation, decoded with these options.
fn decoded(case: &Case, directory: &Path, options: &[&str]) -> Vec<Value> {
    let file = directory.join("case.http");
    std::fs::write(&file, case.exchanges.iter().flat_map(request).collect::<Vec<u8>>()).unwrap();
    let options: Vec<&str> = options.iter().flat_map(|option| ["-o", option]).collect();
    let ended = run(&[&["decode", "zico"], &options[..], &[file.to_str().unwrap()]].concat());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.events()
}

fn spans(events: &[Value]) -> Vec<&Value> {
    events.iter().filter(|event| event["kind"] == "span").collect()
}

/// The self time in nanoseconds and the number of calls, by the number of the stack in [`Stacks`].
type Sums = BTreeMap<usize, [u64; 2]>;

/// Stacks by number, from 1: the number of the stack around it, and the innermost name. Some are 100,000 calls deep.
#[derive(Default)]
struct Stacks(HashMap<(usize, String), usize>);

impl Stacks {
    fn number(&mut self, around: usize, name: &str) -> usize {
        let next = self.0.len() + 1;
        *self.0.entry((around, name.to_owned())).or_insert(next)
    }
}

fn total(sums: &Sums) -> [u64; 2] {
    sums.values().fold([0, 0], |total, sum| [total[0] + sum[0], total[1] + sum[1]])
}

/// The sums of spans. A span comes after those within it.
fn of_spans(spans: &[&Value], stacks: &mut Stacks) -> Sums {
    let key = |span: &Value, id: &str| format!("{} {}", span["span"]["trace_id"], span["span"][id]);
    let places: HashMap<String, usize> =
        spans.iter().enumerate().map(|(place, span)| (key(span, "span_id"), place)).collect();
    let parent =
        |place: usize| places.get(&key(spans[place], "parent_span_id")).copied().filter(|parent| *parent > place);
    let mut within = vec![0u64; spans.len()];
    let mut own = vec![0u64; spans.len()];
    for (place, span) in spans.iter().enumerate() {
        let duration = span["span"]["duration_ns"].as_u64();
        own[place] = duration.map_or(0, |duration| duration.saturating_sub(within[place]));
        if let Some(parent) = parent(place) {
            within[parent] += duration.unwrap_or(within[place]);
        }
    }
    let mut sums = Sums::new();
    let mut numbers = vec![0; spans.len()];
    for place in (0..spans.len()).rev() {
        let around = parent(place).map_or(0, |parent| numbers[parent]);
        numbers[place] = stacks.number(around, spans[place]["name"].as_str().unwrap());
        let sum = sums.entry(numbers[place]).or_default();
        *sum = [sum[0] + own[place], sum[1] + 1];
    }
    sums
}

/// Whether inner traces were submitted by themselves: then they are stacks of their own, with the same times.
fn has_inner(events: &[Value]) -> bool {
    events.iter().any(|event| event["span"]["links"].is_array())
}

/// The sums of samples, and whether stacks were folded.
fn of_samples(events: &[Value], stacks: &mut Stacks) -> (Sums, bool) {
    let (mut sums, mut is_folded) = (Sums::new(), false);
    for event in events.iter().filter(|event| event["name"] == "zico.profile") {
        let frames = event["sample"]["frames"].as_array().unwrap().iter().rev();
        let stack = frames.fold(0, |around, frame| stacks.number(around, frame["function"].as_str().unwrap()));
        let column = usize::from(event["sample"]["type"] == "calls");
        sums.entry(stack).or_default()[column] += event["sample"]["value"].as_u64().unwrap();
        is_folded |= event["attributes"]["tributary.incomplete"].is_array();
    }
    (sums, is_folded)
}

#[test]
fn profiles_of_recorded_conversations_have_the_sums_of_their_spans() {
    let directory = tempfile::tempdir().unwrap();
    let (mut compared, mut folded, mut smaller, mut shorter) = (0, 0, 0, 0);
    for case in cases() {
        let name = &case.name;
        let mut stacks = Stacks::default();
        let events = decoded(&case, directory.path(), &[]);
        let expected = of_spans(&spans(&events), &mut stacks);
        let both = decoded(&case, directory.path(), &["records=both"]);
        let only = decoded(&case, directory.path(), &["records=profile"]);
        assert_eq!(spans(&both).len(), spans(&events).len(), "{name}");
        assert!(spans(&only).is_empty(), "{name}");
        // Symbols of attributes are not looked up for a profile, so fewer ids are undefined.
        let is_loss = |event: &&Value| event["kind"] == "loss" && event["loss"]["reason"] != "unresolved";
        let losses = |events: &[Value]| events.iter().filter(is_loss).count();
        let logs = |events: &[Value]| events.iter().filter(|event| event["kind"] == "log").count();
        assert_eq!((losses(&only), logs(&only)), (losses(&events), logs(&events)), "{name}");
        let (sums, is_folded) = of_samples(&only, &mut stacks);
        assert_eq!(total(&sums), total(&expected), "{name}");
        assert_eq!(of_samples(&both, &mut stacks), (sums.clone(), is_folded), "{name}");
        if is_folded {
            folded += 1;
        } else if !has_inner(&events) {
            assert_eq!(sums, expected, "{name}");
            compared += sums.len();
        }
        // A tree of two stacks has the same totals.
        let few = decoded(&case, directory.path(), &["records=profile", "max_nodes=2"]);
        let (few, _) = of_samples(&few, &mut stacks);
        assert!(few.len() <= sums.len() + 1, "{name}: {few:?}");
        smaller += usize::from(few.len() < sums.len());
        assert_eq!(total(&few), total(&expected), "{name}");
        // So has one of little output.
        let short = decoded(&case, directory.path(), &["records=profile", "max_profile_bytes=64KiB"]);
        let (short, _) = of_samples(&short, &mut stacks);
        shorter += usize::from(short.len() < sums.len());
        assert_eq!(total(&short), total(&expected), "{name}");
    }
    assert!(compared > 100 && folded > 0 && smaller > 10 && shorter > 0, "{compared} {folded} {smaller} {shorter}");
}

#[test]
fn short_records_are_added_to_their_parents() {
    let directory = tempfile::tempdir().unwrap();
    let mut pruned = 0;
    for case in cases() {
        let name = &case.name;
        let (events, kept) = (
            decoded(&case, directory.path(), &[]),
            decoded(&case, directory.path(), &["min_duration=1h", "records=both"]),
        );
        let (all, left) = (spans(&events), spans(&kept));
        let count = |span: &&Value| span["attributes"]["zico.pruned.records"].as_u64().unwrap_or(0);
        let records: u64 = left.iter().map(count).sum();
        assert_eq!(left.len() as u64 + records, all.len() as u64, "{name}");
        pruned += records;
        // The sums of the profile do not change.
        let mut stacks = Stacks::default();
        let ((sums, is_folded), expected) = (of_samples(&kept, &mut stacks), of_spans(&all, &mut stacks));
        assert_eq!(total(&sums), total(&expected), "{name}");
        assert!(is_folded || has_inner(&events) || sums == expected, "{name}");
        for span in left {
            assert_eq!(count(&span) > 0, span["attributes"]["zico.pruned.duration_ns"].is_u64(), "{name}: {span}");
        }
    }
    assert!(pruned > 1_000, "{pruned}");
}
