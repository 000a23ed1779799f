//! The traced program, and the part of the agent in it: threads that write events into buffers.

use super::super::rng::Rng;
use super::Options;
use super::buffers::{Buffer, Buffers};
use super::shop::{self, EXCEPTIONS, METHODS};
use super::thread::{EventKinds, SimulatedThread, ThreadEvent};
use super::wire::{self, ClassOutcome, Stamp};

/// The traced program of one agent.
///
/// Equal arguments to equal calls give equal bytes, on every machine. Numbers count up from 0. As with real agents, it
/// varies which buffer holds an event, and which mappings precede it.
#[derive(Debug)]
pub struct Program {
    rng: Rng,
    options: Options,
    kinds: EventKinds,
    threads: Vec<SimulatedThread>,
    buffers: Buffers,
    /// The next number, modulo 2^32.
    sequence: u32,
    /// Numbered events so far.
    events: u64,
    mapped: Mapped,
    /// Classes loaded since the last call of `loaded`.
    loaded: Vec<(ClassOutcome, &'static str)>,
    /// Threads that hold a buffer and do not get the processor.
    waiting: Vec<StalledThread>,
    /// The most events that others number meanwhile: what fits into the buffers.
    max_ahead: u64,
}

/// A thread that holds a buffer and does not get the processor.
#[derive(Debug)]
struct StalledThread {
    thread: usize,
    buffer: Buffer,
    /// It continues after this number of events of the program, or at this time.
    until_events: u64,
    until_millis: u32,
}

/// The names that the agent has sent.
#[derive(Debug)]
struct Mapped {
    methods: Vec<bool>,
    exceptions: Vec<bool>,
    locations: Vec<bool>,
    /// The first location of each method.
    first_locations: Vec<u32>,
}

/// The most open buffers: the number of threads that write at the same time.
const MOST_OPEN: usize = 6;

/// The longest time in milliseconds for which a thread does not get the processor.
const MAX_WAIT_MILLIS: u64 = 200;
/// The smallest message with a number, in bytes.
const MIN_EVENT_BYTES: u64 = 15;

/// An unknown line.
const NO_LINE: u16 = u16::MAX;

impl Program {
    /// A program that has not started. `seed` and `number` (of the agent in the run) determine everything but the
    /// times;
    /// `budget_bytes` is the memory of its send buffers.
    pub fn new(seed: u64, number: u64, options: Options, budget_bytes: usize) -> Self {
        let mut rng = Rng::new(seed, number);
        let open = if options.in_order { 1 } else { usize::from(options.threads.max(2)).min(MOST_OPEN) };
        let mut loaded: Vec<_> = shop::IGNORED_CLASSES.iter().map(|class| (ClassOutcome::Ignored, *class)).collect();
        if rng.one_in(4) {
            loaded.push((ClassOutcome::TransformFailed, shop::UNTRANSFORMABLE_CLASS));
        }
        Program {
            rng,
            options,
            kinds: EventKinds { throws_and_markers: options.version == 1, lines: options.version >= 3 },
            threads: (0..options.threads.max(1)).map(|_| SimulatedThread::new()).collect(),
            buffers: Buffers::new(budget_bytes, open),
            sequence: 0,
            events: 0,
            mapped: Mapped::new(),
            loaded,
            waiting: Vec::new(),
            max_ahead: budget_bytes as u64 / MIN_EVENT_BYTES,
        }
    }

    /// Runs until `events` more events are numbered or no buffer is free, at `millis` since the start. Returns the
    /// number of events.
    pub fn run(&mut self, events: u64, millis: u32) -> u64 {
        let end = self.events.saturating_add(events);
        let begin = self.events;
        while self.events < end {
            self.continue_waiting(millis);
            let chance = self.rng.next();
            let thread = (chance >> 32) as usize % self.threads.len();
            if self.waiting.iter().any(|waiting| waiting.thread == thread) {
                continue;
            }
            let place = (chance >> 16 & 0xFFFF) as usize % self.buffers.open();
            // Threads that alternate at every call, or one that has a buffer to itself for some time.
            let steps = if chance & 1 == 0 { 1 + (chance >> 1 & 3) } else { 8 + (chance >> 1 & 63) };
            if !self.run_thread(thread, place, steps.min(end - self.events), millis) {
                break;
            }
            self.interrupt(thread, place, millis);
        }
        self.events - begin
    }

