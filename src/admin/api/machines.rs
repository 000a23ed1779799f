//! Machines of Endless: what they report, by name over time, by image and site; and one machine.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{ApiError, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::events::newest;
use super::history::now_ms;
use crate::admin::agents::attributes;
use tributary_event::{Kind, Origin, Resource};
use tributary_protocol::Protocol;
use tributary_sink_view::Class;
use tributary_sink_view::machines::{Machine, MachineCount, MachineSums};
use tributary_sink_view::services::{STEP_SECONDS, STEPS};

/// Machines, names, images and sites that have rows of their own; what belongs to further ones is counted as
/// `(others)`.
const MAX_ROWS: usize = 20_000;
/// The names whose history is shown; the others are together.
const TOP_NAMES: usize = 10;
const STEP_MS: u64 = STEP_SECONDS * 1000;
const OTHERS: &str = "(others)";
/// Memory of a group with its history and its row, and of a machine in a group.
const GROUP_BYTES: usize = size_of::<Group>() + STEPS as usize * 8 + 512;
const PLACE_BYTES: usize = 24;
/// Memory of a machine and of its row, beside its texts.
const MACHINE_BYTES: usize = 2 * size_of::<MachineRow<'static>>() + 256;

/// The steps over which an answer sums up.
#[derive(Clone, Copy, Serialize)]
struct Steps {
    from_ms: u64,
    to_ms: u64,
    limit_ms: u64,
    #[serde(skip)]
    first: u64,
    #[serde(skip)]
    last: u64,
}

/// A machine with its events.
#[derive(Serialize)]
struct MachineRow<'a> {
    id: &'a str,
    name: &'a str,
    peer: &'a str,
    image: &'a str,
    site: &'a str,
    events: u64,
    last_ms: u64,
    is_live: bool,
    is_dualboot: bool,
}

/// Events, and the machines that sent them.
#[derive(Default)]
struct Group {
    kind: &'static str,
    events: u64,
    machines: HashSet<u32>,
}

/// What the sums of machines say of some of their events.
#[derive(Default)]
struct Fleet<'a> {
    machines: BTreeMap<u32, MachineRow<'a>>,
    names: BTreeMap<&'a str, Group>,
    steps: BTreeMap<&'a str, Vec<u64>>,
    images: BTreeMap<&'a str, Group>,
    sites: BTreeMap<&'a str, Group>,
    /// Events of machines without a row.
    left_out: u64,
}

/// Which events are wanted.
struct MachineFilter<'a> {
    image: Option<&'a str>,
    site: Option<&'a str>,
    name: Option<&'a str>,
    text: Option<String>,
    machine: Option<&'a str>,
}

impl Steps {
    /// Those of `from_ms` and `to_ms`, widened to whole steps.
    fn of(context: &ApiContext) -> Result<Steps, ApiError> {
        let (first, last) = context.query.steps(STEP_MS, STEPS, now_ms())?;
        let (from_ms, to_ms) = (first * STEP_MS, (last + 1) * STEP_MS);
        Ok(Steps { from_ms, to_ms, limit_ms: STEPS * STEP_MS, first, last })
    }
}

