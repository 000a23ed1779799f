//! The calls of a process in the order of time.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use serde::Serialize;

use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::coverage::{Window, snapshot};
use super::profiles::{WindowResponse, coverage, items};
use super::query::bad;
use tributary_profile::stacks::process_text;
use tributary_profile::{CallStep, ProfileItem};
use tributary_sink_view::Class;

/// The calls of a chart.
const MAX_CALLS: usize = 20_000;
/// The open calls of a thread that are remembered.
const MAX_OPEN: usize = 4096;
/// Memory of a name beside its text, of a thread, of an open call, and of a call that has ended.
const NAME_BYTES: usize = 128;
const STACK_BYTES: usize = 128;
const OPEN_BYTES: usize = 32;
const CALL_BYTES: usize = 128;

#[derive(Serialize, Default)]
struct Chart {
    agent: String,
    from_ms: u64,
    names: Vec<String>,
    threads: Vec<ChartThread>,
    is_cut: bool,
}

#[derive(Serialize, Default)]
struct ChartThread {
    name: String,
    calls: ChartCalls,
}

/// Calls by columns, by their start.
#[derive(Serialize, Default)]
struct ChartCalls {
    name: Vec<u32>,
    start_ns: Vec<u64>,
    duration_ns: Vec<u64>,
    depth: Vec<u32>,
}

/// A call in time.
struct Timed {
    name: u32,
    start: u64,
    end: u64,
}

/// `GET /profiles/chart`.
pub(super) fn make(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["agent", "thread", "from_ms", "to_ms"])?;
    let agent = context.query.text("agent").ok_or_else(|| bad("agent= must name a process"))?.to_owned();
    let (thread, window) = (context.query.text("thread"), Window::of(context)?);
    let snapshot = snapshot(context, window, &[Class::Spans, Class::Calls], |_, _| true)?;
    let mut numbers: HashMap<String, u32, RandomState> = HashMap::default();
    let mut threads: BTreeMap<String, Vec<Timed>> = BTreeMap::new();
    let mut open: HashMap<u64, Vec<(u32, u64)>, RandomState> = HashMap::default();
    let (mut calls, mut is_cut, memory) = (0, false, context.memory.half());
    items(&snapshot, |item| {
        let mut number = |name: &str| {
            let next = numbers.len() as u32;
            // A name is there twice. When there is no memory for more, calls of further names are left out.
            let has_space = numbers.contains_key(name) || memory.take(NAME_BYTES + 2 * name.len());
            has_space.then(|| *numbers.entry_ref(name).or_insert(next))
        };
        let (name, call) = match item {
            ProfileItem::Span(span) if process_text(&span.agent) == agent => {
                let (Some(start), Some(duration)) = (span.start, span.duration) else { return };
                let Some(name) = number(&span.name) else {
                    is_cut = true;
                    return;
                };
                let end = start.saturating_add(duration);
                (span.thread.as_deref().unwrap_or("").to_owned(), Timed { name, start, end })
            }
            ProfileItem::Call(call) if process_text(&call.agent) == agent => {
                if call.step == CallStep::Break {
                    return open.clear();
                }
                let (Some(name), at) = (number(&call.function), call.at.unwrap_or(0)) else {
                    is_cut = true;
                    return;
                };
                let is_known = open.contains_key(&call.thread_id);
                if !is_known && !memory.take(STACK_BYTES) {
                    is_cut = true;
                    return;
                }
                let stack = open.entry(call.thread_id).or_default();
                match call.step {
                    CallStep::Break => return,
                    CallStep::Entry if !memory.take(OPEN_BYTES) => {
                        is_cut = true;
                        return;
                    }
                    // A stack that never ends is not kept for ever.
                    CallStep::Entry if stack.len() < MAX_OPEN => return stack.push((name, at)),
                    CallStep::Entry => return,
                    CallStep::Exit => {
                        let Some(place) = stack.iter().rposition(|(open, _)| *open == name) else { return };
                        let (name, start) = stack[place];
                        stack.truncate(place);
                        let thread =
                            call.thread.as_deref().map_or_else(|| format!("thread {}", call.thread_id), str::to_owned);
                        (thread, Timed { name, start, end: at.max(start) })
                    }
                }
            }
            _ => return,
        };
        if thread.is_some_and(|thread| thread != name) {
            return;
        }
        if calls >= MAX_CALLS || !memory.take(CALL_BYTES) {
            is_cut = true;
            return;
        }
        calls += 1;
        threads.entry(name).or_default().push(call);
    });
    let coverage = coverage(context, window)?;
    let first = threads.values().flatten().map(|call| call.start).min().unwrap_or(0);
    let threads =
        threads.into_iter().map(|(name, calls)| ChartThread { name, calls: laid_out(calls, first) }).collect();
    let mut names = vec![String::new(); numbers.len()];
    numbers.into_iter().for_each(|(name, number)| names[number as usize] = name);
    let chart = Chart { agent, from_ms: first / 1_000_000, names, threads, is_cut };
    context.json(&WindowResponse { window, coverage, before: None, of: chart })
}

/// The calls of a thread with their depths.
fn laid_out(mut calls: Vec<Timed>, first: u64) -> ChartCalls {
    // Callers begin before their callees, and end after them.
    calls.sort_by(|a, b| a.start.cmp(&b.start).then_with(|| b.end.cmp(&a.end)));
    let (mut laid_out, mut ends): (ChartCalls, Vec<u64>) = (ChartCalls::default(), Vec::new());
    for Timed { name, start, end } in calls {
        while ends.last().is_some_and(|open| *open <= start && *open < end) {
            ends.pop();
        }
        laid_out.name.push(name);
        laid_out.start_ns.push(start - first);
        laid_out.duration_ns.push(end - start);
        laid_out.depth.push(ends.len() as u32);
        ends.push(end);
    }
    laid_out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_time_have_the_depth_of_the_calls_around_them() {
        let call = |name, start, end| Timed { name, start, end };
        let calls = laid_out(vec![call(1, 12, 20), call(0, 10, 100), call(2, 20, 30), call(3, 100, 110)], 10);
        assert_eq!((calls.name, calls.depth), (vec![0, 1, 2, 3], vec![0, 1, 1, 0]));
        assert_eq!(calls.start_ns, [0, 2, 10, 90]);
    }
}
