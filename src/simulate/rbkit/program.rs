//! The simulated Ruby program, a shop: events of its objects, its garbage collector and its threads.

use std::io;

use super::super::rng::Rng;
use super::dialect::RbkitDialect;
use super::shared::Requested;
use super::stacks::{METHODS, StackMethod, stack};
use super::wire::{EventType, PackedValue, event, fields, key, pack};

/// Milliseconds of the program's time between two gc_stats events, and between two allocation snapshots.
const STATS_INTERVAL: u64 = 5_000;
const SNAPSHOT_INTERVAL: u64 = 6_000;
/// Without a rate the program's time advances a second with this many events.
const EVENTS_A_SECOND: u64 = 1_000;
/// The garbage collector runs when this many objects are alive.
const MAX_LIVE: usize = 2_000;
/// The maximum number of samples of a snapshot.
const MAX_SITES: u64 = 24;

/// Events that are packed and not sent yet.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) packed: Vec<u8>,
    /// Elements of the collection.
    pub(super) elements: usize,
    /// Events that the collector writes for them.
    pub(super) events: u64,
}

/// The traced program.
#[derive(Debug)]
pub(super) struct Program {
    dialect: RbkitDialect,
    rng: Rng,
    /// Events made so far, and how many of them are a second: the program's time, which is the same in each run.
    made: u64,
    rate: u64,
    /// Half the address of the next object.
    next_object: u64,
    live: Vec<u64>,
    phase: GcPhase,
    created: u64,
    destroyed: u64,
    collections: u64,
    stats_due: u64,
    snapshot_due: u64,
}

/// The phase of the garbage collector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GcPhase {
    Idle,
    Marking,
    /// This many objects are still to be destroyed.
    Sweeping(usize),
}

impl Program {
    /// A program that makes `rate` events per second; `None`: as many as it can.
    pub(super) fn new(dialect: RbkitDialect, seed: u64, rate: Option<u64>) -> Self {
        let mut rng = Rng::new(seed, 0);
        let next_object = (0x7f00_0000_0000 + (rng.below(1 << 30) << 4)) >> 1;
        Program {
            dialect,
            rng,
            made: 0,
            rate: rate.unwrap_or(EVENTS_A_SECOND).max(1),
            next_object,
            live: Vec::new(),
            phase: GcPhase::Idle,
            created: 0,
            destroyed: 0,
            collections: 9,
            stats_due: 0,
            snapshot_due: 0,
        }
    }

    /// Appends the next event, for which the collector writes at least one and at most `space` events; `space` is not 0.
    /// `millis`: since 1970.
    pub(super) fn step(&mut self, requested: Requested, space: u64, millis: u64, queue: &mut Queue) -> io::Result<()> {
        if requested.cpu && (!requested.memory || self.rng.one_in(8)) {
            let frames = self.sample();
            return self.append(EventType::CpuSample, Some(frames), 1, millis, queue);
        }
        let elapsed_millis = (u128::from(self.made) * 1_000 / u128::from(self.rate)) as u64;
        if elapsed_millis >= self.stats_due {
            let (stats, events) = self.stats();
            if events <= space {
                self.stats_due = elapsed_millis + STATS_INTERVAL;
                return self.append(EventType::GcStats, Some(stats), events, millis, queue);
            }
        }
        if self.dialect == RbkitDialect::Spec21 && elapsed_millis >= self.snapshot_due {
            self.snapshot_due = elapsed_millis + SNAPSHOT_INTERVAL;
            let (snapshot, events) = self.snapshot(space.min(MAX_SITES));
            return self.append(EventType::Snapshot, Some(snapshot), events, millis, queue);
        }
        self.next_object_event(millis, queue)
    }

    /// Appends a garbage collection that a collector has requested.
    pub(super) fn collect(&mut self, millis: u64, queue: &mut Queue) -> io::Result<()> {
        self.collections += 1;
        [EventType::GcStart, EventType::GcEndMark, EventType::GcEndSweep]
            .into_iter()
            .try_for_each(|kind| self.append(kind, None, 1, millis, queue))
    }

