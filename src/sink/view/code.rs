//! The code of Java programs: how often each method was called and how long it took, summed up while the calls pass.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use tributary_event::{
    Batch, DataView, EventView, KeyView, Name, Number, Resource, ResourceValue, SampleView, SpanData, UnixNanos,
    semconv,
};
use tributary_profile::calls::OpenCalls;
use tributary_profile::events;

/// The most runs.
const MAX_RUNS: usize = 64;
/// The most marks of a run; a further one replaces the oldest.
const MAX_MARKS: usize = 16;
/// The most calls of a run that are open at the same time.
const MAX_OPEN_CALLS: usize = 1024;
/// Parents whose span has not come yet, of a run.
const MAX_PARENTS: usize = 512;
/// Memory of a run besides its methods: its open calls and parents.
const RUN_BYTES: usize = 4096 + MAX_OPEN_CALLS * 40 + MAX_PARENTS * 20;
/// Memory of a method besides its name, which is there twice; also in one mark.
const METHOD_BYTES: usize = size_of::<CalledMethod>() + 80 + size_of::<MethodSums>();
/// Longer names are cut.
const MAX_NAME_BYTES: usize = 1024;
const NANOS_PER_MILLI: u64 = 1_000_000;

/// The programs that were seen.
#[derive(Debug)]
pub struct Code {
    runs: VecDeque<Run>,
    limit: usize,
}

/// One run of a program.
#[derive(Debug)]
pub struct Run {
    /// Its id, which is also that of its agent.
    pub id: String,
    /// The process in words.
    pub agent: String,
    /// The listener.
    pub listener: Arc<str>,
    run: u64,
    /// When its first and its last event were read.
    pub since: UnixNanos,
    #[allow(missing_docs)]
    pub last: UnixNanos,
    methods: Vec<CalledMethod>,
    names: HashMap<Box<str>, u32, RandomState>,
    ids: HashMap<u64, u32, RandomState>,
    classes: HashSet<Box<str>, RandomState>,
    open: OpenCalls,
    /// The time of the calls within spans that have not come yet.
    within: HashMap<[u8; 8], u64, RandomState>,
    marks: VecDeque<Mark>,
    next_mark: u64,
    name_bytes: usize,
    /// Methods and classes for which there was no memory.
    pub left_out: u64,
}

/// A method.
#[derive(Clone, Debug)]
pub struct CalledMethod {
    /// Package, class and method.
    pub name: Box<str>,
    /// What it did.
    pub sums: MethodSums,
    /// When it was called last.
    pub last: Option<UnixNanos>,
    /// It ran, although how often is not known.
    is_covered: bool,
}

/// What a method did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MethodSums {
    /// Calls.
    pub calls: u64,
    /// Time without that of the calls within it, in nanoseconds.
    pub self_nanos: u64,
    /// Exceptions that it threw.
    pub exceptions: u64,
}

/// A moment to compare with.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// When it was made.
    pub at: UnixNanos,
    /// What the methods had done then, in their order.
    sums: Vec<MethodSums>,
}