    /// Sometimes takes the processor from a thread that holds a buffer, while others run ahead.
    fn interrupt(&mut self, thread: usize, place: usize, millis: u32) {
        let others = self.threads.len() - self.waiting.len() - 1;
        if self.options.in_order || others == 0 || self.waiting.len() >= MOST_OPEN || !self.rng.one_in(256) {
            return;
        }
        let until_events = self.events + 1 + self.rng.below(self.max_ahead.max(1));
        let until_millis = millis.saturating_add(1 + self.rng.below(MAX_WAIT_MILLIS) as u32);
        if let Some(buffer) = self.buffers.hold(place) {
            self.waiting.push(StalledThread { thread, buffer, until_events, until_millis });
        }
    }

    /// The thread that writes to an open buffer with content keeps it until this time.
    pub(super) fn keep_buffer(&mut self, until_millis: u32) {
        let held = (0..self.buffers.open()).find_map(|place| self.buffers.hold(place));
        let thread =
            (0..self.threads.len()).find(|thread| self.waiting.iter().all(|waiting| waiting.thread != *thread));
        if let (Some(buffer), Some(thread)) = (held, thread) {
            self.waiting.push(StalledThread { thread, buffer, until_events: u64::MAX, until_millis });
        }
    }

    /// Takes away the buffers that [`Program::keep_buffer`] has left to threads. Returns the number of events in them.
    pub(super) fn take_kept(&mut self) -> u64 {
        let kept = self.waiting.extract_if(.., |waiting| waiting.until_events == u64::MAX);
        kept.map(|waiting| waiting.buffer.counts.events).sum()
    }

    /// Lets threads that have waited long enough continue.
    pub(super) fn continue_waiting(&mut self, millis: u32) {
        let events = self.events;
        let is_over = |waiting: &mut StalledThread| waiting.until_events <= events || waiting.until_millis <= millis;
        self.waiting.extract_if(.., is_over).for_each(|waiting| self.buffers.release(waiting.buffer));
    }

    /// The full buffers, oldest first.
    pub fn take_full(&mut self) -> impl Iterator<Item = Buffer> {
        self.buffers.take_full()
    }

    /// Returns a buffer whose messages were sent.
    pub fn give_back(&mut self, buffer: Buffer) {
        self.buffers.give_back(buffer);
    }

    /// Ends the program: every buffer with content. Call nothing after this.
    pub fn finish(&mut self) -> impl Iterator<Item = Buffer> {
        self.waiting.drain(..).for_each(|waiting| self.buffers.release(waiting.buffer));
        self.buffers.take_all()
    }

    /// Marks buffers with content as full, because nothing has been sent for some time.
    pub(super) fn close_partial(&mut self) {
        self.buffers.close_partial();
    }

    /// The number of buffers with content.
    pub(super) fn readable_buffers(&self) -> usize {
        self.buffers.readable()
    }

    /// Whether the program must wait for a buffer.
    pub(super) fn is_out_of_buffers(&self) -> bool {
        self.buffers.are_used_up()
    }

    /// The number of the next event.
    pub(super) fn next_sequence(&self) -> u32 {
        self.sequence
    }

    /// Runs for some time without writing events.
    pub(super) fn run_untraced(&mut self) {
        for (at, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| !thread.is_new()) {
            for _ in 0..100 {
                thread.next_event(at == 0, self.kinds, &mut self.rng);
            }
        }
    }

    /// Classes loaded since the last call.
    pub(super) fn take_loaded(&mut self) -> impl Iterator<Item = (ClassOutcome, &'static str)> {
        self.loaded.drain(..)
    }

    /// Runs some steps of one thread into one buffer. `false`: the buffer is full.
    fn run_thread(&mut self, thread: usize, place: usize, steps: u64, millis: u32) -> bool {
        if !self.buffers.has_space(place) {
            return false;
        }
        let mut time = millis;
        if self.threads[thread].is_new() {
            // The time of an event is taken before that of the name that it needs.
            time -= (self.rng.below(8).saturating_sub(5) as u32).min(time);
            self.name(thread, place, millis);
        } else if self.rng.one_in(2048) {
            self.rename(thread, place, millis);
        }
        for _ in 0..steps {
            if !self.buffers.has_space(place) {
                return false;
            }
            let next_event = self.threads[thread].next_event(thread == 0, self.kinds, &mut self.rng);
            self.write_event(next_event, thread, place, time);
            time = millis;
        }
        true
    }

