//! The code of Java programs: packages, classes and methods, and what ran since a mark.

use std::collections::BTreeMap;

use hyper::StatusCode;
use serde::Serialize;
use serde_json::json;

use super::answer::{ApiError, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window};
use tributary_protocol::Protocol;
use tributary_sink_view::code::{CalledMethod, Mark, MethodSums, Run};
use tributary_system::wall_clock;

#[derive(Serialize)]
struct ShownRun {
    id: String,
    agent: String,
    listener: String,
    since_ms: u64,
    last_ms: u64,
    methods: u64,
    run: u64,
    classes: u64,
    calls: u64,
    marks: Vec<ShownMark>,
}

#[derive(Serialize)]
struct ShownMark {
    id: u64,
    name: String,
    at_ms: u64,
}

#[derive(Serialize, Default)]
struct Package<'a> {
    name: &'a str,
    #[serde(flatten)]
    totals: Totals,
    classes: Vec<Class<'a>>,
}

#[derive(Serialize, Default)]
struct Class<'a> {
    name: &'a str,
    #[serde(flatten)]
    totals: Totals,
    methods_list: Vec<ShownMethod<'a>>,
}

/// The classes of a package with their methods, by name.
type Classes<'a> = BTreeMap<&'a str, Vec<ShownMethod<'a>>>;

/// Memory of a method, and of a class with its place in its package.
const METHOD_BYTES: usize = 2 * size_of::<ShownMethod<'_>>();
const CLASS_BYTES: usize = 2 * size_of::<Class<'_>>() + 128;

#[derive(Serialize)]
struct RunDetails<P> {
    window: Window,
    coverage: Coverage,
    run: ShownRun,
    since: Option<ShownMark>,
    packages: P,
    left_out: u64,
}

/// Methods, those of them that ran, and what they did.
#[derive(Serialize, Default, Clone, Copy)]
struct Totals {
    methods: u64,
    run: u64,
    calls: u64,
    self_ns: u64,
}

#[derive(Serialize)]
struct ShownMethod<'a> {
    name: &'a str,
    calls: u64,
    self_ns: u64,
    exceptions: u64,
    has_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_ms: Option<u64>,
}

fn shown(run: &Run) -> ShownRun {
    let classes: std::collections::BTreeSet<&str> =
        run.methods().map(|(method, _)| class_of(&method.name).0).chain(run.classes()).collect();
    ShownRun {
        id: run.id.clone(),
        agent: run.agent.clone(),
        listener: run.listener.to_string(),
        since_ms: run.since.0 / 1_000_000,
        last_ms: run.last.0 / 1_000_000,
        methods: run.methods().count() as u64,
        run: run.methods().filter(|(_, has_run)| *has_run).count() as u64,
        classes: classes.len() as u64,
        calls: run.methods().map(|(method, _)| method.sums.calls).sum(),
        marks: run.marks().map(mark_of).collect(),
    }
}

fn mark_of(mark: &Mark) -> ShownMark {
    ShownMark { id: mark.id, name: mark.name.clone(), at_ms: mark.at.0 / 1_000_000 }
}

/// The events of Java programs that the view got, of all.
fn coverage(context: &ApiContext) -> Result<Coverage, ApiError> {
    let listeners = context.subject.accounting.totals().listeners;
    let java: Vec<_> = listeners.into_iter().filter(|listener| listener.protocol == Protocol::Bytefrog).collect();
    let passed = java.iter().map(|listener| listener.events()).sum();
    let seen = context.view()?.seen_of(|name| java.iter().any(|listener| listener.name == name));
    Ok(Coverage::new(passed, seen))
}

/// `GET /code`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let (window, coverage) = (Window::whole(context)?, coverage(context)?);
    let runs: Vec<ShownRun> = context.view()?.code(|code| code.runs().rev().map(shown).collect());
    context.json(&json!({ "window": window, "coverage": coverage, "runs": runs }))
}