impl Code {
    /// No programs, in at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Code { runs: VecDeque::new(), limit }
    }

    /// Sets the most bytes. The oldest runs are dropped until the others fit.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        while self.memory_bytes() > self.limit {
            self.runs.pop_front();
        }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.runs.iter().map(Run::memory_bytes).sum()
    }

    /// The runs, the oldest first.
    pub fn runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.iter()
    }

    /// The run with this id.
    pub fn run(&self, id: &str) -> Option<&Run> {
        self.runs.iter().rev().find(|run| run.id == id)
    }

    /// Marks the present moment of a run. `None`: there is no such run.
    pub fn mark(&mut self, id: &str, name: &str, at: UnixNanos) -> Option<&Mark> {
        let max_bytes = self.limit.saturating_sub(self.memory_bytes());
        let run = self.runs.iter_mut().rev().find(|run| run.id == id)?;
        let bytes = run.methods.len() * size_of::<MethodSums>() + MAX_NAME_BYTES;
        if bytes > max_bytes {
            run.marks.clear();
        } else if run.marks.len() >= MAX_MARKS {
            run.marks.pop_front();
        }
        let sums = run.methods.iter().map(|method| method.sums).collect();
        run.marks.push_back(Mark { id: run.next_mark, name: cut(name).to_owned(), at, sums });
        run.next_mark += 1;
        run.marks.back()
    }

    /// Adds the events of a batch. `has_gap`: events are missing before it.
    pub(super) fn add(&mut self, batch: &Batch, has_gap: bool) {
        let mut current: Option<(&Arc<Resource>, usize, usize)> = None;
        for event in batch.events() {
            let resource = event.resource();
            let (at, max_bytes) = match current {
                Some((known, at, max_bytes)) if Arc::ptr_eq(known, resource) => (at, max_bytes),
                _ => {
                    let Some(at) = self.find(event) else { continue };
                    let max_bytes = self.limit.saturating_sub(self.memory_bytes_but(at));
                    current = Some((resource, at, max_bytes));
                    if has_gap {
                        self.runs[at].open.end_all();
                    }
                    (at, max_bytes)
                }
            };
            self.runs[at].add(event, max_bytes);
        }
    }

    fn memory_bytes_but(&self, at: usize) -> usize {
        self.runs.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, run)| run.memory_bytes()).sum()
    }

    /// The run of an event. An agent that connects begins another run, which may have the number of one that has ended.
    fn find(&mut self, event: EventView<'_>) -> Option<usize> {
        let run = event.resource().attributes().iter().find_map(|(key, value)| match value {
            ResourceValue::U64(run) if key == semconv::BYTEFROG_RUN_ID.as_str() => Some(*run),
            ResourceValue::I64(run) if key == semconv::BYTEFROG_RUN_ID.as_str() => u64::try_from(*run).ok(),
            _ => None,
        })?;
        let listener = &event.origin().listener;
        let is_it = |known: &Run| known.run == run && known.listener == *listener;
        let is_new = matches!(event.name_key(), KeyView::Name(semconv::BYTEFROG_AGENT_CONNECTED));
        if is_new {
            self.runs.retain(|known| !is_it(known));
        }
        if let Some(at) = self.runs.iter().rposition(is_it) {
            return Some(at);
        }
        while self.runs.len() >= MAX_RUNS || self.memory_bytes() + RUN_BYTES > self.limit {
            self.runs.pop_front()?;
        }
        self.runs.push_back(Run {
            id: format!("{listener}:{run}"),
            agent: events::agent(event),
            listener: listener.clone(),
            run,
            since: event.observed(),
            last: event.observed(),
            methods: Vec::new(),
            names: HashMap::default(),
            ids: HashMap::default(),
            classes: HashSet::default(),
            open: OpenCalls::new(MAX_OPEN_CALLS),
            within: HashMap::default(),
            marks: VecDeque::new(),
            next_mark: 1,
            name_bytes: 0,
            left_out: 0,
        });
        Some(self.runs.len() - 1)
    }
}

impl Run {
    fn memory_bytes(&self) -> usize {
        let of_mark = |mark: &Mark| mark.sums.capacity() * size_of::<MethodSums>() + mark.name.len() + 64;
        let marks: usize = self.marks.iter().map(of_mark).sum();
        let marks = marks.saturating_sub(2 * self.methods.len() * size_of::<MethodSums>());
        // The tables may have twice the capacity that they need.
        RUN_BYTES + 2 * self.methods.len() * METHOD_BYTES + self.classes.len() * 48 + 2 * self.name_bytes + marks
    }

    /// The methods, and whether each was called.
    pub fn methods(&self) -> impl Iterator<Item = (&CalledMethod, bool)> {
        self.methods.iter().map(|method| (method, method.is_covered || method.sums.calls > 0))
    }

