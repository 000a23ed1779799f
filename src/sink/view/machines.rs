//! Sums of the events of Endless machines: of every event, by machine, name and step of 10 seconds, in bounded memory.
//!
//! When there is not enough memory, steps become longer, the oldest first. What further machines and names have sent is counted without
//! them. So no sum changes.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::recent_senders::RecentSenders;
use crate::rows::Rows;
use crate::services::{NANOS_PER_STEP, STEPS, pop_if};
use tributary_event::{
    AgentFacts, Batch, EventView, Kind, Name, Origin, Resource, ResourceValue, UnixNanos, ValueView, semconv,
};

/// The number that stands for all machines or names without a row.
pub const OTHERS: u32 = u32::MAX;
/// The most machines and the most names.
const MAX_ROWS: usize = 20_000;
/// Memory of a count of the present step.
const PRESENT_BYTES: usize = 24;

/// The sums of all machines.
#[derive(Debug)]
pub struct MachineSums {
    limit: usize,
    hasher: RandomState,
    machines: Rows<Machine>,
    names: Rows<MachineEventName>,
    /// Steps that have ended, the oldest first.
    steps: VecDeque<MachineStep>,
    now: u64,
    present: HashMap<(u32, u32), u32, RandomState>,
    /// Bytes of the texts of machines and names, and of the counts of steps that have ended.
    bytes: [usize; 2],
    recent: RecentSenders,
}

/// A machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// `endless.machine.id`, or else a fingerprint of address, image and site.
    pub id: String,
    /// What the agent is called.
    pub name: String,
    /// Its address without the port.
    pub peer: String,
    /// `endless.image`.
    pub image: String,
    /// Product, branch and architecture of the image; empty: not known.
    pub image_parts: [String; 3],
    /// Its site in words.
    pub site: String,
    /// Whether it runs from a removable medium.
    pub is_live: bool,
    /// Whether it has a second system.
    pub is_dualboot: bool,
    /// When its last event was read, in milliseconds since 1970.
    pub last_ms: u64,
    last: u64,
}

/// The name of events, or their id if they have none.
#[derive(Clone, Debug)]
pub struct MachineEventName {
    /// The name.
    pub text: Box<str>,
    /// The kind of the first of its events.
    pub kind: Kind,
    last: u64,
}

/// Events of one or more steps.
#[derive(Debug)]
struct MachineStep {
    first: u64,
    last: u64,
    counts: Vec<MachineCount>,
}

/// Events of a machine with one name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MachineCount {
    /// The number of the machine, or [`OTHERS`].
    pub machine: u32,
    /// The number of the name, or [`OTHERS`].
    pub name: u32,
    /// The number of events.
    pub events: u32,
}

impl Machine {
    /// The machine that sends with this origin and resource.
    pub fn of(origin: &Origin, resource: &Resource) -> Machine {
        let text = |name| resource.text(name).unwrap_or_default().to_owned();
        let is_set = |name: Name| {
            let is_it = |(key, value): &(String, _)| key == name.as_str() && *value == ResourceValue::Bool(true);
            resource.attributes().iter().any(is_it)
        };
        let parts =
            [semconv::ENDLESS_IMAGE_PRODUCT, semconv::ENDLESS_IMAGE_BRANCH, semconv::ENDLESS_IMAGE_ARCHITECTURE];
        let mut machine = Machine {
            id: text(semconv::ENDLESS_MACHINE_ID),
            image: text(semconv::ENDLESS_IMAGE),
            image_parts: parts.map(text),
            is_live: is_set(semconv::ENDLESS_LIVE),
            is_dualboot: is_set(semconv::ENDLESS_DUALBOOT),
            ..Machine::default()
        };
        let facts = AgentFacts::of(resource.attributes());
        machine.peer = origin.peer_address().0.to_owned();
        machine.name = facts.name(origin.protocol, &origin.listener, &origin.peer).into_text();
        machine.site = facts.site;
        if machine.id.is_empty() {
            let Machine { peer, image, site, .. } = &machine;
            machine.id = format!("{:08x}", crc32c::crc32c(format!("{peer} {image} {site}").as_bytes()));
        }
        machine
    }

