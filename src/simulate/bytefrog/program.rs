//! The traced program and the part of the agent that sits in it: threads that write what they do into buffers.

use super::super::rng::Rng;
use super::Options;
use super::buffers::{Buffer, Buffers};
use super::shop::{self, EXCEPTIONS, METHODS};
use super::thread::{Act, Habits, Thread};
use super::wire::{self, ClassFate, Stamp};

/// The traced program of one agent.
///
/// Equal arguments to equal calls give equal bytes, on every machine. Numbers begin at 0 and count up by one; in which
/// buffer an event stands, and which mapping before or after it, is another matter, as with real agents.
#[derive(Debug)]
pub struct Program {
    rng: Rng,
    options: Options,
    habits: Habits,
    threads: Vec<Thread>,
    buffers: Buffers,
    /// The next number, modulo 2^32.
    sequence: u32,
    /// Numbered events so far.
    events: u64,
    mapped: Mapped,
    /// Classes that have been loaded since they were last asked for.
    loaded: Vec<(ClassFate, &'static str)>,
}

/// What the collector has been told the name of.
#[derive(Debug)]
struct Mapped {
    methods: Vec<bool>,
    exceptions: Vec<bool>,
    locations: Vec<bool>,
    /// The first location of each method.
    first_locations: Vec<u32>,
}

/// How many buffers are open at most: as many as threads write at the same time.
const MOST_OPEN: usize = 6;

/// A line that is not known.
const NO_LINE: u16 = u16::MAX;

impl Program {
    /// A program that has not begun. `seed` and `number` (that of the agent in a run) decide about everything but the
    /// times; `budget_bytes` is the memory of its send buffers.
    pub fn new(seed: u64, number: u64, options: Options, budget_bytes: usize) -> Self {
        let mut rng = Rng::new(seed, number);
        let open = if options.in_order { 1 } else { usize::from(options.threads.max(2)).min(MOST_OPEN) };
        let mut loaded: Vec<_> = shop::IGNORED_CLASSES.iter().map(|class| (ClassFate::Ignored, *class)).collect();
        if rng.one_in(4) {
            loaded.push((ClassFate::TransformFailed, shop::UNTRANSFORMABLE_CLASS));
        }
        Program {
            rng,
            options,
            habits: Habits { throws_and_markers: options.version == 1, lines: options.version >= 3 },
            threads: (0..options.threads.max(1)).map(|_| Thread::new()).collect(),
            buffers: Buffers::new(budget_bytes, open),
            sequence: 0,
            events: 0,
            mapped: Mapped::new(),
            loaded,
        }
    }

    /// Goes on until `events` more events are numbered or no buffer is free, at `millis` since the start. Answers how
    /// many it has numbered.
    pub fn run(&mut self, events: u64, millis: u32) -> u64 {
        let end = self.events.saturating_add(events);
        let begin = self.events;
        while self.events < end {
            let chance = self.rng.next();
            let thread = (chance >> 32) as usize % self.threads.len();
            let place = (chance >> 16 & 0xFFFF) as usize % self.buffers.open();
            // Threads that meet at every call, or one that has a buffer to itself for a while.
            let steps = if chance & 1 == 0 { 1 + (chance >> 1 & 3) } else { 8 + (chance >> 1 & 63) };
            if !self.turn(thread, place, steps.min(end - self.events), millis) {
                break;
            }
        }
        self.events - begin
    }

    /// Buffers that are full, in the order in which they became so.
    pub fn take_full(&mut self) -> impl Iterator<Item = Buffer> {
        self.buffers.take_full()
    }

    /// Takes a buffer back once its messages are sent.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.buffers.give_back(buffer);
    }

    /// Ends the program: every buffer that holds something. Nothing is to be called after this.
    pub fn finish(&mut self) -> impl Iterator<Item = Buffer> {
        self.buffers.take_all()
    }

    /// Lets buffers that are not full count as such, since nothing has been sent for a while.
    pub(super) fn close_partial(&mut self) {
        self.buffers.close_partial();
    }

    /// Buffers with something in them.
    pub(super) fn readable_buffers(&self) -> usize {
        self.buffers.readable()
    }

