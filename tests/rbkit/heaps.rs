//! Tables and comparisons of heap dumps. The expected values are counted by hand, or by the test from the independent decodes
//! of the recordings.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;

use crate::live::binary::run;
use crate::rbkit_support::profiles::{
    Files, Row, dump, dump_end, object, profile, session, shop, shown, shown_of_recording,
};
use flate2::read::GzDecoder;

#[test]
fn a_heap_is_counted_by_class_and_site() {
    let rows = [
        (1, Some("String"), Some("/app/cart.rb"), Some(14), Some(40), 1),
        (2, Some("String"), None, None, Some(40), 0),
        (3, Some("String"), Some("/app/cart.rb"), Some(14), Some(1_000_000), 2),
        (4, None, None, None, None, 3),
        (5, Some("Cart"), None, Some(9), None, 0),
        (6, Some("Cart"), Some("/app/cart.rb"), None, Some(8), 0),
        (7, Some("String"), Some("/app/cart.rb"), Some(14), None, 0),
        (8, Some(""), None, None, Some(1), 0),
    ];
    let ended = profile(&["--as", "heap"], &dump(1, 71, &rows));
    let table = "\
count   share    bytes  references  class       site
    3   37.5%  1000040           3  String      /app/cart.rb:14
    1   12.5%       40           0  String      (no site)
    1   12.5%        8           0  Cart        /app/cart.rb
    1   12.5%        1           0  (empty)     (no site)
    1   12.5%        0           3  (no class)  (no site)
    1   12.5%        0           0  Cart        (no file):9
    8  100.0%  1000089           6  total
";
    assert_eq!((ended.code, &*ended.stdout), (Some(0), table));
    assert_eq!(ended.stderr, "dump 1 of process 71 at 127.0.0.1:5555: 8 objects\n");
}

/// Id, class, file, line, size, and the number of references.
type RecordedObject = (u64, String, Option<String>, Option<u64>, Option<u64>, u64);

/// The objects of a recording's dump.
fn recorded_objects(name: &str) -> Vec<RecordedObject> {
    let files = fs::read_dir(session(name)).unwrap().map(|file| file.unwrap().path());
    let file = files.into_iter().find(|file| file.to_str().unwrap().ends_with(".objects.tsv.gz")).unwrap();
    let mut text = Vec::new();
    GzDecoder::new(fs::File::open(file).unwrap()).read_to_end(&mut text).unwrap();
    // Text that is not UTF-8 is repaired in events.
    let text = String::from_utf8_lossy(&text).into_owned();
    let rows = text.lines().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let known = |field: usize| Some(fields[field]).filter(|text| *text != "\\N");
        let number = |field: usize| known(field).map(|text| text.parse().unwrap());
        let references = fields[5].split(',').filter(|id| !id.is_empty()).count() as u64;
        let file = known(2).map(str::to_owned);
        (number(0).unwrap(), fields[1].to_owned(), file, number(3), number(4), references)
    });
    rows.collect()
}

