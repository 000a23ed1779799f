//! Messages → events, as `docs/event-model.md` lists them.

use tributary_event::{
    BatchBuilder, EventBuilder, Header, Interned, InternedRun, Key, Loss, Name, Position, Reason, Severity, SpanData,
    Status, TraceContext, UnixNanos, Value, semconv as names,
};
use tributary_protocol::{Now, Output};

use super::calls::{OpenCall, SpanIds};
use super::command::Mode;
use super::dictionary::{Dictionary, PeerName as Text};
use super::queue::{Event, Marker};
use super::sequence::{Gap, wrapped};
use super::wire::{Call, ClassOutcome, NO_LINE, What};

/// The position of a message on its connection, and when it was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessagePosition {
    pub offset: u64,
    pub length: u64,
    pub now: Now,
}

impl MessagePosition {
    fn header(&self, name: Name, sequence: Option<u64>) -> Header {
        let position = Position { sequence, offset: self.offset, length: self.length };
        Header::observed_at(name, self.now.unix, position)
    }
}

/// Starts a log event without a time of the agent.
fn untimed<'a>(out: &'a mut Output, name: Name, position: MessagePosition) -> EventBuilder<'a> {
    let mut event = out.batch.event(position.header(name, None));
    event.text(names::TIME_BASIS, names::TIME_BASIS_RECEIVED);
    event
}

/// Writes the hello of a control connection.
pub(super) fn connected(out: &mut Output, position: MessagePosition) {
    untimed(out, names::BYTEFROG_AGENT_CONNECTED, position).log(Severity::Info, None);
}

/// Writes a heartbeat.
pub(super) fn heartbeat(out: &mut Output, mode: Mode, buffers: u16, position: MessagePosition) {
    let mut event = untimed(out, names::BYTEFROG_HEARTBEAT, position);
    event.text(names::BYTEFROG_MODE, mode.as_str());
    if let Mode::Unknown(byte) = mode {
        event.attribute(names::BYTEFROG_MODE_VALUE, u64::from(byte));
    }
    event.attribute(names::BYTEFROG_BUFFERS_READABLE, u64::from(buffers));
    event.log(Severity::Info, None);
}

/// Writes what the agent did with a class.
pub(super) fn class(out: &mut Output, outcome: ClassOutcome, name: &[u8], position: MessagePosition) {
    let (kind, severity) = match outcome {
        ClassOutcome::Transformed => (names::BYTEFROG_CLASS_TRANSFORMED, Severity::Info),
        ClassOutcome::Ignored => (names::BYTEFROG_CLASS_IGNORED, Severity::Info),
        ClassOutcome::Failed => (names::BYTEFROG_CLASS_TRANSFORM_FAILED, Severity::Warn),
    };
    let name = Text::read(name);
    let mut event = untimed(out, kind, position);
    event.text(names::BYTEFROG_CLASS_NAME, &name.text);
    mark_repaired(&mut event, name.is_repaired);
    event.log(severity, None);
}

/// Writes an error of the agent.
pub(super) fn error(out: &mut Output, text: &[u8], severity: Severity, position: MessagePosition) {
    let text = Text::read(text);
    let mut event = untimed(out, names::BYTEFROG_AGENT_ERROR, position);
    mark_repaired(&mut event, text.is_repaired);
    let body = event.batch().push_text(&text.text);
    event.log(severity, Some(body.into()));
}

/// Writes a change of the health or of the connection of an agent.
pub(super) fn agent_changed(out: &mut Output, name: Name, mode: Mode, severity: Severity, position: MessagePosition) {
    let mut event = untimed(out, name, position);
    event.text(names::BYTEFROG_MODE, mode.as_str());
    event.log(severity, None);
}

/// Reports a data break: the agent dropped an unknown number of events before this number.
pub(super) fn data_break(out: &mut Output, sequence: u32, position: MessagePosition) {
    let detail = "the agent was suspended: events before this number were dropped";
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: None, detail, excerpt: &[] };
    let basis = out.batch.push_text(names::TIME_BASIS_RECEIVED);
    let attributes = [
        (Key::from(names::TIME_BASIS), Value::from(basis)),
        (names::BYTEFROG_SEQUENCE.into(), u64::from(sequence).into()),
    ];
    out.loss_with(position.header(names::BYTEFROG_DATA_BREAK, None), loss, &attributes);
}

