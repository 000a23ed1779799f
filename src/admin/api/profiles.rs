//! Profiles: flame graphs of any process over any part of the window, and downloads of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use hyper::StatusCode;
use serde::Serialize;

use super::answer::{ApiError, Lazy, Made};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, passed, snapshot};
use super::history::now_ms;
use super::query::bad;
use super::timelines;
use tributary_event::Kind;
use tributary_profile::collected::{About, Shown, StackSource};
use tributary_profile::stacks::{Level, Stacks};
use tributary_profile::{Call, CallStep, Counted, ProfileItem, SampleKind, events, flamegraph, pprof, speedscope};
use tributary_protocol::Protocol;
use tributary_sink_view::profiles::ProfileSums;
use tributary_sink_view::services::{STEP_SECONDS, STEPS};
use tributary_sink_view::{Class, Snapshot};

const STEP_MS: u64 = STEP_SECONDS * 1000;
/// The quantities that are shown.
const SHOWN: [Counted; 4] = [Counted::Cpu, Counted::Allocations, Counted::Wall, Counted::Calls];
/// The call paths, and the names, of an answer take this part of its memory each: they are copied before they are shown.
const STACKS_PART: usize = 16;
const NODE_BYTES: usize = 128;
/// Memory of a process in the list beside its name: what is known of it, its place in a tree, and enough for
/// the text of its row.
const FOUND_BYTES: usize = size_of::<ProcessProfile>() + STEPS as usize * 8 + 640;

/// The list of processes.
#[derive(Serialize)]
struct ProfileList<P> {
    window: Window,
    coverage: Coverage,
    profiles: P,
    is_cut: bool,
}

#[derive(Serialize)]
struct ShownProfile<'a> {
    agent: &'a str,
    protocol: &'static str,
    types: Vec<Type>,
    from_ms: u64,
    to_ms: u64,
    history: History<'a>,
}

#[derive(Serialize)]
struct Type {
    #[serde(rename = "type")]
    name: &'static str,
    unit: &'static str,
    text: &'static str,
    /// Samples, spans, or entries and exits.
    events: u64,
}

#[derive(Serialize)]
struct History<'a> {
    step_ms: u64,
    from_ms: u64,
    values: &'a [u64],
}

/// What is known of a process.
struct ProcessProfile {
    agent: String,
    protocol: &'static str,
    events: BTreeMap<StackSource, u64>,
    /// The first and the last step with events.
    first: u64,
    last: u64,
    /// Of each step.
    values: Vec<u64>,
}

/// The steps over which an answer sums up.
#[derive(Clone, Copy)]
struct Steps {
    first: u64,
    last: u64,
    now: u64,
}

impl Steps {
    /// Those of a window. Its parts are widened to whole steps.
    fn of(window: &mut Window, profiles: &ProfileSums) -> Result<Steps, ApiError> {
        let now = profiles.now().max(now_ms() / STEP_MS);
        let oldest = (now + 1).saturating_sub(STEPS);
        let (first, last) = ((window.from_ms / STEP_MS).max(oldest), (window.to_ms / STEP_MS).min(now));
        if last < first {
            return Err(bad(format!("sums of profiles begin at {} (milliseconds since 1970)", oldest * STEP_MS)));
        }
        (window.from_ms, window.to_ms) = (first * STEP_MS, (last + 1) * STEP_MS);
        Ok(Steps { first, last, now })
    }

    fn bounds(self) -> (u64, u64) {
        (self.first, self.last)
    }
}

