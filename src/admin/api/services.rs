//! Services: exact sums of their requests, their operations, and who calls whom.

use serde::Serialize;

use super::super::agents;
use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::history::now_ms;
use tributary_sink_view::services::latency::{Latencies, least_of};
use tributary_sink_view::services::{
    MINUTES, Operation, STEP_SECONDS, STEPS, STEPS_PER_MINUTE, Service, ServiceEdge, ServiceNumbers, Services, Sums,
    Totals,
};

const STEP_MS: u64 = STEP_SECONDS * 1000;
const MINUTE_MS: u64 = STEP_MS * STEPS_PER_MINUTE;
/// Buckets of durations that a cell of the heat map has.
const BUCKETS_PER_CELL: u16 = 16;

/// The minutes over which an answer sums up.
#[derive(Clone, Copy, Serialize)]
struct Minutes {
    from_ms: u64,
    to_ms: u64,
    limit_ms: u64,
    /// The part of it in which the daemon ran, which rates are of.
    seconds: u64,
    #[serde(skip)]
    first: u64,
    #[serde(skip)]
    last: u64,
}

impl Minutes {
    /// Those of `from_ms` and `to_ms`, widened to whole minutes.
    fn of(context: &ApiContext, services: &Services) -> Result<Minutes, ApiError> {
        let now = now_ms();
        let (first, last) = context.query.steps(MINUTE_MS, MINUTES, now)?;
        let (from_ms, to_ms) = (first * MINUTE_MS, (last + 1) * MINUTE_MS);
        let began = from_ms.max(services.began() * STEP_MS);
        let seconds = (to_ms.min(now).saturating_sub(began) / 1000).max(1);
        Ok(Minutes { from_ms, to_ms, limit_ms: MINUTES * MINUTE_MS, seconds, first, last })
    }

    fn totals(self, sums: &Sums) -> Totals {
        sums.totals((self.first, self.last))
    }

    /// The counts and errors of its steps.
    fn steps(self, sums: &Sums) -> [Vec<u32>; 2] {
        let steps = self.first * STEPS_PER_MINUTE..(self.last + 1) * STEPS_PER_MINUTE;
        let all: Vec<_> = steps.map(|step| sums.step(step)).collect();
        [all.iter().map(|step| step.count).collect(), all.iter().map(|step| step.errors).collect()]
    }
}

/// The sums of a row.
#[derive(Serialize)]
struct Row {
    count: u64,
    errors: u64,
    per_second: f64,
    error_share: f64,
    mean_ns: Option<u64>,
    p50_ns: Option<u64>,
    p95_ns: Option<u64>,
    p99_ns: Option<u64>,
}

impl Row {
    fn of(totals: &Totals, minutes: Minutes) -> Row {
        let Totals { count, errors, nanos, latencies } = totals;
        let known = latencies.count();
        Row {
            count: *count,
            errors: *errors,
            per_second: *count as f64 / minutes.seconds as f64,
            error_share: if *count > 0 { *errors as f64 / *count as f64 } else { 0.0 },
            mean_ns: (known > 0).then(|| u64::try_from(nanos / u128::from(known)).unwrap_or(u64::MAX)),
            p50_ns: latencies.quantile(0.5),
            p95_ns: latencies.quantile(0.95),
            p99_ns: latencies.quantile(0.99),
        }
    }
}

/// A row with its sums over time.
#[derive(Serialize)]
struct NamedRow<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    /// It stands for all that have no row of their own.
    is_other: bool,
    #[serde(flatten)]
    row: Row,
    steps: [Vec<u32>; 2],
}