/// Reports missing numbers: `missing` of those from the first to the last.
pub(super) fn gap(out: &mut Output, gap: Gap, missing: u64, detail: &str, now: Now) {
    let loss = Loss { reason: Reason::Gap, bytes: 0, events: Some(missing), detail, excerpt: &[] };
    let attributes = [
        (Key::from(names::BYTEFROG_SEQUENCE_FIRST), Value::from(wrapped(gap.first))),
        (names::BYTEFROG_SEQUENCE_LAST.into(), wrapped(gap.last).into()),
    ];
    out.loss_with(Header::observed_at(names::LOSS, now.unix, Position::default()), loss, &attributes);
}

/// Writes that `found` numbers between these have arrived after they were reported as missing.
pub(super) fn gap_closed(out: &mut Output, around: Gap, found: u64, now: Now) {
    let mut event = untimed(out, names::BYTEFROG_GAP_CLOSED, MessagePosition { offset: 0, length: 0, now });
    event.attribute(names::BYTEFROG_SEQUENCE_FIRST, wrapped(around.first));
    event.attribute(names::BYTEFROG_SEQUENCE_LAST, wrapped(around.last));
    event.attribute(names::BYTEFROG_GAP_EVENTS, found);
    event.log(Severity::Info, None);
}

/// Reports an agent that was configured to trace nothing, and why.
pub(super) fn untraced(out: &mut Output, detail: &str, position: MessagePosition) {
    let loss = Loss { reason: Reason::Shed, bytes: 0, events: None, detail, excerpt: &[] };
    out.loss(position.header(names::LOSS, None), loss);
}

/// Reports a repeated number.
pub(super) fn repeated(out: &mut Output, sequence: u32, message: &[u8], position: MessagePosition) {
    let detail = format!("number {sequence} has arrived before; this event is dropped");
    let loss = Loss {
        reason: Reason::Duplicate,
        bytes: message.len() as u64,
        events: Some(1),
        detail: &detail,
        excerpt: message,
    };
    out.loss(position.header(names::LOSS, Some(sequence.into())), loss);
}

/// The end of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEnd {
    pub events: u64,
    pub gaps: u64,
    pub duration: std::time::Duration,
    pub outcome: &'static str,
}

/// Writes the end of a run.
pub(super) fn run_ended(out: &mut Output, end: RunEnd, now: Now) {
    let position = MessagePosition { offset: 0, length: 0, now };
    let mut event = untimed(out, names::BYTEFROG_RUN_ENDED, position);
    event.attribute(names::BYTEFROG_RUN_EVENTS, end.events);
    event.attribute(names::BYTEFROG_RUN_GAPS, end.gaps);
    event.attribute(names::BYTEFROG_RUN_DURATION_MS, u64::try_from(end.duration.as_millis()).unwrap_or(u64::MAX));
    event.text(names::BYTEFROG_RUN_OUTCOME, end.outcome);
    event.log(Severity::Info, None);
}

/// Writes how many methods and classes have run in a run.
pub(super) fn coverage(out: &mut Output, methods: u64, classes: u64, now: Now) {
    let position = MessagePosition { offset: 0, length: 0, now };
    let mut event = untimed(out, names::BYTEFROG_COVERAGE, position);
    event.attribute(names::BYTEFROG_COVERAGE_METHODS, methods);
    event.attribute(names::BYTEFROG_COVERAGE_CLASSES, classes);
    event.log(Severity::Info, None);
}