/// Passes the items of a snapshot to `take`. Where calls are missing, every process that goes on has a break.
pub(super) fn items(snapshot: &Snapshot, mut take: impl FnMut(&ProfileItem<'_>)) {
    for (class, kept) in &snapshot.batches {
        let mut broken: BTreeSet<String> = BTreeSet::new();
        let batch = kept.batch();
        for item in events::items(&batch) {
            if *class == Class::Calls
                && kept.follows_gap
                && let ProfileItem::Call(call) = &item
                && broken.insert(call.agent.to_string())
            {
                let (agent, sequence) = (call.agent.clone(), call.sequence);
                take(&ProfileItem::Call(Call { agent, step: CallStep::Break, sequence, ..Call::default() }));
            }
            take(&item);
        }
    }
}

/// The share of the samples and spans, and of the logs of Java agents, that is kept. Calls are some of these logs.
pub(super) fn coverage(context: &ApiContext, window: Window) -> Result<Coverage, ApiError> {
    let java = Protocol::Bytefrog.as_str();
    let stacks = snapshot(context, window, &[Class::Samples, Class::Spans], |_, _| true)?;
    let logs = snapshot(context, window, &[Class::Calls, Class::Logs], |protocol, _| protocol == java)?;
    let of_stacks = passed(context, window, &[Kind::Sample, Kind::Span], |_, _| true);
    let of_logs = passed(context, window, &[Kind::Log], |_, protocol| protocol == Protocol::Bytefrog);
    Ok(Coverage::new(of_stacks + of_logs, kept(&stacks) + kept(&logs)))
}

/// `GET /profiles`: the processes whose events came last, as far as `limit` and the memory of the answer go.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["limit"])?;
    let (mut window, limit) = (Window::whole(context)?, context.query.limit(1000, 10_000)?);
    let memory = context.memory.half();
    let (steps, mut found, is_cut) = context.view()?.profiles(|profiles| {
        let steps = Steps::of(&mut window, profiles)?;
        let mut is_cut = false;
        let mut agents: Vec<_> = profiles
            .agents()
            .map(|(agent, profile)| (agent, profile, profile.events(steps.bounds(), steps.now)))
            .filter(|(.., sources)| !sources.is_empty())
            .collect();
        agents.sort_by_key(|(_, profile, _)| Reverse(profile.last_batch));
        is_cut |= agents.len() > limit;
        agents.truncate(limit);
        let found: Vec<ProcessProfile> = agents
            .into_iter()
            .filter_map(|(agent, profile, sources)| {
                if !memory.take(FOUND_BYTES + 2 * agent.len()) {
                    is_cut = true;
                    return None;
                }
                let mut values = vec![0; (steps.last - steps.first + 1) as usize];
                let all = sources.values().flatten();
                all.clone().for_each(|(step, events)| values[(step - steps.first) as usize] += events);
                let of_steps = all.map(|(step, _)| *step);
                Some(ProcessProfile {
                    agent: agent.to_owned(),
                    protocol: profile.protocol,
                    first: of_steps.clone().min().unwrap_or(0),
                    last: of_steps.max().unwrap_or(0),
                    events: sources
                        .iter()
                        .map(|(source, all)| (*source, all.iter().map(|(_, events)| events).sum()))
                        .collect(),
                    values,
                })
            })
            .collect();
        Ok::<_, ApiError>((steps, found, is_cut))
    })?;
    found.sort_by(|a, b| a.agent.cmp(&b.agent));
    let events: u64 = found.iter().flat_map(|found| found.events.values()).sum();
    let profiles = Lazy(|| {
        let with_types = found.iter().map(|found| (found, types(found)));
        with_types.filter(|(_, types)| !types.is_empty()).map(|(found, types)| {
            let ProcessProfile { agent, protocol, first, last, values, .. } = found;
            let history = History { step_ms: STEP_MS, from_ms: steps.first * STEP_MS, values };
            ShownProfile { agent, protocol, types, from_ms: first * STEP_MS, to_ms: (last + 1) * STEP_MS, history }
        })
    });
    let coverage = Coverage::new(events, events);
    context.json(&ProfileList { window, coverage, profiles, is_cut })
}

/// The quantities that the events of a process have, each of its best source.
fn types(found: &ProcessProfile) -> Vec<Type> {
    let profiled = found.events.keys().filter_map(|source| match source {
        StackSource::Profiled(kind) => Some(Counted::Profiled(kind)),
        _ => None,
    });
    let types = SHOWN.into_iter().chain(profiled).filter_map(|counted| {
        let sources = StackSource::that_show(counted).into_iter();
        let events = sources.filter_map(|source| found.events.get(&source).copied()).next()?;
        let (name, unit, text) = (counted.id(), counted.unit(), text(counted));
        Some(Type { name, unit, text, events })
    });
    types.collect()
}