    /// Whether it must wait for a buffer to be given back.
    pub(super) fn is_out_of_buffers(&self) -> bool {
        self.buffers.are_used_up()
    }

    /// The number of the next event.
    pub(super) fn next_sequence(&self) -> u32 {
        self.sequence
    }

    /// Goes on for some time without telling anybody.
    pub(super) fn run_unseen(&mut self) {
        for (at, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| !thread.is_new()) {
            for _ in 0..100 {
                thread.act(at == 0, self.habits, &mut self.rng);
            }
        }
    }

    /// Classes loaded since the last call.
    pub(super) fn take_loaded(&mut self) -> impl Iterator<Item = (ClassFate, &'static str)> {
        self.loaded.drain(..)
    }

    /// Some steps of one thread into one buffer. Answers whether there was room.
    fn turn(&mut self, thread: usize, place: usize, steps: u64, millis: u32) -> bool {
        if !self.buffers.has_room(place) {
            return false;
        }
        let mut time = millis;
        if self.threads[thread].is_new() {
            // The time of an event is taken before that of the name which it makes necessary.
            time -= (self.rng.below(8).saturating_sub(5) as u32).min(time);
            self.name(thread, place, millis);
        } else if self.rng.one_in(2048) {
            self.rename(thread, place, millis);
        }
        for _ in 0..steps {
            if !self.buffers.has_room(place) {
                return false;
            }
            let act = self.threads[thread].act(thread == 0, self.habits, &mut self.rng);
            self.tell(act, thread, place, time);
            time = millis;
        }
        true
    }

    /// Writes a numbered event, and the mappings that it makes necessary.
    #[inline]
    fn tell(&mut self, act: Act, thread: usize, place: usize, time: u32) {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        self.events += 1;
        let stamp = |method: u16| Stamp { time, sequence, method: method_id(method), thread: thread as u16 };
        let version_1 = self.options.version == 1;
        match act {
            Act::Enter(method) => {
                self.map_method(method, place);
                self.buffers.at(place).put(&wire::entry(stamp(method)));
            }
            Act::Leave(method) if version_1 => {
                let line = self.line(method);
                self.buffers.at(place).put(&wire::exit_at_line(stamp(method), line));
            }
            Act::Leave(method) => self.buffers.at(place).put(&wire::exit(stamp(method), false)),
            Act::Throw(method, exception) => {
                self.map_exception(exception, place);
                let line = self.line(method);
                self.buffers.at(place).put(&wire::exception(stamp(method), exception_id(exception), line));
            }
            Act::Bubble(method, exception) if version_1 => {
                self.map_exception(exception, place);
                self.buffers.at(place).put(&wire::exception_bubble(stamp(method), exception_id(exception)));
            }
            Act::Bubble(method, _) => self.buffers.at(place).put(&wire::exit(stamp(method), true)),
            Act::Visit(method, line) => {
                let location = self.map_location(method, line, place);
                self.buffers.at(place).put(&wire::method_visit(stamp(method), location));
            }
            Act::Mark(request, begins) => {
                let (key, value) = (format!("SpyFilter-Request-{request}"), if begins { "S" } else { "E" });
                self.write(place, |out| wire::marker(time, sequence, &key, value, out));
            }
        }
        self.buffers.at(place).counts.events += 1;
    }

    /// Appends one message that has no fixed size.
    fn write(&mut self, place: usize, message: impl FnOnce(&mut Vec<u8>)) {
        let buffer = self.buffers.at(place);
        message(&mut buffer.bytes);
        buffer.counts.messages += 1;
    }

    #[inline]
    fn map_method(&mut self, method: u16, place: usize) {
        if !self.mapped.methods[usize::from(method)] {
            self.load_class(METHODS[usize::from(method)].class());
            self.mapped.methods[usize::from(method)] = true;
            let place = self.elsewhere(place);
            let signature = METHODS[usize::from(method)].signature;
            self.write(place, |out| wire::map_method_signature(method_id(method), signature, out));
        }
    }

