//! Heap dumps: by class and site, two compared, and what refers to a class.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Serialize;

use super::answer::{ApiError, Lazy, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window};
use tributary_sink_view::heap::{HeapDump, Related};

#[derive(Serialize)]
struct ShownDump {
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
struct DumpList {
    window: Window,
    coverage: Coverage,
    dumps: Vec<ShownDump>,
}

/// What distinguishes rows.
#[derive(Clone, Copy, PartialEq, Eq)]
struct By {
    has_class: bool,
    has_site: bool,
}

/// A class and a site, as far as they distinguish rows.
type RowKey<'a> = (Option<&'a str>, Option<&'a str>, Option<u64>);
/// The sums of a row in two dumps.
type BeforeAndAfter = ([u64; 3], [u64; 3]);

/// The rows of a dump, as far as there is memory for them, and the sums of all.
struct Rows<'a> {
    rows: BTreeMap<RowKey<'a>, [u64; 3]>,
    total: Total,
    is_cut: bool,
}

/// Memory of a row: in a tree, and in the list that is sorted.
const ROW_BYTES: usize = 3 * size_of::<(RowKey<'_>, [u64; 6])>();

#[derive(Serialize, Default)]
struct Total {
    count: u64,
    bytes: u64,
    references: u64,
}

#[derive(Serialize)]
struct DumpDetails<R> {
    window: Window,
    coverage: Coverage,
    dump: ShownDump,
    by: &'static str,
    rows: R,
    total: Total,
    is_cut: bool,
    left_out: u64,
}

#[derive(Serialize)]
struct Compared<R> {
    window: Window,
    coverage: Coverage,
    before: ShownDump,
    after: ShownDump,
    by: &'static str,
    rows: R,
    is_cut: bool,
}

#[derive(Serialize)]
struct Referred<'a, R> {
    window: Window,
    coverage: Coverage,
    class: Option<&'a str>,
    objects: u64,
    referred_from: R,
    refers_to: R,
    examined: u64,
    of: u64,
    dump: ShownDump,
}

#[derive(Serialize)]
struct ShownRelated {
    class: Option<String>,
    references: u64,
    objects: u64,
}

#[derive(Serialize)]
struct ShownRow<'a> {
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    count: u64,
    bytes: u64,
    references: u64,
}

#[derive(Serialize)]
struct Change<'a> {
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    count_before: u64,
    count: u64,
    count_change: i64,
    bytes_before: u64,
    bytes: u64,
    bytes_change: i64,
}