    /// Appends the next object, or the next step of the garbage collector. The dialect of the specification has no object
    /// events.
    fn next_object_event(&mut self, millis: u64, queue: &mut Queue) -> io::Result<()> {
        let is_spec = self.dialect == RbkitDialect::Spec21;
        let (phase, kind, payload) = match self.phase {
            GcPhase::Idle if is_spec || self.live.len() >= MAX_LIVE || self.rng.one_in(1_000) => {
                self.collections += 1;
                (GcPhase::Marking, EventType::GcStart, None)
            }
            GcPhase::Idle => (GcPhase::Idle, EventType::Created, Some(self.create())),
            GcPhase::Marking => (GcPhase::Sweeping(self.live.len() * 4 / 5), EventType::GcEndMark, None),
            GcPhase::Sweeping(0) => (GcPhase::Idle, EventType::GcEndSweep, None),
            GcPhase::Sweeping(left) => (GcPhase::Sweeping(left - 1), EventType::Destroyed, Some(self.destroy())),
        };
        self.phase = phase;
        self.append(kind, payload, 1, millis, queue)
    }

    fn append(
        &mut self,
        kind: EventType,
        payload: Option<PackedValue>,
        events: u64,
        millis: u64,
        queue: &mut Queue,
    ) -> io::Result<()> {
        pack(self.dialect, &event(self.dialect, kind, millis, payload), &mut queue.packed)?;
        queue.elements += 1;
        queue.events += events;
        self.made += events;
        Ok(())
    }

    fn create(&mut self) -> PackedValue {
        let id = self.next_object;
        self.next_object += 20 * (1 + self.rng.below(3));
        self.created += 1;
        self.live.push(id);
        // Objects of the virtual machine have no class.
        let class = if self.rng.one_in(12) { None } else { Some(*self.rng.pick(&CLASSES)) };
        fields([(key::OBJECT_ID, id.into()), (key::CLASS_NAME, class.into())])
    }

    fn destroy(&mut self) -> PackedValue {
        self.destroyed += 1;
        // One in ten was created before the profile was on.
        let old = self.rng.one_in(10);
        let number = self.rng.below(self.live.len() as u64) as usize;
        let id = if old || self.live.is_empty() { 20 + self.destroyed } else { self.live.swap_remove(number) };
        fields([(key::OBJECT_ID, id.into())])
    }

    fn sample(&mut self) -> PackedValue {
        // Some samples have no frames.
        let stack = if self.rng.one_in(50) { Vec::new() } else { stack(&mut self.rng) };
        let thread = 0x7f3a_1000 + 0x40 * self.rng.below(4);
        let frame = |&(method, label, file, line, singleton): &StackMethod| {
            let mut pairs = vec![
                (key::METHOD_NAME.into(), method.into()),
                (key::LABEL.into(), label.into()),
                (key::FILE.into(), file.into()),
                (key::LINE.into(), line.into()),
                (key::SINGLETON_METHOD.into(), u64::from(singleton).into()),
            ];
            if self.dialect != RbkitDialect::Spec21 {
                pairs.push((key::THREAD_ID.into(), thread.into()));
            }
            PackedValue::Map(pairs)
        };
        PackedValue::Array(stack.into_iter().map(frame).collect())
    }