/// `GET /code/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["since"])?;
    let (window, coverage, since) = (Window::whole(context)?, coverage(context)?, context.query.number("since")?);
    context.view()?.code(|code| {
        let run = code.run(id).ok_or_else(|| ApiError::gone("run"))?;
        let mut packages: BTreeMap<&str, Classes<'_>> = BTreeMap::new();
        let mark = match since {
            None => {
                for (method, has_run) in run.methods() {
                    add(&mut packages, method, method.sums, has_run, &context.memory)?;
                }
                None
            }
            Some(mark) => {
                let (mark, methods) = run.since(mark).ok_or_else(|| ApiError::gone("mark"))?;
                for (method, sums) in methods {
                    add(&mut packages, method, sums, sums.calls > 0, &context.memory)?;
                }
                Some(mark_of(mark))
            }
        };
        for class in run.classes() {
            methods_of(&mut packages, class, &context.memory)?;
        }
        let packages: Vec<Package<'_>> = packages.into_iter().map(package).collect();
        context.json(&RunDetails { window, coverage, run: shown(run), since: mark, packages, left_out: run.left_out })
    })
}

/// Adds a method with what it did.
fn add<'a>(
    packages: &mut BTreeMap<&'a str, Classes<'a>>,
    method: &'a CalledMethod,
    sums: MethodSums,
    has_run: bool,
    memory: &ResponseMemory,
) -> Result<(), ApiError> {
    memory.require(METHOD_BYTES)?;
    let (class, name) = class_of(&method.name);
    methods_of(packages, class, memory)?.push(ShownMethod {
        name,
        calls: sums.calls,
        self_ns: sums.self_nanos,
        exceptions: sums.exceptions,
        has_run,
        last_ms: method.last.map(|at| at.0 / 1_000_000),
    });
    Ok(())
}

/// The methods of a class.
fn methods_of<'a, 'b>(
    packages: &'b mut BTreeMap<&'a str, Classes<'a>>,
    class: &'a str,
    memory: &ResponseMemory,
) -> Result<&'b mut Vec<ShownMethod<'a>>, ApiError> {
    let (package, class) = package_of(class);
    let classes = packages.entry(package).or_default();
    if !classes.contains_key(class) {
        memory.require(CLASS_BYTES)?;
    }
    Ok(classes.entry(class).or_default())
}

fn package<'a>((name, classes): (&'a str, Classes<'a>)) -> Package<'a> {
    let mut package = Package { name, ..Package::default() };
    for (name, mut methods) in classes {
        methods.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(b.name)));
        let mut class = Class { name, ..Class::default() };
        for method in &methods {
            let one =
                Totals { methods: 1, run: u64::from(method.has_run), calls: method.calls, self_ns: method.self_ns };
            class.totals = class.totals.and(one);
        }
        package.totals = package.totals.and(class.totals);
        class.methods_list = methods;
        package.classes.push(class);
    }
    package
}

impl Totals {
    fn and(self, more: Totals) -> Totals {
        Totals {
            methods: self.methods + more.methods,
            run: self.run + more.run,
            calls: self.calls.saturating_add(more.calls),
            self_ns: self.self_ns.saturating_add(more.self_ns),
        }
    }
}

/// `POST /code/ID/marks`.
pub(super) fn mark(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["name"])?;
    let name = context.query.text("name").unwrap_or("mark");
    if name.len() > 200 {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "the name of a mark has at most 200 bytes"));
    }
    let mark: Option<ShownMark> = context.view()?.code(|code| code.mark(id, name, wall_clock::now()).map(mark_of));
    let mark = mark.ok_or_else(|| ApiError::gone("run"))?;
    context.json(&json!({ "mark": mark }))
}

/// The class and the method of a function.
fn class_of(function: &str) -> (&str, &str) {
    function.rsplit_once('.').unwrap_or(("(no class)", function))
}

/// The package and the class of a class with its package.
fn package_of(class: &str) -> (&str, &str) {
    class.rsplit_once('.').unwrap_or(("(no package)", class))
}