impl<'a> Fleet<'a> {
    /// As far as the memory of the answer goes; what further machines have sent is counted.
    fn of(sums: &'a MachineSums, steps: Steps, filter: &MachineFilter<'_>, memory: &ResponseMemory) -> Fleet<'a> {
        let mut fleet = Fleet::default();
        let mut accepted = HashMap::new();
        for (step, count) in sums.counts((steps.first, steps.last)) {
            let name = sums.name_of(count.name);
            let text = name.map_or(OTHERS, |name| &name.text);
            if filter.name.is_some_and(|wanted| wanted != text) {
                continue;
            }
            let machine = sums.machine_of(count.machine);
            if !*accepted.entry(count.machine).or_insert_with(|| filter.accepts(machine)) {
                continue;
            }
            let events = u64::from(count.events);
            if !fleet.add_to_machine(count, machine, memory) {
                fleet.left_out += events;
            }
            let kind = name.map_or(Kind::Log, |name| name.kind).as_str();
            let [image, site] = machine.map_or([OTHERS; 2], |machine| [&machine.image, &machine.site]);
            add(&mut fleet.images, image, kind, count, memory);
            add(&mut fleet.sites, site, kind, count, memory);
            let text = add(&mut fleet.names, text, kind, count, memory);
            let values = fleet.steps.entry(text).or_insert_with(|| vec![0; (steps.last - steps.first + 1) as usize]);
            values[(step.clamp(steps.first, steps.last) - steps.first) as usize] += events;
        }
        fleet
    }

    /// `false`: the machine has no row, here or in the sums.
    fn add_to_machine(&mut self, count: MachineCount, machine: Option<&'a Machine>, memory: &ResponseMemory) -> bool {
        let Some(machine) = machine else { return false };
        if let Some(row) = self.machines.get_mut(&count.machine) {
            row.events += u64::from(count.events);
            return true;
        }
        let Machine { id, name, peer, image, site, is_live, is_dualboot, last_ms, .. } = machine;
        let texts = 2 * id.len() + peer.len() + image.len() + site.len();
        if !memory.take(MACHINE_BYTES + 2 * texts) {
            return false;
        }
        let (is_live, is_dualboot, last_ms) = (*is_live, *is_dualboot, *last_ms);
        let row =
            MachineRow { id, name, peer, image, site, events: count.events.into(), last_ms, is_live, is_dualboot };
        self.machines.insert(count.machine, row);
        true
    }

    /// Events by name.
    fn names(&self) -> Vec<Value> {
        let row = |name: &str, group: &Group| json!({ "name": name, "kind": group.kind, "events": group.events, "machines": group.machines.len() });
        sorted(&self.names).into_iter().map(|(name, group)| row(name, group)).collect()
    }

    /// Events of the most frequent names over time.
    fn history(&self, steps: Steps) -> Value {
        let mut shown = serde_json::Map::new();
        let mut others = vec![0u64; (steps.last - steps.first + 1) as usize];
        for (place, (name, _)) in sorted(&self.names).into_iter().enumerate() {
            let Some(values) = self.steps.get(name) else { continue };
            if place < TOP_NAMES && name != OTHERS {
                shown.insert(name.to_owned(), json!(values));
            } else {
                others.iter_mut().zip(values).for_each(|(sum, more)| *sum += more);
            }
        }
        if others.iter().any(|sum| *sum > 0) {
            shown.insert(OTHERS.to_owned(), json!(others));
        }
        json!({ "step_ms": STEP_MS, "from_ms": steps.from_ms, "names": shown })
    }
}

impl MachineFilter<'_> {
    /// `machine`: `None` stands for those that have no row.
    fn accepts(&self, machine: Option<&Machine>) -> bool {
        let Some(machine) = machine else {
            return self.image.is_none() && self.site.is_none() && self.machine.is_none() && self.text.is_none();
        };
        let has = |wanted: Option<&str>, own: &str| wanted.is_none_or(|wanted| wanted == own);
        let texts = [&machine.id, &machine.name, &machine.peer, &machine.image, &machine.site];
        has(self.image, &machine.image)
            && has(self.site, &machine.site)
            && has(self.machine, &machine.id)
            && self.text.as_ref().is_none_or(|text| texts.iter().any(|own| own.to_lowercase().contains(text)))
    }
}

/// Adds events to a group. Returns the name of the group.
fn add<'a>(
    groups: &mut BTreeMap<&'a str, Group>,
    name: &'a str,
    kind: &'static str,
    count: MachineCount,
    memory: &ResponseMemory,
) -> &'a str {
    let is_known = groups.contains_key(name) || (groups.len() < MAX_ROWS && memory.take(GROUP_BYTES + name.len()));
    let name = if is_known { name } else { OTHERS };
    let group = groups.entry(name).or_default();
    group.kind = kind;
    group.events += u64::from(count.events);
    if !group.machines.contains(&count.machine) && memory.take(PLACE_BYTES) {
        group.machines.insert(count.machine);
    }
    name
}

