//! Modules of the page by themselves, called in the browser: numbers as texts, texts of agents, and the trees of profiles.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::world::{LISTENERS, World};

/// Calls a function of a module with each of the arguments.
async fn call(browser: &Browser, module: &str, function: &str, arguments: &Value) -> Value {
    let script = format!(
        "return (async () => {{ const module = await import('./{module}.js'); return {arguments}.map((list) => module.{function}(...list)) }})()"
    );
    browser.js(&script).await
}

#[tokio::test]
async fn numbers_have_three_digits_and_their_unit() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    for (function, cases) in [
        (
            "bytes",
            vec![
                (0.0, "0 B"),
                (1023.0, "1023 B"),
                (1024.0, "1.00 KiB"),
                (1_048_064.0, "1.00 MiB"),
                (1.5e9, "1.40 GiB"),
                (12e12, "10.9 TiB"),
            ],
        ),
        ("count", vec![(0.0, "0"), (999.0, "999"), (1e6, "1,000,000")]),
        (
            "brief",
            vec![
                (0.0, "0"),
                (999.0, "999"),
                (999.6, "1.00 k"),
                (1234.0, "1.23 k"),
                (56_789.0, "56.8 k"),
                (1.5e9, "1.50 G"),
                (0.25, "0.25"),
            ],
        ),
        ("rate", vec![(0.0, "0/s"), (0.001, "<0.01/s"), (99.5, "99.5/s"), (1e4, "10.0 k/s")]),
        (
            "nanos",
            vec![
                (0.0, "0 ns"),
                (999.0, "999 ns"),
                (999.9, "1.00 µs"),
                (1.5e6, "1.50 ms"),
                (2.25e9, "2.25 s"),
                (65e9, "65.0 s"),
                (125e9, "2 min 5 s"),
            ],
        ),
        ("millis", vec![(10.0, "10 ms"), (900_000.0, "15 min"), (36_000_000.0, "10 h"), (90_000_000.0, "1 d 1 h")]),
    ] {
        let (numbers, texts): (Vec<f64>, Vec<&str>) = cases.into_iter().unzip();
        let arguments = json!(numbers.iter().map(|number| [number]).collect::<Vec<_>>());
        assert_eq!(call(&browser, "units", function, &arguments).await, json!(texts), "{function}");
    }
    let shares = json!([[1, 3], [0, 5], [5, 5], [1, 100_000], [1, 0]]);
    assert_eq!(call(&browser, "units", "percent", &shares).await, json!(["33.3 %", "0 %", "100 %", "<0.1 %", "–"]));
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn what_runs_at_the_same_time_stands_in_rows_of_its_own() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    // Start, end and caller of each span, and the row that it gets.
    let spans = [
        (0, 100, None, 0),
        (10, 50, Some(0), 1),
        (20, 30, Some(1), 2),
        (40, 80, Some(0), 2),
        (45, 60, Some(3), 3),
        (80, 90, Some(0), 1),
        (0, 100, None, 4),
    ];
    let list: Vec<Value> =
        spans.iter().map(|(start, stop, parent, _)| json!({"start": start, "stop": stop, "parent": parent})).collect();
    let script = format!(
        "return (async () => {{ const {{ freeRows }} = await import('./timeline.js'); const spans = {}; \
         return freeRows(spans, (id) => spans[id].start, (id) => spans[id].stop) }})()",
        json!(list)
    );
    assert_eq!(browser.js(&script).await, json!(spans.map(|(.., row)| row)));
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn invisible_characters_are_shown_and_long_texts_cut() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    let texts = json!([
        ["plain"],
        ["\u{202e}abc\u{2066}"],
        ["a\u{0}b\u{7f}c\u{9b}d"],
        ["a\nb\tc"],
        ["z\u{200b}w\u{feff}"],
        ["日本 ñ 🎉"],
        ["abcdef", 3],
        [""]
    ]);
    let shown = json!([
        "plain",
        "\\u202eabc\\u2066",
        "a\\u0000b\\u007fc\\u009bd",
        "a↵b⇥c",
        "z\\u200bw\\ufeff",
        "日本 ñ 🎉",
        "abc… (6 characters)",
        ""
    ]);
    assert_eq!(call(&browser, "dom", "clean", &texts).await, shown);
    browser.close().await;
    world.stop().await;
}

/// A tree of calls: names, parents (parents first), self values.
struct Tree {
    names: Vec<usize>,
    parents: Vec<Option<usize>>,
    selves: Vec<u64>,
}

impl Tree {
    /// A tree of this many calls of few functions, so that many are recursive.
    fn random(calls: usize) -> Tree {
        let mut state = 7_u64;
        let mut next = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut tree = Tree { names: Vec::new(), parents: Vec::new(), selves: Vec::new() };
        for call in 0..calls {
            tree.names.push(next(9));
            tree.parents.push((call > 2).then(|| call - 1 - next(call.min(12))));
            tree.selves.push(next(5) as u64);
        }
        tree
    }