impl<'a> Change<'a> {
    fn of((class, file, line): RowKey<'a>, before: [u64; 3], after: [u64; 3]) -> Change<'a> {
        Change {
            class,
            file,
            line,
            count_before: before[0],
            count: after[0],
            count_change: change(after[0], before[0]),
            bytes_before: before[1],
            bytes: after[1],
            bytes_change: change(after[1], before[1]),
        }
    }
}

fn change(after: u64, before: u64) -> i64 {
    after.cast_signed().wrapping_sub(before.cast_signed())
}

impl By {
    fn read(context: &ApiContext) -> Result<(By, &'static str), ApiError> {
        Ok(match context.query.choice("by", &["class", "site", "class_site"])? {
            "class" => (By { has_class: true, has_site: false }, "class"),
            "site" => (By { has_class: false, has_site: true }, "site"),
            _ => (By { has_class: true, has_site: true }, "class_site"),
        })
    }
}

fn shown(dump: &HeapDump) -> ShownDump {
    let name = dump.heap.name();
    let classes: std::collections::BTreeSet<_> = dump.heap.sums.rows().map(|row| row.class).collect();
    ShownDump {
        id: dump.number.to_string(),
        agent: dump.agent.clone(),
        listener: dump.listener.to_string(),
        peer: name.dump.peer.to_string(),
        pid: name.dump.pid,
        dump_id: name.dump.id,
        at_ms: dump.at.0 / 1_000_000,
        objects: name.objects,
        announced: name.dump.object_count,
        bytes: dump.heap.sums.rows().map(|row| row.sums[1]).sum(),
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
fn with_dump<T>(
    context: &ApiContext,
    id: &str,
    read: impl FnOnce(&HeapDump) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let number = id.parse().map_err(|_| ApiError::gone("dump"))?;
    context.view()?.heaps(|heaps| read(heaps.dump(number).ok_or_else(|| ApiError::gone("dump"))?))
}

fn rows<'a>(dump: &'a HeapDump, by: By, memory: &ResponseMemory) -> Rows<'a> {
    let mut rows = Rows { rows: BTreeMap::new(), total: Total::default(), is_cut: false };
    for row in dump.heap.sums.rows() {
        let [count, bytes, references] = row.sums;
        let total = &mut rows.total;
        total.count = total.count.saturating_add(count);
        total.bytes = total.bytes.saturating_add(bytes);
        total.references = total.references.saturating_add(references);
        let site = (row.file.filter(|_| by.has_site), row.line.filter(|_| by.has_site));
        let key = (row.class.filter(|_| by.has_class), site.0, site.1);
        if !rows.rows.contains_key(&key) && !memory.take(ROW_BYTES) {
            rows.is_cut = true;
            continue;
        }
        let sums = rows.rows.entry(key).or_default();
        sums.iter_mut().zip(row.sums).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
    rows
}

/// `GET /heap`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let window = Window::whole(context)?;
    let (dumps, coverage) =
        context.view()?.heaps(|heaps| (heaps.dumps().rev().map(shown).collect(), coverage(heaps.dumps())));
    context.json(&DumpList { window, coverage, dumps })
}

/// `GET /heap/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["by", "sort", "limit"])?;
    let ((by, by_name), limit) = (By::read(context)?, context.query.limit(1000, 100_000)?);
    let column = match context.query.choice("sort", &["bytes", "count", "references"])? {
        "count" => 0,
        "bytes" => 1,
        _ => 2,
    };
    let window = Window::whole(context)?;
    with_dump(context, id, |dump| {
        let Rows { rows, total, mut is_cut } = rows(dump, by, &context.memory.half());
        let mut rows: Vec<(RowKey<'_>, [u64; 3])> = rows.into_iter().collect();
        rows.sort_by(|(_, a), (_, b)| b[column].cmp(&a[column]));
        is_cut |= rows.len() > limit;
        rows.truncate(limit);
        let rows = Lazy(|| {
            rows.iter().map(|((class, file, line), [count, bytes, references])| ShownRow {
                class: *class,
                file: *file,
                line: *line,
                count: *count,
                bytes: *bytes,
                references: *references,
            })
        });
        let (left_out, coverage) = (dump.left_out, coverage(std::iter::once(dump)));
        context.json(&DumpDetails { window, coverage, dump: shown(dump), by: by_name, rows, total, is_cut, left_out })
    })
}

/// `GET /heap/compare`.
pub(super) fn compare(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["before", "after", "by", "limit"])?;
    let ((by, by_name), limit) = (By::read(context)?, context.query.limit(1000, 100_000)?);
    let window = Window::whole(context)?;
    let required = |name: &str| {
        let missing = || ApiError::new(StatusCode::BAD_REQUEST, "before= and after= must be ids of dumps");
        context.query.text(name).ok_or_else(missing)
    };
    let number = |id: &str| id.parse::<u64>().map_err(|_| ApiError::gone("dump"));
    let (before, after) = (number(required("before")?)?, number(required("after")?)?);
    context.view()?.heaps(|heaps| {
        let dump = |number: u64| heaps.dump(number).ok_or_else(|| ApiError::gone("dump"));
        let (before, after) = (dump(before)?, dump(after)?);
        let memory = context.memory.half();
        let (old, new) = (rows(before, by, &memory), rows(after, by, &memory));
        let mut is_cut = old.is_cut || new.is_cut;
        let mut both: BTreeMap<RowKey<'_>, BeforeAndAfter> = BTreeMap::new();
        old.rows.into_iter().for_each(|(key, sums)| both.entry(key).or_default().0 = sums);
        new.rows.into_iter().for_each(|(key, sums)| both.entry(key).or_default().1 = sums);
        both.retain(|_, (before, after)| before[..2] != after[..2]);
        let mut changed: Vec<(RowKey<'_>, BeforeAndAfter)> = both.into_iter().collect();
        changed.sort_by_key(|(_, (before, after))| {
            let size = |column: usize| change(after[column], before[column]).unsigned_abs();
            std::cmp::Reverse((size(1), size(0)))
        });
        is_cut |= changed.len() > limit;
        changed.truncate(limit);
        let rows = Lazy(|| changed.iter().map(|(key, (before, after))| Change::of(*key, *before, *after)));
        let (coverage, before, after) = (coverage(std::iter::once(after)), shown(before), shown(after));
        context.json(&Compared { window, coverage, before, after, by: by_name, rows, is_cut })
    })
}

/// `GET /heap/ID/references`.
pub(super) fn references(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["class", "limit"])?;
    let limit = context.query.limit(200, 10_000)?;
    let window = Window::whole(context)?;
    let class = context.query.text("class");
    with_dump(context, id, |dump| {
        context.memory.require(dump.reference_bytes())?;
        let references = dump.references(class);
        let related = |related: Vec<Related>| -> Vec<ShownRelated> {
            let row = |Related { class, references, objects }| ShownRelated { class, references, objects };
            related.into_iter().take(limit).map(row).collect()
        };
        let (objects, examined) = (references.objects, references.examined);
        let (referred_from, refers_to) = (related(references.referred_from), related(references.refers_to));
        let (coverage, dump) = (coverage(std::iter::once(dump)), shown(dump));
        let of = dump.objects;
        context.json(&Referred { window, coverage, class, objects, referred_from, refers_to, examined, of, dump })
    })
}