    fn texts_bytes(&self) -> usize {
        let texts = [&self.id, &self.name, &self.peer, &self.image, &self.site];
        texts.into_iter().chain(&self.image_parts).map(String::len).sum()
    }
}

impl MachineSums {
    /// No sums, in about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        MachineSums {
            limit,
            hasher: RandomState::default(),
            machines: Rows::new(MAX_ROWS),
            names: Rows::new(MAX_ROWS),
            steps: VecDeque::new(),
            now: 0,
            present: HashMap::default(),
            bytes: [0; 2],
            recent: RecentSenders::default(),
        }
    }

    /// Sets the most bytes. With fewer than before, all sums are dropped.
    pub fn set_limit(&mut self, limit: usize) {
        if limit < self.limit {
            *self = MachineSums { now: self.now, ..MachineSums::new(limit) };
        }
        self.limit = limit;
    }

    /// Bytes of memory, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.rows_bytes() + self.bytes[1] + self.present.len() * PRESENT_BYTES
    }

    fn rows_bytes(&self) -> usize {
        self.bytes[0] + self.machines.memory_bytes() + self.names.memory_bytes()
    }

    /// Adds the events of a batch of Endless machines. It was read by `now`.
    pub fn add(&mut self, batch: &Batch, now: UnixNanos) {
        self.advance(now);
        for event in batch.events() {
            let Some(name) = name_of(event) else { continue };
            let machine = self.recent_machine(event);
            let name = self.name(name, event.kind());
            self.count(machine, name);
            if let Some(row) = self.machines.get_mut(machine) {
                row.last_ms = row.last_ms.max(event.observed().0 / 1_000_000);
                row.last = self.now;
            }
        }
    }

    /// Adds an event to the present step. Where there is no memory for another count, it is added to those without a machine.
    fn count(&mut self, machine: u32, name: u32) {
        let is_full = (self.present.len() + 1) * PRESENT_BYTES > self.limit / 4;
        let is_known = |key| self.present.contains_key(&key);
        let key = match is_full {
            true if !is_known((machine, name)) && is_known((OTHERS, name)) => (OTHERS, name),
            true if !is_known((machine, name)) => (OTHERS, OTHERS),
            _ => (machine, name),
        };
        let events = self.present.entry(key).or_default();
        *events = events.saturating_add(1);
    }

    /// The number of the machine of an event.
    fn recent_machine(&mut self, event: EventView<'_>) -> u32 {
        if let Some(machine) = self.recent.get(event) {
            return machine;
        }
        let number = self.machine(Machine::of(event.origin(), event.resource()));
        self.recent.add(event, number);
        number
    }

    fn machine(&mut self, machine: Machine) -> u32 {
        let hash = self.hasher.hash_one(&machine.id);
        if let Some(known) = self.machines.find(hash, |row| row.id == machine.id) {
            return known;
        }
        let bytes = machine.texts_bytes();
        if self.rows_bytes() + bytes + size_of::<Machine>() > self.limit / 2 {
            return OTHERS;
        }
        let added = self.machines.add(hash, machine);
        self.bytes[0] += if added.is_some() { bytes } else { 0 };
        added.unwrap_or(OTHERS)
    }

    fn name(&mut self, text: &str, kind: Kind) -> u32 {
        let hash = self.hasher.hash_one(text);
        let known = self.names.find(hash, |row| *row.text == *text);
        let number = known.or_else(|| {
            if self.rows_bytes() + text.len() + size_of::<MachineEventName>() > self.limit / 2 {
                return None;
            }
            let added = self.names.add(hash, MachineEventName { text: text.into(), kind, last: self.now })?;
            self.bytes[0] += text.len();
            Some(added)
        });
        if let Some(row) = number.and_then(|number| self.names.get_mut(number)) {
            row.last = self.now;
        }
        number.unwrap_or(OTHERS)
    }

    /// Ends the steps that are over, and forgets what is too old.
    pub fn advance(&mut self, now: UnixNanos) {
        let now = now.0 / NANOS_PER_STEP;
        if now <= self.now {
            return;
        }
        let ended = std::mem::replace(&mut self.now, now);
        let count = |((machine, name), events)| MachineCount { machine, name, events };
        let mut counts: Vec<_> = self.present.drain().map(count).collect();
        self.present.shrink_to(64);
        if !counts.is_empty() {
            counts.sort_unstable();
            self.bytes[1] += MachineStep::bytes(&counts);
            self.steps.push_back(MachineStep { first: ended, last: ended, counts });
        }
        let oldest = (now + 1).saturating_sub(STEPS);
        while let Some(step) = pop_if(&mut self.steps, |step| step.last < oldest) {
            self.bytes[1] -= MachineStep::bytes(&step.counts);
        }
        while self.bytes[1] > self.limit / 4 && self.lengthen_steps() {}
        // Rows stay as long as there are counts with their numbers.
        self.forget(self.steps.front().map_or(now, |step| step.first));
    }

    /// Joins the older half of the steps two by two; of one step that has all the memory, the machines are given up. `false`: there is
    /// nothing to join.
    fn lengthen_steps(&mut self) -> bool {
        let most = self.limit / 4;
        let mut older: Vec<_> = self.steps.drain(..self.steps.len().div_ceil(2)).collect();
        let is_joined = if older.len() > 1 {
            older = older.chunks(2).map(MachineStep::joined).collect();
            true
        } else {
            let is_large = |step: &&mut MachineStep| MachineStep::bytes(&step.counts) > most / 2;
            older.iter_mut().filter(is_large).map(MachineStep::give_up_machines).count() > 0
        };
        older.into_iter().rev().for_each(|step| self.steps.push_front(step));
        self.bytes[1] = self.steps.iter().map(|step| MachineStep::bytes(&step.counts)).sum();
        is_joined
    }

    /// Removes the machines and names that have no events since this step.
    fn forget(&mut self, oldest: u64) {
        let mut bytes = 0;
        self.machines.retain(|_, machine| {
            let stays = machine.last >= oldest;
            bytes += if stays { machine.texts_bytes() } else { 0 };
            stays
        });
        self.names.retain(|_, name| {
            let stays = name.last >= oldest;
            bytes += if stays { name.text.len() } else { 0 };
            stays
        });
        self.bytes[0] = bytes;
        self.recent.clear();
    }

    /// A machine.
    pub fn machine_of(&self, number: u32) -> Option<&Machine> {
        self.machines.get(number)
    }

    /// The name of events.
    pub fn name_of(&self, number: u32) -> Option<&MachineEventName> {
        self.names.get(number)
    }

    /// The events in the steps from `first` to `last`, each with its step; of joined steps, the last one.
    pub fn counts(&self, (first, last): (u64, u64)) -> impl Iterator<Item = (u64, MachineCount)> {
        let ended = self.steps.iter().filter(move |step| step.last >= first && step.first <= last);
        let ended = ended.flat_map(|step| step.counts.iter().map(|count| (step.last, *count)));
        let has_present = (first..=last).contains(&self.now);
        let present = self.present.iter().filter(move |_| has_present);
        ended.chain(present.map(|((machine, name), events)| {
            (self.now, MachineCount { machine: *machine, name: *name, events: *events })
        }))
    }
}

