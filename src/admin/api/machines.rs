//! Machines of Endless: what they report, by name over time, by image and site; and one machine.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{ApiError, Made, ResponseMemory};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::events::newest;
use crate::admin::agents::attributes;
use tributary_event::{AgentFacts, EventView, Kind, Origin, Resource, ResourceValue, ValueView, semconv};
use tributary_protocol::Protocol;
use tributary_sink_view::{Class, Snapshot};

/// Machines, names, images and sites that have rows of their own; what belongs to further ones is counted as
/// `(others)`.
const MAX_ROWS: usize = 20_000;
/// The names whose history is shown; the others are together.
const TOP_NAMES: usize = 10;
/// The steps of a history.
const STEPS: u64 = 60;
const OTHERS: &str = "(others)";
/// Memory of a group with its history and its row, and of a machine in a group.
const GROUP_BYTES: usize = size_of::<Group>() + STEPS as usize * 8 + 512;
const PLACE_BYTES: usize = 24;

#[derive(Serialize, Clone)]
struct Machine {
    id: String,
    name: String,
    peer: String,
    image: String,
    site: String,
    events: u64,
    last_ms: u64,
    is_live: bool,
    is_dualboot: bool,
    #[serde(skip)]
    resource: Arc<Resource>,
}

impl Machine {
    /// Memory of it and of its row, with its id a second time.
    fn memory_bytes(&self) -> usize {
        let texts = 2 * self.id.len() + self.peer.len() + self.image.len() + self.site.len();
        2 * (size_of::<Machine>() + texts) + 256
    }
}

/// Events, and the machines that sent them.
#[derive(Default)]
struct Group {
    kind: &'static str,
    events: u64,
    machines: HashSet<usize>,
}

/// Everything that a snapshot says of machines.
#[derive(Default)]
struct Fleet {
    machines: Vec<Machine>,
    places: BTreeMap<String, usize>,
    names: BTreeMap<String, Group>,
    steps: BTreeMap<String, Vec<u64>>,
    images: BTreeMap<String, Group>,
    sites: BTreeMap<String, Group>,
    left_out: u64,
    /// The last connection and resource, and their machine.
    last: Option<(Arc<Origin>, Arc<Resource>, usize)>,
}

/// Which events are wanted.
struct MachineFilter<'a> {
    image: Option<&'a str>,
    site: Option<&'a str>,
    name: Option<&'a str>,
    text: Option<String>,
    machine: Option<&'a str>,
}

impl Fleet {
    /// As far as the memory of the answer goes; what further machines have sent is counted.
    fn of(snapshot: &Snapshot, window: Window, filter: &MachineFilter<'_>, memory: &ResponseMemory) -> Fleet {
        let mut fleet = Fleet::default();
        let step_ms = (window.limit_ms / STEPS).max(1);
        for (_, kept) in &snapshot.batches {
            let batch = kept.batch();
            for event in batch.events() {
                let Some(name) = name_of(event) else { continue };
                if filter.name.is_some_and(|wanted| wanted != name) {
                    continue;
                }
                let Some(place) = fleet.machine(event, memory) else {
                    fleet.left_out += 1;
                    continue;
                };
                let machine = &mut fleet.machines[place];
                if !filter.accepts(machine) {
                    continue;
                }
                machine.events += 1;
                machine.last_ms = machine.last_ms.max(event.observed().0 / 1_000_000);
                let (image, site) = (machine.image.clone(), machine.site.clone());
                let kind = event.kind().as_str();
                count(&mut fleet.images, &image, kind, place, memory);
                count(&mut fleet.sites, &site, kind, place, memory);
                let name = count(&mut fleet.names, name, kind, place, memory);
                let at_ms = event.observed().0 / 1_000_000;
                let step = (at_ms.saturating_sub(window.from_ms) / step_ms).min(STEPS - 1);
                fleet.steps.entry(name).or_insert_with(|| vec![0; STEPS as usize])[step as usize] += 1;
            }
        }
        fleet
    }

    /// The place of the machine that has sent an event. `None`: there are too many.
    fn machine(&mut self, event: EventView<'_>, memory: &ResponseMemory) -> Option<usize> {
        let (origin, resource) = (event.origin(), event.resource());
        if let Some((known_origin, known_resource, place)) = &self.last
            && Arc::ptr_eq(known_origin, origin)
            && Arc::ptr_eq(known_resource, resource)
        {
            return Some(*place);
        }
        let machine = describe(origin, resource);
        let place = match self.places.get(&machine.id) {
            Some(place) => *place,
            None if self.machines.len() >= MAX_ROWS || !memory.take(machine.memory_bytes()) => return None,
            None => {
                self.places.insert(machine.id.clone(), self.machines.len());
                self.machines.push(machine);
                self.machines.len() - 1
            }
        };
        self.last = Some((origin.clone(), resource.clone(), place));
        Some(place)
    }