    /// A class is loaded when the first of its methods is called.
    fn load_class(&mut self, class: &'static str) {
        let mut mapped = METHODS.iter().zip(&self.mapped.methods).filter(|(_, mapped)| **mapped);
        if !mapped.any(|(method, _)| method.class() == class) {
            self.loaded.push((ClassFate::Transformed, class));
        }
    }

    #[inline]
    fn map_exception(&mut self, exception: u16, place: usize) {
        if !self.mapped.exceptions[usize::from(exception)] {
            self.mapped.exceptions[usize::from(exception)] = true;
            let place = self.elsewhere(place);
            let name = EXCEPTIONS[usize::from(exception)];
            self.write(place, |out| wire::map_exception(exception_id(exception), name, out));
        }
    }

    /// The location of a line, counted from 0 within its method.
    #[inline]
    fn map_location(&mut self, method: u16, line: u16, place: usize) -> u32 {
        let location = self.mapped.first_locations[usize::from(method)] + u32::from(line);
        if !self.mapped.locations[location as usize] {
            self.mapped.locations[location as usize] = true;
            let place = self.elsewhere(place);
            let shop::Method { line: first, lines, is_page, .. } = METHODS[usize::from(method)];
            if is_page && line == 0 {
                self.write(place, |out| wire::source_location_count(method_id(method), u32::from(lines), out));
            }
            self.write(place, |out| wire::map_source_location(location, method_id(method), first + line, out));
        }
        location
    }

    /// Tells a new thread's name (versions 1 and 2). Many threads get a better one at once, and of two names that stand
    /// in different buffers either may come first; now and then the new one does in the same buffer.
    fn name(&mut self, thread: usize, place: usize, millis: u32) {
        if self.options.version > 2 {
            return;
        }
        let id = thread as u16;
        let original = if thread == 0 { "main".to_owned() } else { format!("Thread-{}", thread - 1) };
        let better = format!("worker-{thread} \u{2116} {}", self.rng.below(100));
        let renamed = thread > 0 && self.rng.one_in(2);
        // A time that only grows tells which is newer.
        let later = millis.saturating_add(1);
        if renamed && !self.options.in_order && self.rng.one_in(3) {
            self.write(place, |out| wire::map_thread_name(id, later, &better, out));
            self.write(place, |out| wire::map_thread_name(id, millis, &original, out));
        } else {
            let (first, second) = (self.elsewhere(place), self.elsewhere(place));
            self.write(first, |out| wire::map_thread_name(id, millis, &original, out));
            if renamed {
                self.write(second, |out| wire::map_thread_name(id, later, &better, out));
            }
        }
    }

    /// Tells another name of a thread that has one.
    fn rename(&mut self, thread: usize, place: usize, millis: u32) {
        if self.options.version <= 2 && thread > 0 {
            let place = self.elsewhere(place);
            let name = format!("order \u{1f4e6} {}", self.rng.below(100_000));
            self.write(place, |out| wire::map_thread_name(thread as u16, millis.saturating_add(1), &name, out));
        }
    }

    /// Where a mapping goes that an event at `place` makes necessary: half of the time into another buffer.
    fn elsewhere(&mut self, place: usize) -> usize {
        let open = self.buffers.open() as u64;
        if self.rng.one_in(2) { place } else { self.rng.below(open) as usize }
    }

    fn line(&mut self, method: u16) -> u16 {
        let chance = self.rng.next();
        let shop::Method { line, lines, .. } = METHODS[usize::from(method)];
        if chance & 0xFF == 0 { NO_LINE } else { line + ((chance >> 32) % u64::from(lines)) as u16 }
    }
}

impl Mapped {
    fn new() -> Self {
        let mut first_locations = Vec::with_capacity(METHODS.len());
        let mut locations = 0;
        for method in &METHODS {
            first_locations.push(locations);
            locations += u32::from(method.lines);
        }
        Mapped {
            methods: vec![false; METHODS.len()],
            exceptions: vec![false; EXCEPTIONS.len()],
            locations: vec![false; locations as usize],
            first_locations,
        }
    }
}

/// The id of a method: 0 is not used.
fn method_id(method: u16) -> u32 {
    u32::from(method) + 1
}

fn exception_id(exception: u16) -> u32 {
    u32::from(exception) + 1
}