    /// What the methods have done since a mark, in their order. `None`: there is no such mark.
    pub fn since(&self, mark: u64) -> Option<(&Mark, impl Iterator<Item = (&CalledMethod, MethodSums)>)> {
        let mark = self.marks.iter().find(|known| known.id == mark)?;
        let before = |index: usize| mark.sums.get(index).copied().unwrap_or_default();
        let since = move |(index, method): (usize, _)| {
            let method: &CalledMethod = method;
            let before = before(index);
            let sums = MethodSums {
                calls: method.sums.calls - before.calls,
                self_nanos: method.sums.self_nanos.saturating_sub(before.self_nanos),
                exceptions: method.sums.exceptions - before.exceptions,
            };
            (method, sums)
        };
        Some((mark, self.methods.iter().enumerate().map(since)))
    }

    /// Classes that the agent has named, without methods.
    pub fn classes(&self) -> impl Iterator<Item = &str> {
        self.classes.iter().map(|name| &**name)
    }

    /// The marks, the oldest first.
    pub fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.marks.iter()
    }

    /// Adds an event. `max_bytes`: the most bytes of this run.
    fn add(&mut self, event: EventView<'_>, max_bytes: usize) {
        self.last = self.last.max(event.observed());
        match event.data() {
            DataView::Log { .. } => {
                if let KeyView::Name(name) = event.name_key() {
                    self.add_log(name, event, max_bytes);
                }
            }
            DataView::Span(span) => self.add_span(&span, event, max_bytes),
            DataView::Sample(sample) => self.add_sample(sample, event, max_bytes),
            DataView::Loss(_) if matches!(event.name_key(), KeyView::Name(semconv::BYTEFROG_DATA_BREAK)) => {
                self.open.end_all();
            }
            DataView::Loss(_) | DataView::Metric(_) => {}
        }
    }

    fn add_log(&mut self, name: Name, event: EventView<'_>, max_bytes: usize) {
        let fields = || CallFields::read(event);
        match name {
            semconv::BYTEFROG_METHOD_ENTRY => {
                let fields = fields();
                let Some(method) = self.method(&fields, max_bytes) else { return };
                self.called(method, 1, event);
                self.open.enter(fields.thread, method, fields.time, |_| method);
            }
            semconv::BYTEFROG_METHOD_EXIT | semconv::BYTEFROG_EXCEPTION_BUBBLED => {
                let fields = fields();
                let Some(method) = self.method(&fields, max_bytes) else { return };
                if let Some(ended) = self.open.exit(fields.thread, method, fields.time) {
                    let sums = &mut self.methods[ended.node as usize].sums;
                    let nanos = ended.self_millis.saturating_mul(NANOS_PER_MILLI);
                    sums.self_nanos = sums.self_nanos.saturating_add(nanos);
                }
            }
            semconv::BYTEFROG_EXCEPTION_THROWN => {
                if let Some(method) = self.method(&fields(), max_bytes) {
                    self.methods[method as usize].sums.exceptions += 1;
                }
            }
            semconv::BYTEFROG_METHOD_MAPPED => {
                self.method(&fields(), max_bytes);
            }
            semconv::BYTEFROG_METHOD_COVERED => {
                if let Some(method) = self.method(&fields(), max_bytes) {
                    self.methods[method as usize].is_covered = true;
                }
            }
            semconv::BYTEFROG_CLASS_TRANSFORMED => {
                if let Some(class) = fields().class {
                    self.class(class, max_bytes);
                }
            }
            semconv::BYTEFROG_RUN_ENDED => self.open.end_all(),
            _ => {}
        }
    }

    /// A span ends after the spans within it: their time is known when it comes.
    fn add_span(&mut self, span: &SpanData, event: EventView<'_>, max_bytes: usize) {
        let fields = CallFields { function: Some(event.name().text()), ..CallFields::default() };
        let Some(method) = self.method(&fields, max_bytes) else { return };
        self.called(method, 1, event);
        let within = self.within.remove(&span.span_id.0).unwrap_or(0);
        let Some(duration) = span.duration_nanos else { return };
        let sums = &mut self.methods[method as usize].sums;
        sums.self_nanos = sums.self_nanos.saturating_add(duration.saturating_sub(within));
        if let Some(parent) = span.parent {
            if self.within.len() >= MAX_PARENTS {
                self.within.clear();
            }
            let within = self.within.entry(parent.0).or_default();
            *within = within.saturating_add(duration);
        }
    }

    fn add_sample(&mut self, sample: SampleView<'_>, event: EventView<'_>, max_bytes: usize) {
        let Some(function) = sample.frames().next().and_then(|frame| frame.function) else { return };
        let Number::U64(value) = sample.data.value else { return };
        let fields = CallFields { function: Some(function.text()), ..CallFields::default() };
        let Some(method) = self.method(&fields, max_bytes) else { return };
        match sample.sample_type() {
            "calls" => self.called(method, value, event),
            "wall" => {
                let sums = &mut self.methods[method as usize].sums;
                sums.self_nanos = sums.self_nanos.saturating_add(value);
            }
            _ => {}
        }
    }

    fn called(&mut self, method: u32, calls: u64, event: EventView<'_>) {
        let method = &mut self.methods[method as usize];
        method.sums.calls = method.sums.calls.saturating_add(calls);
        method.last = Some(event.observed());
    }

    /// The number of a method. `None`: its name is not known, or there is no memory for it.
    fn method(&mut self, fields: &CallFields<'_>, max_bytes: usize) -> Option<u32> {
        if let Some(known) = fields.method.and_then(|id| self.ids.get(&id)) {
            return Some(*known);
        }
        let name = cut(fields.function?);
        let number = match self.names.get(name) {
            Some(known) => *known,
            None => {
                if self.memory_bytes() + 2 * (METHOD_BYTES + name.len()) > max_bytes {
                    self.left_out += 1;
                    return None;
                }
                let number = self.methods.len() as u32;
                self.names.insert(name.into(), number);
                let sums = MethodSums::default();
                self.methods.push(CalledMethod { name: name.into(), sums, last: None, is_covered: false });
                self.name_bytes += name.len();
                number
            }
        };
        if let Some(id) = fields.method {
            // A method has one id. An agent that sends many for the same name must not fill the table.
            if self.ids.len() < 2 * self.methods.len() {
                self.ids.insert(id, number);
            }
        }
        Some(number)
    }

    fn class(&mut self, class: &str, max_bytes: usize) {
        let name = cut(class).replace('/', ".");
        if self.classes.contains(name.as_str()) {
            return;
        }
        if self.memory_bytes() + 48 + 2 * name.len() > max_bytes {
            self.left_out += 1;
            return;
        }
        self.name_bytes += name.len();
        self.classes.insert(name.into());
    }
}

