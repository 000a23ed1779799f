//! Heap dumps: by class and site, two compared, and what refers to a class.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::answer::{ApiError, Made};
use super::context::Context;
use super::coverage::{Coverage, Window};
use crate::sink::view::heap::{HeapDump, Related};

#[derive(Serialize)]
struct Dump {
    id: String,
    agent: String,
    listener: String,
    peer: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u64>,
    dump_id: u64,
    at_ms: u64,
    objects: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    announced: Option<u64>,
    bytes: u64,
    is_complete: bool,
    has_references: bool,
    classes: u64,
}

#[derive(Serialize)]
struct List {
    window: Window,
    coverage: Coverage,
    dumps: Vec<Dump>,
}

/// By what rows are told apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct By {
    has_class: bool,
    has_site: bool,
}

/// A class and a site, as far as rows are told apart by them.
type Key = (Option<String>, Option<String>, Option<u64>);

#[derive(Serialize)]
struct Row {
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    count: u64,
    bytes: u64,
    references: u64,
}

#[derive(Serialize)]
struct Change {
    class: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    count_before: u64,
    count: u64,
    count_change: i64,
    bytes_before: u64,
    bytes: u64,
    bytes_change: i64,
}

impl By {
    fn read(context: &Context) -> Result<(By, &'static str), ApiError> {
        Ok(match context.query.choice("by", &["class", "site", "class_site"])? {
            "class" => (By { has_class: true, has_site: false }, "class"),
            "site" => (By { has_class: false, has_site: true }, "site"),
            _ => (By { has_class: true, has_site: true }, "class_site"),
        })
    }
}

fn shown(dump: &HeapDump) -> Dump {
    let name = dump.heap.name();
    let classes: std::collections::BTreeSet<_> = dump.heap.rows().map(|row| row.class).collect();
    Dump {
        id: dump.number.to_string(),
        agent: dump.agent.clone(),
        listener: dump.listener.to_string(),
        peer: name.dump.peer.to_string(),
        pid: name.dump.pid,
        dump_id: name.dump.id,
        at_ms: dump.at.0 / 1_000_000,
        objects: name.objects,
        announced: name.dump.object_count,
        bytes: dump.heap.rows().map(|row| row.sums[1]).sum(),
        is_complete: name.is_whole() && dump.left_out == 0,
        has_references: dump.has_references(),
        classes: classes.len() as u64,
    }
}

/// What the view has of the objects that agents have announced.
fn coverage<'a>(dumps: impl Iterator<Item = &'a HeapDump>) -> Coverage {
    let numbers = dumps.map(|dump| {
        let objects = dump.heap.name().objects;
        (dump.heap.name().dump.object_count.unwrap_or(objects + dump.left_out), objects)
    });
    let (announced, objects) = numbers.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    Coverage::new(announced, objects)
}

/// Calls `read` with the dump that has this id.
fn with_dump<T>(context: &Context, id: &str, read: impl FnOnce(&HeapDump) -> T) -> Result<T, ApiError> {
    let number = id.parse().map_err(|_| ApiError::gone("dump"))?;
    context.view()?.heaps(|heaps| heaps.dump(number).map(read)).ok_or_else(|| ApiError::gone("dump"))
}

fn rows(dump: &HeapDump, by: By) -> BTreeMap<Key, [u64; 3]> {
    let mut rows: BTreeMap<Key, [u64; 3]> = BTreeMap::new();
    for row in dump.heap.rows() {
        let class = row.class.filter(|_| by.has_class).map(str::to_owned);
        let (file, line) = (row.file.filter(|_| by.has_site).map(str::to_owned), row.line.filter(|_| by.has_site));
        let sums = rows.entry((class, file, line)).or_default();
        sums.iter_mut().zip(row.sums).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    rows
}

/// `GET /heap`.
pub(super) fn list(context: &Context) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let window = Window::whole(context)?;
    let (dumps, coverage) =
        context.view()?.heaps(|heaps| (heaps.dumps().rev().map(shown).collect(), coverage(heaps.dumps())));
    context.json(&List { window, coverage, dumps })
}