fn text(counted: Counted) -> &'static str {
    match counted {
        Counted::Cpu => "CPU samples",
        Counted::Allocations => "allocations",
        Counted::Wall => "time of calls",
        Counted::Calls => "calls",
        Counted::HeapBytes => "bytes of the heap",
        Counted::HeapObjects => "objects of the heap",
        Counted::Profiled(_) => counted.id(),
    }
}

/// The stacks that a request asks for.
struct Wanted {
    agent: Option<String>,
    counted: Counted,
    has_threads: bool,
}

/// The parameters of [`Wanted::read`].
const WANTED: [&str; 5] = ["agent", "type", "threads", "from_ms", "to_ms"];

impl Wanted {
    fn read(context: &ApiContext) -> Result<Wanted, ApiError> {
        let all: Vec<_> = SHOWN.into_iter().chain(SampleKind::all().into_iter().map(Counted::Profiled)).collect();
        let ids: Vec<_> = all.iter().map(|counted| counted.id()).collect();
        let id = context.query.choice("type", &ids)?;
        let counted = all.into_iter().find(|counted| counted.id() == id).unwrap_or_default();
        let agent = context.query.text("agent").map(str::to_owned);
        Ok(Wanted { agent, counted, has_threads: context.query.is_set("threads") })
    }

    fn wants(&self, agent: &str) -> bool {
        self.agent.as_deref().is_none_or(|wanted| wanted == agent)
    }

    /// Sums up a part of the window, which is widened to steps, of the best source that has events in it: a call counts once,
    /// although several sources may report it.
    fn sum_up(&self, context: &ApiContext, window: &mut Window) -> Result<Summed, ApiError> {
        let part = context.memory.limit() / STACKS_PART;
        let mut stacks = Stacks::bounded((part / NODE_BYTES).max(64), part);
        context.view()?.profiles(|profiles| {
            let steps = Steps::of(window, profiles)?;
            let wanted: Vec<_> = profiles
                .agents()
                .filter(|(agent, _)| self.wants(agent))
                .map(|(agent, profile)| (agent, profile, profile.events(steps.bounds(), steps.now)))
                .collect();
            let mut sources = StackSource::that_show(self.counted).into_iter();
            let has_events = |source: &StackSource| wanted.iter().any(|(.., events)| events.contains_key(source));
            let Some(source) = sources.find(has_events) else {
                return Ok(Summed { source: None, processes: vec![], stacks });
            };
            let (from, to) = (window.from_ms.saturating_mul(1_000_000), window.to_ms.saturating_mul(1_000_000));
            let mut processes = Vec::new();
            for (agent, profile, events) in &wanted {
                let Some(events) = events.get(&source) else { continue };
                profile.add_to(&mut stacks, source, steps.bounds(), steps.now, self.has_threads);
                let events = events.iter().map(|(_, events)| events).sum();
                let about = profile.about(source).map(|about| about.between(from, to, events)).unwrap_or_default();
                processes.push(((*agent).to_owned(), about));
            }
            Ok(Summed { source: Some(source), processes, stacks })
        })
    }
}

/// The stacks of a part of the window.
struct Summed {
    /// `None`: there are no events.
    source: Option<StackSource>,
    processes: Vec<(String, About)>,
    stacks: Stacks,
}

impl Summed {
    fn coverage(&self) -> Coverage {
        let events = self.processes.iter().map(|(_, about)| about.events).sum();
        Coverage::new(events, events)
    }

    fn shown(&self, counted: Counted) -> Option<Shown<'_>> {
        let processes = self.processes.iter().map(|(agent, about)| (agent.as_str(), about)).collect();
        Some(Shown { source: self.source?, counted, processes })
    }
}

#[derive(Serialize, Default)]
struct Flame {
    agent: Option<String>,
    #[serde(rename = "type")]
    counted: &'static str,
    unit: &'static str,
    total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    before_total: Option<u64>,
    cut: u64,
    names: Vec<String>,
    nodes: Nodes,
}

/// The nodes by columns, callers first.
#[derive(Serialize, Default)]
struct Nodes {
    name: Vec<u32>,
    parent: Vec<i64>,
    value: Vec<u64>,
    #[serde(rename = "self")]
    own: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    before: Vec<u64>,
}