impl<'a> NamedRow<'a> {
    fn of_service(service: &'a Service, minutes: Minutes) -> NamedRow<'a> {
        NamedRow {
            name: &service.name,
            detail: None,
            kind: None,
            is_other: service.is_other,
            row: Row::of(&minutes.totals(&service.entries), minutes),
            steps: minutes.steps(&service.entries),
        }
    }

    fn of_operation(operation: &'a Operation, minutes: Minutes) -> NamedRow<'a> {
        NamedRow {
            name: &operation.name,
            detail: Some(&*operation.detail).filter(|detail| !detail.is_empty()),
            kind: operation.kind.map(|kind| kind.as_str()),
            is_other: operation.is_other,
            row: Row::of(&minutes.totals(&operation.sums), minutes),
            steps: minutes.steps(&operation.sums),
        }
    }
}

/// Calls from or to a service. `null`: the caller is not known.
#[derive(Serialize)]
struct EdgeRow<'a> {
    caller: Option<&'a str>,
    callee: &'a str,
    #[serde(flatten)]
    row: Row,
}

impl<'a> EdgeRow<'a> {
    fn of(edge: &'a ServiceEdge, minutes: Minutes) -> EdgeRow<'a> {
        let row = Row::of(&minutes.totals(&edge.sums), minutes);
        EdgeRow { caller: edge.caller.as_deref(), callee: &edge.callee, row }
    }
}

/// How much there is, and from when on quantiles are known.
#[derive(Serialize)]
struct Extent {
    services: usize,
    operations: usize,
    edges: usize,
    spans: u64,
    memory_bytes: usize,
    quantiles_from_ms: u64,
    step_ms: u64,
}

impl Extent {
    fn of(numbers: ServiceNumbers) -> Extent {
        let ServiceNumbers { services, operations, edges, spans, memory_bytes, latencies_from } = numbers;
        let quantiles_from_ms = latencies_from * MINUTE_MS;
        Extent { services, operations, edges, spans, memory_bytes, quantiles_from_ms, step_ms: STEP_MS }
    }
}

#[derive(Serialize)]
struct ServiceList<'a> {
    window: Minutes,
    extent: Extent,
    services: Vec<NamedRow<'a>>,
}

#[derive(Serialize)]
struct OneService<'a> {
    window: Minutes,
    extent: Extent,
    service: NamedRow<'a>,
    operations: Vec<NamedRow<'a>>,
    /// Spans of operations without a row of their own, since the start.
    other_spans: u64,
    heat: Heat,
    errors: Vec<ErrorRow<'a>>,
    callers: Vec<EdgeRow<'a>>,
    callees: Vec<EdgeRow<'a>>,
    agents: Vec<AgentRow>,
    /// The processes that have profiles: see `GET /profiles`.
    profiles: Vec<String>,
    history: Vec<HistoryRow>,
}

/// An agent that sends spans of a service: see `GET /agents/{id}`.
#[derive(Serialize)]
struct AgentRow {
    id: String,
    protocol: &'static str,
    process: String,
    peer: Option<String>,
}

/// Durations over time: for each minute the counts of its cells.
#[derive(Serialize)]
struct Heat {
    minutes: Vec<HeatMinute>,
}

#[derive(Serialize)]
struct HeatMinute {
    at_ms: u64,
    /// The least duration of a cell in nanoseconds, that of the next one, and how many entries took that long.
    cells: Vec<(u64, u64, u64)>,
}

#[derive(Serialize)]
struct ErrorRow<'a> {
    #[serde(rename = "type")]
    name: &'a str,
    count: u64,
}

#[derive(Serialize)]
struct HistoryRow {
    at_ms: u64,
    count: u64,
    errors: u64,
    p50_ns: u64,
    p95_ns: u64,
    p99_ns: u64,
}

#[derive(Serialize)]
struct Map<'a> {
    window: Minutes,
    extent: Extent,
    services: Vec<NamedRow<'a>>,
    edges: Vec<EdgeRow<'a>>,
}

/// `GET /services`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["from_ms", "to_ms"])?;
    let (minutes, numbers, services) = context
        .view()?
        .services(|all| Ok::<_, ApiError>((Minutes::of(context, all)?, all.numbers(), all.services())))?;
    context.memory.require(services.len() * ROW_BYTES)?;
    context.json(&ServiceList {
        window: minutes,
        extent: Extent::of(numbers),
        services: service_rows(&services, minutes),
    })
}

/// `GET /services/{name}`.
pub(super) fn one(context: &ApiContext, name: &str) -> Result<Made, ApiError> {
    context.query.only(&["from_ms", "to_ms"])?;
    let (minutes, numbers, found, edges) = context.view()?.services(|all| {
        Ok::<_, ApiError>((Minutes::of(context, all)?, all.numbers(), all.service_named(name), all.edges()))
    })?;
    let (service, operations) = found.ok_or_else(|| ApiError::gone("service"))?;
    context.memory.require((operations.len() + edges.len()) * ROW_BYTES)?;
    let mut rows: Vec<_> = operations.iter().map(|operation| NamedRow::of_operation(operation, minutes)).collect();
    rows.retain(|row| row.row.count > 0);
    rows.sort_by(|a, b| b.row.count.cmp(&a.row.count).then_with(|| a.name.cmp(b.name)));
    let side = |is_it: &dyn Fn(&ServiceEdge) -> bool| {
        let mut rows: Vec<_> = edges.iter().filter(|edge| is_it(edge)).map(|edge| EdgeRow::of(edge, minutes)).collect();
        rows.retain(|row| row.row.count > 0);
        rows.sort_by_key(|row| std::cmp::Reverse(row.row.count));
        rows
    };
    let agents = agents::all(&context.subject).into_iter().filter(|agent| agent.name().into_text() == name);
    let agents = agents.map(|agent| AgentRow {
        protocol: agent.protocol.as_str(),
        process: agent.facts().process(),
        peer: agent.peer(),
        id: agent.id,
    });
    let agents: Vec<_> = agents.take(MAX_AGENTS).collect();
    let mut profiles = context.view()?.profiles(|profiles| {
        let of_service = profiles.agents().filter(|(_, profile)| *profile.name == *name);
        of_service.map(|(agent, _)| agent.to_owned()).take(MAX_AGENTS).collect::<Vec<_>>()
    });
    profiles.sort();
    context.memory.require((agents.len() + profiles.len()) * ROW_BYTES)?;
    let answer = OneService {
        window: minutes,
        extent: Extent::of(numbers),
        service: NamedRow::of_service(&service, minutes),
        operations: rows,
        other_spans: service.other_spans,
        heat: heat(&service.entries, minutes),
        errors: errors(&service, minutes),
        callers: side(&|edge| *edge.callee == *name),
        callees: side(&|edge| edge.caller.as_deref() == Some(name)),
        agents,
        profiles,
        history: history(&service),
    };
    context.json(&answer)
}

