//! The view: a sink that keeps a part of the events in memory, for the page and its API.
//!
//! It never makes anything wait. Batches for which it has no [time](TimeBudget) or no capacity in its queue are
//! skipped. Of the others it keeps copies as far as its memory goes ([`ViewStore`]), and adds heap dumps and calls to
//! tables when they pass, because there are too many of them to be kept ([`Heaps`], [`Code`]). Everything else is
//! computed for each request.
#![forbid(unsafe_code)]

mod arrivals;
mod class;
pub mod code;
pub mod heap;
pub mod machines;
mod notable;
pub mod options;
pub mod profiles;
mod recent;
mod recent_senders;
mod rows;
pub mod services;
pub mod store;
mod traces;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use tributary_event::{Batch, Kind, UnixNanos};
use tributary_system::wall_clock;

use arrivals::{Arrival, Arrivals};
pub use class::Class;
use code::Code;
use heap::Heaps;
use machines::MachineSums;
use options::Options;
use profiles::ProfileSums;
use services::Services;
use store::{KeptBatch, Number, PackedBatch, ViewStore, WAITING_PART};

use tributary_sink::budget::TimeBudget;
use tributary_sink::{Selection, Sink, SinkError};

/// Spans of this many batches are kept between two looks at the time that is left.
const CHUNK_BATCHES: usize = 32;

/// What the view keeps, shared by its sink and the requests of the API.
#[derive(Debug)]
pub struct View {
    options: Mutex<Options>,
    budget: Arc<TimeBudget>,
    /// What came, and is not added yet.
    arrivals: Mutex<Arrivals>,
    /// Held by who adds what came: it is added in the order in which it came.
    adding: Mutex<()>,
    state: Mutex<ViewState>,
    services: Mutex<Services>,
    profiles: Mutex<ProfileSums>,
    machines: Mutex<MachineSums>,
    /// The time that the sums took, in nanoseconds.
    sums_nanos: AtomicU64,
}

/// Events and tables.
#[derive(Debug)]
struct ViewState {
    store: ViewStore,
    heaps: Heaps,
    code: Code,
    /// The number of requests that read kept events now. Meanwhile none is dropped: a dropped event that is still read would
    /// take memory that is not counted.
    readers: usize,
}

/// How much the view has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Bytes of memory in use.
    pub memory_bytes: u64,
    /// Events that its sink got.
    pub seen: u64,
    /// Of these, the events that are kept now. Objects of heap dumps are in tables only.
    pub kept: u64,
    /// Events that it did not get, because it had no time for them.
    pub skipped: u64,
}

impl View {
    /// An empty view.
    pub fn new(options: Options) -> Arc<View> {
        let [store, services, profiles, heaps, code, machines, arrivals] = parts(&options);
        let state = ViewState {
            store: ViewStore::new(store, options.window),
            heaps: Heaps::new(heaps),
            code: Code::new(code),
            readers: 0,
        };
        let budget = Arc::new(TimeBudget::new(options.cpu_percent));
        let mut services = Services::new(services);
        services.set_exports(options.export.is_some());
        Arc::new(View {
            options: Mutex::new(options),
            budget,
            arrivals: Mutex::new(Arrivals::new(arrivals)),
            adding: Mutex::default(),
            state: Mutex::new(state),
            services: Mutex::new(services),
            profiles: Mutex::new(ProfileSums::new(profiles)),
            machines: Mutex::new(MachineSums::new(machines)),
            sums_nanos: AtomicU64::new(0),
        })
    }