    /// Writes a numbered event and the mappings that it needs.
    #[inline]
    fn write_event(&mut self, next_event: ThreadEvent, thread: usize, place: usize, time: u32) {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        self.events += 1;
        let stamp = |method: u16| Stamp { time, sequence, method: method_id(method), thread: thread as u16 };
        let version_1 = self.options.version == 1;
        match next_event {
            ThreadEvent::Enter(method) => {
                self.map_method(method, place);
                self.buffers.at(place).put(&wire::entry(stamp(method)));
            }
            ThreadEvent::Leave(method) if version_1 => {
                let line = self.line(method);
                self.buffers.at(place).put(&wire::exit_at_line(stamp(method), line));
            }
            ThreadEvent::Leave(method) => self.buffers.at(place).put(&wire::exit(stamp(method), false)),
            ThreadEvent::Throw(method, exception) => {
                self.map_exception(exception, place);
                let line = self.line(method);
                self.buffers.at(place).put(&wire::exception(stamp(method), exception_id(exception), line));
            }
            ThreadEvent::Bubble(method, exception) if version_1 => {
                self.map_exception(exception, place);
                self.buffers.at(place).put(&wire::exception_bubble(stamp(method), exception_id(exception)));
            }
            ThreadEvent::Bubble(method, _) => self.buffers.at(place).put(&wire::exit(stamp(method), true)),
            ThreadEvent::Visit(method, line) => {
                let location = self.map_location(method, line, place);
                self.buffers.at(place).put(&wire::method_visit(stamp(method), location));
            }
            ThreadEvent::Mark(request, begins) => {
                let (key, value) = (format!("SpyFilter-Request-{request}"), if begins { "S" } else { "E" });
                self.write(place, |out| wire::marker(time, sequence, &key, value, out));
            }
        }
        self.buffers.at(place).counts.events += 1;
    }

    /// Appends one message without a fixed size.
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
            let place = self.mapping_buffer(place);
            let signature = METHODS[usize::from(method)].signature;
            self.write(place, |out| wire::map_method_signature(method_id(method), signature, out));
        }
    }

    /// Loads a class when the first of its methods is called.
    fn load_class(&mut self, class: &'static str) {
        let mut mapped = METHODS.iter().zip(&self.mapped.methods).filter(|(_, mapped)| **mapped);
        if !mapped.any(|(method, _)| method.class() == class) {
            self.loaded.push((ClassOutcome::Transformed, class));
        }
    }

    #[inline]
    fn map_exception(&mut self, exception: u16, place: usize) {
        if !self.mapped.exceptions[usize::from(exception)] {
            self.mapped.exceptions[usize::from(exception)] = true;
            let place = self.mapping_buffer(place);
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
            let place = self.mapping_buffer(place);
            let shop::ShopMethod { line: first, lines, is_page, .. } = METHODS[usize::from(method)];
            if is_page && line == 0 {
                self.write(place, |out| wire::source_location_count(method_id(method), u32::from(lines), out));
            }
            self.write(place, |out| wire::map_source_location(location, method_id(method), first + line, out));
        }
        location
    }

    /// Writes the name of a new thread (versions 1 and 2). Many threads are renamed immediately. Of two names in
    /// different buffers either may arrive first; sometimes the new one is first in the same buffer.
    fn name(&mut self, thread: usize, place: usize, millis: u32) {
        if self.options.version > 2 {
            return;
        }
        let id = thread as u16;
        let original = if thread == 0 { "main".to_owned() } else { format!("Thread-{}", thread - 1) };
        let better = format!("worker-{thread} \u{2116} {}", self.rng.below(100));
        let renamed = thread > 0 && self.rng.one_in(2);
        // A strictly increasing time shows which is newer.
        let later = millis.saturating_add(1);
        if renamed && !self.options.in_order && self.rng.one_in(3) {
            self.write(place, |out| wire::map_thread_name(id, later, &better, out));
            self.write(place, |out| wire::map_thread_name(id, millis, &original, out));
        } else {
            let (first, second) = (self.mapping_buffer(place), self.mapping_buffer(place));
            self.write(first, |out| wire::map_thread_name(id, millis, &original, out));
            if renamed {
                self.write(second, |out| wire::map_thread_name(id, later, &better, out));
            }
        }
    }

    /// Writes another name of a thread.
    fn rename(&mut self, thread: usize, place: usize, millis: u32) {
        if self.options.version <= 2 && thread > 0 {
            let place = self.mapping_buffer(place);
            let name = format!("order \u{1f4e6} {}", self.rng.below(100_000));
            self.write(place, |out| wire::map_thread_name(thread as u16, millis.saturating_add(1), &name, out));
        }
    }

    /// The buffer of a mapping that an event in buffer `place` needs: half of the time another one.
    fn mapping_buffer(&mut self, place: usize) -> usize {
        let open = self.buffers.open() as u64;
        if self.rng.one_in(2) { place } else { self.rng.below(open) as usize }
    }

    fn line(&mut self, method: u16) -> u16 {
        let chance = self.rng.next();
        let shop::ShopMethod { line, lines, .. } = METHODS[usize::from(method)];
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

/// The id of a method; 0 is not used.
fn method_id(method: u16) -> u32 {
    u32::from(method) + 1
}

fn exception_id(exception: u16) -> u32 {
    u32::from(exception) + 1
}