/// A definition, for a listener that emits them.
pub(super) enum Definition<'a> {
    Thread { thread: u16, time: u32, resolved: UnixNanos, name: &'a [u8] },
    Method { method: u32, signature: &'a [u8] },
    Exception { exception: u32, name: &'a [u8] },
    SourceLocation { location: u32, method: u32, lines: (i32, i32), characters: (i16, i16) },
    SourceLocationCount { method: u32, count: u32 },
}

/// Writes a definition.
pub(super) fn definition(out: &mut Output, definition: Definition<'_>, position: MessagePosition) {
    let event = match definition {
        Definition::Thread { thread, time, resolved, name } => {
            let name = Text::read(name);
            let header = Header { time: Some(resolved), ..position.header(names::BYTEFROG_THREAD_NAMED, None) };
            let mut event = out.batch.event(header);
            event.attribute(names::THREAD_ID, u64::from(thread));
            event.text(names::THREAD_NAME, &name.text);
            event.attribute(names::BYTEFROG_TIME_RELATIVE_MS, u64::from(time));
            event.text(names::TIME_BASIS, names::TIME_BASIS_PEER_RELATIVE);
            mark_repaired(&mut event, name.is_repaired);
            event
        }
        Definition::Method { method, signature } => {
            let read = super::dictionary::MethodDefinition::read(signature);
            let mut event = untimed(out, names::BYTEFROG_METHOD_MAPPED, position);
            event.text(names::CODE_FUNCTION_NAME, &read.function.text);
            event.attribute(names::BYTEFROG_METHOD_ID, u64::from(method));
            describe(&mut event, read.access, read.descriptor.as_deref());
            mark_repaired(&mut event, read.function.is_repaired);
            event
        }
        Definition::Exception { exception, name } => {
            let name = Text::read(name);
            let mut event = untimed(out, names::BYTEFROG_EXCEPTION_MAPPED, position);
            event.text(names::EXCEPTION_TYPE, &name.text);
            event.attribute(names::BYTEFROG_EXCEPTION_ID, u64::from(exception));
            mark_repaired(&mut event, name.is_repaired);
            event
        }
        Definition::SourceLocation { location, method, lines, characters } => {
            let mut event = untimed(out, names::BYTEFROG_SOURCE_LOCATION_MAPPED, position);
            event.attribute(names::BYTEFROG_SOURCE_LOCATION_ID, u64::from(location));
            event.attribute(names::BYTEFROG_METHOD_ID, u64::from(method));
            add_lines(&mut event, lines);
            let (start, end) = characters;
            add_known(&mut event, names::CODE_COLUMN_NUMBER, start.into());
            add_known(&mut event, names::BYTEFROG_COLUMN_END, end.into());
            event
        }
        Definition::SourceLocationCount { method, count } => {
            let mut event = untimed(out, names::BYTEFROG_SOURCE_LOCATION_COUNTED, position);
            event.attribute(names::BYTEFROG_METHOD_ID, u64::from(method));
            event.attribute(names::BYTEFROG_SOURCE_LOCATION_COUNT, u64::from(count));
            event
        }
    };
    event.log(Severity::Debug, None);
}

/// Writes the events of a run.
#[derive(Debug)]
pub(super) struct EventWriter {
    basis: Interned,
    time_attributes: TimeAttributes,
    /// Whether threads have names in this version.
    names_threads: bool,
    /// Events that were written with raw ids (rule 20).
    pub unresolved: u64,
}

impl EventWriter {
    /// A writer. `names_threads`: threads have names in this version.
    pub(super) fn new(names_threads: bool) -> Self {
        EventWriter {
            basis: Interned::default(),
            time_attributes: TimeAttributes::default(),
            names_threads,
            unresolved: 0,
        }
    }

    /// Writes an entry or an exit that belongs to no span and whose names are known. Most events are such. `time` is asked only
    /// then. `false`: it is another one, and nothing was written.
    #[inline]
    pub(super) fn plain_call(
        &mut self,
        out: &mut Output,
        place: CallPosition,
        call: &Call,
        time: impl FnOnce() -> UnixNanos,
        dictionary: &mut Dictionary,
    ) -> bool {
        let name = match call.what {
            What::Entry => names::BYTEFROG_METHOD_ENTRY,
            What::ExitAtLine(_) | What::Exit { .. } => names::BYTEFROG_METHOD_EXIT,
            What::Thrown { .. } | What::Bubbled { .. } | What::Visit { .. } => return false,
        };
        let Some((method, thread)) = dictionary.names(call.method, call.thread) else { return false };
        if thread.is_none() && self.names_threads {
            return false;
        }
        let mut is_repaired = method.function.is_repaired;
        let method = method_run(&mut out.batch, &mut method.function, call.method);
        let thread = thread.map(|thread| {
            let name = thread.name_at(call.time);
            is_repaired |= name.is_repaired;
            thread_run(&mut out.batch, name, call.thread)
        });
        let last = self.time_attributes.run(&mut out.batch, &mut self.basis, call.time);
        let mut event = out.batch.event(place.header(name, time()));
        event.run(method);
        match thread {
            Some(run) => event.run(run),
            None => event.attribute(names::THREAD_ID, u64::from(call.thread)),
        }
        match call.what {
            What::ExitAtLine(line) if line != NO_LINE => event.attribute(names::CODE_LINE_NUMBER, u64::from(line)),
            What::Exit { threw } => event.attribute(names::BYTEFROG_EXIT_THREW, threw),
            _ => {}
        }
        event.run(last);
        mark_repaired(&mut event, is_repaired);
        event.log(Severity::Info, None);
        true
    }

    /// Writes an event of a thread at `time`. `ids`: the span that it belongs to.
    pub(super) fn call(
        &mut self,
        out: &mut Output,
        event: &Event,
        call: &Call,
        time: UnixNanos,
        ids: Option<SpanIds>,
        dictionary: &mut Dictionary,
    ) {
        let name = match call.what {
            What::Entry => names::BYTEFROG_METHOD_ENTRY,
            What::ExitAtLine(_) | What::Exit { .. } => names::BYTEFROG_METHOD_EXIT,
            What::Thrown { .. } => names::BYTEFROG_EXCEPTION_THROWN,
            What::Bubbled { .. } => names::BYTEFROG_EXCEPTION_BUBBLED,
            What::Visit { .. } => names::BYTEFROG_METHOD_VISIT,
        };
        let header = header(name, event, time);
        let mut timed = TimedEvent::new(self, out, header, dictionary);
        timed.method(call.method, false);
        timed.thread(call.thread, call.time);
        match call.what {
            What::Entry => {}
            What::ExitAtLine(line) => timed.line(line),
            What::Exit { threw } => timed.event.attribute(names::BYTEFROG_EXIT_THREW, threw),
            What::Thrown { exception, line } => {
                timed.exception(exception);
                timed.line(line);
            }
            What::Bubbled { exception } => timed.exception(exception),
            What::Visit { location } => timed.location(location),
        }
        let Some(SpanIds { trace, span }) = ids else { return timed.end(call.time).log(Severity::Info, None) };
        timed.hex(names::TRACE_ID, &trace.to_string());
        timed.hex(names::SPAN_ID, &span.to_string());
        let context = TraceContext { trace_id: trace, span_id: Some(span) };
        timed.end(call.time).log_in(context, Severity::Info, None);
    }

    /// Writes that a method runs for the first time.
    pub(super) fn covered(
        &mut self,
        out: &mut Output,
        event: &Event,
        call: &Call,
        time: UnixNanos,
        dictionary: &mut Dictionary,
    ) {
        let header = header(names::BYTEFROG_METHOD_COVERED, event, time);
        let mut timed = TimedEvent::new(self, out, header, dictionary);
        timed.method(call.method, true);
        timed.end(call.time).log(Severity::Info, None);
    }

    /// Writes a marker at `time`.
    pub(super) fn marker(&mut self, out: &mut Output, event: &Event, marker: &Marker, time: UnixNanos) {
        let basis = out.batch.intern(&mut self.basis, names::TIME_BASIS_PEER_RELATIVE);
        let mut builder = out.batch.event(header(names::BYTEFROG_MARKER, event, time));
        builder.text(names::BYTEFROG_MARKER_KEY, &marker.key);
        builder.text(names::BYTEFROG_MARKER_VALUE, &marker.value);
        builder.attribute(names::BYTEFROG_TIME_RELATIVE_MS, u64::from(marker.time));
        builder.attribute(names::TIME_BASIS, basis);
        mark_repaired(&mut builder, marker.is_repaired);
        builder.log(Severity::Info, None);
    }

    /// Writes a call that started at `start`. `exit`: the event that closed it; without one, the end is unknown.
    pub(super) fn span(
        &mut self,
        out: &mut Output,
        call_entry: &OpenCall,
        start: UnixNanos,
        exit: Option<(&Event, &Call)>,
        dictionary: &mut Dictionary,
    ) {
        let method = dictionary.method(call_entry.method);
        let name = match method {
            Some(method) => out.batch.intern(&mut method.function.memo, &method.function.text),
            None => out.batch.push_text(&format!("method#{}", call_entry.method)),
        };
        let position = match exit {
            Some((exit, _)) => position(exit),
            None => {
                let sequence = Some(wrapped(call_entry.number));
                Position { sequence, offset: call_entry.offset, length: call_entry.length.into() }
            }
        };
        let observed = exit.map_or(call_entry.observed, |(exit, _)| exit.observed);
        let header = Header { name: name.into(), time: Some(start), observed, position };
        let mut timed = TimedEvent::new(self, out, header, dictionary);
        timed.method(call_entry.method, true);
        timed.thread(call_entry.thread, call_entry.time);
        let mut status = Status::Unset;
        match exit.map(|(_, call)| call.what) {
            Some(What::ExitAtLine(line)) => timed.line(line),
            Some(What::Exit { threw: true }) => status = Status::Error,
            Some(What::Bubbled { exception }) => {
                status = Status::Error;
                timed.exception(exception);
            }
            _ => {}
        }
        // The clock of the agent may step back; then the duration is unknown.
        let milliseconds = exit.and_then(|(_, call)| call.time.checked_sub(call_entry.time));
        if milliseconds.is_none() {
            timed.event.incomplete(["end"]);
        }
        let duration_nanos = milliseconds.map(|milliseconds| u64::from(milliseconds) * 1_000_000);
        let SpanIds { trace: trace_id, span: span_id } = call_entry.ids;
        let end = duration_nanos.and_then(|nanos| start.0.checked_add(nanos)).map(UnixNanos);
        let ids = SpanData::new(trace_id, span_id);
        let span = SpanData { parent: call_entry.parent, end, duration_nanos, status, ..ids };
        timed.end(call_entry.time).span(span);
    }
}

/// The last attributes of all events of one millisecond, which can be thousands.
#[derive(Debug, Default)]
struct TimeAttributes {
    time: u32,
    run: InternedRun,
}

impl TimeAttributes {
    /// The attributes of `time` as a run of the batch.
    #[inline]
    fn run(&mut self, batch: &mut BatchBuilder, basis: &mut Interned, time: u32) -> u32 {
        if self.time != time {
            *self = TimeAttributes { time, run: InternedRun::default() };
        }
        batch.intern_run(&mut self.run, |batch| {
            let basis = batch.intern(basis, names::TIME_BASIS_PEER_RELATIVE);
            [
                (names::BYTEFROG_TIME_RELATIVE_MS.into(), u64::from(time).into()),
                (names::TIME_BASIS.into(), basis.into()),
            ]
        })
    }
}

/// The name and the id of a method as a run of the batch.
#[inline]
fn method_run(batch: &mut BatchBuilder, function: &mut Text, id: u32) -> u32 {
    let Text { text, memo, run, .. } = function;
    batch.intern_run(run, |batch| {
        let name = batch.intern(memo, text);
        [(names::CODE_FUNCTION_NAME.into(), name.into()), (names::BYTEFROG_METHOD_ID.into(), u64::from(id).into())]
    })
}

/// The id and the name of a thread as a run of the batch.
#[inline]
fn thread_run(batch: &mut BatchBuilder, name: &mut Text, id: u16) -> u32 {
    let Text { text, run, .. } = name;
    batch.intern_run(run, |batch| {
        let name = batch.push_text(text);
        [(names::THREAD_ID.into(), u64::from(id).into()), (names::THREAD_NAME.into(), name.into())]
    })
}

/// An event of a thread that is being written.
struct TimedEvent<'a> {
    event: EventBuilder<'a>,
    dictionary: &'a mut Dictionary,
    basis: &'a mut Interned,
    time_attributes: &'a mut TimeAttributes,
    names_threads: bool,
    unresolved_events: &'a mut u64,
    is_repaired: bool,
    is_unresolved: bool,
}

impl<'a> TimedEvent<'a> {
    fn new(writer: &'a mut EventWriter, out: &'a mut Output, header: Header, dictionary: &'a mut Dictionary) -> Self {
        TimedEvent {
            event: out.batch.event(header),
            dictionary,
            basis: &mut writer.basis,
            time_attributes: &mut writer.time_attributes,
            names_threads: writer.names_threads,
            unresolved_events: &mut writer.unresolved,
            is_repaired: false,
            is_unresolved: false,
        }
    }

    /// Adds the method; on spans also the rest of its signature.
    fn method(&mut self, id: u32, with_signature: bool) {
        match self.dictionary.method(id) {
            Some(method) => {
                self.is_repaired |= method.function.is_repaired;
                let run = method_run(self.event.batch(), &mut method.function, id);
                self.event.run(run);
                if with_signature {
                    describe(&mut self.event, method.access, method.descriptor.as_deref());
                }
            }
            None => {
                self.event.attribute(names::BYTEFROG_METHOD_ID, u64::from(id));
                self.unresolved(names::BYTEFROG_UNRESOLVED_METHOD, id);
            }
        }
    }

    /// Adds the thread with its name at this time of the agent (rule 21).
    fn thread(&mut self, id: u16, time: u32) {
        let Some(thread) = self.dictionary.thread(id) else {
            self.event.attribute(names::THREAD_ID, u64::from(id));
            if self.names_threads {
                self.unresolved(names::BYTEFROG_UNRESOLVED_THREAD, id.into());
            }
            return;
        };
        let name = thread.name_at(time);
        self.is_repaired |= name.is_repaired;
        let run = thread_run(self.event.batch(), name, id);
        self.event.run(run);
    }

    fn exception(&mut self, id: u32) {
        match self.dictionary.exception(id) {
            Some(name) => {
                self.is_repaired |= name.is_repaired;
                let text = self.event.batch().intern(&mut name.memo, &name.text);
                self.event.attribute(names::EXCEPTION_TYPE, text);
                self.event.attribute(names::BYTEFROG_EXCEPTION_ID, u64::from(id));
            }
            None => {
                self.event.attribute(names::BYTEFROG_EXCEPTION_ID, u64::from(id));
                self.unresolved(names::BYTEFROG_UNRESOLVED_EXCEPTION, id);
            }
        }
    }

    fn location(&mut self, id: u32) {
        match self.dictionary.location(id) {
            Some(location) => add_lines(&mut self.event, location.lines),
            None => self.unresolved(names::BYTEFROG_UNRESOLVED_SOURCE_LOCATION, id),
        }
        self.event.attribute(names::BYTEFROG_SOURCE_LOCATION_ID, u64::from(id));
    }

    fn line(&mut self, line: u16) {
        if line != NO_LINE {
            self.event.attribute(names::CODE_LINE_NUMBER, u64::from(line));
        }
    }

    fn hex(&mut self, key: Name, text: &str) {
        self.event.text(key, text);
    }

    fn unresolved(&mut self, key: Name, id: u32) {
        self.is_unresolved = true;
        self.event.attribute(key, u64::from(id));
    }

    /// Adds the attributes of every timed event.
    fn end(mut self, time: u32) -> EventBuilder<'a> {
        let run = self.time_attributes.run(self.event.batch(), self.basis, time);
        self.event.run(run);
        mark_repaired(&mut self.event, self.is_repaired);
        *self.unresolved_events += u64::from(self.is_unresolved);
        self.event
    }
}