    /// The numbers of gc_stats, and how many there are. One of them is missing in this version of Ruby.
    fn stats(&self) -> (PackedValue, u64) {
        let live = 19_000 + self.live.len() as u64;
        let numbers = [
            ("count", self.collections),
            ("minor_gc_count", self.collections * 8 / 9),
            ("major_gc_count", self.collections - self.collections * 8 / 9),
            ("heap_allocated_pages", 53),
            ("heap_eden_pages", 53),
            ("heap_tomb_pages", 0),
            ("heap_allocatable_pages", 0),
            ("heap_sorted_length", 53),
            ("heap_live_slots", live),
            ("heap_free_slots", 21_655_u64.saturating_sub(live)),
            ("heap_final_slots", 0),
            ("old_objects", 16_699),
            ("old_objects_limit", 25_346),
            ("total_allocated_objects", 58_000 + self.created),
            ("total_freed_objects", 38_000 + self.destroyed),
            ("malloc_increase_bytes", 40 * self.created),
            ("malloc_increase_bytes_limit", 16_777_216),
            ("oldmalloc_increase_bytes", 845_536),
            ("oldmalloc_increase_bytes_limit", 16_777_216),
            ("total_heap_size", 867_080),
            ("total_memsize", 3_715_954 + 40 * self.live.len() as u64),
            ("remembered_wb_unprotected_objects", 200),
            ("remembered_wb_unprotected_objects_limit", 288),
        ];
        let is_master = matches!(self.dialect, RbkitDialect::Master21 | RbkitDialect::Master21Raw);
        let sent = if is_master { &numbers[..] } else { &numbers[..numbers.len() - 2] };
        let mut pairs: Vec<_> = sent.iter().map(|&(name, number)| (name.into(), number.into())).collect();
        pairs.push(("heap_swept_slots".into(), "".into()));
        (PackedValue::Map(pairs), sent.len() as u64)
    }

    /// An allocation snapshot, and the number of events that the collector writes for it: at most `max_events`.
    fn snapshot(&mut self, max_events: u64) -> (PackedValue, u64) {
        let stacks: Vec<u64> = (0..3).map(|number| 0x55d3_a000_0000 + 0x80 * number).collect();
        let frame = |number: usize| {
            let (method, _, file, line, singleton) = METHODS[number % METHODS.len()];
            fields([
                (key::METHOD_NAME, method.into()),
                (key::FILE, file.into()),
                (key::LINE, line.into()),
                (key::SINGLETON_METHOD, u64::from(singleton).into()),
            ])
        };
        let traces = stacks.iter().enumerate();
        let traces =
            traces.map(|(number, &id)| (id.into(), PackedValue::Array((number..number + 4).map(frame).collect())));
        let mut files = Vec::new();
        let mut events = 0;
        for file in FILES {
            let mut sites = Vec::new();
            for line in 0..6 {
                let registered = (self.rng.below(4) * u64::from(line == 0)).min(max_events - events);
                let made = registered.max(1);
                if events + made > max_events {
                    break;
                }
                events += made;
                let site = match line {
                    5 => format!("{} (null) 0", 90 + line),
                    4 => format!("{} Class with spaces 40", 90 + line),
                    _ => format!("{} {} 40", 12 + 7 * line, self.rng.pick(&CLASSES)),
                };
                let count = 1 + self.rng.below(300);
                let referrers = stacks.iter().take(registered as usize);
                let referrers: Vec<_> = referrers.map(|&id| (id.into(), count.into())).collect();
                let referrers = if referrers.is_empty() { PackedValue::Nil } else { PackedValue::Map(referrers) };
                let site_value = fields([(key::COUNT, (made * count).into()), (key::STACKTRACE, referrers)]);
                sites.push((site.into(), site_value));
            }
            files.push((file.into(), PackedValue::Map(sites)));
        }
        let snapshot = fields([
            (key::STACKTRACE, PackedValue::Map(traces.collect())),
            (key::ALLOCATIONS, PackedValue::Map(files)),
        ]);
        (snapshot, events)
    }
}

pub(super) static CLASSES: [&str; 14] = [
    "String",
    "Array",
    "Hash",
    "Time",
    "Range",
    "Proc",
    "Object",
    "MatchData",
    "Shop::Cart",
    "Shop::Item",
    "Shop::Checkout",
    "Shop::Gesch\u{e4}ftsbeziehung",
    "ActiveRecord::ConnectionAdapters::TableDefinition",
    "#<Class:ActiveSupport::Notifications::InstrumentationRegistry>",
];

pub(super) static FILES: [&str; 5] = [
    "/srv/shop/app.rb",
    "/srv/shop/app/models/cart.rb",
    "/srv/shop/app/controllers/checkout_controller.rb",
    "/usr/lib/ruby/3.1.0/json/common.rb",
    "/usr/lib/ruby/gems/3.1.0/gems/activerecord-7.0.4/lib/active_record/relation/query_methods.rb",
];