/// A tree of one or two spans of time.
#[derive(Default)]
struct Merged {
    numbers: HashMap<String, u32, RandomState>,
    names: Vec<String>,
    places: HashMap<(Option<u32>, u32), u32, RandomState>,
    /// Name, caller, and the sums: own, of all below, and the same of the earlier span of time.
    nodes: Vec<(u32, Option<u32>, [u64; 3])>,
}

impl Merged {
    /// Adds stacks; `is_before`: as those of the earlier span of time.
    fn add(&mut self, stacks: &Stacks, column: usize, is_before: bool) {
        let (nodes, sums) = (stacks.tree().nodes(), stacks.cumulated(column));
        let mut places: Vec<Option<u32>> = vec![None];
        for (at, node) in nodes.iter().enumerate().skip(1) {
            let named = &stacks.all_frames()[node.frame as usize];
            let text = match (named.level, &*named.text) {
                (Level::Thread, "") => "(thread without a name)",
                (_, text) => text,
            };
            let name = match self.numbers.get(text) {
                Some(number) => *number,
                None => {
                    let number = self.names.len() as u32;
                    self.names.push(text.to_owned());
                    self.numbers.insert(text.to_owned(), number);
                    number
                }
            };
            let caller = places[node.caller as usize];
            let place = *self.places.entry((caller, name)).or_insert_with(|| {
                self.nodes.push((name, caller, [0; 3]));
                self.nodes.len() as u32 - 1
            });
            let values = &mut self.nodes[place as usize].2;
            if is_before {
                values[2] = values[2].saturating_add(sums[at]);
            } else {
                values[0] = values[0].saturating_add(node.own[column]);
                values[1] = values[1].saturating_add(sums[at]);
            }
            places.push(Some(place));
        }
    }

    /// The nodes with the greatest sums, at most `limit`. Smaller ones are added to their callers and counted.
    fn into_nodes(mut self, limit: usize, has_before: bool) -> (Vec<String>, Nodes, u64) {
        let weight = |values: &[u64; 3]| values[1].max(values[2]);
        let mut weights: Vec<u64> = self.nodes.iter().map(|(.., values)| weight(values)).collect();
        let least = if weights.len() > limit {
            let (_, least, _) = weights.select_nth_unstable_by(limit, |a, b| b.cmp(a));
            least.saturating_add(1)
        } else {
            1
        };
        let mut nodes = Nodes::default();
        let mut places: Vec<Option<i64>> = Vec::with_capacity(self.nodes.len());
        let mut cut = 0;
        for at in 0..self.nodes.len() {
            let (name, caller, values) = self.nodes[at];
            let parent = caller.map_or(Some(-1), |caller| places[caller as usize]);
            match parent {
                Some(parent) if weight(&values) >= least => {
                    places.push(Some(nodes.name.len() as i64));
                    nodes.name.push(name);
                    nodes.parent.push(parent);
                    nodes.value.push(values[1]);
                    nodes.own.push(values[0]);
                    if has_before {
                        nodes.before.push(values[2]);
                    }
                }
                _ => {
                    // What it did itself is its caller's, which may have been left out as well.
                    if let Some(parent) = parent.and_then(|parent| usize::try_from(parent).ok()) {
                        nodes.own[parent] = nodes.own[parent].saturating_add(values[1]);
                    }
                    cut += u64::from(weight(&values) > 0);
                    places.push(None);
                }
            }
        }
        (std::mem::take(&mut self.names), nodes, cut)
    }
}

/// `GET /profiles/flame`.
pub(super) fn flame(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&[&WANTED[..], &["before_from_ms", "before_to_ms", "limit"]].concat())?;
    let (wanted, limit) = (Wanted::read(context)?, context.query.limit(100_000, 1_000_000)?);
    let mut window = Window::of(context)?;
    let has_before = context.query.text("before_from_ms").is_some() || context.query.text("before_to_ms").is_some();
    let column = wanted.counted.column();
    let mut merged = Merged::default();
    let mut flame = Flame {
        agent: wanted.agent.clone(),
        counted: wanted.counted.id(),
        unit: wanted.counted.unit(),
        ..Flame::default()
    };
    let summed = wanted.sum_up(context, &mut window)?;
    flame.total = summed.stacks.totals()[column];
    flame.cut = summed.stacks.cut();
    merged.add(&summed.stacks, column, false);
    let coverage = summed.coverage();
    drop(summed);
    let mut before = has_before.then(|| Window::named(context, "before_")).transpose()?;
    if let Some(before) = &mut before {
        let stacks = wanted.sum_up(context, before)?.stacks;
        flame.before_total = Some(stacks.totals()[column]);
        merged.add(&stacks, column, true);
    }
    let (names, nodes, cut) = merged.into_nodes(limit, has_before);
    (flame.names, flame.nodes) = (names, nodes);
    flame.cut += cut;
    context.json(&WindowResponse { window, coverage, before, of: flame })
}

