//! Identifies the bundle and its events, and finds those that were delivered before (rule 21).

use std::time::Duration;

use tributary_codec::gvariant::Slice;
use tributary_event::ContentId;
use tributary_protocol::RequestOutcome;

use super::dedup::{DedupCache, Fingerprint};
use super::shared::SharedExchange;
use super::shared_deliveries::{Delivered, FingerprintSet};
use super::wire::{Bundle, BundleLayout, Section};

/// Bundles and aggregates without unique content are identified together with the moment at which the agent's clock was 0.
/// It differs between machines and hardly drifts on one machine. It is rounded to steps of this many nanoseconds.
const ORIGIN_STEP_NANOS: i128 = 4_000_000_000;

/// The id of a bundle by the bytes behind its clocks, for sinks: the same in every daemon that gets it, whatever the moment at which
/// it was sent. `None`: it is empty, and never a repeat.
pub(super) fn content(bundle: &Bundle<'_>, body: &[u8], layout: BundleLayout) -> Option<ContentId> {
    if bundle.sections.iter().all(|section| section.is_empty()) {
        return None;
    }
    let stamp = layout.stamp_bytes().min(body.len());
    let whole = ContentId::of(layout.type_string(), &body[stamp..]);
    let has_identity = layout == BundleLayout::V2 || is_unique(bundle);
    Some(if has_identity { whole } else { whole.with(&origin_step(bundle).to_be_bytes()) })
}

/// Whether events of this kind have times of their own, which distinguish machines. Aggregates have none.
fn is_unique_event(kind: Section) -> bool {
    kind != Section::Aggregate
}

/// Whether a bundle has events whose times distinguish their machine.
fn is_unique(bundle: &Bundle<'_>) -> bool {
    let [singular, _, sequence] = bundle.sections;
    !singular.is_empty() || !sequence.is_empty()
}

/// The step in which the agent's clock was 0.
fn origin_step(bundle: &Bundle<'_>) -> i128 {
    let clocks = bundle.head.clocks.map_or((0, 0), |clocks| (clocks.absolute, clocks.relative));
    (i128::from(clocks.0) - i128::from(clocks.1)).div_euclid(ORIGIN_STEP_NANOS)
}

/// The daemon that delivered an event before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KnownBy {
    /// This one.
    ThisDaemon,
    /// Another one, and not this one.
    Another,
}

/// The fingerprints of a bundle and its events, and what was found to be a repeat.
#[derive(Debug)]
pub(super) struct Repeats {
    is_on: bool,
    /// The bundle: the first fingerprint is the one that is remembered, the others are those that an earlier delivery of
    /// the same bundle may have. `None`: repeats of this bundle are not recognised, or another request delivers it.
    pub(super) bundle: Option<[Fingerprint; 3]>,
    /// The bundle's head without its clocks: the sender.
    sender: Fingerprint,
    /// Fingerprints of the step of the clock's origin, the step before it and the step after it, where senders have no id.
    steps: Option<[Fingerprint; 3]>,
    /// Remembered once the bundle is delivered.
    fresh: Vec<Fingerprint>,
    /// The same for events with a fault: remembered only if the bundle was also stored in the quarantine.
    faulty: Vec<Fingerprint>,
    /// What other daemons have delivered of the bundle.
    shared_deliveries: FingerprintSet,
    /// The most events of a section that are reported to other daemons.
    max_noted: usize,
    /// The events of each section, and whether one of them is new.
    noted: [(Vec<Fingerprint>, bool); 3],
    /// Events and bytes that were left out as repeats.
    pub(super) events: u64,
    pub(super) bytes: u64,
    /// Of these events, those that another daemon has delivered, and not this one.
    pub(super) events_of_others: u64,
}