    /// The call and its callers, innermost first.
    fn stack(&self, call: usize) -> Vec<usize> {
        std::iter::successors(Some(call), |call| self.parents[*call]).collect()
    }

    fn json(&self) -> Value {
        let mut values = self.selves.clone();
        for call in (0..values.len()).rev() {
            if let Some(parent) = self.parents[call] {
                values[parent] += values[call];
            }
        }
        let parents: Vec<i64> = self.parents.iter().map(|parent| parent.map_or(-1, |parent| parent as i64)).collect();
        json!({ "name": self.names, "parent": parents, "value": values, "self": self.selves })
    }
}

#[tokio::test]
async fn trees_of_calls_are_added_up_as_by_counting_their_stacks() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    let tree = Tree::random(400);
    let names: Vec<String> = (0..9).map(|name| format!("f{name}")).collect();

    let (mut selves, mut totals) = (BTreeMap::new(), BTreeMap::new());
    let mut inverted: HashMap<Vec<usize>, u64> = HashMap::new();
    for (call, value) in tree.selves.iter().enumerate() {
        let stack: Vec<usize> = tree.stack(call).iter().map(|call| tree.names[*call]).collect();
        *selves.entry(stack[0]).or_insert(0) += value;
        for name in stack.iter().copied().collect::<std::collections::BTreeSet<_>>() {
            *totals.entry(name).or_insert(0) += value;
        }
        for depth in 1..=stack.len() {
            *inverted.entry(stack[..depth].to_vec()).or_insert(0) += value;
        }
    }
    inverted.retain(|_, value| *value > 0);

    let found = call(&browser, "stacks", "functions", &json!([[tree.json(), names]])).await;
    let rows = found[0].as_array().unwrap();
    for row in rows {
        let name = row["name"].as_str().unwrap()[1..].parse::<usize>().unwrap();
        assert_eq!(
            (row["self"].as_u64(), row["total"].as_u64()),
            (selves.get(&name).copied(), totals.get(&name).copied()),
            "{row}"
        );
    }
    assert_eq!(rows.len(), selves.len());

    let found = call(&browser, "stacks", "invert", &json!([[tree.json()]])).await;
    let list =
        |key: &str| found[0][key].as_array().unwrap().iter().map(|one| one.as_i64().unwrap()).collect::<Vec<_>>();
    let (name, parent, value) = (list("name"), list("parent"), list("value"));
    let stack = |node: usize| {
        let above = std::iter::successors(Some(node), |node| usize::try_from(parent[*node]).ok());
        let mut stack: Vec<usize> = above.map(|node| name[node] as usize).collect();
        stack.reverse();
        stack
    };
    let nodes: HashMap<Vec<usize>, u64> = (0..name.len()).map(|node| (stack(node), value[node] as u64)).collect();
    assert_eq!(nodes, inverted);

    // One function between its callers and its callees: a call within a call of it counts once.
    for wanted in 0..9 {
        let is_outermost = |call: usize| {
            tree.names[call] == wanted && tree.stack(call)[1..].iter().all(|above| tree.names[*above] != wanted)
        };
        let values = tree.json()["value"].clone();
        let value = |call: usize| values[call].as_u64().unwrap();
        let (mut callers, mut callees) = (BTreeMap::new(), BTreeMap::new());
        for call in 0..tree.names.len() {
            let Some(parent) = tree.parents[call] else { continue };
            if is_outermost(call) {
                *callers.entry(tree.names[parent]).or_insert(0) += value(call);
            }
            if is_outermost(parent) {
                *callees.entry(tree.names[call]).or_insert(0) += value(call);
            }
        }
        callees.retain(|_, value| *value > 0);
        callers.retain(|_, value| *value > 0);
        let found = call(&browser, "stacks", "sandwich", &json!([[tree.json(), names, names[wanted]]])).await;
        let row = |at: usize| {
            let ids = found[0]["rows"][at]["id"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as usize);
            let nodes = &found[0]["nodes"];
            ids.map(|id| (nodes["name"][id].as_u64().unwrap() as usize, nodes["value"][id].as_u64().unwrap()))
                .filter(|(_, value)| *value > 0)
                .collect::<BTreeMap<usize, u64>>()
        };
        let center = found[0]["centerRow"].as_u64().unwrap() as usize;
        assert_eq!(row(center), BTreeMap::from([(wanted, totals[&wanted])]));
        assert_eq!((row(center - 1), row(center + 1)), (callers, callees), "f{wanted}");
    }

    // In the picture a call is as wide as its value, and stands within its caller.
    let found = call(&browser, "stacks", "layout", &json!([[tree.json()]])).await;
    let total: u64 = tree.selves.iter().sum();
    assert_eq!(found[0]["total"].as_u64(), Some(total));
    let values = tree.json()["value"].clone();
    let mut places = HashMap::new();
    for row in found[0]["rows"].as_array().unwrap() {
        let ids = row["id"].as_array().unwrap();
        for (at, id) in ids.iter().enumerate() {
            let id = id.as_u64().unwrap() as usize;
            let (from, to) = (row["from"][at].as_f64().unwrap(), row["to"][at].as_f64().unwrap());
            assert_eq!(to - from, values[id].as_f64().unwrap());
            if let Some(parent) = tree.parents[id] {
                let (outer_from, outer_to) = places[&parent];
                assert!(outer_from <= from && to <= outer_to, "{id} within {parent}");
            }
            places.insert(id, (from, to));
        }
    }
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn a_trace_becomes_events_of_perfetto_whose_lanes_do_not_overlap() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    let span = |name: &str, service: &str, start: Value, nanos: u64| json!({ "name": name, "service": service, "start_ns": start, "duration_ns": nanos, "span_id": name, "kind": "server" });
    let spans = json!([
        span("root", "web", json!(0), 100_000),
        span("first", "web", json!(10_000), 30_000),
        // It begins before the first one has ended, and ends behind it.
        span("second", "web", json!(20_000), 40_000),
        span("third", "web", json!(60_000), 40_000),
        span("other", "db", json!(15_000), 5_000),
        span("unknown", "web", Value::Null, 0),
    ]);
    let lanes = call(&browser, "timeline", "lanesOf", &json!([[spans]])).await;
    assert_eq!(lanes, json!([[0, 0, 1, 0, 0, 0]]));
    let answer = json!({ "trace": { "trace_id": "07", "start_ms": 5 }, "spans": spans });
    let made = call(&browser, "timeline", "traceEvents", &json!([[answer]])).await;
    let events = made[0]["traceEvents"].as_array().unwrap();
    let shown: Vec<_> = events
        .iter()
        .map(|event| {
            let text = |name: &str| event[name].as_str().unwrap_or("").to_owned();
            (
                format!("{} {}", text("ph"), text("name")),
                event["pid"].as_u64(),
                event["tid"].as_u64(),
                event["ts"].as_f64(),
            )
        })
        .collect();
    let process = |pid| ("M process_name".to_owned(), Some(pid), None, None);
    let complete = |name: &str, pid, tid, ts| (format!("X {name}"), Some(pid), Some(tid), Some(ts));
    assert_eq!(
        shown,
        [
            process(0),
            complete("root", 0, 0, 0.0),
            complete("first", 0, 0, 10.0),
            complete("second", 0, 1, 20.0),
            complete("third", 0, 0, 60.0),
            process(1),
            complete("other", 1, 0, 15.0),
        ]
    );
    assert_eq!((&events[1]["dur"], &made[0]["otherData"]["trace_id"]), (&json!(100), &json!("07")));
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn names_of_functions_are_cut_before_their_class() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    let (names, cut): (Vec<_>, Vec<_>) = [
        ("com.shop.cart.CartServlet.doGet", "…CartServlet.doGet"),
        ("com.shop.Cart.total(int, java.util.List)", "…Cart.total(int, java.util.List)"),
        ("Shop::Cart#total (app/models/cart.rb:12)", "…Cart#total (app/models/cart.rb:12)"),
        ("github.com/shop/cart.(*Cart).Total", "…(*Cart).Total"),
        ("shop.CartService/GetCart", "…CartService/GetCart"),
        ("block in Cart#total", "block in Cart#total"),
        ("/srv/shop/app.rb:7", "…app.rb:7"),
        ("main", "main"),
        ("", ""),
    ]
    .map(|(name, cut)| (json!([name]), json!(cut)))
    .into_iter()
    .unzip();
    assert_eq!(call(&browser, "names", "tailOf", &json!(names)).await, json!(cut));
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn the_critical_path_covers_the_root_once() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    let mut state = 11_u64;
    let mut next = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let root = json!({ "parent": null, "start_ns": 0, "duration_ns": 100_000 });
    // Some begin before their caller, or end after it.
    let spans: Vec<Value> = std::iter::once(root)
        .chain((1..300).map(|at| json!({ "parent": next(at), "start_ns": next(90_000), "duration_ns": next(40_000) })))
        .collect();
    let found = call(&browser, "spans", "criticalPath", &json!([[spans]])).await;
    let mut pieces: Vec<(u64, u64)> = found[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["from"].as_u64().unwrap(), one["to"].as_u64().unwrap()))
        .collect();
    pieces.sort_unstable();
    let mut at = 0;
    for (from, to) in pieces {
        assert_eq!(from, at, "no gap and no overlap");
        at = to;
    }
    assert_eq!(at, 100_000);
    browser.close().await;
    world.stop().await;
}