/// An answer about a part of the window.
#[derive(Serialize)]
pub(super) struct WindowResponse<T> {
    pub(super) window: Window,
    pub(super) coverage: Coverage,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Window>,
    #[serde(flatten)]
    pub(super) of: T,
}

/// `GET /profiles/download`.
pub(super) fn download(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&[&WANTED[..], &["format"]].concat())?;
    let wanted = Wanted::read(context)?;
    let format = context.query.choice("format", &["pprof", "folded", "svg", "speedscope", "perfetto", "firefox"])?;
    if matches!(format, "perfetto" | "firefox") {
        return timelines::make(context, wanted.agent.as_deref(), wanted.counted, format);
    }
    let summed = wanted.sum_up(context, &mut Window::of(context)?)?;
    let nothing = || ApiError::new(StatusCode::NOT_FOUND, "there are no stacks of this type in this time");
    let counted = wanted.counted;
    let (shown, stacks) = (summed.shown(counted).ok_or_else(nothing)?, &summed.stacks);
    let title = shown.title(stacks.totals()[counted.column()]);
    let name = format!("{}-{}", wanted.agent.as_deref().unwrap_or("all"), counted.id());
    match format {
        "pprof" => context.file(format!("{name}.pb.gz"), "application/octet-stream", |out| {
            pprof::write(stacks, &shown.about(&title), out)
        }),
        "folded" => context.file(format!("{name}.folded"), "text/plain; charset=utf-8", |out| {
            stacks.write_folded(counted.column(), counted.folded_divisor(), None, out)
        }),
        "svg" => {
            context.file(format!("{name}.svg"), "image/svg+xml", |out| flamegraph::write(stacks, counted, &title, out))
        }
        _ => context.file(format!("{name}.speedscope.json"), "application/json", |out| {
            speedscope::write(stacks, counted, &title, out)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_profile::{ProfileFrame, ProfileSample, Site};

    fn stacks(stacks_of: &[(&[&'static str], u64)]) -> Stacks {
        let mut stacks = Stacks::default();
        for (frames, value) in stacks_of {
            let frame = |name: &&'static str| ProfileFrame { function: Some((*name).into()), site: Site::default() };
            let frames = frames.iter().rev().map(frame).collect();
            stacks.add(&ProfileSample { frames, value: *value, agent: "p".into(), ..ProfileSample::default() });
        }
        stacks.merged(|_| true, false, false)
    }

    #[test]
    fn two_spans_of_time_share_one_tree() {
        let mut merged = Merged::default();
        merged.add(&stacks(&[(&["a", "b"], 3), (&["a"], 1)]), 0, false);
        merged.add(&stacks(&[(&["a", "c"], 5), (&["a", "b"], 2)]), 0, true);
        let (names, nodes, cut) = merged.into_nodes(10, true);
        let name = |at: usize| names[nodes.name[at] as usize].as_str();
        let shown: Vec<_> = (0..nodes.name.len())
            .map(|at| (name(at), nodes.parent[at], nodes.value[at], nodes.own[at], nodes.before[at]))
            .collect();
        assert_eq!(shown, [("a", -1, 4, 1, 7), ("b", 0, 3, 3, 2), ("c", 0, 0, 0, 5)]);
        assert_eq!(cut, 0);
    }

    #[test]
    fn the_smallest_nodes_are_added_to_their_callers() {
        let mut merged = Merged::default();
        merged.add(&stacks(&[(&["a", "b"], 90), (&["a", "c", "d"], 9), (&["e"], 1)]), 0, false);
        let (_, nodes, cut) = merged.into_nodes(2, false);
        assert_eq!((nodes.value, nodes.own, cut), (vec![99, 90], vec![9, 90], 3));
    }
}