/// `GET /heap/ID`.
pub(super) fn one(context: &Context, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["by", "sort", "limit"])?;
    let ((by, by_name), limit) = (By::read(context)?, context.query.limit(1000, 100_000)?);
    let column = match context.query.choice("sort", &["bytes", "count", "references"])? {
        "count" => 0,
        "bytes" => 1,
        _ => 2,
    };
    let window = Window::whole(context)?;
    let (dump, coverage, left_out, rows) =
        with_dump(context, id, |dump| (shown(dump), coverage(std::iter::once(dump)), dump.left_out, rows(dump, by)))?;
    let mut total = [0u64; 3];
    for sums in rows.values() {
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total = total.saturating_add(*sum));
    }
    let row = |((class, file, line), [count, bytes, references]): (Key, [u64; 3])| Row {
        class,
        file,
        line,
        count,
        bytes,
        references,
    };
    let mut rows: Vec<(Key, [u64; 3])> = rows.into_iter().collect();
    rows.sort_by(|(_, a), (_, b)| b[column].cmp(&a[column]));
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    let rows: Vec<Row> = rows.into_iter().map(row).collect();
    context.json(&json!({
        "window": window, "coverage": coverage, "dump": dump, "by": by_name, "rows": rows,
        "total": {"count": total[0], "bytes": total[1], "references": total[2]}, "is_cut": is_cut, "left_out": left_out,
    }))
}

/// `GET /heap/compare`.
pub(super) fn compare(context: &Context) -> Result<Made, ApiError> {
    context.query.only(&["before", "after", "by", "limit"])?;
    let ((by, by_name), limit) = (By::read(context)?, context.query.limit(1000, 100_000)?);
    let window = Window::whole(context)?;
    let required = |name: &str| {
        let missing = || ApiError::new(StatusCode::BAD_REQUEST, "before= and after= must be ids of dumps");
        context.query.text(name).ok_or_else(missing)
    };
    let read = |id: &str| with_dump(context, id, |dump| (shown(dump), rows(dump, by), coverage(std::iter::once(dump))));
    let (before, rows_before, _) = read(required("before")?)?;
    let (after, rows_after, coverage) = read(required("after")?)?;
    let mut both: BTreeMap<Key, ([u64; 3], [u64; 3])> = BTreeMap::new();
    rows_before.into_iter().for_each(|(key, sums)| both.entry(key).or_default().0 = sums);
    rows_after.into_iter().for_each(|(key, sums)| both.entry(key).or_default().1 = sums);
    let change = |after: u64, before: u64| after.cast_signed().wrapping_sub(before.cast_signed());
    let row = |((class, file, line), (before, after)): (Key, ([u64; 3], [u64; 3]))| Change {
        class,
        file,
        line,
        count_before: before[0],
        count: after[0],
        count_change: change(after[0], before[0]),
        bytes_before: before[1],
        bytes: after[1],
        bytes_change: change(after[1], before[1]),
    };
    let mut rows: Vec<Change> = both.into_iter().map(row).collect();
    rows.retain(|row| row.count_change != 0 || row.bytes_change != 0);
    rows.sort_by_key(|row| std::cmp::Reverse((row.bytes_change.unsigned_abs(), row.count_change.unsigned_abs())));
    let is_cut = rows.len() > limit;
    rows.truncate(limit);
    context.json(&json!({
        "window": window, "coverage": coverage, "before": before, "after": after, "by": by_name, "rows": rows,
        "is_cut": is_cut,
    }))
}

/// `GET /heap/ID/references`.
pub(super) fn references(context: &Context, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["class", "limit"])?;
    let limit = context.query.limit(200, 10_000)?;
    let window = Window::whole(context)?;
    let class = context.query.text("class");
    let (dump, coverage, references) =
        with_dump(context, id, |dump| (shown(dump), coverage(std::iter::once(dump)), dump.references(class)))?;
    let related = |related: Vec<Related>| -> Vec<serde_json::Value> {
        let row = |row: Related| json!({ "class": row.class, "references": row.references, "objects": row.objects });
        related.into_iter().take(limit).map(row).collect()
    };
    context.json(&json!({
        "window": window, "coverage": coverage, "class": class, "objects": references.objects,
        "referred_from": related(references.referred_from), "refers_to": related(references.refers_to),
        "examined": references.examined, "of": dump.objects, "dump": dump,
    }))
}