    /// Events by name.
    fn names(&self) -> Vec<Value> {
        let row = |name: &String, group: &Group| json!({ "name": name, "kind": group.kind, "events": group.events, "machines": group.machines.len() });
        sorted(&self.names).into_iter().map(|(name, group)| row(name, group)).collect()
    }

    /// Events of the most frequent names over time.
    fn history(&self, window: Window) -> Value {
        let mut shown = serde_json::Map::new();
        let mut others = vec![0u64; STEPS as usize];
        for (place, (name, _)) in sorted(&self.names).into_iter().enumerate() {
            let Some(steps) = self.steps.get(name) else { continue };
            if place < TOP_NAMES && name != OTHERS {
                shown.insert(name.clone(), json!(steps));
            } else {
                others.iter_mut().zip(steps).for_each(|(sum, more)| *sum += more);
            }
        }
        if others.iter().any(|sum| *sum > 0) {
            shown.insert(OTHERS.to_owned(), json!(others));
        }
        json!({ "step_ms": (window.limit_ms / STEPS).max(1), "from_ms": window.from_ms, "names": shown })
    }
}

impl MachineFilter<'_> {
    fn accepts(&self, machine: &Machine) -> bool {
        let has = |wanted: Option<&str>, own: &str| wanted.is_none_or(|wanted| wanted == own);
        let texts = [&machine.id, &machine.name, &machine.peer, &machine.image, &machine.site];
        has(self.image, &machine.image)
            && has(self.site, &machine.site)
            && has(self.machine, &machine.id)
            && self.text.as_ref().is_none_or(|text| texts.iter().any(|own| own.to_lowercase().contains(text)))
    }
}

/// Adds an event to a group. Returns the name of the group.
fn count(
    groups: &mut BTreeMap<String, Group>,
    name: &str,
    kind: &'static str,
    machine: usize,
    memory: &ResponseMemory,
) -> String {
    let is_known = groups.contains_key(name) || (groups.len() < MAX_ROWS && memory.take(GROUP_BYTES + name.len()));
    let name = if is_known { name } else { OTHERS };
    let group = groups.entry(name.to_owned()).or_default();
    group.kind = kind;
    group.events += 1;
    if !group.machines.contains(&machine) && memory.take(PLACE_BYTES) {
        group.machines.insert(machine);
    }
    name.to_owned()
}

/// The groups with the most events first.
fn sorted(groups: &BTreeMap<String, Group>) -> Vec<(&String, &Group)> {
    let mut sorted: Vec<_> = groups.iter().collect();
    sorted.sort_by_key(|(_, group)| std::cmp::Reverse(group.events));
    sorted
}

/// The name of an event of a machine; its id if it has none. `None`: it is about something else.
fn name_of(event: EventView<'_>) -> Option<&str> {
    let mut number = None;
    for member in event.attribute_members() {
        if let ValueView::Text(text) = member.value() {
            match member.key().text().text() {
                "endless.event.name" => return Some(text.text()),
                "endless.event.id" => number = Some(text.text()),
                _ => {}
            }
        }
    }
    number
}

fn describe(origin: &Origin, resource: &Arc<Resource>) -> Machine {
    let (mut image, mut id) = (String::new(), None);
    let (mut is_live, mut is_dualboot) = (false, false);
    for (key, value) in resource.attributes() {
        match (key.as_str(), value) {
            (name, ResourceValue::Text(text)) if name == semconv::ENDLESS_IMAGE.as_str() => image.clone_from(text),
            (name, ResourceValue::Text(text)) if name == semconv::ENDLESS_MACHINE_ID.as_str() => {
                id = Some(text.clone());
            }
            (name, ResourceValue::Bool(value)) if name == semconv::ENDLESS_LIVE.as_str() => is_live = *value,
            (name, ResourceValue::Bool(value)) if name == semconv::ENDLESS_DUALBOOT.as_str() => is_dualboot = *value,
            _ => {}
        }
    }
    let peer = origin.peer_address().0.to_owned();
    let facts = AgentFacts::of(resource.attributes());
    let name = facts.name(origin.protocol, &origin.listener, &origin.peer).into_text();
    let site = facts.site;
    let fingerprint = || format!("{:08x}", crc32c::crc32c(format!("{peer} {image} {site}").as_bytes()));
    let id = id.unwrap_or_else(fingerprint);
    Machine { id, name, peer, image, site, events: 0, last_ms: 0, is_live, is_dualboot, resource: resource.clone() }
}