impl MachineStep {
    fn bytes(counts: &[MachineCount]) -> usize {
        size_of::<MachineStep>() + size_of_val(counts)
    }

    /// One or two steps as one.
    fn joined(steps: &[MachineStep]) -> MachineStep {
        let counts = steps.iter().flat_map(|step| step.counts.iter().copied()).collect();
        let (first, last) = (steps[0].first, steps[steps.len() - 1].last);
        MachineStep { first, last, counts: MachineStep::summed(counts) }
    }

    fn give_up_machines(&mut self) {
        let without = |count: &MachineCount| MachineCount { machine: OTHERS, ..*count };
        self.counts = MachineStep::summed(self.counts.iter().map(without).collect());
    }

    /// One count for each machine and name.
    fn summed(mut counts: Vec<MachineCount>) -> Vec<MachineCount> {
        counts.sort_unstable();
        counts.dedup_by(|next, kept| {
            let is_same = (next.machine, next.name) == (kept.machine, kept.name);
            if is_same {
                kept.events = kept.events.saturating_add(next.events);
            }
            is_same
        });
        counts.shrink_to_fit();
        counts
    }
}

/// The name of an event of a machine; its id if it has none. `None`: it is about something else.
fn name_of(event: EventView<'_>) -> Option<&str> {
    let mut id = None;
    for member in event.attribute_members() {
        if let ValueView::Text(text) = member.value() {
            match member.key().text().text() {
                "endless.event.name" => return Some(text.text()),
                "endless.event.id" => id = Some(text.text()),
                _ => {}
            }
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::services::STEP_SECONDS;
    use tributary_event::{BatchBuilder, Header, Position, Severity};

    /// 2026-11-20T10:40:00Z.
    const START: u64 = 1_795_171_200;

    /// One event of each machine and name, read at this second.
    fn batch(machines: std::ops::Range<u64>, names: u64, at: u64) -> Batch {
        let origin = Origin::new("endless", "test".into(), "10.0.0.1:7".into(), 1);
        let mut batch = BatchBuilder::new(origin.into());
        for machine in machines {
            let text = |text: String| ResourceValue::Text(text);
            let resource = Resource::new([
                (semconv::ENDLESS_MACHINE_ID.as_str().to_owned(), text(format!("machine {machine}"))),
                (semconv::ENDLESS_IMAGE.as_str().to_owned(), text(format!("image {}", machine % 3))),
            ]);
            let resource = batch.intern_resource(&mut Default::default(), &Arc::new(resource));
            for name in 0..names {
                let observed = UnixNanos((START + at) * 1_000_000_000);
                let text = batch.push_text(&format!("name {name}"));
                let header =
                    Header { name: semconv::ENDLESS_EVENT.into(), time: None, observed, position: Position::default() };
                let mut event = batch.event(header);
                event.resource(resource);
                event.attribute(semconv::ENDLESS_EVENT_NAME, text);
                event.log(Severity::Info, None);
            }
        }
        batch.take()
    }

    fn add(sums: &mut MachineSums, machines: std::ops::Range<u64>, names: u64, at: u64) {
        sums.add(&batch(machines, names, at), UnixNanos((START + at) * 1_000_000_000));
    }

    /// Events by machine, of all steps.
    fn by_machine(sums: &MachineSums) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (_, count) in sums.counts((0, u64::MAX)) {
            let machine = sums.machine_of(count.machine).map_or("others", |machine| &machine.id);
            *all.entry(machine.to_owned()).or_default() += u64::from(count.events);
        }
        all
    }

    #[test]
    fn every_event_is_counted_by_machine_name_and_step() {
        let mut sums = MachineSums::new(1 << 20);
        add(&mut sums, 0..5, 3, 0);
        add(&mut sums, 0..2, 1, 9);
        add(&mut sums, 0..5, 3, 25);
        let first = START / STEP_SECONDS;
        let of = |steps| sums.counts(steps).map(|(_, count)| u64::from(count.events)).sum::<u64>();
        assert_eq!([of((first, first)), of((first + 1, first + 1)), of((first, first + 2))], [17, 0, 32]);
        let machines = by_machine(&sums);
        assert_eq!((machines["machine 0"], machines["machine 4"], machines.len()), (7, 6, 5));
        let name = |count: &MachineCount| &*sums.name_of(count.name).unwrap().text == "name 0";
        assert_eq!(sums.counts((0, u64::MAX)).filter(|(_, count)| name(count)).count(), 10);
        // What left the window is gone with its machines.
        add(&mut sums, 7..8, 1, 25 + STEPS * STEP_SECONDS);
        assert_eq!(by_machine(&sums), BTreeMap::from([("machine 7".to_owned(), 1)]));
        assert_eq!((sums.machines.len(), sums.names.len()), (1, 1));
    }

    #[test]
    fn without_memory_steps_and_machines_become_coarser_and_no_sum_changes() {
        for limit in [4 << 10, 16 << 10, 64 << 10] {
            let mut sums = MachineSums::new(limit);
            for step in 0..STEPS {
                add(&mut sums, step..step + 40, 5, step * STEP_SECONDS);
                assert!(sums.memory_bytes() <= limit + 4096, "{limit}: {}", sums.memory_bytes());
            }
            assert_eq!(by_machine(&sums).values().sum::<u64>(), STEPS * 40 * 5, "{limit}");
        }
    }
}