/// The groups with the most events first.
fn sorted<'g, 'a>(groups: &'g BTreeMap<&'a str, Group>) -> Vec<(&'a str, &'g Group)> {
    let mut sorted: Vec<_> = groups.iter().map(|(name, group)| (*name, group)).collect();
    sorted.sort_by_key(|(_, group)| std::cmp::Reverse(group.events));
    sorted
}

/// `GET /machines`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    let query = &context.query;
    query.only(&["image", "site", "name", "text", "limit", "from_ms", "to_ms"])?;
    let (steps, limit) = (Steps::of(context)?, query.limit(200, 10_000)?);
    let filter = MachineFilter {
        image: query.text("image"),
        site: query.text("site"),
        name: query.text("name"),
        text: query.text("text").map(str::to_lowercase),
        machine: None,
    };
    context.view()?.machines(|sums| {
        let fleet = Fleet::of(sums, steps, &filter, &context.memory.half());
        let image = |(image, group): (&str, &Group)| {
            let machine = group.machines.iter().find_map(|number| sums.machine_of(*number));
            let part = |part: usize| machine.map(|machine| &machine.image_parts[part]).filter(|text| !text.is_empty());
            json!({
                "image": image, "product": part(0), "branch": part(1), "architecture": part(2), "events": group.events,
                "machines": group.machines.len(),
            })
        };
        let site = |(site, group): (&str, &Group)| json!({ "text": site, "events": group.events, "machines": group.machines.len() });
        let images: Vec<Value> = sorted(&fleet.images).into_iter().take(limit).map(image).collect();
        let sites: Vec<Value> = sorted(&fleet.sites).into_iter().take(limit).map(site).collect();
        let mut machines: Vec<_> = fleet.machines.values().collect();
        machines.sort_by_key(|machine| std::cmp::Reverse(machine.last_ms));
        let total = machines.len();
        machines.truncate(limit);
        let names: Vec<Value> = fleet.names().into_iter().take(limit).collect();
        context.json(&json!({
            "window": steps, "names": names, "history": fleet.history(steps), "images": images, "sites": sites,
            "machines": machines, "total": total, "left_out": fleet.left_out,
        }))
    })
}

/// `GET /machines/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["limit", "from_ms", "to_ms"])?;
    let (steps, limit) = (Steps::of(context)?, context.query.limit(200, 1000)?);
    let window = Window { from_ms: steps.from_ms, to_ms: steps.to_ms, ..Window::whole(context)? };
    let protocol = Protocol::Endless.as_str();
    let snapshot = snapshot(context, window, &[Class::Logs, Class::Metrics], |name, _| name == protocol)?;
    let is_endless = |_: &str, protocol: Protocol| protocol == Protocol::Endless;
    let coverage = Coverage::of(context, window, &[Kind::Log, Kind::Metric], is_endless, kept(&snapshot));
    let mut last: Option<(Arc<Origin>, Arc<Resource>, bool)> = None;
    let mut its_resource = None;
    let (events, _) = newest(context, &snapshot, limit, |event, _| {
        let (origin, resource) = (event.origin(), event.resource());
        match &last {
            Some((known, of, is_its)) if Arc::ptr_eq(known, origin) && Arc::ptr_eq(of, resource) => *is_its,
            _ => {
                let is_its = Machine::of(origin, resource).id == id;
                last = Some((origin.clone(), resource.clone(), is_its));
                if is_its {
                    its_resource.get_or_insert_with(|| resource.clone());
                }
                is_its
            }
        }
    })?;
    let filter = MachineFilter { image: None, site: None, name: None, text: None, machine: Some(id) };
    context.view()?.machines(|sums| {
        let fleet = Fleet::of(sums, steps, &filter, &context.memory.half());
        let machine = fleet.machines.values().next().ok_or_else(|| ApiError::gone("machine"))?;
        let mut shown = serde_json::to_value(machine).map_err(|_| ApiError::failed())?;
        shown["resource"] = its_resource.as_ref().map_or(Value::Null, |resource| attributes(resource.attributes()));
        context.json(&json!({
            "window": steps, "coverage": coverage, "machine": shown, "names": fleet.names(),
            "history": fleet.history(steps), "events": events,
        }))
    })
}