impl Repeats {
    pub(super) fn new(bundle: &Bundle<'_>, body: &[u8], layout: BundleLayout, shared: &SharedExchange) -> Self {
        let cache = &shared.dedup;
        let is_empty = bundle.sections.iter().all(|section| section.is_empty());
        // An empty bundle is a heartbeat, and never a repeat (rule 20).
        let is_on = cache.is_on() && !is_empty;
        let mut repeats = Repeats {
            is_on,
            bundle: None,
            sender: 0,
            steps: None,
            fresh: Vec::new(),
            faulty: Vec::new(),
            shared_deliveries: FingerprintSet::default(),
            max_noted: shared.shared_deliveries.as_ref().map_or(0, |shared_deliveries| shared_deliveries.max_events()),
            noted: Default::default(),
            events: 0,
            bytes: 0,
            events_of_others: 0,
        };
        if !is_on {
            return repeats;
        }
        // Version 2 identifies the machine. Versions 0 and 1 send a wrong id, version 3 sends none.
        let step = origin_step(bundle);
        repeats.steps = (layout != BundleLayout::V2)
            .then(|| [0, -1, 1].map(|other| cache.fingerprint(b"step", &(step + other).to_be_bytes())));
        let [singular, ..] = bundle.sections;
        let stamp = layout.stamp_bytes().min(body.len());
        let kind = layout.type_string().as_bytes();
        let whole = cache.fingerprint(kind, &body[stamp..]);
        let is_unique = is_unique(bundle);
        repeats.bundle = Some(repeats.close_to(whole, is_unique));
        let head = body.get(stamp..singular.offset()).unwrap_or_default();
        repeats.sender = cache.fingerprint(kind, head);
        repeats
    }

    /// The fingerprint of something, and those that an earlier delivery of the same thing may have. All three are equal
    /// where the thing is unique by itself.
    fn close_to(&self, fingerprint: Fingerprint, is_unique: bool) -> [Fingerprint; 3] {
        match self.steps.filter(|_| !is_unique) {
            // Both hashes are keyed, so a peer cannot construct a collision.
            Some(steps) => steps.map(|step| fingerprint ^ step),
            None => [fingerprint; 3],
        }
    }

    /// The fingerprint of an event, and those that an earlier delivery of it may have.
    pub(super) fn event(&self, slice: Slice<'_>, kind: Section, cache: &DedupCache) -> [Fingerprint; 3] {
        let mut context = [0; 17];
        context[..16].copy_from_slice(&self.sender.to_be_bytes());
        context[16] = kind as u8;
        self.close_to(cache.fingerprint(&context, slice.bytes()), is_unique_event(kind))
    }

    /// What other daemons have delivered of the bundle.
    pub(super) fn set_delivered_by_others(&mut self, events: FingerprintSet) {
        self.shared_deliveries = events;
    }

    /// The events of the bundle that are reported to other daemons once they are delivered: those of the sections with
    /// new ones.
    pub(super) fn take_delivered(&mut self) -> Vec<Delivered> {
        let sections = std::mem::take(&mut self.noted).into_iter().filter(|(_, has_new)| *has_new);
        sections.filter_map(|(events, _)| Some(Delivered { first: *events.first()?, events })).collect()
    }

    /// By whom an event was delivered before. A new event is remembered once the bundle is delivered.
    pub(super) fn known_by(&mut self, slice: Slice<'_>, kind: Section, shared: &SharedExchange) -> Option<KnownBy> {
        if !self.is_on {
            return None;
        }
        let event = self.event(slice, kind, &shared.dedup);
        let known_by = if is_unique_event(kind) { &event[..1] } else { &event[..] };
        let known = if shared.dedup.knows(known_by) {
            Some(KnownBy::ThisDaemon)
        } else {
            known_by.iter().any(|one| self.shared_deliveries.contains(one)).then_some(KnownBy::Another)
        };
        let (noted, has_new) = &mut self.noted[kind as usize];
        if noted.len() < self.max_noted {
            noted.push(event[0]);
            *has_new |= known.is_none();
        }
        if known.is_some() {
            return known;
        }
        if self.fresh.len() < shared.options.dedup.entries {
            self.fresh.push(event[0]);
        }
        None
    }

    /// Marks what was remembered since `known` fingerprints as faulty.
    pub(super) fn mark_faulty(&mut self, known: usize) {
        let faulty = self.fresh.split_off(known);
        self.faulty.extend(faulty);
    }

    /// The number of fingerprints of events without a fault.
    pub(super) fn len(&self) -> usize {
        self.fresh.len()
    }

    /// Ends the delivery of the bundle with this outcome.
    pub(super) fn end(&mut self, outcome: RequestOutcome, now: Duration, cache: &DedupCache) {
        let Some([bundle, ..]) = self.bundle.take() else { return };
        let mut delivered = std::mem::take(&mut self.fresh);
        match outcome {
            RequestOutcome::Delivered => {
                delivered.append(&mut self.faulty);
                delivered.push(bundle);
            }
            // The agent sends the bundle again, and its faulty events are processed again.
            RequestOutcome::Unkept => {}
            RequestOutcome::Failed => delivered.clear(),
        }
        cache.end(bundle, &delivered, now);
    }
}