/// `GET /map`.
pub(super) fn map(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["from_ms", "to_ms"])?;
    let (minutes, numbers, services, edges) = context
        .view()?
        .services(|all| Ok::<_, ApiError>((Minutes::of(context, all)?, all.numbers(), all.services(), all.edges())))?;
    context.memory.require((services.len() + edges.len()) * ROW_BYTES)?;
    let mut rows: Vec<_> = edges.iter().map(|edge| EdgeRow::of(edge, minutes)).collect();
    rows.retain(|row| row.row.count > 0);
    rows.sort_by(|a, b| (a.caller, a.callee).cmp(&(b.caller, b.callee)));
    let mut services = service_rows(&services, minutes);
    // One that is only called stands on the map, too.
    services.retain(|row| {
        row.row.count > 0 || rows.iter().any(|edge| edge.callee == row.name || edge.caller == Some(row.name))
    });
    context.json(&Map { window: minutes, extent: Extent::of(numbers), services, edges: rows })
}

/// The most agents and profiles of a service.
const MAX_AGENTS: usize = 100;
/// Memory of a row and of its text at most: two lists of steps, and names.
const ROW_BYTES: usize = STEPS as usize * 2 * 12 + 2048;

fn service_rows(services: &[Service], minutes: Minutes) -> Vec<NamedRow<'_>> {
    let mut rows: Vec<_> = services.iter().map(|service| NamedRow::of_service(service, minutes)).collect();
    rows.sort_by(|a, b| b.row.count.cmp(&a.row.count).then_with(|| a.name.cmp(b.name)));
    rows
}

fn heat(sums: &Sums, minutes: Minutes) -> Heat {
    let kept = sums.minutes(minutes.first..=minutes.last).into_iter();
    let minutes = kept.map(|minute| HeatMinute { at_ms: minute.minute * MINUTE_MS, cells: cells(&minute.latencies) });
    Heat { minutes: minutes.collect() }
}

fn cells(latencies: &Latencies) -> Vec<(u64, u64, u64)> {
    let mut cells: Vec<(u64, u64, u64)> = Vec::new();
    for (bucket, count) in latencies.buckets() {
        let first = bucket / BUCKETS_PER_CELL * BUCKETS_PER_CELL;
        let (least, most) = (least_of(first), least_of(first.saturating_add(BUCKETS_PER_CELL)));
        match cells.last_mut() {
            Some(last) if last.0 == least => last.2 += count,
            _ => cells.push((least, most, count)),
        }
    }
    cells
}

fn errors(service: &Service, minutes: Minutes) -> Vec<ErrorRow<'_>> {
    let steps = minutes.first * STEPS_PER_MINUTE..(minutes.last + 1) * STEPS_PER_MINUTE;
    let count = |error: &tributary_sink_view::services::ErrorType| {
        error.steps.iter().filter(|(step, _)| steps.contains(step)).map(|(_, count)| u64::from(*count)).sum()
    };
    let mut rows: Vec<_> =
        service.errors.iter().map(|error| ErrorRow { name: &error.name, count: count(error) }).collect();
    rows.retain(|row| row.count > 0);
    rows.sort_by_key(|row| std::cmp::Reverse(row.count));
    rows
}

fn history(service: &Service) -> Vec<HistoryRow> {
    let old = service.history.iter().map(|minute| {
        let [p50_ns, p95_ns, p99_ns] = minute.quantiles;
        HistoryRow {
            at_ms: minute.minute * MINUTE_MS,
            count: minute.count,
            errors: minute.errors,
            p50_ns,
            p95_ns,
            p99_ns,
        }
    });
    let quantile = |latencies: &Latencies, share| latencies.quantile(share).unwrap_or(0);
    let new = service.entries.minutes(0..=u64::MAX).into_iter().map(|minute| HistoryRow {
        at_ms: minute.minute * MINUTE_MS,
        count: minute.count,
        errors: minute.errors,
        p50_ns: quantile(&minute.latencies, 0.5),
        p95_ns: quantile(&minute.latencies, 0.95),
        p99_ns: quantile(&minute.latencies, 0.99),
    });
    old.chain(new).collect()
}
