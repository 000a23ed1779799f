//! Identifies the bundle and its events, and finds those that were delivered before (rule 21).

use std::time::Duration;

use crate::codec::gvariant::Slice;
use crate::protocol::RequestOutcome;

use super::dedup::{DedupCache, Fingerprint};
use super::shared::Shared;
use super::wire::{Bundle, Layout, Section};

/// Bundles and aggregates without unique content are identified together with the moment at which the agent's clock was 0.
/// It differs between machines and hardly drifts on one machine. It is rounded to steps of this many nanoseconds.
const ORIGIN_STEP_NANOS: i128 = 4_000_000_000;

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
    /// Events and bytes that were left out as repeats.
    pub(super) events: u64,
    pub(super) bytes: u64,
}

impl Repeats {
    pub(super) fn new(bundle: &Bundle<'_>, body: &[u8], layout: Layout, cache: &DedupCache) -> Self {
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
            events: 0,
            bytes: 0,
        };
        if !is_on {
            return repeats;
        }
        let clocks = bundle.head.clocks.map_or((0, 0), |clocks| (clocks.absolute, clocks.relative));
        let origin = i128::from(clocks.0) - i128::from(clocks.1);
        // Version 2 identifies the machine. Versions 0 and 1 send a wrong id, version 3 sends none.
        let step = origin.div_euclid(ORIGIN_STEP_NANOS);
        repeats.steps = (layout != Layout::V2).then(|| [0, -1, 1].map(|other| cache.fingerprint(step + other)));
        let [singular, _, sequence] = bundle.sections;
        let stamp = layout.stamp_bytes().min(body.len());
        let kind = layout.type_string();
        let whole = cache.fingerprint((kind, &body[stamp..]));
        let is_unique = !singular.is_empty() || !sequence.is_empty();
        repeats.bundle = Some(repeats.close_to(whole, is_unique));
        let head = body.get(stamp..singular.offset()).unwrap_or_default();
        repeats.sender = cache.fingerprint((kind, head));
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

    /// Whether an event was delivered before. A new event is remembered once the bundle is delivered.
    pub(super) fn is_repeat(&mut self, slice: Slice<'_>, kind: Section, shared: &Shared) -> bool {
        if !self.is_on {
            return false;
        }
        let event = shared.dedup.fingerprint((self.sender, kind as u8, slice.bytes()));
        // Aggregates have no time of their own that distinguishes machines.
        let is_unique = kind != Section::Aggregate;
        let event = self.close_to(event, is_unique);
        let known_by = if is_unique { &event[..1] } else { &event[..] };
        if shared.dedup.knows(known_by) {
            return true;
        }
        if self.fresh.len() < shared.options.dedup.entries {
            self.fresh.push(event[0]);
        }
        false
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