/// The attributes of an event that are summed up.
#[derive(Default)]
struct CallFields<'a> {
    function: Option<&'a str>,
    class: Option<&'a str>,
    method: Option<u64>,
    thread: u64,
    time: u32,
}

impl<'a> CallFields<'a> {
    fn read(event: EventView<'a>) -> Self {
        let mut fields = CallFields::default();
        for member in event.attribute_members() {
            let KeyView::Name(name) = member.key() else { continue };
            let value = member.value();
            match name {
                semconv::CODE_FUNCTION_NAME => fields.function = value.as_text(),
                semconv::BYTEFROG_CLASS_NAME => fields.class = value.as_text(),
                semconv::BYTEFROG_METHOD_ID => fields.method = value.as_u64(),
                semconv::THREAD_ID => fields.thread = value.as_u64().unwrap_or(0),
                semconv::BYTEFROG_TIME_RELATIVE_MS => fields.time = value.as_u64().unwrap_or(0) as u32,
                _ => {}
            }
        }
        fields
    }
}

/// The beginning of a name.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(MAX_NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_event::{BatchBuilder, Header, Origin, Position, Severity};

    /// Events of run 7: their names, their functions, and their times in milliseconds.
    fn batch(events: &[(Name, &str, u64)]) -> Batch {
        let origin = Origin::new("bytefrog", "java".into(), "127.0.0.1:1".into(), 1);
        let mut batch = BatchBuilder::new(origin.into());
        let run = (semconv::BYTEFROG_RUN_ID.as_str().to_owned(), ResourceValue::U64(7));
        batch.set_resource(Resource::new([run]).into());
        for (name, function, time) in events {
            let mut event = batch.event(Header::observed_at(*name, UnixNanos(*time), Position::default()));
            let key = if *name == semconv::BYTEFROG_CLASS_TRANSFORMED {
                semconv::BYTEFROG_CLASS_NAME
            } else {
                semconv::CODE_FUNCTION_NAME
            };
            event.text(key, function);
            event.attribute(semconv::THREAD_ID, 1u64);
            event.attribute(semconv::BYTEFROG_TIME_RELATIVE_MS, *time);
            event.log(Severity::Info, None);
        }
        batch.take()
    }

    const ENTRY: Name = semconv::BYTEFROG_METHOD_ENTRY;
    const EXIT: Name = semconv::BYTEFROG_METHOD_EXIT;

    fn sums(code: &Code) -> Vec<(String, u64, u64)> {
        let methods = code.run("java:7").unwrap().methods();
        methods
            .map(|(method, _)| (method.name.to_string(), method.sums.calls, method.sums.self_nanos / NANOS_PER_MILLI))
            .collect()
    }

    #[test]
    fn calls_have_self_times_and_none_where_events_are_missing() {
        let mut code = Code::new(1 << 20);
        let calls = [(ENTRY, "a.B.c", 0), (ENTRY, "a.B.d", 10), (EXIT, "a.B.d", 30), (EXIT, "a.B.c", 50)];
        code.add(&batch(&calls), false);
        assert_eq!(sums(&code), [("a.B.c".to_owned(), 1, 30), ("a.B.d".to_owned(), 1, 20)]);
        code.add(&batch(&calls[..1]), false);
        code.add(&batch(&calls[3..]), true);
        assert_eq!(sums(&code)[0], ("a.B.c".to_owned(), 2, 30));
        let known = [(semconv::BYTEFROG_METHOD_MAPPED, "a.B.e", 0), (semconv::BYTEFROG_CLASS_TRANSFORMED, "a/F", 0)];
        code.add(&batch(&known), false);
        let run = code.run("java:7").unwrap();
        assert_eq!(run.methods().filter(|(_, has_run)| !has_run).count(), 1);
        assert_eq!(run.classes().collect::<Vec<_>>(), ["a.F"]);
    }

    #[test]
    fn a_mark_shows_what_was_called_since() {
        let mut code = Code::new(1 << 20);
        code.add(&batch(&[(ENTRY, "a.B.c", 0), (ENTRY, "a.B.d", 1)]), false);
        let mark = code.mark("java:7", "now", UnixNanos(5)).unwrap().id;
        code.add(&batch(&[(ENTRY, "a.B.d", 2), (ENTRY, "a.B.e", 3)]), false);
        let run = code.run("java:7").unwrap();
        let (_, since) = run.since(mark).unwrap();
        let since: Vec<u64> = since.map(|(_, sums)| sums.calls).collect();
        assert_eq!(since, [0, 1, 1]);
        assert!(run.since(99).is_none() && code.mark("java:8", "now", UnixNanos(5)).is_none());
    }

    #[test]
    fn any_number_of_methods_and_marks_stays_within_the_limit() {
        let limit = 200_000;
        let mut code = Code::new(limit);
        for number in 0..5000u64 {
            code.add(&batch(&[(ENTRY, &format!("a.B{number}.{}", "n".repeat(200)), number)]), false);
            if number % 100 == 0 {
                code.mark("java:7", &"m".repeat(150), UnixNanos(number));
            }
            assert!(code.memory_bytes() <= limit + 4096, "{} bytes", code.memory_bytes());
        }
        let run = code.run("java:7").unwrap();
        assert!(run.left_out > 4000 && run.methods().count() > 50, "{}", run.left_out);
    }
}