#[test]
fn heaps_of_recordings_are_as_counted() {
    for (name, count, bytes) in [
        ("master-2.1-dump-while-tracing", 4257, None),
        ("master-2.1-raw-dump", 5768, None),
        ("spec-2.1-dump-then-stop", 4596, None),
        ("v0.1.10-unsplit-dump", 4214, Some(3_795_262)),
    ] {
        let objects = recorded_objects(name);
        assert_eq!(objects.len() as u64, count, "{name}");
        let mut counted: BTreeMap<String, [u64; 3]> = BTreeMap::new();
        let mut rows = Vec::new();
        for (id, class, file, line, size, references) in &objects {
            let site = match (file, line) {
                (Some(file), Some(line)) => format!("{file}:{line}"),
                (Some(file), None) => file.clone(),
                (None, Some(line)) => format!("(no file):{line}"),
                (None, None) => "(no site)".to_owned(),
            };
            let sums = counted.entry(format!("{class} {site}")).or_default();
            *sums = [sums[0] + 1, sums[1] + size.unwrap_or(0), sums[2] + references];
            rows.push((*id, Some(class.as_str()), file.as_deref(), *line, *size, *references));
        }
        let table = shown(&["--as", "heap"], &dump(3, 71, &rows));
        assert_eq!(shown_of_recording(&["--as", "heap"], name), table, "{name}");
        let mut last = u64::MAX;
        let mut shown = BTreeMap::new();
        let lines: Vec<&str> = table.lines().collect();
        for line in &lines[1..lines.len() - 1] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [count, bytes, references] = [words[0], words[2], words[3]].map(|word| word.parse::<u64>().unwrap());
            assert!(count <= last, "{name}: not in order");
            last = count;
            let share: f64 = words[1].trim_end_matches('%').parse().unwrap();
            assert!((share - 100.0 * count as f64 / objects.len() as f64).abs() <= 0.0501, "{name}: {line}");
            shown.insert(words[4..].join(" "), [count, bytes, references]);
        }
        assert_eq!(shown, counted, "{name}");
        let sums = counted.values().fold([0; 3], |sums, row| [sums[0] + row[0], sums[1] + row[1], sums[2] + row[2]]);
        let total: Vec<&str> = lines[lines.len() - 1].split_whitespace().collect();
        let [count, all_bytes, references] = sums.map(|sum| sum.to_string());
        assert_eq!(total, [&*count, "100.0%", &*all_bytes, &*references, "total"], "{name}");
        assert!(bytes.is_none_or(|bytes| bytes == sums[1]), "{name}");
    }
}

const STRING: Row<'_> = (0, Some("String"), None, None, Some(40), 0);

fn of(id: u64, row: Row<'_>) -> Row<'_> {
    (id, row.1, row.2, row.3, row.4, row.5)
}

#[test]
fn of_several_dumps_the_last_complete_one_is_shown_or_the_selected_one() {
    let cart = (0, Some("Cart"), None, None, None, 0);
    // Dump 2 lacks an object; there are two dumps 1 of two processes; dump 3 has only its first objects.
    let short = dump(2, 71, &[of(1, STRING), of(2, STRING)])
        .lines()
        .skip(1)
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    let unfinished = object(3, 5, 71, of(1, STRING));
    let mixed: String = dump(1, 71, &[of(1, cart), of(2, cart), of(3, cart)])
        .lines()
        .zip(dump(1, 72, &[of(1, STRING), of(2, STRING), of(3, STRING)]).lines())
        .map(|(a, b)| format!("{b}\n{a}\n"))
        .collect();
    let events = [mixed, short, unfinished].concat();
    let ended = profile(&["--as", "heap"], &events);
    assert!(ended.stdout.contains("3  100.0%      0           0  Cart"), "{}", ended.stdout);
    let words: Vec<&str> = ended.stderr.lines().collect();
    assert_eq!(
        words,
        [
            "dump 1 of process 71 at 127.0.0.1:5555: 3 objects",
            "  there is also dump 1 of process 72 at 127.0.0.1:5555: 3 objects",
            "  there is also dump 2 of process 71 at 127.0.0.1:5555: 1 of 2 objects (not whole)",
            "  there is also dump 3 of process 71 at 127.0.0.1:5555: 1 of 5 objects (not whole)",
        ]
    );
    let ended = profile(&["--as", "heap", "--dump", "2"], &events);
    assert_eq!(ended.stderr.lines().next(), Some("dump 2 of process 71 at 127.0.0.1:5555: 1 of 2 objects (not whole)"));
    assert!(ended.stdout.contains("1  100.0%     40           0  String"), "{}", ended.stdout);
    let ended = profile(&["--as", "heap", "--dump", "9"], &events);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(ended.stderr.contains("no such heap dump") && ended.stderr.contains("there is dump 3"), "{}", ended.stderr);
    // Several dumps with one number: the complete one is preferred to a later incomplete one.
    let again = [dump(2, 71, &[of(5, cart)]), object(2, 4, 99, of(1, STRING))].concat();
    let ended = profile(&["--as", "heap", "--dump", "2"], &again);
    assert!(ended.stdout.contains("Cart"), "{} {}", ended.stdout, ended.stderr);
    // An empty heap is a complete dump.
    let ended = profile(&["--as", "heap"], &dump_end(4, 0, 71));
    assert!(ended.stdout.ends_with("    0    0.0%      0           0  total\n"), "{}", ended.stdout);
    let ended = profile(&["--as", "heap"], &shop());
    assert_eq!((ended.code, &*ended.stderr), (Some(1), "tributary: no whole heap dump in the input\n"));
}

#[test]
fn dumps_beyond_the_limit_are_listed_by_name() {
    let unfinished: String = (1..=12).map(|dump| object(dump, 2, 71, of(dump, STRING))).collect();
    let ended = profile(&["--as", "heap", "--dump", "12"], &unfinished);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 12, "{}", ended.stderr);
}