    /// Its options.
    pub fn options(&self) -> Options {
        self.options.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other options into force, except `enabled`. What they do not keep is dropped now, or when no request reads it.
    pub fn set_options(&self, options: Options) {
        let [store, services, profiles, heaps, code, machines, arrivals] = parts(&options);
        lock(&self.arrivals).set_limit(arrivals);
        self.services(|all| {
            all.set_limit(services);
            all.set_exports(options.export.is_some());
        });
        self.profiles(|all| all.set_limit(profiles));
        self.machines(|all| all.set_limit(machines));
        let mut state = self.state();
        let may_drop = state.readers == 0;
        state.store.set_limits(store, options.window, may_drop);
        state.heaps.set_limit(heaps);
        state.code.set_limit(code);
        self.budget.set_percent(options.cpu_percent);
        drop(state);
        *self.options.lock().unwrap_or_else(PoisonError::into_inner) = options;
    }

    /// Its budget, for its queue.
    pub fn budget(&self) -> &Arc<TimeBudget> {
        &self.budget
    }

    /// How much it has seen.
    pub fn numbers(&self) -> Numbers {
        self.add_arrivals();
        let of_sums = lock(&self.services).numbers().memory_bytes
            + lock(&self.profiles).memory_bytes()
            + lock(&self.machines).memory_bytes()
            + lock(&self.arrivals).memory_bytes();
        let state = self.state();
        let of_tables = state.heaps.memory_bytes() + state.code.memory_bytes();
        let memory = state.store.memory_bytes() + of_tables + of_sums;
        let (seen, kept) = state.store.counts();
        Numbers { memory_bytes: memory as u64, seen, kept, skipped: self.budget.skipped() }
    }

    /// How many events of a listener its sink got.
    pub fn seen_of(&self, is_wanted: impl Fn(&str) -> bool) -> u64 {
        self.add_arrivals();
        self.state().store.seen_of(is_wanted)
    }

    /// The kept batches whose newest events were read at `from` or later, in the order in which they came. `is_wanted` chooses
    /// by class, protocol and listener. While the snapshot exists no kept event is dropped, so it must not be held for long.
    pub fn snapshot(self: &Arc<Self>, from: UnixNanos, is_wanted: impl Fn(Class, &str, &str) -> bool) -> Snapshot {
        self.add_arrivals();
        let mut state = self.state();
        if state.readers == 0 {
            state.store.finish_sweep();
        }
        state.readers += 1;
        let batches = state.store.batches(from, is_wanted);
        Snapshot { batches, view: self.clone() }
    }

    /// A kept batch.
    pub fn batch(&self, number: Number) -> Option<KeptBatch> {
        self.state().store.batch(number)
    }

    /// Reads the heap dumps.
    pub fn heaps<T>(&self, read: impl FnOnce(&Heaps) -> T) -> T {
        read(&self.state().heaps)
    }

    /// Reads or marks the code that runs.
    pub fn code<T>(&self, read: impl FnOnce(&mut Code) -> T) -> T {
        read(&mut self.state().code)
    }

    /// Reads the sums of services, or changes them.
    pub fn services<T>(&self, read: impl FnOnce(&mut Services) -> T) -> T {
        self.add_arrivals();
        read(&mut lock(&self.services))
    }

    /// Reads the sums of profiles, or changes them.
    pub fn profiles<T>(&self, read: impl FnOnce(&mut ProfileSums) -> T) -> T {
        self.add_arrivals();
        read(&mut lock(&self.profiles))
    }

    /// Reads the sums of machines, or changes them.
    pub fn machines<T>(&self, read: impl FnOnce(&mut MachineSums) -> T) -> T {
        self.add_arrivals();
        read(&mut lock(&self.machines))
    }

    /// Takes a batch, whose events are added to the sums, and whose spans are kept if their traces are. Unlike its sink, this sees every
    /// batch: of a trace all spans are kept or none, and sums leave out none.
    pub fn add(&self, batch: &Arc<Batch>) {
        let has_sums = ProfileSums::wants(batch) || batch.origin().is_some_and(|origin| origin.protocol == "endless");
        if !has_sums {
            return;
        }
        let is_full = lock(&self.arrivals).push(batch, wall_clock::now());
        if is_full {
            self.add_arrivals();
        }
    }

    /// Adds what came since the last call.
    fn add_arrivals(&self) {
        let _turn = lock(&self.adding);
        let arrived = lock(&self.arrivals).take();
        if arrived.is_empty() {
            return;
        }
        let started = Instant::now();
        let of = |protocol| {
            move |arrival: &&Arrival| arrival.batch.origin().is_some_and(|origin| origin.protocol == protocol)
        };
        let with_spans = || arrived.iter().filter(|arrival| arrival.batch.count(Kind::Span) > 0);
        let mut profiles = lock(&self.profiles);
        profiles.add(arrived.iter().map(|arrival| (&*arrival.batch, arrival.at)));
        let mut services = lock(&self.services);
        add_calls(&mut profiles, &mut services, wall_clock::now());
        drop(profiles);
        with_spans().for_each(|arrival| services.add(&arrival.batch, arrival.at));
        drop(services);
        let mut machines = lock(&self.machines);
        arrived.iter().filter(of("endless")).for_each(|arrival| machines.add(&arrival.batch, arrival.at));
        drop(machines);
        let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(0);
        self.sums_nanos.fetch_add(nanos, Relaxed);
        let with_spans: Vec<&Arrival> = with_spans().collect();
        with_spans.chunks(CHUNK_BATCHES).for_each(|arrivals| self.keep_spans(arrivals));
    }

    fn keep_spans(&self, arrivals: &[&Arrival]) {
        let has_time = self.budget.admits();
        let before = thread_time();
        let mut state = self.state();
        let may_drop = state.readers == 0;
        for Arrival { batch, at } in arrivals {
            let Some(origin) = batch.origin() else { continue };
            if !has_time {
                self.budget.skip(batch.count(Kind::Span));
            }
            state.store.add_spans(batch, origin, *at, has_time, may_drop);
        }
        drop(state);
        self.budget.spend(thread_time().saturating_sub(before));
    }

    /// The time that the sums took.
    pub fn sums_time(&self) -> Duration {
        Duration::from_nanos(self.sums_nanos.load(Relaxed))
    }

    fn state(&self) -> MutexGuard<'_, ViewState> {
        lock(&self.state)
    }