fn taken(context: &ApiContext, window: Window) -> Result<(Snapshot, Coverage), ApiError> {
    let protocol = Protocol::Endless.as_str();
    let snapshot = snapshot(context, window, &[Class::Logs, Class::Metrics], |name, _| name == protocol)?;
    let is_endless = |_: &str, protocol: Protocol| protocol == Protocol::Endless;
    let coverage = Coverage::of(context, window, &[Kind::Log, Kind::Metric], is_endless, kept(&snapshot));
    Ok((snapshot, coverage))
}

/// `GET /machines`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    let query = &context.query;
    query.only(&["image", "site", "name", "text", "limit"])?;
    let (window, limit) = (Window::whole(context)?, query.limit(200, 10_000)?);
    let (snapshot, coverage) = taken(context, window)?;
    let text = query.text("text").map(str::to_lowercase);
    let filter = MachineFilter {
        image: query.text("image"),
        site: query.text("site"),
        name: query.text("name"),
        text,
        machine: None,
    };
    let fleet = Fleet::of(&snapshot, window, &filter, &context.memory.half());
    let image = |(image, group): (&String, &Group)| {
        let machine = group.machines.iter().next().map(|place| &fleet.machines[*place]);
        let part = |name: tributary_event::Name| machine.and_then(|machine| machine.resource.text(name));
        json!({
            "image": image, "product": part(semconv::ENDLESS_IMAGE_PRODUCT), "branch": part(semconv::ENDLESS_IMAGE_BRANCH),
            "architecture": part(semconv::ENDLESS_IMAGE_ARCHITECTURE), "events": group.events,
            "machines": group.machines.len(),
        })
    };
    let site = |(site, group): (&String, &Group)| json!({ "text": site, "events": group.events, "machines": group.machines.len() });
    let images: Vec<Value> = sorted(&fleet.images).into_iter().take(limit).map(image).collect();
    let sites: Vec<Value> = sorted(&fleet.sites).into_iter().take(limit).map(site).collect();
    let mut machines: Vec<&Machine> = fleet.machines.iter().filter(|machine| machine.events > 0).collect();
    machines.sort_by_key(|machine| std::cmp::Reverse(machine.last_ms));
    let total = machines.len();
    machines.truncate(limit);
    let names: Vec<Value> = fleet.names().into_iter().take(limit).collect();
    context.json(&json!({
        "window": window, "coverage": coverage, "names": names, "history": fleet.history(window), "images": images,
        "sites": sites, "machines": machines, "total": total, "left_out": fleet.left_out,
    }))
}

/// `GET /machines/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&["limit"])?;
    let (window, limit) = (Window::whole(context)?, context.query.limit(200, 1000)?);
    let (snapshot, coverage) = taken(context, window)?;
    let filter = MachineFilter { image: None, site: None, name: None, text: None, machine: Some(id) };
    let fleet = Fleet::of(&snapshot, window, &filter, &context.memory.half());
    let machine = fleet.places.get(id).and_then(|place| fleet.machines.get(*place));
    let machine = machine.filter(|machine| machine.events > 0).ok_or_else(|| ApiError::gone("machine"))?;
    let mut last: Option<(Arc<Origin>, Arc<Resource>, bool)> = None;
    let (events, _) = newest(context, &snapshot, limit, |event, _| {
        let (origin, resource) = (event.origin(), event.resource());
        match &last {
            Some((known, of, is_its)) if Arc::ptr_eq(known, origin) && Arc::ptr_eq(of, resource) => *is_its,
            _ => {
                let is_its = describe(origin, resource).id == id;
                last = Some((origin.clone(), resource.clone(), is_its));
                is_its
            }
        }
    })?;
    let mut shown = serde_json::to_value(machine).map_err(|_| ApiError::failed())?;
    shown["resource"] = attributes(machine.resource.attributes());
    context.json(&json!({
        "window": window, "coverage": coverage, "machine": shown, "names": fleet.names(),
        "history": fleet.history(window), "events": events,
    }))
}