#[test]
fn a_comparison_counts_new_replaced_kept_and_gone_objects() {
    let site = |id, class, line| (id, Some(class), Some("/app/cart.rb"), Some(line), Some(10), 1);
    let before = [
        of(1, STRING),                  // stays
        of(2, STRING),                  // goes
        of(3, STRING),                  // its address goes to a Cart
        site(4, "String", 14),          // its address goes to a String made elsewhere
        site(5, "String", 14),          // stays; its place is forgotten
        of(6, STRING),                  // its address goes to a String with a place
        (7, None, None, None, None, 0), // stays
    ];
    let after = [
        of(1, STRING),
        (3, Some("Cart"), None, None, Some(100), 2),
        site(4, "String", 15),
        (5, Some("String"), None, None, Some(10), 1),
        site(6, "String", 14),
        (7, None, None, None, None, 0),
        of(8, STRING),
        of(9, STRING),
        site(10, "String", 15),
        (11, None, None, None, None, 4),
    ];
    let table = "\
count  new  replaced  bytes  references  class       site
    2    2         0     80           0  String      (no site)
    2    1         1     20           2  String      /app/cart.rb:15
    1    1         0      0           4  (no class)  (no site)
    1    0         1    100           2  Cart        (no site)
    1    0         1     10           1  String      /app/cart.rb:14
    7    4         3    210           9  total

A: dump 1 of process 71 at 127.0.0.1:5555: 7 objects
B: dump 2 of process 71 at 127.0.0.1:5555: 10 objects
B has 4 new objects, 3 replaced and 3 kept; 1 of A are gone.
";
    let events = [dump(1, 71, &before), dump(2, 71, &after)].concat();
    let files = Files::new();
    let both = files.file("both.ndjson", &events);
    let by_number = run(&["decode", "rbkit", "--compare", "1", "2", &both]);
    assert!(by_number.stdout.starts_with(table), "{}{}", by_number.stdout, by_number.stderr);
    assert!(by_number.stdout.contains("counts as kept"), "the limits of the comparison");
    let (a, b) = (files.file("a", dump(1, 71, &before)), files.file("b", dump(2, 71, &after)));
    let by_file = run(&["decode", "rbkit", "--compare", &a, &b]);
    assert_eq!(by_file.stdout, by_number.stdout);
    // The same dump twice: nothing is new or gone.
    let same = run(&["decode", "rbkit", "--compare", &a, &a]);
    assert!(same.stdout.contains("B has 0 new objects, 0 replaced and 7 kept; 0 of A are gone."), "{}", same.stdout);
    let unrelated = files.file("unrelated", dump(1, 71, &[of(20, STRING)]));
    let ended = run(&["decode", "rbkit", "--compare", &a, &unrelated]);
    assert!(ended.stdout.contains("No id is in both"), "{}", ended.stdout);
    assert!(!by_file.stdout.contains("No id is in both"));
    let other = files.file("other", dump(1, 99, &after));
    let ended = run(&["decode", "rbkit", "--compare", &a, &other]);
    assert!(ended.stdout.contains("different processes (71 and 99)"), "{}", ended.stdout);
}