    fn take(&self, events: Selection<'_>) {
        let batch = events.batch();
        let Some(origin) = batch.origin() else { return };
        let mut state = self.state();
        let ViewState { store, heaps, code, readers } = &mut *state;
        store.note_skipped(self.budget.skipped());
        let classes = class::classes(batch);
        // The end of a dump is a log of its own.
        if origin.protocol == "rbkit" && (classes.has(Class::HeapObjects) || classes.has(Class::Logs)) {
            batch.events().for_each(|event| heaps.add(event));
        }
        if origin.protocol == "bytefrog" {
            code.add(batch, store.has_gap(&origin.listener));
        }
        store.add(batch, origin, &classes, *readers == 0);
    }

    fn expire(&self, now: UnixNanos) {
        self.add_arrivals();
        let mut profiles = lock(&self.profiles);
        profiles.advance(now);
        let mut of_sums = profiles.memory_bytes();
        let mut services = lock(&self.services);
        add_calls(&mut profiles, &mut services, now);
        drop(profiles);
        services.advance(now);
        of_sums += services.numbers().memory_bytes;
        drop(services);
        let mut machines = lock(&self.machines);
        machines.advance(now);
        of_sums += machines.memory_bytes();
        drop(machines);
        let options = self.options();
        let mut state = self.state();
        let tables = of_sums + state.heaps.memory_bytes() + state.code.memory_bytes();
        if state.readers == 0 {
            state.store.set_limit(store_limit(&options, tables));
            state.store.expire(now);
        }
        let to_pack = state.store.to_pack(now);
        drop(state);
        for (place, batch) in to_pack {
            if let Some(packed) = PackedBatch::of(&batch) {
                self.state().store.set_packed(place, &batch, packed);
            }
        }
    }
}

/// Adds the calls that were paired since the last time to the sums of services.
fn add_calls(profiles: &mut ProfileSums, services: &mut Services, now: UnixNanos) {
    profiles.take_outermost_calls(|agent, method, nanos, has_failed| {
        services.add_call(agent, method, nanos, has_failed, now);
    });
}

/// Locks a mutex: what is behind it is whole after a panic, too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most bytes of events, services, profiles, heap dumps, code, machines and arrivals.
fn parts(options: &Options) -> [usize; 7] {
    let part = usize::try_from(options.memory).unwrap_or(usize::MAX) / 32;
    // Batches that wait take a quarter of the store.
    [part * 10 / (WAITING_PART + 1) * WAITING_PART, part * 8, part * 6, part * 3, part * 3, part, part]
}

/// The most bytes of kept events beside tables of this many bytes: what these do not use, without an eighth of all, by which they may grow
/// until this is computed again.
fn store_limit(options: &Options, tables: usize) -> usize {
    let memory = usize::try_from(options.memory).unwrap_or(usize::MAX);
    let [store, ..] = parts(options);
    let free = memory - memory / 8 - store / WAITING_PART;
    free.saturating_sub(tables).max(store)
}

/// Kept batches, in the order in which they came.
#[derive(Debug)]
pub struct Snapshot {
    /// The batches.
    pub batches: Vec<(Class, KeptBatch)>,
    view: Arc<View>,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.view.state().readers -= 1;
    }
}

/// The sink that fills a [`View`].
#[derive(Debug)]
pub struct ViewSink {
    view: Arc<View>,
    /// The processor time of its thread that its budget has paid for.
    paid: Option<Duration>,
}

impl ViewSink {
    /// A sink that adds to this view.
    pub fn new(view: Arc<View>) -> Self {
        ViewSink { view, paid: None }
    }

    /// Charges the budget with all that the thread has done since the last call, waking up included.
    fn pay(&mut self) {
        let used = thread_time();
        // What it took to start the thread is not charged.
        let paid = self.paid.replace(used).unwrap_or(used);
        self.view.budget.spend(used.saturating_sub(paid));
    }
}

impl Sink for ViewSink {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.view.take(events);
        self.pay();
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.view.expire(wall_clock::now());
        self.pay();
        Ok(())
    }
}

/// The processor time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