/// The place of a call among those of its run, and on its connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallPosition {
    pub number: u64,
    pub offset: u64,
    pub length: u32,
    pub observed: UnixNanos,
}

impl CallPosition {
    #[inline]
    fn header(self, name: Name, time: UnixNanos) -> Header {
        let CallPosition { number, offset, length, observed } = self;
        let position = Position { sequence: Some(wrapped(number)), offset, length: length.into() };
        Header { name: name.into(), time: Some(time), observed, position }
    }
}

impl From<&Event> for CallPosition {
    fn from(event: &Event) -> Self {
        let Event { number, offset, length, observed, .. } = *event;
        CallPosition { number, offset, length, observed }
    }
}

fn header(name: Name, event: &Event, time: UnixNanos) -> Header {
    CallPosition::from(event).header(name, time)
}

fn position(event: &Event) -> Position {
    Position { sequence: Some(wrapped(event.number)), offset: event.offset, length: event.length.into() }
}

fn describe(event: &mut EventBuilder<'_>, access: Option<u64>, descriptor: Option<&str>) {
    if let Some(descriptor) = descriptor {
        event.text(names::BYTEFROG_METHOD_DESCRIPTOR, descriptor);
    }
    if let Some(access) = access {
        event.attribute(names::BYTEFROG_METHOD_ACCESS, access);
    }
}

fn add_lines(event: &mut EventBuilder<'_>, (start, end): (i32, i32)) {
    add_known(event, names::CODE_LINE_NUMBER, start);
    add_known(event, names::BYTEFROG_LINE_END, end);
}

/// Adds a number; -1 means unknown (rule 24).
fn add_known(event: &mut EventBuilder<'_>, key: Name, number: i32) {
    if number != -1 {
        event.attribute(key, i64::from(number));
    }
}

fn mark_repaired(event: &mut EventBuilder<'_>, is_repaired: bool) {
    if is_repaired {
        event.attribute(names::TEXT_REPAIRED, true);
    }
}
